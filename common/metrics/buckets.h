// SPDX-License-Identifier: Apache-2.0
// How long things took, for /metrics: counts in buckets that are powers of two, 2^10 ns (1.024 µs) … 2^36 ns
// (68.7 s) and above. 29 words, zeroed at first. Adding takes no clock, no lock and no memory: one count and
// one sum. One thread adds and reads; for quantiles of benchmarks see common/metrics/histogram.h.
//
//   bucket   0          1              …   26               27
//   holds    ≤ 2^10     (2^10, 2^11]       (2^35, 2^36]     above
#ifndef COMMON_BUCKETS_H
#define COMMON_BUCKETS_H

#include <stdint.h>

#define COMMON_BUCKETS_FIRST  10 // bits of the first bound
#define COMMON_BUCKETS_BOUNDS 27

struct common_buckets {
    uint64_t counts[COMMON_BUCKETS_BOUNDS + 1], sum_ns;
};

static inline uint32_t common_buckets_at(uint64_t ns) // the bucket that counts it
{
    uint32_t bits = ns > 1 ? 64 - (uint32_t)__builtin_clzll(ns - 1) : 0; // 2^bits: the lowest that is >= ns
    uint32_t at = bits > COMMON_BUCKETS_FIRST ? bits - COMMON_BUCKETS_FIRST : 0;
    return at < COMMON_BUCKETS_BOUNDS ? at : COMMON_BUCKETS_BOUNDS;
}

static inline void common_buckets_add(struct common_buckets *buckets, uint64_t ns)
{
    buckets->counts[common_buckets_at(ns)]++;
    buckets->sum_ns += ns;
}

static inline void common_buckets_sum(struct common_buckets *sum, const struct common_buckets *more)
{
    for (uint32_t i = 0; i <= COMMON_BUCKETS_BOUNDS; i++)
        sum->counts[i] += more->counts[i];
    sum->sum_ns += more->sum_ns;
}

static inline double common_buckets_bound_seconds(uint32_t bucket) // below COMMON_BUCKETS_BOUNDS
{
    return (double)(UINT64_C(1) << (COMMON_BUCKETS_FIRST + bucket)) / 1e9;
}

static inline uint64_t common_buckets_count(const struct common_buckets *buckets) // of all
{
    uint64_t n = 0;
    for (uint32_t i = 0; i <= COMMON_BUCKETS_BOUNDS; i++)
        n += buckets->counts[i];
    return n;
}

#endif
