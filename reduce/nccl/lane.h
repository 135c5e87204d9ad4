// SPDX-License-Identifier: Apache-2.0
// Where operations run: a stream, and the buffers of each one that may be under way. The communicator's
// thread alone calls these, but where said otherwise.
#ifndef REDUCE_NCCL_LANE_H
#define REDUCE_NCCL_LANE_H

#include <cuda_runtime.h>
#include <stdatomic.h>

#include "reduce/nccl/comm.h"
#include "reduce/nccl/library.h"
#include "reduce/nccl/memory.h"

#define NCCL_GRAPHS 8u // shapes that a lane remembers

// What a lane keeps for a shape. The first operation of a shape goes without a graph, the second makes it.
//
//     FREE ──first of its shape──▶ SEEN ──second──▶ CAPTURED
//                                   ▲──────────────────┘  the oldest of all: taken for another shape
enum nccl_graph_state { NCCL_GRAPH_FREE, NCCL_GRAPH_SEEN, NCCL_GRAPH_CAPTURED, NCCL_GRAPH_STATES };

struct nccl_graph {
    enum nccl_graph_state state;
    uint64_t key, used;   // used: the room's clock when it last was
    cudaGraphExec_t exec; // in CAPTURED
};

struct nccl_lane {
    char *blocks, *agreed, *args; // on the device: own block first; rank 0 has all ranks'
    char *host_block, *host_args; // pinned: what goes up
    char *host_out;               // pinned, rank 0: what comes down
    cudaEvent_t packed, done;     // packed: the device has left the own part here
    struct nccl_graph graphs[NCCL_GRAPHS];
};

struct nccl_room {
    int device;
    uint32_t rank, ranks;
    size_t bytes_max, args_max, stride; // stride: of a block
    uint64_t patience_ns;               // of a call of NCCL
    cudaStream_t stream;                // of the highest priority
    ncclComm_t comm;                    // NULL: none yet
    const atomic_bool *stop;
    uint64_t clock;
    struct nccl_memory *memory;
    struct nccl_lane lanes[NCCL_LANES];
};

// Sets device, rank, ranks, patience and stop before. RESOURCE_EXHAUSTED, UNAVAILABLE.
enum common_code nccl_room_init(struct nccl_room *room, struct common_error *err);
// Aborts the communicator, so that the device releases what waits for other ranks. No other thread is inside
// NCCL with it.
void nccl_room_abort(struct nccl_room *room);
void nccl_room_fini(struct nccl_room *room); // waits for the stream; no communicator is left

// UNAVAILABLE when it is not cudaSuccess or ncclSuccess, with the reason.
enum common_code nccl_room_cuda(cudaError_t error, const char *what, struct common_error *err);
// The same after a call of a non-blocking communicator: waits until the call is over. CANCELLED: stopped.
// DEADLINE_EXCEEDED: it did not end within patience, as a peer did not make its call; nothing but
// nccl_room_abort may follow.
enum common_code nccl_room_settle(struct nccl_room *room, ncclResult_t result, const char *what,
                                  struct common_error *err);

// Puts an operation on the stream, as a graph where its shape has come before.
enum common_code nccl_lane_start(struct nccl_room *room, struct nccl_lane *lane, const struct nccl_work *work,
                                 struct common_error *err);
// What it has come to, once `done` is over: sets code, text and out of the work.
void nccl_lane_finish(const struct nccl_room *room, const struct nccl_lane *lane, struct nccl_work *work);

#endif
