// SPDX-License-Identifier: Apache-2.0
// Doubt: a call has left open what one worker knows of one session. The session is asked for and told again there
// (reconcile.h), while the worker stays ACTIVE for everybody else. Until that is done nothing new is begun on the
// session: it waits. One worker and session have one repair.
//
//   doubt ──▶ QUEUED ──at most 32 of a worker──▶ RUNNING ──told──▶ OVER
//               ▲                                   │
//    pause over │                                   │ a try has failed, or it was doubted again meanwhile
//               └──────────── RESTING ◀─────────────┘
//
// From each of them to OVER when the worker is not ACTIVE any more, or the session is gone.
//
// A repair that fails four times is broken: the session is UNAVAILABLE, reason WORKER_LOST, and waits no more. It is
// tried again, at last every 5 s, until it succeeds, or the worker registers anew and is told everything, or the
// session is deleted. The log names the session: at most ten of them a second.
#ifndef COORDINATOR_REPAIR_H
#define COORDINATOR_REPAIR_H

#include "coordinator/session/session.h"

extern const struct common_machine coordinator_repair_machine;

// Nothing where the worker is not ACTIVE: it is told everything before it is (coordinator_session_dirty).
void coordinator_session_doubt(struct coordinator_session *s, struct coordinator_worker *w);
void coordinator_session_doubt_all(struct coordinator_session *s); // every member

// The worker has been asked and told all of it.
void coordinator_session_told(struct coordinator_session *s, const struct coordinator_worker *w);

bool coordinator_session_in_doubt(const struct coordinator_session *s, const struct coordinator_worker *w);

// Ends the repairs at workers that are not ACTIVE any more, or all of them: the session is GONE.
void coordinator_repairs_recheck(struct coordinator_session *s);
void coordinator_repairs_session_gone(struct coordinator_session *s);

// UNAVAILABLE, with the workers whose repair is broken.
enum common_code coordinator_repairs_status(const struct coordinator_session *s, uint32_t layer,
                                            struct proto_status *status);

#endif
