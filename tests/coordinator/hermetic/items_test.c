// SPDX-License-Identifier: Apache-2.0
// Items: steps that wait, are placed, queued, flown, tried again, ended.
#include "coordinator/steps/lane.h"
#include "tests/coordinator/hermetic/hermetic.h"
#include "worker/core/state.h"

// The tree's edge breaks under a step: the workers stay ACTIVE, and the step goes again.
static void an_append_outlives_a_broken_edge(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_worker *w = cluster->workers[0], *other = cluster->workers[1];
    uint64_t seen = sim_serve_seen(w->loop, METHOD(STEP)) + sim_serve_seen(other->loop, METHOD(STEP));
    sim_serve_rule(w->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    sim_serve_rule(other->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct sim_call *append = sim_append(cluster->client, session, 0, 40, 1, 2);
    sim_run_until_idle();
    assert_int_equal(sim_serve_held(w->loop) + sim_serve_held(other->loop), 1); // the root's
    struct sim_worker *root = sim_serve_held(w->loop) ? w : other,
                      *child = sim_serve_held(w->loop) ? other : w;
    sim_serve_let_go(root->loop);
    sim_run_until_idle();
    assert_int_equal(sim_serve_held(child->loop), 1);
    sim_net_cut(root->loop, child->loop);
    OK(append);
    assert_int_equal(append->length, 41);
    assert_true(sim_serve_seen(w->loop, METHOD(STEP)) + sim_serve_seen(other->loop, METHOD(STEP)) >=
                seen + 4);
    sim_serve_let_go(child->loop); // late, and of an attempt that is over
    sim_run_until_idle();
    READS(cluster, session, 41, 40 + 2);
    assert_int_equal(tokens_held(cluster, session), 41);
    sim_cluster_free(cluster);
}

// The coordinator's own link to the holder breaks: until it is back no one can say what was stored.
static void an_append_on_a_broken_link_fails_and_may_come_again(void **state)
{
    (void)state;
    for (int did = 0; did < 2; did++) { // whether the holder stores the rows after all
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 20);
        struct sim_worker *holder = holder_of(cluster, session, 20);
        sim_serve_rule(holder->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
        struct sim_call *append = sim_append(cluster->client, session, 0, 20, 1, 2);
        sim_run_until_idle();
        assert_int_equal(sim_serve_held(holder->loop), 1);
        sim_net_cut(NULL, holder->loop);
        if (did)
            sim_serve_let_go(holder->loop);
        ENDS(COMMON_UNAVAILABLE, append);
        assert_string_equal(append->reason, "UNCONFIRMED");
        assert_int_equal(append->n_missing, 1);
        SHOWS(item, "placing", "undoing");
        sim_advance(COMMON_NS_PER_S);
        assert_int_equal(length_of(cluster, session), 20);
        OK(sim_append(cluster->client, session, 0, 20, 1,
                      3));              // other bytes: the first never were acknowledged
        sim_serve_let_go(holder->loop); // overtaken
        sim_run_until_idle();
        OK(sim_append(cluster->client, session, 0, 20, 1, 3)); // the same bytes again change nothing
        ENDS(COMMON_FAILED_PRECONDITION, sim_append(cluster->client, session, 0, 20, 1, 2));
        assert_int_equal(length_of(cluster, session), 21);
        READS(cluster, session, 21, 20 + 3);
        sim_cluster_free(cluster);
    }
}

static void a_step_is_tried_again(void **state)
{
    static const struct {
        const char *what;
        enum common_code code;
        const char *reason;
    } cases[] = {
        {"the worker is leaving", COMMON_UNAVAILABLE, ""},
        {"the plan is old", COMMON_ABORTED, "OLD_EPOCH"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 20);
        uint64_t seen = sim_serve_seen(cluster->workers[0]->loop, METHOD(STEP)) +
                        sim_serve_seen(cluster->workers[1]->loop, METHOD(STEP));
        for (int w = 0; w < 2; w++)
            sim_serve_rule(cluster->workers[w]->loop, METHOD(STEP),
                           (struct sim_rule){.verdict = SIM_FAIL,
                                             .times = 1,
                                             .code = cases[i].code,
                                             .reason = cases[i].reason});
        struct sim_call *append = sim_append(cluster->client, session, 0, 20, 1, 2);
        if (sim_wait(append) != COMMON_OK)
            fail_msg("%s: %s", cases[i].what, append->text);
        assert_int_equal(append->length, 21);
        READS(cluster, session, 21, 20 + 2);
        assert_true(sim_serve_seen(cluster->workers[0]->loop, METHOD(STEP)) +
                        sim_serve_seen(cluster->workers[1]->loop, METHOD(STEP)) >
                    seen + 2);
        sim_cluster_free(cluster);
    }
}

// A newer write is there: to send the older one again would only be refused again.
static void an_overtaken_append_is_not_sent_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = session_of(cluster, 20);
    struct worker *holder = cluster->workers[0]->worker;
    struct worker_session *held = worker_map_get(&holder->sessions, session);
    uint64_t write = held->write, seen = sim_serve_seen(cluster->workers[0]->loop, METHOD(STEP));
    held->write = write + 100; // of another client
    struct sim_call *append = sim_append(cluster->client, session, 0, 20, 1, 2);
    ENDS(COMMON_ABORTED, append);
    assert_string_equal(append->reason, "OLD_WRITE");
    assert_int_equal(sim_serve_seen(cluster->workers[0]->loop, METHOD(STEP)), seen + 1);
    held->write = write;
    OK(sim_append(cluster->client, session, 0, 20, 1, 3));
    READS(cluster, session, 21, 20 + 3);
    sim_cluster_free(cluster);
}

static void a_step_ends_at_its_deadline(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    for (int w = 0; w < 2; w++)
        sim_serve_rule(cluster->workers[w]->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    sim_client_deadline(cluster->client, COMMON_NS_PER_S);
    uint64_t start = sim_clock();
    struct sim_call *read = sim_read(cluster->client, session, 0, 19, 1);
    ENDS(COMMON_DEADLINE_EXCEEDED, read);
    assert_int_equal(read->done_ns, start + COMMON_NS_PER_S);
    for (int w = 0; w < 2; w++)
        sim_serve_rule(cluster->workers[w]->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    OK(sim_read(cluster->client, session, 0, 19, 1));
    sim_cluster_free(cluster);
}

// ---- edges ----------------------------------------------------------------------------------------------

static void an_item_is_placed_queued_flown_and_done(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    SHOWS(item, "new", "placing");
    SHOWS(item, "placing", "new");
    SHOWS(item, "new", "queued");
    SHOWS(item, "queued", "flying");
    SHOWS(item, "flying", "done");
    ENDS(COMMON_OUT_OF_RANGE, sim_read(cluster->client, session, 0, 20, 1));
    SHOWS(item, "new", "done");
    READS(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

static void appends_wait_for_one_another(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    struct sim_call *first = sim_append(cluster->client, session, 0, 20, 1, 2);
    struct sim_call *second = sim_append(cluster->client, session, 0, 21, 1, 3);
    struct sim_call *read = sim_read(cluster->client, session, 0, 21, 1);
    OK(first);
    OK(second);
    OK(read);
    assert_float_equal(read->o, (20 + 2 + 3) / 22.0f, 1e-4f);
    SHOWS(item, "new", "waiting");
    SHOWS(item, "waiting", "new");
    sim_cluster_free(cluster);
}

// As many as may wait do, and the next one is refused at once.
static void one_item_more_than_may_wait_is_refused(void **state)
{
    static struct sim_call *waiting[COORDINATOR_WAITING_MAX];
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = session_of(cluster, 20);
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct sim_call *append = sim_append(cluster->client, session, 0, 20, 1, 2);
    sim_run_until_idle();
    for (size_t i = 0; i < COORDINATOR_WAITING_MAX; i++)
        waiting[i] = sim_read(cluster->client, session, 0, 20, 1); // what is being appended
    struct sim_call *past = sim_read(cluster->client, session, 0, 20, 1);
    ENDS(COMMON_RESOURCE_EXHAUSTED, past);
    assert_string_equal(past->reason, "LIMIT");
    assert_false(append->done);
    let_go_all(cluster);
    OK(append);
    for (size_t i = 0; i < COORDINATOR_WAITING_MAX; i++)
        OK(waiting[i]);
    READS(cluster, session, 21, 20 + 2);
    sim_cluster_free(cluster);
}

static void at_most_twenty_tokens(struct coordinator_options *options)
{
    options->max_session_tokens = 20;
}

// Up to the most tokens of a session, and not a row further.
static void an_append_past_the_most_tokens_is_refused(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .tune = at_most_twenty_tokens});
    sim_cluster_start(cluster);
    uint64_t session = session_of(cluster, 16);
    for (uint32_t rows = 5; rows <= 16; rows++) {
        struct sim_call *straddles = sim_append(cluster->client, session, 0, 16, rows, 2);
        ENDS(COMMON_OUT_OF_RANGE, straddles);
        assert_string_equal(straddles->reason, "LIMIT");
    }
    assert_int_equal(length_of(cluster, session), 16);
    OK(sim_append(cluster->client, session, 0, 16, 4, 3));
    struct sim_call *past = sim_append(cluster->client, session, 0, 20, 1, 2);
    ENDS(COMMON_OUT_OF_RANGE, past);
    assert_string_equal(past->reason, "LIMIT");
    READS(cluster, session, 20, 16 + 4 * 3);
    sim_cluster_free(cluster);
}

// The room for its chunk is refused by the store: the append fails, and the next one works.
static void an_item_whose_place_is_refused_ends(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 0);
    sim_disk_fail(SIM_DISK_PATH, 1, COMMON_RESOURCE_EXHAUSTED);
    ENDS(COMMON_RESOURCE_EXHAUSTED, sim_append(cluster->client, session, 0, 0, 4, 1));
    SHOWS(item, "placing", "done");
    assert_int_equal(length_of(cluster, session), 0);
    OK(sim_append(cluster->client, session, 0, 0, 4, 2));
    READS(cluster, session, 4, 4 * 2);
    sim_cluster_free(cluster);
}

static bool is_retrying(void *arg)
{
    const struct sim_cluster *cluster = arg;
    return !common_list_empty(&cluster->coordinator->steps.retries);
}

static void an_item_ends_at_its_deadline_wherever_it_is(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 0);
    sim_client_deadline(cluster->client, 300 * COMMON_NS_PER_MS);
    rule_all(cluster, METHOD(PLAN_INSTALL), (struct sim_rule){.verdict = SIM_HOLD});
    ENDS(COMMON_DEADLINE_EXCEEDED, sim_append(cluster->client, session, 0, 0, 4, 1)); // the plan is not there
    sim_advance(20 * COMMON_NS_PER_MS); // here it is looked at every 10 ms
    SHOWS(item, "queued", "done");
    rule_all(cluster, METHOD(PLAN_INSTALL), (struct sim_rule){.verdict = SIM_DO});
    let_go_all(cluster);
    OK(sim_append(cluster->client, session, 0, 0, 4, 2)); // the first one was never sent
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_UNAVAILABLE});
    struct sim_call *read = sim_read(cluster->client, session, 0, 3, 1); // goes again and again
    ENDS(COMMON_DEADLINE_EXCEEDED, read);
    sim_advance(20 * COMMON_NS_PER_MS);
    SHOWS(item, "flying", "retrying");
    SHOWS(item, "retrying", "new");
    struct sim_call *cancelled = sim_read(cluster->client, session, 0, 3, 1);
    assert_true(sim_run_while_not(is_retrying, cluster, COMMON_NS_PER_S));
    sim_cancel(cancelled);
    ENDS(COMMON_CANCELLED, cancelled);
    sim_run_until_idle();
    SHOWS(item, "retrying", "done");
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    READS(cluster, session, 4, 4 * 2);
    assert_int_equal(cluster->coordinator->steps.items, 0);
    sim_cluster_free(cluster);
}

