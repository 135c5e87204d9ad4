// SPDX-License-Identifier: Apache-2.0
#include "common/base/trace.h"

#include <string.h>

#define KNOWN_FLAGS (COMMON_TRACE_SAMPLED | COMMON_TRACE_RANDOM)

void common_trace_hex(const uint8_t *bytes, size_t len, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < len; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    *out = '\0';
}

static int digit(char c) // upper case is no digit here
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const char *text, uint8_t *out, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0)
            return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool is_zero(const uint8_t *bytes, size_t len)
{
    uint8_t any = 0;
    for (size_t i = 0; i < len; i++)
        any |= bytes[i];
    return any == 0;
}

// NULL, or what is wrong.
static const char *read_all(const char *text, struct common_trace *out)
{
    uint8_t version;
    size_t len = strnlen(text, COMMON_TRACEPARENT);
    if (len < COMMON_TRACEPARENT - 1)
        return "it is shorter than 55 characters";
    if (!read_hex(text, &version, 1) || version == 0xff)
        return "its version is not 00 to fe";
    if (text[2] != '-' || text[35] != '-' || text[52] != '-')
        return "its parts are not separated by '-'";
    if (text[55] && version == 0)
        return "version 00 has 55 characters";
    if (text[55] && text[55] != '-')
        return "what follows its flags does not begin with '-'";
    if (!read_hex(text + 3, out->trace_id, 16) || is_zero(out->trace_id, 16))
        return "its trace-id is not 32 lower-case hexadecimal digits, or all of them are zero";
    if (!read_hex(text + 36, out->span_id, 8) || is_zero(out->span_id, 8))
        return "its parent-id is not 16 lower-case hexadecimal digits, or all of them are zero";
    if (!read_hex(text + 53, &out->flags, 1))
        return "its flags are not two lower-case hexadecimal digits";
    out->flags &= KNOWN_FLAGS;
    return NULL;
}

enum common_code common_trace_parse(const char *traceparent, struct common_trace *out,
                                    struct common_error *err)
{
    struct common_trace trace;
    const char *wrong = read_all(traceparent, &trace);
    if (wrong)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "traceparent '%.64s': %s", traceparent, wrong);
    *out = trace;
    return COMMON_OK;
}

void common_trace_write(const struct common_trace *trace, char out[COMMON_TRACEPARENT])
{
    memcpy(out, "00-", 3);
    common_trace_hex(trace->trace_id, 16, out + 3);
    out[35] = '-';
    common_trace_hex(trace->span_id, 8, out + 36);
    out[52] = '-';
    common_trace_hex(&trace->flags, 1, out + 53);
}

bool common_trace_take(const uint8_t *bytes, size_t len, struct common_trace *out)
{
    struct common_trace trace;
    if (len != sizeof trace)
        return false;
    memcpy(&trace, bytes, sizeof trace);
    if (is_zero(trace.trace_id, sizeof trace.trace_id) || is_zero(trace.span_id, sizeof trace.span_id))
        return false;
    trace.flags &= KNOWN_FLAGS;
    *out = trace;
    return true;
}
