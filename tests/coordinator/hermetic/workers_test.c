// SPDX-License-Identifier: Apache-2.0
// Workers: registering, links, beats, visits; and what clients see of a worker that goes.
#include "tests/coordinator/hermetic/hermetic.h"

static void an_append_fails_while_its_holder_is_away(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    struct sim_worker *holder = holder_of(cluster, session, 20);
    sim_net_part(NULL, holder->loop);
    sim_advance(COMMON_NS_PER_S); // the grace is over
    struct sim_call *append = sim_append(cluster->client, session, 0, 20, 1, 2);
    ENDS(COMMON_UNAVAILABLE, append);
    assert_string_equal(append->reason, "MISSING_RANGE");
    ENDS(COMMON_UNAVAILABLE, sim_read(cluster->client, session, 0, 19, 1));
    assert_int_equal(length_of(cluster, session), 20);
    sim_net_mend(NULL, holder->loop);
    assert_true(sim_wait_active(cluster, 2));
    OK(sim_append(cluster->client, session, 0, 20, 1, 3)); // other bytes: the first ones never were
    READS(cluster, session, 21, 20 + 3);
    sim_cluster_free(cluster);
}

static void what_a_dead_worker_held_is_lost_and_said_so(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 64);
    sim_worker_kill(cluster->workers[1]);
    sim_advance(COMMON_NS_PER_S);
    struct sim_call *read = sim_read(cluster->client, session, 0, 63, 1);
    ENDS(COMMON_UNAVAILABLE, read);
    sim_worker_start(cluster->workers[1]);
    assert_true(sim_wait_active(cluster, 2));
    read = sim_read(cluster->client, session, 0, 63, 1);
    ENDS(COMMON_DATA_LOSS, read);
    assert_true(read->count_missing > 0);
    sim_cluster_free(cluster);
}

// ---- edges ----------------------------------------------------------------------------------------------

static const struct sim_rule hold = {.verdict = SIM_HOLD}, hold_one = {.verdict = SIM_HOLD, .times = 1},
                             pass = {.verdict = SIM_DO},
                             fail_one = {.verdict = SIM_FAIL, .times = 1, .code = COMMON_INTERNAL};

// A coordinator and one worker, whose requests of this method wait once it has begun to register.
static struct sim_cluster *joining_with(uint32_t method)
{
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 1});
    struct common_error err;
    assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
    sim_worker_start(cluster->workers[0]);
    sim_serve_rule(cluster->workers[0]->loop, method, hold_one);
    for (int i = 0; i < 500 && !sim_serve_held(cluster->workers[0]->loop); i++)
        sim_advance(10 * COMMON_NS_PER_MS);
    assert_int_equal(sim_serve_held(cluster->workers[0]->loop), 1);
    state_is(cluster, cluster->workers[0], "joining");
    return cluster;
}

static void a_worker_is_asked_and_told_before_it_is_active(void **state)
{
    (void)state;
    struct sim_cluster *cluster = joining_with(METHOD(INVENTORY));
    struct sim_worker *w = cluster->workers[0];
    SHOWS(worker, "absent", "joining");
    struct sim_call *append = sim_create(cluster->client, (struct sim_shape){0}, "");
    OK(append);
    ENDS(COMMON_UNAVAILABLE, sim_append(cluster->client, append->session, 0, 0, 1, 1)); // no worker yet
    sim_serve_let_go(w->loop);
    sim_run_until_idle();
    state_is(cluster, w, "active");
    SHOWS(worker, "joining", "active");
    SHOWS(visit, "asking", "storing"); // a process that the store does not know
    SHOWS(visit, "storing", "telling");
    SHOWS(visit, "telling", "settling");
    SHOWS(visit, "settling", "over");
    OK(sim_append(cluster->client, append->session, 0, 0, 1, 1));
    sim_cluster_free(cluster);
}

static void a_joining_worker_whose_link_breaks_is_lost_and_may_come_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = joining_with(METHOD(INVENTORY));
    struct sim_worker *w = cluster->workers[0];
    sim_net_part(NULL, w->loop);
    sim_advance(COMMON_NS_PER_S);
    state_is(cluster, w, "lost");
    SHOWS(worker, "joining", "lost");
    SHOWS(visit, "asking", "over");
    sim_net_mend(NULL, w->loop);
    assert_true(sim_wait_active(cluster, 1));
    SHOWS(worker, "lost", "joining");
    sim_cluster_free(cluster);
}

