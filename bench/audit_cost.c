// SPDX-License-Identifier: Apache-2.0
// What kept steps and audits cost: one client that makes one-token steps as fast as it can, on clusters that
// differ in the coordinator's options alone and take turns.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/main.h"
#include "bench/report.h"
#include "bench/service.h"
#include "common/base/clock.h"
#include "common/metrics/histogram.h"
#include "tests/harness/cluster.h"

#define WARM 100

static uint64_t tokens = 8192, steps = 100, turns = 200, workers = 2, audit = 1000;
static bool json;

enum kind { NONE, KEPT, AUDITED, KINDS };
static const char *const names[KINDS] = {"nothing_kept", "kept", "audited"};

struct side { // a cluster
    struct harness_cluster *cluster;
    banyan_client *client;
    banyan_session *session;
    struct common_histogram h;
    uint64_t took_ns; // all its turns
    double cpu_s;     // of its daemons, at their beginning
};

static bool side_start(struct side *s, enum kind kind)
{
    static char each[24];
    static const char *const none[] = {"--keep-steps", "0", NULL}, *const kept[] = {NULL},
                             *audited[] = {"--audit", each, NULL};
    banyan_error error = {0};
    snprintf(each, sizeof each, "%" PRIu64, audit);
    const struct harness_options options = {.workers = (uint32_t)workers,
                                            .memory = "1G",
                                            .coordinator_args = kind == NONE ? none
                                                                : kind == KEPT
                                                                    ? kept
                                                                    : (const char *const *)audited};
    s->cluster = service_cluster_with(&options);
    if (!s->cluster)
        return false;
    common_histogram_reset(&s->h);
    if (banyan_connect(harness_cluster_endpoint(s->cluster, "unix"), NULL, &s->client, &error) != BANYAN_OK)
        return service_failed("connect", &error);
    s->session = service_session(s->client, &service_large, (uint32_t)workers, 0, tokens);
    return s->session != NULL;
}

// Processor time of all its daemons so far.
static double cpu_of(const struct side *s)
{
    unsigned long ticks = 0;
    for (uint32_t i = 0; i <= workers; i++) {
        char path[64];
        unsigned long user = 0, system = 0;
        snprintf(path, sizeof path, "/proc/%d/stat",
                 harness_cluster_pid(s->cluster, i < workers ? i : HARNESS_COORDINATOR));
        FILE *file = fopen(path, "re");
        if (file && fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                           &system) == 2)
            ticks += user + system;
        if (file)
            fclose(file);
    }
    return (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

static bool side_turn(struct side *s, const struct service_step *buffers, uint64_t n, bool counts)
{
    uint64_t begin = common_clock_ns();
    for (uint64_t i = 0; i < n; i++) {
        banyan_error error = {0}, item_error = {0};
        banyan_item item = service_item(s->session, buffers, tokens);
        item.error = &item_error;
        uint64_t start = common_clock_ns();
        bool ok = banyan_attend(s->client, &item, 1, 0, NULL, &error) == BANYAN_OK;
        if (!ok || item.code != BANYAN_OK)
            return service_failed("step", ok ? &item_error : &error);
        if (counts)
            common_histogram_add(&s->h, common_clock_ns() - start);
    }
    s->took_ns += counts ? common_clock_ns() - begin : 0;
    return true;
}

static bool run(void)
{
    static struct side sides[KINDS];
    struct service_step buffers;
    bool ok = service_step_init(&buffers, &service_large);
    for (int k = 0; k < KINDS && ok; k++)
        ok = side_start(&sides[k], (enum kind)k) && side_turn(&sides[k], &buffers, WARM, false);
    for (int k = 0; k < KINDS && ok; k++)
        sides[k].cpu_s = cpu_of(&sides[k]);
    for (uint64_t t = 0; t < turns && ok; t++)
        for (int k = 0; k < KINDS && ok; k++)
            ok = side_turn(&sides[(k + t) % KINDS], &buffers, steps, true);
    double plain = 0;
    for (int k = 0; k < KINDS && ok; k++) {
        struct side *s = &sides[k];
        banyan_cluster_info info = {0};
        banyan_error error;
        double rate = (double)(steps * turns) * 1e9 / (double)s->took_ns;
        double cpu = (cpu_of(s) - s->cpu_s) * 1e6 / (double)(steps * turns);
        plain = k == NONE ? rate : plain;
        ok = banyan_cluster_get_info(s->client, &info, &error) == BANYAN_OK;
        const struct report_field fields[] = {
            {"bench", json ? "audit_cost" : NULL, 0},
            {"what", names[k], 0},
            {"tokens", NULL, (double)tokens},
            {"workers", NULL, (double)workers},
            {"steps_per_s", NULL, rate},
            {"ratio", NULL, rate / plain},
            {"cpu_us_a_step", NULL, cpu},
            {"p50_us", NULL, (double)common_histogram_quantile(&s->h, 0.5) / 1e3},
            {"p99_us", NULL, (double)common_histogram_quantile(&s->h, 0.99) / 1e3},
            {"audited", NULL, (double)info.audited},
            {"skipped", NULL, (double)info.audit_skipped},
            {"differences", NULL, (double)info.audit_differences},
            {NULL, NULL, 0},
        };
        banyan_cluster_info_free(&info);
        report_line(json, json ? fields : fields + 1);
    }
    for (int k = 0; k < KINDS; k++) {
        banyan_session_close(sides[k].session);
        banyan_disconnect(sides[k].client);
        ok = harness_cluster_stop(sides[k].cluster) == 0 && ok;
    }
    service_step_free(&buffers);
    return ok;
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {"tokens", 't', COMMON_OPTION_U64, &tokens, "N", "of the session (default 8192)", 1, 1u << 24},
        {"workers", 'w', COMMON_OPTION_U64, &workers, "P", "of each cluster (default 2)", 1,
         HARNESS_WORKERS_MAX},
        {"steps", 's', COMMON_OPTION_U64, &steps, "N", "in a row of each cluster (default 100)", 1, 1000000},
        {"turns", 'n', COMMON_OPTION_U64, &turns, "N", "of each cluster (default 200)", 1, 10000},
        {"audit", 'a', COMMON_OPTION_U64, &audit, "N", "one step in N is audited (default 1000)", 1,
         1000000000},
        {0},
    };
    const struct bench_program program = {
        .name = "audit_cost",
        .about =
            "Measures steps per second of one client without kept steps (--keep-steps 0), with them (the\n"
            "default), and with --audit N as well, over all turns, and the ratio to the first;\n"
            "and the daemons' processor time per step.",
        .options = options,
        .json = &json,
        .measure = run,
    };
    return bench_main(&program, argc, argv);
}
