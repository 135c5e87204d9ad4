// SPDX-License-Identifier: Apache-2.0
// Beside a histogram (common/metrics/buckets.h): of each bucket the last time that was traced, so that who
// sees a slow one in /metrics finds a trace of it. Zeroed at first. One thread adds and reads.
#ifndef COMMON_EXEMPLARS_H
#define COMMON_EXEMPLARS_H

#include "common/base/clock.h"
#include "common/base/trace.h"
#include "common/metrics/buckets.h"

struct common_exemplar {
    struct common_trace trace; // flags 0: there is none
    uint64_t ns, wall_ns;      // the time that it took; Unix time of when
};

struct common_exemplars {
    struct common_exemplar last[COMMON_BUCKETS_BOUNDS + 1];
};

static inline void common_exemplars_note(struct common_exemplars *exemplars, uint64_t ns,
                                         const struct common_trace *trace)
{
    exemplars->last[common_buckets_at(ns)] =
        (struct common_exemplar){.trace = *trace, .ns = ns, .wall_ns = common_clock_wall_ns()};
}

#endif
