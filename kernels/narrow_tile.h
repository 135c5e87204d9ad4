// SPDX-License-Identifier: Apache-2.0
// Tiles of the inner loops for few (query row, head) pairs: dots of 1, 2 or 4 rows with some keys, and some
// columns of values that are added to as many rows' sums.
//
// They read one KV type, which the file that includes this names beforehand:
//
//     #define TILE_TYPE KERNELS_KV_F32
//
// As a parameter, the type would be constant only once everything is inlined: thousands of loads with all
// types' conversions in each, which took the compiler most of its time.
//
// Orders of summation:
//   dot     lanes along d, in groups of 16 vectors; then the lanes pairwise
//   value   lanes along d; chains of 32 keys, each from what the sum over those before it lost
#pragma once

#include "kernels/narrow.h"

#define TILE_SLOTS 16u // vectors of accumulators at most

INLINE vf tile_load(const char *row, size_t i)
{
    return load_as(TILE_TYPE, row, i);
}

INLINE void tile_load_pair(const char *row, size_t i, vf *x)
{
    load_pair(TILE_TYPE, row, i, x);
}

INLINE vf tile_load_half(const char *row, size_t i, uint32_t half)
{
    return load_half(TILE_TYPE, row, i, half);
}

// ---- asking ahead -------------------------------------------------------------------------------

#ifndef AHEAD_TO
#define AHEAD_TO 3
#endif

// Asks for what will be used: four lines at a time, once for every four lines that are used.
//
// streams 1: line after line.  4: from four blocks side by side, where a processor's own prefetchers end at
// each page (kernels/variants.h).
struct ahead {
    const struct ahead_block *block, *last; // in the order of use
    const char *at, *end;
    size_t pitch, step, blocks;
};

INLINE struct ahead ahead_from(const struct ahead_block *block, const struct ahead_block *last,
                               uint32_t streams)
{
    if (block > last)
        block = last;
    return (struct ahead){.block = block,
                          .last = last,
                          .at = block->at,
                          .end = block->at + block->bytes,
                          .pitch = streams == 1 ? 64 : block->bytes,
                          .step = streams == 1 ? 256 : 64,
                          .blocks = streams};
}

INLINE void ahead_go(struct ahead *a)
{
    REPEAT4(i, 4, __builtin_prefetch(a->at + i * a->pitch, 0, AHEAD_TO););
    a->at += a->step;
    if (__builtin_expect(a->at >= a->end, 0)) {
        a->block = a->block + a->blocks < a->last ? a->block + a->blocks : a->last;
        a->at = a->block->at;
        a->end = a->at + a->block->bytes;
    }
}

// ---- dots ---------------------------------------------------------------------------------------

// Keys of a tile of 1, 2 or 4 rows: as many as registers hold, but more than 8 chains of additions in all,
// where that can be: 8 keep two units of a latency of 4 busy only if nothing ever comes between.
INLINE uint32_t tile_keys(uint32_t rows)
{
    return rows == 4 && LANES == 8 ? 3 : ACCS / rows;
}

// Results are kept for a power of two of keys.
INLINE uint32_t tile_slots(uint32_t rows)
{
    return rows == 4 && LANES == 8 ? 4 : ACCS / rows;
}

