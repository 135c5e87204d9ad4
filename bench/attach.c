// SPDX-License-Identifier: Apache-2.0
// How fast context goes in: banyan_attach + banyan_commit of random K and V into 1 and into 4 workers, beside
// a plain socket copy into as many processes in the same run; plain, and with all links under TLS. Pairs of
// measurements take turns; medians are reported. bytes_per_cpu_s: of the processor time of client,
// coordinator and workers together, so what one core would do for both ends.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/floor.h"
#include "bench/main.h"
#include "bench/report.h"
#include "bench/service.h"
#include "common/base/clock.h"
#include "tests/common/test_pki.h"
#include "tests/harness/cluster.h"

#define HERE "localhost,127.0.0.1"

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

static bool attach_once(const struct harness_cluster *cluster, banyan_client *client, uint32_t workers,
                        const void *k, const void *v, double *bytes_per_s, double *bytes_per_cpu_s)
{
    const struct service_geometry *g = &service_large;
    banyan_error error = {0};
    banyan_session *session = service_session(client, g, workers, 0, 0);
    if (!session)
        return false;
    double used_s = service_cpu_s(cluster), bytes = (double)(2 * tokens * service_kv_row_bytes(g));
    uint64_t start = common_clock_ns();
    bool ok = banyan_attach(session, 0, 0, tokens, k, v, &error) == BANYAN_OK &&
              banyan_commit(session, 0, 0, tokens, &error) == BANYAN_OK;
    *bytes_per_s = bytes / ((double)(common_clock_ns() - start) * 1e-9);
    *bytes_per_cpu_s = bytes / (service_cpu_s(cluster) - used_s);
    if (!ok)
        service_failed("attach", &error);
    banyan_session_delete(session, NULL);
    banyan_session_close(session);
    return ok;
}

// An authority and certificates in the form of harness_options.tls.
static void make_certificates(const char *dir)
{
    char from[300], to[300];
    struct test_pki_files files;
    struct test_pki *pki = test_pki_new(dir, "bench");
    test_pki_issue(pki,
                   &(struct test_pki_ask){.name = "coordinator", .uris = "banyan:coordinator", .hosts = HERE},
                   &files);
    test_pki_issue(pki, &(struct test_pki_ask){.name = "worker", .uris = "banyan:worker", .hosts = HERE},
                   &files);
    test_pki_free(pki);
    snprintf(from, sizeof from, "%s/bench-ca.pem", dir);
    snprintf(to, sizeof to, "%s/ca.pem", dir);
    rename(from, to);
}

static void remove_certificates(const char *dir)
{
    static const char *const names[] = {"ca.pem", "coordinator.pem", "coordinator.key", "worker.pem",
                                        "worker.key"};
    char path[300];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

// tls: a folder of certificates, or NULL. plain: what the same gave without, by processor time; written
// without tls.
static bool run(uint32_t workers, const void *k, const void *v, const char *tls, double *plain_rate)
{
    double ours[64], plain[64], by_cpu[64];
    uint64_t bytes = 2 * tokens * service_kv_row_bytes(&service_large);
    struct harness_cluster *cluster =
        service_cluster_with(&(struct harness_options){.workers = workers, .memory = "4G", .tls = tls});
    banyan_client *client = NULL;
    banyan_error error = {0};
    char ca[300];
    banyan_options options = {0};
    if (!cluster)
        return false;
    snprintf(ca, sizeof ca, "%s/ca.pem", tls ? tls : "");
    options.tls_ca = tls ? ca : NULL;
    bool ok = banyan_connect(harness_cluster_endpoint(cluster, tls ? "tls" : "unix"), &options, &client,
                             &error) == BANYAN_OK ||
              service_failed("connect", &error);
    for (uint64_t i = 0; ok && i < repeats + 1; i++) { // the first pair warms up
        uint64_t slot = i ? i - 1 : 0;
        ok = floor_copy(workers, bytes, &plain[slot]) &&
             attach_once(cluster, client, workers, k, v, &ours[slot], &by_cpu[slot]);
    }
    banyan_disconnect(client);
    if (ok) {
        double a = median(ours, repeats), b = median(plain, repeats), c = median(by_cpu, repeats);
        if (!tls)
            *plain_rate = c;
        const struct report_field fields[] = {{"bench", "attach", 0},
                                              {"links", tls ? "tls" : "plain", 0},
                                              {"workers", NULL, workers},
                                              {"bytes_per_s", NULL, a},
                                              {"socket_bytes_per_s", NULL, b},
                                              {"ratio", NULL, b > 0 ? a / b : 0},
                                              {"bytes_per_cpu_s", NULL, c},
                                              {"cpu_ratio_to_plain", NULL, c / *plain_rate},
                                              {0}};
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
    char tls[] = "/tmp/banyan-bench-XXXXXX";
    if (!mkdtemp(tls)) {
        perror(tls);
        return false;
    }
    make_certificates(tls);
    double plain = 0;
    bool ok = run(1, k, v, NULL, &plain) && run(1, k, v, tls, &plain) && run(4, k, v, NULL, &plain) &&
              run(4, k, v, tls, &plain);
    remove_certificates(tls);
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
        .about = "Bytes per second into 1 and 4 workers, plain and under TLS, beside a plain socket copy.",
        .options = options,
        .json = &json,
        .measure = measure_all,
    };
    return bench_main(&program, argc, argv);
}
