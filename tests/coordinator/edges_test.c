// SPDX-License-Identifier: Apache-2.0
// Edges that random faults have found (tests/sim/chaos.c), each with the seed that found it.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "common/base/clock.h"
#include "tests/sim/sim_cluster.h"

#define CHUNK_TOKENS 16 // of sessions of the shape {0}
#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name

#define ENDS(want, made)                                                                                     \
    do {                                                                                                     \
        struct sim_call *ends = (made);                                                                      \
        enum common_code got = sim_wait(ends);                                                               \
        if (got != (want))                                                                                   \
            fail_msg("%s: %s: %s (%s)", #made, common_code_name(got), ends->text, ends->reason);             \
    } while (0)
#define OK(made) ENDS(COMMON_OK, made)

static struct sim_cluster *cluster_of(uint32_t workers)
{
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = workers});
    sim_cluster_start(cluster);
    return cluster;
}

// A session with so many rows of value 1 in layer 0, appended.
static uint64_t session_of(struct sim_cluster *cluster, uint32_t rows)
{
    struct sim_call *call = sim_create(cluster->client, (struct sim_shape){0}, "");
    OK(call);
    OK(sim_append(cluster->client, call->session, 0, 0, rows, 1));
    return call->session;
}

// The row that is appended may be acknowledged, though this life of the coordinator has no record of it yet.
// Seed 380.
static void a_truncate_keeps_rows_that_nobody_has_told_of_yet(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    struct common_error err;
    uint64_t session = session_of(cluster, 15);
    sim_coordinator_kill(cluster);
    assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
    sim_net_part(cluster->loop, cluster->workers[0]->loop);
    sim_advance(6 * COMMON_NS_PER_S); // longer than a restart waits for workers
    ENDS(COMMON_UNAVAILABLE, sim_truncate(cluster->client, session, 14));
    sim_net_mend(cluster->loop, cluster->workers[0]->loop);
    assert_true(sim_wait_active(cluster, 1));
    OK(sim_truncate(cluster->client, session, 14));
    OK(sim_read(cluster->client, session, 0, 13, 1));
    ENDS(COMMON_OUT_OF_RANGE, sim_read(cluster->client, session, 0, 14, 1));
    sim_cluster_free(cluster);
}

// A holder that comes back while the store takes the truncation gets its chunks again: with the copy, which
// is all that is left of them a moment later. Seed 34.
static void a_truncate_keeps_its_copy_while_its_holder_comes_back(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    const struct common_loop *holder = cluster->workers[0]->loop;
    uint64_t session = session_of(cluster, 12);
    struct sim_call *opened = sim_open(cluster->client, session, 12, 3);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 12, 3, 1));
    OK(sim_commit(cluster->client, session, 0, 12, 3)); // reconciling sends these, too
    sim_disk_stall(SIM_DISK_PATH, true);
    struct sim_call *truncate = sim_truncate(cluster->client, session, 3);
    sim_run_until_idle();
    assert_int_equal(sim_serve_seen(holder, METHOD(CHUNK_COPY)), 1);
    assert_false(truncate->done);
    uint64_t seen = sim_serve_seen(holder, METHOD(INVENTORY));
    sim_net_cut(cluster->loop, holder);
    sim_advance(COMMON_NS_PER_S);
    assert_true(sim_wait_active(cluster, 1));
    assert_true(sim_serve_seen(holder, METHOD(INVENTORY)) > seen);
    sim_disk_stall(SIM_DISK_PATH, false);
    OK(truncate);
    OK(sim_read(cluster->client, session, 0, 2, 1));
    ENDS(COMMON_OUT_OF_RANGE, sim_read(cluster->client, session, 0, 3, 1));
    OK(sim_append(cluster->client, session, 0, 3, 1, 1));
    sim_cluster_free(cluster);
}

// The commit is durable, and its holder went away before it heard so. A truncation would give it a new layout
// first when it comes back, and with that it forgets rows that it takes for prepared. Seed 20262.
static void a_truncate_waits_for_holders_that_have_not_heard_of_a_commit(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    const struct common_loop *holder = cluster->workers[0]->loop;
    struct sim_call *call = sim_create(cluster->client, (struct sim_shape){0}, "");
    OK(call);
    uint64_t session = call->session, rows = 2 * CHUNK_TOKENS;
    struct sim_call *opened = sim_open(cluster->client, session, 0, rows);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 0, (uint32_t)rows, 1));
    sim_disk_stall(SIM_DISK_PATH, true);
    struct sim_call *commit = sim_commit(cluster->client, session, 0, 0, rows);
    sim_run_until_idle();
    assert_false(commit->done);
    sim_net_part(cluster->loop, holder);
    sim_disk_stall(SIM_DISK_PATH, false);
    OK(commit);
    ENDS(COMMON_UNAVAILABLE, sim_truncate(cluster->client, session, CHUNK_TOKENS));
    sim_net_mend(cluster->loop, holder);
    assert_true(sim_wait_active(cluster, 1));
    OK(sim_truncate(cluster->client, session, CHUNK_TOKENS));
    OK(sim_read(cluster->client, session, 0, CHUNK_TOKENS - 1, 1));
    sim_cluster_free(cluster);
}

