// SPDX-License-Identifier: Apache-2.0
// Chunks with several holders: the loss of all but one loses nothing, and fails no step.
#include "tests/coordinator/hermetic/hermetic.h"

#include "worker/control/lose.h"
#include "worker/core/state.h"
#include "worker/store/store.h"

#define STATE(cluster, session, wanted)                                                                      \
    do {                                                                                                     \
        struct sim_call *shown = sim_info((cluster)->client, session);                                       \
        OK(shown);                                                                                           \
        assert_string_equal(shown->state, wanted);                                                           \
    } while (0)

static void each_chunk_is_at_as_many_workers_and_one_computes(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 3; replicas++) {
        struct sim_cluster *cluster = cluster_of(4);
        uint64_t session = filled_of(cluster, replicas, 50), chunks = 0, tokens = 0;
        for (uint64_t at = 0; at < 50; at += 16) {
            uint32_t held = 0;
            for (uint32_t w = 0; w < 4; w++)
                held += sim_worker_holds(cluster->workers[w], session, at);
            assert_int_equal(held, replicas);
        }
        assert_int_equal(tokens_held(cluster, session), 50 * replicas);
        READS(cluster, session, 50, 50);
        STATE(cluster, session, "active");
        const struct coordinator_cluster *workers = &cluster->coordinator->cluster;
        for (uint32_t i = 0; i < workers->n_workers; i++) {
            chunks += workers->workers[i]->chunks;
            tokens += workers->workers[i]->tokens;
        }
        assert_int_equal(chunks, kept_of(cluster, session)->layout.n * replicas);
        assert_int_equal(tokens, 50);
        OK(sim_delete(cluster->client, session));
        for (uint32_t i = 0; i < workers->n_workers; i++)
            assert_true(!workers->workers[i]->chunks && !workers->workers[i]->load_bytes);
        sim_cluster_free(cluster);
    }
    struct sim_cluster *cluster = cluster_of(1);
    ENDS(COMMON_INVALID_ARGUMENT, sim_create(cluster->client, (struct sim_shape){.replicas = 4}, ""));
    sim_cluster_free(cluster);
}

// A worker ends at every moment of a stream of steps, appends and reads: all of them succeed, and are exact.
// They wait for nothing that comes later, neither for the grace period (its port is closed) nor for a tick.
static void no_step_fails_when_a_worker_is_killed(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 60; moment++) {
        struct sim_cluster *cluster = cluster_of(3);
        struct sim_call *calls[40];
        uint32_t replicas = 2 + moment % 2;
        uint64_t session = filled_of(cluster, replicas, 40), epoch = kept_of(cluster, session)->layout.epoch;
        struct sim_worker *victim = copy_of(cluster, session, moment / 4 % 3, moment % replicas);
        sim_advance(moment % 10 * 30 * COMMON_NS_PER_MS);
        for (uint32_t i = 0; i < 40; i++) {
            if (i == 10) {
                sim_advance(moment * 20 * COMMON_NS_PER_US);
                sim_worker_kill(victim);
            }
            calls[i] = i % 2 ? sim_read(cluster->client, session, 0, 20, 1)
                             : sim_append(cluster->client, session, 0, 40 + i / 2, 1, 2);
            if (i < 10)
                sim_advance(50 * COMMON_NS_PER_US);
        }
        uint64_t from = sim_clock();
        for (uint32_t i = 0; i < 40; i++) {
            OK(calls[i]);
            assert_true(i % 2 == 0 || calls[i]->o == 1);
        }
        assert_true(sim_clock() - from < 20 * COMMON_NS_PER_MS);
        READS(cluster, session, 60, 40 + 20 * 2);
        assert_true(kept_of(cluster, session)->layout.epoch > epoch);
        sim_worker_start(victim); // without anything: nothing is counted on that it had
        assert_true(sim_wait_active(cluster, 3));
        READS(cluster, session, 60, 40 + 20 * 2);
        OK(sim_append(cluster->client, session, 0, 60, 1, 5));
        READS(cluster, session, 61, 40 + 20 * 2 + 5);
        sim_cluster_free(cluster);
    }
}

