// SPDX-License-Identifier: Apache-2.0
// The room of sessions as a whole: which feature acts when. It begins and ends the room, and calls the
// features in their order: at moments of a session (session.h), at the end of a turn, and with each tick.
// Nothing in the room calls it.
#ifndef COORDINATOR_ROOM_H
#define COORDINATOR_ROOM_H

#include "coordinator/session/sessions.h"

// Room for all sessions. The store is set by the caller once it is open.
void coordinator_sessions_init(struct coordinator_sessions *sessions, struct coordinator_core *core,
                               struct coordinator_cluster *cluster);
void coordinator_sessions_tick(struct coordinator_sessions *sessions, uint64_t now_ns);
void coordinator_sessions_fini(struct coordinator_sessions *sessions); // destroys all that are left

#endif