static void a_link_that_breaks_and_is_back_costs_nothing(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_worker *w = holder_of(cluster, session, 0);
    sim_net_part(cluster->loop, w->loop);
    sim_advance(10 * COMMON_NS_PER_MS);
    state_is(cluster, w, "suspect");
    SHOWS(worker, "active", "suspect");
    struct sim_call *read = sim_read(cluster->client, session, 0, 39, 1);
    ENDS(COMMON_UNAVAILABLE, read);
    assert_string_equal(read->reason, "MISSING_RANGE");
    assert_int_equal(read->first_missing, 0);
    sim_net_mend(cluster->loop, w->loop);
    assert_true(sim_wait_active(cluster, 2));
    SHOWS(worker, "suspect", "joining");
    SHOWS(visit, "asking", "telling"); // no news for the store
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

static void a_link_that_stays_broken_is_a_worker_that_is_lost(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_worker *w = holder_of(cluster, session, 0);
    sim_net_part(cluster->loop, w->loop);
    sim_advance(COMMON_NS_PER_S);
    state_is(cluster, w, "lost");
    SHOWS(worker, "suspect", "lost");
    sim_net_mend(cluster->loop, w->loop);
    assert_true(sim_wait_active(cluster, 2));
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

static void a_worker_that_is_silent_is_lost(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_worker *w = holder_of(cluster, session, 0);
    sim_net_hold(w->loop, cluster->loop);
    sim_advance(300 * COMMON_NS_PER_MS); // two beats and a half: not yet
    state_is(cluster, w, "active");
    sim_advance(200 * COMMON_NS_PER_MS);
    state_is(cluster, w, "lost");
    SHOWS(worker, "active", "lost");
    sim_net_heal();
    assert_true(sim_wait_active(cluster, 2));
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

// No one can say whether it has received the truncation: it is asked, and gets again what it holds of this
// session.
static void a_worker_in_doubt_of_a_session_is_told_it_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    sim_serve_rule(cluster->workers[1]->loop, METHOD(LAYOUT_SET), fail_one);
    OK(sim_truncate(cluster->client, session, 16));
    state_is(cluster, cluster->workers[1], "active");
    OK(sim_read(cluster->client, session, 0, 15, 1)); // once it is repaired
    SHOWS(repair, "queued", "running");
    SHOWS(repair, "running", "over");
    assert_int_equal(tokens_held(cluster, session), 16);
    READS(cluster, session, 16, 16);
    OK(sim_append(cluster->client, session, 0, 16, 4, 5));
    READS(cluster, session, 20, 16 + 4 * 5);
    sim_cluster_free(cluster);
}

// What it lost is in the store before it is ACTIVE. The worker goes away while the store writes: it tries
// again.
static void a_visit_waits_for_the_store(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_worker *w = holder_of(cluster, session, 0);
    sim_worker_kill(w);
    sim_advance(COMMON_NS_PER_S);
    sim_disk_stall(SIM_DISK_PATH, true);
    sim_worker_start(w);
    sim_advance(COMMON_NS_PER_S);
    state_is(cluster, w, "joining");
    sim_worker_kill(w);
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_disk_stall(SIM_DISK_PATH, false);
    sim_advance(10 * COMMON_NS_PER_MS);
    SHOWS(visit, "storing", "over");
    sim_worker_start(w);
    assert_true(sim_wait_active(cluster, 2));
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    struct sim_call *read = sim_read(cluster->client, session, 0, 39, 1);
    ENDS(COMMON_DATA_LOSS, read);
    assert_int_equal(read->first_missing, 0);
    OK(sim_truncate(cluster->client, session, 0));
    OK(sim_append(cluster->client, session, 0, 0, 4, 3));
    READS(cluster, session, 4, 4 * 3);
    sim_cluster_free(cluster);
}

// The disk is full: what is there can be read and appended to, workers come back, and what needs the store is
// refused for that reason. What a worker lost meanwhile is known, and stays so over a restart, whether the
// news have come into the store by then or not.
static void a_full_disk_takes_no_worker_away(void **state)
{
    (void)state;
    for (int written = 0; written < 2; written++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 40), other = session_of(cluster, 0);
        struct sim_worker *w = holder_of(cluster, session, 0);
        struct sim_call *read = sim_read(cluster->client, session, 0, 7, 1);
        OK(read);
        sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_RESOURCE_EXHAUSTED);
        struct sim_call *open = sim_open(cluster->client, other, 0, 16);
        ENDS(COMMON_RESOURCE_EXHAUSTED, open);
        assert_non_null(strstr(open->text, "store"));
        ENDS(COMMON_RESOURCE_EXHAUSTED, sim_append(cluster->client, other, 0, 0, 1, 1));
        assert_true(sim_wait_active(cluster, 2));
        READS(cluster, session, 40, 40);
        OK(sim_append(cluster->client, session, 0, 40, 1, 1));
        sim_worker_kill(w);
        sim_advance(COMMON_NS_PER_S);
        sim_worker_start(w);
        assert_true(sim_wait_active(cluster, 2));
        ENDS(COMMON_DATA_LOSS, sim_read(cluster->client, session, 0, 40, 1));
        if (written) {
            sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
            sim_advance(5 * COMMON_NS_PER_S);
            OK(sim_open(cluster->client, other, 0, 16));
        }
        sim_coordinator_kill(cluster);
        sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 2));
        read = sim_read(cluster->client, session, 0, 40, 1);
        ENDS(COMMON_DATA_LOSS, read);
        assert_int_equal(read->first_missing, 0);
        OK(sim_truncate(cluster->client, session, 0));
        OK(sim_append(cluster->client, session, 0, 0, 4, 3));
        READS(cluster, session, 4, 4 * 3);
        sim_cluster_free(cluster);
    }
}

