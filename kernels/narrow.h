// SPDX-License-Identifier: Apache-2.0
// The inner loops of kernels/portable.c for few (query row, head) pairs, which read keys and values where
// they lie.
//
// Orders of summation:
//   dot     lanes along d, in groups of 16 vectors; then the lanes pairwise
//   value   lanes along d; chains of 32 keys, each from what the sum over those before it lost
//
// Keys and values are read in the order in which they lie in a worker's memory: all keys of a panel, then all
// its values, then the next panel. A core of Zen 5 that reads so draws half as much again as one that goes to
// and fro between keys and values every few pages, or takes sixteen keys side by side.
#pragma once

#include "kernels/panel.h"

#define TILE_SLOTS 16u // vectors of accumulators at most
#ifndef AHEAD_TO
#define AHEAD_TO 3
#endif

// Asks for what will be used: four lines at a time, once for every four lines that are used.
//
// streams 1: line after line.  4: from four blocks side by side, where a processor's own prefetchers end at
// each page (kernels/variants.h).
struct ahead_block {
    const char *at;
    size_t bytes;
};

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

// How many blocks ahead: 8 KiB, and two blocks at least, were best on Zen 5. Side by side, as many as there
// are in the four pages of a stretch.
INLINE uint32_t ahead_distance(enum kernels_kv_type type, size_t block_bytes, uint32_t streams)
{
    if (streams > 1)
        return type_blocks(type);
    return block_bytes >= 4096 ? 2 : (uint32_t)(8192 / block_bytes);
}

