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

// Nobody can say whether it has heard of the truncation: it is asked and told all again.
static void a_worker_in_doubt_is_told_all_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    sim_serve_rule(cluster->workers[1]->loop, METHOD(LAYOUT_SET), fail_one);
    OK(sim_truncate(cluster->client, session, 16));
    assert_true(sim_wait_active(cluster, 2));
    SHOWS(worker, "active", "joining");
    assert_int_equal(tokens_held(cluster, session), 16);
    READS(cluster, session, 16, 16);
    OK(sim_append(cluster->client, session, 0, 16, 4, 5));
    READS(cluster, session, 20, 16 + 4 * 5);
    sim_cluster_free(cluster);
}

// What it lost is in the store before it is ACTIVE. A store that refuses makes it try again.
static void a_visit_waits_for_the_store(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_worker *w = holder_of(cluster, session, 0);
    sim_worker_kill(w);
    sim_advance(COMMON_NS_PER_S);
    sim_disk_fail(SIM_DISK_PATH, 1, COMMON_RESOURCE_EXHAUSTED);
    sim_worker_start(w);
    assert_true(sim_wait_active(cluster, 2));
    SHOWS(visit, "storing", "over");
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

static void a_worker_that_refuses_its_layouts_is_lost_and_tries_again(void **state)
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
    SHOWS(visit, "telling", "over");
    SHOWS(worker, "joining", "lost");
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

// It is truncated after the worker was told, and before it is ACTIVE.
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
        cmocka_unit_test(a_worker_in_doubt_is_told_all_again),
        cmocka_unit_test(a_visit_waits_for_the_store),
        cmocka_unit_test(a_worker_that_refuses_its_layouts_is_lost_and_tries_again),
        cmocka_unit_test(a_layout_that_changes_under_a_visit_is_told_again),
        cmocka_unit_test(a_name_is_one_workers),
    };
    return cmocka_run_group_tests_name("workers", tests, NULL, NULL);
}
