// SPDX-License-Identifier: Apache-2.0
// Layers that are committed row by row: as many separate ranges as there may be, and rows that come by turns
// from attaches and from steps. The coordinator must live, and read its store again.
#include "tests/coordinator/helper.h"

#include <signal.h>

#include "coordinator/session/rangeset.h"

#define TURNS (COORDINATOR_RANGES_MAX + 100)

static struct harness_cluster *cluster;
static banyan_client *client;
static banyan_spec spec = HELPER_SPEC;

static int start(void **state)
{
    (void)state;
    static const char *const args[] = {"--max-session-tokens", "100000", NULL};
    spec.k_dim = spec.v_dim = 8;
    spec.chunk_tokens = 4096;
    cluster = harness_cluster_start(&(struct harness_options){.workers = 1, .coordinator_args = args});
    return !cluster || banyan_connect(harness_cluster_endpoint(cluster, "unix"), NULL, &client,
                                      &helper_error) != BANYAN_OK;
}

static int stop(void **state)
{
    (void)state;
    banyan_disconnect(client);
    return harness_cluster_stop(cluster);
}

static void restart(void)
{
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
}

static void as_many_as_there_may_be(void **state)
{
    (void)state;
    banyan_session *s = helper_session(client, &spec, NULL);
    uint64_t row = 2, n = 0;
    OK(banyan_attach(s, 0, 1, 2 * COORDINATOR_RANGES_MAX + 10, helper_zeros, helper_zeros, &helper_error));
    for (; n < COORDINATOR_RANGES_MAX - 1; n++, row += 2)
        OK(banyan_commit(s, 0, row, 1, &helper_error));
    FAILS(BANYAN_RESOURCE_EXHAUSTED, banyan_commit(s, 0, row, 1, &helper_error));
    OK(helper_step(client, s, 0, 1, true)); // there is room for the range that starts the layer
    assert_int_equal(helper_length(s), 1);
    FAILS(BANYAN_RESOURCE_EXHAUSTED, banyan_commit(s, 0, row, 1, &helper_error));
    OK(banyan_commit(s, 0, 1, 1, &helper_error)); // fills a hole: two ranges less, one more
    OK(banyan_commit(s, 0, row, 1, &helper_error));
    assert_int_equal(helper_length(s), 3);
    restart();
    OK(helper_step(client, s, 2, 1, false));
    assert_int_equal(helper_length(s), 3);
    OK(banyan_session_delete(s, &helper_error));
    banyan_session_close(s);
}

static void attaches_and_steps_by_turns(void **state)
{
    (void)state;
    banyan_session *s = helper_session(client, &spec, NULL);
    OK(banyan_attach(s, 0, 0, 2 * TURNS, helper_zeros, helper_zeros, &helper_error));
    for (uint64_t i = 0; i < TURNS; i++) {
        OK(banyan_commit(s, 0, 2 * i, 1, &helper_error));
        OK(helper_step(client, s, 2 * i + 1, 1, true));
    }
    restart(); // the store has one range, not as many as turns
    OK(helper_step(client, s, 2 * TURNS - 1, 1, false));
    assert_int_equal(helper_length(s), 2 * TURNS);
    OK(banyan_session_delete(s, &helper_error));
    banyan_session_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_as_there_may_be),
        cmocka_unit_test(attaches_and_steps_by_turns),
    };
    return cmocka_run_group_tests_name("ranges", tests, start, stop);
}
