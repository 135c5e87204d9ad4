// SPDX-License-Identifier: Apache-2.0
// The few vector operations that kernels/portable.c is written in, as GCC and Clang vector extensions, 4, 8
// or 16 floats wide by what the file is compiled for. Only the fused multiply-add and binary16 need a name of
// the machine; without one, 4 lanes run anywhere. All operations are IEEE: NaN, Inf and subnormals are kept.
#pragma once

#include <stdbool.h>
#include <stddef.h>
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

// NEON is what every 64-bit ARM has; the plain variant does without, as on any machine.
#if defined(__aarch64__) && !defined(KERNELS_PLAIN)
#include <arm_neon.h>
#define NEON 1
#else
#define NEON 0
#endif
#define FUSED (LANES > 4 || NEON) // multiplies and adds with one rounding

#define INLINE static inline __attribute__((always_inline))

// The statements, with the constant i from 0 to n - 1 <= 15; n must be constant once inlined. Loops that
// compilers unroll late, asked to or not, leave arrays of vectors in memory; these are in registers.
//
// REPEAT2, REPEAT4 and REPEAT8 make no more copies than that. Use the smallest that holds n: where n is
// constant only once its function is inlined, the compiler's first passes work on every copy that there could
// be, and on all that each of them inlines.
//
// Sanitizers get loops: the checks of what is unrolled would take minutes to compile.
#if defined(__has_feature) // clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define REPEAT_LOOPS
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REPEAT_LOOPS
#endif
#ifdef REPEAT_LOOPS
#define REPEAT(i, n, ...)                                                                                    \
    for (uint32_t i = 0; i < (n); i++) {                                                                     \
        __VA_ARGS__                                                                                          \
    }
#define REPEAT2 REPEAT
#define REPEAT4 REPEAT
#define REPEAT8 REPEAT
#else
#define REPEAT_1(i, n, at, ...)                                                                              \
    if ((at) < (n)) {                                                                                        \
        enum { i = at };                                                                                     \
        __VA_ARGS__                                                                                          \
    }
#define REPEAT_2(i, n, at, ...)                                                                              \
    REPEAT_1(i, n, at, __VA_ARGS__)                                                                          \
    REPEAT_1(i, n, at + 1, __VA_ARGS__)
#define REPEAT_4(i, n, at, ...)                                                                              \
    REPEAT_2(i, n, at, __VA_ARGS__)                                                                          \
    REPEAT_2(i, n, at + 2, __VA_ARGS__)
#define REPEAT_8(i, n, at, ...)                                                                              \
    REPEAT_4(i, n, at, __VA_ARGS__)                                                                          \
    REPEAT_4(i, n, at + 4, __VA_ARGS__)
#define REPEAT2(i, n, ...)                                                                                   \
    do {                                                                                                     \
        REPEAT_2(i, n, 0, __VA_ARGS__)                                                                       \
    } while (0)
#define REPEAT4(i, n, ...)                                                                                   \
    do {                                                                                                     \
        REPEAT_4(i, n, 0, __VA_ARGS__)                                                                       \
    } while (0)
#define REPEAT8(i, n, ...)                                                                                   \
    do {                                                                                                     \
        REPEAT_8(i, n, 0, __VA_ARGS__)                                                                       \
    } while (0)
#define REPEAT(i, n, ...)                                                                                    \
    do {                                                                                                     \
        REPEAT_8(i, n, 0, __VA_ARGS__)                                                                       \
        REPEAT_8(i, n, 8, __VA_ARGS__)                                                                       \
    } while (0)
#endif

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

