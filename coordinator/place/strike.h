// SPDX-License-Identifier: Apache-2.0
// Lost workers that will not come back are struck off the list: an operator's word, in the store before it counts.
#ifndef COORDINATOR_STRIKE_H
#define COORDINATOR_STRIKE_H

struct proto_request;

void coordinator_handle_worker_forget(void *arg, struct proto_request *request); // arg: the room of sessions

#endif