// It hears nothing for a while, and comes back with what it had: that has no part in anything any more.
static void a_holder_that_was_struck_off_comes_back_stale(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = filled_of(cluster, 2, 20);
    struct sim_worker *away = copy_of(cluster, session, 1, 0), *stays = copy_of(cluster, session, 1, 1);
    sim_net_part(NULL, away->loop);
    OK(sim_append(cluster->client, session, 0, 20, 2, 4)); // it waits until the other one serves
    assert_ptr_equal(copy_of(cluster, session, 1, 0), stays);
    sim_net_mend(NULL, away->loop);
    assert_true(sim_wait_active(cluster, 3));
    sim_run_until_idle();
    assert_false(sim_worker_holds(away, session, 16));
    sim_coordinator_kill(cluster); // nor does the store count on it
    restart(cluster);
    assert_true(sim_wait_active(cluster, 3));
    READS(cluster, session, 22, 20 + 2 * 4);
    sim_worker_kill(away);
    READS(cluster, session, 22, 20 + 2 * 4);
    sim_cluster_free(cluster);
}

static void a_link_that_is_back_in_its_grace_costs_nothing(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 2, 20);
    for (uint32_t copy = 0; copy < 2; copy++) {
        sim_net_cut(cluster->loop, copy_of(cluster, session, 1, copy)->loop);
        OK(sim_append(cluster->client, session, 0, 20 + copy, 1, 1));
        READS(cluster, session, 21 + copy, 21 + copy);
    }
    assert_true(sim_wait_active(cluster, 2));
    STATE(cluster, session, "active");
    sim_cluster_free(cluster);
}

// The last one is never removed: its tokens are missing until it is back, and lost when it comes without.
static void the_last_holder_stays(void **state)
{
    (void)state;
    for (uint32_t restarts = 0; restarts < 2; restarts++) {
        struct sim_cluster *cluster = cluster_of(3);
        uint64_t session = filled_of(cluster, 3, 16);
        struct sim_worker *one = copy_of(cluster, session, 0, 0), *two = copy_of(cluster, session, 0, 1),
                          *last = copy_of(cluster, session, 0, 2);
        sim_worker_kill(one);
        READS(cluster, session, 16, 16);
        sim_worker_kill(two);
        READS(cluster, session, 16, 16);
        STATE(cluster, session, "degraded");
        sim_net_part(NULL, last->loop);
        sim_advance(COMMON_NS_PER_S);
        ENDS(COMMON_UNAVAILABLE, sim_read(cluster->client, session, 0, 15, 1));
        STATE(cluster, session, "unavailable");
        sim_worker_start(one);
        sim_worker_start(two);
        rule_all(cluster, METHOD(CHUNK_PULL),
                 (struct sim_rule){.verdict = SIM_HOLD}); // it stays the last one
        assert_true(sim_wait_active(cluster, 2));
        ENDS(COMMON_UNAVAILABLE, sim_read(cluster->client, session, 0, 15, 1));
        sim_net_mend(NULL, last->loop);
        assert_true(sim_wait_active(cluster, 3));
        READS(cluster, session, 16, 16);
        sim_worker_kill(last);
        sim_advance(COMMON_NS_PER_S);
        sim_worker_start(last);
        if (restarts) {
            sim_coordinator_kill(cluster);
            restart(cluster);
        }
        assert_true(sim_wait_active(cluster, 3));
        ENDS(COMMON_DATA_LOSS, sim_read(cluster->client, session, 0, 15, 1));
        OK(sim_truncate(cluster->client, session, 0));
        OK(sim_append(cluster->client, session, 0, 0, 4, 3));
        STATE(cluster, session, "active");
        sim_cluster_free(cluster);
    }
}

