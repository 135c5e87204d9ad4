// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const code_names[COMMON_CODE_COUNT] = {
    [COMMON_OK] = "OK",
    [COMMON_CANCELLED] = "CANCELLED",
    [COMMON_UNKNOWN] = "UNKNOWN",
    [COMMON_INVALID_ARGUMENT] = "INVALID_ARGUMENT",
    [COMMON_DEADLINE_EXCEEDED] = "DEADLINE_EXCEEDED",
    [COMMON_NOT_FOUND] = "NOT_FOUND",
    [COMMON_ALREADY_EXISTS] = "ALREADY_EXISTS",
    [COMMON_PERMISSION_DENIED] = "PERMISSION_DENIED",
    [COMMON_RESOURCE_EXHAUSTED] = "RESOURCE_EXHAUSTED",
    [COMMON_FAILED_PRECONDITION] = "FAILED_PRECONDITION",
    [COMMON_ABORTED] = "ABORTED",
    [COMMON_OUT_OF_RANGE] = "OUT_OF_RANGE",
    [COMMON_UNIMPLEMENTED] = "UNIMPLEMENTED",
    [COMMON_INTERNAL] = "INTERNAL",
    [COMMON_UNAVAILABLE] = "UNAVAILABLE",
    [COMMON_DATA_LOSS] = "DATA_LOSS",
    [COMMON_UNAUTHENTICATED] = "UNAUTHENTICATED",
};

// Cuts a character that the end of the buffer split, so that a full message is still UTF-8.
static void trim_split_character(char *text, size_t len)
{
    size_t start = len;
    while (start > 0 && len - start < 3 && ((unsigned char)text[start - 1] & 0xc0) == 0x80)
        start--;
    if (start == 0)
        return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (need > len - (start - 1))
        text[start - 1] = '\0';
}

enum common_code common_error_set(struct common_error *err, enum common_code code, const char *fmt, ...)
{
    if (!err)
        return code;
    // Formatted aside: an argument may be the old message of *err itself.
    char text[COMMON_ERROR_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0)
        text[0] = '\0';
    else if ((size_t)n >= sizeof text)
        trim_split_character(text, sizeof text - 1);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = ' '; // one line, whatever a peer put into a name
    memcpy(err->message, text, sizeof text);
    err->code = code;
    return code;
}

const char *common_code_name(enum common_code code)
{
    if (code == COMMON_IN_PROGRESS)
        return "IN_PROGRESS";
    return common_code_valid((int)code) ? code_names[code] : "CODE_?";
}

bool common_code_valid(int value)
{
    return value >= 0 && value < COMMON_CODE_COUNT;
}
