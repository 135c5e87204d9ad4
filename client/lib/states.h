// SPDX-License-Identifier: Apache-2.0
// States of a session (banyan.h), in the rows of another one: what snapshots do with them. Blocks; a
// caller's thread.
#ifndef CLIENT_LIB_STATES_H
#define CLIENT_LIB_STATES_H

#include <stdint.h>

#include "client/banyan.h"

// A temporary fork of the states up to a length, by this name, as long as the session's incarnation is this
// one. *out NULL: there are none, or not of that incarnation.
banyan_code client_states_pin(banyan_session *session, uint64_t incarnation, uint64_t length, uint64_t ttl_ns,
                              const char *name, banyan_session **out, banyan_error *error);

// An empty session for the states of this one, to be filled from a snapshot with this spec.
banyan_code client_states_make(banyan_session *session, const banyan_spec *spec, banyan_session **out,
                               banyan_error *error);

#endif
