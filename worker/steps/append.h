// SPDX-License-Identifier: Apache-2.0
// Rows that a step appends, as far as they are stored here. Loop thread.
#ifndef WORKER_APPEND_H
#define WORKER_APPEND_H

#include <stdint.h>

#include "common/base/status.h"
#include "proto/rpc/step.h"
#include "worker/session/session.h"

struct worker;

// Stores those of the item's rows that its runs give to member `rank`, in memory and in files; adds to *appends how many.
// They count as one append: a later write replaces them, worker_appended_settle takes them back. All of them or none:
// INVALID_ARGUMENT: the runs do not fit item, session or frame; DATA_LOSS, reason COVERAGE: a chunk is not held here;
// ABORTED, reason OLD_WRITE: a newer write was here; FAILED_PRECONDITION: other bytes are there, or, reason FORGOTTEN,
// the rows are forgotten; RESOURCE_EXHAUSTED, reason FULL where there is no room for the rows: another worker may have it.
enum common_code worker_append_rows(struct worker *worker, const struct proto_step *step, uint32_t rank,
                                    struct worker_session *session, const struct proto_step_item *item,
                                    uint32_t *appends, const char **reason, struct common_error *err);

#endif
