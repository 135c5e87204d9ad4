// SPDX-License-Identifier: Apache-2.0
// After a restart of the coordinator the workers are still there and come back by themselves. For a while a
// session whose rows they have not told yet is not "unavailable" but awaited: calls about it are parked.
#ifndef COORDINATOR_RECOVERY_H
#define COORDINATOR_RECOVERY_H

#include "coordinator/session/session.h"
#include "proto/rpc/rpc.h"

bool coordinator_recovering(const struct coordinator_session *s);

// The coordinator has started a moment ago and not all workers that it expects are back: what can't be placed now may be
// placed soon. failure: why a placing has failed. False: no worker that comes back would help, or the time is over.
bool coordinator_placing_waits(const struct coordinator_sessions *sessions,
                               const struct proto_status *failure);

// Keeps a call until a worker is ACTIVE or the time is over, then calls handle(arg, request) as coordinator_park does.
typedef void (*coordinator_handle_fn)(void *arg, struct proto_request *request);
void coordinator_park_placing(struct coordinator_sessions *sessions, struct proto_request *request,
                              coordinator_handle_fn handle, void *arg);

// Keeps a call about such a session, or one of which holders are being struck off or asked again, until there is news
// (a worker is ACTIVE, or the time is over), then calls handle(arg, request) in the phase of sessions. One that nobody
// waits for any more fails. False: handle it now.
bool coordinator_park(struct coordinator_session *s, struct proto_request *request,
                      coordinator_handle_fn handle, void *arg);

// Handles what is parked; some of it may be parked again.
void coordinator_unpark(struct coordinator_sessions *sessions);

#endif
