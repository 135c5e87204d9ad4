// SPDX-License-Identifier: Apache-2.0
// Creating and forking, once. A caller that has not heard what became of its call makes it again with the same key,
// a random number of its own, and gets the session that the first call has made. A key lives as long as its session,
// in the store, too.
#ifndef COORDINATOR_KEYS_H
#define COORDINATOR_KEYS_H

#include "coordinator/session/sessions.h"
#include "proto/rpc/rpc.h"

// A session that is being made, or read from the store, has this key; 0: none.
void coordinator_key_enter(struct coordinator_session *s, uint64_t key);
void coordinator_key_leave(struct coordinator_session *s); // it is deleted, or was never made

// True: the key is that of a session of the tenant, and the request has been answered, or is when that
// session is made, or its deletion has ended. 0: no key.
bool coordinator_key_known(struct coordinator_sessions *sessions, uint32_t tenant, uint64_t key,
                           struct proto_request *request);

// Answers a create or a fork with the session that it has made.
void coordinator_key_answer(struct proto_request *request, const struct coordinator_session *s);

// The session is made, or is not; or the store has answered its deletion: answers all calls that came for it meanwhile.
void coordinator_key_settle(struct coordinator_session *s, enum common_code code, const char *text);

#endif
