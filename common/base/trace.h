// SPDX-License-Identifier: Apache-2.0
// Where a span belongs: W3C Trace Context (https://www.w3.org/TR/trace-context/), its header `traceparent`,
// and the bytes that our own messages carry of it. Pure.
//
//   traceparent   00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
//                 version  trace_id (16 bytes)     span_id (8)     flags
//   messages      struct common_trace as it lies in memory: 25 bytes, no version
#ifndef COMMON_TRACE_H
#define COMMON_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define COMMON_TRACE_SAMPLED 0x01 // of flags: spans are wanted
#define COMMON_TRACE_RANDOM  0x02 // of flags, level 2: the trace_id's last 7 bytes were drawn at random
#define COMMON_TRACE_BYTES   25
#define COMMON_TRACE_ID_TEXT 33 // 32 hexadecimal digits and NUL
#define COMMON_TRACEPARENT   56 // with NUL

struct common_trace {
    uint8_t trace_id[16]; // not all zero
    uint8_t span_id[8];   // of the parent of what belongs here; not all zero
    uint8_t flags;        // the two above; the others are zero
};
_Static_assert(sizeof(struct common_trace) == COMMON_TRACE_BYTES, "its bytes are the message's");

// Reads a traceparent, strictly: lower case, all separators, ids that are not zero. Of version 00 it is 55
// characters; of a higher one the first 55 count where a '-' or nothing follows; version ff is invalid.
// INVALID_ARGUMENT says what is wrong.
enum common_code common_trace_parse(const char *traceparent, struct common_trace *out,
                                    struct common_error *err);
// As version 00.
void common_trace_write(const struct common_trace *trace, char out[COMMON_TRACEPARENT]);

// Takes bytes of a message; false: they are malformed. Unknown flags become zero.
bool common_trace_take(const uint8_t *bytes, size_t len, struct common_trace *out);

static inline bool common_trace_sampled(const struct common_trace *trace)
{
    return (trace->flags & COMMON_TRACE_SAMPLED) != 0;
}

// 2 × len hexadecimal digits and NUL.
void common_trace_hex(const uint8_t *bytes, size_t len, char *out);

#endif
