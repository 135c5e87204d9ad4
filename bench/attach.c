// SPDX-License-Identifier: Apache-2.0
// How fast context goes in: banyan_attach + banyan_commit of random K and V into 1 and into 4 workers, beside
// a plain socket copy into as many processes in the same run. Pairs of measurements take turns; medians are
// reported.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/floor.h"
#include "bench/main.h"
#include "bench/report.h"
#include "bench/service.h"
#include "common/clock.h"
#include "tests/harness/cluster.h"

static bool json;
static uint64_t tokens = 65536, repeats = 5;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *x, uint64_t n)
{
    qsort(x, n, sizeof(*x), by_value);
    return x[n / 2];
}

static bool attach_once(banyan_client *client, uint32_t workers, const void *k, const void *v,
                        double *bytes_per_s)
{
    const struct service_geometry *g = &service_large;
    banyan_error error = {0};
    banyan_session *session = service_session(client, g, workers, 0, 0);
    if (!session)
        return false;
    uint64_t start = common_clock_ns();
    bool ok = banyan_attach(session, 0, 0, tokens, k, v, &error) == BANYAN_OK &&
              banyan_commit(session, 0, 0, tokens, &error) == BANYAN_OK;
    *bytes_per_s =
        (double)(2 * tokens * service_kv_row_bytes(g)) / ((double)(common_clock_ns() - start) * 1e-9);
    if (!ok)
        service_failed("attach", &error);
    banyan_session_delete(session, NULL);
    banyan_session_close(session);
    return ok;
}

static bool run(uint32_t workers, const void *k, const void *v)
{
    double ours[64], plain[64];
    uint64_t bytes = 2 * tokens * service_kv_row_bytes(&service_large);
    struct harness_cluster *cluster = service_cluster(workers, "4G");
    banyan_client *client = NULL;
    banyan_error error = {0};
    if (!cluster)
        return false;
    bool ok = banyan_connect(harness_cluster_endpoint(cluster, "unix"), NULL, &client, &error) == BANYAN_OK ||
              service_failed("connect", &error);
    for (uint64_t i = 0; ok && i < repeats + 1; i++) { // the first pair warms up
        uint64_t slot = i ? i - 1 : 0;
        ok = floor_copy(workers, bytes, &plain[slot]) && attach_once(client, workers, k, v, &ours[slot]);
    }
    banyan_disconnect(client);
    if (ok) {
        double a = median(ours, repeats), b = median(plain, repeats);
        const struct report_field fields[] = {
            {"bench", "attach", 0},          {"workers", NULL, workers},         {"bytes_per_s", NULL, a},
            {"socket_bytes_per_s", NULL, b}, {"ratio", NULL, b > 0 ? a / b : 0}, {0}};
        report_line(json, fields);
    }
    return harness_cluster_stop(cluster) == 0 && ok;
}

static bool measure_all(void)
{
    size_t bytes = tokens * service_kv_row_bytes(&service_large);
    char *k = malloc(bytes), *v = malloc(bytes);
    if (!k || !v)
        return false;
    for (size_t i = 0; i < bytes; i++) { // finite numbers of any size
        k[i] = (char)(i * 31 % 63);
        v[i] = (char)(i * 17 % 63);
    }
    bool ok = run(1, k, v) && run(4, k, v);
    free(k);
    free(v);
    return ok;
}

int main(int argc, char **argv)
{
    floor_peer_main(argc, argv);
    const struct common_option options[] = {
        {"tokens", 'n', COMMON_OPTION_U64, &tokens, "N",
         "tokens attached at a time, 4 KiB each (default 65536)", 1024, 1 << 20},
        {"repeats", 'r', COMMON_OPTION_U64, &repeats, "N", "measurements of each kind (default 5)", 1, 64},
        {0},
    };
    const struct bench_program program = {
        .name = "attach",
        .about = "Bytes per second into 1 and 4 workers, beside a plain socket copy.",
        .options = options,
        .json = &json,
        .measure = measure_all,
    };
    return bench_main(&program, argc, argv);
}
