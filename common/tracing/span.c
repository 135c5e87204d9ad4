// SPDX-License-Identifier: Apache-2.0
#include "common/tracing/span.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/trace.h"
#include "common/base/utf8.h"

// Of flags: W3C's, and whether the parent is of another process (opentelemetry/proto/trace/v1/trace.proto,
// SpanFlags).
enum { FLAG_SAMPLED = 0x001, FLAG_KNOWN = 0x100, FLAG_REMOTE = 0x200 };
enum { STATUS_ERROR = 2 }; // Status.StatusCode

struct out {
    char *buf;
    size_t n, cap;
    bool full;
};

static void add(struct out *o, const char *text, size_t len)
{
    if (o->full || len > o->cap - o->n) {
        o->full = true;
        return;
    }
    memcpy(o->buf + o->n, text, len);
    o->n += len;
}

__attribute__((format(printf, 2, 3))) static void addf(struct out *o, const char *fmt, ...)
{
    char text[160];
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    assert(len >= 0 && (size_t)len < sizeof text);
    add(o, text, (size_t)len);
}

static void add_string(struct out *o, const char *text)
{
    add(o, text, strlen(text));
}

static void add_quoted(struct out *o, const char *text)
{
    size_t len = strlen(text);
    add_string(o, "\"");
    for (size_t i = 0; i < len;) {
        uint32_t code = 0;
        size_t bytes = common_utf8_character(text + i, len - i, &code);
        if (!bytes)
            add_string(o, "\\ufffd");
        else if (code == '"' || code == '\\')
            addf(o, "\\%c", (char)code);
        else if (code < 0x20)
            addf(o, "\\u%04x", (unsigned)code);
        else
            add(o, text + i, bytes);
        i += bytes ? bytes : 1;
    }
    add_string(o, "\"");
}

static void add_id(struct out *o, const char *name, const uint8_t *bytes, size_t len)
{
    char hex[COMMON_TRACE_ID_TEXT];
    common_trace_hex(bytes, len, hex);
    addf(o, "\"%s\":\"%s\",", name, hex);
}

static void add_attributes(struct out *o, const struct common_span_attribute *attributes, uint32_t n)
{
    add_string(o, "\"attributes\":[");
    for (uint32_t i = 0; i < n; i++) {
        const struct common_span_attribute *a = &attributes[i];
        addf(o, "%s{\"key\":\"%s\",\"value\":{", i ? "," : "", a->key);
        if (a->type == COMMON_SPAN_NUMBER)
            addf(o, "\"intValue\":\"%" PRId64 "\"", (int64_t)a->number);
        else if (a->type == COMMON_SPAN_HEX)
            addf(o, "\"stringValue\":\"%016" PRIx64 "\"", a->number);
        else {
            add_string(o, "\"stringValue\":");
            add_quoted(o, a->text);
        }
        add_string(o, "}}");
    }
    add_string(o, "]");
}

static void add_attribute(struct common_span *span, const struct common_span_attribute *attribute)
{
    assert(span->n < COMMON_SPAN_ATTRIBUTES);
    span->attributes[span->n++] = *attribute;
}

void common_span_number(struct common_span *span, const char *key, uint64_t number)
{
    add_attribute(span,
                  &(struct common_span_attribute){.key = key, .type = COMMON_SPAN_NUMBER, .number = number});
}

void common_span_hex(struct common_span *span, const char *key, uint64_t number)
{
    add_attribute(span,
                  &(struct common_span_attribute){.key = key, .type = COMMON_SPAN_HEX, .number = number});
}

void common_span_text(struct common_span *span, const char *key, const char *text)
{
    add_attribute(span, &(struct common_span_attribute){.key = key, .type = COMMON_SPAN_TEXT, .text = text});
}

size_t common_span_json(const struct common_span *span, uint64_t wall_ns, char *out, size_t cap)
{
    static const uint8_t none[COMMON_SPAN_ID_BYTES];
    struct out o = {.buf = out, .cap = cap};
    bool root = memcmp(span->parent_id, none, sizeof none) == 0;
    uint64_t end_ns = span->end_ns > span->start_ns ? span->end_ns : span->start_ns;
    add_string(&o, "{");
    add_id(&o, "traceId", span->trace_id, 16);
    add_id(&o, "spanId", span->id, sizeof span->id);
    if (!root)
        add_id(&o, "parentSpanId", span->parent_id, sizeof span->parent_id);
    addf(&o, "\"flags\":%d,", FLAG_SAMPLED | FLAG_KNOWN | (span->remote ? FLAG_REMOTE : 0));
    addf(&o, "\"name\":\"%s\",\"kind\":%d,", span->name, (int)span->kind);
    addf(&o, "\"startTimeUnixNano\":\"%" PRIu64 "\",\"endTimeUnixNano\":\"%" PRIu64 "\",",
         wall_ns + span->start_ns, wall_ns + end_ns);
    add_attributes(&o, span->attributes, span->n);
    add_string(&o, ",\"status\":{");
    if (span->code != COMMON_OK) {
        char text[512];
        snprintf(text, sizeof text, "%s%s%.400s", common_code_name(span->code), span->message ? ": " : "",
                 span->message ? span->message : "");
        addf(&o, "\"code\":%d,\"message\":", STATUS_ERROR);
        add_quoted(&o, text);
    }
    add_string(&o, "}}");
    return o.full ? 0 : o.n;
}

size_t common_span_head(const struct common_span_attribute *attributes, uint32_t n, char *out, size_t cap)
{
    struct out o = {.buf = out, .cap = cap};
    add_string(&o, "{\"resourceSpans\":[{\"resource\":{");
    add_attributes(&o, attributes, n);
    add_string(&o, "},\"scopeSpans\":[{\"scope\":{\"name\":\"banyan\",\"version\":\"" BANYAN_VERSION
                   "\"},\"spans\":[");
    return o.full ? 0 : o.n;
}
