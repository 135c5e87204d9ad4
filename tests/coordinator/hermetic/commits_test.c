// SPDX-License-Identifier: Apache-2.0
// Attaches: open, put, commit in two phases.
#include "tests/coordinator/hermetic/hermetic.h"

static void rows_are_attached_and_committed(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 0);
    struct sim_call *opened = sim_open(cluster->client, session, 0, 40);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 0, 30, 6));
    struct sim_call *commit = sim_commit(cluster->client, session, 0, 0, 40);
    ENDS(COMMON_FAILED_PRECONDITION, commit);
    assert_string_equal(commit->reason, "HOLE");
    assert_int_equal(commit->first_missing, 30);
    assert_int_equal(commit->count_missing, 10);
    OK(sim_put(cluster->client, opened, 0, 30, 10, 2));
    commit = sim_commit(cluster->client, session, 0, 0, 40);
    OK(commit);
    assert_int_equal(commit->length, 40);
    READS(cluster, session, 40, 30 * 6 + 10 * 2);
    OK(sim_append(cluster->client, session, 0, 40, 1, 1));
    READS(cluster, session, 41, 30 * 6 + 10 * 2 + 1);
    sim_cluster_free(cluster);
}

// New chunks of the range find a place, an old one's holder has not come back: the client must not be sent to it.
static void an_attach_beside_a_holder_that_is_away_is_refused(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 16);
    struct sim_worker *holder = holder_of(cluster, session, 0);
    struct common_error err;
    sim_net_part(NULL, holder->loop);
    sim_coordinator_kill(cluster); // its next life knows the holder by name alone
    sim_run_until_idle();
    assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
    assert_true(sim_wait_active(cluster, 1));
    struct sim_call *opened = sim_open(cluster->client, session, 0, 40);
    ENDS(COMMON_UNAVAILABLE, opened);
    assert_string_equal(opened->reason, "MISSING_RANGE");
    assert_int_equal(opened->first_missing, 0);
    assert_int_equal(opened->count_missing, 16);
    sim_net_mend(NULL, holder->loop);
    assert_true(sim_wait_active(cluster, 2));
    OK(sim_open(cluster->client, session, 0, 40));
    sim_cluster_free(cluster);
}

int hermetic_commits(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_attached_and_committed),
        cmocka_unit_test(an_attach_beside_a_holder_that_is_away_is_refused),
    };
    return cmocka_run_group_tests_name("commits", tests, NULL, NULL);
}
