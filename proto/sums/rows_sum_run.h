// SPDX-License-Identifier: Apache-2.0
// proto_rows_sum in the instruction set that the including file is compiled for: rows_sum.c and, for
// processors that have it, rows_sum_avx2.c. The values are the same. Private to proto.
#ifndef PROTO_ROWS_SUM_RUN_H
#define PROTO_ROWS_SUM_RUN_H

#include "proto/sums/rows_sum.h"

#define XXH_INLINE_ALL // some hundred bytes a call: what a call of a library costs would show
#include <xxhash.h>

#include "common/hash/hash.h"

#ifdef __AVX2__
#include "proto/sums/rows_hash_avx2.h"
#else
static inline uint64_t rows_hash(const uint8_t *row, size_t len)
{
    return XXH3_64bits(row, len);
}
#endif

// Ahead of the row that is summed: with it one core of a Zen 3 reads 21 GB/s from memory, and 15.5 without
// (2026-11).
#define ROWS_SUM_AHEAD 4096

static inline void rows_fetch(const uint8_t *row, size_t len)
{
    for (size_t i = 0; i < len; i += 64)
        __builtin_prefetch(
            (const void *)((uintptr_t)row + i + ROWS_SUM_AHEAD)); // may lie behind the end: nothing happens
}

static inline uint64_t rows_sum_run(const struct proto_rows_piece *piece)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < piece->count; i++) {
        const uint8_t *row = (const uint8_t *)piece->data + i * piece->row_pitch;
        for (uint32_t head = 0; head < piece->heads; head++) {
            uint64_t place =
                (piece->first + i) << 16 | (uint64_t)(piece->first_head + head) << 2 | (uint64_t)piece->part;
            const uint8_t *part = row + head * piece->head_pitch;
            rows_fetch(part, piece->len);
            sum += common_mix64(rows_hash(part, piece->len) ^ common_mix64(place));
        }
    }
    return sum;
}

uint64_t proto_rows_sum_plain(const struct proto_rows_piece *piece);
uint64_t proto_rows_sum_avx2(const struct proto_rows_piece *piece); // x86-64 with AVX2 only

#endif
