// SPDX-License-Identifier: Apache-2.0
// The coordinator's data: read this first. Everything belongs to the loop thread; nothing here is locked.
//
//   coordinator ──┬── workers[]   who is there                      membership.c, reconcile.c
//                 ├── sessions[]  what is kept, and where           session.c, relayout.c, attach.c,
//                 reshape.c (truncate, fork) │      └── layout: chunks ──▶ worker ├── plans       member set
//                 ──▶ tree, queues       plans.c ├── attends     client calls under way scheduler.c, frames.c
//                 └── store       what survives                     store.c
//
// An operation that waits (for workers, for the store) lives in a heap object of its own and ends by its
// callback; it finds its session again by id, because the session may be gone by then, unless it holds the
// session exclusively or counts in `session->shared`.
#ifndef COORDINATOR_STATE_H
#define COORDINATOR_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/loop.h"
#include "coordinator/coordinator.h"
#include "coordinator/layout.h"
#include "coordinator/quarantine.h"
#include "coordinator/rangeset.h"
#include "coordinator/store.h"
#include "proto/rpc.h"
#include "proto/status.h"
#include "reduce/plan.h"

#define COORDINATOR_WORKERS_MAX 4096
#define COORDINATOR_NAME_BYTES  129

// Objects of fixed size that our own operations need. What a peer sizes is checked and may fail; these abort
// when memory is gone.
static inline void *coordinator_alloc(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p)
        abort();
    return p;
}

// ---- workers ------------------------------------------------------------------------------------

//             Register (also after LOST, also with another instance)
//   ABSENT ───────────────▶ JOINING ──inventory reconciled──▶ ACTIVE
//      ▲                    │  ▲                                │
//      │      link broken,  │  │ link is back                   │ link broken
//      │      beats missed  ▼  │                                ▼
//      └──no chunk left── LOST ◀──grace over, beats missed── SUSPECT
//
// ABSENT is a slot that a name has but no process: known from the store. Only ACTIVE workers are sent steps
// and given chunks.
enum coordinator_worker_state {
    COORDINATOR_WORKER_ABSENT,
    COORDINATOR_WORKER_JOINING,
    COORDINATOR_WORKER_ACTIVE,
    COORDINATOR_WORKER_SUSPECT,
    COORDINATOR_WORKER_LOST,
    COORDINATOR_WORKER_STATES
};

struct coordinator_reconcile; // reconcile.c

struct coordinator_worker {
    struct coordinator *c;
    uint32_t slot; // index in coordinator.workers
    uint32_t life; // number of its Register, 0: none in this life. (life << 32 | slot + 1) is the id that it
                   // is told
    enum coordinator_worker_state state;
    char name[65], host[65], kernel[65], endpoint[160], edge_endpoint[160];
    char engine[16], algorithm[33], group[65]; // offered beside stream; "" where there is none
    uint32_t group_rank, group_size;
    bool engine_lost;         // it said, or showed, that its engine works no more
    uint64_t instance;        // of the process; 0: never seen
    uint64_t stored_instance; // the one that the store knows; 0: none
    bool fresh; // another instance than the one that the store knows: what that one held is gone
    uint64_t capacity_bytes, used_bytes, bandwidth, steps, last_compute_ns, reported_chunks;
    uint64_t speed; // the bandwidth that placement counts with: the best of its kind on its host
    uint32_t threads, cores;
    uint64_t promised_bytes;     // memory given out since, not yet seen in used_bytes
    uint64_t chunks, load_bytes; // in our layouts
    uint32_t members;            // sessions that count it as a member
    uint64_t last_beat_ns;
    struct proto_channel *channel;            // to its edge endpoint; NULL unless JOINING, ACTIVE or SUSPECT
    struct common_timer *grace;               // runs while its link is down
    struct coordinator_reconcile *reconcile;  // while JOINING
    struct proto_request *registering;        // its Register, answered when it is ACTIVE, or will not be
    uint32_t stamp;                           // of its last inventory
    struct coordinator_quarantine quarantine; // that its last inventory showed
};

// ---- sessions -----------------------------------------------------------------------------------

// Shared work (steps, attaches) runs side by side in ACTIVE. Exclusive work waits until no shared work is
// left, while new shared work waits for it; it ends back in ACTIVE, or with the session's end.
//
//              ┌──────────▶ RELAYOUT ────┐   members join: the epoch rises
//   ACTIVE ────┼──────────▶ TRUNCATING ──┼──▶ ACTIVE
//     ▲        ├──────────▶ FORKING ─────┤
//     │        └──────────▶ DELETING ─────────▶ (gone)
//   CREATING: being written to the store, in no table yet but its name's
enum coordinator_session_state {
    COORDINATOR_SESSION_CREATING,
    COORDINATOR_SESSION_ACTIVE,
    COORDINATOR_SESSION_RELAYOUT,
    COORDINATOR_SESSION_TRUNCATING,
    COORDINATOR_SESSION_FORKING,
    COORDINATOR_SESSION_DELETING,
    COORDINATOR_SESSION_GONE,
    COORDINATOR_SESSION_STATES
};

struct coordinator_session;
struct coordinator_item;
struct coordinator_plan;
struct coordinator_placing;
struct coordinator_watch;

typedef void (*coordinator_session_fn)(void *arg,
                                       struct coordinator_session *session); // NULL: it was deleted meanwhile

struct coordinator_item_list {
    struct coordinator_item *head, *tail; // tail counts only while there is a head
};

struct coordinator_exclusive { // a wish for the session alone
    struct coordinator_exclusive *next;
    enum coordinator_session_state state;
    coordinator_session_fn fn;
    void *arg;
};

