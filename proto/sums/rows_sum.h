// SPDX-License-Identifier: Apache-2.0
// The sum of rows of keys and values (docs/reference/wire.md, "Sums of rows"): one number for the bytes of
// any range of rows, which adds up over ranges, heads and parts, however they are laid out. Any thread.
#ifndef PROTO_ROWS_SUM_H
#define PROTO_ROWS_SUM_H

#include <stddef.h>
#include <stdint.h>

#include "common/hash/hash.h"

enum proto_rows_part { PROTO_ROWS_K, PROTO_ROWS_V, PROTO_ROWS_K_SCALE, PROTO_ROWS_V_SCALE };

struct proto_rows_piece { // one part of some heads of some rows
    const void *data;     // of the first head of the first row
    size_t len;           // bytes of one head of one row, without gaps
    size_t row_pitch, head_pitch;
    enum proto_rows_part part;
    uint32_t first_head, heads;
    uint64_t first, count; // positions
};

// What the piece adds, modulo 2^64.
uint64_t proto_rows_sum(const struct proto_rows_piece *piece);

// The seal of a chunk (docs/reference/wire.md, "Seals"): 0, then with the sum of all of the chunk's rows of
// each layer that counts, in ascending order, then done. Never 0.
static inline uint64_t proto_seal_add(uint64_t seal, uint32_t layer, uint64_t sum)
{
    return common_mix64(seal ^ common_mix64(sum ^ common_mix64(layer)));
}

static inline uint64_t proto_seal_done(uint64_t seal)
{
    return seal ? seal : 1;
}

#endif
