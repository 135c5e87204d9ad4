// SPDX-License-Identifier: Apache-2.0
// Reconciling at the size that one worker may have: 20,000 sessions of 80 layers and 50 chunks each, a
// million chunks in all. Its link breaks, then the coordinator is killed: both times it is back, in a bounded
// number of messages. Prints what it took. With numbers: other sizes, SESSIONS LAYERS CHUNKS.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include "common/base/clock.h"
#include "tests/sim/sim_cluster.h"

enum { CHUNK_TOKENS = 16 };

static uint32_t sessions = 20000, layers = 80, chunks = 50;

#define OK(made)                                                                                             \
    do {                                                                                                     \
        struct sim_call *ok = (made);                                                                        \
        if (sim_wait(ok) != COMMON_OK)                                                                       \
            fail_msg("%s: %s", #made, ok->text);                                                             \
    } while (0)

static double seconds(void) // of the processor, for everybody in the simulation: it has one thread
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static long peak_mib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss / 1024;
}

static void tune(struct coordinator_options *options)
{
    options->max_sessions = 65536;
}

static const struct {
    const char *name;
    uint32_t method;
} told[] = {
    {"Inventory", BANYAN__PB__METHOD__METHOD_INVENTORY},
    {"LayoutSet", BANYAN__PB__METHOD__METHOD_LAYOUT_SET},
    {"RowsCommit", BANYAN__PB__METHOD__METHOD_ROWS_COMMIT},
    {"RowsAbort", BANYAN__PB__METHOD__METHOD_ROWS_ABORT},
};
enum { TOLD = sizeof(told) / sizeof(*told) };

static uint64_t messages_of(struct sim_cluster *cluster, uint64_t seen[TOLD])
{
    uint64_t n = 0;
    for (int i = 0; i < TOLD; i++)
        n += seen[i] = sim_serve_seen(cluster->workers[0]->loop, told[i].method);
    return n;
}

// A session with all of its rows committed, and forks of it that share its chunks.
static uint64_t fill(struct sim_cluster *cluster)
{
    struct sim_call *call =
        sim_create(cluster->client, (struct sim_shape){.layers = layers, .chunk_tokens = CHUNK_TOKENS}, "");
    OK(call);
    uint64_t session = call->session, tokens = (uint64_t)chunks * CHUNK_TOKENS;
    struct sim_call *open = sim_open(cluster->client, session, 0, tokens);
    OK(open);
    for (uint32_t layer = 0; layer < layers; layer++) {
        OK(sim_put(cluster->client, open, layer, 0, tokens, 1));
        OK(sim_commit(cluster->client, session, layer, 0, tokens));
    }
    for (uint32_t i = 1; i < sessions; i++)
        OK(sim_fork(cluster->client, session, tokens, ""));
    return session;
}

static void is_back(struct sim_cluster *cluster, uint64_t session, const char *what,
                    const uint64_t before[TOLD])
{
    uint64_t seen[TOLD], n = 0, from_ns = sim_clock();
    double from = seconds();
    sim_client_deadline(cluster->client, 60 * COMMON_NS_PER_S);
    struct sim_call *read = NULL;
    do {
        sim_advance(COMMON_NS_PER_MS);
        read = sim_read(cluster->client, session, layers - 1, (uint64_t)chunks * CHUNK_TOKENS - 1, 1);
    } while (sim_wait(read) == COMMON_UNAVAILABLE && sim_clock() - from_ns < 60 * COMMON_NS_PER_S);
    if (read->code != COMMON_OK)
        fail_msg("%s: %s", what, read->text);
    assert_float_equal(read->o, 1, 1e-4f);
    double took = seconds() - from;
    messages_of(cluster, seen);
    printf("%s: %.2f s of work, %.0f ms simulated, to the first answered step; peak memory %ld MiB;", what,
           took, (double)(sim_clock() - from_ns) / 1e6, peak_mib());
    for (int i = 0; i < TOLD; i++) {
        printf(" %s=%llu", told[i].name, (unsigned long long)(seen[i] - before[i]));
        n += seen[i] - before[i];
    }
    printf("\n");
    // A page of the inventory has at least 48 KiB, a session a layout and, to 4,096 ranges, a message of
    // rows.
    uint64_t pages = (uint64_t)sessions * chunks * (layers * 2 + 24) / (48 * 1024) + 2;
    assert_in_range(n, sessions, pages + 2 * (uint64_t)sessions + 2);
}

static void a_million_chunks_are_told_in_a_bounded_number_of_messages(void **state)
{
    (void)state;
    struct sim_cluster *cluster = sim_cluster_new(
        &(struct sim_cluster_options){.workers = 1, .memory_bytes = UINT64_C(2) << 30, .tune = tune});
    uint64_t seen[TOLD];
    double from = seconds();
    sim_cluster_start(cluster);
    uint64_t session = fill(cluster);
    printf("%u sessions, %u layers, %u chunks each: made in %.1f s; peak memory %ld MiB\n", sessions, layers,
           chunks, seconds() - from, peak_mib());
    fflush(stdout);
    messages_of(cluster, seen);
    sim_net_part(cluster->loop, cluster->workers[0]->loop);
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_net_mend(cluster->loop, cluster->workers[0]->loop);
    is_back(cluster, session, "link broken", seen);
    fflush(stdout);
    messages_of(cluster, seen);
    struct common_error err;
    sim_coordinator_kill(cluster);
    from = seconds();
    assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
    printf("sessions loaded: %.2f s\n", seconds() - from);
    is_back(cluster, session, "coordinator killed", seen);
    assert_true(sim_wait_active(cluster, 1));
    sim_cluster_free(cluster);
}

int main(int argc, char **argv)
{
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    if (argc == 4) {
        sessions = (uint32_t)strtoul(argv[1], NULL, 10);
        layers = (uint32_t)strtoul(argv[2], NULL, 10);
        chunks = (uint32_t)strtoul(argv[3], NULL, 10);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_million_chunks_are_told_in_a_bounded_number_of_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
