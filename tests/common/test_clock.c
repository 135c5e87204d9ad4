// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "common/base/clock.h"

static void test_clocks_agree_with_the_system(void **state)
{
    (void)state;
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    uint64_t now = common_clock_ns();
    clock_gettime(CLOCK_MONOTONIC, &after);
    assert_true(now >= (uint64_t)before.tv_sec * COMMON_NS_PER_S + (uint64_t)before.tv_nsec);
    assert_true(now <= (uint64_t)after.tv_sec * COMMON_NS_PER_S + (uint64_t)after.tv_nsec);
    assert_true(common_clock_wall_ns() / COMMON_NS_PER_S > 1700000000);
}

static void test_after_saturates(void **state)
{
    (void)state;
    uint64_t now = common_clock_ns();
    uint64_t later = common_clock_after(COMMON_NS_PER_S);
    assert_true(later >= now + COMMON_NS_PER_S);
    assert_true(common_clock_after(UINT64_MAX) == COMMON_NO_DEADLINE);
    assert_true(common_clock_after(UINT64_MAX - now / 2) == COMMON_NO_DEADLINE); // would wrap
}

static void test_left(void **state)
{
    (void)state;
    assert_true(common_clock_left(0) == 0);
    assert_true(common_clock_left(common_clock_ns()) == 0);
    assert_true(common_clock_left(COMMON_NO_DEADLINE) == COMMON_NO_DEADLINE);
    uint64_t hour = 3600 * COMMON_NS_PER_S;
    uint64_t left = common_clock_left(common_clock_after(hour));
    assert_true(left > 0 && left <= hour);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clocks_agree_with_the_system),
        cmocka_unit_test(test_after_saturates),
        cmocka_unit_test(test_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
