// SPDX-License-Identifier: Apache-2.0
// Quarantine (cluster/quarantine.h) as sessions and operators see it.
#ifndef COORDINATOR_QUARANTINE_SERVICE_H
#define COORDINATOR_QUARANTINE_SERVICE_H

#include "coordinator/cluster/worker.h"
#include "coordinator/session/sessions.h"

// Makes the list the worker's (taking what it points to) and counts in the sessions concerned who withholds a
// newer state of them.
void coordinator_quarantine_set(struct coordinator_sessions *sessions, struct coordinator_worker *w,
                                struct coordinator_quarantine *list);

// Handlers (proto_method.handle); arg: the room of sessions.
void coordinator_handle_quarantine_list(void *arg, struct proto_request *request);
void coordinator_handle_quarantine_drop(void *arg, struct proto_request *request);

#endif
