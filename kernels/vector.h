// SPDX-License-Identifier: Apache-2.0
// The few vector operations that kernels/portable.c is written in, as GCC and Clang vector extensions, 4, 8
// or 16 floats wide by what the file is compiled for. Only the fused multiply-add and binary16 need a name of
// the machine; without one, 4 lanes run anywhere. All operations are IEEE: NaN, Inf and subnormals are kept.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define LANES 8
#else
#define LANES 4
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES))); // arithmetic on bits: it may wrap
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));

INLINE vf vf_load(const float *p)
{
    vf x;
    memcpy(&x, p, sizeof(x));
    return x;
}

INLINE void vf_store(float *p, vf x)
{
    memcpy(p, &x, sizeof(x));
}

INLINE vf vf_splat(float x)
{
    return x - (vf){0}; // x - (+0) is x, also for -0
}

INLINE vi vi_splat(int32_t x)
{
    return x - (vi){0};
}

INLINE vf vf_fma(vf a, vf b, vf c)
{
#if LANES == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

// a * b + c rounded once, on every machine.
INLINE vf vf_fma_exact(vf a, vf b, vf c)
{
#if LANES > 4
    return vf_fma(a, b, c);
#else
    typedef double vd __attribute__((vector_size(8 * LANES))); // the product of two floats is exact in it
    vd x = __builtin_convertvector(a, vd) * __builtin_convertvector(b, vd) + __builtin_convertvector(c, vd);
    return __builtin_convertvector(x, vf);
#endif
}

// mask lanes are all ones or all zeros
INLINE vf vf_select(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

// The larger; where one is NaN, b.
INLINE vf vf_max(vf a, vf b)
{
#if LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vf_select(a > b, a, b);
#endif
}

INLINE vf vf_load_bf16(const uint16_t *p)
{
#if LANES == 16
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)),
                                 16);
#elif LANES == 8
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)),
                                 16);
#else
    vh h;
    memcpy(&h, p, sizeof(h));
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

INLINE vf vf_load_f16(const uint16_t *p)
{
#if LANES == 16
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
#elif LANES == 8
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
#else
    vh h;
    memcpy(&h, p, sizeof(h));
    vu bits = __builtin_convertvector(h, vu), rest = (bits & 0x7fffu) << 13;
    vu special = (vu)(rest >= (0x7c00u << 13)); // infinity or NaN
    vu x = (vu)((vf)rest * vf_splat(0x1p112f)); // bias 15 to 127; exact for subnormals too
    x = (special & (rest | 0x7f800000u)) | (~special & x);
    return (vf)(x | (bits & 0x8000u) << 16);
#endif
}

// e^x for x <= 88, below -87: 0, NaN: NaN. Within 1 ulp. x = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2
// p(r), p the Chebyshev fit of degree 4 (relative error 8e-9).
INLINE vf vf_exp(vf x)
{
    vf shift = vf_splat(0x1.8p23f); // adding it leaves n in the low bits
    vf t = vf_fma(x, vf_splat(0x1.715476p+0f), shift);
    vf n = t - shift;
    vf r = vf_fma(n, vf_splat(-0x1.62e400p-1f), x); // 15 bits of ln 2: n times it is exact
    r = vf_fma(n, vf_splat(-0x1.7f7d1cp-20f), r);
    vf p = vf_splat(0x1.6d1606p-10f);
    p = vf_fma(p, r, vf_splat(0x1.12106cp-7f));
    p = vf_fma(p, r, vf_splat(0x1.555516p-5f));
    p = vf_fma(p, r, vf_splat(0x1.5554d8p-3f));
    p = vf_fma(p, r, vf_splat(0.5f));
    p = vf_fma(r * r, p, r) + 1.0f;
    vu two_n = ((vu)t - 0x4b400000u + 127u) << 23;
    return vf_select(x < -87.0f, (vf){0}, p * (vf)two_n);
}

// The lanes of a and b, interleaved: the first half of them, and the second half.
INLINE vf vf_zip_low(vf a, vf b)
{
#if LANES == 16
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif LANES == 8
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}

INLINE vf vf_zip_high(vf a, vf b)
{
#if LANES == 16
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif LANES == 8
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

// Transposes a LANES x LANES tile: log2(LANES) perfect shuffles.
INLINE void vf_transpose(vf x[LANES])
{
    for (int stage = 1; stage < LANES; stage *= 2) {
        vf y[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES / 2; i++) {
            y[2 * i] = vf_zip_low(x[i], x[i + LANES / 2]);
            y[2 * i + 1] = vf_zip_high(x[i], x[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            x[i] = y[i];
    }
}

// hi + lo += x: hi takes the rounded sum, lo what it lost (Knuth's two-sum, free of branches). Where hi is
// not finite, lo is NaN and means nothing.
INLINE void vf_add_exact(vf *hi, vf *lo, vf x)
{
    vf sum = *hi + x, part = sum - *hi;
    *lo += (*hi - (sum - part)) + (x - part);
    *hi = sum;
}

// Lane i of hi + lo = the sum of the lanes of x[i], each in the same order: after a perfect shuffle of x[i]
// and x[i + half], low + high holds half the vectors with the sums of lane pairs (l, l + half). The last two
// levels, where the numbers are largest, keep what they lose.
INLINE void vf_sum_each(vf x[LANES], vf *hi, vf *lo)
{
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 2; half /= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < half; i++)
            x[i] = vf_zip_low(x[i], x[i + half]) + vf_zip_high(x[i], x[i + half]);
    }
    vf lost[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        vf high = vf_zip_high(x[i], x[i + 2]);
        x[i] = vf_zip_low(x[i], x[i + 2]);
        vf_add_exact(&x[i], &lost[i], high);
    }
    *hi = vf_zip_low(x[0], x[1]);
    *lo = vf_zip_low(lost[0], lost[1]) + vf_zip_high(lost[0], lost[1]);
    vf_add_exact(hi, lo, vf_zip_high(x[0], x[1]));
}
