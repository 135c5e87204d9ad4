// SPDX-License-Identifier: Apache-2.0
// What the files of a communicator share: comm.c (the loop's side, and the thread from its start to its end),
// forming.c and serving.c (what the thread does). Nothing else includes it.
#ifndef REDUCE_NCCL_COMM_PRIVATE_H
#define REDUCE_NCCL_COMM_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "reduce/nccl/comm.h"
#include "reduce/nccl/lane.h"

struct nccl_comm {
    struct nccl_comm_options options;
    int32_t *parents;
    unsigned refs; // the thread, and what is posted
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // under lock
    bool released;
    enum nccl_comm_state state;
    struct common_error why;
    bool has_id;
    uint8_t id[PROTO_COLLECTIVE_ID_MAX];
    struct nccl_work *given; // ascending sequence
    uint32_t holders;
    bool condemned; // for `why`
    bool go, was_ready;
    uint64_t completed;
    bool telling; // `change` is in use
    struct common_mail change;
    // the thread's
    atomic_bool stop;
    struct nccl_room room;
    uint64_t gap_since_ns, gap_warned;
    uint64_t next; // sequence to be started
    struct nccl_work *running[NCCL_LANES];
    uint32_t n_running;
    bool counted;              // as one with operations under way (quiet.h)
    struct nccl_trials trials; // written before READY
};

// forming.c, on the thread: buffers, id, join, try out. OK: all ranks have joined, and `trials` is written.
enum common_code nccl_comm_form(struct nccl_comm *comm, struct common_error *err);
// serving.c, on the thread: runs operations until the communicator is released (OK) or broken.
enum common_code nccl_comm_serve(struct nccl_comm *comm, struct common_error *err);

// comm.c, on the thread: whether it has operations under way.
void nccl_comm_count(struct nccl_comm *comm, bool running);
// comm.c. Under lock: calls `changed` on the loop, unless it is released.
void nccl_comm_tell(struct nccl_comm *comm);
// Under lock: the work is finished with, and goes back to the loop.
void nccl_comm_hand_back(struct nccl_comm *comm, struct nccl_work *work);

#endif