INLINE vf vf_fma(vf a, vf b, vf c)
{
#if LANES == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif NEON
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// *sum += a * b as vf_fma has it. In assembly where a compiler that may choose moves sums about and reads a
// and b from memory once for each use: loads, and moves, then outnumber what the ports of a core take.
INLINE void vf_fma_to(vf *sum, vf a, vf b)
{
#if LANES > 4
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
#else
    *sum = vf_fma(a, b, *sum);
#endif
}

// a * b + c rounded once, on every machine.
INLINE vf vf_fma_exact(vf a, vf b, vf c)
{
#if FUSED
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
    // Both quarters get all eight, and each puts its four into the high halves: one shuffle
    const __m256i to = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, //
                                        -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (vf)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(x), to);
#else
    vh h;
    memcpy(&h, p, sizeof(h));
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

// Elements 0 .. 3 and 8 .. 11 of 16, or with half = 1 the others. Only where LANES is 8.
INLINE vf vf_load_bf16_quads(const uint16_t *p, uint32_t half)
{
#if LANES == 8
    typedef uint16_t anywhere __attribute__((vector_size(32), aligned(2), may_alias));
    __m256i x, zero = _mm256_setzero_si256();
    if (half) // in assembly: a compiler would load both halves' memory into a register of its own
        __asm__("vpunpckhwd %2, %1, %0" : "=x"(x) : "x"(zero), "m"(*(const anywhere *)(const void *)p));
    else
        __asm__("vpunpcklwd %2, %1, %0" : "=x"(x) : "x"(zero), "m"(*(const anywhere *)(const void *)p));
    return (vf)x;
#else
    return vf_load_bf16(p + half * LANES);
#endif
}

INLINE vf vf_load_f16(const uint16_t *p)
{
#if LANES == 16
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
#elif LANES == 8
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif NEON
    uint16x4_t h;
    memcpy(&h, p, sizeof(h));
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(h));
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

// The even and the odd ones of 2 * LANES elements.
INLINE void vf_split_bf16(const uint16_t *p, vf *even, vf *odd)
{
    vu x;
    memcpy(&x, p, sizeof(x));
    *even = (vf)(x << 16);
    *odd = (vf)(x & 0xffff0000u);
}

INLINE vf vf_load_int8(const int8_t *p)
{
#if LANES == 16
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
#elif LANES == 8
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
#else
    typedef int8_t vb __attribute__((vector_size(LANES)));
    vb x;
    memcpy(&x, p, sizeof(x));
    return __builtin_convertvector(x, vf);
#endif
}

// e4m3 codes; the numbers come 256 times too small. As binary16 the code's bits, moved up by 7, are the
// number over 2^8 (the biases are 7 and 15), subnormals included. 0x7f alone carries into bit 14 when 1 is
// added at bit 7, and that bit makes it binary16's NaN; the caller may know that there is none.
INLINE vf vf_load_fp8(const uint8_t *p, bool nans)
{
#if LANES == 16
    __m256i x = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p)), 7);
    __m256i bit = _mm256_setzero_si256();
    if (nans)
        bit = _mm256_add_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x3f80)), _mm256_set1_epi16(0x80));
    return (vf)_mm512_cvtph_ps(_mm256_ternarylogic_epi32(_mm256_set1_epi16(0x4000), bit, x, 0xca));
#elif LANES == 8
    __m128i x = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p)), 7);
    __m128i bit = _mm_setzero_si128();
    if (nans)
        bit = _mm_add_epi16(_mm_and_si128(x, _mm_set1_epi16(0x3f80)), _mm_set1_epi16(0x80));
    x = _mm_andnot_si128(_mm_set1_epi16(0x4000), x);
    return (vf)_mm256_cvtph_ps(_mm_or_si128(x, _mm_and_si128(_mm_set1_epi16(0x4000), bit)));
#else
    typedef uint8_t vb __attribute__((vector_size(LANES)));
    vb code;
    memcpy(&code, p, sizeof(code));
    vu bits = __builtin_convertvector(code, vu), rest = (bits & 0x7fu) << 20;
    vu x = (vu)((vf)rest * vf_splat(0x1p112f)); // bias 7 to 127, less the 8
    if (nans)
        x |= (vu)(rest == (0x7fu << 20)) & 0x7fc00000u;
    return (vf)(x | (bits & 0x80u) << 24);
