// SPDX-License-Identifier: Apache-2.0
// After a restart of the coordinator the workers are still there and come back by themselves. For a while a
// session whose rows they have not told yet is not "unavailable" but awaited: calls about it are parked.
#ifndef COORDINATOR_RECOVERY_H
#define COORDINATOR_RECOVERY_H

#include "coordinator/sessions/session.h"
#include "proto/rpc.h"

bool coordinator_recovering(const struct coordinator_session *s);

// Keeps a call about such a session, or one of which holders are being struck off or asked again, until there is news
// (a worker is ACTIVE, or the time is over), then calls handle(arg, request) in the phase of sessions. One that nobody
// waits for any more fails. False: handle it now.
typedef void (*coordinator_handle_fn)(void *arg, struct proto_request *request);
bool coordinator_park(struct coordinator_session *s, struct proto_request *request,
                      coordinator_handle_fn handle, void *arg);

// Handles what is parked; some of it may be parked again.
void coordinator_unpark(struct coordinator_sessions *sessions);

#endif
