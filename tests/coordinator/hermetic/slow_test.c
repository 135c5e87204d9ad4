// SPDX-License-Identifier: Apache-2.0
// Workers that compute far slower than planned: who serves, where chunks go, and the way back. All of it over
// workers that have measured little, and over some that have measured eight times as much.
#include "coordinator/place/moves.h"
#include "tests/coordinator/hermetic/hermetic.h"

#include "coordinator/cluster/membership.h"
#include "worker/core/state.h"

enum { WORKERS = 3 };
#define TOKENS  96                      // six chunks
#define TASK_NS (50 * COMMON_NS_PER_MS) // where it is slow

static uint64_t pace; // bytes a second; a step over all chunks takes some 3 ms as planned, or 0.4

static void quickly(struct coordinator_options *options)
{
    options->slow_after_ns = COMMON_NS_PER_S;
}

static void only_flagged(struct coordinator_options *options)
{
    quickly(options);
    options->slow_workers = COORDINATOR_SLOW_FLAG;
}

static struct sim_cluster *paced(void (*tune)(struct coordinator_options *options))
{
    struct sim_cluster *cluster = sim_cluster_new(
        &(struct sim_cluster_options){.workers = WORKERS, .team = true, .pace = pace, .tune = tune});
    sim_cluster_start(cluster);
    return cluster;
}

static uint64_t wide_session(struct sim_cluster *cluster, uint32_t replicas)
{
    struct sim_shape shape = {.members = WORKERS, .replicas = replicas};
    struct sim_call *call = sim_create(cluster->client, shape, "");
    OK(call);
    for (uint32_t at = 0; at < TOKENS; at += 16)
        OK(sim_append(cluster->client, call->session, 0, at, 16, 1));
    return call->session;
}

static struct coordinator_worker *worker_of(struct sim_cluster *cluster, uint32_t i)
{
    return coordinator_worker_find(&cluster->coordinator->cluster, cluster->workers[i]->name);
}

static uint32_t served_by(struct sim_cluster *cluster, uint64_t session, uint32_t i)
{
    const struct coordinator_session *s = kept_of(cluster, session);
    uint32_t n = 0;
    for (uint32_t c = 0; c < s->layout.n; c++)
        n += s->layout.chunks[c].holder == worker_of(cluster, i);
    return n;
}

static uint32_t slow_ones(struct sim_cluster *cluster)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < WORKERS; i++)
        n += worker_of(cluster, i)->pace.slow;
    return n;
}

// Steps for so long, one after the other: each answer is exact.
static void step_for(struct sim_cluster *cluster, uint64_t session, uint64_t ns)
{
    for (uint64_t until = sim_clock() + ns; sim_clock() < until;) {
        READS(cluster, session, TOKENS, TOKENS);
        sim_advance(COMMON_NS_PER_MS);
    }
}

// Steps until so many are slow, at most a minute.
static void step_until_slow(struct sim_cluster *cluster, uint64_t session, uint32_t n)
{
    for (uint32_t i = 0; slow_ones(cluster) != n; i++) {
        if (i == 600)
            fail_msg("%u workers are slow, not %u", slow_ones(cluster), n);
        step_for(cluster, session, 100 * COMMON_NS_PER_MS);
    }
}

// Others serve what they have, too, at one new epoch, and no row moves. When it is well it serves again.
static void a_slow_worker_loses_its_work(void **state)
{
    (void)state;
    struct sim_cluster *cluster = paced(quickly);
    uint64_t session = wide_session(cluster, 2), moved = cluster->coordinator->sessions.moves->chunks;
    step_for(cluster, session, 5 * COMMON_NS_PER_S);
    assert_int_equal(slow_ones(cluster), 0);
    uint64_t epoch = kept_of(cluster, session)->layout.epoch;
    uint32_t serves = served_by(cluster, session, 1);
    assert_true(serves > 0);
    sim_worker_slow(cluster->workers[1], TASK_NS);
    step_until_slow(cluster, session, 1);
    assert_true(worker_of(cluster, 1)->pace.slow);
    step_for(cluster, session, COMMON_NS_PER_S);
    assert_int_equal(served_by(cluster, session, 1), 0);
    step_for(cluster, session, 20 * COMMON_NS_PER_S);
    assert_int_equal(kept_of(cluster, session)->layout.epoch, epoch + 1);
    assert_int_equal(cluster->coordinator->sessions.moves->chunks, moved);
    assert_int_equal(slow_ones(cluster), 1); // it has no work now: measurements say so
    sim_worker_slow(cluster->workers[1], 0);
    step_until_slow(cluster, session, 0);
    step_for(cluster, session, COMMON_NS_PER_S);
    assert_true(served_by(cluster, session, 1) > 0);
    assert_int_equal(kept_of(cluster, session)->layout.epoch, epoch + 2);
    assert_int_equal(cluster->coordinator->sessions.moves->chunks, moved);
    sim_cluster_free(cluster);
}

