// SPDX-License-Identifier: Apache-2.0
// Sessions: creating, placing, truncating, forking, deleting; refusals of the store.
#include "common/memory/block.h"
#include "tests/coordinator/hermetic/hermetic.h"

static void two_workers_hold_a_session(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 64);
    struct sim_call *read = sim_read(cluster->client, session, 0, 63, 1);
    OK(read);
    assert_int_equal(read->length, 64);
    READS(cluster, session, 64, 64);
    assert_int_equal(length_of(cluster, session), 64);
    assert_int_equal(tokens_held(cluster, session), 64);
    for (int i = 0; i < 2; i++)
        assert_true(sim_worker_tokens(cluster->workers[i], session, 0) > 0);
    ENDS(COMMON_OUT_OF_RANGE, sim_read(cluster->client, session, 0, 64, 1));
    ENDS(COMMON_OUT_OF_RANGE, sim_append(cluster->client, session, 0, 65, 1, 1));
    OK(sim_delete(cluster->client, session));
    ENDS(COMMON_NOT_FOUND, sim_read(cluster->client, session, 0, 0, 1));
    sim_run_until_idle();
    assert_int_equal(tokens_held(cluster, session), 0);
    sim_cluster_free(cluster);
}

static void a_fork_shares_what_was_there(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_call *fork = sim_fork(cluster->client, session, 20, "");
    OK(fork);
    OK(sim_read(cluster->client, fork->session, 0, 19, 1));
    ENDS(COMMON_OUT_OF_RANGE, sim_read(cluster->client, fork->session, 0, 20, 1));
    OK(sim_append(cluster->client, fork->session, 0, 20, 4, 9));
    READS(cluster, session, 40, 40);
    READS(cluster, fork->session, 24, 20 + 4 * 9);
    assert_int_equal(length_of(cluster, fork->session), 24);
    assert_int_equal(length_of(cluster, session), 40);
    OK(sim_delete(cluster->client, session));
    READS(cluster, fork->session, 24, 20 + 4 * 9);
    sim_cluster_free(cluster);
}

