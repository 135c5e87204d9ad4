// SPDX-License-Identifier: Apache-2.0
// Latency histogram: log-linear buckets, relative error < 1/64, 1 ns .. 2^40 ns. Fixed memory; not
// thread-safe.
#ifndef COMMON_HISTOGRAM_H
#define COMMON_HISTOGRAM_H

#include <stdint.h>

struct common_histogram {
    uint64_t count, min, max;
    double sum;
    uint32_t buckets[40 * 64];
};

void common_histogram_reset(struct common_histogram *h);
void common_histogram_add(struct common_histogram *h, uint64_t value_ns);

// Value at quantile 0..1; 0 when empty; q=0 and q=1 give min and max exactly.
uint64_t common_histogram_quantile(const struct common_histogram *h, double q);

#endif
