// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>

#include "common/tensor/float8.h"
#include "common/tensor/quantise.h"

// Every code stands for a number of its own, in order, and comes back from it.
static void fp8_codes_round_trip(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 256; code++) {
        float x = common_fp8_to_float((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(x));
            assert_int_equal(common_fp8_from_float(x), code);
            continue;
        }
        assert_int_equal(common_fp8_from_float(x), code);
        if (code < 0x7e)
            assert_true(x < common_fp8_to_float((uint8_t)(code + 1)));
    }
    assert_float_equal(common_fp8_to_float(0x7e), 448, 0);
    assert_float_equal(common_fp8_to_float(0x01), 0x1p-9, 0);
    assert_float_equal(common_fp8_to_float(0x38), 1, 0);
}

// Between two neighbours: the nearer, and the even code in the middle.
static void fp8_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 0x7e; code++) {
        float a = common_fp8_to_float((uint8_t)code), b = common_fp8_to_float((uint8_t)(code + 1));
        float middle = (a + b) / 2;
        assert_int_equal(common_fp8_from_float(middle), code % 2 ? code + 1 : code);
        assert_int_equal(common_fp8_from_float(nextafterf(middle, 0)), code);
        assert_int_equal(common_fp8_from_float(nextafterf(middle, 500)), code + 1);
        assert_int_equal(common_fp8_from_float(-middle), 0x80 | (code % 2 ? code + 1 : code));
    }
    assert_int_equal(common_fp8_from_float(464), 0x7e);
    assert_int_equal(common_fp8_from_float(1e30f), 0x7e);
    assert_int_equal(common_fp8_from_float(-INFINITY), 0xfe);
}

static void rows_quantise(void **state)
{
    (void)state;
    float x[100];
    int8_t i8[100];
    uint8_t f8[100];
    for (int i = 0; i < 100; i++)
        x[i] = sinf((float)i) * 3;
    float si = common_quantise_int8(x, 100, i8), sf = common_quantise_fp8(x, 100, f8);
    for (int i = 0; i < 100; i++) {
        assert_true(fabsf(si * (float)i8[i] - x[i]) <= 0.5001f * si);
        float y = sf * common_fp8_to_float(f8[i]);
        assert_true(fabsf(y - x[i]) <= fmaxf(fabsf(x[i]) / 15.9f, sf * 0x1p-10f * 1.001f));
    }
    for (int i = 0; i < 100; i++)
        x[i] = 0;
    assert_true(common_quantise_int8(x, 100, i8) == 0 && i8[50] == 0);
    assert_true(common_quantise_fp8(x, 100, f8) == 0 && f8[50] == 0);
    x[3] = 1e-44f;
    assert_true(common_quantise_int8(x, 100, i8) == 0 && i8[3] == 0);
    // A scale below the normal numbers has too few bits to divide by; the smallest normal one is a scale.
    x[3] = 100 * FLT_MIN;
    assert_true(common_quantise_int8(x, 100, i8) == 0 && i8[3] == 0);
    assert_true(common_quantise_fp8(x, 100, f8) == 0 && f8[3] == 0);
    x[3] = 127 * FLT_MIN;
    assert_true(common_quantise_int8(x, 100, i8) == FLT_MIN && i8[3] == 127);
    x[3] = -3e38f;
    si = common_quantise_int8(x, 100, i8);
    assert_int_equal(i8[3], -127);
    assert_true(si > 2e36f);
    x[7] = NAN;
    assert_true(isnan(common_quantise_int8(x, 100, i8)));
    x[7] = INFINITY;
    assert_true(isnan(common_quantise_fp8(x, 100, f8)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_codes_round_trip),
        cmocka_unit_test(fp8_rounds_to_nearest_even),
        cmocka_unit_test(rows_quantise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
