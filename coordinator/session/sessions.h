// SPDX-License-Identifier: Apache-2.0
// Sessions: what is kept, where it lies, and who may work on it when. They stand on the cluster and the store.
//
//   session.c     one session: states, shared and exclusive work, chunks, members
//   table.c       all of them: by id and by name, new ones, deleted ones
//   ids.c         what their ids look like outside: pure
//   spec.c        what a session is, checked               layout.c, copy.c, rangeset.c, placement.c: pure
//   keys.c        creating and forking, once               account.c: what tenants have
//   commits.c     numbers of commits                       cuts.c: truncates in their order
//   move_queue.c  which sessions want moves                move_ticket.h: its place there
//   tickets.c     until when clients may put rows: pure
//
// Above it, in this order: sync/ (what workers have of sessions), check/ (whether that is right), place/ (which worker has
// what), rows/ (rows come, are read, and go), and sessions/, which says which of them acts when (room.c).
#ifndef COORDINATOR_SESSIONS_H
#define COORDINATOR_SESSIONS_H

#include "common/base/list.h"
#include "coordinator/core.h"
#include "coordinator/session/commits.h"
#include "coordinator/session/ids.h"

struct coordinator_cluster;
struct coordinator_move_queue;
struct coordinator_moves;
struct coordinator_parked;
struct coordinator_prefixes;
struct coordinator_quotas;
struct coordinator_returns;
struct coordinator_seals;
struct coordinator_session;
struct coordinator_session_hooks;
struct coordinator_store;
struct coordinator_wishes;

#define COORDINATOR_HINTS                                                                                    \
    16384 // a power of two: with fewer sessions most are found without a look through the permutation

struct coordinator_sessions {
    struct coordinator_core *core;
    struct coordinator_cluster *cluster;
    struct coordinator_store *store;
    struct coordinator_quotas *quotas;             // set by the caller, before the first session
    const struct coordinator_session_hooks *hooks; // session.h
    struct coordinator_session **slots;            // [options.max_sessions]
    struct coordinator_ids ids;                    // of the store, which sets it before the first session
    uint32_t hints[COORDINATOR_HINTS]; // by an id's low bits: the slot of the last session made that has them
    uint32_t n_slots, n;               // slots in use, NULLs included; sessions
    bool restored;                     // some wait for an operator (restored.h)
    uint32_t *free_slots, n_free_slots;
    struct coordinator_session *names[4096]; // buckets of sessions with a name
    struct coordinator_session *keys[4096];  // and of those with a key
    struct common_list settled;              // for the phase of sessions: session.settled
    struct common_list opened;    // with steps that wait, and may go now: session.opened. Taken by steps
    struct common_list gone;      // deleted: session.gone. Taken by steps, then freed
    struct common_list reaped;    // gone, and no step knows them any more: session.gone
    uint64_t seen_changes;        // of cluster.changes
    struct common_list droppings; // deleted sessions that workers are to be told again (dropping.h)
    uint32_t n_droppings;
    struct coordinator_commits commits;
    struct coordinator_moves *moves;           // moves.h
    struct coordinator_move_queue *move_queue; // move_queue.h
    struct coordinator_seals *seals;           // seals.h
    struct coordinator_returns *returns;       // returned.c
    struct coordinator_prefixes *prefixes;     // prefix/prefix.h
    struct coordinator_wishes *wishes;         // wishes.h
    struct common_list uneven,
        uneven_later; // who serves what is to be looked at, now and with the next tick: session.uneven
    uint32_t spreads, spread_cursor; // under way (spread.h); the next slot to be looked at
    uint32_t spread_left;            // so many slots are still to be looked at, since speeds
    uint64_t spread_speeds;          // have changed to those of this cluster.speeds
    uint64_t spread_sessions;        // so far
    uint64_t dirties;                // what has changed under visits: session.dirtied
    uint64_t visits;                 // of whole workers, that have begun
    uint64_t struck_copies;          // so far, of holders that are lost (failover.c)
    uint64_t returned_chunks;  // of those moved so far, copies that workers had come back with (returned.h)
    uint64_t stamps;           // of the last visit that has begun, even (reconcile.h)
    uint64_t logging_since_ns; // repairs that failed: a second, and how many of them in it
    uint32_t logged;
    struct coordinator_parked *parked,
        **parked_tail; // calls that wait for workers to come back after a restart
    bool unpark;       // they may go now
};

#endif
