// SPDX-License-Identifier: Apache-2.0
// Steps: a client's Attend call is an `attend` with items; an item waits for its turn in its session, is cut
// into slabs, travels down its plan's tree in frames, and comes back (docs/ARCHITECTURE.md, "A step").
//
//             ┌──────────────────────── retry, other plan ◀────────────────────┐
//             ▼                                                                │
//   NEW ──▶ WAITING ──▶ QUEUED ──frame sent──▶ FLYING ──all slabs back──▶ DONE │ RETRYING
//    │        ▲  │          (slabs of a cut item leave one by one)             │    ▲
//    │        │  └──▶ PLACING: its chunks are being placed                     └────┘
//    └────────┴─────────────── any refusal ─────────────────────────────▶ DONE
#ifndef COORDINATOR_SCHEDULER_H
#define COORDINATOR_SCHEDULER_H

#include "coordinator/mass.h"
#include "coordinator/plans.h"
#include "coordinator/slab.h"
#include "coordinator/state.h"
#include "proto/step.h"

#define COORDINATOR_WAITING_MAX  4096          // items that may wait for one session
#define COORDINATOR_APPEND_BYTES (1024 * 1024) // K and V of one append; more is attached
#define COORDINATOR_FRAME_ITEMS  1024
#define COORDINATOR_FRAME_HEADER (48 * 1024)       // bytes of packed header, estimated from above
#define COORDINATOR_FRAME_BYTES  (4 * 1024 * 1024) // q, k and v; a single slab may be more

enum coordinator_item_state {
    COORDINATOR_ITEM_NEW,
    COORDINATOR_ITEM_WAITING,
    COORDINATOR_ITEM_PLACING,
    COORDINATOR_ITEM_QUEUED,
    COORDINATOR_ITEM_FLYING,
    COORDINATOR_ITEM_RETRYING,
    COORDINATOR_ITEM_DONE,
    COORDINATOR_ITEM_STATES
};

struct coordinator_item {
    struct coordinator_item *next; // in the one list that its state names
    struct coordinator_attend *attend;
    uint64_t session;
    enum coordinator_item_state state;
    uint32_t index, layer, rows, q_heads, v_dim;
    uint64_t first, asked_visible, incarnation;
    bool append;
    const uint8_t *q, *k, *v; // in the request
    size_t q_bytes, k_bytes, v_bytes;
    size_t o_offset, o_bytes, lse_offset, lse_bytes; // in the reply

    struct coordinator_session *s; // while it counts in s->shared: QUEUED and FLYING
    struct coordinator_plan *plan; // QUEUED and FLYING
    struct coordinator_slabs slabs;
    uint32_t next_slab, slabs_left, bands_left, in_frames,
        attempt; // bands: of rows whose append is not stored yet
    uint64_t visible, length_before, write, retry_at_ns, digest, plan_digest, length;
    uint32_t mass_bins; // masses are wanted, of so many stretches at most; 0: none
    bool mass_heads;    // of each query head
    struct coordinator_masses *masses;
    uint64_t weighed_ns;        // when they were asked for
    bool look;                  // somebody watches the session
    struct proto_trace *traces; // [n_traces] of the frames that carried it, when somebody looks
    uint32_t n_traces;
    bool again;                   // a slab failed in a way that a new attempt may mend
    struct proto_status *failure; // why not; NULL so far
};

struct coordinator_attend {
    struct coordinator_attend *next, *prev;
    struct coordinator *c;
    struct proto_request *request; // NULL once answered
    struct common_blob *blob;      // of the request: what the items point into
    uint64_t arrived_ns, deadline_ns, tree_ns, mass_ns;
    bool want_lse, want_trace, want_mass;
    uint32_t refs; // unfinished items, an answer not sent, callbacks to come
    uint32_t left; // unfinished items
    size_t o_bytes, lse_bytes;
    uint8_t *out; // o then lse, allocated when the first slab is copied in
    struct proto_step_result
        *result; // instead of `out`: the whole answer of the one frame that carried exactly this call
    struct proto_trace *traces;
    uint32_t n_traces, n_items;
    size_t mass_values; // of all items' masses
    struct coordinator_item items[];
};

