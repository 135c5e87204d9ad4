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

#endif
