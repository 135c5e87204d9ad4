// SPDX-License-Identifier: Apache-2.0
// A step as an operation's kernels see it. Pure; needs neither CUDA nor NCCL.
#ifndef REDUCE_NCCL_LAYOUT_H
#define REDUCE_NCCL_LAYOUT_H

#include <stddef.h>

#include "proto/rpc/step.h"
#include "reduce/nccl/args.h"

struct nccl_layout {
    size_t bytes;      // of the packed partials
    size_t args_bytes; // of args, a multiple of 64
    uint32_t pairs;
    struct nccl_args *args; // owned
};

// `ranks` is 1 where nothing is merged by rank; else `parents` says who asks whom. `bytes`: of the step's
// packed partials. False: out of memory, or more (row, head) pairs than a grid takes.
bool nccl_layout_make(struct nccl_layout *out, const struct proto_step *step, size_t bytes,
                      const int32_t *parents, uint32_t ranks);
// The most bytes of args that steps of a rank take.
size_t nccl_layout_args_most(uint32_t ranks);
void nccl_layout_free(struct nccl_layout *layout);

#endif