// acc[r * keys + c] += q_row[r] . key[c] over dims from .. to - 1, whole pairs of vectors, lane by lane.
// 2 or 4 rows, so no more than 8 keys.
INLINE void dot_lanes(uint32_t rows, uint32_t keys, const float *const q_row[4],
                      const char *const key[TILE_SLOTS], struct ahead *ahead, size_t from, size_t to, vf *acc)
{
    // How often to ask in a step, or in how many steps once
    const uint32_t used = keys * 2 * LANES * (uint32_t)type_bytes(TILE_TYPE);
    const uint32_t asks = used / 256, steps = used < 256 ? 256 / used : 1;
    for (size_t d = from; d < to; d += 2 * LANES) {
        if (ahead && asks == 0 && d / (2 * LANES) % steps == 0)
            ahead_go(ahead);
        if (ACCS < 16 && rows == 4) { // 16 registers: q is read where it is used
            REPEAT2(half, 2, {
                vf x[TILE_SLOTS]; // of which `keys`: as long as REPEAT could go
                REPEAT4(c, keys, x[c] = tile_load_half(key[c], d, half););
                REPEAT4(r, rows, {
                    vf y = vf_load(q_row[r] + d + half * LANES);
                    REPEAT4(c, keys, vf_fma_to(&acc[r * keys + c], y, x[c]););
                });
            });
        } else {
            vf y[2 * TILE_SLOTS];
            REPEAT4(r, rows, y[2 * r] = vf_load(q_row[r] + d); y[2 * r + 1] = vf_load(q_row[r] + d + LANES););
            REPEAT8(c, keys, {
                vf x[2];
                tile_load_pair(key[c], d, x);
                REPEAT4(r, rows, vf_fma_to(&acc[r * keys + c], y[2 * r], x[0]););
                REPEAT4(r, rows, vf_fma_to(&acc[r * keys + c], y[2 * r + 1], x[1]););
                if (ahead && asks > 0 && c % (keys / (asks > 0 ? asks : 1)) == 0)
                    ahead_go(ahead);
            });
        }
    }
}

// One row: acc[c] = q . key[c] over dims from .. to - 1, lane by lane, in four chains, so that no more keys
// than ACCS / 4 are read side by side.
INLINE void dot_lanes_one(const float *q, const char *const key[TILE_SLOTS], struct ahead *ahead, size_t from,
                          size_t to, vf *acc)
{
    enum { KEYS = ACCS / 4 };
    const uint32_t used = KEYS * 2 * LANES * (uint32_t)type_bytes(TILE_TYPE);
    const uint32_t asks = used / 256, steps = used < 256 ? 256 / used : 1;
    REPEAT4(quarter, 4, {
        vf chain[4 * KEYS];
        REPEAT(i, 4 * KEYS, chain[i] = (vf){0};);
        for (size_t d = from; d < to; d += 4 * LANES) {
            REPEAT2(half, 2, {
                size_t at = d + half * 2 * LANES;
                if (at < to) {
                    vf y[2] = {vf_load(q + at), vf_load(q + at + LANES)};
                    if (ahead && asks == 0 && at / (2 * LANES) % steps == 0)
                        ahead_go(ahead);
                    REPEAT4(c, KEYS, {
                        vf x[2];
                        tile_load_pair(key[quarter * KEYS + c], at, x);
                        vf_fma_to(&chain[4 * c + 2 * half], y[0], x[0]);
                        vf_fma_to(&chain[4 * c + 2 * half + 1], y[1], x[1]);
                        if (ahead && asks > 0 && c % (KEYS / (asks > 0 ? asks : 1)) == 0)
                            ahead_go(ahead);
                    });
                }
            });
        }
        REPEAT4(c, KEYS,
                acc[quarter * KEYS + c] =
                    (chain[4 * c] + chain[4 * c + 1]) + (chain[4 * c + 2] + chain[4 * c + 3]););
    });
}

// acc = dots over dims from .. to - 1.
INLINE void dot_group(uint32_t rows, const float *const q_row[4], const char *const key[TILE_SLOTS],
                      struct ahead *ahead, size_t from, size_t to, vf *acc)
{
    if (rows == 1) {
        dot_lanes_one(q_row[0], key, ahead, from, to, acc);
    } else {
        REPEAT(i, rows * tile_keys(rows), acc[i] = (vf){0};);
        dot_lanes(rows, tile_keys(rows), q_row, key, ahead, from, to, acc);
    }
}

