// SPDX-License-Identifier: Apache-2.0
// kernels/narrow.c for AVX2: 16 registers of 8 lanes. The order of every sum is what it is there, so bits
// are, too.
//
// Four rows by three keys, or by three columns of values, are twelve sums; with the three vectors and what
// meets them, all registers. A row's products are therefore one statement, and its factor comes from memory
// within it. Left to choose, a compiler loads factors early and keeps a sum or three in memory; each product
// of such a sum waits for a store and a load.
//
// With one row, each key or value meets one factor: it is converted right before its product, or, in float32,
// is the product's operand in memory.
#include "kernels/panel.h"

#define TYPE_f32        KERNELS_KV_F32
#define TYPE_f16        KERNELS_KV_F16
#define TYPE_bf16       KERNELS_KV_BF16
#define TYPE_int8       KERNELS_KV_INT8
#define TYPE_fp8        FP8_NUMBERS
#define TYPE_JOIN(type) TYPE_##type
#define TYPE_OF(type)   TYPE_JOIN(type)
#define STORED_TYPE     TYPE_OF(KERNELS_TYPE)

// fp8 codes become binary16 numbers first, some keys at a time: four operations for 16 of them, while
// conversions in registers take five for eight, two of them on the ports of products.
#define COPIED    (STORED_TYPE == FP8_NUMBERS)
#define TILE_TYPE (COPIED ? KERNELS_KV_F16 : STORED_TYPE)

#include "kernels/narrow_tile.h"

_Static_assert(LANES == 8, "for AVX2");

// ---- asking ahead -------------------------------------------------------------------------------

// As struct ahead, asked by how much is used.
struct use {
    const struct ahead_block *block, *last;
    const char *at, *end;
    size_t pitch, pitch3, step, blocks;
    int32_t left; // bytes to use before asking again
};

INLINE struct use use_from(const struct ahead_block *block, const struct ahead_block *last, uint32_t streams)
{
    struct ahead a = ahead_from(block, last, streams);
    return (struct use){.block = a.block,
                        .last = a.last,
                        .at = a.at,
                        .end = a.end,
                        .pitch = a.pitch,
                        .pitch3 = 3 * a.pitch,
                        .step = a.step,
                        .blocks = a.blocks};
}

INLINE void use_ask(struct use *a)
{
    __builtin_prefetch(a->at, 0, AHEAD_TO);
    __builtin_prefetch(a->at + a->pitch, 0, AHEAD_TO);
    __builtin_prefetch(a->at + 2 * a->pitch, 0, AHEAD_TO);
    __builtin_prefetch(a->at + a->pitch3, 0, AHEAD_TO);
    a->at += a->step;
    if (__builtin_expect(a->at >= a->end, 0)) {
        a->block = a->block + a->blocks < a->last ? a->block + a->blocks : a->last;
        a->at = a->block->at;
        a->end = a->at + a->block->bytes;
    }
}

// Where bytes, 256 or fewer, are about to be used. NULL: asked for already.
INLINE void use_bytes(struct use *a, uint32_t bytes)
{
    if (!a)
        return;
    a->left -= (int32_t)bytes;
    if (bytes == 256 || a->left < 0) {
        a->left += 256;
        use_ask(a);
    }
}

// ---- copies -------------------------------------------------------------------------------------

#define COPY_BYTES ((size_t)16384) // half of a first cache

// Blocks of keys to copy at a time.
INLINE uint32_t copy_blocks(size_t dim)
{
    size_t most = COPY_BYTES / (BLOCK * dim * type_bytes(TILE_TYPE));
    return most == 0 ? 1 : most > MOST_BLOCKS ? MOST_BLOCKS : (uint32_t)most;
}

// Numbers of `blocks` blocks of codes, rows `pitch` bytes apart, row after row; at[]: where the blocks
// start. Not inlined: its constants would take a register from the loops.
static __attribute__((noinline)) void copy_codes(const char *const *codes, uint32_t blocks, size_t dim,
                                                 size_t pitch, struct use *ahead, uint16_t *numbers,
                                                 const char **at)
{
    for (uint32_t b = 0; b < blocks; b++) {
        at[b] = (const char *)numbers;
        for (uint32_t j = 0; j < BLOCK; j++) {
            const uint8_t *row = (const uint8_t *)codes[b] + j * pitch;
            size_t d = 0;
            for (; d + 8 * LANES <= dim; d += 8 * LANES)
                REPEAT4(i, 4, vf_fp8_to_f16(row + d + i * 2 * LANES, numbers + d + i * 2 * LANES););
            for (; d < dim; d += 2 * LANES)
                vf_fp8_to_f16(row + d, numbers + d);
            numbers += dim;
            for (ahead->left -= (int32_t)dim; ahead->left < 0; ahead->left += 256)
                use_ask(ahead);
        }
    }
}

