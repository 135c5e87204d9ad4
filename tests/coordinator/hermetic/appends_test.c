// SPDX-License-Identifier: Apache-2.0
// What becomes of an append that fails. When its error is definite it never comes back, whatever restarts.
// When the error says UNCONFIRMED it is there as a whole or not at all, and the same append again settles
// which.
#include "tests/coordinator/hermetic/hermetic.h"
#include "worker/core/state.h"

static void refused(struct sim_call *append, enum common_code code)
{
    ENDS(code, append);
    if (!sim_append_refused(append))
        fail_msg("not definite: %s (%s)", append->text, append->reason);
}

static void unconfirmed(struct sim_call *append)
{
    assert_true(sim_wait(append) != COMMON_OK);
    if (sim_append_refused(append))
        fail_msg("definite: %s: %s (%s)", common_code_name(append->code), append->text, append->reason);
}

static void kill_and_restart(struct sim_cluster *cluster)
{
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sim_wait_active(cluster, cluster->options.workers));
}

// Nothing of the append at `at` is there, nor comes back; other bytes are accepted, and last.
static void is_not_there(struct sim_cluster *cluster, uint64_t session, uint32_t at, uint32_t rows)
{
    assert_int_equal(length_of(cluster, session), at);
    READS(cluster, session, at, at);
    OK(sim_append(cluster->client, session, 0, at, rows, 7));
    READS(cluster, session, at + rows, at + rows * 7);
    kill_and_restart(cluster);
    assert_int_equal(length_of(cluster, session), at + rows);
    READS(cluster, session, at + rows, at + rows * 7);
    ENDS(COMMON_FAILED_PRECONDITION, sim_append(cluster->client, session, 0, at, rows, 2));
}

// A holder refuses its part for want of memory. What the other one has stored does not come back by a
// restart.
static void what_a_holder_refuses_is_refused_for_good(void **state)
{
    (void)state;
    for (uint32_t way = 0; way < 8; way++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint32_t at = way & 1 ? 20 : 36; // so that the one that refuses has the first rows, or the other one
        uint64_t session = session_of(cluster, at);
        sim_serve_rule(cluster->workers[way >> 1 & 1]->loop, METHOD(STEP),
                       (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_RESOURCE_EXHAUSTED});
        refused(sim_append(cluster->client, session, 0, at, 30, 2), COMMON_RESOURCE_EXHAUSTED);
        SHOWS(item, "flying", "undoing");
        SHOWS(item, "undoing", "done");
        if (way & 4)
            kill_and_restart(cluster);
        is_not_there(cluster, session, at, 30);
        sim_cluster_free(cluster);
    }
}

// The same by the holder itself, which has no memory left for a new chunk's rows.
static void rows_without_memory_are_refused_for_good(void **state)
{
    (void)state;
    uint32_t n = 0;
    for (uint32_t way = 0; way < 8; way++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint32_t at = way & 1 ? 20 : 36;
        uint64_t session = session_of(cluster, at);
        OK(sim_open(cluster->client, session, at, 20)); // its chunks
        struct worker_store *store = cluster->workers[way >> 1 & 1]->worker->store;
        uint64_t left = worker_store_limit(store) - worker_store_used(store);
        assert_true(worker_store_take(store, left));
        struct sim_call *append = sim_append(cluster->client, session, 0, at, 20, 2);
        if (sim_wait(append) == COMMON_OK) { // it is the other one's
            worker_store_give(store, left);
            sim_cluster_free(cluster);
            continue;
        }
        refused(append, COMMON_RESOURCE_EXHAUSTED);
        n++;
        worker_store_give(store, left);
        if (way & 4)
            kill_and_restart(cluster);
        sim_advance(COMMON_NS_PER_S); // it may not have had room for its layouts either
        assert_true(sim_wait_active(cluster, 2));
        is_not_there(cluster, session, at, 20);
        sim_cluster_free(cluster);
    }
    assert_true(n > 0);
}

