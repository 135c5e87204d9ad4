// SPDX-License-Identifier: Apache-2.0
// States of a session (docs/concepts/states.md): what a model keeps beside K and V. They are rows of a second
// session, which libbanyan fills and reads (client/lib/states.h). Its name says whose they are:
// states-of-0x0123456789abcdef. So it is placed, copied, sealed, charged and restored as any other, and
//
//   - is made only while the other one is there, in the same tenant;
//   - is never idle, and goes when the other one has gone: at once, or else at the next tick of the clock;
//   - is cut by the client that truncates the other one; where the client knows of no states, it goes first.
#ifndef COORDINATOR_STATES_H
#define COORDINATOR_STATES_H

#include <stdint.h>

#include "coordinator/session/session.h"

#define COORDINATOR_STATES_PREFIX "states-of-0x"

// Whose states a session of this name holds; 0: it holds none.
uint64_t coordinator_states_owner(const char *name);

// The session that holds this one's states; NULL: there is none.
struct coordinator_session *coordinator_states_of(const struct coordinator_session *s);

// Whether the tenant may make a session of this name. NOT_FOUND: it is to hold the states of a session that
// the tenant has not. INVALID_ARGUMENT: of one that holds states itself.
enum common_code coordinator_states_check(const struct coordinator_sessions *sessions, uint32_t tenant,
                                          const char *name, struct proto_status *status);

// It holds states of a session that is gone.
bool coordinator_states_left(const struct coordinator_session *s);

#endif
