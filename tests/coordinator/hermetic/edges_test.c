// SPDX-License-Identifier: Apache-2.0
// Comes last: every edge of every state machine of the coordinator was taken by inputs alone, and some test
// has asked for it (SHOWS) beside what a client or an operator saw.
#include "tests/coordinator/hermetic/hermetic.h"

static void every_edge_was_taken(void **state)
{
    (void)state;
    assert_int_equal(
        sim_edges_missing(&coordinator_worker_machine) + sim_edges_missing(&coordinator_plan_machine) +
            sim_edges_missing(&coordinator_visit_machine) + sim_edges_missing(&coordinator_session_machine) +
            sim_edges_missing(&coordinator_item_machine) + sim_edges_missing(&coordinator_repair_machine) +
            sim_edges_missing(&coordinator_move_machine) + sim_edges_missing(&coordinator_check_machine) +
            sim_edges_missing(&coordinator_copy_machine) + sim_edges_missing(&coordinator_report_machine) +
            sim_edges_missing(&coordinator_regain_machine),
        0);
}

int hermetic_edges(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_edge_was_taken)};
    return cmocka_run_group_tests_name("edges", tests, NULL, NULL);
}