#endif
}

// 2 * LANES of them, none of which is NaN.
INLINE void vf_load_fp8_pair(const uint8_t *p, vf *low, vf *high)
{
#if LANES == 16
    __m512i x = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
    x = _mm512_and_si512(_mm512_slli_epi16(x, 7), _mm512_set1_epi16((short)0xbfff));
    *low = (vf)_mm512_cvtph_ps(_mm512_castsi512_si256(x));
    *high = (vf)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1));
#else
    *low = vf_load_fp8(p, false);
    *high = vf_load_fp8(p + LANES, false);
#endif
}

// 2 * LANES of them, none of which is NaN, as binary16.
INLINE void vf_fp8_to_f16(const uint8_t *p, uint16_t *out)
{
#if LANES == 8
    __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    x = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16((short)0xbfff));
    _mm256_storeu_si256((__m256i *)(void *)out, x);
#else
    for (uint32_t i = 0; i < 2 * LANES; i++)
        out[i] = (uint16_t)((p[i] & 0x80u) << 8 | (p[i] & 0x7fu) << 7);
#endif
}

// Whether no e4m3 code is NaN; bytes a multiple of 16 * LANES.
INLINE bool vf_fp8_numbers(const uint8_t *p, size_t bytes)
{
#if LANES == 16
    __m512i most = _mm512_setzero_si512();
    for (size_t i = 0; i < bytes; i += 64) {
        __m512i x = _mm512_loadu_si512(p + i);
        most = _mm512_max_epu8(most, _mm512_add_epi8(x, x)); // without the sign, NaN is 0xfe
    }
    return _mm512_cmpeq_epi8_mask(most, _mm512_set1_epi8((char)0xfe)) == 0;
#elif LANES == 8
    __m256i most[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t i = 0; i < bytes; i += 128) {
        REPEAT4(j, 4, {
            __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(p + i + j * 32));
            most[j % 2] =
                _mm256_max_epu8(most[j % 2], _mm256_add_epi8(x, x)); // without the sign, NaN is 0xfe
        });
    }
    most[0] = _mm256_max_epu8(most[0], most[1]);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(most[0], _mm256_set1_epi8((char)0xfe))) == 0;
#else
    typedef uint8_t vb __attribute__((vector_size(4 * LANES)));
    vb seen = {0};
    for (size_t i = 0; i < bytes; i += 4 * LANES) {
        vb x;
        memcpy(&x, p + i, sizeof(x));
        seen |= (x & 0x7f) + 1; // bit 7 of NaN
    }
    vu words = (vu)seen & 0x80808080u;
    return (words[0] | words[1] | words[2] | words[3]) == 0;
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
#if LANES == 16
    __mmask16 mass = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    return (vf)_mm512_maskz_scalef_ps(mass, (__m512)p, (__m512)n);
#else
    vu two_n = ((vu)t - 0x4b400000u + 127u) << 23;
    return vf_select(x < -87.0f, (vf){0}, p * (vf)two_n);
#endif
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
INLINE void vf_shuffle_tile(const vf *x, vf *y)
{
    REPEAT8(i, LANES / 2, y[2 * i] = vf_zip_low(x[i], x[i + LANES / 2]);
            y[2 * i + 1] = vf_zip_high(x[i], x[i + LANES / 2]););
}

INLINE void vf_transpose(vf *x)
{
    vf y[LANES];
    vf_shuffle_tile(x, y);
    vf_shuffle_tile(y, x);
#if LANES == 16
    vf_shuffle_tile(x, y);
    vf_shuffle_tile(y, x);
#elif LANES == 8
    vf_shuffle_tile(x, y);
    REPEAT(i, LANES, x[i] = y[i];);
#endif
}

