// SPDX-License-Identifier: Apache-2.0
// Requests that wait for the worker's files, while the loop goes on: answers that say that something is in them are held back
// until it is (disk/disk.h), and what the files cannot take yet is handled when they can. Loop thread.
#ifndef WORKER_KEPT_H
#define WORKER_KEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct proto_request;
struct worker;

// Answers the request. failed NULL: the files have it; else why not, though memory has it.
typedef void (*worker_kept_fn)(void *arg, struct proto_request *request, const struct common_error *failed);
// `answer` runs when the files have all that was asked of them so far, on this stack where they have it already. It is about
// rows of the session at these positions.
void worker_kept_answer(struct worker *worker, struct proto_request *request, uint64_t session,
                        uint64_t first, uint64_t count, worker_kept_fn answer, void *arg);
// It is about whatever was asked so far; `failed`: the worker is leaving, or there is no memory.
void worker_kept_all(struct worker *worker, struct proto_request *request, worker_kept_fn answer, void *arg);
// It is about the session's layout.
void worker_kept_layout(struct worker *worker, struct proto_request *request, uint64_t session,
                        worker_kept_fn answer, void *arg);
// Where so much waits to be written that more may be refused soon, the request is handled again when that is written. True: it
// is the callee's now, and is answered with UNAVAILABLE where the worker leaves before that. A disk that hangs holds it until
// its caller gives up.
bool worker_kept_crowded(struct worker *worker, struct proto_request *request,
                         void (*handle)(void *worker, struct proto_request *request));

#endif
