// SPDX-License-Identifier: Apache-2.0
// Tickets to read: clients read committed rows from the workers themselves (ChunkRead), for snapshots and checks.
//
// A ticket names a range below the session's length, and the incarnation: within one, committed rows never change. So
// what is read with it is what was committed when it was given, or it is refused; the answer lists those holders of each
// chunk that are there and in sync.
#ifndef COORDINATOR_READING_H
#define COORDINATOR_READING_H

#include "coordinator/session/session.h"
#include "proto/rpc/rpc.h"

// Handler (proto_method.handle); arg: the room of sessions. OUT_OF_RANGE past the session's length; UNAVAILABLE,
// DATA_LOSS: chunks of the range are nowhere now, which are named, or rows may turn up past the length.
void coordinator_handle_read_open(void *arg, struct proto_request *request);

#endif