// A length between two chunks cuts none: the fork has every whole chunk below it, and nothing is copied.
static void a_fork_between_chunks_shares_all_below(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    for (uint32_t at = 16; at <= 32; at += 16) {
        struct sim_call *fork = sim_fork(cluster->client, session, at, "");
        OK(fork);
        assert_int_equal(length_of(cluster, fork->session), at);
        assert_int_equal(tokens_held(cluster, fork->session), at);
        READS(cluster, fork->session, at, at);
        OK(sim_append(cluster->client, fork->session, 0, at, 1, 9));
        READS(cluster, fork->session, at + 1, at + 9);
        assert_int_equal(sim_serve_seen(cluster->workers[0]->loop, METHOD(CHUNK_COPY)) +
                             sim_serve_seen(cluster->workers[1]->loop, METHOD(CHUNK_COPY)),
                         0);
    }
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

static void a_truncate_waits_for_steps_and_steps_for_it(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    for (int w = 0; w < 2; w++)
        sim_serve_rule(cluster->workers[w]->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    struct sim_call *before = sim_read(cluster->client, session, 0, 39, 1);
    sim_run_until_idle();
    struct sim_call *truncate = sim_truncate(cluster->client, session, 20);
    struct sim_call *past = sim_read(cluster->client, session, 0, 39, 1);
    struct sim_call *within = sim_read(cluster->client, session, 0, 19, 1);
    struct sim_call *append = sim_append(cluster->client, session, 0, 20, 2, 7);
    sim_run_until_idle();
    assert_false(before->done || truncate->done || past->done || within->done || append->done);
    for (int w = 0; w < 2; w++) {
        sim_serve_rule(cluster->workers[w]->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
        sim_serve_let_go(cluster->workers[w]->loop);
    }
    OK(before);
    OK(truncate);
    assert_int_equal(truncate->incarnation, 2);
    ENDS(COMMON_OUT_OF_RANGE, past);
    OK(within);
    OK(append);
    assert_int_equal(append->length, 22);
    READS(cluster, session, 22, 20 + 2 * 7);
    assert_int_equal(length_of(cluster, session), 22);
    sim_cluster_free(cluster);
}

// The same create and the same fork again, by a caller that did not get the first answer: while the store
// writes, after it, after a restart. One session each.
static void a_call_with_a_key_makes_one_session(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    for (int fork = 0; fork < 2; fork++) {
        uint64_t key = 77 + (uint64_t)fork;
        struct sim_call *calls[3];
        sim_disk_stall(SIM_DISK_PATH, true);
        for (int i = 0; i < 3; i++)
            calls[i] = fork ? sim_fork_once(cluster->client, key, session, 10)
                            : sim_create_once(cluster->client, key, "once");
        sim_advance(COMMON_NS_PER_S);
        sim_cancel(calls[1]); // its caller goes away meanwhile
        sim_advance(COMMON_NS_PER_S);
        sim_disk_stall(SIM_DISK_PATH, false);
        OK(calls[0]);
        OK(calls[2]);
        assert_int_equal(calls[2]->session, calls[0]->session);
        assert_int_equal(calls[2]->incarnation, calls[0]->incarnation);
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 2));
        struct sim_call *again = fork ? sim_fork_once(cluster->client, key, session, 10)
                                      : sim_create_once(cluster->client, key, "once");
        OK(again);
        assert_int_equal(again->session, calls[0]->session);
        OK(sim_delete(cluster->client, again->session)); // and the key with it
        again = fork ? sim_fork_once(cluster->client, key, session, 10)
                     : sim_create_once(cluster->client, key, "once");
        OK(again);
        assert_int_not_equal(again->session, calls[0]->session);
    }
    sim_cluster_free(cluster);
}

// What the first call fails of, those that came for it fail of, too; then the key is free.
static void a_key_of_a_session_that_was_not_made_is_free(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = session_of(cluster, 20);
    sim_advance(
        COMMON_NS_PER_S); // what is full is sealed: the disk has no other writes, and a fork of it copies nothing
    for (int fork = 0; fork < 2; fork++) {
        struct sim_call *calls[2];
        sim_disk_stall(SIM_DISK_PATH, true);
        sim_disk_fail(SIM_DISK_PATH, 1 + (uint32_t)fork, COMMON_RESOURCE_EXHAUSTED);
        for (int i = 0; i < 2; i++)
            calls[i] = fork ? sim_fork_once(cluster->client, 5, session, 16)
                            : sim_create_once(cluster->client, 4, "");
        sim_advance(COMMON_NS_PER_S);
        sim_disk_stall(SIM_DISK_PATH, false);
        ENDS(COMMON_RESOURCE_EXHAUSTED, calls[0]);
        assert_int_not_equal(sim_wait(calls[1]), COMMON_OK);
        sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
        OK(fork ? sim_fork_once(cluster->client, 5, session, 16) : sim_create_once(cluster->client, 4, ""));
    }
    sim_cluster_free(cluster);
}

static void a_create_that_the_store_refuses_leaves_no_name(void **state)
{
    static const enum common_code codes[] = {COMMON_RESOURCE_EXHAUSTED, COMMON_UNAVAILABLE};
    (void)state;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        struct sim_cluster *cluster = cluster_of(1);
        struct common_error err;
        sim_disk_fail(SIM_DISK_PATH, 1, codes[i]);
        struct sim_call *refused = sim_create(cluster->client, (struct sim_shape){0}, "name");
        struct sim_call *taken = sim_create(cluster->client, (struct sim_shape){0}, "name");
        ENDS(codes[i], refused);
        ENDS(COMMON_ALREADY_EXISTS, taken); // it was taken while the first was being written
        struct sim_call *created = sim_create(cluster->client, (struct sim_shape){0}, "name");
        OK(created);
        sim_coordinator_kill(cluster);
        sim_run_until_idle();
        assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
        OK(sim_info(cluster->client, created->session));
        sim_cluster_free(cluster);
    }
}