// Dots of `rows` rows with tile_keys(rows) keys: hi + lo, [row][tile_slots(rows)]. dim is a multiple of 2 *
// LANES.
INLINE void dot_tile(uint32_t rows, const float *const q_row[4], const char *const key[TILE_SLOTS],
                     struct ahead *ahead, size_t dim, float *hi, float *lo)
{
    uint32_t keys = tile_keys(rows), n = rows * keys;
    const size_t group = 16 * LANES;
    vf acc[TILE_SLOTS];
    dot_group(rows, q_row, key, ahead, 0, dim < group ? dim : group, acc);
    if (dim > group) {
        vf total[TILE_SLOTS];
        REPEAT(i, n, total[i] = acc[i];);
        for (size_t d = group; d < dim; d += group) {
            vf more[TILE_SLOTS];
            dot_group(rows, q_row, key, ahead, d, dim - d < group ? dim : d + group, more);
            REPEAT(i, n, total[i] += more[i];);
        }
        REPEAT(i, n, acc[i] = total[i];);
    }
    vf each[TILE_SLOTS];
    REPEAT4(r, rows,
            REPEAT(c, tile_slots(rows),
                   each[r * tile_slots(rows) + c] = acc[r * keys + (c < keys ? c : 0)];););
    REPEAT(i, (rows * tile_slots(rows)) / LANES, {
        vf h, l;
        vf_sum_each(each + i * LANES, &h, &l);
        vf_store(hi + i * LANES, h);
        vf_store(lo + i * LANES, l);
    });
}

INLINE void dot_rows_of(uint32_t tile, const float *q, uint32_t rows, size_t dim, const float *q_row[4])
{
    REPEAT4(r, tile, q_row[r] = q + (r < rows ? r : rows - 1) * dim;);
}

INLINE void dot_store(uint32_t tile, uint32_t rows, const float *hi, const float *lo, float *scores,
                      float *lost)
{
    uint32_t slots = tile_slots(tile); // tiles go in order: what one stores too much the next one overwrites
    REPEAT4(
        r, tile, if (r < rows) {
            memcpy(scores + r * ROW, hi + r * slots, slots * sizeof(float));
            memcpy(lost + r * ROW, lo + r * slots, slots * sizeof(float));
        });
}

// ---- values -------------------------------------------------------------------------------------

// Keys that are added up without compensation. Were all terms equal, with the worst rounding at each step, n
// of them could be off by n / 2 units in the last place; and where chains cancel, what each lost stays. 32
// take half of what is promised (kernels/reference.h), 64 were too many.
#define CHAIN 32u

// A chain starts from what the sum over those before it lost ...
INLINE void fold_start(uint32_t rows, uint32_t cols, vf *acc, size_t column, size_t width, const float *lo)
{
    REPEAT(i, rows * cols, acc[i] = vf_load(lo + i / cols * width + column + i % cols * LANES););
}

// ... and are added to it.
INLINE void fold_keep(uint32_t rows, uint32_t cols, const vf *acc, size_t column, size_t width, float *hi,
                      float *lo)
{
    REPEAT(i, rows * cols, {
        size_t at = i / cols * width + column + i % cols * LANES;
        vf sum = vf_load(hi + at), chain = acc[i];
        vf_carry(&sum, &chain);
        vf_store(hi + at, sum);
        vf_store(lo + at, vf_tame(chain));
    });
}

// acc[r * cols + c] += weight[r] * value, `cols` vectors of one key from `column` on.
INLINE void fold_key(uint32_t rows, uint32_t cols, const float *weight, const char *value, size_t column,
                     vf *acc)
{
    vf x[TILE_SLOTS];
    if (LANES == 8 && cols % 2) {
        REPEAT4(c, cols, x[c] = tile_load(value, column + c * LANES););
    } else {
        REPEAT8(p, cols / 2, tile_load_pair(value, column + p * 2 * LANES, x + 2 * p););
    }
    REPEAT4(r, rows, {
        vf y = vf_splat(weight[r * ROW]);
        REPEAT_ACCS(c, cols, vf_fma_to(&acc[r * cols + c], y, x[c]););
    });
}
