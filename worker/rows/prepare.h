// SPDX-License-Identifier: Apache-2.0
// Phase one of a commit.
#ifndef WORKER_PREPARE_H
#define WORKER_PREPARE_H

struct proto_request;

void worker_handle_rows_prepare(void *arg, struct proto_request *request); // arg: the worker

#endif
