// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/hash/hash.h"
#include "common/metrics/histogram.h"

static struct common_histogram h;

static void test_empty(void **state)
{
    (void)state;
    common_histogram_reset(&h);
    assert_true(common_histogram_quantile(&h, 0) == 0);
    assert_true(common_histogram_quantile(&h, 0.5) == 0);
    assert_true(common_histogram_quantile(&h, 1) == 0);
}

// Every power of two and its neighbours, alone in the histogram between a smaller and a larger value.
static void test_relative_error(void **state)
{
    (void)state;
    for (int e = 1; e < 40; e++)
        for (int d = -3; d <= 3; d++) {
            int64_t v = (INT64_C(1) << e) + d * (INT64_C(1) << e) / 7;
            if (v < 1)
                continue;
            common_histogram_reset(&h);
            common_histogram_add(&h, 0);
            common_histogram_add(&h, (uint64_t)v);
            common_histogram_add(&h, UINT64_C(1) << 50);
            double got = (double)common_histogram_quantile(&h, 0.5);
            assert_true(fabs(got - (double)v) <= (double)v / 64);
        }
}

static void test_small_values_are_exact(void **state)
{
    (void)state;
    common_histogram_reset(&h);
    for (uint64_t v = 1; v <= 100; v++)
        common_histogram_add(&h, v);
    for (uint64_t v = 1; v < 64; v++)
        assert_true(common_histogram_quantile(&h, (double)v / 100) == v);
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void test_quantiles_of_many(void **state)
{
    (void)state;
    enum { N = 20000 };
    static uint64_t values[N];
    common_histogram_reset(&h);
    for (uint64_t i = 0; i < N; i++) {
        values[i] = common_mix64(i) >> (24 + common_mix64(i + N) % 30); // spread over thirty powers of two
        common_histogram_add(&h, values[i]);
    }
    qsort(values, N, sizeof *values, ascending);
    for (int p = 1; p < 1000; p++) {
        double exact = (double)values[p * N / 1000 - 1];
        double got = (double)common_histogram_quantile(&h, p / 1000.0);
        assert_true(fabs(got - exact) <= exact / 64);
    }
    assert_true(common_histogram_quantile(&h, 0) == values[0]);
    assert_true(common_histogram_quantile(&h, 1) == values[N - 1]);
}

static void test_out_of_range(void **state)
{
    (void)state;
    common_histogram_reset(&h);
    common_histogram_add(&h, UINT64_MAX);
    common_histogram_add(&h, UINT64_MAX - 1);
    assert_true(common_histogram_quantile(&h, 1) == UINT64_MAX);
    assert_true(common_histogram_quantile(&h, 0) == UINT64_MAX - 1);
    assert_true(common_histogram_quantile(&h, 0.5) >= UINT64_C(1) << 40);
    assert_true(common_histogram_quantile(&h, NAN) == UINT64_MAX - 1);
    assert_true(common_histogram_quantile(&h, -1) == UINT64_MAX - 1);
    assert_true(common_histogram_quantile(&h, 2) == UINT64_MAX);
}

static void test_full_bucket_stays_full(void **state)
{
    (void)state;
    common_histogram_reset(&h);
    common_histogram_add(&h, 5);
    h.buckets[5] = UINT32_MAX;
    common_histogram_add(&h, 5);
    assert_true(h.buckets[5] == UINT32_MAX);
    assert_true(common_histogram_quantile(&h, 0.5) == 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_relative_error),
        cmocka_unit_test(test_small_values_are_exact),
        cmocka_unit_test(test_quantiles_of_many),
        cmocka_unit_test(test_out_of_range),
        cmocka_unit_test(test_full_bucket_stays_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
