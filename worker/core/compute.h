// SPDX-License-Identifier: Apache-2.0
// The local part of a step: attention of each item's query rows over the chunks that this worker computes.
// Items are gathered on the loop thread, which pins what they read; then the tasks run, inline or on the
// team, with the same bits; or the device that has K and V computes them.
#ifndef WORKER_COMPUTE_H
#define WORKER_COMPUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "kernels/partial.h"
#include "worker/processors/team.h"
#include "worker/session/session.h"

struct kernels_device_item;
struct worker_wants;   // wants.h
struct worker_compute; // opaque

struct worker_compute_item {
    const struct worker_session *session;
    uint32_t layer, rows;            // a layer that can be attended
    uint32_t source;                 // the layer whose K and V it reads
    uint64_t first, visible;         // as in a StepItem
    uint64_t block_first, block_end; // rows at these positions see each other; none where they are equal
    uint64_t from;                   // chunks that end at or before it are left out
    uint32_t kv_head, kv_heads;      // the slab
    const float *q;                  // [rows][query heads of the slab][k_dim], until the computation is done
    struct kernels_partial out;      // rows x query heads of the slab x v_dim, overwritten
};

// Its own memory stays below budget_bytes. NULL: out of memory.
struct worker_compute *worker_compute_new(struct worker_store *store, uint32_t max_items,
                                          uint64_t budget_bytes);

// Takes an item in; says what it will have seen. RESOURCE_EXHAUSTED, also where rows that it sees are cold;
// FAILED_PRECONDITION: a row of it sees rows that are forgotten. Then nothing was added.
enum common_code worker_compute_add(struct worker_compute *compute, const struct worker_compute_item *item,
                                    struct kernels_coverage *coverage, uint64_t *digest,
                                    struct common_error *err);

// The layers of chunks that the item reads, which must be in memory before it is added: adds those that may
// not be.
void worker_compute_wants(const struct worker_compute_item *item, struct worker_wants *wants);

uint64_t worker_compute_madds(const struct worker_compute *compute); // multiply-adds of all items
// Of all items, as worker/core/pace.h counts it. kind: of kernels and shapes; 0: of several.
double worker_compute_work(const struct worker_compute *compute, uint64_t *kind);
uint64_t worker_compute_bytes(const struct worker_compute *compute); // of its own memory
uint64_t worker_compute_tokens(const struct worker_compute *compute);
uint32_t worker_compute_tasks(const struct worker_compute *compute); // 0 on a device
uint64_t worker_compute_scratch(const struct worker_compute *compute);

// What the store's device is to compute, NULL where there is nothing or no device; its arrays live as long as
// the computation.
const struct kernels_device_item *worker_compute_device_items(const struct worker_compute *compute,
                                                              uint32_t *n);

void worker_compute_run(void *compute, uint32_t task, void *scratch); // as a job's run; each task once

void worker_compute_free(struct worker_compute *compute); // unpins; no task is running. NULL is allowed

#endif