// A name that is taken by a session that is still being written opens when it is.
static void a_session_that_is_being_made_is_opened_when_it_is(void **state)
{
    (void)state;
    for (int refused = 0; refused < 2; refused++) {
        struct sim_cluster *cluster = cluster_of(1);
        sim_disk_stall(SIM_DISK_PATH, true);
        struct sim_call *made = sim_create(cluster->client, (struct sim_shape){0}, "name");
        ENDS(COMMON_ALREADY_EXISTS, sim_create(cluster->client, (struct sim_shape){0}, "name"));
        struct sim_call *opened = sim_find(cluster->client, "name");
        ENDS(COMMON_NOT_FOUND, sim_find(cluster->client, "other"));
        assert_false(opened->done);
        sim_disk_fail(SIM_DISK_PATH, refused ? (uint32_t)sim_disk_waiting(SIM_DISK_PATH) : 0,
                      COMMON_RESOURCE_EXHAUSTED);
        sim_disk_stall(SIM_DISK_PATH, false);
        ENDS(refused ? COMMON_RESOURCE_EXHAUSTED : COMMON_OK, made);
        ENDS(refused ? COMMON_NOT_FOUND : COMMON_OK, opened);
        if (!refused)
            assert_int_equal(opened->session, made->session);
        sim_cluster_free(cluster);
    }
}

// ---- edges ----------------------------------------------------------------------------------------------

static void a_session_is_created_laid_out_and_back_after_a_stop(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    SHOWS(session, "creating", "active");
    SHOWS(session, "active", "relayout");
    SHOWS(session, "relayout", "active");
    sim_coordinator_stop(cluster);
    SHOWS(session, "active", "gone"); // from memory
    restart(cluster);
    READS(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

// A refusal of each exclusive operation by the store: the session is as it was, and the next try works.
static void a_store_that_refuses_leaves_the_session_as_it_was(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    sim_disk_fail(SIM_DISK_PATH, 1, COMMON_RESOURCE_EXHAUSTED);
    ENDS(COMMON_RESOURCE_EXHAUSTED, sim_truncate(cluster->client, session, 10));
    SHOWS(session, "active", "truncating");
    SHOWS(session, "truncating", "active");
    assert_true(sim_wait_active(cluster, 2));
    READS(cluster, session, 20, 20);
    sim_disk_fail(SIM_DISK_PATH, 2, COMMON_RESOURCE_EXHAUSTED); // and the undoing
    ENDS(COMMON_RESOURCE_EXHAUSTED, sim_fork(cluster->client, session, 10, "fork"));
    SHOWS(session, "active", "forking");
    SHOWS(session, "forking", "active");
    SHOWS(session, "creating", "gone"); // the fork
    sim_run_until_idle();
    sim_disk_fail(SIM_DISK_PATH, 1, COMMON_RESOURCE_EXHAUSTED);
    ENDS(COMMON_RESOURCE_EXHAUSTED, sim_delete(cluster->client, session));
    SHOWS(session, "active", "deleting");
    SHOWS(session, "deleting", "active");
    READS(cluster, session, 20, 20);
    struct sim_call *fork = sim_fork(cluster->client, session, 10, "fork");
    OK(fork);
    READS(cluster, fork->session, 10, 10);
    OK(sim_truncate(cluster->client, session, 10));
    READS(cluster, session, 10, 10);
    OK(sim_delete(cluster->client, session));
    SHOWS(session, "deleting", "gone");
    ENDS(COMMON_NOT_FOUND, sim_info(cluster->client, session));
    sim_cluster_free(cluster);
}

// No worker has memory for a chunk: the client gets that error, and once their heartbeats say that they have
// it works.
static void a_place_that_its_holder_refuses_is_taken_back(void **state)
{
    (void)state;
    for (int append = 0; append < 2; append++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 20);
        rule_all(cluster, METHOD(LAYOUT_SET),
                 (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_RESOURCE_EXHAUSTED});
        ENDS(COMMON_RESOURCE_EXHAUSTED, append ? sim_append(cluster->client, session, 0, 20, 40, 2)
                                               : sim_open(cluster->client, session, 20, 60));
        assert_true(sim_wait_active(cluster, 2));
        assert_int_equal(length_of(cluster, session), 20);
        sim_advance(COMMON_NS_PER_S);
        OK(sim_append(cluster->client, session, 0, 20, 40, 3));
        READS(cluster, session, 60, 20 + 40 * 3);
        sim_cluster_free(cluster);
    }
}

// What waits for exclusive access to a session fails when the session goes first, and so does what waits for
// its door.
static void waiting_calls_end_when_their_session_goes(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    struct sim_call *read = sim_read(cluster->client, session, 0, 39, 1);
    sim_run_until_idle();
    struct sim_call *delete = sim_delete(cluster->client, session);
    struct sim_call *later[] = {
        sim_truncate(cluster->client, session, 20),  sim_fork(cluster->client, session, 20, ""),
        sim_delete(cluster->client, session),        sim_commit(cluster->client, session, 0, 0, 40),
        sim_open(cluster->client, session, 40, 10),  sim_append(cluster->client, session, 0, 40, 1, 1),
        sim_read(cluster->client, session, 0, 39, 1)};
    sim_run_until_idle();
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    let_go_all(cluster);
    OK(read);
    OK(delete);
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        ENDS(COMMON_NOT_FOUND, later[i]);
    SHOWS(item, "waiting", "done");
    sim_run_until_idle();
    assert_int_equal(tokens_held(cluster, session), 0);
    sim_cluster_free(cluster);
}

// A worker that is too busy to receive that a session is deleted gets it again, though its link lasts.
static void a_worker_that_refuses_a_drop_gets_it_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 64);
    rule_all(cluster, METHOD(SESSION_DROP),
             (struct sim_rule){.verdict = SIM_FAIL, .times = 3, .code = COMMON_RESOURCE_EXHAUSTED});
    OK(sim_delete(cluster->client, session));
    sim_run_until_idle();
    assert_int_equal(tokens_held(cluster, session), 64);
    sim_advance(10 * COMMON_NS_PER_S);
    assert_int_equal(tokens_held(cluster, session), 0);
    state_is(cluster, cluster->workers[0], "active");
    sim_cluster_free(cluster);
}

