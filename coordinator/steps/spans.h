// SPDX-License-Identifier: Apache-2.0
// The coordinator's spans of steps that are traced (docs/operating/tracing.md). A step that is not costs one comparison
// where it comes, one in each frame and one where it is answered.
//
//   coordinator.step     arrived ────────────────────────────────▶ answered    of each item that is sampled
//   ├ coordinator.queue  arrived ──▶ first frame sent
//   ├ coordinator.tree               sent ──▶ back                             of each frame that carried a part of it
//   │ └ worker.step                                                            of the root (the worker's spans.h)
//   └ coordinator.answer                      last frame back ──▶ answered
//
// If spans are not exported here when a step arrives, workers' are children of the caller's span, and it has
// none here, whoever takes spans when it is answered.
#ifndef COORDINATOR_SPANS_H
#define COORDINATOR_SPANS_H

#include "coordinator/steps/item.h"

struct coordinator_call;
struct coordinator_frame;

// Takes an item's trace, or draws one for it (--trace-sample). False: the bytes are malformed.
bool coordinator_spans_take(struct coordinator_item *item, const uint8_t *bytes, size_t len);

// A frame that carries the first part of an item in it (slab: the frame's) is about to be sent: says whose child it is.
void coordinator_spans_send(struct coordinator_frame *f, struct coordinator_item *item,
                            struct proto_step_item *slab);
// It is back. `result` NULL: as `code` says.
void coordinator_spans_landed(struct coordinator_frame *f, enum common_code code, const char *text,
                              const struct proto_step_result *result, uint64_t now_ns);

// The call was answered at now_ns, with the times that the histograms of steps.h count; items that are not done were
// answered with `unfinished`.
void coordinator_spans_answered(struct coordinator_call *call, enum common_code unfinished, const char *text,
                                uint64_t now_ns);

// The trace's id of a traced item in hexadecimal, for logs; "-" of another one. Returns buf.
const char *coordinator_item_trace(const struct coordinator_item *item, char buf[COMMON_TRACE_ID_TEXT]);

#endif
