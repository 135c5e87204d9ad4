// SPDX-License-Identifier: Apache-2.0
// The inner loops for few (query row, head) pairs over blocks that were converted to float32, of which each
// pair may see a range of keys.
#pragma once

#include "kernels/narrow_tile.h"

// scores[r][j] for the seen keys of one block, converted: k [BLOCK][dim]. Keys outside the range repeat a
// neighbour's work and are never looked at.
INLINE void dot_block(uint32_t tile, const float *q, uint32_t rows, const float *k, uint32_t begin,
                      uint32_t end, size_t dim, float *scores, float *lost)
{
    uint32_t keys = tile_keys(tile);
    const float *q_row[4];
    dot_rows_of(tile, q, rows, dim, q_row);
    for (uint32_t j = begin - begin % keys; j < end; j += keys) {
        const char *key[TILE_SLOTS];
        float hi[TILE_SLOTS], lo[TILE_SLOTS];
        REPEAT_ACCS(c, keys, {
            uint32_t at = j + c < begin ? begin : j + c >= end ? end - 1 : j + c;
            key[c] = (const char *)(k + at * dim);
        });
        dot_tile(tile, q_row, key, NULL, dim, hi, lo);
        dot_store(tile, rows, hi, lo, scores + j, lost + j);
    }
}

INLINE void fold_blocks_strip(uint32_t rows, uint32_t cols, const float *weights, const float *v,
                              uint32_t blocks, const struct ranges *range, size_t column, size_t width,
                              float *hi, float *lo)
{
    for (uint32_t b = 0; b < blocks;) {
        vf acc[TILE_SLOTS];
        fold_start(rows, cols, acc, column, width, lo);
        for (uint32_t end = b + CHAIN / BLOCK < blocks ? b + CHAIN / BLOCK : blocks; b < end; b++) {
            for (uint32_t at = b * BLOCK + range->begin[b]; at < b * BLOCK + range->end[b]; at++)
                fold_key(rows, cols, weights + at, (const char *)(v + at * width), column, acc);
        }
        fold_keep(rows, cols, acc, column, width, hi, lo);
    }
}

// The same as fold_chain, block by block and within ranges, of values converted: v [blocks][BLOCK][width].
INLINE void fold_blocks(uint32_t rows, const float *weights, const float *v, uint32_t blocks,
                        const struct ranges *range, size_t width, float *hi, float *lo)
{
    size_t c = 0;
    if (rows == 4 && LANES == 8) {
        for (; c + 3 * LANES <= width && width - c != 4 * LANES; c += 3 * LANES)
            fold_blocks_strip(rows, 3, weights, v, blocks, range, c, width, hi, lo);
    }
    REPEAT4(half, 4, {
        const uint32_t cols = ACCS >> half;
        if (cols >= 2 && rows <= ACCS / cols) {
            for (; c + cols * LANES <= width; c += cols * LANES)
                fold_blocks_strip(rows, cols, weights, v, blocks, range, c, width, hi, lo);
        }
    });
}