// The holder is stopped, the append fails, the coordinator is killed, the holder goes on: then it stores the
// rows.
static void a_stopped_holder_leaves_the_outcome_open(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 20; rows += 19) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 20);
        struct sim_worker *holder = holder_of(cluster, session, 20);
        sim_loop_freeze(holder->loop);
        unconfirmed(sim_append(cluster->client, session, 0, 20, rows, 2));
        assert_int_equal(length_of(cluster, session), 20);
        sim_coordinator_kill(cluster);
        sim_loop_thaw(holder->loop);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 2));
        uint64_t length = length_of(cluster, session);
        if (length != 20)
            assert_int_equal(length, 20 + rows);
        OK(sim_append(cluster->client, session, 0, 20, rows, 2)); // settles it
        READS(cluster, session, 20 + rows, 20 + rows * 2);
        kill_and_restart(cluster);
        assert_int_equal(length_of(cluster, session), 20 + rows);
        sim_cluster_free(cluster);
    }
}

// The same without the kill: the returning holder gets its layout, and the rows do not come back.
static void a_holder_that_returns_is_told_what_has_failed(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 20; rows += 19) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 20);
        struct sim_worker *holder = holder_of(cluster, session, 20);
        sim_loop_freeze(holder->loop);
        unconfirmed(sim_append(cluster->client, session, 0, 20, rows, 2));
        sim_loop_thaw(holder->loop);
        assert_true(sim_wait_active(cluster, 2));
        kill_and_restart(cluster);
        is_not_there(cluster, session, 20, rows);
        sim_cluster_free(cluster);
    }
}

