// SPDX-License-Identifier: Apache-2.0
// Telling workers that a session is deleted. One that does not take the word is told again every tick, for as long as
// its link lasts: when it registers anew, its inventory names the session, and the visit drops it.
#ifndef COORDINATOR_DROPPING_H
#define COORDINATOR_DROPPING_H

#include "coordinator/session/session.h"

struct coordinator_gather;

// To every member that is there. gather may be NULL: nobody waits. It waits for the first word alone.
void coordinator_session_drop_at_workers(struct coordinator_session *s, struct coordinator_gather *gather);

// To one worker that is no member (any more). Nothing is told again once it is one.
void coordinator_session_drop_at(struct coordinator_sessions *sessions, uint64_t session,
                                 struct coordinator_worker *w);

void coordinator_droppings_tick(struct coordinator_sessions *sessions);
void coordinator_droppings_fini(struct coordinator_sessions *sessions); // forgets them

#endif