// ---- products ------------------------------------------------------------------------------------

typedef float vf_anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// sum[i] += a * b[i] for i < n, which is 2, 3 or 4. a: LANES floats, or one for all lanes.
#define ROW_SUM(i)     "+&x"(sum[i])
#define ROW_MANY(load) load " %[a], %[t]\n\t"
#define ROW_FMA(i)     "vfmadd231ps %[b" #i "], %[t], %" #i "\n\t"
#define ROW_AS_2(load, at)                                                                                   \
    __asm__(ROW_MANY(load) ROW_FMA(0) ROW_FMA(1)                                                             \
            : ROW_SUM(0), ROW_SUM(1), [t] "=&x"(t)                                                           \
            : [a] "m"(at), [b0] "x"(b[0]), [b1] "x"(b[1]))
#define ROW_AS_3(load, at)                                                                                   \
    __asm__(ROW_MANY(load) ROW_FMA(0) ROW_FMA(1) ROW_FMA(2)                                                  \
            : ROW_SUM(0), ROW_SUM(1), ROW_SUM(2), [t] "=&x"(t)                                               \
            : [a] "m"(at), [b0] "x"(b[0]), [b1] "x"(b[1]), [b2] "x"(b[2]))
#define ROW_AS_4(load, at)                                                                                   \
    __asm__(ROW_MANY(load) ROW_FMA(0) ROW_FMA(1) ROW_FMA(2) ROW_FMA(3)                                       \
            : ROW_SUM(0), ROW_SUM(1), ROW_SUM(2), ROW_SUM(3), [t] "=&x"(t)                                   \
            : [a] "m"(at), [b0] "x"(b[0]), [b1] "x"(b[1]), [b2] "x"(b[2]), [b3] "x"(b[3]))

INLINE void row_add_vector(uint32_t n, vf *sum, const float *a, const vf *b)
{
    vf t;
    const vf_anywhere *at = (const vf_anywhere *)(const void *)a;
    if (n == 2)
        ROW_AS_2("vmovups", *at);
    else if (n == 3)
        ROW_AS_3("vmovups", *at);
    else
        ROW_AS_4("vmovups", *at);
}

INLINE void row_add_number(uint32_t n, vf *sum, const float *a, const vf *b)
{
    vf t;
    if (n == 2)
        ROW_AS_2("vbroadcastss", *a);
    else if (n == 3)
        ROW_AS_3("vbroadcastss", *a);
    else
        ROW_AS_4("vbroadcastss", *a);
}

// bfloat16 without the mask of vf_load_bf16, for which there is no register left.
INLINE vf key_load(const char *row, size_t i)
{
    if (TILE_TYPE != KERNELS_KV_BF16)
        return tile_load(row, i);
    const __m128i *x = (const __m128i *)(const void *)(row + 2 * i);
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(x)), 16);
}

// The same for a value, in the order of load_values. Zeros are made where they are used up.
INLINE vf value_load(const char *row, size_t pair, uint32_t half)
{
    if (TILE_TYPE != KERNELS_KV_BF16)
        return tile_load(row, pair + half * LANES);
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(row + 2 * pair)), zero;
    __asm__("vpxor %0, %0, %0" : "=x"(zero)); // not a constant that takes a register for good
    return (vf)(half ? _mm256_unpackhi_epi16(zero, x) : _mm256_unpacklo_epi16(zero, x));
}