// After a restart one holder is back and reports rows past a chunk whose holder is away: they count once the
// layer leads up to them. A truncation between them must not take the chunk for empty. Seed 40413.
static void a_truncate_waits_for_holders_that_lead_up_to_what_it_keeps(void **state)
{
    (void)state;
    for (int away = 0; away < 2; away++) { // either of them has either chunk
        struct sim_cluster *cluster = cluster_of(2);
        const struct common_loop *holder = cluster->workers[away]->loop;
        struct common_error err;
        struct sim_call *call = sim_create(cluster->client, (struct sim_shape){.members = 2}, "");
        OK(call);
        uint64_t session = call->session;
        OK(sim_append(cluster->client, session, 0, 0, 2 * CHUNK_TOKENS, 1));
        sim_coordinator_kill(cluster);
        assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
        sim_net_part(cluster->loop, holder);
        sim_advance(6 * COMMON_NS_PER_S);
        ENDS(COMMON_UNAVAILABLE, sim_truncate(cluster->client, session, CHUNK_TOKENS + 2));
        sim_net_mend(cluster->loop, holder);
        assert_true(sim_wait_active(cluster, 2));
        OK(sim_truncate(cluster->client, session, CHUNK_TOKENS + 2));
        OK(sim_read(cluster->client, session, 0, CHUNK_TOKENS + 1, 1));
        sim_cluster_free(cluster);
    }
}

// NOT_FOUND would say to the client that its session is gone. Seeds 453 and 513.
static void a_worker_without_its_layout_is_no_session_that_is_gone(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    const struct common_loop *holder = cluster->workers[0]->loop;
    const struct sim_rule unknown = {.verdict = SIM_FAIL, .times = 1, .code = COMMON_NOT_FOUND};
    uint64_t session = session_of(cluster, 12);
    sim_serve_rule(holder, METHOD(CHUNK_COPY), unknown);
    ENDS(COMMON_UNAVAILABLE, sim_fork(cluster->client, session, 3, ""));
    sim_serve_rule(holder, METHOD(CHUNK_COPY), unknown);
    ENDS(COMMON_UNAVAILABLE, sim_truncate(cluster->client, session, 3));
    assert_true(sim_wait_active(cluster, 1));
    sim_serve_rule(holder, METHOD(ROWS_PREPARE), unknown);
    ENDS(COMMON_UNAVAILABLE, sim_commit(cluster->client, session, 0, 0, 12));
    assert_true(sim_wait_active(cluster, 1));
    OK(sim_read(cluster->client, session, 0, 11, 1));
    sim_cluster_free(cluster);
}

// What is deleted and what waits for it end in the same turn: the store's answer and the caller's farewell
// were both there when the coordinator came to run.
static void a_waiting_step_is_cancelled_as_its_session_is_deleted(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = session_of(cluster, 12);
    sim_run_until_idle(); // the next chunk is being placed
    sim_disk_silence(SIM_DISK_PATH, true);
    struct sim_call *deleted = sim_delete(cluster->client, session);
    sim_run_until_idle();
    struct sim_call *read = sim_read(cluster->client, session, 0, 11, 1);
    sim_run_until_idle();
    assert_false(deleted->done || read->done);
    sim_loop_freeze(cluster->loop);
    sim_disk_silence(SIM_DISK_PATH, false);
    sim_cancel(read);
    sim_advance(COMMON_NS_PER_MS);
    sim_loop_thaw(cluster->loop);
    OK(deleted);
    ENDS(COMMON_CANCELLED, read);
    sim_cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_truncate_keeps_rows_that_nobody_has_told_of_yet),
        cmocka_unit_test(a_truncate_keeps_its_copy_while_its_holder_comes_back),
        cmocka_unit_test(a_truncate_waits_for_holders_that_have_not_heard_of_a_commit),
        cmocka_unit_test(a_truncate_waits_for_holders_that_lead_up_to_what_it_keeps),
        cmocka_unit_test(a_worker_without_its_layout_is_no_session_that_is_gone),
        cmocka_unit_test(a_waiting_step_is_cancelled_as_its_session_is_deleted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