INLINE void ahead_go(struct ahead *a)
{
    REPEAT(i, 4, __builtin_prefetch(a->at + i * a->pitch, 0, AHEAD_TO););
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
INLINE void dot_lanes(enum kernels_kv_type type, uint32_t rows, uint32_t keys, const float *const q_row[4],
                      const char *const key[TILE_SLOTS], struct ahead *ahead, size_t from, size_t to, vf *acc)
{
    // How often to ask in a step, or in how many steps once
    const uint32_t used = keys * 2 * LANES * (uint32_t)type_bytes(type);
    const uint32_t asks = used / 256, steps = used < 256 ? 256 / used : 1;
    for (size_t d = from; d < to; d += 2 * LANES) {
        if (ahead && asks == 0 && d / (2 * LANES) % steps == 0)
            ahead_go(ahead);
        if (ACCS < 16 && rows == 4) { // 16 registers: q is read where it is used
            REPEAT(half, 2, {
                vf x[TILE_SLOTS]; // of which `keys`: as long as REPEAT could go
                REPEAT(c, keys, x[c] = load_half(type, key[c], d, half););
                REPEAT(r, rows, {
                    vf y = vf_load(q_row[r] + d + half * LANES);
                    REPEAT(c, keys, vf_fma_to(&acc[r * keys + c], y, x[c]););
                });
            });
        } else {
            vf y[2 * TILE_SLOTS];
            REPEAT(r, rows, y[2 * r] = vf_load(q_row[r] + d); y[2 * r + 1] = vf_load(q_row[r] + d + LANES););
            REPEAT(c, keys, {
                vf x[2];
                load_pair(type, key[c], d, x);
                REPEAT(r, rows, vf_fma_to(&acc[r * keys + c], y[2 * r], x[0]););
                REPEAT(r, rows, vf_fma_to(&acc[r * keys + c], y[2 * r + 1], x[1]););
                if (ahead && asks > 0 && c % (keys / (asks > 0 ? asks : 1)) == 0)
                    ahead_go(ahead);
            });
        }
    }
}

// One row: acc[c] = q . key[c] over dims from .. to - 1, lane by lane, in four chains, so that no more keys
// than ACCS / 4 are read side by side.
INLINE void dot_lanes_one(enum kernels_kv_type type, const float *q, const char *const key[TILE_SLOTS],
                          struct ahead *ahead, size_t from, size_t to, vf *acc)
{
    enum { KEYS = ACCS / 4 };
    const uint32_t used = KEYS * 2 * LANES * (uint32_t)type_bytes(type);
    const uint32_t asks = used / 256, steps = used < 256 ? 256 / used : 1;
    REPEAT(quarter, 4, {
        vf chain[4 * KEYS];
        REPEAT(i, 4 * KEYS, chain[i] = (vf){0};);
        for (size_t d = from; d < to; d += 4 * LANES) {
            REPEAT(half, 2, {
                size_t at = d + half * 2 * LANES;
                if (at < to) {
                    vf y[2] = {vf_load(q + at), vf_load(q + at + LANES)};
                    if (ahead && asks == 0 && at / (2 * LANES) % steps == 0)
                        ahead_go(ahead);
                    REPEAT(c, KEYS, {
                        vf x[2];
                        load_pair(type, key[quarter * KEYS + c], at, x);
                        vf_fma_to(&chain[4 * c + 2 * half], y[0], x[0]);
                        vf_fma_to(&chain[4 * c + 2 * half + 1], y[1], x[1]);
                        if (ahead && asks > 0 && c % (KEYS / (asks > 0 ? asks : 1)) == 0)
                            ahead_go(ahead);
                    });
                }
            });
        }
        REPEAT(c, KEYS,
               acc[quarter * KEYS + c] =
                   (chain[4 * c] + chain[4 * c + 1]) + (chain[4 * c + 2] + chain[4 * c + 3]););
    });
}

// acc = dots over dims from .. to - 1.
INLINE void dot_group(enum kernels_kv_type type, uint32_t rows, const float *const q_row[4],
                      const char *const key[TILE_SLOTS], struct ahead *ahead, size_t from, size_t to, vf *acc)
{
    if (rows == 1) {
        dot_lanes_one(type, q_row[0], key, ahead, from, to, acc);
    } else {
        REPEAT(i, rows * tile_keys(rows), acc[i] = (vf){0};);
        dot_lanes(type, rows, tile_keys(rows), q_row, key, ahead, from, to, acc);
    }
}

// Dots of `rows` rows with tile_keys(rows) keys: hi + lo, [row][tile_slots(rows)]. dim is a multiple of 2 *
// LANES.
INLINE void dot_tile(enum kernels_kv_type type, uint32_t rows, const float *const q_row[4],
                     const char *const key[TILE_SLOTS], struct ahead *ahead, size_t dim, float *hi, float *lo)
{
    uint32_t keys = tile_keys(rows), n = rows * keys;
    const size_t group = 16 * LANES;
    vf acc[TILE_SLOTS];
    dot_group(type, rows, q_row, key, ahead, 0, dim < group ? dim : group, acc);
    if (dim > group) {
        vf total[TILE_SLOTS];
        REPEAT(i, n, total[i] = acc[i];);
        for (size_t d = group; d < dim; d += group) {
            vf more[TILE_SLOTS];
            dot_group(type, rows, q_row, key, ahead, d, dim - d < group ? dim : d + group, more);
            REPEAT(i, n, total[i] += more[i];);
        }
        REPEAT(i, n, acc[i] = total[i];);
    }
    vf each[TILE_SLOTS];
    REPEAT(r, rows,
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
    REPEAT(r, tile, q_row[r] = q + (r < rows ? r : rows - 1) * dim;);
}

INLINE void dot_store(uint32_t tile, uint32_t rows, const float *hi, const float *lo, float *scores,
                      float *lost)
{
    uint32_t slots = tile_slots(tile); // tiles go in order: what one stores too much the next one overwrites
    REPEAT(
        r, tile, if (r < rows) {
            memcpy(scores + r * ROW, hi + r * slots, slots * sizeof(float));
            memcpy(lost + r * ROW, lo + r * slots, slots * sizeof(float));
        });
}

// scores[r][key] for `tile` rows of q and all keys of a whole panel. Rows past `rows` repeat a neighbour's
// work and are not stored; so do keys past the last, and what is stored of them is never looked at.
INLINE void dot_panel(enum kernels_kv_type type, uint32_t tile, const float *q, uint32_t rows,
                      const char *const *k, uint32_t blocks, size_t k_stride, size_t dim, struct ahead *ahead,
                      float *scores, float *lost)
{
    uint32_t keys = tile_keys(tile), all = blocks * BLOCK;
    const float *q_row[4];
    dot_rows_of(tile, q, rows, dim, q_row);
    for (uint32_t s = 0; s < all; s += keys) {
        const char *key[TILE_SLOTS];
        float hi[TILE_SLOTS], lo[TILE_SLOTS];
        REPEAT(c, keys, {
            uint32_t at = all % keys && s + c >= all ? all - 1 : s + c;
            key[c] = k[at / BLOCK] + at % BLOCK * k_stride;
        });
        dot_tile(type, tile, q_row, key, ahead, dim, hi, lo);
        dot_store(tile, rows, hi, lo, scores + s, lost + s);
    }
}

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
        REPEAT(c, keys, {
            uint32_t at = j + c < begin ? begin : j + c >= end ? end - 1 : j + c;
            key[c] = (const char *)(k + at * dim);
        });
        dot_tile(KERNELS_KV_F32, tile, q_row, key, NULL, dim, hi, lo);
        dot_store(tile, rows, hi, lo, scores + j, lost + j);
    }
}

