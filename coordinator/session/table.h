// SPDX-License-Identifier: Apache-2.0
// All sessions: by id, by name; new ones, deleted ones.
#ifndef COORDINATOR_TABLE_H
#define COORDINATOR_TABLE_H

#include "coordinator/session/session.h"
#include "proto/rights/access.h"
#include "proto/rpc/rpc.h"

struct coordinator_batch;

// NULL: unknown, zero, deleted, or still being created.
struct coordinator_session *coordinator_session_find(const struct coordinator_sessions *sessions,
                                                     uint64_t id);
// Also one that is CREATING: workers may hold chunks of a new fork.
struct coordinator_session *coordinator_session_any(const struct coordinator_sessions *sessions, uint64_t id);
// Where a listing goes on that has come to this id, of a session that may be gone: the slot behind its own. 0: from the
// first one. A number that is hardly an id of this store's is behind all of them.
uint32_t coordinator_sessions_slot_after(const struct coordinator_sessions *sessions, uint64_t id);
// An id that no chunk has had. False: the store is too slow.
bool coordinator_sessions_chunk_id(struct coordinator_sessions *sessions, uint64_t *out);
// A worker has a session of this id, which is not ours: no new one gets it.
void coordinator_sessions_never_again(struct coordinator_sessions *sessions, uint64_t id);
struct coordinator_session *coordinator_session_named(const struct coordinator_sessions *sessions,
                                                      uint32_t tenant, const char *name);
// One that has the name and is still being written: its name is taken, but it is not there yet.
struct coordinator_session *coordinator_session_being_made(const struct coordinator_sessions *sessions,
                                                           uint32_t tenant, const char *name);

// Whether it is there for who asks: it is their tenant's, or they look after all of them (operators, admins). What is not
// there for them is to be answered as what never was.
static inline bool coordinator_session_is_for(const struct coordinator_session *s,
                                              const struct proto_identity *who)
{
    return s->tenant == who->tenant || who->access >= PROTO_ACCESS_OPERATOR;
}
// coordinator_session_find for a client's request.
struct coordinator_session *coordinator_session_asked(const struct coordinator_sessions *sessions,
                                                      const struct proto_request *request, uint64_t id);

// What to say about an id that find does not know: INVALID_ARGUMENT for zero, else NOT_FOUND. Returns the
// code.
enum common_code coordinator_session_unknown(uint64_t id, struct proto_status *status);

// A session that is in no table yet, CREATING, with an id of its own. Takes `spec`, which is checked and
// complete, on success. RESOURCE_EXHAUSTED: too many sessions. ALREADY_EXISTS: the name is taken (the name is
// reserved from now on).
enum common_code coordinator_session_new(struct coordinator_sessions *sessions, const char *name,
                                         uint32_t tenant, Banyan__Pb__Spec *spec,
                                         struct coordinator_session **out, struct proto_status *status);
// One that the store knows, CREATING, in the slot that its id names. NULL: the slot is taken, or past the
// limit.
struct coordinator_session *coordinator_session_restore(struct coordinator_sessions *sessions, uint64_t id,
                                                        const char *name, uint32_t tenant,
                                                        Banyan__Pb__Spec *spec);
void coordinator_session_enter(struct coordinator_session *s); // CREATING → ACTIVE, found by id from now on
void coordinator_sessions_restored(struct coordinator_sessions *sessions); // all that the store knows are in

// A chunk with all its holders.
void coordinator_batch_copies(struct coordinator_batch *batch, uint64_t session,
                              const struct coordinator_chunk *chunk);
// A worker joins a session. If the store has refused to record its process, this records it:
// otherwise an empty successor would pass for the process that has the rows.
void coordinator_batch_joins(struct coordinator_batch *batch, uint64_t session,
                             const struct coordinator_worker *w);
// Everything of it but its ranges.
void coordinator_batch_whole_session(struct coordinator_batch *batch, const struct coordinator_session *s);

// Ends a session, in a table or not, which nobody shares: it is found no more, its chunks are counted off. At
// the end of the turn who waits for it is told, its waiting steps fail (coordinator_gone), and it is freed.
void coordinator_session_destroy(struct coordinator_session *s);

// The next session that is gone; the next one that is open again and has steps that wait. For the room of steps.
struct coordinator_session *coordinator_sessions_take_gone(struct coordinator_sessions *sessions);
struct coordinator_session *coordinator_sessions_take_opened(struct coordinator_sessions *sessions);

// The next session on which those that wait may have their turn; NULL: none.
struct coordinator_session *coordinator_sessions_take_settled(struct coordinator_sessions *sessions);
// Frees the sessions that are gone and that the room of steps has taken.
void coordinator_sessions_reap(struct coordinator_sessions *sessions);

enum coordinator_condition {       // of a session, the first that is so
    COORDINATOR_CONDITION_LOST,    // it has lost chunks
    COORDINATOR_CONDITION_MISSING, // chunks that nobody who is there can compute
    COORDINATOR_CONDITION_DEGRADED,
    COORDINATOR_CONDITION_CHANGING, // being truncated, forked, deleted, laid out anew
    COORDINATOR_CONDITION_ACTIVE,
    COORDINATOR_CONDITIONS
};

// For /metrics: looks at every session, as coordinator_sessions_thin does.
struct coordinator_census {
    uint64_t sessions[COORDINATOR_CONDITIONS], lost_chunks;
};
void coordinator_sessions_census(const struct coordinator_sessions *sessions, struct coordinator_census *out);
// Chunks of all of them with fewer copies than their sessions ask for.
uint64_t coordinator_sessions_thin(const struct coordinator_sessions *sessions);

#endif
