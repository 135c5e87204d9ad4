// SPDX-License-Identifier: Apache-2.0
// Takes a process's spans and exports them: to a file, to a collector over OTLP/HTTP, or both
// (docs/operating/tracing.md). Spans become JSON as they are added, wait up to a second in a batch, and leave
// together. Nothing here waits for anybody: what a collector does not take is queued up to a bound, and then
// dropped and counted.
//
// A tracer and all calls belong to the loop's thread, or to the one that made it while no thread runs the
// loop. Functions that take a tracer allow NULL, which takes nothing.
#ifndef COMMON_TRACER_H
#define COMMON_TRACER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/base/trace.h"
#include "common/loop/loop.h"
#include "common/tracing/span.h"

struct common_metrics;
struct common_tracer; // opaque

struct common_tracer_options {
    const char *file; // a path; NULL: none
    const char *otlp; // http://HOST:PORT/v1/traces; NULL: none
    double sample;    // 0 to 1: of what brings no trace of its own
};

// `resource`: what every span is of (service.name and the like), COMMON_SPAN_ATTRIBUTES at most; copied.
// Takes nothing until common_tracer_set. RESOURCE_EXHAUSTED.
enum common_code common_tracer_new(struct common_loop *loop, const struct common_span_attribute *resource,
                                   uint32_t n, struct common_tracer **out, struct common_error *err);
// Says where spans go; again and again. What stays the same goes on, a file is opened again, what waits for
// another collector is dropped. INVALID_ARGUMENT, FAILED_PRECONDITION (the file), RESOURCE_EXHAUSTED: nothing
// has changed.
enum common_code common_tracer_set(struct common_tracer *tracer, const struct common_tracer_options *options,
                                   struct common_error *err);
// Reopens the file, as after a rotation; does nothing for a tracer without one.
void common_tracer_reopen(struct common_tracer *tracer);

// Whether spans are exported. Cheap: ask this first.
bool common_tracer_on(const struct common_tracer *tracer);
// Whether what brings no trace is to have one: then `out` is a new trace, sampled, and its span_id zero, that
// of no span.
bool common_tracer_draw(struct common_tracer *tracer, struct common_trace *out);
// A span's id that no other span of this process has; the tracer is on.
void common_tracer_id(struct common_tracer *tracer, uint8_t out[COMMON_SPAN_ID_BYTES]);
void common_tracer_add(struct common_tracer *tracer, const struct common_span *span);

// banyan_trace_… of /metrics; false: no memory.
bool common_tracer_put(const struct common_tracer *tracer, struct common_metrics *table);

// Exports what waits, within limit_ns, and calls done(arg): on this stack, or later. Nothing is to be added
// any more.
void common_tracer_finish(struct common_tracer *tracer, uint64_t limit_ns, common_loop_fn done, void *arg);
void common_tracer_free(struct common_tracer *tracer);

#endif
