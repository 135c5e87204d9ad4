// SPDX-License-Identifier: Apache-2.0
// Truncates that come late or twice (coordinator/session/cuts.h): what was acknowledged after them stays.
#include "tests/coordinator/hermetic/hermetic.h"

enum { ROWS = 40, CUT = 20, MORE = 8, VALUE = 3 };

static uint64_t cut_of(struct sim_cluster *cluster, uint64_t session)
{
    struct sim_call *info = sim_info(cluster->client, session);
    OK(info);
    return info->cut;
}

// A client whose frames the coordinator does not read for a while.
static struct sim_client *slow_client(struct sim_cluster *cluster)
{
    struct sim_client *client = sim_client_new(SIM_COORDINATOR, NULL);
    OK(sim_cluster_info(client)); // it is connected
    sim_client_deadline(client, COMMON_NS_PER_S);
    sim_net_hold(sim_client_loop(client), cluster->loop);
    return client;
}

static void arrive(struct sim_cluster *cluster, struct sim_client *client)
{
    sim_net_release(sim_client_loop(client), cluster->loop);
    sim_advance(COMMON_NS_PER_S);
}

// Given up, settled, and only then read: rows that were acknowledged meanwhile stay.
static void a_truncate_that_comes_late_takes_nothing_away(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, ROWS), after = cut_of(cluster, session);
    struct sim_client *slow = slow_client(cluster);
    struct sim_call *late = sim_truncate_after(slow, session, CUT, after, 7);
    ENDS(COMMON_DEADLINE_EXCEEDED, late);
    struct sim_call *settled = sim_settle(cluster->client, session, after, 8);
    OK(settled);
    assert_int_equal(settled->cut, 8);
    assert_int_equal(settled->incarnation, 1);
    OK(sim_append(cluster->client, session, 0, ROWS, MORE, VALUE));
    arrive(cluster, slow);
    assert_int_equal(length_of(cluster, session), ROWS + MORE);
    READS(cluster, session, ROWS + MORE, ROWS + MORE * VALUE);
    sim_client_free(slow);
    sim_cluster_free(cluster);
}

// The same truncate over two links: the first to arrive is done, and answered; the other comes after newer
// rows. One with nothing to forget is no exception, nor is a restart in between.
static void a_truncate_that_comes_twice_is_done_once(void **state)
{
    (void)state;
    for (int nothing = 0; nothing < 2; nothing++)
        for (int killed = 0; killed < 2; killed++) {
            struct sim_cluster *cluster = cluster_of(2);
            uint64_t session = session_of(cluster, ROWS), after = cut_of(cluster, session);
            uint64_t length = nothing ? ROWS : CUT;
            struct sim_call *first = sim_truncate_after(cluster->client, session, length, after, 7);
            OK(first);
            assert_int_equal(first->cut, 7);
            OK(sim_append(cluster->client, session, 0, length, MORE, VALUE));
            if (killed) {
                sim_coordinator_kill(cluster);
                restart(cluster);
                assert_true(sim_wait_active(cluster, 2));
            }
            struct sim_call *again = sim_truncate_after(cluster->client, session, length, after, 7);
            OK(again);
            assert_int_equal(again->cut, 7);
            assert_int_equal(again->incarnation, first->incarnation);
            READS(cluster, session, length + MORE, length + MORE * VALUE);
            assert_int_equal(length_of(cluster, session), length + MORE);
            sim_cluster_free(cluster);
        }
}

// It arrives, and its answer does not: settling says that it was done.
static void settling_says_what_became_of_it(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, ROWS), after = cut_of(cluster, session);
    OK(sim_truncate_after(cluster->client, session, CUT, after, 7));
    struct sim_call *settled = sim_settle(cluster->client, session, after, 8);
    OK(settled);
    assert_int_equal(settled->cut, 7);
    assert_int_equal(settled->incarnation, 2);
    OK(sim_settle(cluster->client, session, 7, 9)); // and so is one that is asked again
    settled = sim_settle(cluster->client, session, 7, 9);
    OK(settled);
    assert_int_equal(settled->cut, 9);
    READS(cluster, session, CUT, CUT);
    sim_cluster_free(cluster);
}