// *low += y0 * x and *high += y1 * (the next LANES), x being elements i and after of a key or a value.
INLINE void pair_add(bool value, vf *low, vf *high, vf y0, vf y1, const char *row, size_t i)
{
    if (TILE_TYPE == KERNELS_KV_F32) {
        const float *x = (const float *)(const void *)row + i;
        const vf_anywhere *x0 = (const vf_anywhere *)(const void *)x, *x1 = x0 + 1;
        __asm__("vfmadd231ps %2, %1, %0" : "+x"(*low) : "x"(y0), "m"(*x0));
        __asm__("vfmadd231ps %2, %1, %0" : "+x"(*high) : "x"(y1), "m"(*x1));
    } else {
        vf_fma_to(low, y0, value ? load_value(TILE_TYPE, row, i, 0) : tile_load(row, i));
        vf_fma_to(high, y1, value ? load_value(TILE_TYPE, row, i, 1) : tile_load(row, i + LANES));
    }
}

// acc[r * keys + c] += q_row[r] . key[c] over dims from .. to - 1, whole pairs of vectors, lane by lane; 2
// or 4 rows.
INLINE void lanes_rows(uint32_t rows, uint32_t keys, const float *const q_row[4],
                       const char *const key[TILE_SLOTS], struct use *ahead, size_t from, size_t to, vf *acc)
{
    for (size_t d = from; d < to; d += 2 * LANES) {
        use_bytes(ahead, keys * 2 * LANES * (uint32_t)type_bytes(TILE_TYPE));
        REPEAT2(half, 2, {
            vf x[4];
            REPEAT4(c, keys, x[c] = key_load(key[c], d + half * LANES););
            REPEAT4(r, rows, row_add_vector(keys, acc + r * keys, q_row[r] + d + half * LANES, x););
        });
    }
}

// What a compiler does not load again for each use.
INLINE vf load_once(const float *p)
{
    vf x = vf_load(p);
    __asm__("" : "+x"(x));
    return x;
}

// One row: acc[c] = q . key[c], for 8 keys. Two keys side by side, each in four chains of every fourth
// vector.
INLINE void lanes_one(const float *q, const char *const key[TILE_SLOTS], struct use *ahead, size_t from,
                      size_t to, vf *acc)
{
    enum { KEYS = 2 };
    const uint32_t used = KEYS * 4 * LANES * (uint32_t)type_bytes(TILE_TYPE);
    REPEAT4(quarter, 4, {
        const char *const *k = key + quarter * KEYS;
        vf chain[4 * KEYS];
        REPEAT8(i, 4 * KEYS, chain[i] = (vf){0};);
        size_t d = from;
        for (; d + 4 * LANES <= to; d += 4 * LANES) {
            use_bytes(ahead, used);
            REPEAT2(half, 2, {
                size_t at = d + half * 2 * LANES;
                vf y0 = load_once(q + at), y1 = load_once(q + at + LANES);
                REPEAT2(c, KEYS, {
                    vf *to_chain = chain + 4 * c + 2 * half;
                    pair_add(false, &to_chain[0], &to_chain[1], y0, y1, k[c], at);
                });
            });
        }
        if (d < to) {
            vf y0 = vf_load(q + d), y1 = vf_load(q + d + LANES);
            use_bytes(ahead, used / 2);
            REPEAT2(c, KEYS, pair_add(false, &chain[4 * c], &chain[4 * c + 1], y0, y1, k[c], d););
        }
        REPEAT2(c, KEYS, {
            const vf *x = chain + 4 * c;
            acc[quarter * KEYS + c] = (x[0] + x[1]) + (x[2] + x[3]);
        });
    });
}

// ---- dots ---------------------------------------------------------------------------------------

// acc = dots over dims from .. to - 1.
INLINE void lanes_group(uint32_t rows, const float *const q_row[4], const char *const key[TILE_SLOTS],
                        struct use *ahead, size_t from, size_t to, vf *acc)
{
    if (rows == 1) {
        lanes_one(q_row[0], key, ahead, from, to, acc);
    } else {
        REPEAT(i, rows * tile_keys(rows), acc[i] = (vf){0};);
        lanes_rows(rows, tile_keys(rows), q_row, key, ahead, from, to, acc);
    }
}