// No holder is there: the first one to return with its copy serves, and the other's does not count from then
// on.
static void of_holders_that_are_all_away_the_first_serves(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 2, 20);
    struct sim_worker *serves = copy_of(cluster, session, 0, 0), *follows = copy_of(cluster, session, 0, 1);
    sim_net_part(NULL, serves->loop);
    sim_net_part(NULL, follows->loop);
    sim_advance(COMMON_NS_PER_S);
    ENDS(COMMON_UNAVAILABLE, sim_read(cluster->client, session, 0, 19, 1));
    sim_net_mend(NULL, follows->loop);
    assert_true(sim_wait_active(cluster, 1));
    READS(cluster, session, 20, 20);
    OK(sim_append(cluster->client, session, 0, 20, 4, 2));
    sim_net_mend(NULL, serves->loop);
    assert_true(sim_wait_active(cluster, 2));
    READS(cluster, session, 24, 20 + 4 * 2);
    assert_ptr_equal(copy_of(cluster, session, 0, 0), follows);
    sim_cluster_free(cluster);
}

// Rows that steps have appended are in no store: those that all holders have are there after a restart, also
// when one of them is gone; and one that has missed an append decides against it, wherever it comes among
// them.
static void appended_rows_after_a_restart(void **state)
{
    (void)state;
    for (uint32_t way = 0; way < 12; way++) {
        struct sim_cluster *cluster = cluster_of(3);
        uint64_t session = filled_of(cluster, 3, 20);
        struct sim_worker *behind = copy_of(cluster, session, 1, way % 3);
        uint64_t steps = sim_serve_seen(behind->loop, METHOD(STEP));
        sim_serve_rule(behind->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
        struct sim_call *append = sim_append(cluster->client, session, 0, 20, 3, 7);
        sim_advance(5 * COMMON_NS_PER_MS);
        assert_true(sim_serve_seen(behind->loop, METHOD(STEP)) > steps && !append->done);
        if (way < 6)
            sim_worker_kill(behind);
        sim_coordinator_kill(cluster);
        restart(cluster);
        sim_wait(append);
        if (way % 2 && !behind->loop)
            sim_worker_start(behind);
        assert_true(sim_wait_active(cluster, behind->loop ? 3 : 2));
        if (behind->loop) { // it has the new term by now
            sim_serve_rule(behind->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
            sim_serve_let_go(behind->loop);
        }
        sim_advance(6 * COMMON_NS_PER_S);
        uint64_t length = length_of(cluster, session);
        assert_true(length == 20 || (way < 6 && length == 23)); // all of it or nothing
        READS(cluster, session, length, 20 + (length - 20) * 7);
        OK(sim_append(cluster->client, session, 0, length, 2, 9));
        for (uint32_t w = 0; w < 3; w++) { // each that serves has it
            uint32_t left = 0;
            const struct coordinator_chunk *chunk =
                coordinator_layout_find(&kept_of(cluster, session)->layout, 1);
            left = coordinator_chunk_copies(chunk);
            if (left == 1)
                break;
            sim_worker_kill(copy_of(cluster, session, 1, 0));
            READS(cluster, session, length + 2, 20 + (length - 20) * 7 + 18);
        }
        sim_cluster_free(cluster);
    }
}

// Its rows are put at all holders; a client that sends them to one only gets an error: they are not there.
static void rows_are_attached_at_all_holders(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = filled_of(cluster, 2, 0);
    struct sim_call *opened = sim_open(cluster->client, session, 0, 40);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 0, 40, 6));
    OK(sim_commit(cluster->client, session, 0, 0, 40));
    assert_int_equal(tokens_held(cluster, session), 80);
    sim_client_one_holder(cluster->client, true);
    opened = sim_open(cluster->client, session, 40, 20);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 40, 20, 6));
    struct sim_call *commit = sim_commit(cluster->client, session, 0, 40, 20);
    ENDS(COMMON_FAILED_PRECONDITION, commit);
    assert_string_equal(commit->reason, "HOLE");
    assert_int_equal(commit->first_missing, 40);
    assert_int_equal(length_of(cluster, session), 40);
    sim_worker_kill(copy_of(cluster, session, 0, 0));
    READS(cluster, session, 40, 40 * 6);
    sim_cluster_free(cluster);
}