// Of two that follow the same one, one is done, whether its caller gives numbers or not.
static void one_that_was_overtaken_is_refused(void **state)
{
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, ROWS), after = cut_of(cluster, session);
        OK(plain ? sim_truncate(cluster->client, session, CUT)
                 : sim_truncate_after(cluster->client, session, CUT, after, 7));
        OK(sim_append(cluster->client, session, 0, CUT, MORE, VALUE));
        struct sim_call *late = sim_truncate_after(cluster->client, session, CUT, after, 8);
        ENDS(COMMON_ABORTED, late);
        assert_string_equal(late->reason, "OLD_INCARNATION");
        READS(cluster, session, CUT + MORE, CUT + MORE * VALUE);
        OK(sim_truncate_after(cluster->client, session, CUT, cut_of(cluster, session), 9));
        READS(cluster, session, CUT, CUT);
        sim_cluster_free(cluster);
    }
}

// What it left is lost after it was done. The same number again changes nothing: rows that were acknowledged
// since may be what is lost, and their client must get that error. A truncate with a number of its own, which
// is what the error advises, makes the session usable: of a client that has sent the first one twice, and of
// one that has settled it.
static void a_loss_after_a_truncate_takes_another_one(void **state)
{
    (void)state;
    for (int rows = 0; rows < 2; rows++)
        for (int settles = 0; settles < 2; settles++) {
            struct sim_cluster *cluster = cluster_of(1);
            uint64_t session = filled_of(cluster, 1, 0), after = cut_of(cluster, session);
            OK(sim_open(cluster->client, session, 0, 16)); // the chunk is there now, and empty
            OK(sim_truncate_after(cluster->client, session, 0, after, 7));
            assert_int_equal(kept_of(cluster, session)->layout.n, 1);
            if (rows)
                OK(sim_append(cluster->client, session, 0, 0, MORE, VALUE));
            sim_worker_kill(cluster->workers[0]);
            sim_coordinator_kill(cluster);
            sim_worker_start(cluster->workers[0]);
            restart(cluster);
            assert_true(sim_wait_active(cluster, 1));
            ENDS(COMMON_DATA_LOSS, sim_append(cluster->client, session, 0, 0, MORE, VALUE));
            struct sim_call *again = settles ? sim_settle(cluster->client, session, after, 8)
                                             : sim_truncate_after(cluster->client, session, 0, after, 7);
            OK(again);
            assert_int_equal(again->cut, 7);
            struct sim_call *refused = sim_append(cluster->client, session, 0, 0, MORE, VALUE);
            ENDS(COMMON_DATA_LOSS, refused);
            assert_non_null(strstr(refused->text, "truncate the session before them"));
            OK(sim_truncate_after(cluster->client, session, 0, 7, 9));
            OK(sim_append(cluster->client, session, 0, 0, MORE, VALUE));
            READS(cluster, session, MORE, MORE * VALUE);
            sim_cluster_free(cluster);
        }
}

// What the store refuses has not happened: the number is as free as the rows are there.
static void a_number_that_the_store_refuses_is_not_taken(void **state)
{
    (void)state;
    for (int settle = 0; settle < 2; settle++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, ROWS), after = cut_of(cluster, session);
        sim_run_until_idle();
        sim_disk_fail(SIM_DISK_PATH, 1, COMMON_RESOURCE_EXHAUSTED);
        ENDS(COMMON_RESOURCE_EXHAUSTED, settle ? sim_settle(cluster->client, session, after, 7)
                                               : sim_truncate_after(cluster->client, session, CUT, after, 7));
        assert_true(sim_wait_active(cluster, 2));
        assert_int_equal(cut_of(cluster, session), after);
        OK(sim_truncate_after(cluster->client, session, CUT, after, 7));
        READS(cluster, session, CUT, CUT);
        sim_cluster_free(cluster);
    }
}

static void numbers_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, ROWS);
    ENDS(COMMON_INVALID_ARGUMENT, sim_truncate_after(cluster->client, session, CUT, 0, 7));
    ENDS(COMMON_INVALID_ARGUMENT, sim_truncate_after(cluster->client, session, CUT, 7, 0));
    ENDS(COMMON_INVALID_ARGUMENT, sim_settle(cluster->client, session, 0, 0));
    READS(cluster, session, ROWS, ROWS);
    sim_cluster_free(cluster);
}

