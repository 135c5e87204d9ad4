// SPDX-License-Identifier: Apache-2.0
// Numbers as the kernels need them: exp without a table, elements of the KV types, and float32 numbers as
// sums of 16-bit ones, so that tensor cores, which multiply 16-bit numbers exactly, lose nothing of q and of
// the weights.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/lane.cuh"

// e^x for x <= 0: within 0.9 units in the last place. Below -87: 0. NaN: NaN. Adds and multiply-adds alone,
// so the bits are those of the source. Without a branch, so that several are under way at once.
LANE_DEVICE float number_exp(float x)
{
    const float magic = 12582912.0f; // 1.5 * 2^23: its last bit is worth 1
    float shifted = fmaf(x, 1.44269504f, magic), n = shifted - magic;
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float y = 1.9875691500e-4f; // the polynomial of Cephes' expf
    y = fmaf(y, r, 1.3981999507e-3f);
    y = fmaf(y, r, 8.3334519073e-3f);
    y = fmaf(y, r, 4.1665795894e-2f);
    y = fmaf(y, r, 1.6666665459e-1f);
    y = fmaf(y, r, 5.0000001201e-1f);
    y = fmaf(fmaf(y, r, 1.0f), r, 1.0f);
    y *= __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
    return x < -87.0f ? 0.0f : y;
}

// 2^e for -126 <= e <= 127.
LANE_DEVICE float number_power(int e)
{
    return __uint_as_float(static_cast<uint32_t>(e + 127) << 23);
}

// Exponent of |x| for a normal x; less than -126 for zero and subnormal numbers, 128 for what is not finite.
LANE_DEVICE int number_exponent(float x)
{
    return static_cast<int>(__float_as_uint(x) >> 23 & 0xffu) - 127;
}

LANE_DEVICE bool number_finite(float x)
{
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

LANE_DEVICE bool number_nan(float x)
{
    return x != x;
}

// The larger, or a NaN.
LANE_DEVICE float number_top(float a, float b)
{
    return number_nan(a) || a >= b ? a : b;
}

// A partial without mass: kernels/partial.h.
LANE_DEVICE bool number_massless(float m, float s)
{
    return s == 0 && !number_nan(m);
}

// The part of a finite x that bfloat16 holds, cut, not rounded: three such parts are all of its 24 bits.
LANE_DEVICE float number_cut(float x)
{
    return __uint_as_float(__float_as_uint(x) & 0xffff0000u);
}

// The upper halves of two numbers that bfloat16 holds.
LANE_DEVICE uint32_t number_pack(float low, float high)
{
    return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

// Two numbers in `terms` parts each, the largest first. bfloat16: three, exact. binary16: two, whose sum is
// within 2^-24 of the number, or 2^-25 absolute.
template <bool bf16> LANE_DEVICE void number_split(float x, float y, uint32_t *parts)
{
    if (bf16) {
        float x1 = x - number_cut(x), y1 = y - number_cut(y);
        parts[0] = number_pack(x, y);
        parts[1] = number_pack(x1, y1);
        parts[2] = number_pack(x1 - number_cut(x1), y1 - number_cut(y1));
    } else {
        parts[0] = lane_f16x2_pack(x, y);
        parts[1] = lane_f16x2_pack(x - lane_f16_low(parts[0]), y - lane_f16_high(parts[0]));
    }
}

// The bfloat16 that is nearest to a finite x; beyond the largest one Inf.
LANE_DEVICE float number_near(float x)
{
    return number_cut(__uint_as_float(__float_as_uint(x) + 0x8000u));
}

// As number_split<true>, and returns what three parts do not hold: the last 16 bits of what is returned are
// not zero where a number is so small (below 2^-109) that its last bits are no bfloat16. `near`: the first
// two parts are the nearest, not cut, so the second and third are half as large, and of either sign.
template <bool near> LANE_DEVICE uint32_t number_split_all(float x, float y, uint32_t *parts)
{
    float xs[3] = {x, 0, 0}, ys[3] = {y, 0, 0};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float a = near ? number_near(xs[i]) : number_cut(xs[i]),
              b = near ? number_near(ys[i]) : number_cut(ys[i]);
        parts[i] = number_pack(a, b);
        xs[i + 1] = xs[i] - a;
        ys[i + 1] = ys[i] - b;
    }
    parts[2] = number_pack(xs[2], ys[2]);
    return __float_as_uint(xs[2]) | __float_as_uint(ys[2]);
}

// Four codes of int8 or fp8, as they lie in a word, become binary16 in two registers: elements 0, 1 and 2, 3,
// or, `across`, 0, 2 and 1, 3.
template <int type, bool across = false> LANE_DEVICE uint2 number_widen(uint32_t codes)
{
    if (type == KERNELS_KV_INT8) { // 1024 + (code + 128), less 1152: exact
        uint32_t u = codes ^ 0x80808080u;
        return make_uint2(lane_f16x2_sub(__byte_perm(u, 0x64646464u, across ? 0x4240 : 0x4140), 0x64806480u),
                          lane_f16x2_sub(__byte_perm(u, 0x64646464u, across ? 0x4341 : 0x4342), 0x64806480u));
    }
#if LANE_FP8
    if (across)
        codes = __byte_perm(codes, 0, 0x3120);
    return make_uint2(lane_fp8_widen(codes & 0xffffu), lane_fp8_widen(codes >> 16));
#else
    // The same bits with an exponent of bias 15 are 2^-8 of the number, subnormal ones included. NaN comes
    // out wrong: number_fp8_nan() finds out.
    uint32_t a = __byte_perm(codes, 0, across ? 0x2404 : 0x1404),
             b = __byte_perm(codes, 0, across ? 0x3414 : 0x3424);
    return make_uint2(lane_f16x2_mul((a & 0x80008000u) | (a >> 1 & 0x3f803f80u), 0x5c005c00u),
                      lane_f16x2_mul((b & 0x80008000u) | (b >> 1 & 0x3f803f80u), 0x5c005c00u));
#endif
}

// Not zero if one of four codes is NaN.
LANE_DEVICE uint32_t number_fp8_nan(uint32_t codes)
{
    return ((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
}

// One element as float32, its scale left out. `at` counts elements.
template <int type> LANE_DEVICE float number_element(const char *base, uint64_t at)
{
    if (type == KERNELS_KV_F32)
        return reinterpret_cast<const float *>(base)[at];
    if (type == KERNELS_KV_BF16)
        return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t *>(base)[at]) << 16);
    if (type == KERNELS_KV_F16)
        return lane_f16_low(reinterpret_cast<const uint16_t *>(base)[at]);
    if (type == KERNELS_KV_INT8)
        return static_cast<float>(reinterpret_cast<const int8_t *>(base)[at]);
    uint32_t code = reinterpret_cast<const uint8_t *>(base)[at];
    if ((code & 0x7fu) == 0x7fu)
        return __uint_as_float(0x7fc00000u);
    return lane_f16_low(number_widen<KERNELS_KV_FP8>(code).x);
}
