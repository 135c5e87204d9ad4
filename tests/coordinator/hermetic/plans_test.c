// SPDX-License-Identifier: Apache-2.0
// Plans: installed, refused, retired with a member or for idleness.
#include "tests/coordinator/hermetic/hermetic.h"
#include "worker/control/plans.h"
#include "worker/core/state.h"

static uint64_t seen(struct sim_cluster *cluster, uint32_t method)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < cluster->options.workers; i++)
        n += cluster->workers[i]->loop ? sim_serve_seen(cluster->workers[i]->loop, method) : 0;
    return n;
}

static void a_plan_is_installed_once_and_shared(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t a = session_of(cluster, 20), b = session_of(cluster, 20);
    SHOWS(plan, "installing", "ready");
    assert_int_equal(seen(cluster, METHOD(PLAN_INSTALL)), 2); // one plan, two members
    assert_int_equal(cluster->coordinator->cluster.n_plans, 1);
    READS(cluster, a, 20, 20);
    READS(cluster, b, 20, 20);
    sim_cluster_free(cluster);
}

static void a_plan_that_a_member_refuses_is_made_anew(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    sim_serve_rule(cluster->workers[1]->loop, METHOD(PLAN_INSTALL),
                   (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_ABORTED});
    uint64_t session = session_of(cluster, 20);
    SHOWS(plan, "installing", "retired");
    SHOWS(item, "queued", "retrying");
    SHOWS(item, "retrying", "new");
    READS(cluster, session, 20, 20);
    assert_int_equal(seen(cluster, METHOD(PLAN_INSTALL)), 4);
    sim_run_until_idle();
    assert_int_equal(cluster->coordinator->cluster.n_plans, 1); // the refused one is gone
    sim_cluster_free(cluster);
}

static void a_plan_is_retired_with_a_member_that_goes_before_it_is_ready(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    rule_all(cluster, METHOD(PLAN_INSTALL), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct sim_call *create = sim_create(cluster->client, (struct sim_shape){.members = 2}, "");
    OK(create);
    struct sim_call *append = sim_append(cluster->client, create->session, 0, 0, 20, 1);
    sim_run_until_idle();
    assert_int_equal(held_all(cluster), 2);
    sim_net_cut(cluster->loop, cluster->workers[1]->loop);
    OK(append); // it waited for the new plan
    SHOWS(plan, "installing", "retired");
    let_go_all(cluster); // late: of a plan that is over
    sim_run_until_idle();
    READS(cluster, create->session, 20, 20);
    sim_cluster_free(cluster);
}

static void a_plan_is_retired_with_a_member_that_goes(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = session_of(cluster, 64);
    struct sim_worker *w = holder_of(cluster, session, 0);
    uint64_t dropped = seen(cluster, METHOD(PLAN_DROP));
    sim_net_part(NULL, w->loop);
    sim_advance(COMMON_NS_PER_S);
    SHOWS(plan, "ready", "retired");
    assert_int_equal(seen(cluster, METHOD(PLAN_DROP)), dropped + 2); // the two that are there
    assert_int_equal(cluster->coordinator->cluster.n_plans, 0);
    sim_net_mend(NULL, w->loop);
    assert_true(sim_wait_active(cluster, 3));
    READS(cluster, session, 64, 64);
    sim_cluster_free(cluster);
}

static void a_plan_that_nobody_uses_is_dropped(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    sim_advance(30 * COMMON_NS_PER_S); // a session has it
    assert_int_equal(cluster->coordinator->cluster.n_plans, 1);
    OK(sim_delete(cluster->client, session));
    sim_advance(5 * COMMON_NS_PER_S);
    assert_int_equal(cluster->coordinator->cluster.n_plans, 1);
    sim_advance(10 * COMMON_NS_PER_S);
    assert_int_equal(cluster->coordinator->cluster.n_plans, 0);
    assert_int_equal(seen(cluster, METHOD(PLAN_DROP)), 2);
    SHOWS(plan, "ready", "retired");
    session = session_of(cluster, 20);
    READS(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

// Their members drop plans of an earlier term at the first word of a later one: so the term takes them along.
static void steps_go_on_when_a_worker_raises_the_term(void **state)
{
    (void)state;
    for (uint32_t members = 1; members <= 2; members++) {
        struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = members + 1});
        struct sim_worker *late = cluster->workers[members];
        struct common_error err;
        assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
        for (uint32_t i = 0; i < members; i++)
            sim_worker_start(cluster->workers[i]);
        assert_true(sim_wait_active(cluster, members));
        struct sim_call *create = sim_create(cluster->client, (struct sim_shape){.members = members}, "");
        OK(create);
        for (uint32_t at = 0; at < 48; at += 16)
            OK(sim_append(cluster->client, create->session, 0, at, 16, 1));
        sim_client_deadline(cluster->client, COMMON_NS_PER_S);
        uint64_t term = cluster->coordinator->core.term;
        sim_worker_start(late);
        late->worker->term = term + 5;  // it has seen another life of the cluster
        for (int i = 0; i < 500; i++) { // a client that never rests: a step is there before a heartbeat
            READS(cluster, create->session, 48, 48);
            sim_advance(COMMON_NS_PER_MS);
        }
        assert_true(cluster->coordinator->core.term > term + 5);
        assert_true(sim_wait_active(cluster, members + 1));
        OK(sim_append(cluster->client, create->session, 0, 48, 4, 2));
        READS(cluster, create->session, 52, 48 + 4 * 2);
        sim_cluster_free(cluster);
    }
}

// A root that has dropped the plan, for any reason: the plan is installed again.
static void a_plan_that_its_root_does_not_know_is_made_anew(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    sim_client_deadline(cluster->client, COMMON_NS_PER_S);
    for (int i = 0; i < 2; i++) {
        worker_plans_close(cluster->workers[i]->worker);
        READS(cluster, session, 40, 40);
    }
    sim_cluster_free(cluster);
}

int hermetic_plans(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_is_installed_once_and_shared),
        cmocka_unit_test(a_plan_that_a_member_refuses_is_made_anew),
        cmocka_unit_test(a_plan_is_retired_with_a_member_that_goes_before_it_is_ready),
        cmocka_unit_test(a_plan_is_retired_with_a_member_that_goes),
        cmocka_unit_test(a_plan_that_nobody_uses_is_dropped),
        cmocka_unit_test(steps_go_on_when_a_worker_raises_the_term),
        cmocka_unit_test(a_plan_that_its_root_does_not_know_is_made_anew),
    };
    return cmocka_run_group_tests_name("plans", tests, NULL, NULL);
}
