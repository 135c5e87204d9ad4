// SPDX-License-Identifier: Apache-2.0
// A worker's spans of the traced items of one frame (docs/operating/tracing.md). A frame without any costs a look at its
// items.
//
//   worker.step       arrived ─────────────────────────────────────────▶ answered   child of the coordinator's or the
//   ├ worker.queue    arrived ──▶ computing begins                                  parent worker's span
//   ├ worker.compute              begins ──▶ own part ready
//   ├ worker.merge                           ready ──▶ all below merged, answered
//   └ worker.step                                                                   of each child in the tree
//
// All of a frame is computed together, so that its traced items have the same times, each in its own trace. Where nobody
// takes spans here when the frame comes, it has none, and children's are children of whose this one's would be.
#ifndef WORKER_SPANS_H
#define WORKER_SPANS_H

#include <stdint.h>

#include "proto/rpc/step.h"

struct worker;
struct worker_spans;

struct worker_spans_times { // common_clock_ns; 0: it did not come to that
    uint64_t arrived_ns, started_ns, ready_ns, ended_ns;
};

// Before the frame goes to the children: has them be below this worker's spans. NULL: nothing in it is traced, or there is
// no memory for it.
struct worker_spans *worker_spans_new(const struct worker *worker, struct proto_step *step);
void worker_spans_free(struct worker_spans *spans); // NULL is allowed

// The own part is ready: exemplars of the first traced item beside the buckets that count it; keys that it saw.
void worker_spans_ready(struct worker_spans *spans, struct worker *worker,
                        const struct worker_spans_times *times, uint64_t tokens);
// What becomes of the items: those of `result`, or all of them `code`. To be called before it is sent.
void worker_spans_result(struct worker_spans *spans, enum common_code code,
                         const struct proto_step_result *result);
// It has ended: the spans are exported.
void worker_spans_end(const struct worker_spans *spans, struct worker *worker, const struct proto_step *step,
                      uint32_t rank, const struct worker_spans_times *times);

#endif