// Load that all have in common flags no worker.
static void all_are_slow(void **state)
{
    (void)state;
    struct sim_cluster *cluster = paced(quickly);
    uint64_t session = wide_session(cluster, 2), epoch = kept_of(cluster, session)->layout.epoch;
    step_for(cluster, session, 2 * COMMON_NS_PER_S);
    for (uint32_t i = 0; i < WORKERS; i++)
        sim_worker_slow(cluster->workers[i], TASK_NS);
    step_for(cluster, session, 20 * COMMON_NS_PER_S);
    assert_int_equal(slow_ones(cluster), 0);
    assert_true(coordinator_pace_seen(&worker_of(cluster, 0)->pace) < 0.5); // and they were seen to be
    assert_int_equal(kept_of(cluster, session)->layout.epoch, epoch);
    sim_cluster_free(cluster);
}

// What it alone has goes elsewhere, and stays there.
static void its_chunks_go_elsewhere(void **state)
{
    (void)state;
    struct sim_cluster *cluster = paced(quickly);
    uint64_t session = wide_session(cluster, 1);
    const struct coordinator_moves *moves = cluster->coordinator->sessions.moves;
    step_for(cluster, session, 2 * COMMON_NS_PER_S);
    assert_true(served_by(cluster, session, 2) > 0);
    sim_worker_slow(cluster->workers[2], TASK_NS);
    step_until_slow(cluster, session, 1);
    step_for(cluster, session, 10 * COMMON_NS_PER_S);
    assert_int_equal(served_by(cluster, session, 2), 0);
    uint64_t moved = moves->chunks;
    assert_true(moved > 0);
    uint64_t other = wide_session(cluster, 1); // new ones do not go there
    assert_int_equal(served_by(cluster, other, 2), 0);
    sim_worker_slow(cluster->workers[2], 0);
    step_until_slow(cluster, session, 0);
    step_for(cluster, session, 60 * COMMON_NS_PER_S);
    assert_int_equal(moves->chunks, moved);
    other = wide_session(cluster, 1);
    assert_true(served_by(cluster, other, 2) > 0);
    sim_cluster_free(cluster);
}

// No other worker has work: one that has none is asked to measure, so that there is one to compare with.
static void alone_with_work(void **state)
{
    (void)state;
    struct sim_cluster *cluster = paced(quickly);
    uint64_t session = filled_of(cluster, 1, TOKENS);
    uint32_t holder = (uint32_t)(copy_of(cluster, session, 0, 0)->name[1] - '0');
    step_for(cluster, session, 2 * COMMON_NS_PER_S);
    sim_worker_slow(cluster->workers[holder], TASK_NS);
    step_until_slow(cluster, session, 1);
    step_for(cluster, session, 10 * COMMON_NS_PER_S);
    assert_int_equal(served_by(cluster, session, holder), 0);
    assert_int_equal(slow_ones(cluster), 1);
    sim_cluster_free(cluster);
}

static void it_is_only_flagged(void **state)
{
    (void)state;
    struct sim_cluster *cluster = paced(only_flagged);
    uint64_t session = wide_session(cluster, 2), epoch = kept_of(cluster, session)->layout.epoch;
    step_for(cluster, session, COMMON_NS_PER_S);
    sim_worker_slow(cluster->workers[0], TASK_NS);
    step_until_slow(cluster, session, 1);
    step_for(cluster, session, 10 * COMMON_NS_PER_S);
    assert_int_equal(kept_of(cluster, session)->layout.epoch, epoch);
    assert_int_equal(coordinator_worker_speed(worker_of(cluster, 0)), worker_of(cluster, 0)->speed);
    sim_cluster_free(cluster);
}

// A process that is stopped for most of the time, and never for so long that it is lost; it has hardly any
// work.
static void one_that_stalls(void **state)
{
    (void)state;
    struct sim_cluster *cluster = paced(quickly);
    (void)wide_session(cluster, 2);
    sim_advance(2 * COMMON_NS_PER_S);
    for (uint32_t i = 0; i < 60 && !slow_ones(cluster); i++) {
        sim_loop_freeze(cluster->workers[1]->loop);
        sim_advance(280 * COMMON_NS_PER_MS);
        sim_loop_thaw(cluster->workers[1]->loop);
        sim_advance(20 * COMMON_NS_PER_MS);
    }
    assert_true(worker_of(cluster, 1)->pace.slow);
    assert_int_equal(slow_ones(cluster), 1);
    for (uint32_t i = 0; i < 120 && slow_ones(cluster); i++)
        sim_advance(COMMON_NS_PER_S);
    assert_int_equal(slow_ones(cluster), 0); // it has measured
    sim_cluster_free(cluster);
}

