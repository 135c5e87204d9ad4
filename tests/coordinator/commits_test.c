// SPDX-License-Identifier: Apache-2.0
// Numbers of commits: each its own, ascending over terms, and which of them are over.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "coordinator/session/commits.h"

#define AT(term, n) (((uint64_t)(term) << COORDINATOR_COMMIT_TERM_SHIFT) + (n))

static void the_oldest_under_way_bounds_what_is_over(void **state)
{
    (void)state;
    struct coordinator_commits all = {0};
    struct coordinator_commit a, b, c;
    assert_int_equal(coordinator_commits_settled(&all, 3, 0), AT(3, 1)); // all of term 2 and before
    coordinator_commit_begin(&all, &a, 3, 1);
    coordinator_commit_begin(&all, &b, 3, 1);
    coordinator_commit_begin(&all, &c, 3, 1);
    assert_int_equal(a.number, AT(3, 1));
    assert_int_equal(c.number, AT(3, 3));
    coordinator_commit_end(&all, &b);
    assert_int_equal(coordinator_commits_settled(&all, 3, 0), a.number);
    coordinator_commit_end(&all, &a);
    assert_int_equal(coordinator_commits_settled(&all, 3, 0), c.number);
    coordinator_commit_end(&all, &c);
    assert_int_equal(coordinator_commits_settled(&all, 3, 0), AT(3, 4));
    assert_null(all.head);
    assert_null(all.tail);
}

static void a_sessions_own_bound(void **state)
{
    (void)state;
    struct coordinator_commits all = {0};
    struct coordinator_commit a, b;
    coordinator_commit_begin(&all, &a, 3, 1);
    coordinator_commit_begin(&all, &b, 3, 2);
    assert_int_equal(coordinator_commits_settled(&all, 3, 1), a.number);
    assert_int_equal(coordinator_commits_settled(&all, 3, 2), b.number);
    assert_int_equal(coordinator_commits_settled(&all, 3, 7), AT(3, 3)); // has none
    coordinator_commit_end(&all, &a);
    assert_int_equal(coordinator_commits_settled(&all, 3, 2), b.number);
}

static void a_term_that_was_raised(void **state)
{
    (void)state;
    struct coordinator_commits all = {0};
    struct coordinator_commit a, b;
    coordinator_commit_begin(&all, &a, 3, 1);
    coordinator_commit_begin(&all, &b, 9, 1);
    assert_int_equal(b.number, AT(9, 1));
    coordinator_commit_end(&all, &b);
    assert_int_equal(coordinator_commits_settled(&all, 9, 0), a.number);
    coordinator_commit_end(&all, &a);
    assert_int_equal(coordinator_commits_settled(&all, 9, 0), AT(9, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_under_way_bounds_what_is_over),
        cmocka_unit_test(a_sessions_own_bound),
        cmocka_unit_test(a_term_that_was_raised),
    };
    return cmocka_run_group_tests_name("commits", tests, NULL, NULL);
}
