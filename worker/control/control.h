// SPDX-License-Identifier: Apache-2.0
// The coordinator's calls about sessions and chunks. Handlers: arg is the worker.
#ifndef WORKER_CONTROL_H
#define WORKER_CONTROL_H

struct proto_request;

void worker_handle_layout_set(void *arg, struct proto_request *request);
void worker_handle_session_drop(void *arg, struct proto_request *request);
void worker_handle_chunk_copy(void *arg, struct proto_request *request);
void worker_handle_health(void *arg, struct proto_request *request);

#endif
