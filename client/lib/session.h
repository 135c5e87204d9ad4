// SPDX-License-Identifier: Apache-2.0
// Forks of a session without its states, which the calls of banyan.h share with them (states.c). *states: the
// session with the states of the one that was forked; 0: it has none.
#ifndef CLIENT_LIB_SESSION_H
#define CLIENT_LIB_SESSION_H

#include <stdint.h>

#include "client/banyan.h"

// As banyan_session_pin.
banyan_code client_session_fork(banyan_session *session, uint64_t length, uint64_t idle_ttl_ns,
                                const char *name, banyan_session **out, uint64_t *states,
                                banyan_error *error);
// As banyan_session_create_from.
banyan_code client_session_create_from(banyan_client *client, const banyan_spec *spec, const char *name,
                                       const void *hashes, uint32_t n, banyan_session **out, uint64_t *length,
                                       uint64_t *states, banyan_error *error);

#endif
