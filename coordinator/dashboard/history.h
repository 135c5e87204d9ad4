// SPDX-License-Identifier: Apache-2.0
// What was in the last hour: a sample each half a minute, the newest 120. All memory that it ever takes is in
// this struct (12 KiB); nothing of it is on disk, and a coordinator that starts begins with none.
//
//   at      0      30 s    60 s   …   1 h
//   ring  [ · ]──[ · ]──[ · ] …  [ · ]        a sample: what was done since the one before, and what there is
#ifndef COORDINATOR_DASHBOARD_HISTORY_H
#define COORDINATOR_DASHBOARD_HISTORY_H

#include <stdint.h>

#include "common/base/clock.h"
#include "common/metrics/buckets.h"

#define COORDINATOR_HISTORY_EVERY_NS (30 * COMMON_NS_PER_S)
#define COORDINATOR_HISTORY_MOST     120

struct coordinator;

struct coordinator_history_counters { // since the coordinator's start
    uint64_t steps, failures, retries;
    struct common_buckets took;
};

struct coordinator_history_sample {
    uint64_t at_ns, span_ns;           // span_ns: since the sample before, or since the start
    uint64_t steps, failures, retries; // in that time
    uint64_t p50_ns, p99_ns;           // of the time of its steps; 0: there were none
    uint64_t used_bytes, capacity_bytes;
    uint64_t workers, active, sessions, thin_chunks;
};

struct coordinator_history { // zeroed, but for begun_ns: empty
    struct coordinator_history_sample ring[COORDINATOR_HISTORY_MOST];
    uint32_t n, next;
    uint64_t begun_ns;                        // when the first sample's time began
    struct coordinator_history_counters last; // as they were at the newest sample
};

// Takes a sample. Looks at each worker and each session once.
void coordinator_history_take(struct coordinator_history *history, const struct coordinator *c,
                              uint64_t now_ns);

// The i-th of history->n, the oldest first.
const struct coordinator_history_sample *coordinator_history_at(const struct coordinator_history *history,
                                                                uint32_t i);

// The time below which this share of the answers lies, interpolated in its bucket. 0: there are none. Above
// the last bound it is that bound.
uint64_t coordinator_history_quantile(const struct common_buckets *buckets, double share);

#endif
