// SPDX-License-Identifier: Apache-2.0
// Rows of steps, computed again with the reference.
#ifndef WORKER_AUDIT_H
#define WORKER_AUDIT_H

struct proto_request;

void worker_handle_audit(void *arg, struct proto_request *request); // arg: the worker

#endif
