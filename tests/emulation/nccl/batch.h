// SPDX-License-Identifier: Apache-2.0
// What a group puts on a stream: sends, receives and collectives of one communicator that start together and
// end together. Executed by the emulated machine's thread (tests/emulation/cuda/emulation.h): bytes go to and
// from the rings as there is room; what was received is written to its place only when all is there.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/emulation/nccl/link.h"

enum batch_kind : uint32_t {
    BATCH_SEND,
    BATCH_RECV,
    BATCH_GATHER,
    BATCH_ALLREDUCE,
    BATCH_REDUCE,
    BATCH_BROADCAST
};

struct batch_call {
    batch_kind kind;
    const char *from;
    char *to;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; // or peer
};

struct batch;

struct batch_comm {  // the part of a communicator that outlives its handle
    std::mutex lock; // of all that follows
    int ranks = 0, rank = 0;
    std::unique_ptr<link_memory> link;
    bool aborted = false;         // what has not ended writes nothing and ends at once
    uint64_t calls = 0, next = 1; // tickets of batches that are not in a graph: started in this order
    uint64_t operations = 0;      // started so far
    uint64_t numbers[LINK_MOST_RANKS][2][LINK_LANES] = {}; // of messages [peer][send, receive][lane], so far
    batch *running = nullptr;                              // one at a time
    int eager = 0, captured = 0; // batches that live, outside of graphs and in graphs
};

size_t batch_type_bytes(ncclDataType_t type); // 0: not emulated

// In the order of calls on the communicator. Waits for nothing.
cudaError_t batch_put(const std::shared_ptr<batch_comm> &comm, std::vector<batch_call> calls,
                      cudaStream_t stream);

[[noreturn]] void batch_misuse(const char *what);
uint64_t batch_environment(const char *name, uint64_t otherwise = 0);
