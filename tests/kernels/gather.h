// SPDX-License-Identifier: Apache-2.0
// One head's rows out of rows of all heads, as a run of a job holds them. Its library (banyan_test_reference)
// has the float64 reference beside it, and sanitizers instrument neither: tests copy and compare far more
// than the daemons that they judge.
#ifndef TESTS_KERNELS_GATHER_H
#define TESTS_KERNELS_GATHER_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/attention.h"

// The keys that at least one row of the job sees; its runs need no other.
struct kernels_interval gather_seen(const struct kernels_job *job);

// What gather_rows makes of a KV type: float32 of those that it holds exactly, which are read faster.
enum kernels_kv_type gather_type(enum kernels_kv_type type);

// Rows `keys` of one head: [rows][heads][dim] of the type → [keys.to - keys.from][dim] of gather_type, to be
// freed. NULL of NULL. Aborts when memory is short.
void *gather_rows(enum kernels_kv_type type, const void *rows, uint32_t heads, uint32_t dim, uint32_t head,
                  struct kernels_interval keys);
// Likewise: [rows][heads] → [keys.to - keys.from].
float *gather_scales(const float *scales, uint32_t heads, uint32_t head, struct kernels_interval keys);

#endif
