// SPDX-License-Identifier: Apache-2.0
// Steps (drawn in step.c). Loop thread.
#ifndef WORKER_STEP_H
#define WORKER_STEP_H

#include <stdbool.h>
#include <stdint.h>

struct proto_request;
struct worker;

void worker_handle_step(void *arg, struct proto_request *request); // arg: the worker
bool worker_scratch_ready(struct worker *worker, uint64_t bytes);  // worker->scratch; false: out of memory

#endif
