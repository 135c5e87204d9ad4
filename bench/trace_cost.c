// SPDX-License-Identifier: Apache-2.0
// What a trace (docs/operating/tracing.md) costs a one-token step, beside the plain step of the same run: the
// kinds take turns, step by step, on clusters that stand beside each other. With --before, the plain step of
// another build's daemons, too.
#include <stdio.h>
#include <stdlib.h>

#include "bench/main.h"
#include "bench/report.h"
#include "bench/service.h"
#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "common/metrics/histogram.h"
#include "tests/harness/cluster.h"

#define WARM 50

static uint64_t tokens = 1024, rounds = 2000, workers = 4;
static const char *before;
static bool json;

enum { QUIET, EXPORTING, BEFORE, CLUSTERS };
static const struct kind {
    const char *name, *traceparent;
    int cluster;
} kinds[] = {
    {"plain", NULL, QUIET},
    {"unsampled", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", QUIET},
    {"sampled, not exported", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", QUIET},
    {"plain, daemons that may export", NULL, EXPORTING},
    {"sampled, exported", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", EXPORTING},
    {"plain, --before", NULL, BEFORE},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

struct side { // a cluster, and a client of it
    struct harness_cluster *cluster;
    banyan_client *client;
    banyan_session *session;
};

static bool side_start(struct side *side, const char *const *args)
{
    const struct harness_options options = {
        .workers = (uint32_t)workers, .memory = "512M", .coordinator_args = args, .worker_args = args};
    banyan_error error = {0};
    side->cluster = service_cluster_with(&options);
    if (!side->cluster)
        return false;
    if (banyan_connect(harness_cluster_endpoint(side->cluster, "unix"), NULL, &side->client, &error) !=
        BANYAN_OK)
        return service_failed("connect", &error);
    side->session = service_session(side->client, &service_large, (uint32_t)workers, 0, tokens);
    return side->session != NULL;
}

static bool side_stop(struct side *side)
{
    banyan_session_close(side->session);
    banyan_disconnect(side->client);
    return harness_cluster_stop(side->cluster) == 0;
}

static bool start_all(struct side sides[CLUSTERS])
{
    static const char *const file[] = {"--trace-file", "/dev/null", NULL};
    if (!side_start(&sides[QUIET], NULL) || !side_start(&sides[EXPORTING], file))
        return false;
    if (!before)
        return true;
    setenv("BANYAN_BUILD_DIR", before, 1);
    return side_start(&sides[BEFORE], NULL);
}

static bool step(const struct side *side, const struct service_step *buffers, const struct kind *kind,
                 uint64_t *ns)
{
    banyan_error error = {0}, item_error = {0};
    banyan_item item = service_item(side->session, buffers, tokens);
    item.error = &item_error;
    item.traceparent = kind->traceparent;
    uint64_t start = common_clock_ns();
    bool ok = banyan_attend(side->client, &item, 1, 0, NULL, &error) == BANYAN_OK;
    *ns = common_clock_ns() - start;
    if (ok && item.code == BANYAN_OK)
        return true;
    return service_failed("step", ok ? &item_error : &error);
}

// In another order each round.
static void shuffle(int order[KINDS], uint64_t round)
{
    for (int i = 0; i < KINDS; i++)
        order[i] = i;
    for (int i = KINDS - 1; i > 0; i--) {
        int other = (int)(common_mix64(round * KINDS + (uint64_t)i) % (uint64_t)(i + 1)), was = order[i];
        order[i] = order[other];
        order[other] = was;
    }
}

static bool turns(struct side *sides, const struct service_step *buffers, struct common_histogram *h)
{
    for (uint64_t i = 0; i < rounds + WARM; i++) {
        int order[KINDS];
        shuffle(order, i);
        for (int k = 0; k < KINDS; k++) {
            const struct kind *kind = &kinds[order[k]];
            uint64_t ns;
            if (!sides[kind->cluster].cluster)
                continue;
            // One that does not count comes first: each cluster finds its caches alike.
            if (!step(&sides[kind->cluster], buffers, &kinds[0], &ns) ||
                !step(&sides[kind->cluster], buffers, kind, &ns))
                return false;
            if (i >= WARM)
                common_histogram_add(&h[order[k]], ns);
        }
    }
    return true;
}

static bool run(void)
{
    static struct common_histogram h[KINDS];
    struct side sides[CLUSTERS] = {0};
    struct service_step buffers;
    if (!service_step_init(&buffers, &service_large))
        return false;
    for (int kind = 0; kind < KINDS; kind++)
        common_histogram_reset(&h[kind]);
    bool ok = start_all(sides) && turns(sides, &buffers, h);
    for (int kind = 0; kind < KINDS && ok; kind++) {
        double p50 = (double)common_histogram_quantile(&h[kind], 0.5) / 1e3,
               p99 = (double)common_histogram_quantile(&h[kind], 0.99) / 1e3,
               plain = (double)common_histogram_quantile(&h[0], 0.5) / 1e3;
        const struct report_field fields[] = {
            {"bench", json ? "trace_cost" : NULL, 0},
            {"what", kinds[kind].name, 0},
            {"tokens", NULL, (double)tokens},
            {"workers", NULL, (double)workers},
            {"p50_us", NULL, p50},
            {"p99_us", NULL, p99},
            {"ratio_to_plain", NULL, p50 / plain},
            {NULL, NULL, 0},
        };
        if (sides[kinds[kind].cluster].cluster)
            report_line(json, json ? fields : fields + 1);
    }
    for (int i = 0; i < CLUSTERS; i++)
        ok = side_stop(&sides[i]) && ok;
    service_step_free(&buffers);
    return ok;
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {"tokens", 't', COMMON_OPTION_U64, &tokens, "N", "of the session (default 1024)", 1, 1u << 24},
        {"workers", 'w', COMMON_OPTION_U64, &workers, "P", "all in one plan (default 4)", 1,
         HARNESS_WORKERS_MAX},
        {"rounds", 'n', COMMON_OPTION_U64, &rounds, "N", "steps of each kind (default 2000)", 1, 1000000},
        {"before", 0, COMMON_OPTION_STRING, &before, "DIR",
         "build folder of an older version: its daemons take turns with ours", 0, 0},
        {0},
    };
    const struct bench_program program = {
        .name = "trace_cost",
        .about = "Measures what a trace costs a one-token step: not sampled, sampled but not exported, and "
                 "with spans exported by\n"
                 "all daemons. p50, p99, and p50 beside the plain step's.",
        .options = options,
        .json = &json,
        .measure = run,
    };
    return bench_main(&program, argc, argv);
}
