// SPDX-License-Identifier: Apache-2.0
// Groups of tests whose teardown can fail. cmocka only prints that a group's teardown has failed: what the
// program returns does not say so. Here the teardown is the last test of its group.
//
//     return group_run(tests, setup, teardown);     in place of cmocka_run_group_tests; neither is NULL
#ifndef TESTS_COMMON_GROUP_H
#define TESTS_COMMON_GROUP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static CMFixtureFunction group_teardown;

static inline void group_ends_clean(void **state)
{
    assert_int_equal(group_teardown(state), 0);
}

static inline int group_run_n(const struct CMUnitTest *tests, size_t n, CMFixtureFunction setup,
                              CMFixtureFunction teardown)
{
    struct CMUnitTest *all = calloc(n + 1, sizeof *all);
    if (!all)
        abort();
    memcpy(all, tests, n * sizeof *all);
    all[n] = (struct CMUnitTest)cmocka_unit_test(group_ends_clean);
    group_teardown = teardown;
    int failed = _cmocka_run_group_tests("tests", all, n + 1, setup, NULL);
    free(all);
    return failed;
}

#define group_run(tests, setup, teardown) group_run_n(tests, sizeof(tests) / sizeof *(tests), setup, teardown)

#endif
