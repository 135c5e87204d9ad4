// SPDX-License-Identifier: Apache-2.0
// A communicator of a plan's members, and the operations on it. It has a thread, the only one that is ever
// inside NCCL with it; the loop hands it work and gets it back, finished.
//
// Operations run in the order of their sequence, whatever the order in which they are given: all ranks give
// every sequence, those that have no part in a step give an absence. At most NCCL_LANES are under way: rank 0
// sees to that. One that a rank never gives holds up all that come later, on every rank, until `patience` is
// over: then the communicator is broken, which is final.
//
// All functions are the loop thread's.
#ifndef REDUCE_NCCL_COMM_H
#define REDUCE_NCCL_COMM_H

#include "common/loop/loop.h"
#include "common/memory/blob.h"
#include "kernels/device.h"
#include "reduce/nccl/layout.h"

#define NCCL_LANES     4u
#define NCCL_COMMS_MAX 16u // of a process, those that end included; plans beyond go by stream

//     FORMING ──joined by all, tried out──▶ READY ──an error, time is over, released──▶ BROKEN
//        └──────────────────────an error, time is over, released──────────────────────────▲
enum nccl_comm_state { NCCL_COMM_FORMING, NCCL_COMM_READY, NCCL_COMM_BROKEN, NCCL_COMM_STATES };

enum nccl_variant {
    NCCL_VARIANT_GATHER, // all blocks to rank 0, merged there in the plan's order: the bits of `stream`
    NCCL_VARIANT_SUM,    // ranks agree on the largest m, scale to it, and are added
    NCCL_VARIANTS
};

enum nccl_source {
    NCCL_SOURCE_ABSENT, // this rank has no part in the step
    NCCL_SOURCE_HOST,   // `image` is the own part
    NCCL_SOURCE_DEVICE  // the sink has it
};

struct nccl_comm; // opaque
struct nccl_lane;

// One operation, from nccl_work_new to its `done`.
struct nccl_work {
    uint64_t sequence;
    enum nccl_variant variant;
    struct nccl_layout layout; // owned by the work
    enum nccl_source source;
    struct common_blob *image; // reference held; NULL: absent, or all of it comes from the device
    uint64_t step;             // for the log
    // Once, on the loop, unless NULL by then; the work is gone afterwards. On rank 0 with COMMON_OK: `out` is
    // what all ranks have together; the reference may be taken.
    void (*done)(void *arg, struct nccl_work *work);
    void *arg;
    enum common_code code;
    char text[192];
    struct common_blob *out;
    // the communicator's own
    struct nccl_work *next;
    struct common_mail mail; // back to the loop
    struct nccl_comm *comm;
    struct nccl_lane *lane;
    struct kernels_device_sink sink;
    bool given;
    bool packed;       // the own part is there, or will never come from the device
    uint64_t since_ns; // nothing of this rank is missing, and it is the first
    bool warned;
};

struct nccl_comm_options {
    struct common_loop *loop;
    uint32_t device; // CUDA's index
    uint32_t rank, ranks;
    const int32_t *parents; // [ranks]; rank 0 merges by it
    uint64_t generation;
    const uint8_t *id;          // [128]; NULL on rank 0: it makes one
    uint64_t plan;              // for the log
    uint64_t patience_ns;       // of operations under way and of forming
    void (*changed)(void *arg); // on the loop, after the state or the id changed
    void *arg;
};

// Starts to form it. NULL: out of memory or threads, or there are NCCL_COMMS_MAX.
struct nccl_comm *nccl_comm_new(const struct nccl_comm_options *options);

// Rank 0: the id has been sent to the others, and it may wait for them.
void nccl_comm_go(struct nccl_comm *comm);
// Ends it: operations under way are aborted, `changed` is not called any more. It goes when the device has
// released its memory and nothing holds it. Works that were given come back all the same, while it is held.
void nccl_comm_release(struct nccl_comm *comm); // NULL is allowed
// A work that is not over holds it.
void nccl_comm_hold(struct nccl_comm *comm);
void nccl_comm_drop(struct nccl_comm *comm);
// It is to be BROKEN, for that reason. Its thread sees to that: until then its state is READY.
void nccl_comm_break(struct nccl_comm *comm, const char *why);
bool nccl_comm_condemned(
    const struct nccl_comm *comm); // nccl_comm_break was called: it takes no more operations

// why: when BROKEN; UNAVAILABLE is CUDA's or NCCL's own fault, other codes are time, memory or an order.
enum nccl_comm_state nccl_comm_state_get(const struct nccl_comm *comm, struct common_error *why);
bool nccl_comm_was_ready(const struct nccl_comm *comm);
uint64_t nccl_comm_generation(const struct nccl_comm *comm);
const uint8_t *nccl_comm_id(const struct nccl_comm *comm); // [128]; NULL: not made yet
size_t nccl_comm_bytes_max(const struct nccl_comm *comm);  // of a step's partials; larger ones go another way
uint64_t nccl_comm_completed(const struct nccl_comm *comm); // operations so far, the first of the sequence

// What both variants take, as measured on rank 0 when it was formed.
#define NCCL_TRIALS 3u // sizes
struct nccl_trials {
    size_t bytes[NCCL_TRIALS]; // ascending; 0: not measured
    double us[NCCL_TRIALS][NCCL_VARIANTS];
};
void nccl_comm_trials(const struct nccl_comm *comm, struct nccl_trials *out); // once it was ready
enum nccl_variant nccl_trials_faster(const struct nccl_trials *trials, size_t bytes);

struct nccl_work *nccl_work_new(const struct nccl_layout *layout); // takes the layout. NULL: out of memory
void nccl_work_free(struct nccl_work *work);                       // one that was never given
// Where the device is to leave the own part, which stands for host memory at `base`. `image` (its reference
// is taken): what the device does not write. NULL: give it from the host. The device's submission gives the
// work; or nccl_comm_give does, where that never comes.
const struct kernels_device_sink *nccl_comm_sink(struct nccl_comm *comm, struct nccl_work *work,
                                                 const void *base, struct common_blob *image);
// Hands it over: exactly once. `source` and what goes with it are set.
void nccl_comm_give(struct nccl_comm *comm, struct nccl_work *work);

// Waits until all threads of released communicators are gone, at most that long. False: some are not.
bool nccl_comm_drain(uint64_t time_ns);

#endif
