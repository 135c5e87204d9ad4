// SPDX-License-Identifier: Apache-2.0
// The file of spans of common/tracing/trace_export.h: a simulated process has none, and refuses to be started
// with one.
#include "common/tracing/trace_export.h"

enum common_code common_trace_file_new(const char *path, struct common_trace_file **out,
                                       struct common_error *err)
{
    *out = NULL;
    return common_error_set(err, COMMON_FAILED_PRECONDITION,
                            "cannot open the file of spans %.200s: it is simulated", path);
}

void common_trace_file_reopen(struct common_trace_file *file)
{
    (void)file;
}

void common_trace_file_write(struct common_trace_file *file, struct common_trace_batch *batch)
{
    (void)file;
    (void)batch;
}

void common_trace_file_counts(struct common_trace_file *file, struct common_trace_counts *out)
{
    (void)file;
    *out = (struct common_trace_counts){0};
}

bool common_trace_file_flush(struct common_trace_file *file, uint64_t until_ns)
{
    (void)file;
    (void)until_ns;
    return true;
}

void common_trace_file_free(struct common_trace_file *file)
{
    (void)file;
}