// ---- scheduler.c ----
void coordinator_item_set_state(struct coordinator_item *item, enum coordinator_item_state state);
void coordinator_item_run(
    struct coordinator_item *item); // NEW, RETRYING or just placed: finds its way, or its end
void coordinator_item_stop(struct coordinator_item *item, enum common_code code,
                           const char *text); // ends it unless it flies
void coordinator_item_finish(
    struct coordinator_item *item); // failure says whether it worked; the item (and its session) may be gone
struct proto_status *
coordinator_item_fail(struct coordinator_item *item); // its failure, made when there is none; to be filled in
void coordinator_item_acknowledge(struct coordinator_item *item); // its rows are stored
void coordinator_item_landed(struct coordinator_item *item); // a frame that carried a slab of it came back
void coordinator_items_batch_begin(struct coordinator *c);   // frames are not sent until the end,
void coordinator_items_batch_end(struct coordinator *c);     // so that what is queued in between shares them

void coordinator_scheduler_pump(struct coordinator_session *s); // waiting items that may go now
void coordinator_scheduler_session_gone(struct coordinator_session *s);
void coordinator_scheduler_plan_ready(struct coordinator_plan *plan);
void coordinator_scheduler_plan_retired(struct coordinator_plan *plan);
enum common_code coordinator_scheduler_init(struct coordinator *c);
void coordinator_scheduler_stop(struct coordinator *c); // ends all calls; frames are still to come back
void coordinator_scheduler_fini(struct coordinator *c);

// ---- attend.c ----
void coordinator_handle_attend(void *arg, struct proto_request *request);
void coordinator_attend_answer(struct coordinator_attend *a, enum common_code unfinished,
                               const char *text); // at most once
void coordinator_attend_unref(struct coordinator_attend *a);
bool coordinator_attend_room(struct coordinator_attend *a); // makes `out`; false: out of memory
// lse of an item whose slabs are all back, [rows][q_heads]. NULL where nobody said that it would be needed.
const float *coordinator_item_lse(const struct coordinator_item *item);
void coordinator_trace_message(const struct proto_trace *trace,
                               Banyan__Pb__WorkerTrace *out); // strings are borrowed

// ---- frames.c ----
void coordinator_plan_pump(struct coordinator_plan *plan); // sends what may be sent
void coordinator_plan_enqueue(struct coordinator_plan *plan, struct coordinator_item *item);
void coordinator_frames_free(struct coordinator *c);

// Of the time inside the coordinator, what it did not wait for a tree or for masses.
static inline uint64_t coordinator_own_ns(uint64_t inside_ns, uint64_t tree_ns, uint64_t mass_ns)
{
    return inside_ns > tree_ns + mass_ns ? inside_ns - tree_ns - mass_ns : 0;
}

static inline void coordinator_list_push(struct coordinator_item_list *list, struct coordinator_item *item)
{
    item->next = NULL;
    if (list->head)
        list->tail->next = item;
    else
        list->head = item;
    list->tail = item;
}

static inline struct coordinator_item *coordinator_list_pop(struct coordinator_item_list *list)
{
    struct coordinator_item *item = list->head;
    if (item)
        list->head = item->next;
    return item;
}

static inline bool coordinator_list_remove(struct coordinator_item_list *list, struct coordinator_item *item)
{
    struct coordinator_item *before = NULL;
    for (struct coordinator_item *i = list->head; i; before = i, i = i->next) {
        if (i != item)
            continue;
        if (before)
            before->next = i->next;
        else
            list->head = i->next;
        if (list->tail == i)
            list->tail = before;
        return true;
    }
    return false;
}

#endif