// After a restart a step waits for the workers; its deadline may come first.
static void an_item_waits_for_the_workers_after_a_restart(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    sim_coordinator_kill(cluster);
    restart(cluster);
    struct sim_call *read = sim_read(cluster->client, session, 0, 19, 1);
    OK(read);
    SHOWS(item, "new", "retrying");
    assert_float_equal(read->o, 1, 1e-4f);
    sim_cluster_free(cluster);
}

// The answer that deletes the session, and the end of a call that waits for it, in the same turn.
static void a_call_may_end_in_the_turn_in_which_its_session_goes(void **state)
{
    (void)state;
    for (int cancelled = 0; cancelled < 2; cancelled++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 20);
        sim_disk_stall(SIM_DISK_PATH, true);
        struct sim_call *delete = sim_delete(cluster->client, session);
        sim_run_until_idle();
        sim_client_deadline(cluster->client, 100 * COMMON_NS_PER_MS);
        struct sim_call *append = sim_append(cluster->client, session, 0, 20, 1, 2);
        sim_run_until_idle();
        SHOWS(item, "new", "waiting");
        sim_loop_freeze(cluster->loop);
        sim_disk_stall(SIM_DISK_PATH, false);
        sim_advance(COMMON_NS_PER_MS);
        if (cancelled)
            sim_cancel(append);
        sim_advance(COMMON_NS_PER_S);
        sim_loop_thaw(cluster->loop);
        OK(delete);
        enum common_code code = sim_wait(append);
        assert_true(code == COMMON_NOT_FOUND || code == COMMON_DEADLINE_EXCEEDED || code == COMMON_CANCELLED);
        SHOWS(item, "waiting", "done");
        sim_run_until_idle();
        assert_int_equal(cluster->coordinator->steps.items, 0);
        sim_cluster_free(cluster);
    }
}

int hermetic_items(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_append_outlives_a_broken_edge),
        cmocka_unit_test(an_append_on_a_broken_link_fails_and_may_come_again),
        cmocka_unit_test(a_step_is_tried_again),
        cmocka_unit_test(an_overtaken_append_is_not_sent_again),
        cmocka_unit_test(a_step_ends_at_its_deadline),
        cmocka_unit_test(an_item_is_placed_queued_flown_and_done),
        cmocka_unit_test(appends_wait_for_one_another),
        cmocka_unit_test(one_item_more_than_may_wait_is_refused),
        cmocka_unit_test(an_append_past_the_most_tokens_is_refused),
        cmocka_unit_test(an_item_whose_place_is_refused_ends),
        cmocka_unit_test(an_item_ends_at_its_deadline_wherever_it_is),
        cmocka_unit_test(an_item_waits_for_the_workers_after_a_restart),
        cmocka_unit_test(a_call_may_end_in_the_turn_in_which_its_session_goes),
    };
    return cmocka_run_group_tests_name("items", tests, NULL, NULL);
}
