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

// Rows [keys.from, keys.to) of one head: [rows][heads][bytes] → [keys.to - keys.from][bytes], to be freed.
// NULL of NULL. Aborts when memory is short.
void *gather_head(const void *rows, uint32_t heads, size_t bytes, uint32_t head,
                  struct kernels_interval keys);

#endif
