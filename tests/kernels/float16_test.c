// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "common/tensor/float16.h"

static void every_half_survives_the_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h <= 0xffff; h++) {
        float f = common_f16_to_float((uint16_t)h), b = common_bf16_to_float((uint16_t)h);
        bool f_nan = (h & 0x7fff) > 0x7c00, b_nan = (h & 0x7fff) > 0x7f80;
        assert_true(isnan(f) == f_nan && isnan(b) == b_nan);
        uint16_t f_back = common_f16_from_float(f), b_back = common_bf16_from_float(b);
        assert_int_equal(f_back, f_nan ? h | 0x0200 : h); // a NaN comes back quiet
        assert_int_equal(b_back, b_nan ? h | 0x0040 : h);
    }
    assert_true(common_f16_to_float(0x3c00) == 1 && common_f16_to_float(0x7bff) == 65504);
    assert_true(common_f16_to_float(0x0001) == 0x1p-24f && common_f16_to_float(0xfc00) == -INFINITY);
    assert_true(common_bf16_to_float(0x3f80) == 1 && common_bf16_to_float(0x0001) == 0x1p-133f);
}

// Between two neighbours: below the middle down, above it up, on it to the even one.
static void middle(uint16_t low, float a, float b, uint16_t (*from_float)(float))
{
    float mid = (float)(((double)a + b) / 2); // exact
    assert_int_equal(from_float(nextafterf(mid, a)), low);
    assert_int_equal(from_float(nextafterf(mid, b)), low + 1);
    assert_int_equal(from_float(mid), low + (low & 1));
    assert_int_equal(from_float(-mid), 0x8000u + low + (low & 1));
}

static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float next = h == 0x7bff ? 65536.0f
                                 : common_f16_to_float((uint16_t)(h + 1)); // 65536 rounds as if it were there
        middle((uint16_t)h, common_f16_to_float((uint16_t)h), next, common_f16_from_float);
    }
    for (uint32_t h = 0; h < 0x7f7f; h++)
        middle((uint16_t)h, common_bf16_to_float((uint16_t)h), common_bf16_to_float((uint16_t)(h + 1)),
               common_bf16_from_float);
}

static void extremes(void **state)
{
    (void)state;
    assert_int_equal(common_f16_from_float(65520), 0x7c00); // the middle between 65504 and 65536
    assert_int_equal(common_f16_from_float(1e30f), 0x7c00);
    assert_int_equal(common_f16_from_float(-INFINITY), 0xfc00);
    assert_int_equal(common_f16_from_float(0x1p-25f), 0);
    assert_int_equal(common_f16_from_float(1e-40f), 0);
    assert_int_equal(common_f16_from_float(-0.0f), 0x8000);
    assert_int_equal(common_bf16_from_float(3.4e38f), 0x7f80);
    assert_int_equal(common_bf16_from_float(-INFINITY), 0xff80);
    assert_int_equal(common_bf16_from_float(-0.0f), 0x8000);
    assert_true(isnan(common_f16_to_float(common_f16_from_float(NAN))));
    // a NaN whose payload is all in the bits that are dropped
    assert_true(isnan(common_bf16_to_float(common_bf16_from_float(common_float_from_bits(0x7f800001)))));
    assert_true(isnan(common_f16_to_float(common_f16_from_float(common_float_from_bits(0xff800001)))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_survives_the_round_trip),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
