// SPDX-License-Identifier: Apache-2.0
// What a step's kernels read from device memory: one buffer, filled by the host (plan.c), uploaded by one
// copy.
//
//     cuda_header[passes] | cuda_item[items], by pass and class | per item: q, slopes, unit table, runs
//
// All offsets are bytes from the start of the buffer and multiples of 16. A pass is as many items as share
// the workspace at once. A launch covers the tasks of one class (one kernel) of a pass: task = (unit *
// kv_heads + KV head) * tiles + tile, counted over the class's items. A unit is a number of consecutive
// blocks of 16 keys; a tile is `width` consecutive (query row, query head of the group) pairs: pair = row *
// group + head. Each task leaves a partial in the workspace, in floats:
//
//     m[width] | s[width] | o[width][v_dim]
//
// An item whose units' partials are more than the workspace is meant to hold is a pass of its own, in rounds
// of round_units units. From round to round the merge carries, for each (row, query head), in floats:
//
//     m | its state | s | what s lost | o[v_dim] | what o lost[v_dim]
#pragma once

#include <stdint.h>

#include "kernels/attention.h"

#define CUDA_BLOCK_KEYS  16u
#define CUDA_THREADS     128u  // of a block of any kernel
#define CUDA_LARGEST_DIM 1024u // of k_dim and v_dim
#define CUDA_TASKS_MOST  1024u // of a block of threads that goes on from task to task
#define CUDA_PLAIN_WIDTH 8u    // pairs in a tile of the plain kernels
#define CUDA_MLA_K_DIM   576   // of latents that hold their values
#define CUDA_MLA_V_DIM   512
#define CUDA_CLASSES     69u // 5 types x 3 dims x 4 widths, the plain kernels of 5 types, latents: 2 x 2

struct cuda_run { // of one unit: cut at units' borders
    uint64_t k, v, k_scale, v_scale, head_stride, first;
    uint32_t rows;
    uint32_t block; // how many blocks of the unit come before it
};

struct cuda_item {
    struct kernels_mask mask;
    uint64_t q_first;
    uint64_t q;       // offset of float [rows][q_heads][k_dim]
    uint64_t alibi;   // offset of float [q_heads], 0 = none
    uint64_t units;   // offset of uint32_t [unit_count + 1]: index of each unit's first run
    uint64_t runs;    // offset of cuda_run []
    uint64_t partial; // offset in the workspace, in floats, of task 0's partial
    uint64_t carry;   // the same of what goes from round to round, where there is more than one
    // Offset in the output, in floats, of m[rows][q_heads] | s | o as kernels/partial.h packs them.
    uint64_t out;
    uint32_t rows, kv_heads, group, k_dim, v_dim;
    uint32_t v_stride; // elements from a value to the next
    uint32_t unit_count, round_units, tiles, width;
    uint32_t first_task;  // of the class's tasks in its pass
    uint32_t first_merge; // of the pass's (row, query head)s
    float scale, soft_cap;
};

struct cuda_class {
    uint32_t first_item, items, tasks;
};

struct cuda_header {                         // of a pass
    uint64_t items_at;                       // offset of its items, a multiple of 8
    uint32_t items, merges;                  // merges: (row, query head)s of all its items
    struct cuda_class classes[CUDA_CLASSES]; // tasks: of a round
};

// Floats that the merge carries for a (row, query head).
#define CUDA_CARRY(v_dim) (4u + 2u * (v_dim))

// The parameter of every kernel. Grids may be larger than the tasks: surplus blocks end at once.
struct cuda_launch {
    uint64_t args; // device addresses
    uint64_t partials;
    uint64_t out;
    uint32_t class_index; // not for the merge
    uint32_t pass, round;
};

struct cuda_copy { // rows of bytes, from block to block
    uint64_t to, to_pitch, from, from_pitch, width;
    uint32_t parts;      // of a row: CUDA_COPY_PART bytes each but the last
    uint32_t first_task; // task = row * parts + part
};

#define CUDA_COPY_PART 8192u

struct cuda_kernel {
    const void *function;
    uint32_t shared_bytes;    // dynamic shared memory
    uint32_t shared_bytes_80; // the same on compute capability 8.x
    uint32_t goes_on;         // not 0: block b of threads computes tasks b, b + blocks, b + 2 blocks, ...
};

// One table a KV type: [dim 64, 128, 256][width 8, 16, 32, 64].
#ifdef __cplusplus
extern "C" {
#endif
extern const struct cuda_kernel cuda_tiles_f32[3][4], cuda_tiles_f16[3][4], cuda_tiles_bf16[3][4],
    cuda_tiles_int8[3][4], cuda_tiles_fp8[3][4];
extern const struct cuda_kernel cuda_plain[5];    // by KV type - 1
extern const struct cuda_kernel cuda_mla[2][2];   // [binary16, bfloat16][width 16, 32]
extern const struct cuda_kernel cuda_wgmma[2][2]; // [binary16, bfloat16][dim 64, 128], width 64: wgmma.cuh
extern const struct cuda_kernel cuda_merge, cuda_read, cuda_copies;
#ifdef __cplusplus
}
#endif
