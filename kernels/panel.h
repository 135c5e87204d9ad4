// SPDX-License-Identifier: Apache-2.0
// What the inner loops of the vector kernel share: panels of blocks, and loads by KV type.
#pragma once

#include <stddef.h>

#include "common/tensor/float16.h"
#include "common/tensor/float8.h"
#include "kernels/attention.h"
#include "kernels/vector.h"

#define BLOCK ((uint32_t)KERNELS_BLOCK)

// Blocks of a panel: as many as a chunk of the default length has, where keys and values are read where they
// lie; where they are converted, as many as leave their copies in a cache.
#define MOST_BLOCKS      16u
#define CONVERTED_BLOCKS 8u
#define PANEL            (BLOCK * MOST_BLOCKS) // keys
#define ROW              (PANEL + 16u)         // stride of scores: tiles may store a little more

// Register budget: 32 vectors with AVX-512 and NEON and 16 elsewhere, half of them for accumulators.
#define ACCS (LANES == 16 || NEON ? 16 : 8)
#if ACCS == 16
#define REPEAT_ACCS REPEAT
#else
#define REPEAT_ACCS REPEAT8
#endif

// Keys begin .. end - 1 of a block are seen by some row of the tile; the others are never read.
struct block {
    const char *k, *v; // key 0 of the block, in the job's memory
    const float *k_scale, *v_scale;
    uint64_t first; // its position
    uint32_t begin, end;
    uint32_t run; // of the job's runs, and its keys before this block
    uint64_t at;
};

struct panel {
    uint32_t count;
    bool whole; // as many blocks as fit, all keys of which every row of the tile sees
    struct block blocks[MOST_BLOCKS];
};

// Keys to fold of each block of a panel.
struct ranges {
    uint32_t begin[MOST_BLOCKS], end[MOST_BLOCKS];
};

// A type of their own for loads: fp8 codes none of which is NaN.
#define FP8_NUMBERS ((enum kernels_kv_type)99)

INLINE size_t type_bytes(enum kernels_kv_type type)
{
    return type == KERNELS_KV_F32 ? 4 : type == KERNELS_KV_F16 || type == KERNELS_KV_BF16 ? 2 : 1;
}

INLINE bool type_scaled(enum kernels_kv_type type)
{
    return type == KERNELS_KV_INT8 || type == KERNELS_KV_FP8 || type == FP8_NUMBERS;
}

// What a stored code has to be multiplied by, beside its key's scale.
INLINE float type_factor(enum kernels_kv_type type)
{
    return type == KERNELS_KV_FP8 ? 256 : 1;
}

// Blocks of a panel that is converted.
INLINE uint32_t type_blocks(enum kernels_kv_type type)
{
    return type_scaled(type) ? CONVERTED_BLOCKS : 4;
}

// Types whose conversion costs more than a load.
INLINE bool type_costly(enum kernels_kv_type type)
{
    return type == KERNELS_KV_FP8 || (type == KERNELS_KV_BF16 && LANES == 8);
}

INLINE vf load_as(enum kernels_kv_type type, const char *row, size_t i)
{
    if (type == FP8_NUMBERS)
        return vf_load_fp8((const uint8_t *)row + i, false);
    switch (type) {
    case KERNELS_KV_F16:
        return vf_load_f16((const uint16_t *)(const void *)row + i);
    case KERNELS_KV_BF16:
        return vf_load_bf16((const uint16_t *)(const void *)row + i);
    case KERNELS_KV_INT8:
        return vf_load_int8((const int8_t *)row + i);
    case KERNELS_KV_FP8:
        return vf_load_fp8((const uint8_t *)row + i, true);
    default:
        return vf_load((const float *)(const void *)row + i);
    }
}

// Elements i .. i + 2 * LANES - 1 as two vectors, in pair order: for bfloat16 with 16 lanes or 4 the even
// ones and the odd ones, which takes one operation each; else the first half and the second.
#define EVEN_ODD (LANES != 8)

INLINE void load_pair(enum kernels_kv_type type, const char *row, size_t i, vf *x)
{
    if (type == KERNELS_KV_BF16 && EVEN_ODD) {
        vf_split_bf16((const uint16_t *)(const void *)row + i, &x[0], &x[1]);
    } else if (type == FP8_NUMBERS) {
        vf_load_fp8_pair((const uint8_t *)row + i, &x[0], &x[1]);
    } else {
        x[0] = load_as(type, row, i);
        x[1] = load_as(type, row, i + LANES);
    }
}

// The same of values, whose columns may stand in any order: with 8 lanes bfloat16 is interleaved with zeros
// within each half of 16, one operation for a vector in place of two. Its first vector then holds elements
// 0 .. 3 and 8 .. 11, its second one the others.
#define QUADS(type) (LANES == 8 && (type) == KERNELS_KV_BF16)

