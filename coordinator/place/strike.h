// SPDX-License-Identifier: Apache-2.0
// Workers that are gone are struck off the list, in the store before it counts: by an operator's word, or
// because the process said that it ends (WorkerDrain, ends) and nothing needs the worker's record. One that an
// operator drains stays: the order is for its next process, too.
#ifndef COORDINATOR_STRIKE_H
#define COORDINATOR_STRIKE_H

struct coordinator_sessions;
struct proto_request;

void coordinator_strikes_tick(struct coordinator_sessions *sessions);            // those that said farewell
void coordinator_handle_worker_forget(void *arg, struct proto_request *request); // arg: the room of sessions

#endif
