// SPDX-License-Identifier: Apache-2.0
// Tables of named cases. A test runs over all of them; where an assertion fails, the test also says in which
// case.
//
//     for (size_t i = 0; i < n; i++) {
//         named_case_begin(table[i].name);
//         ... assertions ...
//     }
//     named_cases_end();
//
// and in the list of tests: named_cases_test(name_of_the_test).
#ifndef TESTS_COMMON_NAMED_H
#define TESTS_COMMON_NAMED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const char *named_case; // NULL: in none

static inline void named_case_begin(const char *name)
{
    named_case = name;
}

static inline void named_cases_end(void)
{
    named_case = NULL;
}

// The teardown of a test over cases: it runs after a failed assertion, too.
static inline int named_cases_report(void **state)
{
    (void)state;
    if (named_case)
        print_error("in case %s\n", named_case);
    named_cases_end();
    return 0;
}

#define named_cases_test(test) cmocka_unit_test_teardown(test, named_cases_report)

#endif
