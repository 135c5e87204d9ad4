// SPDX-License-Identifier: Apache-2.0
// Which workers may get chunks of a session, as placement sees them.
#ifndef COORDINATOR_CANDIDATES_H
#define COORDINATOR_CANDIDATES_H

#include "coordinator/session/placement.h"
#include "coordinator/session/session.h"

// The ACTIVE workers that are not being drained, and what placement asks about each: *n of them in `active`, which has
// room for COORDINATOR_WORKERS_MAX. The result is the caller's to free.
struct coordinator_candidate *coordinator_candidates(const struct coordinator_session *s,
                                                     struct coordinator_worker **active, uint32_t *n);
// One of them becomes a member: who is apart from it is so from now on.
void coordinator_candidates_join(struct coordinator_candidate *candidates,
                                 struct coordinator_worker *const *active, uint32_t n, uint32_t joining);

#endif
