// SPDX-License-Identifier: Apache-2.0
// Answers that say that something is in the worker's files: each is held back until it is (disk/disk.h), and the loop goes
// on meanwhile. Loop thread.
#ifndef WORKER_KEPT_H
#define WORKER_KEPT_H

#include <stdint.h>

#include "common/status.h"

struct proto_request;
struct worker;

// Answers the request. failed NULL: the files have it; else why not, though memory has it.
typedef void (*worker_kept_fn)(void *arg, struct proto_request *request, const struct common_error *failed);
// `answer` runs when the files have all that was asked of them so far, on this stack where they have it already. session: whose
// files it is about.
void worker_kept_answer(struct worker *worker, struct proto_request *request, uint64_t session,
                        worker_kept_fn answer, void *arg);

#endif
