// SPDX-License-Identifier: Apache-2.0
// Before a worker's process ends: it has the coordinator move its chunks to other workers (WorkerDrain), and
// goes on serving meanwhile. The coordinator is asked every 200 ms, so that a restarted one learns of it,
// too. The wish is the process's own: a new one under the same name is used again. Loop thread.
#ifndef WORKER_EMPTY_H
#define WORKER_EMPTY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/loop/loop.h"

struct worker_empty; // opaque
struct worker_membership;

// done runs once, never on this stack: the worker has no chunks any more, or (empty false) it still has some, or cannot
// say, after limit_ns (0: no limit). Logs what it waits for. RESOURCE_EXHAUSTED.
enum common_code worker_empty_new(struct common_loop *loop, struct worker_membership *membership,
                                  const char *name, uint64_t limit_ns, void (*done)(void *arg, bool empty),
                                  void *arg, struct worker_empty **out);
void worker_empty_free(struct worker_empty *empty); // before the membership; NULL is allowed

#endif