// Of two holders one has stored its part, and the other's answer never arrives.
static void a_part_of_an_append_is_not_there(void **state)
{
    (void)state;
    for (uint32_t way = 0; way < 4; way++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint32_t at = way & 1 ? 20 : 36;
        uint64_t session = session_of(cluster, at);
        const struct common_loop *other = cluster->workers[way >> 1]->loop;
        sim_serve_rule(other, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
        struct sim_call *append = sim_append(cluster->client, session, 0, at, 30, 2);
        sim_advance(100 * COMMON_NS_PER_MS);
        sim_coordinator_kill(cluster);
        unconfirmed(append);
        sim_serve_fail_held(other, COMMON_UNAVAILABLE, "gone");
        sim_serve_rule(other, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
        restart(cluster);
        assert_true(sim_wait_active(cluster, 2));
        kill_and_restart(cluster); // it stays so
        is_not_there(cluster, session, at, 30);
        sim_cluster_free(cluster);
    }
}

// All holders have stored it, and no worker has received the acknowledgement.
static void an_acknowledged_append_survives_though_no_step_followed(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = session_of(cluster, 20);
    OK(sim_append(cluster->client, session, 0, 20, 60, 2));
    for (int i = 0; i < 3; i++) {
        kill_and_restart(cluster);
        assert_int_equal(length_of(cluster, session), 80);
    }
    READS(cluster, session, 80, 20 + 60 * 2);
    // One holder is away when the next life begins: what the others have does not count as a whole without
    // it.
    struct sim_worker *last = holder_of(cluster, session, 79);
    OK(sim_append(cluster->client, session, 0, 80, 40, 3));
    sim_coordinator_kill(cluster);
    sim_net_part(NULL, last->loop);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    sim_advance(6 * COMMON_NS_PER_S);
    ENDS(COMMON_UNAVAILABLE, sim_read(cluster->client, session, 0, 119, 1));
    ENDS(COMMON_UNAVAILABLE, sim_append(cluster->client, session, 0, 80, 1, 4));
    sim_net_mend(NULL, last->loop);
    assert_true(sim_wait_active(cluster, 3));
    assert_int_equal(length_of(cluster, session), 120);
    READS(cluster, session, 120, 20 + 60 * 2 + 40 * 3);
    sim_cluster_free(cluster);
}

// After a restart one holder has reported its part, and the other one has not. The first is lost, and its
// chunk must be placed on another worker: the rows that it has reported may still count.
static void a_chunk_that_may_have_rows_is_not_placed_anew(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = session_of(cluster, 0);
    OK(sim_append(cluster->client, session, 0, 0, 20, 1));
    struct sim_worker *first = holder_of(cluster, session, 0), *second = holder_of(cluster, session, 16);
    assert_ptr_not_equal(first, second);
    sim_coordinator_kill(cluster);
    sim_net_part(NULL, first->loop);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    sim_advance(6 * COMMON_NS_PER_S);
    sim_net_part(NULL, second->loop);
    sim_advance(2 * COMMON_NS_PER_S);
    ENDS(COMMON_UNAVAILABLE, sim_open(cluster->client, session, 20, 4));
    sim_net_mend(NULL, first->loop);
    sim_net_mend(NULL, second->loop);
    assert_true(sim_wait_active(cluster, 3));
    assert_int_equal(length_of(cluster, session), 20);
    READS(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

// An append over two holders, after a restart with only the first of them: whether its rows count the other
// one says. Until then they are neither there nor past the end (seed 179538775600283 of chaos_test).
static void what_another_holder_decides_is_not_past_the_end(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = session_of(cluster, 0);
    OK(sim_append(cluster->client, session, 0, 0, 20, 1));
    struct sim_worker *second = holder_of(cluster, session, 16);
    assert_ptr_not_equal(holder_of(cluster, session, 0), second);
    sim_coordinator_kill(cluster);
    sim_net_part(NULL, second->loop);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    sim_advance(6 * COMMON_NS_PER_S);
    struct sim_call *read = sim_read(cluster->client, session, 0, 10, 1); // of the first holder's
    ENDS(COMMON_UNAVAILABLE, read);
    assert_string_equal(read->reason, "MISSING_RANGE");
    assert_int_equal(read->first_missing, 16);
    ENDS(COMMON_UNAVAILABLE, sim_fork(cluster->client, session, 10, "")); // seed 179539240106240
    ENDS(COMMON_UNAVAILABLE, sim_truncate(cluster->client, session, 10)); // seed 5000029097
    sim_net_mend(NULL, second->loop);
    assert_true(sim_wait_active(cluster, 3));
    READS(cluster, session, 11, 11);
    READS(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

// The first rows are acknowledged, and appended once more while another holder decides about the rest: that
// is no reason for anybody to throw the rest away (seed 179539240107035 of chaos_test).
static void rows_that_may_count_outlive_an_append_of_older_ones(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = session_of(cluster, 0);
    OK(sim_append(cluster->client, session, 0, 0, 5, 1));
    OK(sim_append(cluster->client, session, 0, 5, 15, 1));
    struct sim_worker *second = holder_of(cluster, session, 16);
    assert_ptr_not_equal(holder_of(cluster, session, 0), second);
    sim_coordinator_kill(cluster);
    sim_net_part(NULL, second->loop);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    sim_advance(6 * COMMON_NS_PER_S);
    assert_int_equal(length_of(cluster, session), 5);
    ENDS(COMMON_UNAVAILABLE, sim_append(cluster->client, session, 0, 0, 3, 1));
    sim_net_mend(NULL, second->loop);
    assert_true(sim_wait_active(cluster, 3));
    READS(cluster, session, 20, 20);
    OK(sim_append(cluster->client, session, 0, 0, 3, 1));
    READS(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

// A truncate that did not reach a holder, and rows below it whose acknowledgement did not reach it either.
static void a_truncate_keeps_what_was_acknowledged_before_it(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    OK(sim_append(cluster->client, session, 0, 20, 60, 2));
    rule_all(cluster, METHOD(LAYOUT_SET), (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_UNAVAILABLE});
    OK(sim_truncate(cluster->client, session, 64));
    sim_coordinator_kill(cluster);
    rule_all(cluster, METHOD(LAYOUT_SET), (struct sim_rule){.verdict = SIM_DO});
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    assert_int_equal(length_of(cluster, session), 64);
    READS(cluster, session, 64, 20 + 44 * 2);
    OK(sim_append(cluster->client, session, 0, 64, 4, 3));
    kill_and_restart(cluster);
    assert_int_equal(length_of(cluster, session), 68);
    READS(cluster, session, 68, 20 + 44 * 2 + 4 * 3);
    sim_cluster_free(cluster);
}

// An append of several bands fails, of which some are stored, then one with other bytes comes in its place.
static void other_bytes_replace_a_failed_append_of_many_bands(void **state)
{
    (void)state;
    for (int told = 1; told >= 0; told--) { // whether the holder hears that the first one has failed
        struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 1});
        sim_client_dim(cluster->client, 128);
        sim_cluster_start(cluster);
        uint64_t session = session_of(cluster, 20);
        struct sim_worker *holder = cluster->workers[0];
        uint64_t seen = sim_serve_seen(holder->loop, METHOD(STEP));
        OK(sim_open(cluster->client, session, 20, 900)); // its chunks
        sim_serve_rule(holder->loop, METHOD(STEP),
                       (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_RESOURCE_EXHAUSTED});
        if (!told)
            sim_serve_rule(
                holder->loop, METHOD(ROWS_ABORT),
                (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_RESOURCE_EXHAUSTED});
        struct sim_call *append = sim_append(cluster->client, session, 0, 20, 900, 2);
        ENDS(COMMON_RESOURCE_EXHAUSTED, append);
        assert_int_equal(sim_append_refused(append), told);
        assert_true(sim_serve_seen(holder->loop, METHOD(STEP)) >= seen + 4); // bands
        assert_true(sim_wait_active(cluster, 1));
        is_not_there(cluster, session, 20, 900);
        sim_cluster_free(cluster);
    }
}

// ---- edges ----------------------------------------------------------------------------------------------

static bool is_retrying(void *arg)
{
    const struct sim_cluster *cluster = arg;
    return !common_list_empty(&cluster->coordinator->steps.retries);
}

static struct sim_call *append_that_retries(struct sim_cluster *cluster, uint64_t session,
                                            uint64_t incarnation)
{
    static const float twos[20] = {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2};
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_UNAVAILABLE});
    struct sim_call *append = sim_append_rows(cluster->client, session, incarnation, 0, 20, 20, twos);
    assert_true(sim_run_while_not(is_retrying, cluster, COMMON_NS_PER_S));
    return append;
}

static void given_up(struct sim_cluster *cluster, struct sim_call *append)
{
    sim_cancel(append);
    ENDS(COMMON_CANCELLED, append);
    sim_run_until_idle();
    SHOWS(item, "undoing", "done");
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    assert_int_equal(cluster->coordinator->steps.items, 0);
}

static void an_append_that_goes_again_is_undone(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    given_up(cluster, append_that_retries(cluster, session, 0));
    SHOWS(item, "retrying", "undoing");
    is_not_there(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

static void an_append_whose_session_was_truncated_is_undone(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    struct sim_call *append = append_that_retries(cluster, session, 1);
    OK(sim_truncate(cluster->client, session, 10));
    refused(append, COMMON_ABORTED);
    assert_string_equal(append->reason, "OLD_INCARNATION");
    SHOWS(item, "new", "undoing");
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    OK(sim_append(cluster->client, session, 0, 10, 10, 1));
    is_not_there(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

static void an_append_that_waits_again_is_undone(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 30);
    struct sim_call *append = append_that_retries(cluster, session, 0);
    sim_disk_stall(SIM_DISK_PATH, true);
    struct sim_call *truncate = sim_truncate(cluster->client, session, 20);
    sim_advance(100 * COMMON_NS_PER_MS);
    given_up(cluster, append);
    SHOWS(item, "waiting", "undoing");
    sim_disk_stall(SIM_DISK_PATH, false);
    OK(truncate);
    is_not_there(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

static void an_append_whose_plan_is_gone_is_undone(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    rule_all(cluster, METHOD(PLAN_INSTALL), (struct sim_rule){.verdict = SIM_HOLD});
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_NOT_FOUND});
    struct sim_call *append = sim_append(cluster->client, session, 0, 20, 20, 2);
    sim_advance(100 * COMMON_NS_PER_MS);
    rule_all(cluster, METHOD(PLAN_INSTALL), (struct sim_rule){.verdict = SIM_DO});
    given_up(cluster, append);
    SHOWS(item, "queued", "undoing");
    let_go_all(cluster);
    is_not_there(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

int hermetic_appends(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_holder_refuses_is_refused_for_good),
        cmocka_unit_test(rows_without_memory_are_refused_for_good),
        cmocka_unit_test(a_stopped_holder_leaves_the_outcome_open),
        cmocka_unit_test(a_holder_that_returns_is_told_what_has_failed),
        cmocka_unit_test(a_part_of_an_append_is_not_there),
        cmocka_unit_test(an_acknowledged_append_survives_though_no_step_followed),
        cmocka_unit_test(a_chunk_that_may_have_rows_is_not_placed_anew),
        cmocka_unit_test(what_another_holder_decides_is_not_past_the_end),
        cmocka_unit_test(rows_that_may_count_outlive_an_append_of_older_ones),
        cmocka_unit_test(a_truncate_keeps_what_was_acknowledged_before_it),
        cmocka_unit_test(other_bytes_replace_a_failed_append_of_many_bands),
        cmocka_unit_test(an_append_that_goes_again_is_undone),
        cmocka_unit_test(an_append_whose_session_was_truncated_is_undone),
        cmocka_unit_test(an_append_that_waits_again_is_undone),
        cmocka_unit_test(an_append_whose_plan_is_gone_is_undone),
    };
    return cmocka_run_group_tests_name("appends", tests, NULL, NULL);
}