static void a_worker_that_refuses_one_layout_is_active_for_the_others(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_worker *w = holder_of(cluster, session, 0);
    sim_net_part(cluster->loop, w->loop);
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_serve_rule(w->loop, METHOD(LAYOUT_SET), fail_one);
    sim_net_mend(cluster->loop, w->loop);
    assert_true(sim_wait_active(cluster, 2));
    assert_int_equal(sim_edge_taken(&coordinator_worker_machine, "joining", "lost"), 0);
    READS(cluster, session, 40, 40); // waits for the repair
    assert_true(sim_edge_taken(&coordinator_repair_machine, "running", "over") > 0);
    sim_cluster_free(cluster);
}

static void a_link_that_breaks_while_a_worker_is_told_begins_anew(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_worker *w = holder_of(cluster, session, 0);
    sim_net_part(cluster->loop, w->loop);
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_serve_rule(w->loop, METHOD(LAYOUT_SET), hold_one);
    sim_net_mend(cluster->loop, w->loop);
    for (int i = 0; i < 500 && !sim_serve_held(w->loop); i++)
        sim_advance(COMMON_NS_PER_MS);
    state_is(cluster, w, "joining");
    sim_net_part(cluster->loop, w->loop);
    sim_advance(COMMON_NS_PER_S);
    SHOWS(visit, "telling", "over");
    SHOWS(worker, "joining", "lost");
    sim_serve_let_go(w->loop);
    sim_net_mend(cluster->loop, w->loop);
    assert_true(sim_wait_active(cluster, 2));
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

// It is truncated after the worker got it, and before it is ACTIVE.
static void a_layout_that_changes_under_a_visit_is_told_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 64);
    struct sim_worker *w = holder_of(cluster, session, 63);
    sim_net_part(cluster->loop, w->loop);
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_serve_rule(w->loop, METHOD(ROWS_ABORT), hold);
    sim_net_mend(cluster->loop, w->loop);
    sim_advance(50 * COMMON_NS_PER_MS);
    assert_int_equal(sim_serve_held(w->loop), 1);
    state_is(cluster, w, "joining");
    OK(sim_truncate(cluster->client, session, 16));
    sim_serve_rule(w->loop, METHOD(ROWS_ABORT), pass);
    sim_serve_let_go(w->loop);
    assert_true(sim_wait_active(cluster, 2));
    SHOWS(visit, "settling", "telling");
    assert_int_equal(tokens_held(cluster, session), 16);
    READS(cluster, session, 16, 16);
    sim_cluster_free(cluster);
}

// A second process of its name while it is there: refused, and nothing happens to the first.
static void a_name_is_one_workers(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = session_of(cluster, 20);
    struct sim_worker *other = sim_worker_new(&(struct sim_worker_options){.name = "w0",
                                                                           .host = "h9",
                                                                           .coordinator = SIM_COORDINATOR,
                                                                           .port = 7900,
                                                                           .secret = &cluster->secret,
                                                                           .memory_bytes = 64 << 20});
    sim_worker_start(other);
    sim_advance(5 * COMMON_NS_PER_S);
    state_is(cluster, cluster->workers[0], "active");
    READS(cluster, session, 20, 20);
    sim_worker_kill(cluster->workers[0]);
    sim_advance(5 * COMMON_NS_PER_S); // now it may have the name
    state_is(cluster, other, "active");
    ENDS(COMMON_DATA_LOSS, sim_read(cluster->client, session, 0, 19, 1));
    sim_worker_free(other);
    sim_cluster_free(cluster);
}

static void little_memory(struct coordinator_options *options)
{
    options->max_bytes = 64 << 10;
    options->max_client_bytes = 64 << 20;
}

static bool is_full(void *arg)
{
    const struct sim_cluster *cluster = arg;
    struct proto_server_stats stats;
    proto_server_stats(cluster->coordinator->server, &stats);
    return stats.bytes >= 64 << 10;
}