// ---- values -------------------------------------------------------------------------------------

// Keys that are added up without compensation. Were all terms equal, with the worst rounding at each step, n
// of them could be off by n / 2 units in the last place; and where chains cancel, what each lost stays. 32
// take half of what is promised (kernels/reference.h), 64 were too many.
#define CHAIN 32u

// A chain starts from what the sum over those before it lost ...
INLINE void fold_start(uint32_t rows, uint32_t cols, vf *acc, size_t column, size_t width, const float *lo)
{
    REPEAT(r, rows, REPEAT(c, cols, acc[r * cols + c] = vf_load(lo + r * width + column + c * LANES);););
}

// ... and are added to it.
INLINE void fold_keep(uint32_t rows, uint32_t cols, const vf *acc, size_t column, size_t width, float *hi,
                      float *lo)
{
    REPEAT(r, rows, REPEAT(c, cols, {
               size_t at = r * width + column + c * LANES;
               vf sum = vf_load(hi + at), chain = acc[r * cols + c];
               vf_carry(&sum, &chain);
               vf_store(hi + at, sum);
               vf_store(lo + at, vf_tame(chain));
           }););
}

// acc[r * cols + c] += weight[r] * value, `cols` vectors of one key from `column` on.
INLINE void fold_key(enum kernels_kv_type type, uint32_t rows, uint32_t cols, const float *weight,
                     const char *value, size_t column, vf *acc)
{
    vf x[TILE_SLOTS];
    if (cols % 2) {
        REPEAT(c, cols, x[c] = load_as(type, value, column + c * LANES););
    } else {
        REPEAT(p, cols / 2, load_pair(type, value, column + p * 2 * LANES, x + 2 * p););
    }
    REPEAT(r, rows, {
        vf y = vf_splat(weight[r * ROW]);
        REPEAT(c, cols, vf_fma_to(&acc[r * cols + c], y, x[c]););
    });
}

// `cols` vectors of columns over keys from .. to - 1 of a whole panel, both multiples of 8.
INLINE void fold_panel_strip(enum kernels_kv_type type, uint32_t rows, uint32_t cols, const float *weights,
                             const char *const *v, size_t stride, size_t column, size_t width, uint32_t from,
                             uint32_t to, struct ahead *ahead, float *hi, float *lo)
{
    // How often to ask in eight keys, rounded up
    const uint32_t asks = (8 * cols * LANES * (uint32_t)type_bytes(type) + 255) / 256,
                   each = asks < 8 ? 1 : asks / 8;
    vf acc[TILE_SLOTS];
    fold_start(rows, cols, acc, column, width, lo);
    for (uint32_t s = from; s < to; s += 8) {
        const char *row = v[s / BLOCK] + s % BLOCK * stride;
        REPEAT(j, 8, {
            fold_key(type, rows, cols, weights + s + j, row + j * stride, column, acc);
            if (ahead && (asks >= 8 || j % (8 / (asks < 8 ? asks : 1)) == 0))
                REPEAT(i, each, ahead_go(ahead););
        });
    }
    fold_keep(rows, cols, acc, column, width, hi, lo);
}

