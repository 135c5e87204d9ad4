// SPDX-License-Identifier: Apache-2.0
// Where a tracer's spans go: a file, and a collector. Private to common/; tracer.h has what others use.
#ifndef COMMON_TRACE_EXPORT_H
#define COMMON_TRACE_EXPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/loop/loop.h"

struct common_trace_batch { // one ExportTraceServiceRequest in JSON; never altered
    uint32_t refs, spans;   // refs: atomic
    size_t len;
    char text[]; // ends in a newline, which is the last of `len`
};
struct common_trace_batch *common_trace_batch_ref(struct common_trace_batch *batch);
void common_trace_batch_unref(struct common_trace_batch *batch); // NULL is allowed

struct common_trace_counts { // of spans
    uint64_t sent, dropped;
    uint64_t queued; // now
};

// ---- a file (trace_file.c) ----------------------------------------------------------------------
// A thread appends a line a batch, which the collector's otlpjsonfile receiver reads. A disk that hangs holds up the thread
// alone: what does not fit into the queue is dropped and counted. All functions but flush return at once.

#define COMMON_TRACE_FILE_BATCHES 64u // that wait
#define COMMON_TRACE_FILE_BYTES   (16u * 1024 * 1024)

struct common_trace_file;
// Opens it, made with mode 0600 where it is not there: that alone waits for the disk. FAILED_PRECONDITION: it
// cannot be opened, or is a symbolic link, neither a regular file nor a character device, or another user's
// file; RESOURCE_EXHAUSTED.
enum common_code common_trace_file_new(const char *path, struct common_trace_file **out,
                                       struct common_error *err);
// Opens the path again, behind what waits, after the file was moved away; if that fails the old one stays.
void common_trace_file_reopen(struct common_trace_file *file);
// Takes a reference. A batch that the disk does not take is dropped whole: what was written of it is taken
// back, or the line ended.
void common_trace_file_write(struct common_trace_file *file, struct common_trace_batch *batch);
void common_trace_file_counts(struct common_trace_file *file, struct common_trace_counts *out);
// Blocks until all is written, at most until until_ns (monotonic). False: something is not.
bool common_trace_file_flush(struct common_trace_file *file, uint64_t until_ns);
// Where something is still being written the thread is left behind with the file, and ends by itself or with
// the process. NULL is allowed.
void common_trace_file_free(struct common_trace_file *file);

// ---- a collector (trace_otlp.c) -----------------------------------------------------------------
// OTLP/HTTP with JSON bodies (https://opentelemetry.io/docs/specs/otlp/, "OTLP/HTTP"). One request is under way at a time.
//
//   200 and others of 2xx            taken; of a partialSuccess the rejected spans count as dropped
//   429, 502, 503, 504, no answer    sent again: after Retry-After, else after 1 s, 2 s, 4 s … 30 s, each ± a fifth
//   everything else                  dropped, with a line in the log
//   five minutes of the above        dropped

#define COMMON_TRACE_QUEUE_SPANS 8192 // that wait; what comes beyond is dropped
#define COMMON_TRACE_QUEUE_BYTES (16u * 1024 * 1024)

struct common_trace_otlp;
// Of http://HOST[:4318][/v1/traces]. Nothing is connected yet. INVALID_ARGUMENT: no such URL;
// RESOURCE_EXHAUSTED.
enum common_code common_trace_otlp_new(struct common_loop *loop, const char *url,
                                       struct common_trace_otlp **out, struct common_error *err);
void common_trace_otlp_give(struct common_trace_otlp *otlp,
                            struct common_trace_batch *batch); // takes a reference
// Sends what waits, each batch once, and calls done(arg) when nothing is left: on this stack, or later.
void common_trace_otlp_finish(struct common_trace_otlp *otlp, common_loop_fn done, void *arg);
const struct common_trace_counts *common_trace_otlp_counts(const struct common_trace_otlp *otlp);
void common_trace_otlp_free(struct common_trace_otlp *otlp); // what waits is dropped; NULL is allowed

#endif
