// SPDX-License-Identifier: Apache-2.0
// A session: its state, who works on it, its chunks and members.
//
// Shared work (steps, attaches, commits) runs side by side in ACTIVE. Exclusive work waits until no shared work
// is left, while new shared work waits for it; it ends back in ACTIVE, or with the session's end.
//
//              ┌──────────▶ RELAYOUT ────┐   members join: the epoch rises
//   ACTIVE ────┼──────────▶ TRUNCATING ──┼──▶ ACTIVE
//     ▲        ├──────────▶ FORKING ─────┤
//     │        └──────────▶ DELETING ────┴──▶ GONE: in no table; freed when nothing refers to it
//   CREATING: being written to the store, in no table yet but its name's ──▶ GONE: the store refused
//
// DELETING ends in ACTIVE when the store refuses. At the end of the coordinator the ACTIVE ones are GONE from memory:
// what has them alone has ended by then.
#ifndef COORDINATOR_SESSION_H
#define COORDINATOR_SESSION_H

#include "common/loop/machine.h"
#include "coordinator/events.h"
#include "coordinator/session/layout.h"
#include "coordinator/session/move_ticket.h"
#include "coordinator/session/rangeset.h"
#include "coordinator/session/sessions.h"
#include "coordinator/session/tickets.h"
#include "proto/banyan.pb-c.h"
#include "proto/rpc/status.h"

#define COORDINATOR_NAME_BYTES 129
#define COORDINATOR_UNEVEN                                                                                   \
    UINT64_MAX // it is to be looked at who serves what, whether speeds have changed or not
#define COORDINATOR_EXCLUSIVE_MAX 64   // operations that may wait to have one session alone
#define COORDINATOR_DOORS_MAX     4096 // commits that may wait for one session

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
extern const struct common_machine coordinator_session_machine;

struct coordinator_exclusive; // a wish for the session alone
struct coordinator_kept;      // of the room of prefixes
struct coordinator_lane;      // of the room of steps
struct coordinator_move;
struct coordinator_named;
struct coordinator_placing;
struct coordinator_plan;
struct coordinator_repair;
struct coordinator_use;
struct coordinator_worker;

struct coordinator_session {
    struct coordinator_sessions *sessions;
    uint64_t id;
    uint32_t tenant;                       // whose it is; a fork is its origin's. Never changes
    struct coordinator_use *use;           // of the tenant: what its sessions have of its quotas
    char name[COORDINATOR_NAME_BYTES];     // unique in the tenant
    struct coordinator_session *name_next; // in its bucket of names
    uint64_t key;                          // of the call that made it; 0: none (keys.h)
    struct coordinator_session *key_next;  // in its bucket of keys
    struct coordinator_again *again;       // the same call, once more
    Banyan__Pb__Spec *spec;                // owned; every default filled in
    uint64_t
        origin; // of a fork made in this life: the session that it shares chunks with, if that is still there
    // Of the reply to the call that made it: of a fork the session that had its origin's states, of a session
    // that holds states (states.h) the one whose they are; 0: none.
    uint64_t states;
    uint64_t incarnation;
    uint64_t cut;    // number of the last truncate (cuts.h); its id before the first
    uint64_t cut_to; // no truncate has taken rows below it since the room of steps set it
    uint64_t write,
        open_write; // numbers of appends, from the term << 40 on: the last one, and that under way or 0
    enum coordinator_session_state state;

    uint32_t shared;  // steps, opens and commits under way
    uint32_t writing; // of these: commits and appends, whose rows may be on workers and in no layer yet
    uint64_t
        frozen_to; // commits up to this one are over, and a worker may have their rows frozen: see attach.c; 0: none
    uint64_t last_commit; // the number of the one that began last; 0: none has
    uint32_t n_waiting;   // steps that wait in its lane
    struct coordinator_exclusive *exclusive, **exclusive_tail;
    struct coordinator_door *doors, **doors_tail; // shared work that waits until the session is open
    uint32_t n_exclusive, n_doors;
    // The room of steps makes it and takes it away; NULL: no step has waited yet.
    struct coordinator_lane *lane;
    struct common_list settled, opened, gone; // in the lists of the room
    struct common_list uneven;                // likewise, while spread_seen is COORDINATOR_UNEVEN