// hi, lo [rows][width] += weights[r][key] * value[key] over a chain of a whole panel, keys from .. to - 1;
// width is a multiple of 2 * LANES.
INLINE void fold_chain(enum kernels_kv_type type, uint32_t rows, const float *weights, const char *const *v,
                       size_t stride, size_t width, uint32_t from, uint32_t to, struct ahead *ahead,
                       float *hi, float *lo)
{
    size_t c = 0;
    if (rows == 4 && LANES == 8) {
        for (; c + 3 * LANES <= width && width - c != 4 * LANES; c += 3 * LANES)
            fold_panel_strip(type, rows, 3, weights, v, stride, c, width, from, to, ahead, hi, lo);
    }
    REPEAT(half, 4, {
        const uint32_t cols = ACCS / rows >> half;
        if (cols >= 2) {
            for (; c + cols * LANES <= width; c += cols * LANES)
                fold_panel_strip(type, rows, cols, weights, v, stride, c, width, from, to, ahead, hi, lo);
        }
    });
}

// Keys to fold of each block of a panel.
struct ranges {
    uint32_t begin[MOST_BLOCKS], end[MOST_BLOCKS];
};

INLINE void fold_blocks_strip(uint32_t rows, uint32_t cols, const float *weights, const float *v,
                              uint32_t blocks, const struct ranges *range, size_t column, size_t width,
                              float *hi, float *lo)
{
    for (uint32_t b = 0; b < blocks;) {
        vf acc[TILE_SLOTS];
        fold_start(rows, cols, acc, column, width, lo);
        for (uint32_t end = b + CHAIN / BLOCK < blocks ? b + CHAIN / BLOCK : blocks; b < end; b++) {
            for (uint32_t at = b * BLOCK + range->begin[b]; at < b * BLOCK + range->end[b]; at++)
                fold_key(KERNELS_KV_F32, rows, cols, weights + at, (const char *)(v + at * width), column,
                         acc);
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
    REPEAT(half, 4, {
        const uint32_t cols = ACCS / rows >> half;
        if (cols >= 2) {
            for (; c + cols * LANES <= width; c += cols * LANES)
                fold_blocks_strip(rows, cols, weights, v, blocks, range, c, width, hi, lo);
        }
    });
}

// ---- by type ------------------------------------------------------------------------------------

// What a whole panel needs: `rows` rows of q [rows][k_dim] and of sums [rows][v_dim], scores [rows][ROW].
struct narrow {
    uint32_t rows, blocks;
    size_t k_dim, v_dim, v_stride;
    const float *q;
    float *scores, *lost, *hi, *lo;
    const char *k[MOST_BLOCKS], *v[MOST_BLOCKS]; // where the panel's blocks start
    uint32_t streams, distance;                  // of asking ahead; distance in blocks
    uint32_t uses;
    struct ahead_block use[4 * MOST_BLOCKS]; // K and V of this panel and of the next, in the order of use
};

// Dots of rows r and after, up to 4 of them, with `blocks` blocks from the b-th on. Returns how many.
INLINE uint32_t narrow_dots_rows(enum kernels_kv_type type, const struct narrow *n, uint32_t r, uint32_t b,
                                 uint32_t blocks, struct ahead *ahead)
{
    const char *const *k = n->k + b;
    const float *q = n->q + r * n->k_dim;
    size_t stride = n->k_dim * type_bytes(type), at = (size_t)r * ROW + b * BLOCK;
    float *hi = n->scores + at, *lo = n->lost + at;
    uint32_t left = n->rows - r;
    if (left >= 3) {
        dot_panel(type, 4, q, left, k, blocks, stride, n->k_dim, ahead, hi, lo);
        return 4;
    }
    if (left == 2) {
        dot_panel(type, 2, q, left, k, blocks, stride, n->k_dim, ahead, hi, lo);
        return 2;
    }
    dot_panel(type, 1, q, left, k, blocks, stride, n->k_dim, ahead, hi, lo);
    return 1;
}

// The first rows ask for what comes; the others find in the first cache what those have read.
INLINE void narrow_dots(enum kernels_kv_type type, const struct narrow *n)
{
    const uint32_t most = type_blocks(type);
    struct ahead ahead = ahead_from(n->use + n->distance, n->use + n->uses - 1, n->streams);
    for (uint32_t b = 0; b < n->blocks; b += most) {
        uint32_t blocks = n->blocks - b < most ? n->blocks - b : most;
        uint32_t r = narrow_dots_rows(type, n, 0, b, blocks, &ahead);
        while (r < n->rows)
            r += narrow_dots_rows(type, n, r, b, blocks, NULL);
    }
}

// The same for values and a chain of keys from .. to - 1.
INLINE uint32_t narrow_folds_rows(enum kernels_kv_type type, const struct narrow *n, uint32_t r,
                                  uint32_t from, uint32_t to, struct ahead *ahead)
{
    const float *w = n->scores + (size_t)r * ROW;
    size_t stride = n->v_stride * type_bytes(type);
    float *hi = n->hi + r * n->v_dim, *lo = n->lo + r * n->v_dim;
    if (n->rows - r >= 4) {
        fold_chain(type, 4, w, n->v, stride, n->v_dim, from, to, ahead, hi, lo);
        return 4;
    }
    if (n->rows - r >= 2) {
        fold_chain(type, 2, w, n->v, stride, n->v_dim, from, to, ahead, hi, lo);
        return 2;
    }
    fold_chain(type, 1, w, n->v, stride, n->v_dim, from, to, ahead, hi, lo);
    return 1;
}

INLINE void narrow_folds(enum kernels_kv_type type, const struct narrow *n)
{
    struct ahead ahead = ahead_from(n->use + n->blocks + n->distance, n->use + n->uses - 1, n->streams);
    for (uint32_t s = 0, to; s < n->blocks * BLOCK; s = to) {
        to = s + CHAIN < n->blocks * BLOCK ? s + CHAIN : n->blocks * BLOCK;
        uint32_t r = narrow_folds_rows(type, n, 0, s, to, &ahead);
        while (r < n->rows)
            r += narrow_folds_rows(type, n, r, s, to, NULL);
    }
}

// Not inlined: compilers lose their way in one function of all types.
#define NARROW(type, name)                                                                                   \
    static __attribute__((noinline)) void name##_dots(const struct narrow *n)                                \
    {                                                                                                        \
        narrow_dots(type, n);                                                                                \
    }                                                                                                        \
    static __attribute__((noinline)) void name##_folds(const struct narrow *n)                               \
    {                                                                                                        \
        narrow_folds(type, n);                                                                               \
    }
NARROW(KERNELS_KV_F32, f32)
NARROW(KERNELS_KV_F16, f16)
NARROW(KERNELS_KV_BF16, bf16)
NARROW(KERNELS_KV_INT8, int8)
NARROW(FP8_NUMBERS, fp8)
#undef NARROW

static void narrow_dots_as(enum kernels_kv_type type, const struct narrow *n)
{
    switch (type) {
    case KERNELS_KV_F16:
        f16_dots(n);
        break;
    case KERNELS_KV_BF16:
        bf16_dots(n);
        break;
    case KERNELS_KV_INT8:
        int8_dots(n);
        break;
    case KERNELS_KV_FP8:
        fp8_dots(n);
        break;
    default:
        f32_dots(n);
        break;
    }
}

static void narrow_folds_as(enum kernels_kv_type type, const struct narrow *n)
{
    switch (type) {
    case KERNELS_KV_F16:
        f16_folds(n);
        break;
    case KERNELS_KV_BF16:
        bf16_folds(n);
        break;
    case KERNELS_KV_INT8:
        int8_folds(n);
        break;
    case KERNELS_KV_FP8:
        fp8_folds(n);
        break;
    default:
        f32_folds(n);
        break;
    }
}
