// SPDX-License-Identifier: Apache-2.0
// exp and log in plain double arithmetic: the C library picks variants by CPU, and with them bits. Relative
// error of both below 1e-13, so a result rounded to float is the nearest one but for a few cases in a
// million.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__ // an engine merges on a device, with the same bits
#define KERNELS_SCALAR static __host__ __device__ __forceinline__
#else
#define KERNELS_SCALAR static inline
#endif

KERNELS_SCALAR double kernels_scalar_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

// e^x. Below -700: 0. Above 700: inf. NaN: NaN.
KERNELS_SCALAR double kernels_scalar_exp(double x)
{
    if (x < -700)
        return 0;
    if (x > 700)
        return INFINITY;
    if (isnan(x))
        return x;
    // x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 in two parts so that n times the first is exact
    const double ln2_hi = 0x1.62e42fefap-1, ln2_lo = 0x1.cf79abc9e3b39p-39;
    double n = x * 1.4426950408889634;
    n = n < 0 ? (double)(int)(n - 0.5) : (double)(int)(n + 0.5);
    double r = (x - n * ln2_hi) - n * ln2_lo;
    double term = 1, sum = 1;
    for (int k = 1; k <= 12; k++) { // 0.35^13 / 13! = 2e-16
        term *= r / k;
        sum += term;
    }
    return sum * kernels_scalar_bits((uint64_t)((int)n + 1023) << 52);
}

// Natural logarithm of a finite double > 0 that is not subnormal (every positive float is fine).
static inline double kernels_scalar_log_normal(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    int e = (int)(bits >> 52) - 1023;
    double f = kernels_scalar_bits((bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL); // [1, 2)
    if (f > 1.4142135623730951) {
        f *= 0.5;
        e++;
    }
    double z = (f - 1) / (f + 1), z2 = z * z, power = z, sum = 0; // log f = 2 atanh z, |z| <= 0.1716
    for (int k = 1; k <= 17; k += 2) {
        sum += power / k;
        power *= z2;
    }
    return e * 0.6931471805599453 + 2 * sum;
}

static inline double kernels_scalar_log(double x)
{
    if (isnan(x) || x < 0)
        return NAN;
    if (x == 0)
        return -INFINITY;
    return isinf(x) ? x : kernels_scalar_log_normal(x);
}

// tanh in plain double, accurate to 1e-10 and free of branches, so that loops over it vectorise. Odd series
// near zero, where 1 - 2 / (e^2x + 1) would cancel.
static inline double kernels_scalar_tanh(double x)
{
    double a = x < 0 ? -x : x, z = x * x;
    double near = a * (1 + z * (-1.0 / 3 + z * (2.0 / 15 + z * (-17.0 / 315 + z * (62.0 / 2835)))));
    double y = 2 * (a > 20 ? 20 : a), t = y * 1.4426950408889634 + 0x1.8p52;
    double r = y - (t - 0x1.8p52) * 0.6931471805599453;
    double p = 1.0 / 3628800;
    for (int k = 9; k >= 0; k--) { // e^r, |r| <= 0.35: terms to r^10 / 10!
        static const double factor[] = {1,         1,         1.0 / 2,    1.0 / 6,     1.0 / 24,
                                        1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880};
        p = p * r + factor[k];
    }
    uint64_t bits;
    memcpy(&bits, &t, sizeof(bits));
    double far = 1 - 2 / (p * kernels_scalar_bits((bits + 1023) << 52) + 1);
    double up = a < 0.05 ? near : far;
    return x < 0 ? -up : up;
}