    struct coordinator_layout layout;
    struct coordinator_repair *repairs; // at workers that are in doubt about it (repair.h): a list
    uint32_t repairing;                 // of these: what the session waits for
    uint32_t broken;                    // the others: it is unavailable as a whole
    uint64_t dirtied;                   // sessions.dirties when a worker was last to be told it again
    uint32_t withheld; // workers that have a newer state of it in quarantine: it is unavailable as a whole
    bool restored;     // one of them is not a worker, but an operator who has not spoken yet (restored.h)
    uint64_t counted;  // cluster.changes when `missing` was counted
    // Chunks that nobody can compute: lost, or no holder is ACTIVE; one if withheld, one if broken. See has_missing.
    uint32_t missing;
    uint32_t unknown; // chunks whose rows are not known yet (`known` is false)
    uint32_t
        awaited;   // chunks with a copy that can be used and one that cannot: the session waits (failover.h)
    uint32_t lost; // chunks that nobody has any more
    uint32_t thin, thick; // chunks with fewer copies than the spec asks for, and with more
    uint32_t single;      // of the thin ones: those with one copy
    uint64_t relearned; // of sessions.stamps: what visits up to it have heard of appended rows does not count
    uint64_t strike_again_ns; // no copy is struck off before: the store has refused; 0: it has not
    // [spec->layers] committed rows; of a layer that has none of its own, none: coordinator_session_rows
    struct coordinator_rangeset *layers;
    uint32_t first_layer;     // the first one that has rows of its own
    uint64_t token_bytes;     // of K and V of one token, all layers
    uint64_t table_bytes;     // of a full chunk at a worker, beside its K and V (proto/model/footprint.h)
    uint64_t counted_length;  // of the first layer, in its holders' `tokens`
    uint64_t floor;           // durable (forget.h)
    uint64_t floor_next;      // a higher one on its way to the store; 0: none
    uint64_t forget_again_ns; // no try before: the store has refused the last one
    uint64_t *newest;         // [spec->layers] where the newest write began; NULL: the spec forgets nothing
    struct coordinator_named
        *named; // [spec->layers] what holders say after a restart (named.h); NULL: nothing
    struct coordinator_worker **members; // [n_members]
    uint32_t n_members;
    struct coordinator_plan *plan;         // a reference; NULL: to be made from the members that are ACTIVE
    struct coordinator_move *moves;        // under way (move.h): a list
    struct coordinator_returned *returned; // copies that workers have come back with (returned.h): a list
    uint64_t spread_seen; // cluster.speeds when it was looked at who serves (spread.h), or COORDINATOR_UNEVEN
    struct coordinator_move_ticket move_ticket;
    struct coordinator_move_tries move_tries;
    struct coordinator_placing *placing; // requests for chunks, the first one under way
    uint64_t place_again_ns;             // no placing ahead before: the last one failed
    struct coordinator_chunk *copy;      // that a truncation under way has its holders make; NULL: none
    bool untidy; // a failed append may have left rows that no layer counts: the next truncate takes them away

    struct coordinator_kept *kept; // it has ended and stays as cache (prefix/prefix.h); NULL: it has not

    // Of events, for people:
    uint8_t seen_condition, told_condition; // condition.c

    uint64_t steps, last_used_ns;
    uint64_t declared;      // its epoch + 1 when the log said last that answers are partial; 0: never
    uint64_t read_until_ns; // when the last ticket to read its rows ends: it is in use until then
    struct coordinator_tickets tickets; // to put rows
};

// An event about it: coordinator_session_tell(s, SESSION_LOST, ERROR, "…", …); note: too frequent for the log.
#define COORDINATOR_SESSION_EVENT(s, what, how)                                                              \
    &(const struct coordinator_event)                                                                        \
    {                                                                                                        \
        .kind = PROTO_EVENT_##what, .severity = PROTO_EVENT_##how, .session = (s)->id,                       \
        .tenant = (s)->tenant, .session_name = (s)->name, .epoch = (s)->layout.epoch                         \
    }
#define coordinator_session_tell(s, what, how, ...)                                                          \
    coordinator_events_tell((s)->sessions->core->events, COORDINATOR_SESSION_EVENT(s, what, how), __VA_ARGS__)
#define coordinator_session_note(s, what, how, ...)                                                          \
    coordinator_events_note((s)->sessions->core->events, COORDINATOR_SESSION_EVENT(s, what, how), __VA_ARGS__)

