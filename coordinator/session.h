// SPDX-License-Identifier: Apache-2.0
// Sessions: the table, the state machine (state.h), and who may work on one when. Their placement is in
// relayout.h, their service in session_service.c.
#ifndef COORDINATOR_SESSION_H
#define COORDINATOR_SESSION_H

#include "coordinator/state.h"

#define COORDINATOR_EXCLUSIVE_MAX 64   // operations that may wait to have one session alone
#define COORDINATOR_DOORS_MAX     4096 // commits that may wait for one session

// ---- the table ----

struct coordinator_session *coordinator_session_find(const struct coordinator *c,
                                                     uint64_t id); // NULL: unknown, zero, deleted
struct coordinator_session *
coordinator_session_any(const struct coordinator *c,
                        uint64_t id); // also one that is CREATING: workers may hold chunks of a new fork
struct coordinator_session *coordinator_session_named(const struct coordinator *c, const char *name);

// What to say about an id that find does not know: INVALID_ARGUMENT for zero, else NOT_FOUND. Returns the
// code.
enum common_code coordinator_session_unknown(uint64_t id, struct proto_status *status);

// A session that is in no table yet, CREATING, with an id of its own. Takes `spec`, which is checked and
// complete, on success. RESOURCE_EXHAUSTED: too many sessions. ALREADY_EXISTS: the name is taken (the name is
// reserved from now on).
enum common_code coordinator_session_new(struct coordinator *c, const char *name, Banyan__Pb__Spec *spec,
                                         struct coordinator_session **out, struct proto_status *status);
void coordinator_session_enter(struct coordinator_session *s); // CREATING → ACTIVE, found by id from now on

// Ends a session, in a table or not: its steps fail with NOT_FOUND, its exclusive wishes are told NULL, its
// chunks are counted off. Freed.
void coordinator_session_destroy(struct coordinator_session *s);

struct coordinator_loader { // lives as long as the reader is used
    struct coordinator *c;
    struct common_error *err;
};
void coordinator_sessions_reader(struct coordinator_loader *loader, struct coordinator_store_reader *out);
void coordinator_sessions_loaded(struct coordinator *c); // after the store has been read
void coordinator_sessions_free(struct coordinator *c);
void coordinator_sessions_tick(struct coordinator *c, uint64_t now_ns); // idle sessions
void coordinator_sessions_worker_changed(struct coordinator_worker *w); // became ACTIVE, or is not any more

// ---- who works on it ----

void coordinator_session_set_state(struct coordinator_session *s, enum coordinator_session_state state);

// Whether shared work may start now: ACTIVE and nobody waits to have it alone.
static inline bool coordinator_session_open(const struct coordinator_session *s)
{
    return s->state == COORDINATOR_SESSION_ACTIVE && !s->exclusive;
}

void coordinator_session_share(struct coordinator_session *s);
void coordinator_session_unshare(
    struct coordinator_session *s); // may run waiting work on this stack: `s` may be gone afterwards

// Calls fn when shared work may start, perhaps at once; NULL when the session goes first. RESOURCE_EXHAUSTED:
// too many wait (fn is not called).
enum common_code coordinator_session_when_open(struct coordinator_session *s, coordinator_session_fn fn,
                                               void *arg);

// Calls fn with the session in `state` once no shared work is left, perhaps at once;
// coordinator_session_release ends it. fn is told NULL when the session goes first. RESOURCE_EXHAUSTED: too
// many wait (fn is not called).
enum common_code coordinator_session_exclusive(struct coordinator_session *s,
                                               enum coordinator_session_state state,
                                               coordinator_session_fn fn, void *arg);
void coordinator_session_release(
    struct coordinator_session *s); // may run waiting work on this stack: `s` may be gone afterwards

// ---- what it holds ----

uint64_t coordinator_session_layer_length(const struct coordinator_session *s, uint32_t layer);
uint64_t coordinator_session_length(const struct coordinator_session *s); // of the shortest layer
uint64_t
coordinator_session_end(const struct coordinator_session *s); // past the last committed row of any layer
uint64_t coordinator_session_row_bytes(const Banyan__Pb__Spec *spec); // K and V of one token and layer
uint64_t coordinator_session_chunk_bytes(const struct coordinator_session *s); // of a full chunk, all layers
const char *coordinator_session_state_text(const struct coordinator_session *s);

// ---- what it is (spec.c) ----
enum common_code coordinator_spec_check(Banyan__Pb__Spec *spec,
                                        struct proto_status *status); // and fills in its defaults
Banyan__Pb__Spec *coordinator_spec_copy(const Banyan__Pb__Spec *spec);
enum common_code coordinator_name_check(const char *name, struct proto_status *status); // "" is allowed
void coordinator_batch_whole_session(struct coordinator_batch *batch,
                                     const struct coordinator_session *s); // without its ranges

// Deletes a session whose time has come (reshape.c).
void coordinator_session_reclaim(struct coordinator_session *s);

// SessionDrop to every member that is there. gather may be NULL: nobody waits.
void coordinator_session_drop_at_workers(struct coordinator_session *s, struct coordinator_gather *gather);

// Chunks are put in and taken out by these alone: they keep the workers' counts and `missing` right. put:
// NULL is out of memory.
struct coordinator_chunk *coordinator_session_put_chunk(struct coordinator_session *s,
                                                        const struct coordinator_chunk *chunk);
// A chunk is about to be dropped by its holder: its memory can be promised again at once, the next heartbeat
// says exactly how much.
void coordinator_session_memory_back(const struct coordinator_session *s,
                                     const struct coordinator_chunk *chunk);
void coordinator_session_remove_chunk(struct coordinator_session *s, uint32_t index);
void coordinator_session_recount(struct coordinator_session *s);
bool coordinator_session_chunk_usable(
    const struct coordinator_chunk *chunk); // its holder can be asked about it now

bool coordinator_session_has_member(const struct coordinator_session *s, const struct coordinator_worker *w);
void coordinator_session_add_member(struct coordinator_session *s,
                                    struct coordinator_worker *w); // no-op when it is one
void coordinator_session_drop_plan(struct coordinator_session *s);

// DATA_LOSS or UNAVAILABLE with the token ranges of [first, first + count) that no worker can answer for now,
// and the workers' names. OK: nothing is missing.
enum common_code coordinator_session_missing(const struct coordinator_session *s, uint64_t first,
                                             uint64_t count, uint32_t layer, struct proto_status *status);

#endif
