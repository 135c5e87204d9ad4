// SPDX-License-Identifier: Apache-2.0
// Copies that come back. A worker that was away too long is no holder any more: its copies were struck off
// (failover.h), and others are made. When it is back it may still have them, in its memory or its files. Of a
// sealed chunk that has too few copies such a copy saves the network a copy, and where the copies that are left
// turn out to be wrong it is the only one: a lost chunk is regained from it (regain.h).
//
//   its inventory names the chunk ──▶ KEPT: sent as incoming (move.h) with every layout ──▶ a move to this worker
//      finds all rows there, compares them with the seal, and makes it a holder again
//                                       └── it is not what was sealed; the chunk has copies enough; or for a
//                                           while nothing has come of it ──▶ the worker is to let go of it
//
// Only sealed chunks: what else the worker has may be rows of an append that failed, or be short of newer ones.
// While it is KEPT nobody checks whether the last copies of the chunk are right (seals.h): they are compared once
// there is another.
#ifndef COORDINATOR_RETURNED_H
#define COORDINATOR_RETURNED_H

#include "coordinator/session/session.h"

// What an inventory says of a session that is ours, on a visit of all that the worker has. True: some of it is kept.
bool coordinator_returned_note(struct coordinator_session *s, struct coordinator_worker *w,
                               const Banyan__Pb__InventorySession *held);

// Whether the worker keeps any chunk of the session, or this one.
bool coordinator_returned_any(const struct coordinator_session *s, const struct coordinator_worker *w);
bool coordinator_returned_has(const struct coordinator_session *s, const struct coordinator_worker *w,
                              const struct coordinator_chunk *chunk);

// The chunks of the session that the worker keeps, in out where it is not NULL; returns how many.
uint32_t coordinator_returned_chunks(const struct coordinator_session *s, const struct coordinator_worker *w,
                                     const struct coordinator_chunk **out);

// An ACTIVE worker that keeps the chunk and could be a holder; NULL: nobody.
struct coordinator_worker *coordinator_returned_holder(const struct coordinator_session *s,
                                                       const struct coordinator_chunk *chunk);

// Whether the worker keeps this chunk for any session, wanted or not: rows of it that are there were not compared.
bool coordinator_returned_keeps(const struct coordinator_sessions *sessions,
                                const struct coordinator_worker *w, const struct coordinator_chunk *chunk);

// The worker's copy of the chunk is not what was sealed; or (chunk NULL) it is being told to let go of all of the session.
void coordinator_returned_forget(struct coordinator_session *s, const struct coordinator_worker *w,
                                 const struct coordinator_chunk *chunk);

// The session has another history: who is no member, and does not hear of it, is told to let go of all.
void coordinator_returned_cut(struct coordinator_session *s);

void coordinator_returned_init(struct coordinator_sessions *sessions);
void coordinator_returned_tick(struct coordinator_sessions *sessions);
void coordinator_returned_fini(struct coordinator_sessions *sessions); // no session is left
void coordinator_returned_session_gone(struct coordinator_session *s);

#endif
