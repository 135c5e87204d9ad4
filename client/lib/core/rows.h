// SPDX-License-Identifier: Apache-2.0
// Rows of keys or values as they travel (proto/model/kv.h), from a caller's arrays. Pure.
#ifndef CLIENT_ROWS_H
#define CLIENT_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "client/banyan.h"
#include "common/memory/blob.h"

struct client_rows { // a caller's K or V
    const void *codes;
    const float *scales;            // NULL: a type without
    size_t code_bytes, scale_bytes; // of one token; scale_bytes 0: a type without
};

// Slices of `count` rows: one, or two a row where scales lie behind each row's codes.
static inline size_t client_rows_slices(const struct client_rows *rows, uint64_t count)
{
    return rows->scale_bytes ? 2 * (size_t)count : 1;
}

// Writes them, of rows [first, first + count). Returns how many.
static inline size_t client_rows_gather(const struct client_rows *rows, uint64_t first, uint64_t count,
                                        struct common_slice *out)
{
    const uint8_t *codes = (const uint8_t *)rows->codes + first * rows->code_bytes;
    if (!rows->scale_bytes) {
        out[0] = (struct common_slice){codes, count * rows->code_bytes};
        return 1;
    }
    const uint8_t *scales = (const uint8_t *)rows->scales + first * rows->scale_bytes;
    for (uint64_t i = 0; i < count; i++) {
        *out++ = (struct common_slice){codes + i * rows->code_bytes, rows->code_bytes};
        *out++ = (struct common_slice){scales + i * rows->scale_bytes, rows->scale_bytes};
    }
    return 2 * (size_t)count;
}

#endif