// The layout has changed: the epoch is one higher, and an event says why.
void coordinator_session_raise_epoch(struct coordinator_session *s, const char *why);

// made: there is room now, or may be. False: there is not, and nothing more that could go.
typedef void (*coordinator_room_fn)(void *arg, bool made);

typedef void (*coordinator_visited_fn)(void *arg, enum common_code code, const char *text);

// The features above a session act on it through these, so that session.c and table.c call none of them.
// room.c sets them at the start; none is NULL.
struct coordinator_session_hooks {
    // Of coordinator_session_let_in, in this order:
    void (*settled)(
        struct coordinator_session *s);            // less work is under way; nothing that waits has begun yet
    void (*opened)(struct coordinator_session *s); // shared work may start; what waited for that has begun
    void (*served)(struct coordinator_session *s); // all has begun that may
    // coordinator_session_recount and coordinator_session_put_chunk: copies are missing, or no longer.
    void (*counted)(struct coordinator_session *s);
    // Of coordinator_session_destroy, and of the end of that turn:
    void (*ending)(struct coordinator_session *s); // GONE; it still has its name, chunks and members
    void (*ended)(struct coordinator_session *s);  // it is about to be freed: whatever waits for it fails
    // A create, fork or placing of the tenant has failed for want of room: of a quota, of sessions, of
    // workers' memory (failure->reason). True: something goes that is only kept as cache, `except` apart, and
    // fn is called when it has, never on this stack. False: nothing can.
    bool (*make_room)(struct coordinator_sessions *sessions, const struct proto_status *failure,
                      uint32_t tenant, const struct coordinator_session *except, coordinator_room_fn fn,
                      void *arg);
    // Of a repair (repair.h): as coordinator_visit_session (reconcile.h).
    void (*visit)(struct coordinator_sessions *sessions, struct coordinator_worker *w, uint64_t session,
                  coordinator_visited_fn done, void *arg);
};

// ---- who works on it ----

// The only way to alter a state; a transition that the diagram lacks is our bug.
void coordinator_session_set_state(struct coordinator_session *s, enum coordinator_session_state state);

// Whether shared work may start now: ACTIVE, nobody waits to have it alone, no worker is being asked about it, and of
// each chunk that can be used all copies can.
static inline bool coordinator_session_open(const struct coordinator_session *s)
{
    return s->state == COORDINATOR_SESSION_ACTIVE && !s->exclusive && !s->repairing && !s->awaited;
}

void coordinator_session_share(struct coordinator_session *s);
// What waits for the session may start at the end of the turn.
void coordinator_session_unshare(struct coordinator_session *s);

// What waits for the session may have its turn: looked at in the phase of sessions.
void coordinator_session_settle(struct coordinator_session *s);

typedef void (*coordinator_session_fn)(void *arg, struct coordinator_session *session);

// Calls fn when shared work may start, in the phase of sessions; session NULL when it goes first.
// RESOURCE_EXHAUSTED: too many wait (fn is not called).
enum common_code coordinator_session_when_open(struct coordinator_session *s, coordinator_session_fn fn,
                                               void *arg);

// Calls fn with the session in `state` once no shared work is left, in the phase of sessions;
// coordinator_session_release ends it. fn is told NULL when the session goes first. RESOURCE_EXHAUSTED: too
// many wait (fn is not called).
enum common_code coordinator_session_exclusive(struct coordinator_session *s,
                                               enum coordinator_session_state state,
                                               coordinator_session_fn fn, void *arg);
void coordinator_session_release(struct coordinator_session *s);

// Drains: lets in whoever may come in now.
void coordinator_session_let_in(struct coordinator_session *s);
// It is GONE: whoever waits for it is told so.
void coordinator_session_turn_away(struct coordinator_session *s);

// ---- what it holds ----

// The rows that a layer reads: its own, or those of the layer whose K and V it shares.
const struct coordinator_rangeset *coordinator_session_rows(const struct coordinator_session *s,
                                                            uint32_t layer);
