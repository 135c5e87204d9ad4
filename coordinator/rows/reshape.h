// SPDX-License-Identifier: Apache-2.0
// What needs a session alone: truncate, fork, delete.
//
//   truncate(n)  LayoutSet + ChunkCopy of what n cuts ──▶ store: incarnation + 1 ──▶ LayoutSet to all ──▶ answered
//                                                         (it has happened)
//   fork(n)      LayoutSet of the new session (full chunks by reference) ──▶ store ──▶ visible, answered
//                + ChunkCopy of the rest
//   delete       store ──▶ SessionDrop ──▶ answered
//
// A failure before the store has changed nothing; whoever does not hear what follows it hears it when it
// comes back.
#ifndef COORDINATOR_RESHAPE_H
#define COORDINATOR_RESHAPE_H

#include "coordinator/session/session.h"
#include "proto/rpc/rpc.h"

// Handlers (proto_method.handle); arg: the room of sessions.
void coordinator_handle_session_truncate(void *arg, struct proto_request *request);
void coordinator_handle_session_fork(void *arg, struct proto_request *request);
void coordinator_handle_session_delete(void *arg, struct proto_request *request);

// Deletes a session whose time has come.
void coordinator_session_reclaim(struct coordinator_session *s);
// Deletes one that holds states of a session that is gone (coordinator_states_left).
void coordinator_session_reclaim_states(struct coordinator_session *s);

// Deletes one that no client asks to delete; why: of the log. fn(arg, code), which may be NULL, is called at
// the end, never on this stack: OK or NOT_FOUND, it is gone; else it is still there. False: too many
// operations wait for it.
typedef void (*coordinator_discarded_fn)(void *arg, enum common_code code);
bool coordinator_session_discard(struct coordinator_session *s, const char *why, coordinator_discarded_fn fn,
                                 void *arg);

// What a create begins with: the first `length` tokens of a session that has them already.
struct coordinator_fork_wish {
    uint64_t length, key, idle_ttl_ns;
    const char *name; // valid during the call
    // The fork is made, and the create is answered next.
    void (*made)(struct coordinator_session *from, uint64_t length);
    // It cannot be made; instead(arg, request) answers the request.
    void (*instead)(void *arg, struct proto_request *request);
    void *arg;
};
// Takes the request. On failure of anything but the request itself `instead` has it.
void coordinator_session_fork_for(struct coordinator_session *s, struct proto_request *request,
                                  const struct coordinator_fork_wish *wish);

#endif
