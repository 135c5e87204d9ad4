// SPDX-License-Identifier: Apache-2.0
// The inner loops of kernels/portable.c: register tiles over one panel of at most 4 blocks of 16 keys.
//
// Orders of summation, the same for every tile shape (so a row's bits depend on the path alone, not on its
// neighbours):
//   dot, narrow path   lanes along d; then the lanes pairwise
//   dot, wide path     lanes along keys; d in groups of 16 from zero, the groups in order
//   value              lanes along d; 16 keys of a block from zero, the blocks in order, panels with a
//   compensated sum
#pragma once

#include <stddef.h>

#include "common/float16.h"
#include "kernels/attention.h"
#include "kernels/vector.h"

#define BLOCK        ((uint32_t)KERNELS_BLOCK)
#define PANEL_BLOCKS 4u
#define PANEL        (BLOCK * PANEL_BLOCKS)

// Register budget: 32 vectors with AVX-512 and 16 elsewhere, half of them for accumulators.
#define ACCS (LANES == 16 ? 16 : 8)

// Keys begin .. end - 1 of a block are seen by some row of the tile; the others are never read.
struct block {
    const char *k, *v; // key 0 of the block, in the job's memory
    uint64_t first;    // its position
    uint32_t begin, end;
};

INLINE vf load_as(enum kernels_kv_type type, const char *row, size_t i)
{
    if (type == KERNELS_KV_F16)
        return vf_load_f16((const uint16_t *)(const void *)row + i);
    if (type == KERNELS_KV_BF16)
        return vf_load_bf16((const uint16_t *)(const void *)row + i);
    return vf_load((const float *)(const void *)row + i);
}

// As load_as, where only n < LANES elements are left: the rest is zero.
INLINE vf load_tail(enum kernels_kv_type type, const char *row, size_t i, size_t n)
{
    float x[LANES] = {0};
    for (size_t l = 0; l < n && l < LANES; l++) {
        if (type == KERNELS_KV_F16)
            x[l] = common_f16_to_float(((const uint16_t *)(const void *)row)[i + l]);
        else if (type == KERNELS_KV_BF16)
            x[l] = common_bf16_to_float(((const uint16_t *)(const void *)row)[i + l]);
        else
            x[l] = ((const float *)(const void *)row)[i + l];
    }
    return vf_load(x);
}

INLINE vf load_padded(enum kernels_kv_type type, const char *row, size_t i, size_t dim)
{
    return i + LANES <= dim ? load_as(type, row, i) : load_tail(type, row, i, dim - i);
}

INLINE size_t type_bytes(enum kernels_kv_type type)
{
    return type == KERNELS_KV_F32 ? 4 : 2;
}

// acc[r][c] = q_row[r] . key[c] over dims from .. to - 1, whole vectors, lane by lane.
INLINE void dot_lanes(enum kernels_kv_type type, uint32_t row_tile, const float *const q_row[4],
                      const char *const key[ACCS], size_t from, size_t to, vf acc[ACCS])
{
    uint32_t key_tile = ACCS / row_tile;
#pragma GCC unroll 16
    for (uint32_t i = 0; i < ACCS; i++)
        acc[i] = (vf){0};
    for (size_t d = from; d < to; d += LANES) {
        vf x[ACCS];
#pragma GCC unroll 16
        for (uint32_t c = 0; c < key_tile; c++)
            x[c] = load_as(type, key[c], d);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < row_tile; r++) {
            vf y = vf_load(q_row[r] + d);
#pragma GCC unroll 16
            for (uint32_t c = 0; c < key_tile; c++)
                acc[r * key_tile + c] = vf_fma(y, x[c], acc[r * key_tile + c]);
        }
    }
}

