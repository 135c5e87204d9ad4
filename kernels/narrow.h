// SPDX-License-Identifier: Apache-2.0
// Few (query row, head) pairs and a whole panel: the two products, which read keys and values where they lie.
// Between them, kernels/portable.c makes weights of the scores. The loops are in kernels/narrow.c, which is
// compiled once per KV type and instruction set.
//
// Keys and values are read in the order in which they lie in a worker's memory: all keys of a panel, then all
// its values, then the next panel. A core of Zen 5 that reads so draws half as much again as one that goes to
// and fro between keys and values every few pages, or takes sixteen keys side by side.
#pragma once

#include "kernels/panel.h"

// Memory to ask for ahead of its use.
struct ahead_block {
    const char *at;
    size_t bytes;
};

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
#if LANES == 8
    uint16_t *room; // for numbers made of codes, as many as a panel of fp8 has: of keys or of values
#endif
};

struct kernels_narrow_ops {
    void (*dots)(const struct narrow *n);  // scores + lost = dots of all rows with all keys
    void (*folds)(const struct narrow *n); // hi + lo += weights, in place of scores, times values
};

// kernels_narrow_avx2_f32 and so on.
#define NARROW_JOIN(set, type) kernels_narrow_##set##_##type
#if LANES == 16
#define NARROW_OPS(type) NARROW_JOIN(avx512, type)
#elif LANES == 8
#define NARROW_OPS(type) NARROW_JOIN(avx2, type)
#elif NEON
#define NARROW_OPS(type) NARROW_JOIN(neon, type)
#else
#define NARROW_OPS(type) NARROW_JOIN(portable, type)
#endif
extern const struct kernels_narrow_ops NARROW_OPS(f32), NARROW_OPS(f16), NARROW_OPS(bf16), NARROW_OPS(int8);
extern const struct kernels_narrow_ops NARROW_OPS(fp8); // none of whose codes is NaN

INLINE const struct kernels_narrow_ops *narrow_ops(enum kernels_kv_type type)
{
    switch (type) {
    case KERNELS_KV_F16:
        return &NARROW_OPS(f16);
    case KERNELS_KV_BF16:
        return &NARROW_OPS(bf16);
    case KERNELS_KV_INT8:
        return &NARROW_OPS(int8);
    case KERNELS_KV_FP8:
        return &NARROW_OPS(fp8);
    default:
        return &NARROW_OPS(f32);
    }
}

// How many blocks ahead: 8 KiB, and two blocks at least, were best on Zen 5. Side by side, as many as there
// are in the four pages of a stretch.
INLINE uint32_t ahead_distance(enum kernels_kv_type type, size_t block_bytes, uint32_t streams)
{
    if (streams > 1)
        return type_blocks(type);
    return block_bytes >= 4096 ? 2 : (uint32_t)(8192 / block_bytes);
}

#if LANES == 8
// With AVX2 one stream becomes four, 24 KiB ahead, where memory is slower than what is done with it: Zen 3
// then draws a tenth more. Where conversions and products are slower, it loses a fiftieth.
INLINE void ahead_avx2(struct narrow *n, enum kernels_kv_type type, size_t block_bytes)
{
    size_t bytes = type_bytes(type);
    if (n->streams != 1 || !(bytes == 4 || (bytes == 2 && n->rows == 1)))
        return;
    n->streams = 4;
    n->distance = block_bytes >= 24576 ? 1 : (uint32_t)(24576 / block_bytes);
}
#endif
