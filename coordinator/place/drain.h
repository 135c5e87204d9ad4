// SPDX-License-Identifier: Apache-2.0
// Workers that are to be emptied, and used again: an operator's word, which is in the store before it counts, or the
// worker's own, which ends with its process. What moves then: moves.h.
#ifndef COORDINATOR_DRAIN_H
#define COORDINATOR_DRAIN_H

struct coordinator_sessions;
struct proto_request;

void coordinator_handle_worker_drain(void *arg, struct proto_request *request); // arg: the room of sessions
void coordinator_drains_tick(const struct coordinator_sessions *sessions);      // says which are empty now

#endif