struct coordinator_door { // shared work that waits until the session is open
    struct coordinator_door *next;
    coordinator_session_fn fn;
    void *arg;
};

struct coordinator_session {
    struct coordinator *c;
    uint64_t id;
    char name[COORDINATOR_NAME_BYTES];
    struct coordinator_session *name_next; // in its bucket of names
    Banyan__Pb__Spec *spec;                // owned; every default filled in
    uint64_t incarnation, write;           // the write numbers of a life start at its term << 40
    enum coordinator_session_state state;
    uint32_t shared;  // steps, opens and commits under way
    uint32_t writing; // of these: commits and appends, whose rows may be on workers and in no layer yet
    struct coordinator_exclusive *exclusive, **exclusive_tail;
    struct coordinator_door *doors, **doors_tail;
    uint32_t n_exclusive, n_doors;
    struct coordinator_layout layout;
    uint32_t withheld; // workers that have a newer state of it in quarantine: it is unavailable as a whole
    uint32_t
        missing; // chunks that cannot be computed now: lost, or their holder is not ACTIVE; and one if withheld
    uint32_t unknown;                    // chunks whose rows are not known yet (`known` is false)
    struct coordinator_rangeset *layers; // [spec->layers] committed rows
    struct coordinator_worker **members; // [n_members]
    uint32_t n_members;
    struct coordinator_plan *plan;        // a reference; NULL: to be made from the members that are ACTIVE
    struct coordinator_placing *placing;  // requests for chunks, the first one under way
    uint64_t place_again_ns;              // no placing ahead before: the last one failed
    struct coordinator_item_list waiting; // steps in order, until they may go
    uint32_t n_waiting;
    struct coordinator_item *appending; // the one append under way
    bool pumping;
    bool untidy; // a failed append may have left rows that no layer counts: the next truncate takes them away
    uint64_t steps, last_used_ns;
    struct coordinator_watch *watch; // what its last steps looked at (watch.h); NULL: nobody has asked
    uint64_t ticket_until_ns; // when the last ticket given for it ends: rows may be on their way until then
};

// ---- the whole ----------------------------------------------------------------------------------

struct coordinator_frame;
struct coordinator_attend;

struct coordinator {
    struct common_loop *loop;
    struct coordinator_options options; // strings owned
    struct common_secret secret;
    struct proto_server *server;
    struct coordinator_parked *parked; // calls that wait for workers to come back after a restart
    struct coordinator_store *store;
    uint64_t term, started_ns;
    uint64_t term_asked; // the highest that the store was asked to keep; not above `term` when none is
    bool stopping;
    struct common_timer *tick; // once per heartbeat: missed beats, idle sessions, idle plans

    struct coordinator_worker *workers[COORDINATOR_WORKERS_MAX]; // by slot
    uint32_t n_workers;                                          // slots in use, NULLs included
    uint32_t lives; // Registers; starts at term << 16, so that ids of an earlier life are foreign

    struct coordinator_session **sessions; // [options.max_sessions] by slot: id = generation << 32 | slot + 1
    uint32_t session_slots, n_sessions;
    uint32_t *free_slots, n_free_slots;
    struct coordinator_session *names[4096]; // buckets of sessions with a name

    struct coordinator_plan *plans; // list
    uint32_t n_plans;
    uint64_t plans_made;

    struct coordinator_attend *attends; // calls under way, doubly linked
    struct coordinator_item_list retries;
    struct coordinator_plan *dirty; // plans with new items, while a batch is being made
    uint32_t batches;
    struct coordinator_frame *frames; // spare
    uint32_t n_frames;
    struct common_timer *deadlines, *retry;
    bool deadlines_run, retry_runs;
    uint32_t items; // under way
    struct coordinator_watch *watches;
    uint32_t n_watches;
    uint64_t bytes; // of replies being gathered
    void *scratch;  // memory to build replies in
    size_t scratch_bytes;

    uint64_t count_steps, count_frames, count_retries, count_collective, step_ids;
};

// Room to build one message in: valid until the next call, grows only. NULL: out of memory.
void *coordinator_scratch(struct coordinator *c, size_t bytes);

// ---- after a restart (recovery.c) ----

// After a restart of the coordinator the workers are still there and come back by themselves. For a while a
// session whose rows they have not told yet is not "unavailable" but awaited.
bool coordinator_recovering(const struct coordinator_session *s);

// Keeps a call about such a session until there is news, then handles it again. False: handle it now.
bool coordinator_park(struct coordinator_session *s, struct proto_request *request,
                      void (*handle)(void *arg, struct proto_request *request));
void coordinator_unpark(struct coordinator *c); // there is news: a worker is ACTIVE, or the time is over

// ---- waiting for several ------------------------------------------------------------------------

// Counts answers down and keeps the first failure. `done` runs when all that were added have finished after
// the seal, on the stack of the last; the gather is gone then.
struct coordinator_gather {
    uint32_t pending;
    enum common_code code;
    char text[256];
    void (*done)(void *arg, enum common_code code, const char *text);
    void *arg;
};

struct coordinator_gather *
coordinator_gather_new(void (*done)(void *arg, enum common_code code, const char *text), void *arg);
void coordinator_gather_add(struct coordinator_gather *gather);
void coordinator_gather_finish(struct coordinator_gather *gather, enum common_code code, const char *text);
void coordinator_gather_seal(struct coordinator_gather *gather); // nothing more will be added
void coordinator_gather_stored(void *gather, enum common_code code,
                               const char *text); // a coordinator_store_fn

#endif
