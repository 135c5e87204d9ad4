// SPDX-License-Identifier: Apache-2.0
// What is ordered of a worker comes out of the store as it went in, also what version 0.1 wrote.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "coordinator/cluster/order.h"

static void back_and_forth(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct coordinator_order order = {.at_s = i & 1 ? UINT64_MAX : 0, .cordon = i & 2}, got;
        char bytes[COORDINATOR_ORDER_BYTES];
        memset(order.reason, 'r', i & 1 ? sizeof order.reason - 1 : 0);
        memset(order.by, 'b', i & 1 ? sizeof order.by - 1 : 0);
        size_t n = coordinator_order_pack(&order, bytes);
        assert_true(n < sizeof bytes);
        memset(&got, 0xff, sizeof got);
        coordinator_order_unpack(bytes, n, &got);
        assert_string_equal(got.reason, order.reason);
        assert_string_equal(got.by, order.by);
        assert_true(got.at_s == order.at_s && got.cordon == order.cordon);
    }
}

static void of_the_version_before(void **state)
{
    (void)state;
    struct coordinator_order got;
    char much[400];
    coordinator_order_unpack("its fan is loud", 15, &got);
    assert_string_equal(got.reason, "its fan is loud");
    assert_true(!got.by[0] && got.at_s == 0 && !got.cordon);
    coordinator_order_unpack(NULL, 0, &got);
    assert_true(!got.reason[0] && !got.cordon);
    memset(much, 'x', sizeof much);
    coordinator_order_unpack(much, sizeof much, &got);
    assert_int_equal(strlen(got.reason), sizeof got.reason - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(back_and_forth),
        cmocka_unit_test(of_the_version_before),
    };
    return cmocka_run_group_tests_name("order", tests, NULL, NULL);
}
