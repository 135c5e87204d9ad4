// SPDX-License-Identifier: Apache-2.0
// One algorithm over one set of shards: its first call, which is checked and counted, its samples, its end.
#ifndef RESEARCH_PAPER_MEASURE_H
#define RESEARCH_PAPER_MEASURE_H

#include "research/paper_algo.h"
#include "research/paper_check.h"

#define PAPER_SAMPLES_MOST 10000u

struct paper_limits {
    uint64_t rounds, seconds; // the first that is reached ends the samples; at least one is taken
};

struct paper_result {                   // on rank 0
    double samples[PAPER_SAMPLES_MOST]; // microseconds
    uint32_t n, rounds;                 // samples; how many are to be taken (on every rank)
    struct paper_error error;
    double sent, sent_most, socket,
        wire;          // bytes: mean a rank, most of a rank; mean a rank on sockets, on wires
    double staged;     // bytes between device and host: mean a rank
    double staging_us; // of the root in all samples together
    uint64_t kv_peak;
    struct paper_floor floor;
};

bool paper_is_ring(const struct paper_algo *algo);

// All are collective.

// The reference of every shard, merged on rank 0. False: no memory.
bool paper_measure_exact(struct paper_step *step, struct paper_exact *exact);

// Prepares an algorithm and makes the first call, before time matters. False on every rank when memory is
// short or the answer is wrong.
bool paper_measure_begin(struct paper_step *step, const struct paper_algo *algo,
                         const struct paper_exact *exact, const struct paper_limits *limits,
                         struct paper_result *result);
void paper_measure_sample(struct paper_step *step, const struct paper_algo *algo,
                          const struct paper_exact *exact, struct paper_result *result);
// floors: of a ring, measured now. False on every rank when an answer was wrong.
bool paper_measure_end(struct paper_step *step, const struct paper_algo *algo, bool floors,
                       struct paper_result *result);

#endif
