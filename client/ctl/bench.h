// SPDX-License-Identifier: Apache-2.0
// What the files of `bench` share: the figures, what they are compared with, how they are shown.
#ifndef CLIENT_CTL_BENCH_H
#define CLIENT_CTL_BENCH_H

#include "client/ctl/ctl.h"
#include "common/metrics/histogram.h"

struct ctl_bench_figures {
    uint64_t tokens, layers, bytes; // bytes: of K and V, of one copy
    const banyan_spec *spec;
    uint64_t attach_ns; // of all, with its commits
    struct common_histogram steps, appends;
    uint64_t total_ns, coordinator_ns, tree_ns,
        compute_ns; // sums over steps; compute: of each one's slowest worker
};

struct ctl_bench_floor {
    uint64_t ping_ns;     // the shortest round trip to the coordinator
    uint64_t memory_ns;   // what the slowest member of the plan needs to read its part of a layer once
    uint64_t part_bytes;  // of that one
    char worker[65];      // its name
    uint32_t members;     // of the plan
    bool here;            // all of them are on this machine
    uint64_t bytes_per_s; // through one plain TCP connection on this machine; 0: not known
};

// Asks for the session's plan and the workers' speeds, and measures the rest. row_bytes: of K and V of one
// token in one layer. Reports a failure on stderr.
enum ctl_exit ctl_bench_floor(struct ctl *ctl, banyan_session *session, uint64_t row_bytes,
                              struct ctl_bench_floor *out);

// One JSON value, or tables.
void ctl_bench_tell(const struct ctl *ctl, const struct ctl_bench_figures *figures,
                    const struct ctl_bench_floor *floor);

#endif
