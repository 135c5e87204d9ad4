// SPDX-License-Identifier: Apache-2.0
// A span of a trace as OTLP/JSON has it (https://opentelemetry.io/docs/specs/otlp/, "JSON Protobuf
// Encoding"): ids are hexadecimal, 64-bit numbers are strings, enums are numbers. Pure.
#ifndef COMMON_SPAN_H
#define COMMON_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define COMMON_SPAN_ID_BYTES   8
#define COMMON_SPAN_ATTRIBUTES 16
#define COMMON_SPAN_JSON_MAX   4096 // of one span

enum common_span_kind { // as OTLP numbers them
    COMMON_SPAN_INTERNAL = 1,
    COMMON_SPAN_SERVER = 2,
    COMMON_SPAN_CLIENT = 3,
};

struct common_span_attribute {
    const char *key;
    enum { COMMON_SPAN_NUMBER, COMMON_SPAN_HEX, COMMON_SPAN_TEXT } type; // HEX: the number, 16 digits
    uint64_t number;
    const char *text; // any bytes: what is no UTF-8 becomes U+FFFD
};

struct common_span {                         // strings are borrowed
    const uint8_t *trace_id;                 // [16]
    uint8_t id[COMMON_SPAN_ID_BYTES];        // not all zero
    uint8_t parent_id[COMMON_SPAN_ID_BYTES]; // all zero: it is a root
    bool remote;                             // its parent is another process's
    const char *name;
    enum common_span_kind kind;
    uint64_t start_ns, end_ns; // common_clock_ns
    enum common_code code;     // other than OK: an error, with its name
    const char *message;       // of the error; NULL: none
    uint32_t n;
    struct common_span_attribute attributes[COMMON_SPAN_ATTRIBUTES];
};

// Add an attribute; one more than there is room for is our bug.
void common_span_number(struct common_span *span, const char *key, uint64_t number);
void common_span_hex(struct common_span *span, const char *key, uint64_t number);
void common_span_text(struct common_span *span, const char *key, const char *text);

// Writes it, without a NUL. wall_ns: what common_clock_ns's zero is in Unix time. The bytes; 0: it has no
// room in `cap`.
size_t common_span_json(const struct common_span *span, uint64_t wall_ns, char *out, size_t cap);

// The text that stands before the spans of one process, and behind them: with spans between, separated by
// commas, it is one ExportTraceServiceRequest. The attributes are the process's. 0: no room.
#define COMMON_SPAN_HEAD_MAX 4096
#define COMMON_SPAN_TAIL     "]}]}]}"
size_t common_span_head(const struct common_span_attribute *attributes, uint32_t n, char *out, size_t cap);

#endif