// scores[r][key] for `tile` rows of q and all keys of a whole panel. Rows past `rows` repeat a neighbour's
// work and are not stored; so do keys past the last.
//
// Dots wait in lanes until there are enough of them. A sum of lanes is a long chain of a few operations, and
// what follows one alone waits for it in the queues of a core: that took a third of all time.
INLINE void dot_panel(uint32_t tile, const float *q, uint32_t rows, const char *const *k, uint32_t blocks,
                      size_t k_stride, size_t dim, struct use *ahead, float *scores, float *lost)
{
    enum { KEPT = 24 }; // keys: a multiple of LANES and of a tile's keys
    const uint32_t keys = tile_keys(tile), all = blocks * BLOCK;
    const float *q_row[4];
    vf kept[4 * KEPT];
    dot_rows_of(tile, q, rows, dim, q_row);
    for (uint32_t s = 0; s < all; s += KEPT) {
        uint32_t n = all - s < KEPT ? all - s : KEPT;
        for (uint32_t t = 0; t < n; t += keys) {
            const char *key[TILE_SLOTS];
            vf acc[TILE_SLOTS];
            const char *first = k[(s + t) / BLOCK] + (s + t) % BLOCK * k_stride;
            REPEAT8(c, keys, {
                uint32_t at = s + t + c < all ? s + t + c : all - 1;
                key[c] = BLOCK % keys == 0 ? first + c * k_stride : k[at / BLOCK] + at % BLOCK * k_stride;
            });
            for (size_t d = 0, to; d < dim; d = to) {
                to = dim - d > 16 * LANES ? d + 16 * LANES : dim;
                lanes_group(tile, q_row, key, ahead, d, to, acc);
                if (d == 0) {
                    REPEAT4(r, tile, REPEAT8(c, keys, kept[r * KEPT + t + c] = acc[r * keys + c];););
                } else {
                    REPEAT4(r, tile, REPEAT8(c, keys, kept[r * KEPT + t + c] += acc[r * keys + c];););
                }
            }
        }
        for (uint32_t t = 0; t < n; t += LANES) {
            for (uint32_t r = 0; r < rows && r < tile; r++) {
                vf hi, lo;
                vf_sum_each(kept + r * KEPT + t, &hi, &lo);
                vf_store(scores + r * ROW + s + t, hi);
                vf_store(lost + r * ROW + s + t, lo);
            }
        }
    }
}

// Dots of rows r and after, up to 4 of them, with `blocks` blocks from the b-th on, which k are. Returns how
// many.
INLINE uint32_t narrow_dots_rows(const struct narrow *n, uint32_t r, const char *const *k, uint32_t b,
                                 uint32_t blocks, struct use *ahead)
{
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
    const uint32_t few = n->rows <= 4 ? n->blocks : type_blocks(TILE_TYPE); // which are read once
    const uint32_t most = COPIED ? copy_blocks(n->k_dim) : few;
    struct use ahead = use_from(n->use + n->distance, n->use + n->uses - 1, n->streams);
    for (uint32_t b = 0; b < n->blocks; b += most) {
        uint32_t blocks = n->blocks - b < most ? n->blocks - b : most;
        const char *const *k = n->k + b;
        const char *copies[MOST_BLOCKS];
        if (COPIED) {
            copy_codes(k, blocks, n->k_dim, n->k_dim, &ahead, n->room, copies);
            k = copies;
        }
        uint32_t r = narrow_dots_rows(n, 0, k, b, blocks, COPIED ? NULL : &ahead);
        while (r < n->rows)
            r += narrow_dots_rows(n, r, k, b, blocks, NULL);
    }
}

// ---- values -------------------------------------------------------------------------------------

// acc[r * cols + c] += weight[r * ROW] * value, `cols` vectors of one key from `column` on, which is the
// second of its pair if odd.
INLINE void fold_values(uint32_t rows, uint32_t cols, uint32_t odd, const float *weight, const char *value,
                        size_t column, vf *acc)
{
    if (rows == 1) {
        vf y = vf_splat(weight[0]);
        REPEAT4(p, cols / 2, {
            vf *sum = acc + 2 * p;
            pair_add(true, &sum[0], &sum[1], y, y, value, column + p * 2 * LANES);
        });
    } else {
        vf x[4];
        REPEAT4(c, cols, {
            const uint32_t half = (c + odd) % 2;
            x[c] = value_load(value, column + c * LANES - half * LANES, half);
        });
        REPEAT4(r, rows, row_add_number(cols, acc + r * cols, weight + r * ROW, x););
    }
}

// Keys of a strip that use up to 256 bytes: 1, 2, 4 or 8.
INLINE uint32_t fold_step(uint32_t key_bytes)
{
    return key_bytes > 128 ? 1 : key_bytes > 64 ? 2 : key_bytes > 32 ? 4 : 8;
}