// What clients have under way fills the server: it stops reading of clients, not of workers.
static void requests_of_clients_do_not_silence_workers(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .tune = little_memory});
    sim_cluster_start(cluster);
    struct sim_call *create = sim_create(cluster->client, (struct sim_shape){.members = 2}, ""), *last = NULL;
    OK(create);
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    for (uint32_t at = 0; at < 5; at++) // 64 bytes a row
        last = sim_append(cluster->client, create->session, 0, at * 256, 256, 1);
    assert_true(sim_run_while_not(is_full, cluster, COMMON_NS_PER_S));
    sim_advance(2 * COMMON_NS_PER_S); // 20 heartbeats
    assert_int_equal(sim_edge_taken(&coordinator_worker_machine, "active", "lost"), 0);
    assert_true(is_full(cluster));
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    let_go_all(cluster);
    OK(last);
    READS(cluster, create->session, 5 * 256, 5 * 256);
    sim_cluster_free(cluster);
}

// A restarted process answers at the same endpoint. Until it has registered it is not let in: it may be of a
// release that is refused.
static void a_process_that_has_not_registered_is_not_let_in(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_worker *w = cluster->workers[0];
    sim_serve_rule(cluster->loop, METHOD(REGISTER),
                   (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_FAILED_PRECONDITION});
    sim_worker_kill(w);
    sim_worker_start(w);
    for (int i = 0; i < 100; i++) {
        sim_advance(10 * COMMON_NS_PER_MS);
        assert_int_equal(sim_worker_tokens(w, session, 0), 0);
        assert_false(sim_worker_holds(w, session, 0));
        struct sim_call *info = sim_cluster_info(cluster->client);
        OK(info);
        assert_true(info->n_active == 1 || !strcmp(info->workers[0], "suspect") ||
                    !strcmp(info->workers[0], "joining"));
    }
    state_is(cluster, w, "lost");
    sim_serve_rule(cluster->loop, METHOD(REGISTER), (struct sim_rule){.verdict = SIM_DO});
    assert_true(sim_wait_active(cluster, 2));
    sim_cluster_free(cluster);
}

// Its host has forgotten its link to the coordinator, which has it still: for a while it has two. It is the
// same worker, and keeps what it holds.
static void a_worker_that_connects_twice_is_one(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = session_of(cluster, 20);
    struct sim_worker *w = cluster->workers[0];
    OK(sim_append(cluster->client, session, 0, 20, 1, 22));
    uint64_t registers = sim_serve_seen(cluster->loop, METHOD(REGISTER));
    uint32_t links = sim_net_links();
    sim_net_half_open(w->loop, cluster->loop);
    sim_advance(20 * COMMON_NS_PER_MS);
    assert_int_equal(sim_serve_seen(cluster->loop, METHOD(REGISTER)), registers + 1);
    assert_true(sim_wait_active(cluster, 1));
    READS(cluster, session, 21, 20 * 1 + 22);
    assert_true(sim_net_links() > links); // the old one is there still
    sim_net_heal();
    sim_advance(COMMON_NS_PER_S);
    assert_int_equal(sim_net_links(), links);
    state_is(cluster, w, "active");
    READS(cluster, session, 21, 20 * 1 + 22);
    sim_cluster_free(cluster);
}

int hermetic_workers(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_append_fails_while_its_holder_is_away),
        cmocka_unit_test(what_a_dead_worker_held_is_lost_and_said_so),
        cmocka_unit_test(a_worker_is_asked_and_told_before_it_is_active),
        cmocka_unit_test(a_joining_worker_whose_link_breaks_is_lost_and_may_come_again),
        cmocka_unit_test(a_link_that_breaks_and_is_back_costs_nothing),
        cmocka_unit_test(a_link_that_stays_broken_is_a_worker_that_is_lost),
        cmocka_unit_test(a_worker_that_is_silent_is_lost),
        cmocka_unit_test(a_worker_in_doubt_of_a_session_is_told_it_again),
        cmocka_unit_test(a_visit_waits_for_the_store),
        cmocka_unit_test(a_full_disk_takes_no_worker_away),
        cmocka_unit_test(a_worker_that_refuses_one_layout_is_active_for_the_others),
        cmocka_unit_test(a_link_that_breaks_while_a_worker_is_told_begins_anew),
        cmocka_unit_test(a_layout_that_changes_under_a_visit_is_told_again),
        cmocka_unit_test(a_name_is_one_workers),
        cmocka_unit_test(requests_of_clients_do_not_silence_workers),
        cmocka_unit_test(a_process_that_has_not_registered_is_not_let_in),
        cmocka_unit_test(a_worker_that_connects_twice_is_one),
    };
    return cmocka_run_group_tests_name("workers", tests, NULL, NULL);
}
