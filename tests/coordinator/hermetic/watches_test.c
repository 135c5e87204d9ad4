// SPDX-License-Identifier: Apache-2.0
// Who watches a session beside those who make its steps.
#include "tests/coordinator/hermetic/hermetic.h"
#include "tests/sim/sim_watch.h"

static struct sim_call *watch(struct sim_cluster *cluster, uint64_t session, uint32_t steps)
{
    struct sim_wish wish = {.steps = steps, .wait_ns = 5 * COMMON_NS_PER_S, .trace = true};
    struct sim_call *call = sim_watch(cluster->client, session, &wish);
    sim_run_until_idle();
    return call;
}

// Steps before a truncate are not reported any more, so the watch does not wait for them either: it ends with
// as many as it asked for.
static void a_truncate_begins_the_count_anew(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 8);
    struct sim_call *watched = watch(cluster, session, 2);
    OK(sim_append(cluster->client, session, 0, 8, 1, 2));
    OK(sim_truncate(cluster->client, session, 8));
    OK(sim_append(cluster->client, session, 0, 8, 3, 2));
    sim_run_until_idle();
    assert_false(watched->done);
    OK(sim_read(cluster->client, session, 0, 10, 1));
    sim_run_until_idle();
    assert_true(watched->done);
    assert_int_equal(watched->code, COMMON_OK);
    assert_int_equal(watched->n_watched, 2);
    assert_int_equal(watched->watched[0].rows, 3);
    assert_int_equal(watched->watched[1].first, 10);
    sim_cluster_free(cluster);
}

int hermetic_watches(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_truncate_begins_the_count_anew),
    };
    return cmocka_run_group_tests_name("watches", tests, NULL, NULL);
}
