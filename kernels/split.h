// SPDX-License-Identifier: Apache-2.0
// One worker's share of an attention step, cut into tasks that any number of threads may run, with the same
// bits.
//
// The cut is a rule of the item alone (its shape, its list of chunks), never of threads, load or other items:
//
//             unit 0           unit 1        ...      a unit = U consecutive chunks of the item's list
//         +---------------+---------------+----
//  heads 0| tile 0 tile 1 | tile 0 tile 1 |           a tile = T consecutive query rows
//  heads 1|               |               |           a task = (unit, G KV heads, tile), computed on its own
//         +---------------+---------------+----
//
//     T = max(1, 64 / group) rows: about 64 (row, head) pairs share each key
//     U = 8 * clamp(ceil(rows * group / 128), 1, 16) chunks: partials stay near 1/16 of the KV they come from
//     G = KERNELS_JOBS where pairs are few, so that memory is read from its beginning to its end; halved
//         while that leaves fewer than 64 tasks. It does not decide bits.
//
// Units are merged pairwise in order: 0+1, 2+3, ..., then (0+1)+(2+3), ...: rounding grows with the logarithm
// of their number.
//
// Use: init, then run each task 0 .. tasks-1 once, in any order and on any thread, then (all done) merge
// once. Nothing here allocates; the caller provides the workspace and, per thread, the scratch.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/attention.h"

struct kernels_item {
    const struct kernels_spec *spec;
    const struct kernels_attention *kernel; // supports the spec
    uint32_t rows;
    uint64_t q_first, visible; // as in a job
    uint64_t block_first, block_end;
    const float *q;                       // [rows][q_heads][k_dim] with strides
    uint64_t q_row_stride, q_head_stride; // in floats
    uint32_t chunk_tokens; // > 0; a run at position p belongs to chunk p / chunk_tokens and stays inside it
    uint32_t run_count;    // runs per KV head
    // [kv_heads][run_count]; positions and rows are the same for every head, and the runs of one chunk stand
    // together.
    const struct kernels_run *runs;
};

struct kernels_split {
    const struct kernels_item *item;
    uint32_t units, tiles, tile_rows, heads, tasks; // tasks = units * ceil(kv_heads / heads) * tiles
    const uint32_t *unit_start;                     // [units + 1] indices of runs
    char *partials;                                 // units * kv_heads * tiles packed blocks
    uint64_t partial_bytes;                         // bytes of one
};

// Bytes of the workspace (aligned to KERNELS_ALIGN) that an item needs; 0 if they or the tasks pass what
// fits.
uint64_t kernels_split_bytes(const struct kernels_item *item);

// Bytes of scratch per thread that runs this item's tasks (aligned to KERNELS_ALIGN).
uint64_t kernels_split_scratch(const struct kernels_item *item);

// Lays the tasks out in a workspace of kernels_split_bytes() > 0 bytes. item and its arrays must outlive the
// split.
void kernels_split_init(struct kernels_split *split, const struct kernels_item *item, void *workspace);

void kernels_split_run(const struct kernels_split *split, uint32_t task, void *scratch);

// Overwrites out, [rows][q_heads], with the merge of all tasks. No keys: the identity.
void kernels_split_merge(const struct kernels_split *split, const struct kernels_partial *out);
