// SPDX-License-Identifier: Apache-2.0
// How fast this worker computes attention: placement goes by it.
#ifndef WORKER_MEASURE_H
#define WORKER_MEASURE_H

#include <stdint.h>

#include "common/status.h"
#include "worker/team.h"

struct worker_speed {
    uint64_t bytes_per_s; // of K and V read from memory, by the whole team, one query row
    const char *kernel;   // its name; static
};

// Runs the default kernel over bfloat16 keys (32 query heads, 8 KV heads, dim 128) that lie as K and V do,
// for about 0.1 s in slices, of which the best counts, at most `memory_bytes` of them. Blocks; before the
// loop runs. FAILED_PRECONDITION: BANYAN_KERNEL names no kernel that works here.
enum common_code worker_measure(struct worker_team *team, uint64_t memory_bytes, struct worker_speed *out,
                                struct common_error *err);
const char *worker_measure_kernel(struct common_error *err); // the kernel alone; NULL: as above

#endif
