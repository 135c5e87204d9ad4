// SPDX-License-Identifier: Apache-2.0
// Two coordinators on one store: who answers, and who never does.
#include "coordinator/store/lease.h"
#include "tests/coordinator/hermetic/hermetic.h"

#define LAPSE_NS (COORDINATOR_LEASE_NS + COORDINATOR_LEASE_MARGIN_NS)

// One is active and knows that the other one stands by; a session with 20 tokens.
static struct sim_cluster *two(uint64_t *session)
{
    struct common_error err;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .standby = true});
    sim_cluster_start(cluster);
    *session = session_of(cluster, 20);
    assert_int_equal(sim_standby_start(cluster, &err), COMMON_OK);
    assert_true(coordinator_stands_by(sim_standby(cluster)->coordinator));
    sim_advance(COMMON_NS_PER_S);
    assert_false(sim_standby_took_over(cluster));
    return cluster;
}

static struct sim_client *take_over(struct sim_cluster *cluster, uint64_t within_ns)
{
    for (uint64_t until = sim_clock() + within_ns; !sim_standby_took_over(cluster) && sim_clock() < until;)
        sim_advance(COMMON_NS_PER_MS);
    assert_true(sim_standby_took_over(cluster));
    return sim_client_new(sim_standby(cluster)->endpoint, NULL);
}

static void ends(struct sim_cluster *cluster, struct sim_client *client)
{
    sim_client_free(client);
    sim_cluster_free(cluster);
}

static void one_that_stands_by_refuses(void **state)
{
    (void)state;
    uint64_t session;
    struct sim_cluster *cluster = two(&session);
    struct sim_client *client = sim_client_new(SIM_STANDBY, NULL);
    struct sim_call *calls[] = {
        sim_info(client, session),        sim_read(client, session, 0, 19, 1),
        sim_truncate(client, session, 0), sim_find(client, "a"),
        sim_cluster_info(client),         sim_create(client, (struct sim_shape){0}, "b")};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        ENDS(COMMON_UNAVAILABLE, calls[i]);
        assert_string_equal(calls[i]->reason, "STANDBY");
    }
    assert_int_equal(length_of(cluster, session), 20);
    ends(cluster, client);
}

static void one_that_is_killed_is_followed_at_once(void **state)
{
    (void)state;
    uint64_t session;
    struct sim_cluster *cluster = two(&session);
    uint64_t term = cluster->coordinator->core.term;
    sim_coordinator_kill(cluster);
    struct sim_client *client = take_over(cluster, 2 * COORDINATOR_LEASE_WATCH_NS);
    assert_int_equal(sim_standby(cluster)->coordinator->core.term, term + 1);
    struct sim_call *read = sim_read(client, session, 0, 19, 1); // waits for the workers
    OK(read);
    assert_float_equal(read->o, 1, 1e-4f);
    OK(sim_append(client, session, 0, 20, 1, 1));
    ends(cluster, client);
}

// What it knows is old by then: another client has truncated the session.
static void one_that_was_frozen_answers_nothing_more(void **state)
{
    (void)state;
    uint64_t session;
    struct sim_cluster *cluster = two(&session);
    struct sim_coordinator *old = &cluster->coordinators[cluster->active];
    sim_loop_freeze(old->loop);
    struct sim_client *client = take_over(cluster, LAPSE_NS + COORDINATOR_LEASE_RENEW_NS);
    OK(sim_truncate(client, session, 0));
    struct sim_call *info = sim_info(cluster->client, session),
                    *create = sim_create(cluster->client, (struct sim_shape){0}, "late");
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_loop_thaw(old->loop);
    sim_advance(10 * COMMON_NS_PER_MS); // before any timer of its could have looked at the lease
    assert_true(old->over);
    sim_advance(COMMON_NS_PER_S);
    assert_false(info->done);
    assert_false(create->done);
    sim_coordinator_kill(cluster);
    ENDS(COMMON_UNAVAILABLE, info);
    ENDS(COMMON_UNAVAILABLE, create);
    ENDS(COMMON_NOT_FOUND, sim_find(client, "late"));
    ends(cluster, client);
}

