// SPDX-License-Identifier: Apache-2.0
// Rows for others. Handlers: arg is the worker.
#ifndef WORKER_READ_H
#define WORKER_READ_H

struct proto_request;

void worker_handle_chunk_read(void *arg, struct proto_request *request);  // for workers, at the edge
void worker_handle_client_read(void *arg, struct proto_request *request); // for clients with a ticket

#endif
