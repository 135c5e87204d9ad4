// SPDX-License-Identifier: Apache-2.0
// OCP FP8 e4m3 ("e4m3fn") <-> float32: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity, 0x7f
// and 0xff are NaN, the largest number is 448, the least subnormal 2^-9. To float32 is exact. From float32
// rounds to nearest, ties to even; what is larger than 448, infinity too, becomes 448; a NaN stays a NaN.
#pragma once

#include <stdint.h>

#include "common/tensor/float16.h"

#define COMMON_FP8_LARGEST 448.0f

static inline float common_fp8_to_float(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, rest = code & 0x7fu;
    if (rest == 0x7f)
        return common_float_from_bits(sign | 0x7fc00000u);
    if (rest >= 8) // normal: from bias 7 to bias 127
        return common_float_from_bits(sign | ((rest << 20) + (120u << 23)));
    float x = (float)rest * 0x1p-9f;
    return sign ? -x : x;
}

static inline uint8_t common_fp8_from_float(float x)
{
    uint32_t bits = common_float_bits(x);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80u);
    uint32_t rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return sign | 0x7fu;
    if (rest >= 0x43e00000u) // 448
        return sign | 0x7eu;
    if (rest >=
        0x3c800000u) { // 2^-6, the least normal; 448 < x < 464 would round into NaN's code, and is above
        rest -= 120u << 23;
        return sign | (uint8_t)((rest + 0x7ffffu + (rest >> 20 & 1u)) >> 20);
    }
    float y = common_float_from_bits(rest) * 0x1p9f, shift = 0x1p23f; // y <= 8: adding 2^23 rounds it
    return sign | (uint8_t)((y + shift) - shift);
}
