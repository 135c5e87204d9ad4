// SPDX-License-Identifier: Apache-2.0
#include "examples/products.h"

#include <math.h>
#include <string.h>

#ifndef PRODUCTS // its name: that of the instruction set
#define PRODUCTS products_plain
#endif

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX2__)
#define BYTES 32
#else
#define BYTES 16
#endif
#define ROWS   PRODUCTS_ROWS
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(BYTES)));
typedef double vd __attribute__((vector_size(BYTES)));
typedef int64_t vl __attribute__((vector_size(BYTES)));
typedef float narrow __attribute__((vector_size(BYTES / 2), aligned(4)));
typedef double loose __attribute__((vector_size(BYTES), aligned(8)));
enum { FLOATS = BYTES / 4, DOUBLES = BYTES / 8 };

INLINE vd widen(const float *p)
{
    return __builtin_convertvector(*(const narrow *)p, vd);
}

INLINE vd load(const double *p)
{
    return *(const loose *)p;
}

INLINE void store(double *p, vd x)
{
    *(loose *)p = x;
}

// ---- linear layers ------------------------------------------------------------------------------

static void panel(const float *weights, uint32_t in, const float *const *x, float *y)
{
    for (uint32_t at = 0; at < PRODUCTS_PANEL; at += 2 * FLOATS) {
        vf sum[ROWS][2] = {{{0}}};
        for (uint32_t i = 0; i < in; i++) {
            const vf *w = (const vf *)(weights + (size_t)i * PRODUCTS_PANEL + at);
            vf w0 = w[0], w1 = w[1];
#pragma GCC unroll 4
            for (uint32_t r = 0; r < ROWS; r++) {
                sum[r][0] += w0 * x[r][i];
                sum[r][1] += w1 * x[r][i];
            }
        }
        for (uint32_t r = 0; r < ROWS; r++)
            memcpy(y + r * PRODUCTS_PANEL + at, sum[r], sizeof sum[r]);
    }
}

// ---- attention ----------------------------------------------------------------------------------

// Two keys at a time: eight chains, which hide the latency of the additions. Of an odd number the last one
// comes twice.
static void score(const double *q, const float *keys, const float *key_scales, size_t n, uint32_t dim,
                  double scale, double *x, size_t stride)
{
    for (size_t j = 0; j < n; j += 2) {
        size_t other = j + 1 < n ? j + 1 : j;
        const float *k0 = keys + j * dim, *k1 = keys + other * dim;
        vd sum[ROWS][2] = {{{0}}};
        for (uint32_t d = 0; d < dim; d += DOUBLES) {
            vd x0 = widen(k0 + d), x1 = widen(k1 + d);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < ROWS; r++) {
                vd y = load(q + (size_t)r * dim + d);
                sum[r][0] += y * x0;
                sum[r][1] += y * x1;
            }
        }
        for (uint32_t r = 0; r < ROWS; r++) {
            double total[2] = {0, 0};
            for (int l = 0; l < DOUBLES; l++) {
                total[0] += sum[r][0][l];
                total[1] += sum[r][1][l];
            }
            x[r * stride + j] = total[0] * (double)key_scales[j] * scale;
            x[r * stride + other] = total[other != j] * (double)key_scales[other] * scale;
        }
    }
}

// e^x for x <= 0; below -708: 0. x = n ln 2 + r, |r| <= ln 2 / 2, e^r by its Taylor series to r^13.
INLINE vd exponential(vd x)
{
    static const double inverse[] = {1.0 / 6227020800,
                                     1.0 / 479001600,
                                     1.0 / 39916800,
                                     1.0 / 3628800,
                                     1.0 / 362880,
                                     1.0 / 40320,
                                     1.0 / 5040,
                                     1.0 / 720,
                                     1.0 / 120,
                                     1.0 / 24,
                                     1.0 / 6,
                                     1.0 / 2,
                                     1,
                                     1};
    const double magic = 0x1.8p52; // adding it leaves n in the low bits
    vd t = x * 0x1.71547652b82fep0 + magic, n = t - magic;
    vd r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33, sum = r * 0 + inverse[0];
    for (size_t i = 1; i < sizeof inverse / sizeof *inverse; i++)
        sum = sum * r + inverse[i];
    vl power = ((vl)t + 1023) << 52;
    return (vd)((vl)(sum * (vd)power) & (x >= -708.0));
}

static double weights(double *x, size_t n, double max, const float *value_scales)
{
    vd sum = {0};
    double total = 0;
    size_t j = 0;
    for (; j + DOUBLES <= n; j += DOUBLES) {
        vd w = exponential(load(x + j) - max);
        sum += w;
        store(x + j, w * widen(value_scales + j));
    }
    for (int l = 0; l < DOUBLES; l++)
        total += sum[l];
    for (; j < n; j++) {
        double w = exp(x[j] - max);
        total += w;
        x[j] = w * (double)value_scales[j];
    }
    return total;
}

INLINE void weigh_columns(uint32_t vectors, const double *x, size_t stride, const float *values, size_t n,
                          uint32_t dim, double *acc)
{
    vd sum[ROWS][2];
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < vectors; c++)
            sum[r][c] = load(acc + (size_t)r * dim + c * DOUBLES);
    for (size_t j = 0; j < n; j++) {
        vd v[2];
        for (uint32_t c = 0; c < vectors; c++)
            v[c] = widen(values + j * dim + c * DOUBLES);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < ROWS; r++)
#pragma GCC unroll 2
            for (uint32_t c = 0; c < vectors; c++)
                sum[r][c] += v[c] * x[r * stride + j];
    }
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < vectors; c++)
            store(acc + (size_t)r * dim + c * DOUBLES, sum[r][c]);
}

static void weigh(const double *x, size_t stride, const float *values, size_t n, uint32_t dim, double *acc)
{
    uint32_t d = 0;
    for (; d + 2 * DOUBLES <= dim; d += 2 * DOUBLES)
        weigh_columns(2, x, stride, values + d, n, dim, acc + d);
    if (d < dim)
        weigh_columns(1, x, stride, values + d, n, dim, acc + d);
}

extern const struct products PRODUCTS;
const struct products PRODUCTS = {panel, score, weights, weigh};