// Its write was under way when it was frozen, and ends after the store was taken: nobody is told, for nobody has it.
static void a_write_that_comes_too_late_is_not_told(void **state)
{
    (void)state;
    uint64_t session;
    struct sim_cluster *cluster = two(&session);
    struct sim_coordinator *old = &cluster->coordinators[cluster->active];
    sim_disk_delay(SIM_DISK_PATH, 2 * COMMON_NS_PER_S);
    struct sim_call *create = sim_create(cluster->client, (struct sim_shape){0}, "late");
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_loop_freeze(old->loop);
    struct sim_client *client = take_over(cluster, LAPSE_NS + COORDINATOR_LEASE_RENEW_NS);
    sim_disk_delay(SIM_DISK_PATH, COMMON_NS_PER_MS);
    sim_advance(3 * COMMON_NS_PER_S);
    sim_loop_thaw(old->loop);
    sim_advance(COMMON_NS_PER_S);
    assert_true(old->over);
    assert_false(create->done);
    sim_coordinator_kill(cluster);
    ENDS(COMMON_UNAVAILABLE, create);
    ENDS(COMMON_NOT_FOUND, sim_find(client, "late"));
    ends(cluster, client);
}

static void one_that_comes_back_in_time_goes_on(void **state)
{
    (void)state;
    uint64_t session;
    struct sim_cluster *cluster = two(&session);
    for (int i = 0; i < 5; i++) {
        sim_loop_freeze(cluster->loop);
        sim_advance(COORDINATOR_LEASE_NS - COORDINATOR_LEASE_RENEW_NS);
        struct sim_call *read = sim_read(cluster->client, session, 0, 19, 1);
        sim_loop_thaw(cluster->loop);
        OK(read);
        sim_advance(COMMON_NS_PER_S);
    }
    assert_false(sim_standby_took_over(cluster));
    assert_false(cluster->coordinators[cluster->active].over);
    sim_cluster_free(cluster);
}

// Alone it waits for its disk, however long; watched it gives the store up.
static void a_disk_that_hangs_ends_the_lease(void **state)
{
    (void)state;
    for (int watched = 0; watched < 2; watched++) {
        uint64_t session;
        struct sim_cluster *cluster = two(&session);
        struct sim_coordinator *old = &cluster->coordinators[cluster->active];
        if (!watched) { // since its start
            struct common_error err;
            sim_standby_kill(cluster);
            sim_coordinator_kill(cluster);
            assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
            assert_true(sim_wait_active(cluster, 2));
        }
        sim_disk_stall(SIM_DISK_PATH, true);
        struct sim_call *create = sim_create(cluster->client, (struct sim_shape){0}, "late");
        sim_advance(3 * COMMON_NS_PER_S);
        assert_false(create->done);
        assert_int_equal(old->over, watched);
        sim_disk_stall(SIM_DISK_PATH, false);
        if (!watched) {
            OK(create);
        } else {
            sim_coordinator_kill(cluster);
            ENDS(COMMON_UNAVAILABLE, create);
            assert_true(sim_standby_took_over(cluster));
        }
        sim_cluster_free(cluster);
    }
}

int hermetic_standby(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_stands_by_refuses),
        cmocka_unit_test(one_that_is_killed_is_followed_at_once),
        cmocka_unit_test(one_that_was_frozen_answers_nothing_more),
        cmocka_unit_test(a_write_that_comes_too_late_is_not_told),
        cmocka_unit_test(one_that_comes_back_in_time_goes_on),
        cmocka_unit_test(a_disk_that_hangs_ends_the_lease),
    };
    return cmocka_run_group_tests_name("standby", tests, NULL, NULL);
}
