// SPDX-License-Identifier: Apache-2.0
// Plans that the coordinator has installed, and the term that they belong to. Loop thread.
#ifndef WORKER_PLANS_H
#define WORKER_PLANS_H

#include <stdbool.h>
#include <stdint.h>

struct proto_request;
struct worker;

// Handlers; arg: the worker.
void worker_handle_plan_install(void *arg, struct proto_request *request);
void worker_handle_plan_drop(void *arg, struct proto_request *request);
void worker_plans_close(struct worker *worker);

// Accepts a term that is not lower than the highest seen, and remembers it; plans of an earlier one go, since
// none is left to drop them. Otherwise answers the request:
// ABORTED, OLD_TERM; or OLD_PLAN, where another worker says a term that no coordinator has said here.
bool worker_term_check(struct worker *worker, uint64_t term, struct proto_request *request);

#endif
