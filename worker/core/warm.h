// SPDX-License-Identifier: Apache-2.0
// Who needs rows that are cold (cold.h) waits here until they are in memory, while the loop goes on. Loop thread.
//
//   QUEUED ──memory for those before it is had──▶ STARTED ──all of its layers are in memory──▶ done
//      │                                            │
//      └──────── its time is over, the rows are lost, there will be no memory ────▶ done, with why
//
// Waits get memory in the order in which they came, each all of it before the next one gets any: so of several that do
// not fit together one always goes on. What a wait has is not given up before its `done` has returned.
#ifndef WORKER_WARM_H
#define WORKER_WARM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "worker/core/compute.h"
#include "worker/store/cold.h"
#include "worker/store/wants.h"

struct proto_request;
struct worker;
struct worker_warm; // opaque
struct worker_wait; // opaque
struct worker_room; // opaque

// NULL: no memory. read_ahead: of so many layers that come after one that is asked for.
struct worker_warm *worker_warm_new(struct worker *worker, uint32_t read_ahead);
void worker_warm_set_read_ahead(struct worker_warm *warm, uint32_t layers);
void worker_warm_free(struct worker_warm *warm); // no calls are waiting; NULL is allowed
// All waiting calls end, UNAVAILABLE; none may wait any longer.
void worker_warm_close(struct worker_warm *warm);

// Takes wants over. failed NULL: all of them are in memory, until `done` returns; else why not. `done` never runs on
// this stack. NULL: no memory, or too many wait; nothing has changed.
struct worker_wait *worker_warm_wait(struct worker_warm *warm, struct worker_wants *wants,
                                     uint64_t deadline_ns,
                                     void (*done)(void *arg, const struct common_error *failed), void *arg);
void worker_warm_cancel(struct worker_wait *wait); // before its `done`, which does not run

// The request's handler runs again when they are in memory; if they do not come, the request fails, and if nobody waits
// for its answer any more (proto_request_over), it ends CANCELLED. Takes wants over.
void worker_warm_request(struct worker_warm *warm, struct worker_wants *wants,
                         void (*handle)(void *worker, struct proto_request *request),
                         struct proto_request *request);
// Memory is short, and may be had soon, since chunks are being sealed: `again` runs then, or at that time at the latest, and
// never on this stack. NULL: it is not to be had, the time is over, or too many wait.
struct worker_room *worker_warm_room(struct worker_warm *warm, uint64_t until_ns, void (*again)(void *arg),
                                     void *arg);
void worker_warm_room_cancel(struct worker_room *room); // before `again`
// The same for a request, whose handler runs again, or which ends CANCELLED, as above. False: it has waited long enough, or
// as above.
bool worker_warm_request_room(struct worker_warm *warm,
                              void (*handle)(void *worker, struct proto_request *request),
                              struct proto_request *request);
void worker_warm_sealed(struct worker_warm *warm); // chunks have been

// They are read in without a waiting call, as soon as memory allows. Takes wants over.
void worker_warm_begin(struct worker_warm *warm, struct worker_wants *wants);

// A step on this layer has come: the layers after it are read in as well, where there is memory.
void worker_warm_ahead(struct worker_warm *warm, const struct worker_compute_item *item);

#endif
