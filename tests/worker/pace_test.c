// SPDX-License-Identifier: Apache-2.0
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "worker/core/pace.h"

#define MS UINT64_C(1000000)
#define GB UINT64_C(1000000000) // a byte a nanosecond

// Work of so many bytes that takes so long.
static uint64_t compute(struct worker_pace *pace, uint64_t at, double bytes, uint64_t kind, uint64_t taken_ns)
{
    if (worker_pace_begin(pace, bytes, kind, true, at))
        worker_pace_end(pace, true, at + taken_ns);
    return at + taken_ns;
}

static void planned_and_taken(void **state)
{
    (void)state;
    struct worker_pace pace;
    worker_pace_init(&pace, GB);
    uint64_t at = compute(&pace, 5, MS, 1, MS); // the first of its kind only teaches
    assert_int_equal(pace.planned_ns + pace.taken_ns, 0);
    at = compute(&pace, at, MS, 1, MS);
    compute(&pace, at, 2 * MS, 1, 10 * MS);
    assert_int_equal(pace.planned_ns, 3 * MS);
    assert_int_equal(pace.taken_ns, 11 * MS);
}

static void little_work_does_not_count(void **state)
{
    (void)state;
    struct worker_pace pace;
    worker_pace_init(&pace, GB);
    compute(&pace, 5, MS, 1, MS);
    assert_false(worker_pace_begin(&pace, WORKER_PACE_LEAST_NS - 1, 1, true, 100));
    compute(&pace, 200, WORKER_PACE_LEAST_NS - 1, 1, 50 * MS);
    assert_int_equal(pace.planned_ns + pace.taken_ns, 0);
    worker_pace_init(&pace, 0); // nothing was reported
    assert_false(worker_pace_begin(&pace, 1e12, 1, true, 100));
}

// Time in which several are computed counts once.
static void side_by_side(void **state)
{
    (void)state;
    struct worker_pace pace;
    worker_pace_init(&pace, GB);
    compute(&pace, 5, MS, 1, MS);
    assert_true(worker_pace_begin(&pace, MS, 1, true, 10 * MS));
    assert_true(worker_pace_begin(&pace, MS, 1, true, 11 * MS));
    worker_pace_end(&pace, true, 12 * MS);
    assert_true(worker_pace_begin(&pace, MS, 1, true, 13 * MS));
    worker_pace_end(&pace, true, 14 * MS);
    worker_pace_end(&pace, true, 15 * MS);
    assert_int_equal(pace.planned_ns, 3 * MS);
    assert_int_equal(pace.taken_ns, 5 * MS);
}

// Hashes beside it, work that was given up, work of several kinds.
static void what_cannot_be_told(void **state)
{
    (void)state;
    struct worker_pace pace;
    worker_pace_init(&pace, GB);
    compute(&pace, 5, MS, 1, MS);
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t at = (10 + 20 * i) * MS;
        assert_true(worker_pace_begin(&pace, MS, 1, i != 0, at));
        assert_true(worker_pace_begin(&pace, MS, i == 2 ? 2 : 1, true, at));
        worker_pace_end(&pace, i != 1, at + MS);
        worker_pace_end(&pace, true, at + 9 * MS);
    }
    assert_true(worker_pace_begin(&pace, MS, 0, true, 90 * MS));
    worker_pace_end(&pace, true, 99 * MS);
    assert_int_equal(pace.planned_ns + pace.taken_ns, 0);
    compute(&pace, 100 * MS, MS, 1, MS); // and it goes on
    assert_int_equal(pace.taken_ns, MS);
}

// A kind that is slow here at its best, as a tiny head is, is not planned with more than that. One that is
// far slower has been so from the start, and is not taken into account.
static void kinds_have_speeds(void **state)
{
    (void)state;
    struct worker_pace pace;
    worker_pace_init(&pace, GB);
    compute(&pace, 5, MS, 1, 2 * MS);
    compute(&pace, 10 * MS, MS, 1, 2 * MS);
    assert_int_equal(pace.planned_ns, 2 * MS);
    assert_int_equal(pace.taken_ns, 2 * MS);
    compute(&pace, 20 * MS, MS, 1, 10 * MS);
    assert_int_equal(pace.planned_ns, 4 * MS);
    assert_int_equal(pace.taken_ns, 12 * MS);
    worker_pace_init(&pace, GB);
    compute(&pace, 5, MS, 1, 100 * MS);
    compute(&pace, 200 * MS, MS, 1, 100 * MS);
    assert_int_equal(pace.planned_ns, 4 * MS);
    assert_int_equal(pace.taken_ns, 100 * MS);
    worker_pace_init(&pace, GB); // faster than measured, in a cache: no more is expected for that
    compute(&pace, 5, MS, 1, MS / 4);
    compute(&pace, 10 * MS, MS, 1, MS);
    assert_int_equal(pace.planned_ns, MS);
    for (uint64_t kind = 2; kind < 2 + 3 * WORKER_PACE_KINDS; kind++) // more than are kept
        compute(&pace, (20 + kind) * MS, MS, kind, MS);
    assert_int_equal(pace.planned_ns, MS);
}

// Many rows of queries do more with each byte than the measurement does.
static void work_of_many_rows(void **state)
{
    (void)state;
    assert_true(worker_pace_work(1000, 2000) == 1000);
    assert_true(worker_pace_work(1000, 100) == 1000);
    assert_true(worker_pace_work(1000, 20000) == 10000);
}

static void a_measurement_counts(void **state)
{
    (void)state;
    struct worker_pace pace;
    worker_pace_init(&pace, GB);
    worker_pace_probed(&pace, 20 * MS, 100 * MS);
    assert_int_equal(pace.planned_ns, 20 * MS);
    assert_int_equal(pace.taken_ns, 100 * MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_and_taken),    cmocka_unit_test(little_work_does_not_count),
        cmocka_unit_test(side_by_side),         cmocka_unit_test(what_cannot_be_told),
        cmocka_unit_test(kinds_have_speeds),    cmocka_unit_test(work_of_many_rows),
        cmocka_unit_test(a_measurement_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
