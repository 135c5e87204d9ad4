// SPDX-License-Identifier: Apache-2.0
// What attention masses, traces and watches cost a one-token step, each beside the plain step of the same
// run: the kinds take turns, step by step, on one session.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "bench/main.h"
#include "bench/report.h"
#include "bench/service.h"
#include "common/base/clock.h"
#include "common/metrics/histogram.h"
#include "tests/harness/cluster.h"

#define WARM 20

static uint64_t tokens = 32768, rounds = 300, workers = 4;
static bool json;

enum kind { PLAIN, TRACED, MASS_64, MASS_CHUNKS, WATCHED_TRACE, WATCHED_MASS, KINDS };
static const char *const names[KINDS] = {"plain",       "trace",         "mass_64",
                                         "mass_chunks", "watched_trace", "watched_mass"};

struct watcher { // the session is watched all the time
    const char *endpoint;
    uint64_t session;
    uint32_t mass_bins;
    atomic_bool stop;
    bool failed;
    pthread_t thread;
};

static void *watch(void *arg)
{
    struct watcher *w = arg;
    banyan_client *client = NULL;
    banyan_session *session = NULL;
    banyan_error error = {0};
    w->failed = banyan_connect(w->endpoint, NULL, &client, &error) != BANYAN_OK ||
                banyan_session_open(client, w->session, NULL, &session, &error) != BANYAN_OK;
    while (!atomic_load(&w->stop) && !w->failed) {
        banyan_watch seen;
        banyan_watch_options options = {.steps = 16,
                                        .wait_ns = COMMON_NS_PER_S,
                                        .all_layers = true,
                                        .trace = w->mass_bins == 0,
                                        .mass_bins = w->mass_bins};
        w->failed = banyan_session_watch(session, &options, &seen, &error) != BANYAN_OK;
        if (!w->failed)
            banyan_watch_free(&seen);
    }
    if (w->failed)
        service_failed("watch", &error);
    banyan_session_close(session);
    banyan_disconnect(client);
    return NULL;
}

static bool step(banyan_client *client, banyan_session *session, const struct service_step *buffers,
                 enum kind kind, uint64_t *ns)
{
    banyan_error error = {0}, item_error = {0};
    banyan_trace trace = {0};
    banyan_mass mass = {.bins = kind == MASS_CHUNKS ? 4096 : 64};
    banyan_item item = service_item(session, buffers, tokens);
    item.error = &item_error;
    item.mass = kind == MASS_64 || kind == MASS_CHUNKS ? &mass : NULL;
    uint64_t start = common_clock_ns();
    bool ok = banyan_attend(client, &item, 1, 0, kind == TRACED ? &trace : NULL, &error) == BANYAN_OK;
    *ns = common_clock_ns() - start;
    banyan_trace_free(&trace);
    banyan_mass_free(&mass);
    if (ok && item.code == BANYAN_OK)
        return true;
    return service_failed("step", ok ? &item_error : &error);
}

// Steps of kinds [from, to) in turns.
static bool turns(banyan_client *client, banyan_session *session, const struct service_step *buffers,
                  int from, int to, struct common_histogram *h)
{
    for (uint64_t i = 0; i < rounds + WARM; i++)
        for (int kind = from; kind < to; kind++) {
            uint64_t ns;
            if (!step(client, session, buffers, (enum kind)kind, &ns))
                return false;
            if (i >= WARM)
                common_histogram_add(&h[kind], ns);
        }
    return true;
}

static bool watched(const char *endpoint, banyan_client *client, banyan_session *session,
                    const struct service_step *buffers, enum kind kind, struct common_histogram *h)
{
    struct watcher w = {.endpoint = endpoint,
                        .session = banyan_session_id(session),
                        .mass_bins = kind == WATCHED_MASS ? 64 : 0};
    if (pthread_create(&w.thread, NULL, watch, &w) != 0)
        return false;
    bool ok = turns(client, session, buffers, (int)kind, (int)kind + 1, h);
    atomic_store(&w.stop, true);
    pthread_join(w.thread, NULL);
    return ok && !w.failed;
}

static bool run(void)
{
    static struct common_histogram h[KINDS];
    struct service_step buffers;
    struct harness_cluster *cluster = service_cluster((uint32_t)workers, "1G");
    banyan_client *client = NULL;
    banyan_session *session = NULL;
    banyan_error error = {0};
    if (!cluster || !service_step_init(&buffers, &service_large))
        return false;
    const char *endpoint = harness_cluster_endpoint(cluster, "unix");
    for (int kind = 0; kind < KINDS; kind++)
        common_histogram_reset(&h[kind]);
    bool ok =
        banyan_connect(endpoint, NULL, &client, &error) == BANYAN_OK || service_failed("connect", &error);
    if (ok)
        session = service_session(client, &service_large, (uint32_t)workers, 0, tokens);
    ok = session && turns(client, session, &buffers, PLAIN, WATCHED_TRACE, h) &&
         watched(endpoint, client, session, &buffers, WATCHED_TRACE, h) &&
         watched(endpoint, client, session, &buffers, WATCHED_MASS, h);
    for (int kind = 0; kind < KINDS && ok; kind++) {
        double p50 = (double)common_histogram_quantile(&h[kind], 0.5) / 1e3,
               p99 = (double)common_histogram_quantile(&h[kind], 0.99) / 1e3,
               plain = (double)common_histogram_quantile(&h[PLAIN], 0.5) / 1e3;
        const struct report_field fields[] = {
            {"bench", json ? "mass_cost" : NULL, 0},
            {"what", names[kind], 0},
            {"tokens", NULL, (double)tokens},
            {"workers", NULL, (double)workers},
            {"p50_us", NULL, p50},
            {"p99_us", NULL, p99},
            {"ratio_to_plain", NULL, p50 / plain},
            {NULL, NULL, 0},
        };
        report_line(json, json ? fields : fields + 1);
    }
    banyan_session_close(session);
    banyan_disconnect(client);
    service_step_free(&buffers);
    return harness_cluster_stop(cluster) == 0 && ok;
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {"tokens", 't', COMMON_OPTION_U64, &tokens, "N", "of the session (default 32768)", 1, 1u << 24},
        {"workers", 'w', COMMON_OPTION_U64, &workers, "P", "all in one plan (default 4)", 1,
         HARNESS_WORKERS_MAX},
        {"rounds", 'n', COMMON_OPTION_U64, &rounds, "N", "steps of each kind (default 300)", 1, 1000000},
        {0},
    };
    const struct bench_program program = {
        .name = "mass_cost",
        .about = "Measures what traces, attention masses (64 bins; one per chunk) and a watcher beside the "
                 "client\n"
                 "cost a one-token step: p50, p99, and p50 beside the plain step's in the same run.",
        .options = options,
        .json = &json,
        .measure = run,
    };
    return bench_main(&program, argc, argv);
}