// A sum of lanes adds lane l and lane l + LANES / 2 first, and so on in halves.
INLINE float vf_sum_lanes(vf x)
{
#if LANES > 4
#if LANES == 16
    __m256 all = _mm512_castps512_ps256((__m512)x) + _mm512_extractf32x8_ps((__m512)x, 1);
#else
    __m256 all = (__m256)x;
#endif
    __m128 half = _mm256_castps256_ps128(all) + _mm256_extractf128_ps(all, 1);
    half += _mm_movehl_ps(half, half);
    return half[0] + half[1];
#else
    x += __builtin_shufflevector(x, x, 2, 3, 2, 3);
    return x[0] + x[1];
#endif
}

// The lanes hold no NaN.
INLINE float vf_max_lanes(vf x)
{
#if LANES > 4
#if LANES == 16
    __m256 all = _mm256_max_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
#else
    __m256 all = (__m256)x;
#endif
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
#else
    x = vf_max(x, __builtin_shufflevector(x, x, 2, 3, 2, 3));
    return x[0] > x[1] ? x[0] : x[1];
#endif
}

// What the rounded sum of hi and x loses (Knuth's two-sum).
INLINE vf vf_lost(vf hi, vf x)
{
    vf sum = hi + x, part = sum - hi;
    return (hi - (sum - part)) + (x - part);
}

// hi + lo += x: hi takes the rounded sum, lo what it lost (Knuth's two-sum, free of branches). Where hi is
// not finite, lo is NaN and means nothing.
INLINE void vf_add_exact(vf *hi, vf *lo, vf x)
{
    vf sum = *hi + x, part = sum - *hi;
    *lo += (*hi - (sum - part)) + (x - part);
    *hi = sum;
}

// The same for a chain of sums that goes on from what was lost: sum takes sum + chain, chain what that lost
// (Dekker's fast two-sum). Where |chain| > |sum| the loss is rounded, to no worse than the chain was. Where
// sum becomes infinite, chain is infinite or NaN.
INLINE void vf_carry(vf *sum, vf *chain)
{
    vf total = *sum + *chain;
    *chain = *chain - (total - *sum);
    *sum = total;
}

// x where it is finite, else 0.
INLINE vf vf_finite(vf x)
{
#if LANES == 16
    // By class of x: its own value (1) or +0 (8)
    return (vf)_mm512_fixupimm_ps((__m512)x, (__m512)x, _mm512_set1_epi32(0x11881188), 0);
#else
    return vf_select(x - x == 0, x, (vf){0});
#endif
}

// x, but a number of no consequence where it is not finite, if |x| < 2^105, which is more than what any
// finite sum loses.
INLINE vf vf_tame(vf x)
{
#if LANES == 16
    return vf_finite(x);
#elif LANES == 8
    const __m256 most = _mm256_set1_ps(0x1p105f);
    return (vf)_mm256_max_ps(_mm256_min_ps((__m256)x, most), -most);
#else
    vf most = vf_splat(0x1p105f);
    x = vf_select(x < most, x, most);
    return vf_select(x > -most, x, -most);
#endif
}