INLINE vf load_value(enum kernels_kv_type type, const char *row, size_t i, uint32_t half)
{
    if (QUADS(type))
        return vf_load_bf16_quads((const uint16_t *)(const void *)row + i, half);
    return load_as(type, row, i + half * LANES);
}

INLINE void load_values(enum kernels_kv_type type, const char *row, size_t i, vf *x)
{
    if (QUADS(type)) {
        x[0] = load_value(type, row, i, 0);
        x[1] = load_value(type, row, i, 1);
    } else {
        load_pair(type, row, i, x);
    }
}

INLINE vf load_half(enum kernels_kv_type type, const char *row, size_t i, uint32_t half)
{
    vf x[2];
    if (type == FP8_NUMBERS)
        return load_as(type, row, i + half * LANES);
    load_pair(type, row, i, x);
    return x[half];
}

// As load_as, where only n < LANES elements are left: the rest is zero.
INLINE vf load_tail(enum kernels_kv_type type, const char *row, size_t i, size_t n)
{
    float x[LANES] = {0};
    for (size_t l = 0; l < n && l < LANES; l++) {
        switch (type) {
        case KERNELS_KV_F16:
            x[l] = common_f16_to_float(((const uint16_t *)(const void *)row)[i + l]);
            break;
        case KERNELS_KV_BF16:
            x[l] = common_bf16_to_float(((const uint16_t *)(const void *)row)[i + l]);
            break;
        case KERNELS_KV_INT8:
            x[l] = ((const int8_t *)row)[i + l];
            break;
        case KERNELS_KV_FP8:
            x[l] = common_fp8_to_float(((const uint8_t *)row)[i + l]) / type_factor(type);
            break;
        default:
            x[l] = ((const float *)(const void *)row)[i + l];
            break;
        }
    }
    return vf_load(x);
}

INLINE vf load_padded(enum kernels_kv_type type, const char *row, size_t i, size_t dim)
{
    if (i + LANES <= dim)
        return load_as(type, row, i);
    return load_tail(type, row, i, i < dim ? dim - i : 0);
}

// Whether rows of `dim` elements are read in pairs, all the others being read in their order.
INLINE bool type_pairs(size_t dim)
{
    return dim % (2 * LANES) == 0;
}

// A row of `dim` floats in the order of what copy_rows, transpose_block and load_pair make of a key.
INLINE void type_arrange(enum kernels_kv_type type, size_t dim, const float *row, float *arranged)
{
    if (type != KERNELS_KV_BF16 || !EVEN_ODD || !type_pairs(dim)) {
        memcpy(arranged, row, dim * sizeof(float));
        return;
    }
    for (size_t d = 0; d < dim; d += 2 * LANES) {
        for (size_t l = 0; l < LANES; l++) {
            arranged[d + l] = row[d + 2 * l];
            arranged[d + LANES + l] = row[d + 2 * l + 1];
        }
    }
}

// And back: a row of sums of values.
INLINE void type_restore(enum kernels_kv_type type, size_t dim, const float *arranged, float *row)
{
    if (QUADS(type) && type_pairs(dim)) {
        for (size_t d = 0; d < dim; d += 16) {
            memcpy(row + d, arranged + d, 4 * sizeof(float));
            memcpy(row + d + 8, arranged + d + 4, 4 * sizeof(float));
            memcpy(row + d + 4, arranged + d + 8, 4 * sizeof(float));
            memcpy(row + d + 12, arranged + d + 12, 4 * sizeof(float));
        }
        return;
    }
    if (type != KERNELS_KV_BF16 || !EVEN_ODD || !type_pairs(dim)) {
        memcpy(row, arranged, dim * sizeof(float));
        return;
    }
    for (size_t d = 0; d < dim; d += 2 * LANES) {
        for (size_t l = 0; l < LANES; l++) {
            row[d + 2 * l] = arranged[d + l];
            row[d + 2 * l + 1] = arranged[d + LANES + l];
        }
    }
}

// out[j][padded] = key or value j of the block, converted, in pair order where rows are read in pairs, padded
// with zeros; nothing where no row sees the key. pitch: elements from a row to the next.
INLINE void copy_rows(enum kernels_kv_type type, bool values, const char *rows, const struct block *b,
                      size_t dim, size_t pitch, size_t padded, float *out)
{
    size_t stride = pitch * type_bytes(type);
    for (uint32_t j = b->begin; j < b->end; j++) {
        for (size_t d = 0; d < padded; d += 2 * LANES) {
            vf x[2];
            if (type_pairs(dim) && values) {
                load_values(type, rows + j * stride, d, x);
            } else if (type_pairs(dim)) {
                load_pair(type, rows + j * stride, d, x);
            } else {
                x[0] = load_padded(type, rows + j * stride, d, dim);
                x[1] = load_padded(type, rows + j * stride, d + LANES, dim);
            }
            vf_store(out + j * padded + d, x[0]);
            vf_store(out + j * padded + d + LANES, x[1]);
        }
    }
}
