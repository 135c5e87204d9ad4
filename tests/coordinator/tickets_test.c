// SPDX-License-Identifier: Apache-2.0
// Until when tickets may be used, and for which positions.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "coordinator/session/tickets.h"

enum { LIFE = 100 };

static void none_is_good_until_one_is_given(void **state)
{
    (void)state;
    struct coordinator_tickets tickets = {0};
    struct proto_range range;
    assert_false(coordinator_tickets_good(&tickets, 0));
    coordinator_tickets_give(&tickets, 32, 16, 1000, LIFE);
    assert_true(coordinator_tickets_good(&tickets, 1000));
    assert_true(coordinator_tickets_good(&tickets, 1000 + LIFE - 1));
    assert_false(coordinator_tickets_good(&tickets, 1000 + LIFE));
    assert_true(coordinator_tickets_next(&tickets, 1000, 0, 40, &range));
    assert_true(range.first == 32 && range.count == 8); // not past the end
    assert_true(coordinator_tickets_next(&tickets, 1000, 40, 100, &range));
    assert_true(range.first == 40 && range.count == 8);
    assert_false(coordinator_tickets_next(&tickets, 1000, 0, 32, &range));
    assert_false(coordinator_tickets_next(&tickets, 1000, 48, 100, &range));
    coordinator_tickets_free(&tickets);
}

// Positions add up while one ticket is good, and are forgotten when all have ended.
static void positions_of_tickets_that_have_ended_are_forgotten(void **state)
{
    (void)state;
    struct coordinator_tickets tickets = {0};
    struct proto_range range;
    coordinator_tickets_give(&tickets, 0, 16, 1000, LIFE);
    coordinator_tickets_give(&tickets, 64, 16, 1050, LIFE); // the first one is good yet
    assert_true(coordinator_tickets_next(&tickets, 1140, 0, 100, &range) && range.first == 0);
    assert_true(coordinator_tickets_next(&tickets, 1140, 16, 100, &range) && range.first == 64);
    coordinator_tickets_give(&tickets, 32, 16, 1150, LIFE);
    assert_true(coordinator_tickets_next(&tickets, 1150, 0, 100, &range) && range.first == 32);
    assert_false(coordinator_tickets_next(&tickets, 1150, 48, 100, &range));
    coordinator_tickets_free(&tickets);
}

// What tickets of an earlier life name is unknown.
static void any_position_may_be_named(void **state)
{
    (void)state;
    struct coordinator_tickets tickets = {.until_ns = 500, .all_ns = 200};
    struct proto_range range;
    assert_true(coordinator_tickets_next(&tickets, 199, 7, 20, &range));
    assert_true(range.first == 7 && range.count == 13);
    assert_false(coordinator_tickets_next(&tickets, 200, 7, 20, &range));
    coordinator_tickets_free(&tickets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_is_good_until_one_is_given),
        cmocka_unit_test(positions_of_tickets_that_have_ended_are_forgotten),
        cmocka_unit_test(any_position_may_be_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
