// SPDX-License-Identifier: Apache-2.0
// The end of a step at the root of its plan: whether all was seen that the layout demands, and what the client gets. Loop
// thread.
#ifndef WORKER_FINISH_H
#define WORKER_FINISH_H

#include <stdint.h>

#include "common/base/status.h"
#include "proto/rpc/step.h"

struct common_blob;
struct worker;

// The item has failed here, with this code and reason.
void worker_item_fail(const struct worker *worker, struct proto_step_result_item *item, enum common_code code,
                      const char *reason, const char *text);

// o and lse of all items, in this order, zeros where one failed; `result` points to them, and says which failed. partials:
// those of all items, row after row. NULL: no memory.
struct common_blob *worker_finish(struct worker *worker, const struct proto_step *step, uint64_t plan_digest,
                                  struct common_blob *partials, struct proto_step_result *result);

#endif
