// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/verdict.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/common/named.h"

static const struct verdict_class often[] = {{"kill", 5, true}, {"partition", 0, false}};
static const struct verdict_class rarely[] = {{"kill", 5, true}, {"partition", 4, true}};

static const struct named_case {
    const char *name;
    struct verdict_run run;
    const char *why; // a part of it; NULL: it holds
} cases[] = {
    {"a short run that is slow and has few faults", {0.5, 0, 0.01, true, rarely, 2}, NULL},
    {"a short run in which a step failed", {0.5, 1, 1, true, often, 2}, "1 steps failed"},
    {"a long run", {10, 0, 0.25, true, often, 2}, NULL},
    {"a long run in which a step failed", {10, 3, 1, true, often, 2}, "3 steps failed"},
    {"a long run that is slow", {10, 0, 0.249, true, often, 2}, "0.249 of the steps"},
    {"a long run of which no rate is known", {10, 0, NAN, true, often, 2}, "of the steps"},
    {"a long run of one class that is slow", {10, 0, 0.1, false, often, 2}, NULL},
    {"a long run that lacks a class", {10, 0, 1, true, rarely, 2}, "partition came 4 times"},
    {"just shorter", {9.9, 0, 0.1, true, rarely, 2}, NULL},
};

static void what_a_run_must_have_shown(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char why[200] = "";
        bool holds = verdict_holds(&cases[i].run, why, sizeof(why));
        if (holds != !cases[i].why || (cases[i].why && !strstr(why, cases[i].why)))
            fail_msg("%s: %s", cases[i].name, holds ? "it holds" : why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_a_run_must_have_shown)};
    return cmocka_run_group_tests_name("verdict", tests, NULL, NULL);
}
