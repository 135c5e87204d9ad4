// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/histogram.h"

#include <float.h>
#include <math.h>
#include <string.h>

// Values below 64 have a bucket each; above, each power of two is cut into 64 equal buckets:
//   0 1 2 … 63 | 64 65 … 127 | 128 130 … 254 | 256 260 … 508 | …
// The middle of a bucket is at most 1/128 away from any value in it.
#define SUB_BITS 6
#define SUB      (1u << SUB_BITS)
#define LIMIT    (UINT64_C(1) << 40)

static uint32_t bucket_of(uint64_t v)
{
    if (v > LIMIT)
        v = LIMIT;
    if (v < SUB)
        return (uint32_t)v;
    uint32_t exponent = 63 - (uint32_t)__builtin_clzll(v); // >= SUB_BITS
    uint32_t shift = exponent - SUB_BITS;
    return (shift + 1) * SUB + (uint32_t)((v >> shift) & (SUB - 1));
}

static uint64_t middle_of(uint32_t bucket)
{
    if (bucket < SUB)
        return bucket;
    uint32_t shift = bucket / SUB - 1;
    uint64_t low = (uint64_t)(SUB + bucket % SUB) << shift;
    return low + ((UINT64_C(1) << shift) >> 1);
}

static void add_count(uint32_t *bucket, uint32_t n)
{
    if (__builtin_add_overflow(*bucket, n, bucket))
        *bucket = UINT32_MAX; // after four thousand million: stays full
}

void common_histogram_reset(struct common_histogram *h)
{
    memset(h, 0, sizeof *h);
}

void common_histogram_add(struct common_histogram *h, uint64_t value_ns)
{
    if (h->count == 0 || value_ns < h->min)
        h->min = value_ns;
    if (h->count == 0 || value_ns > h->max)
        h->max = value_ns;
    h->count++;
    h->sum += (double)value_ns;
    add_count(&h->buckets[bucket_of(value_ns)], 1);
}

uint64_t common_histogram_quantile(const struct common_histogram *h, double q)
{
    if (h->count == 0)
        return 0;
    if (!(q > 0))
        return h->min;
    if (q >= 1)
        return h->max;
    // 1 .. count. A little less, because 0.07 * 100 is 7.000000000000001, and the seventh is meant.
    double rank = ceil(q * (double)h->count * (1 - 4 * DBL_EPSILON));
    double seen = 0;
    for (uint32_t i = 0; i < sizeof h->buckets / sizeof *h->buckets; i++) {
        seen += h->buckets[i];
        if (seen >= rank) {
            uint64_t v = middle_of(i);
            return v < h->min ? h->min : v > h->max ? h->max : v;
        }
    }
    return h->max;
}
