// SPDX-License-Identifier: Apache-2.0
// One coordinator ends, and the next one is started on its store: at once, and while the old one is still
// stopping.
#include "tests/coordinator/hermetic/hermetic.h"

#define SLOW_NS (3 * COMMON_NS_PER_S)

// A session with 20 tokens.
static struct sim_cluster *one(uint64_t *session)
{
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .second = true});
    sim_cluster_start(cluster);
    *session = session_of(cluster, 20);
    return cluster;
}

static void next(struct sim_cluster *cluster)
{
    struct common_error err;
    assert_int_equal(sim_next_start(cluster, &err), COMMON_OK);
    assert_false(sim_old_runs(cluster));
    sim_client_direct(cluster->client, cluster->coordinators[cluster->active].endpoint);
}

static void the_next_one_is_refused_while_the_old_one_stops(void **state)
{
    (void)state;
    uint64_t session;
    struct sim_cluster *cluster = one(&session);
    sim_coordinator_stop_slowly(cluster, SLOW_NS);
    for (int i = 0; i < 25; i++) {
        struct common_error err = {0};
        assert_int_equal(sim_next_start(cluster, &err), COMMON_FAILED_PRECONDITION);
        assert_non_null(strstr(err.message, "is in use by a coordinator (process "));
        assert_true(sim_old_runs(cluster));
        sim_advance(100 * COMMON_NS_PER_MS);
    }
    sim_advance(COMMON_NS_PER_S);
    assert_false(sim_old_runs(cluster));
    next(cluster);
    READS(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

// What it was given before it stopped is in the store that the next one finds, however late the disk has
// taken it.
static void what_was_submitted_is_there(void **state)
{
    (void)state;
    uint64_t session;
    struct sim_cluster *cluster = one(&session);
    sim_disk_delay(SIM_DISK_PATH, SLOW_NS);
    struct sim_call *cut = sim_truncate(cluster->client, session, 5);
    sim_advance(10 * COMMON_NS_PER_MS);
    assert_true(sim_disk_waiting(SIM_DISK_PATH) > 0);
    sim_coordinator_stop_slowly(cluster, 0);
    for (struct common_error err; sim_next_start(cluster, &err) != COMMON_OK;) {
        assert_true(sim_old_runs(cluster));
        sim_advance(10 * COMMON_NS_PER_MS);
    }
    assert_false(sim_old_runs(cluster));
    sim_disk_delay(SIM_DISK_PATH, COMMON_NS_PER_MS);
    sim_client_direct(cluster->client, cluster->coordinators[cluster->active].endpoint);
    assert_true(sim_run_until(&cut->done, 10 * COMMON_NS_PER_S));
    assert_int_equal(length_of(cluster, session), 5);
    sim_cluster_free(cluster);
}

// The one that stops leaves the log alone: it is the next one's, which is killed in its turn.
static void the_next_one_keeps_what_it_acknowledges(void **state)
{
    (void)state;
    uint64_t session;
    struct sim_cluster *cluster = one(&session);
    for (int i = 0; i < 4; i++) {
        struct common_error err;
        sim_coordinator_stop_slowly(cluster, SLOW_NS);
        while (sim_next_start(cluster, &err) != COMMON_OK)
            sim_advance(100 * COMMON_NS_PER_MS);
        sim_client_direct(cluster->client, cluster->coordinators[cluster->active].endpoint);
        char name[8];
        snprintf(name, sizeof name, "n%d", i);
        OK(sim_create(cluster->client, (struct sim_shape){0}, name));
        sim_advance(SLOW_NS);
        assert_false(sim_old_runs(cluster));
        sim_coordinator_kill(cluster);
        next(cluster);
        OK(sim_find(cluster->client, name));
    }
    sim_cluster_free(cluster);
}

static void a_kill_while_it_stops_gives_the_store_back(void **state)
{
    (void)state;
    uint64_t session;
    struct sim_cluster *cluster = one(&session);
    struct common_error err;
    sim_disk_stall(SIM_DISK_PATH, true);
    struct sim_call *create = sim_create(cluster->client, (struct sim_shape){0}, "late");
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_coordinator_stop_slowly(cluster, 0);
    sim_advance(60 * COMMON_NS_PER_S);
    assert_int_equal(sim_next_start(cluster, &err), COMMON_FAILED_PRECONDITION);
    sim_old_kill(cluster);
    next(cluster);
    assert_true(sim_run_until(&create->done, 60 * COMMON_NS_PER_S));
    READS(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

int hermetic_successors(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_one_is_refused_while_the_old_one_stops),
        cmocka_unit_test(what_was_submitted_is_there),
        cmocka_unit_test(the_next_one_keeps_what_it_acknowledges),
        cmocka_unit_test(a_kill_while_it_stops_gives_the_store_back),
    };
    return cmocka_run_group_tests_name("successors", tests, NULL, NULL);
}
