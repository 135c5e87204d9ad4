// SPDX-License-Identifier: Apache-2.0
// The engine's view of a plan: the tree of stream edges, and a communicator of its members.
//
// Rank 0 decides for each step how its partials come up, and says so in the frame: in the answers, as with
// `stream`, or as an operation of the communicator, with its place in their order. It takes the communicator
// when all ranks have said that they are in it; until then, while one is formed again, for steps that are too
// large or come too fast, it is `stream`. The id travels in the frames.
#ifndef REDUCE_NCCL_GROUP_H
#define REDUCE_NCCL_GROUP_H

#include "reduce/engine.h"
#include "reduce/nccl/comm.h"

// What holds for all plans of the process. Set before the first one is opened.
enum nccl_algorithm { NCCL_ALGORITHM_GATHER, NCCL_ALGORITHM_SUM, NCCL_ALGORITHM_AUTO };
struct nccl_setting {
    uint32_t device; // CUDA's index
    enum nccl_algorithm algorithm;
    uint64_t patience_ns; // of an operation under way, and of forming
};
extern struct nccl_setting nccl_setting;

extern struct reduce_engine_ops nccl_engine; // `repeatable` is set with the algorithm

// Whether forming has failed so often that it is given up in this process.
bool nccl_engine_lost(struct common_error *err);

#endif