// Two vectors to one of the same lanes' sums, in two halves to be added: within quarters of four lanes first.
//     pair:  a0 b0 a1 b1 | ...   +   a2 b2 a3 b3 | ...        quad:  A0 B0 C0 D0 | ...   +   A1 B1 C1 D1 |
//     ...
INLINE void vf_pair_halves(vf a, vf b, vf *low, vf *high)
{
#if LANES == 16
    *low = (vf)_mm512_unpacklo_ps((__m512)a, (__m512)b);
    *high = (vf)_mm512_unpackhi_ps((__m512)a, (__m512)b);
#elif LANES == 8
    *low = (vf)_mm256_unpacklo_ps((__m256)a, (__m256)b);
    *high = (vf)_mm256_unpackhi_ps((__m256)a, (__m256)b);
#else
    *low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    *high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

INLINE void vf_quad_halves(vf ab, vf cd, vf *low, vf *high)
{
#if LANES == 16
    *low = (vf)_mm512_unpacklo_pd((__m512d)ab, (__m512d)cd);
    *high = (vf)_mm512_unpackhi_pd((__m512d)ab, (__m512d)cd);
#elif LANES == 8
    *low = (vf)_mm256_unpacklo_pd((__m256d)ab, (__m256d)cd);
    *high = (vf)_mm256_unpackhi_pd((__m256d)ab, (__m256d)cd);
#else
    *low = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *high = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
#endif
}

// Lane i of hi + lo = the sum of the lanes of x[i], each in the same order. The last two levels, where the
// numbers are largest, keep what they lose.
INLINE void vf_sum_each(const vf *x, vf *hi, vf *lo)
{
    vf part[2], lost[2] = {{0}, {0}}, high;
#if LANES == 16
    // Halves first, then halves of quarters: a blend in place of one of two shuffles
    vf y[8], z[4];
    REPEAT8(i, 8, {
        const uint32_t at = i / 4 * 8 + i % 4;
        __m512 a = (__m512)x[at], b = (__m512)x[at + 4];
        y[i] = (vf)_mm512_mask_blend_ps(0xff00, a, b) + (vf)_mm512_shuffle_f32x4(a, b, 0x4e);
    });
    REPEAT4(i, 4, {
        __m512 a = (__m512)y[2 * i], b = (__m512)y[2 * i + 1];
        z[i] = (vf)_mm512_mask_blend_ps(0xcccc, a, b) + (vf)_mm512_shuffle_ps(a, b, 0x4e);
    });
    REPEAT2(i, 2, {
        part[i] = (vf)_mm512_shuffle_ps((__m512)z[2 * i], (__m512)z[2 * i + 1], 0x88);
        high = (vf)_mm512_shuffle_ps((__m512)z[2 * i], (__m512)z[2 * i + 1], 0xdd);
        vf_add_exact(&part[i], &lost[i], high);
    });
    *hi = (vf)_mm512_shuffle_f32x4((__m512)part[0], (__m512)part[1], 0x88);
    high = (vf)_mm512_shuffle_f32x4((__m512)part[0], (__m512)part[1], 0xdd);
    *lo = (vf)_mm512_shuffle_f32x4((__m512)lost[0], (__m512)lost[1], 0x88) +
          (vf)_mm512_shuffle_f32x4((__m512)lost[0], (__m512)lost[1], 0xdd);
#elif LANES == 8
    // A blend in place of one of two shuffles
    REPEAT2(i, 2, {
        vf pair[2];
        REPEAT2(j, 2, {
            __m256d a = (__m256d)x[4 * i + 2 * j], b = (__m256d)x[4 * i + 2 * j + 1];
            pair[j] = (vf)_mm256_blend_pd(a, b, 0xa) + (vf)_mm256_shuffle_pd(a, b, 0x5);
        });
        part[i] = (vf)_mm256_shuffle_ps((__m256)pair[0], (__m256)pair[1], 0x88);
        high = (vf)_mm256_shuffle_ps((__m256)pair[0], (__m256)pair[1], 0xdd);
        lost[i] = vf_lost(part[i], high);
        part[i] += high;
    });
    *hi = (vf)_mm256_blend_ps((__m256)part[0], (__m256)part[1], 0xf0);
    high = (vf)_mm256_permute2f128_ps((__m256)part[0], (__m256)part[1], 0x21);
    *lo = (vf)_mm256_blend_ps((__m256)lost[0], (__m256)lost[1], 0xf0) +
          (vf)_mm256_permute2f128_ps((__m256)lost[0], (__m256)lost[1], 0x21);
#else
    REPEAT2(i, 2, {
        vf_pair_halves(x[2 * i], x[2 * i + 1], &part[i], &high);
        vf_add_exact(&part[i], &lost[i], high);
    });
    vf_quad_halves(part[0], part[1], hi, &high);
    vf low_lost, high_lost;
    vf_quad_halves(lost[0], lost[1], &low_lost, &high_lost);
    *lo = low_lost + high_lost;
#endif
    vf_add_exact(hi, lo, high);
}
