// SPDX-License-Identifier: Apache-2.0
// SessionWatch: calls that wait for steps to be seen.
#ifndef COORDINATOR_WATCHERS_H
#define COORDINATOR_WATCHERS_H

#include "coordinator/steps/watch.h"

// Handler (proto_method.handle).
void coordinator_handle_session_watch(struct coordinator_steps *steps, struct proto_request *request);

// Something was seen: who waits for it is told, when it was the last.
void coordinator_watchers_saw(struct coordinator_watch *watch, const struct coordinator_seen *seen);
void coordinator_watchers_end(struct coordinator_watch *watch, enum common_code code, const char *text);
void coordinator_watchers_stop(struct coordinator_steps *steps); // who waits gets UNAVAILABLE

#endif
