// SPDX-License-Identifier: Apache-2.0
// What an operation's kernels read from device memory, and what ranks send each other: C and CUDA alike.
//
//     block of a rank    tag | partials of all items, packed (kernels/partial.h)
//     blocks on rank 0   [ranks], `stride` bytes apart; the merged result is left in the first
#ifndef REDUCE_NCCL_ARGS_H
#define REDUCE_NCCL_ARGS_H

#include <stdint.h>

#include "kernels/cuda/args.h"

#define NCCL_TAG_MAGIC UINT64_C(0x62616e79616e3031)

// Says of which step a block is, so that numbers of another one are never merged.
struct nccl_tag {
    uint64_t magic, generation, sequence;
    uint64_t step;  // a mix of term, plan, epoch, step and attempt
    uint64_t bytes; // of the packed partials
    uint32_t rank;
    uint32_t present;    // 0: this rank has no part in the step, the block holds nothing
    uint64_t verdict;    // set on rank 0 by the kernel: 0, or 1 + a rank whose block does not belong here
    uint64_t absentee;   // likewise: 0, or 1 + a rank that had no part
    uint64_t padding[8]; // to 128 bytes: the partials stand as aligned as the block
};

#define NCCL_TAG_BYTES 128u
#define NCCL_SOME_RANK UINT64_C(0xffffffff) // as a verdict or absentee

struct nccl_item {
    uint64_t at; // floats from the start of the partials to the item's m
    uint32_t first_pair, pairs;
    uint32_t plane; // floats from m to s, and from s to o
    uint32_t dv;
};

struct nccl_args {
    struct nccl_tag tag; // of the own block
    uint64_t stride;     // bytes
    uint32_t items, pairs, ranks;
    uint32_t items_at;    // bytes from here: struct nccl_item [items]
    uint32_t children_at; // uint32_t first[ranks + 1], child[ranks - 1]; ascending
    uint32_t unused;
};

// What ranks agree on before they add: floats, in this order, each the largest of all ranks.
//     top[pairs]       m of ranks with mass, else -inf
//     seen[pairs]      1 if a rank saw keys without mass
//     unknown[pairs]   1 if a rank's partial is NaN
//     proof[8]         four numbers of the tag, and their negatives: equal on all ranks, or the step is not
//     one
#define NCCL_PROOFS 8u

#ifdef __cplusplus
extern "C" {
#endif
// args: nccl_args. partials: the blocks (the own one first). out: what is agreed on.
extern const struct cuda_kernel
    nccl_kernel_merge; // [pairs] blocks: all ranks' into the first, in the plan's order
extern const struct cuda_kernel nccl_kernel_agree;  // [pairs]: fills `out` from the own block
extern const struct cuda_kernel nccl_kernel_scale;  // [pairs]: the own block relative to the agreed top
extern const struct cuda_kernel nccl_kernel_settle; // [pairs]: m, and what sums cannot say, into the block
#ifdef __cplusplus
}
#endif

#endif
