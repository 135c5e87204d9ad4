// SPDX-License-Identifier: Apache-2.0
// Whole panels with few (query row, head) pairs (kernels/narrow.h), of one KV type: KERNELS_TYPE, which is
// f32, f16, bf16, int8 or fp8. Compiled once per type and instruction set (kernels/CMakeLists.txt).
#define TYPE_f32        KERNELS_KV_F32
#define TYPE_f16        KERNELS_KV_F16
#define TYPE_bf16       KERNELS_KV_BF16
#define TYPE_int8       KERNELS_KV_INT8
#define TYPE_fp8        FP8_NUMBERS
#define TYPE_JOIN(type) TYPE_##type
#define TYPE_OF(type)   TYPE_JOIN(type)
#define TILE_TYPE       TYPE_OF(KERNELS_TYPE)

#include "kernels/narrow_tile.h"

// ---- dots ---------------------------------------------------------------------------------------

// scores[r][key] for `tile` rows of q and all keys of a whole panel. Rows past `rows` repeat a neighbour's
// work and are not stored; so do keys past the last, and what is stored of them is never looked at.
INLINE void dot_panel(uint32_t tile, const float *q, uint32_t rows, const char *const *k, uint32_t blocks,
                      size_t k_stride, size_t dim, struct ahead *ahead, float *scores, float *lost)
{
    uint32_t keys = tile_keys(tile), all = blocks * BLOCK;
    const float *q_row[4];
    dot_rows_of(tile, q, rows, dim, q_row);
    for (uint32_t s = 0; s < all; s += keys) {
        const char *key[TILE_SLOTS];
        float hi[TILE_SLOTS], lo[TILE_SLOTS];
        REPEAT_ACCS(c, keys, {
            uint32_t at = all % keys && s + c >= all ? all - 1 : s + c;
            key[c] = k[at / BLOCK] + at % BLOCK * k_stride;
        });
        dot_tile(tile, q_row, key, ahead, dim, hi, lo);
        dot_store(tile, rows, hi, lo, scores + s, lost + s);
    }
}

// Dots of rows r and after, up to 4 of them, with `blocks` blocks from the b-th on. Returns how many.
INLINE uint32_t narrow_dots_rows(const struct narrow *n, uint32_t r, uint32_t b, uint32_t blocks,
                                 struct ahead *ahead)
{
    const char *const *k = n->k + b;
    const float *q = n->q + r * n->k_dim;
    size_t stride = n->k_dim * type_bytes(TILE_TYPE), at = (size_t)r * ROW + b * BLOCK;
    float *hi = n->scores + at, *lo = n->lost + at;
    uint32_t left = n->rows - r;
    if (left >= 3) {
        dot_panel(4, q, left, k, blocks, stride, n->k_dim, ahead, hi, lo);
        return 4;
    }
    if (left == 2) {
        dot_panel(2, q, left, k, blocks, stride, n->k_dim, ahead, hi, lo);
        return 2;
    }
    dot_panel(1, q, left, k, blocks, stride, n->k_dim, ahead, hi, lo);
    return 1;
}

// The first rows ask for what comes; the others find in the first cache what those have read.
static void narrow_dots(const struct narrow *n)
{
    const uint32_t most = type_blocks(TILE_TYPE);
    struct ahead ahead = ahead_from(n->use + n->distance, n->use + n->uses - 1, n->streams);
    for (uint32_t b = 0; b < n->blocks; b += most) {
        uint32_t blocks = n->blocks - b < most ? n->blocks - b : most;
        uint32_t r = narrow_dots_rows(n, 0, b, blocks, &ahead);
        while (r < n->rows)
            r += narrow_dots_rows(n, r, b, blocks, NULL);
    }
}

// ---- values -------------------------------------------------------------------------------------

// `cols` vectors of columns over keys from .. to - 1 of a whole panel, both multiples of 8.
INLINE void fold_panel_strip(uint32_t rows, uint32_t cols, const float *weights, const char *const *v,
                             size_t stride, size_t column, size_t width, uint32_t from, uint32_t to,
                             struct ahead *ahead, float *hi, float *lo)
{
    // How often to ask in eight keys, rounded up
    const uint32_t asks = (8 * cols * LANES * (uint32_t)type_bytes(TILE_TYPE) + 255) / 256,
                   each = asks < 8 ? 1 : asks / 8;
    vf acc[TILE_SLOTS];
    fold_start(rows, cols, acc, column, width, lo);
    for (uint32_t s = from; s < to; s += 8) {
        const char *row = v[s / BLOCK] + s % BLOCK * stride;
        REPEAT8(j, 8, {
            fold_key(rows, cols, weights + s + j, row + j * stride, column, acc);
            if (ahead && (asks >= 8 || j % (8 / (asks < 8 ? asks : 1)) == 0))
                REPEAT4(i, each, ahead_go(ahead););
        });
    }
    fold_keep(rows, cols, acc, column, width, hi, lo);
}

// hi, lo [rows][width] += weights[r][key] * value[key] over a chain of a whole panel, keys from .. to - 1;
// width is a multiple of 2 * LANES.
INLINE void fold_chain(uint32_t rows, const float *weights, const char *const *v, size_t stride, size_t width,
                       uint32_t from, uint32_t to, struct ahead *ahead, float *hi, float *lo)
{
    size_t c = 0;
    if (rows == 4 && LANES == 8) {
        for (; c + 3 * LANES <= width && width - c != 4 * LANES; c += 3 * LANES)
            fold_panel_strip(rows, 3, weights, v, stride, c, width, from, to, ahead, hi, lo);
    }
    REPEAT4(half, 4, {
        const uint32_t cols = ACCS >> half;
        if (cols >= 2 && rows <= ACCS / cols) {
            for (; c + cols * LANES <= width; c += cols * LANES)
                fold_panel_strip(rows, cols, weights, v, stride, c, width, from, to, ahead, hi, lo);
        }
    });
}

// The same for values and a chain of keys from .. to - 1.
INLINE uint32_t narrow_folds_rows(const struct narrow *n, uint32_t r, uint32_t from, uint32_t to,
                                  struct ahead *ahead)
{
    const float *w = n->scores + (size_t)r * ROW;
    size_t stride = n->v_stride * type_bytes(TILE_TYPE);
    float *hi = n->hi + r * n->v_dim, *lo = n->lo + r * n->v_dim;
    if (n->rows - r >= 4) {
        fold_chain(4, w, n->v, stride, n->v_dim, from, to, ahead, hi, lo);
        return 4;
    }
    if (n->rows - r >= 2) {
        fold_chain(2, w, n->v, stride, n->v_dim, from, to, ahead, hi, lo);
        return 2;
    }
    fold_chain(1, w, n->v, stride, n->v_dim, from, to, ahead, hi, lo);
    return 1;
}

static void narrow_folds(const struct narrow *n)
{
    struct ahead ahead = ahead_from(n->use + n->blocks + n->distance, n->use + n->uses - 1, n->streams);
    for (uint32_t s = 0, to; s < n->blocks * BLOCK; s = to) {
        to = s + CHAIN < n->blocks * BLOCK ? s + CHAIN : n->blocks * BLOCK;
        uint32_t r = narrow_folds_rows(n, 0, s, to, &ahead);
        while (r < n->rows)
            r += narrow_folds_rows(n, r, s, to, NULL);
    }
}

const struct kernels_narrow_ops NARROW_OPS(KERNELS_TYPE) = {
    .dots = narrow_dots,
    .folds = narrow_folds,
};