// A process that is stopped for four fifths of the time, 80 ms at a time, as by a quota of processor time.
// Each step comes while it is stopped and is computed at once when it goes on: no computing is ever seen to
// take long, whatever speed was measured, and no heartbeat is late by much.
static void one_that_is_stopped_briefly(void **state)
{
    (void)state;
    struct sim_cluster *cluster = paced(quickly);
    uint64_t session = wide_session(cluster, 2);
    step_for(cluster, session, 2 * COMMON_NS_PER_S);
    assert_int_equal(slow_ones(cluster), 0);
    uint32_t serves = served_by(cluster, session, 1);
    for (uint32_t i = 0; i < 100; i++) {
        sim_loop_freeze(cluster->workers[1]->loop);
        struct sim_call *call = sim_read(cluster->client, session, 0, TOKENS - 1, 1);
        sim_advance(80 * COMMON_NS_PER_MS);
        sim_loop_thaw(cluster->workers[1]->loop);
        OK(call);
        sim_advance(20 * COMMON_NS_PER_MS);
    }
    const struct coordinator_worker *w = worker_of(cluster, 1);
    assert_true(w->pace.slow);
    assert_int_equal(slow_ones(cluster), 1);
    assert_in_range(100 * coordinator_worker_speed(w) / w->speed, 10, 30); // it runs for 20 of 100 ms
    assert_true(served_by(cluster, session, 1) < serves);
    step_until_slow(cluster, session, 0);
    sim_cluster_free(cluster);
}

// A new copy serves, too: as after a loss the remaining workers serve everything.
static void a_new_copy_serves(void **state)
{
    (void)state;
    struct sim_cluster *cluster = paced(quickly);
    uint64_t session = wide_session(cluster, 2);
    sim_worker_kill(cluster->workers[0]);
    for (uint32_t i = 0; i < 100; i++)
        sim_advance(100 * COMMON_NS_PER_MS);
    sim_worker_kill(cluster->workers[1]);
    for (uint32_t i = 0; i < 100; i++)
        sim_advance(100 * COMMON_NS_PER_MS);
    uint32_t chunks = kept_of(cluster, session)->layout.n; // one was placed ahead
    assert_int_equal(served_by(cluster, session, 2), chunks);
    sim_worker_start(cluster->workers[1]);
    for (uint32_t i = 0; i < 200; i++)
        sim_advance(100 * COMMON_NS_PER_MS);
    assert_int_equal(kept_of(cluster, session)->thin, 0);
    assert_in_range(served_by(cluster, session, 1), chunks / 2, chunks / 2 + 1);
    READS(cluster, session, TOKENS, TOKENS);
    sim_coordinator_kill(cluster); // and so it is in the store
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    assert_in_range(served_by(cluster, session, 1), chunks / 2, chunks / 2 + 1);
    READS(cluster, session, TOKENS, TOKENS);
    sim_cluster_free(cluster);
}

// The store refuses, then takes it: no other copy serves before.
static void the_store_refuses(void **state)
{
    (void)state;
    struct sim_cluster *cluster = paced(quickly);
    uint64_t session = wide_session(cluster, 2), epoch = kept_of(cluster, session)->layout.epoch;
    step_for(cluster, session, COMMON_NS_PER_S);
    sim_worker_slow(cluster->workers[1], TASK_NS);
    sim_disk_fail(SIM_DISK_PATH, 1000, COMMON_RESOURCE_EXHAUSTED);
    step_until_slow(cluster, session, 1);
    step_for(cluster, session, 3 * COMMON_NS_PER_S);
    assert_int_equal(kept_of(cluster, session)->layout.epoch, epoch);
    assert_true(served_by(cluster, session, 1) > 0);
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
    step_for(cluster, session, 3 * COMMON_NS_PER_S);
    assert_int_equal(kept_of(cluster, session)->layout.epoch, epoch + 1);
    assert_int_equal(served_by(cluster, session, 1), 0);
    sim_cluster_free(cluster);
}

int hermetic_slow(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_worker_loses_its_work),
        cmocka_unit_test(all_are_slow),
        cmocka_unit_test(its_chunks_go_elsewhere),
        cmocka_unit_test(alone_with_work),
        cmocka_unit_test(it_is_only_flagged),
        cmocka_unit_test(one_that_stalls),
        cmocka_unit_test(one_that_is_stopped_briefly),
        cmocka_unit_test(a_new_copy_serves),
        cmocka_unit_test(the_store_refuses),
    };
    pace = UINT64_C(1) << 20;
    int failed = cmocka_run_group_tests_name("slow, of little bandwidth", tests, NULL, NULL);
    pace <<= 3;
    return failed + cmocka_run_group_tests_name("slow, of much bandwidth", tests, NULL, NULL);
}
