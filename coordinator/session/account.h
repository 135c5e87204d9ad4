// SPDX-License-Identifier: Apache-2.0
// Whose memory holds a session's committed rows, and how much of it other sessions have as well: for people who ask.
//
//     session     | chunk 0 | chunk 1 | chunk 2 | chunk 3 | 4  |
//     its fork    | chunk 0 | chunk 1 | chunk 2 | its own |
//                   └── shared: in memory once ──┘
#ifndef COORDINATOR_ACCOUNT_H
#define COORDINATOR_ACCOUNT_H

#include <stdint.h>

#include "coordinator/session/session.h"

// Bytes of K and V. by_member: [s->n_members], of all copies that a member has; chunks that are lost are nobody's.
// Returns those in chunks that another session has, too, one copy of each. Looks at all sessions: not for what is asked
// often. UINT64_MAX: out of memory.
uint64_t coordinator_session_account(const struct coordinator_session *s, uint64_t *by_member);

#endif
