// SPDX-License-Identifier: Apache-2.0
// bfloat16 and IEEE binary16 <-> float32. To float32 is exact. From float32 rounds to nearest, ties to even;
// too large becomes infinity, tiny becomes subnormal or signed zero, a NaN stays a NaN (quiet, sign kept).
#pragma once

#include <stdint.h>
#include <string.h>

static inline float common_float_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t common_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float common_bf16_to_float(uint16_t h)
{
    return common_float_from_bits((uint32_t)h << 16);
}

static inline uint16_t common_bf16_from_float(float x)
{
    uint32_t bits = common_float_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x0040u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float common_f16_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
    if (rest >= 0x7c00u << 13) // infinity or NaN: the exponent is all ones in both formats
        return common_float_from_bits(sign | 0x7f800000u | rest | (rest > 0x7c00u << 13 ? 0x400000u : 0));
    if (rest >= 0x0400u << 13) // normal: from bias 15 to bias 127
        return common_float_from_bits(sign | (rest + (112u << 23)));
    float x = (float)(h & 0x03ffu) * 0x1p-24f; // subnormal or zero
    return sign ? -x : x;
}

static inline uint16_t common_f16_from_float(float x)
{
    uint32_t bits = common_float_bits(x);
    uint32_t sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((rest >> 13) & 0x1ffu));
    if (rest >= 0x47800000u) // 65536 and more
        return (uint16_t)(sign | 0x7c00u);
    if (rest >=
        0x38800000u) { // a normal half; a carry out of the mantissa makes the next exponent, up to infinity
        rest -= 112u << 23;
        return (uint16_t)(sign | ((rest + 0xfffu + ((rest >> 13) & 1u)) >> 13));
    }
    if (rest < 0x33000000u) // below half of the least subnormal
        return (uint16_t)sign;
    uint32_t mantissa = (rest & 0x7fffffu) | 0x800000u, shift = 126u - (rest >> 23); // 14 .. 24
    uint32_t half = 1u << (shift - 1), kept = mantissa >> shift, lost = mantissa & ((1u << shift) - 1);
    kept += lost > half || (lost == half && (kept & 1u));
    return (uint16_t)(sign | kept);
}
