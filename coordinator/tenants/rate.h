// SPDX-License-Identifier: Apache-2.0
// So many a second, and a second's worth at once after a pause: a bucket that fills by the clock. Pure, in
// whole numbers: the same calls at the same times end in the same way.
//
//   level   0 ─────────────────── per_s      in billionths of one; full after a second without calls
//                take n: down by n ▲ up by per_s a second
#ifndef COORDINATOR_RATE_H
#define COORDINATOR_RATE_H

#include <stdbool.h>
#include <stdint.h>

#define COORDINATOR_RATE_MOST UINT64_C(1000000000) // that may be said of a second

struct coordinator_rate {
    uint64_t per_s, at_ns; // per_s 0: no limit; at_ns: when `level` was so
    int64_t level;
};

// Full from now on. per_s: at most COORDINATOR_RATE_MOST.
void coordinator_rate_set(struct coordinator_rate *rate, uint64_t per_s, uint64_t now_ns);

// Takes n (at most 2^32), all or none. More than a second's worth go when the bucket is full, and those after
// them wait so much longer. False: *wait_ns is the time after which they would go, if no other took any.
bool coordinator_rate_take(struct coordinator_rate *rate, uint64_t n, uint64_t now_ns, uint64_t *wait_ns);

// How many of a second's worth are taken now; may be more than per_s. 0 without a limit.
uint64_t coordinator_rate_used(const struct coordinator_rate *rate, uint64_t now_ns);

#endif