// A holder that ends while a commit is under way: the commit is durable at the others.
static void a_commit_outlives_a_holder(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 30; moment++) {
        struct sim_cluster *cluster = cluster_of(3);
        uint64_t session = filled_of(cluster, 2, 0);
        struct sim_call *opened = sim_open(cluster->client, session, 0, 40);
        OK(opened);
        OK(sim_put(cluster->client, opened, 0, 0, 40, 6));
        struct sim_worker *victim = copy_of(cluster, session, 1, moment % 2);
        struct sim_call *commit = sim_commit(cluster->client, session, 0, 0, 40);
        sim_advance(moment * 20 * COMMON_NS_PER_US);
        sim_worker_kill(victim);
        if (moment % 3 == 0)
            sim_worker_start(victim);
        if (sim_wait(commit) != COMMON_OK) {
            assert_int_equal(commit->code, COMMON_UNAVAILABLE);
            OK(sim_commit(cluster->client, session, 0, 0, 40));
        }
        READS(cluster, session, 40, 40 * 6);
        sim_cluster_free(cluster);
    }
}

// Of holders that have lost what a commit wrote the last one is no excuse: the client gets the error.
static void a_commit_that_no_holder_has_is_a_loss(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 2; replicas++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = filled_of(cluster, replicas, 4);
        struct sim_call *opened = sim_open(cluster->client, session, 4, 4);
        OK(opened);
        OK(sim_put(cluster->client, opened, 0, 4, 4, 6));
        sim_disk_stall(SIM_DISK_PATH, true);
        struct sim_call *commit = sim_commit(cluster->client, session, 0, 4, 4);
        sim_advance(10 * COMMON_NS_PER_MS); // prepared, and on its way to the disk
        for (uint32_t copy = 0; copy < replicas; copy++) {
            struct sim_worker *w = copy_of(cluster, session, 0, copy);
            sim_worker_kill(w);
            sim_worker_start(w);
        }
        sim_advance(COMMON_NS_PER_S); // they have said what they have
        assert_false(commit->done);
        sim_disk_stall(SIM_DISK_PATH, false);
        ENDS(COMMON_DATA_LOSS, commit);
        assert_string_equal(commit->reason, "COVERAGE");
        sim_cluster_free(cluster);
    }
}

// A truncate inside a chunk and a fork copy it at all of its holders.
static void what_is_copied_is_copied_everywhere(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = filled_of(cluster, 3, 40);
    OK(sim_truncate(cluster->client, session, 20));
    struct sim_call *fork = sim_fork(cluster->client, session, 18, "");
    OK(fork);
    assert_int_equal(tokens_held(cluster, session), 3 * 20);
    assert_int_equal(tokens_held(cluster, fork->session), 3 * 18);
    OK(sim_append(cluster->client, session, 0, 20, 1, 9));
    OK(sim_append(cluster->client, fork->session, 0, 18, 1, 5));
    sim_worker_kill(copy_of(cluster, session, 1, 0));
    sim_worker_kill(copy_of(cluster, session, 1, 1));
    READS(cluster, session, 21, 20 + 9);
    READS(cluster, fork->session, 19, 18 + 5);
    OK(sim_truncate(cluster->client, session, 17));
    READS(cluster, session, 17, 17);
    sim_cluster_free(cluster);
}

static void fewer_workers_than_copies_are_no_refusal(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    sim_worker_kill(cluster->workers[1]);
    sim_advance(COMMON_NS_PER_S);
    uint64_t session = filled_of(cluster, 2, 20);
    STATE(cluster, session, "degraded");
    sim_worker_start(cluster->workers[1]);
    rule_all(cluster, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_HOLD}); // old ones wait
    assert_true(sim_wait_active(cluster, 2));
    OK(sim_append(cluster->client, session, 0, 20, 30, 1)); // new chunks have two
    assert_int_equal(coordinator_chunk_copies(coordinator_layout_find(&kept_of(cluster, session)->layout, 3)),
                     2);
    READS(cluster, session, 50, 50);
    STATE(cluster, session, "degraded");
    OK(sim_truncate(cluster->client, session, 0));
    STATE(cluster, session, "active");
    sim_cluster_free(cluster);
}