uint64_t coordinator_session_layer_length(const struct coordinator_session *s, uint32_t layer);
// Of a layer with rows of its own: rows below it are forgotten, or about to be (forget.h).
uint64_t coordinator_session_forgotten(const struct coordinator_session *s, uint32_t layer);
// Holders have given back, or will, what the chunk had of this layer: all of it is forgotten.
bool coordinator_session_given_back(const struct coordinator_session *s, uint32_t layer, uint32_t index);
// Its committed rows that holders have memory for.
uint64_t coordinator_session_held(const struct coordinator_session *s, uint32_t layer);
// The holders' loads follow.
void coordinator_session_set_floor(struct coordinator_session *s, uint64_t floor);
uint64_t coordinator_session_length(const struct coordinator_session *s); // of the shortest layer
// After each change of `layers`: the holders' tokens follow.
void coordinator_session_count_tokens(struct coordinator_session *s);
// Past the last committed row of any layer.
uint64_t coordinator_session_end(const struct coordinator_session *s);
uint64_t coordinator_session_chunk_bytes(const struct coordinator_session *s); // of a full chunk, all layers
// Of that chunk alone: without the layers of it that are given back.
uint64_t coordinator_session_index_bytes(const struct coordinator_session *s, uint64_t index);
// What these two take of a worker's memory: with its tables. What is placed, moved and promised counts so.
uint64_t coordinator_session_chunk_room(const struct coordinator_session *s);
uint64_t coordinator_session_index_room(const struct coordinator_session *s, uint64_t index);
// The same of all copies that the session asks for: what the chunk counts in its tenant's quota.
uint64_t coordinator_session_index_quota(const struct coordinator_session *s, uint64_t index);
const char *coordinator_session_state_text(struct coordinator_session *s);

// FAILED_PRECONDITION where it is kept as cache: it takes no writes any more.
enum common_code coordinator_session_writable(const struct coordinator_session *s,
                                              struct proto_status *status);

uint64_t coordinator_session_next_write(struct coordinator_session *s); // higher than all of it, of any term
// Appends with a write number up to this one are over, and no holder is still to say what it has of them. 0: that
// cannot be said.
uint64_t coordinator_session_settled(struct coordinator_session *s);

// Chunks are put in and taken out by these alone: they keep the workers' counts and `missing` right. put:
// NULL is out of memory.
struct coordinator_chunk *coordinator_session_put_chunk(struct coordinator_session *s,
                                                        const struct coordinator_chunk *chunk);
void coordinator_session_remove_chunk(struct coordinator_session *s, uint32_t index);
// These copies (bits) count from now on: their holders are to have them, and visits that have begun say nothing of them
// (reconcile.h).
void coordinator_chunk_counts(const struct coordinator_sessions *sessions, struct coordinator_chunk *chunk,
                              uint32_t copies);
// A chunk is about to be dropped by its holder: its memory can be promised again at once, the next heartbeat
// says exactly how much.
void coordinator_session_memory_back(const struct coordinator_session *s,
                                     const struct coordinator_chunk *chunk);
// The same for one of its copies.
void coordinator_session_copy_back(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                                   uint32_t copy);
void coordinator_session_recount(struct coordinator_session *s); // after chunks' flags have changed
// Whether this holder can be asked about it now; one of its holders; all of them.
bool coordinator_session_copy_usable(const struct coordinator_chunk *chunk, uint32_t copy);
bool coordinator_session_chunk_usable(const struct coordinator_chunk *chunk);
// Copies that are leaving, and may: another one that can be used stays.
uint32_t coordinator_session_copies_leaving(const struct coordinator_chunk *chunk);
bool coordinator_session_chunk_whole(const struct coordinator_chunk *chunk);
// Whether there are chunks that are not usable now.
bool coordinator_session_has_missing(struct coordinator_session *s);

// It has changed, and the worker may have been told it already: one that is JOINING is told it again before it is
// ACTIVE. Nothing where it is ACTIVE.
void coordinator_session_dirty(struct coordinator_session *s, struct coordinator_worker *w);

bool coordinator_session_has_member(const struct coordinator_session *s, const struct coordinator_worker *w);
void coordinator_session_add_member(struct coordinator_session *s,
                                    struct coordinator_worker *w); // no-op when it is one
void coordinator_session_leave(struct coordinator_session *s,
                               struct coordinator_worker *w); // is no member any more
// Takes back the last `n` that were added.
void coordinator_session_drop_members(struct coordinator_session *s, uint32_t n);

// The plan of its members that are ACTIVE, kept until these change. NULL with the reason: nobody is there, or
// too many plans.
struct coordinator_plan *coordinator_session_plan(struct coordinator_session *s, struct proto_status *status);
void coordinator_session_drop_plan(struct coordinator_session *s);

#endif
