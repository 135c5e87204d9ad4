// SPDX-License-Identifier: Apache-2.0
// An item: one attention call for one layer of one session. It waits for its turn in its session's lane, is cut
// into slabs, travels down its plan's tree in frames, and comes back.
//
//             ┌──────────────────────── retry, other plan ◀────────────────────────┐
//             ▼                                                                    │
//   NEW ──▶ WAITING ──▶ NEW                                                     RETRYING
//    │                                                                           ▲    ▲
//    ├──▶ PLACING: its chunks are being placed ──▶ NEW                           │    │
//    │                                                                           │    │
//    └──▶ QUEUED ──frame sent──▶ FLYING ──a slab failed, a new attempt may mend──┘    │
//           │  ▲ (slabs of a cut item    │                                            │
//           │  └─ leave one by one) ─────┤                                            │
//           └── its plan has retired ────┼────────────────────────────────────────────┘
//                                        └──all slabs back──▶ DONE ◀── any refusal, from any state ──┐
//                                                              ▲                                     │
//                                                              └── UNDOING ◀── rows of it were sent ─┘
//                                                                     └──▶ RETRYING: a holder had no memory for its
//                                                                          chunk, and another one has
#ifndef COORDINATOR_ITEM_H
#define COORDINATOR_ITEM_H

#include "common/base/trace.h"
#include "common/loop/machine.h"
#include "coordinator/steps/slab.h"
#include "coordinator/steps/steps.h"
#include "coordinator/sync/missing.h"
#include "proto/model/spec.h"
#include "proto/rpc/status.h"
#include "proto/rpc/step.h"

struct coordinator_call;
struct coordinator_masses;
struct coordinator_plan;
struct coordinator_session;

enum coordinator_item_state {
    COORDINATOR_ITEM_NEW,      // in steps.fresh, until the end of the turn
    COORDINATOR_ITEM_WAITING,  // in its session's lane
    COORDINATOR_ITEM_PLACING,  // in no list: the placing completes
    COORDINATOR_ITEM_QUEUED,   // in its plan's queue
    COORDINATOR_ITEM_FLYING,   // in no list: its frames come back
    COORDINATOR_ITEM_RETRYING, // in steps.retries, until its time
    COORDINATOR_ITEM_UNDOING,  // in no list: the holders' words on an append that failed (undo.h)
    COORDINATOR_ITEM_DONE,
    COORDINATOR_ITEM_STATES
};
extern const struct common_machine coordinator_item_machine;

struct coordinator_item_ask {                      // what the client has asked for; never altered
    uint64_t session, incarnation, first, visible; // visible 0: AttendItem says what it means
    uint64_t block_first, block_count;             // rows of it see each other; count 0: none
    uint32_t layer, rows, q_heads, v_dim;
    bool append, partial;     // partial: what is lost may be left out, and is declared
    uint32_t mass_bins;       // masses are wanted, of so many stretches at most; 0: none
    bool mass_heads;          // of each query head
    const uint8_t *q, *k, *v; // in the request
    size_t q_bytes, k_bytes, v_bytes;
};

struct coordinator_item_reply { // where its results lie in the call's answer
    size_t o_offset, o_bytes, lse_offset, lse_bytes;
};

struct coordinator_item_way {      // of the present attempt: QUEUED and FLYING
    struct coordinator_session *s; // it counts in s->shared
    struct coordinator_plan *plan;
    struct coordinator_slabs slabs;
    uint32_t next_slab, slabs_left, bands_left; // bands: of rows whose append is not stored yet
    uint32_t in_frames;                         // slabs under way, and the masses
    uint64_t visible, length_before;
    bool at_once; // its rows may see later ones of its append: all of them go with the first slab
    bool apart;   // in frames of its own, and in the queue's list of such
    uint64_t digest, plan_digest;
    // What this attempt leaves out of [0, visible). Once the item has succeeded: what its rows would have seen of it.
    struct coordinator_missing missing;
};

struct coordinator_item_look { // where its rows looked and where its time went, when somebody wants to know
    bool watched;              // somebody watches the session
    bool counted;              // for steps that are kept, at its first attempt
    uint8_t keep;              // enum coordinator_keep_wish (keep.h)
    struct coordinator_masses *masses;
    uint64_t weighed_ns;        // when they were asked for
    struct proto_trace *traces; // [n_traces] of the frames that carried it
    uint32_t n_traces;
};

struct coordinator_item_trace { // spans.h
    bool known, sampled;        // it has one; and spans are wanted
    bool own; // somebody took spans here when it came: it has a span of its own, and its frames do
    struct common_trace parent;  // of the caller's span; its span_id is zero where we have drawn it
    uint8_t span_id[8];          // of its own span; where it has none, the caller's
    uint64_t sent_ns, landed_ns; // of the first frame, and of the last; 0: none has come back
};

struct coordinator_item {
    struct common_list link; // in the one list that its state names
    struct coordinator_call *call;
    enum coordinator_item_state state;
    uint32_t index; // in the call
    struct coordinator_item_ask ask;
    struct coordinator_item_reply reply;
    struct coordinator_item_way way;
    struct coordinator_item_look look;
    struct coordinator_item_trace trace;
    uint64_t write;    // number of its append, kept over attempts; 0: none yet
    bool sent, stored; // rows of its append in a frame, of any attempt; all of them, and acknowledged
    uint32_t attempt;
    uint64_t retry_at_ns;
    bool
        apart; // rows of it were on a worker's disk: it goes in a frame of its own, in which nobody waits with it
    bool again;     // a slab failed in a way that a new attempt may mend
    bool blind;     // it failed for rows that were not there, and the slab that brings them has not said why
    bool elsewhere; // a holder had no memory for its rows: once they are taken back it goes again
    uint32_t refusals;            // so many times
    struct proto_status *failure; // why not; NULL so far
    uint64_t length, plan_digest; // of the answer
    uint64_t seen, left_out;      // `partial`: tokens that its rows saw, and would have seen
};

// The only way to alter a state; a transition that the diagram lacks is our bug.
void coordinator_item_set_state(struct coordinator_item *item, enum coordinator_item_state state);

struct coordinator_steps *coordinator_item_steps(const struct coordinator_item *item);

// What its session's spec says of its layer, once it has a way.
struct proto_layer coordinator_item_layer(const struct coordinator_item *item);

// Its failure, made when there is none; to be filled in.
struct proto_status *coordinator_item_failure(struct coordinator_item *item);

// Sets the failure with session and layer. Always false.
bool coordinator_item_refuse(struct coordinator_item *item, enum common_code code, const char *reason,
                             const char *text);

// NEW: it runs at the end of the turn.
void coordinator_item_enter(struct coordinator_item *item);

// What it leaves out, instead of what an earlier attempt did; NULL: nothing. The ranges are its own from now on, and
// count in the call's n_missing and in coordinator_steps.bytes.
void coordinator_item_take_missing(struct coordinator_item *item, const struct coordinator_missing *missing);
void coordinator_item_clip_missing(struct coordinator_item *item, uint64_t from,
                                   uint64_t to); // keeps what lies in [from, to)

// lse of an item whose slabs are all back, [rows][q_heads]. NULL where nobody said that it would be needed.
const float *coordinator_item_lse(const struct coordinator_item *item);
// Likewise o, [rows][q_heads][v_dim]. NULL: its call was answered before it was there.
const float *coordinator_item_o(const struct coordinator_item *item);

#endif
