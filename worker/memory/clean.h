// SPDX-License-Identifier: Apache-2.0
// Zeroes memory that rows were in and that is free, a little at a time: 2 MiB every 2 ms, so that steps wait some 0.2 ms at most.
// What is allocated before it is that far is zeroed then (worker/memory/arena.h). Belongs to the loop thread.
#ifndef WORKER_CLEAN_H
#define WORKER_CLEAN_H

#include "common/loop/loop.h"
#include "worker/memory/memory.h"

struct worker_clean; // opaque

struct worker_clean *worker_clean_new(struct common_loop *loop,
                                      struct worker_memory *memory); // NULL: out of memory
void worker_clean_free(struct worker_clean *clean);                  // before the memory; NULL is allowed

#endif