// scores[r][j] = q[r] . k[j] for row_tile rows of q (stride dim) and the seen keys of a block; dim is a
// multiple of LANES. Rows past `rows` and keys outside the range repeat a neighbour's work and are not stored
// or never looked at.
INLINE void dot_rows(enum kernels_kv_type type, uint32_t row_tile, const float *q, uint32_t rows,
                     const char *k, size_t k_stride, uint32_t begin, uint32_t end, size_t dim, float *scores,
                     float *lost)
{
    uint32_t key_tile = ACCS / row_tile;
    const float *q_row[4];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < row_tile; r++)
        q_row[r] = q + (r < rows ? r : rows - 1) * dim;
    for (uint32_t j = begin - begin % key_tile; j < end; j += key_tile) {
        const char *key[ACCS];
        vf acc[ACCS];
#pragma GCC unroll 16
        for (uint32_t c = 0; c < key_tile; c++) {
            uint32_t at = j + c < begin ? begin : j + c >= end ? end - 1 : j + c;
            key[c] = k + at * k_stride;
        }
        const size_t group = 8 * LANES;
        dot_lanes(type, row_tile, q_row, key, 0, dim < group ? dim : group, acc);
        for (size_t d = group; d < dim; d += group) {
            vf more[ACCS];
            dot_lanes(type, row_tile, q_row, key, d, dim - d < group ? dim : d + group, more);
#pragma GCC unroll 16
            for (uint32_t i = 0; i < ACCS; i++)
                acc[i] += more[i];
        }
        float hi[ACCS], lo[ACCS];
#pragma GCC unroll 4
        for (uint32_t i = 0; i < ACCS; i += LANES) {
            vf h, l;
            vf_sum_each(acc + i, &h, &l);
            vf_store(hi + i, h);
            vf_store(lo + i, l);
        }
#pragma GCC unroll 4
        for (uint32_t r = 0; r < row_tile; r++) {
            if (r < rows) {
                memcpy(scores + r * PANEL + j, hi + r * key_tile, key_tile * sizeof(float));
                memcpy(lost + r * PANEL + j, lo + r * key_tile, key_tile * sizeof(float));
            }
        }
    }
}

#define WIDE_ROWS (LANES == 16 ? 4u : 2u)
#define WIDE_KEYS (2u * LANES)

// scores[r][c .. c + WIDE_KEYS) for WIDE_ROWS rows of q (stride q_stride), keys transposed: keys[dim][PANEL].
INLINE void dot_wide(const float *q, size_t q_stride, const float *keys, size_t dim, float *scores,
                     float *lost)
{
    size_t group = dim <= 32 ? 4 : dim <= 64 ? 8 : 16;
    vf hi[WIDE_ROWS][2], lo[WIDE_ROWS][2];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < WIDE_ROWS; r++)
        hi[r][0] = hi[r][1] = lo[r][0] = lo[r][1] = (vf){0};
    for (size_t d0 = 0; d0 < dim; d0 += group) {
        size_t d1 = d0 + group < dim ? d0 + group : dim;
        vf acc[WIDE_ROWS][2];
#pragma GCC unroll 4
        for (uint32_t r = 0; r < WIDE_ROWS; r++)
            acc[r][0] = acc[r][1] = (vf){0};
        for (size_t d = d0; d < d1; d++) {
            vf a = vf_load(keys + d * PANEL), b = vf_load(keys + d * PANEL + LANES);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < WIDE_ROWS; r++) {
                vf x = vf_splat(q[r * q_stride + d]);
                acc[r][0] = vf_fma(x, a, acc[r][0]);
                acc[r][1] = vf_fma(x, b, acc[r][1]);
            }
        }
#pragma GCC unroll 4
        for (uint32_t r = 0; r < WIDE_ROWS; r++) {
            vf_add_exact(&hi[r][0], &lo[r][0], acc[r][0]);
            vf_add_exact(&hi[r][1], &lo[r][1], acc[r][1]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < WIDE_ROWS; r++) {
        vf_store(scores + r * PANEL, hi[r][0]);
        vf_store(scores + r * PANEL + LANES, hi[r][1]);
        vf_store(lost + r * PANEL, lo[r][0]);
        vf_store(lost + r * PANEL + LANES, lo[r][1]);
    }
}

