// SPDX-License-Identifier: Apache-2.0
// How fast this worker computes attention: placement goes by it.
#ifndef WORKER_MEASURE_H
#define WORKER_MEASURE_H

#include <stdint.h>

#include "common/base/status.h"
#include "worker/processors/team.h"

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

// The parts of it, for a measurement beside the loop (steps/probe.h): one query row over the keys of one
// run of this memory. Any thread.
#define WORKER_MEASURE_RUN_BYTES (UINT64_C(256) * 128 * 2 * 2) // rows, dimensions, bfloat16, K and V
#define WORKER_MEASURE_Q_FLOATS  (4 * 128)
struct kernels_attention;
const struct kernels_attention *worker_measure_default(void); // NULL: none works here
uint64_t worker_measure_scratch(const struct kernels_attention *kernel);
void worker_measure_query(float *q); // [WORKER_MEASURE_Q_FLOATS]
void worker_measure_run(const struct kernels_attention *kernel, const uint8_t *data, const float *q,
                        void *scratch);

#endif
