// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/base/handle.h"
#include "common/hash/hash.h"

static int objects[8];

static void test_get_what_was_added(void **state)
{
    (void)state;
    struct common_handle_table *t = common_handle_table_new(100, 1);
    uint64_t a, b;
    assert_int_equal(common_handle_add(t, &objects[0], &a), COMMON_OK);
    assert_int_equal(common_handle_add(t, &objects[1], &b), COMMON_OK);
    assert_true(a != 0 && b != 0 && a != b);
    assert_ptr_equal(common_handle_get(t, a), &objects[0]);
    assert_ptr_equal(common_handle_get(t, b), &objects[1]);
    assert_int_equal(common_handle_add(t, NULL, &a), COMMON_INVALID_ARGUMENT);
    common_handle_table_free(t);
    common_handle_table_free(NULL);
}

static void test_forged_handles_find_nothing(void **state)
{
    (void)state;
    struct common_handle_table *t = common_handle_table_new(100, 1);
    assert_null(common_handle_get(t, 0));
    uint64_t a;
    assert_int_equal(common_handle_add(t, &objects[0], &a), COMMON_OK);
    const uint64_t forged[] = {0,
                               1,
                               a & UINT32_MAX,
                               a & ~(uint64_t)UINT32_MAX,
                               a + 1,
                               a - 1,
                               UINT64_MAX,
                               a ^ UINT64_C(1) << 32,
                               a ^ UINT64_C(1) << 63,
                               UINT32_MAX,
                               a | 0xffffffff};
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
        assert_null(common_handle_get(t, forged[i]));
        assert_null(common_handle_remove(t, forged[i]));
    }
    assert_ptr_equal(common_handle_get(t, a), &objects[0]);
    common_handle_table_free(t);
}

// One slot is given out again and again, past the point where it is retired: no number comes back.
static void test_a_freed_handle_never_comes_back(void **state)
{
    (void)state;
    enum { N = 3 * 4096 };
    struct common_handle_table *t = common_handle_table_new(1, 1);
    uint64_t *seen = calloc(N, sizeof *seen);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(common_handle_add(t, &objects[0], &seen[i]), COMMON_OK);
        assert_ptr_equal(common_handle_remove(t, seen[i]), &objects[0]);
        assert_null(common_handle_get(t, seen[i]));
        assert_null(common_handle_remove(t, seen[i]));
    }
    uint64_t live;
    assert_int_equal(common_handle_add(t, &objects[1], &live), COMMON_OK);
    for (size_t i = 0; i < N; i++) {
        assert_true(seen[i] != live);
        assert_null(common_handle_get(t, seen[i]));
    }
    free(seen);
    common_handle_table_free(t);
}

// After a restart with the next number, no handle of the first life is valid, however often slots were used.
static void test_handles_of_an_earlier_life(void **state)
{
    (void)state;
    struct common_handle_table *before = common_handle_table_new(4, 7);
    struct common_handle_table *after = common_handle_table_new(4, 8);
    uint64_t h;
    for (int i = 0; i < 4; i++)
        assert_int_equal(common_handle_add(after, &objects[i], &h), COMMON_OK);
    for (int i = 0; i < 20000; i++) {
        assert_int_equal(common_handle_add(before, &objects[0], &h), COMMON_OK);
        assert_null(common_handle_get(after, h));
        common_handle_remove(before, h);
    }
    common_handle_table_free(before);
    common_handle_table_free(after);
}

static void test_limit(void **state)
{
    (void)state;
    struct common_handle_table *t = common_handle_table_new(3, 1);
    uint64_t h[4] = {0};
    for (int i = 0; i < 3; i++)
        assert_int_equal(common_handle_add(t, &objects[i], &h[i]), COMMON_OK);
    assert_int_equal(common_handle_add(t, &objects[3], &h[3]), COMMON_RESOURCE_EXHAUSTED);
    assert_true(h[3] == 0);
    common_handle_remove(t, h[1]);
    assert_int_equal(common_handle_add(t, &objects[3], &h[3]), COMMON_OK);
    assert_ptr_equal(common_handle_get(t, h[0]), &objects[0]);
    assert_ptr_equal(common_handle_get(t, h[3]), &objects[3]);
    common_handle_table_free(t);
    t = common_handle_table_new(0, 1);
    assert_int_equal(common_handle_add(t, &objects[0], &h[0]), COMMON_RESOURCE_EXHAUSTED);
    common_handle_table_free(t);
}

// Random adds, removals and look-ups beside a plain array that does the same.
static void test_against_a_model(void **state)
{
    (void)state;
    enum { MANY = 500 };
    struct common_handle_table *t = common_handle_table_new(MANY, 3);
    static uint64_t live[MANY];
    static int things[MANY];
    uint32_t n = 0;
    for (uint64_t i = 0; i < 50000; i++) {
        uint64_t r = common_mix64(i);
        if (r % 2 && n < MANY) {
            size_t k = 0;
            while (live[k])
                k++;
            assert_int_equal(common_handle_add(t, &things[k], &live[k]), COMMON_OK);
            n++;
        } else {
            size_t k = (r >> 8) % MANY;
            void *expected = live[k] ? &things[k] : NULL;
            assert_ptr_equal(common_handle_get(t, live[k]), expected);
            assert_ptr_equal(common_handle_remove(t, live[k]), expected);
            n -= expected != NULL;
            live[k] = 0;
        }
    }
    common_handle_table_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_what_was_added),
        cmocka_unit_test(test_forged_handles_find_nothing),
        cmocka_unit_test(test_a_freed_handle_never_comes_back),
        cmocka_unit_test(test_handles_of_an_earlier_life),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_against_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
