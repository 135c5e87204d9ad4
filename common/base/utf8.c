// SPDX-License-Identifier: Apache-2.0
#include "common/base/utf8.h"

#include <stdbool.h>

size_t common_utf8_character(const char *text, size_t len, uint32_t *code)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t from;
    } forms[] = {{0x80, 0, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    const unsigned char *c = (const unsigned char *)text;
    for (size_t n = 1; n <= 4 && n <= len; n++) {
        if ((c[0] & forms[n - 1].mask) != forms[n - 1].lead)
            continue;
        *code = c[0] & ~forms[n - 1].mask & 0xffu;
        for (size_t i = 1; i < n; i++) {
            if ((c[i] & 0xc0) != 0x80)
                return 0;
            *code = *code << 6 | (c[i] & 0x3fu);
        }
        bool good = *code >= forms[n - 1].from && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff);
        return good ? n : 0;
    }
    return 0;
}