// Its holder has copied what it cuts, and is restarted before the coordinator has stored that: it is asked
// what it has before the copy is in the layout, and gets the layout after that.
static void a_copy_that_went_before_it_was_stored_is_lost(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = filled_of(cluster, 1, 14);
    sim_advance(COMMON_NS_PER_S); // nothing is under way
    sim_disk_stall(SIM_DISK_PATH, true);
    struct sim_call *truncate = sim_truncate(cluster->client, session, 11);
    sim_advance(100 * COMMON_NS_PER_MS);
    assert_non_null(kept_of(cluster, session)->copy);
    sim_worker_kill(cluster->workers[0]);
    sim_worker_start(cluster->workers[0]);
    sim_advance(3 * COMMON_NS_PER_S);
    sim_disk_stall(SIM_DISK_PATH, false);
    sim_wait(truncate); // done, or no caller waits for it any more
    assert_true(sim_wait_active(cluster, 1));
    for (int restarts = 0; restarts < 2; restarts++) {
        struct sim_call *read = sim_read(cluster->client, session, 0, 5, 1);
        ENDS(COMMON_DATA_LOSS, read);
        assert_int_equal(read->n_missing, 1);
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 1));
    }
    sim_cluster_free(cluster);
}

// One holder has copied what a truncate cuts, and is restarted before the other one has: it is not a holder
// of the copy.
static void a_copy_that_went_before_the_other_came_does_not_count(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 2, 14);
    sim_advance(COMMON_NS_PER_S); // nothing is under way
    struct sim_worker *slow = cluster->workers[1];
    sim_serve_rule(slow->loop, METHOD(CHUNK_COPY), (struct sim_rule){.verdict = SIM_HOLD});
    struct sim_call *truncate = sim_truncate(cluster->client, session, 11);
    sim_advance(100 * COMMON_NS_PER_MS);
    assert_int_equal(sim_serve_held(slow->loop), 1);
    sim_worker_kill(cluster->workers[0]);
    sim_worker_start(cluster->workers[0]);
    sim_advance(500 * COMMON_NS_PER_MS);
    assert_true(sim_wait_active(cluster, 2));
    sim_serve_rule(slow->loop, METHOD(CHUNK_COPY), (struct sim_rule){.verdict = SIM_DO});
    sim_serve_let_go(slow->loop);
    ENDS(COMMON_UNAVAILABLE, truncate);
    READS(cluster, session, 14, 14);
    OK(sim_truncate(cluster->client, session, 11));
    READS(cluster, session, 11, 11);
    sim_cluster_free(cluster);
}

// A holder is restarted, and gets a truncate before the coordinator sees the restart: it has no row of what
// its layout names.
static void a_process_that_is_new_has_no_rows(void **state)
{
    (void)state;
    for (uint64_t after = 0; after < 20; after++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = filled_of(cluster, 2, 40);
        sim_advance(COMMON_NS_PER_S);
        sim_worker_kill(cluster->workers[0]);
        sim_worker_start(cluster->workers[0]);
        sim_advance(after * COMMON_NS_PER_MS);
        struct sim_call *truncate = sim_truncate(cluster->client, session, 16);
        sim_wait(truncate);
        sim_advance(3 * COMMON_NS_PER_S);
        if (truncate->code != COMMON_OK)
            OK(sim_truncate(cluster->client, session, 16));
        READS(cluster, session, 16, 16);
        sim_cluster_free(cluster);
    }
}

int hermetic_truncates(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_truncate_that_comes_late_takes_nothing_away),
        cmocka_unit_test(a_truncate_that_comes_twice_is_done_once),
        cmocka_unit_test(settling_says_what_became_of_it),
        cmocka_unit_test(one_that_was_overtaken_is_refused),
        cmocka_unit_test(a_loss_after_a_truncate_takes_another_one),
        cmocka_unit_test(a_number_that_the_store_refuses_is_not_taken),
        cmocka_unit_test(a_copy_that_went_before_it_was_stored_is_lost),
        cmocka_unit_test(a_copy_that_went_before_the_other_came_does_not_count),
        cmocka_unit_test(a_process_that_is_new_has_no_rows),
        cmocka_unit_test(numbers_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests_name("truncates", tests, NULL, NULL);
}