// `cols` vectors of columns, which start with the second of a pair if odd, over keys from .. to - 1 of a
// whole panel, both multiples of 8.
INLINE void fold_panel_strip(uint32_t rows, uint32_t cols, uint32_t odd, const float *weights,
                             const char *const *v, size_t stride, size_t column, size_t width, uint32_t from,
                             uint32_t to, struct use *ahead, float *hi, float *lo)
{
    const uint32_t key_bytes = cols * LANES * (uint32_t)type_bytes(TILE_TYPE), step = fold_step(key_bytes);
    vf acc[TILE_SLOTS];
    fold_start(rows, cols, acc, column, width, lo);
    for (uint32_t s = from; s < to; s += 8) {
        const char *row = v[s / BLOCK] + s % BLOCK * stride;
        REPEAT8(j, 8, {
            fold_values(rows, cols, odd, weights + s + j, row + j * stride, column, acc);
            if (j % step == 0)
                use_bytes(ahead, step * key_bytes);
        });
    }
    fold_keep(rows, cols, acc, column, width, hi, lo);
}

// hi, lo [rows][width] += weights[r][key] * value[key] over a chain of a whole panel, keys from .. to - 1;
// width is a multiple of 2 * LANES.
INLINE void fold_chain(uint32_t rows, const float *weights, const char *const *v, size_t stride, size_t width,
                       uint32_t from, uint32_t to, struct use *ahead, float *hi, float *lo)
{
    size_t c = 0;
    if (rows == 4) {
        while (c + 3 * LANES <= width && width - c != 4 * LANES) {
            if (c / LANES % 2 == 0)
                fold_panel_strip(rows, 3, 0, weights, v, stride, c, width, from, to, ahead, hi, lo);
            else
                fold_panel_strip(rows, 3, 1, weights, v, stride, c, width, from, to, ahead, hi, lo);
            c += 3 * LANES;
        }
    }
    REPEAT4(half, 4, {
        const uint32_t cols = ACCS >> half;
        if (cols >= 2 && rows <= ACCS / cols) {
            for (; c + cols * LANES <= width; c += cols * LANES)
                fold_panel_strip(rows, cols, 0, weights, v, stride, c, width, from, to, ahead, hi, lo);
        }
    });
}

// The same for values and a chain of keys from .. to - 1: v are the panel's blocks, values `stride` bytes
// apart.
INLINE uint32_t narrow_folds_rows(const struct narrow *n, uint32_t r, const char *const *v, size_t stride,
                                  uint32_t from, uint32_t to, struct use *ahead)
{
    const float *w = n->scores + (size_t)r * ROW;
    float *hi = n->hi + r * n->v_dim, *lo = n->lo + r * n->v_dim;
    if (n->rows - r >= 4) {
        fold_chain(4, w, v, stride, n->v_dim, from, to, ahead, hi, lo);
        return 4;
    }
    if (n->rows - r >= 2) {
        fold_chain(2, w, v, stride, n->v_dim, from, to, ahead, hi, lo);
        return 2;
    }
    fold_chain(1, w, v, stride, n->v_dim, from, to, ahead, hi, lo);
    return 1;
}

static void narrow_folds(const struct narrow *n)
{
    struct use ahead = use_from(n->use + n->blocks + n->distance, n->use + n->uses - 1, n->streams);
    for (uint32_t s = 0, to; s < n->blocks * BLOCK; s = to) {
        to = s + CHAIN < n->blocks * BLOCK ? s + CHAIN : n->blocks * BLOCK;
        size_t stride = n->v_stride * type_bytes(TILE_TYPE);
        const char *const *v = n->v;
        const char *copies[MOST_BLOCKS];
        if (COPIED) {
            uint32_t b = s / BLOCK;
            copy_codes(n->v + b, (to - s) / BLOCK, n->v_dim, n->v_stride, &ahead, n->room, copies + b);
            stride = n->v_dim * type_bytes(TILE_TYPE);
            v = copies;
        }
        uint32_t r = narrow_folds_rows(n, 0, v, stride, s, to, COPIED ? NULL : &ahead);
        while (r < n->rows)
            r += narrow_folds_rows(n, r, v, stride, s, to, NULL);
    }
}

const struct kernels_narrow_ops NARROW_OPS(KERNELS_TYPE) = {
    .dots = narrow_dots,
    .folds = narrow_folds,
};