// keys[d][column + j] = key j of the block, converted; zero where no row sees the key.
INLINE void transpose_block(enum kernels_kv_type type, const struct block *b, size_t dim, float *keys)
{
    size_t stride = dim * type_bytes(type);
    for (uint32_t j = 0; j < BLOCK; j += LANES) {
        for (size_t d = 0; d < dim; d += LANES) {
            vf x[LANES];
            for (uint32_t l = 0; l < LANES; l++)
                x[l] = j + l >= b->begin && j + l < b->end
                           ? load_padded(type, b->k + (j + l) * stride, d, dim)
                           : (vf){0};
            vf_transpose(x);
            for (size_t l = 0; l < LANES && d + l < dim; l++)
                vf_store(keys + (d + l) * PANEL + j, x[l]);
        }
    }
}

// out[j][padded] = row j of the block, converted and padded with zeros.
INLINE void copy_rows(enum kernels_kv_type type, const char *rows, const struct block *b, size_t dim,
                      size_t padded, float *out)
{
    for (uint32_t j = b->begin; j < b->end; j++) {
        for (size_t d = 0; d < dim; d += LANES)
            vf_store(out + j * padded + d, load_padded(type, rows + j * dim * type_bytes(type), d, dim));
    }
}

// What the value loop reads: for each block of a panel, its value rows and the range of keys to fold.
struct values {
    enum kernels_kv_type type;
    size_t stride; // bytes between value rows
    uint32_t blocks;
    const char *rows[PANEL_BLOCKS];
};

struct ranges {
    uint32_t begin[PANEL_BLOCKS], end[PANEL_BLOCKS];
};

// hi, lo [row_tile][width] += sum over keys of weights[r][key] * value[key], columns c .. c + col_tile *
// LANES.
INLINE void fold_values(enum kernels_kv_type type, uint32_t row_tile, uint32_t col_tile, const float *weights,
                        const struct values *v, const struct ranges *range, size_t column, size_t width,
                        float *hi, float *lo)
{
    vf total[ACCS / 2];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < row_tile * col_tile; i++)
        total[i] = (vf){0};
    for (uint32_t b = 0; b < v->blocks; b++) {
        vf acc[ACCS / 2];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < row_tile * col_tile; i++)
            acc[i] = (vf){0};
        const char *row = v->rows[b] + range->begin[b] * v->stride;
        const float *w = weights + b * BLOCK;
        for (uint32_t j = range->begin[b]; j < range->end[b]; j++, row += v->stride) {
            vf x[ACCS / 2];
#pragma GCC unroll 8
            for (uint32_t c = 0; c < col_tile; c++)
                x[c] = load_as(type, row, column + c * LANES);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < row_tile; r++) {
                vf y = vf_splat(w[r * PANEL + j]);
#pragma GCC unroll 8
                for (uint32_t c = 0; c < col_tile; c++)
                    acc[r * col_tile + c] = vf_fma(y, x[c], acc[r * col_tile + c]);
            }
        }
#pragma GCC unroll 8
        for (uint32_t i = 0; i < row_tile * col_tile; i++)
            total[i] += acc[i];
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < row_tile; r++) {
#pragma GCC unroll 8
        for (uint32_t c = 0; c < col_tile; c++) {
            size_t at = r * width + column + c * LANES;
            vf h = vf_load(hi + at), l = vf_load(lo + at);
            vf_add_exact(&h, &l, total[r * col_tile + c]);
            vf_store(hi + at, h);
            vf_store(lo + at, l);
        }
    }
}

// The same over the whole width, a multiple of LANES.
INLINE void fold_value_rows(enum kernels_kv_type type, uint32_t row_tile, const float *weights,
                            const struct values *v, const struct ranges *range, size_t width, float *hi,
                            float *lo)
{
    uint32_t col_tile = ACCS / 2 / row_tile;
    size_t c = 0;
    for (; c + col_tile * LANES <= width; c += col_tile * LANES)
        fold_values(type, row_tile, col_tile, weights, v, range, c, width, hi, lo);
    for (; c < width; c += LANES)
        fold_values(type, row_tile, 1, weights, v, range, c, width, hi, lo);
}