// What the store has not taken has not happened: steps wait, and go on when it does.
static void steps_wait_for_a_store_that_refuses(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 2, 20), epoch = kept_of(cluster, session)->layout.epoch;
    sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_RESOURCE_EXHAUSTED);
    sim_worker_kill(copy_of(cluster, session, 0, 0));
    struct sim_call *read = sim_read(cluster->client, session, 0, 19, 1);
    sim_advance(2 * COMMON_NS_PER_S);
    assert_true(!read->done && kept_of(cluster, session)->layout.epoch == epoch);
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
    OK(read);
    assert_true(kept_of(cluster, session)->layout.epoch > epoch);
    sim_cluster_free(cluster);
}

// As when a file is damaged that alone had rows of the chunk (worker/control/lose.c).
static void lose(struct sim_cluster *cluster, uint64_t session, uint32_t index, uint32_t copy)
{
    struct worker *worker = copy_of(cluster, session, index, copy)->worker;
    uint64_t id = coordinator_layout_find(&kept_of(cluster, session)->layout, index)->id;
    worker_lose_chunk(worker, worker_store_find(worker->store, id));
}

// A step that was sent before, and reaches the holder after it has reported to the coordinator what it has.
static void a_step_over_rows_that_have_just_gone_is_sent_again(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 2; replicas++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = filled_of(cluster, replicas, 14);
        sim_advance(COMMON_NS_PER_S); // nothing is under way
        struct sim_worker *holder = copy_of(cluster, session, 0, 0);
        sim_serve_rule(holder->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
        struct sim_call *read = sim_read(cluster->client, session, 0, 13, 1);
        sim_advance(100 * COMMON_NS_PER_MS);
        lose(cluster, session, 0, 0);
        sim_advance(2 * COMMON_NS_PER_S);
        sim_serve_rule(holder->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
        assert_true(sim_serve_let_go(holder->loop) > 0);
        ENDS(replicas == 1 ? COMMON_DATA_LOSS : COMMON_OK, read);
        assert_int_equal(read->n_missing, replicas == 1);
        sim_cluster_free(cluster);
    }
}

// The coordinator does not have the report yet that the rows are gone when it sends the holder a fork that
// shares them.
static void a_fork_brings_no_rows_back_that_are_lost(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = filled_of(cluster, 1, 20);
    sim_advance(COMMON_NS_PER_S); // nothing is under way
    lose(cluster, session, 0, 0);
    struct sim_call *fork = sim_fork(cluster->client, session, 16, "");
    sim_wait(fork);
    sim_advance(5 * COMMON_NS_PER_S);
    struct sim_call *read =
        sim_read(cluster->client, fork->code == COMMON_OK ? fork->session : session, 0, 15, 1);
    ENDS(COMMON_DATA_LOSS, read);
    assert_int_equal(read->n_missing, 1);
    sim_cluster_free(cluster);
}

int hermetic_holders(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_chunk_is_at_as_many_workers_and_one_computes),
        cmocka_unit_test(no_step_fails_when_a_worker_is_killed),
        cmocka_unit_test(a_holder_that_was_struck_off_comes_back_stale),
        cmocka_unit_test(a_link_that_is_back_in_its_grace_costs_nothing),
        cmocka_unit_test(the_last_holder_stays),
        cmocka_unit_test(of_holders_that_are_all_away_the_first_serves),
        cmocka_unit_test(appended_rows_after_a_restart),
        cmocka_unit_test(rows_are_attached_at_all_holders),
        cmocka_unit_test(a_commit_outlives_a_holder),
        cmocka_unit_test(a_commit_that_no_holder_has_is_a_loss),
        cmocka_unit_test(what_is_copied_is_copied_everywhere),
        cmocka_unit_test(fewer_workers_than_copies_are_no_refusal),
        cmocka_unit_test(steps_wait_for_a_store_that_refuses),
        cmocka_unit_test(a_step_over_rows_that_have_just_gone_is_sent_again),
        cmocka_unit_test(a_fork_brings_no_rows_back_that_are_lost),
    };
    return cmocka_run_group_tests_name("holders", tests, NULL, NULL);
}
