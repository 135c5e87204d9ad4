// SPDX-License-Identifier: Apache-2.0
// The room of sessions: what is kept, where it lies, and who may work on it when. It stands on the cluster and
// the store; it knows no step.
//
//   session.c     one session: states, shared and exclusive work, chunks, members
//   table.c       all of them: by id and by name, new ones, deleted ones
//   room.c        which feature acts when: the start and the end of the room, turns, ticks, idle sessions
//   ids.c         what their ids look like outside: pure
//   spec.c        what a session is, checked               layout.c, rangeset.c, placement.c: pure
//   placing.c     chunks get holders                       layout_send.c: workers are told
//   attach.c      tickets, commits in two phases           reshape.c: truncate, fork, delete
//   reading.c     tickets to read rows with
//   load.c        sessions from the store at the start     recovery.c: waiting for workers after it
//   unavailable.c why a session cannot be used now         condition.c: what people are told of its chunks
//   spread.c      who serves what several have, as fast as they are
//   moves.c       which chunks go to other holders, and when; move_queue.c: whose turn it is
//   choosing.c    which of its chunks go where; candidates.c; wishes.c, rebalance.c: what is to lie elsewhere
//   move.c        how they go; moving.c: which may, and which do
//   returned.c    copies that workers come back with; keeping.c: a table of them
//   seals.c       full chunks whose copies agree are sealed, and compared with that from time to time: scrub.c says when
//   failover.c    holders that are lost are struck off, and others serve
//   reconcile.c   a worker that comes (back) is asked what it holds and told what it should hold
//   visit.c       how it is told, and how one try ends     news.c: what it has lost, in the store
//   telling.c     all that a worker should know of a session, message by message
//   repair.c      the same for one session, where a call has left open what one worker knows of it
#ifndef COORDINATOR_SESSIONS_H
#define COORDINATOR_SESSIONS_H

#include "coordinator/core.h"
#include "coordinator/sessions/commits.h"
#include "coordinator/sessions/ids.h"
#include "proto/list.h"

struct coordinator_cluster;
struct coordinator_move_queue;
struct coordinator_moves;
struct coordinator_parked;
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
    struct proto_list settled;               // for the phase of sessions: session.settled
    struct proto_list opened;    // with steps that wait, and may go now: session.opened. Taken by steps
    struct proto_list gone;      // deleted: session.gone. Taken by steps, then freed
    struct proto_list reaped;    // gone, and no step knows them any more: session.gone
    uint64_t seen_changes;       // of cluster.changes
    struct proto_list droppings; // deleted sessions that workers are to be told again (dropping.h)
    uint32_t n_droppings;
    struct coordinator_commits commits;
    struct coordinator_moves *moves;           // moves.h
    struct coordinator_move_queue *move_queue; // move_queue.h
    struct coordinator_seals *seals;           // seals.h
    struct coordinator_returns *returns;       // returned.c
    struct coordinator_wishes *wishes;         // wishes.h
    struct proto_list uneven,
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
