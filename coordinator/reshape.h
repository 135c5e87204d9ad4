// SPDX-License-Identifier: Apache-2.0
// What needs a session alone: truncate, fork, delete.
//
//   truncate(n):  LayoutSet + ChunkCopy of what n cuts ──▶ store (incarnation + 1): from here on it has
//   happened ──▶ LayoutSet to all ──▶ answered fork(n):      LayoutSet of the new session (full chunks by
//   reference) + ChunkCopy of the rest ──▶ store ──▶ visible, answered delete:       store ──▶ SessionDrop
//   ──▶ answered
//
// A failure before the store has changed nothing; whoever does not hear what follows it hears it when he
// comes back.
#ifndef COORDINATOR_RESHAPE_H
#define COORDINATOR_RESHAPE_H

#include "coordinator/state.h"

void coordinator_handle_session_truncate(void *arg, struct proto_request *request);
void coordinator_handle_session_fork(void *arg, struct proto_request *request);
void coordinator_handle_session_delete(void *arg, struct proto_request *request);

#endif
