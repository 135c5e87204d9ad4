// SPDX-License-Identifier: Apache-2.0
// How long a coordinator's death lasts for its clients: many sessions of many layers, clients that go on
// stepping all the time, the coordinator killed and started again on its store.
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/main.h"
#include "bench/report.h"
#include "bench/service.h"
#include "common/base/clock.h"
#include "tests/harness/cluster.h"

enum { STEPPERS = 4, DIM = 16, LAYERS_MAX = 1024 };

static bool json;
static uint64_t n_sessions = 10000, n_layers = 32, n_workers = 2, n_restarts = 3;

static struct {
    struct harness_cluster *cluster;
    banyan_client *client;
    banyan_session **sessions;
    float q[DIM];
    uint16_t kv[DIM]; // bfloat16
    atomic_uint_fast64_t since_ns, first_ns, steps, failed,
        wrong; // first_ns: a step was answered first after since_ns
    atomic_bool stop;
} restart;

// A read at the only token: what it answers is the token's value.
static void *step_on(void *arg)
{
    uint64_t state = (uintptr_t)arg;
    float o[DIM];
    while (!atomic_load(&restart.stop)) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
        uint64_t begun = common_clock_ns();
        banyan_item item = {.session = restart.sessions[(state >> 33) % n_sessions],
                            .layer = (uint32_t)((state >> 20) % n_layers),
                            .rows = 1,
                            .q = restart.q,
                            .o = o};
        banyan_code code = banyan_attend(restart.client, &item, 1, 60 * COMMON_NS_PER_S, NULL, NULL);
        uint64_t now = common_clock_ns(), none = 0;
        if (code != BANYAN_OK || item.code != BANYAN_OK) {
            atomic_fetch_add(&restart.failed, 1);
            continue;
        }
        for (int i = 0; i < DIM; i++)
            if (o[i] != 1.f)
                atomic_fetch_add(&restart.wrong, 1);
        atomic_fetch_add(&restart.steps, 1);
        uint64_t since = atomic_load(&restart.since_ns);
        if (since && now > since && (begun > since || now > since + COMMON_NS_PER_MS))
            atomic_compare_exchange_strong(&restart.first_ns, &none, now);
    }
    return NULL;
}

static bool make_sessions(void)
{
    banyan_error error = {0};
    banyan_spec spec = {.layers = (uint32_t)n_layers,
                        .q_heads = 1,
                        .kv_heads = 1,
                        .k_dim = DIM,
                        .v_dim = DIM,
                        .kv_type = BANYAN_BF16,
                        .chunk_tokens = 16};
    float o[DIM];
    banyan_item *items = calloc(n_layers, sizeof *items);
    bool ok = items != NULL;
    for (int i = 0; i < DIM; i++) {
        restart.q[i] = 1;
        restart.kv[i] = 0x3f80; // 1
    }
    for (uint64_t i = 0; ok && i < n_sessions; i++) {
        ok = banyan_session_create(restart.client, &spec, NULL, &restart.sessions[i], &error) == BANYAN_OK;
        for (uint32_t l = 0; l < n_layers; l++)
            items[l] = (banyan_item){.session = restart.sessions[i],
                                     .layer = l,
                                     .rows = 1,
                                     .q = restart.q,
                                     .k = restart.kv,
                                     .v = restart.kv,
                                     .o = o};
        ok = ok && banyan_attend(restart.client, items, n_layers, 0, NULL, &error) == BANYAN_OK;
        for (uint32_t l = 0; ok && l < n_layers; l++)
            ok = items[l].code == BANYAN_OK;
    }
    free(items);
    return ok || service_failed("a session", &error);
}

static bool measure_one(void)
{
    atomic_store(&restart.first_ns, 0);
    harness_cluster_signal(restart.cluster, HARNESS_COORDINATOR, SIGKILL);
    uint64_t start = common_clock_ns();
    atomic_store(&restart.since_ns, start);
    if (!harness_cluster_restart(restart.cluster, HARNESS_COORDINATOR))
        return false;
    uint64_t ready = common_clock_ns();
    for (uint64_t until = start + 60 * COMMON_NS_PER_S;
         !atomic_load(&restart.first_ns) && common_clock_ns() < until;)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    uint64_t first = atomic_load(&restart.first_ns);
    atomic_store(&restart.since_ns, 0);
    if (!first) {
        fprintf(stderr, "restart: no step was answered within a minute\n");
        return false;
    }
    report_line(json, (const struct report_field[]){{"bench", "restart", 0},
                                                    {"sessions", NULL, (double)n_sessions},
                                                    {"layers", NULL, (double)n_layers},
                                                    {"workers", NULL, (double)n_workers},
                                                    {"ready_ms", NULL, (double)(ready - start) / 1e6},
                                                    {"first_step_ms", NULL, (double)(first - start) / 1e6},
                                                    {0}});
    nanosleep(&(struct timespec){2, 0}, NULL);
    return true;
}

static bool measure(void)
{
    char most[32];
    snprintf(most, sizeof most, "%" PRIu64, n_sessions + 16);
    const char *arguments[] = {"--max-sessions", most, NULL};
    restart.cluster = service_cluster_with(&(struct harness_options){
        .workers = (uint32_t)n_workers, .memory = "4G", .coordinator_args = arguments});
    restart.sessions = calloc(n_sessions, sizeof(banyan_session *));
    pthread_t threads[STEPPERS];
    banyan_error error = {0};
    if (!restart.cluster || !restart.sessions)
        return false;
    bool ok = banyan_connect(harness_cluster_endpoint(restart.cluster, "unix"), NULL, &restart.client,
                             &error) == BANYAN_OK ||
              service_failed("connect", &error);
    ok = ok && make_sessions();
    uint32_t started = 0;
    while (ok && started < STEPPERS &&
           !pthread_create(&threads[started], NULL, step_on, (void *)(uintptr_t)started))
        started++;
    for (uint64_t i = 0; ok && i < n_restarts; i++)
        ok = measure_one();
    atomic_store(&restart.stop, true);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (ok)
        fprintf(stderr, "steps answered %" PRIuFAST64 ", refused %" PRIuFAST64 ", wrong %" PRIuFAST64 "\n",
                atomic_load(&restart.steps), atomic_load(&restart.failed), atomic_load(&restart.wrong));
    for (uint64_t i = 0; i < n_sessions; i++)
        banyan_session_close(restart.sessions[i]);
    free(restart.sessions);
    banyan_disconnect(restart.client);
    return harness_cluster_stop(restart.cluster) == 0 && ok && !atomic_load(&restart.wrong);
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {"sessions", 's', COMMON_OPTION_U64, &n_sessions, "N", "with a token in each layer (default 10000)",
         1, 1000000},
        {"layers", 'l', COMMON_OPTION_U64, &n_layers, "N", "of each session (default 32)", 1, LAYERS_MAX},
        {"workers", 'w', COMMON_OPTION_U64, &n_workers, "P", "default 2", 1, HARNESS_WORKERS_MAX},
        {"restarts", 'r', COMMON_OPTION_U64, &n_restarts, "N", "one after the other (default 3)", 1, 1000},
        {0},
    };
    const struct bench_program program = {
        .name = "restart",
        .about =
            "The coordinator is killed under load and started again on its store. ready_ms: from its start "
            "to\n"
            "its ready file; first_step_ms: to the first answer that a client gets. Four clients step at\n"
            "random sessions all the time.",
        .options = options,
        .json = &json,
        .measure = measure,
    };
    return bench_main(&program, argc, argv);
}