#ifndef __SANITIZE_ADDRESS__ // where blocks are not kept
static uint8_t *soiled_block(void)
{
    uint8_t *block = common_block_take(5000, COMMON_BLOCK_DAEMONS);
    assert_non_null(block);
    while (common_block_clean(SIZE_MAX, false)) // what tests before this one have left
        continue;
    *block = 7;
    common_block_give(block);
    assert_false(common_block_clean(SIZE_MAX, false));
    assert_int_equal(*block, 7);
    return block;
}

// What went through the coordinator for a session is wiped when it ends. No worker has a row of it.
static void blocks_are_wiped_when_a_session_has_ended(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = session_of(cluster, 0);
    uint8_t *block = soiled_block();
    OK(sim_truncate(cluster->client, session, 0));
    common_block_clean(SIZE_MAX, false);
    assert_int_equal(*block, 7); // nothing was there
    OK(sim_delete(cluster->client, session));
    common_block_clean(SIZE_MAX, false);
    assert_int_equal(*block, 0);
    sim_cluster_free(cluster);
}
#endif

int hermetic_sessions(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_workers_hold_a_session),
        cmocka_unit_test(a_fork_shares_what_was_there),
        cmocka_unit_test(a_fork_between_chunks_shares_all_below),
        cmocka_unit_test(a_truncate_waits_for_steps_and_steps_for_it),
        cmocka_unit_test(a_call_with_a_key_makes_one_session),
        cmocka_unit_test(a_key_of_a_session_that_was_not_made_is_free),
        cmocka_unit_test(a_create_that_the_store_refuses_leaves_no_name),
        cmocka_unit_test(a_session_that_is_being_made_is_opened_when_it_is),
        cmocka_unit_test(a_session_is_created_laid_out_and_back_after_a_stop),
        cmocka_unit_test(a_store_that_refuses_leaves_the_session_as_it_was),
        cmocka_unit_test(a_place_that_its_holder_refuses_is_taken_back),
        cmocka_unit_test(waiting_calls_end_when_their_session_goes),
        cmocka_unit_test(a_worker_that_refuses_a_drop_gets_it_again),
#ifndef __SANITIZE_ADDRESS__
        cmocka_unit_test(blocks_are_wiped_when_a_session_has_ended),
#endif
    };
    return cmocka_run_group_tests_name("sessions", tests, NULL, NULL);
}
