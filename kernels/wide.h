// SPDX-License-Identifier: Apache-2.0
// The inner loops of kernels/portable.c for many (query row, head) pairs: a panel is converted once, its keys
// transposed, and all loops run along keys. Values are folded as in kernels/narrow.h, from the converted
// copy.
//
// Order of summation of a dot: lanes along keys; d in groups, each group's chain starting from what the sum
// of the groups before it lost, so that the groups' sums are added without loss.
#pragma once

#include "kernels/panel.h"

// Dims of a chain, 128 of them or more. 32 cost AVX2 a tenth of the bound (kernels/README.md) and save a
// tenth of the dots.
#define WIDE_GROUP (LANES == 4 ? 16u : 32u)

// More than 8 chains, as in kernels/narrow.h. Sums wait in memory.
#if ACCS == 16
#define WIDE_ROWS    4u
#define WIDE_VECTORS 4u
#else
#define WIDE_ROWS    6u
#define WIDE_VECTORS 2u
#endif
#define WIDE_KEYS (WIDE_VECTORS * LANES)

// Asks for the next panel, a line at a time: many at once would keep the products waiting.
struct wide_ahead {
    const struct panel *panel;
    size_t k_bytes, v_bytes; // of a block; v_bytes 0: values are in keys
    uint32_t part;           // 2 * block + (values)
    const char *at, *end;
};

INLINE void wide_ahead_part(struct wide_ahead *a)
{
    if (a->part >= 2 * a->panel->count)
        return;
    const struct block *b = &a->panel->blocks[a->part / 2];
    a->at = a->part % 2 ? b->v : b->k;
    a->end = a->at + (a->part % 2 ? a->v_bytes : a->k_bytes);
    a->part += a->v_bytes > 0 ? 1 : 2;
}

INLINE void wide_ahead_go(struct wide_ahead *a)
{
    if (a->at >= a->end)
        return;
    __builtin_prefetch(a->at, 0, 2);
    a->at += 64;
    if (a->at >= a->end)
        wide_ahead_part(a);
}

// scores[r][c .. c + WIDE_KEYS) for WIDE_ROWS rows of q (stride q_stride), keys transposed:
// keys[dim][stride]. Where an element is infinite, so that a chain's start is not a number, the score may be
// NaN in place of infinite: the caller looks at those again.
INLINE void dot_wide(const float *q, size_t q_stride, const float *keys, size_t stride, size_t dim,
                     struct wide_ahead *ahead, float *scores, float *lost)
{
    enum { CHAINS = WIDE_ROWS * WIDE_VECTORS };
    size_t group = dim <= 32 ? 4 : dim <= 64 ? 8 : WIDE_GROUP;
    vf chain[CHAINS];
    REPEAT(i, CHAINS, chain[i] = (vf){0};);
    for (size_t d0 = 0; d0 < dim; d0 += group) {
        size_t d1 = d0 + group < dim ? d0 + group : dim;
        for (size_t d = d0; d < d1; d++) {
            vf key[WIDE_VECTORS];
            if (d % 2 == 0)
                wide_ahead_go(ahead);
            REPEAT(v, WIDE_VECTORS, key[v] = vf_load(keys + d * stride + v * LANES););
            REPEAT(r, WIDE_ROWS, {
                vf x = vf_splat(q[r * q_stride + d]);
                REPEAT(v, WIDE_VECTORS, vf_fma_to(&chain[r * WIDE_VECTORS + v], x, key[v]););
            });
        }
        REPEAT(i, CHAINS, {
            float *at = scores + i / WIDE_VECTORS * ROW + i % WIDE_VECTORS * LANES;
            vf sum = d0 == 0 ? (vf){0} : vf_load(at);
            vf_carry(&sum, &chain[i]);
            vf_store(at, sum);
        });
    }
    REPEAT(i, CHAINS, vf_store(lost + i / WIDE_VECTORS * ROW + i % WIDE_VECTORS * LANES, chain[i]););
}

// out[d * out_stride + j] = key j of the block, converted, elements in the order of type_arrange; zero where
// no row sees the key.
INLINE void transpose_block(enum kernels_kv_type type, const struct block *b, size_t dim, float *out,
                            size_t out_stride)
{
    size_t stride = dim * type_bytes(type);
    for (uint32_t j = 0; j < BLOCK; j += LANES) {
        for (size_t d = 0; d < dim; d += 2 * LANES) {
            vf x[2][LANES];
            for (uint32_t l = 0; l < LANES; l++) {
                vf y[2] = {{0}, {0}};
                const char *row = b->k + (j + l) * stride;
                if (j + l >= b->begin && j + l < b->end) {
                    if (type_pairs(dim)) {
                        load_pair(type, row, d, y);
                    } else {
                        y[0] = load_padded(type, row, d, dim);
                        y[1] = load_padded(type, row, d + LANES, dim);
                    }
                }
                x[0][l] = y[0];
                x[1][l] = y[1];
            }
            for (uint32_t half = 0; half < 2; half++) {
                vf_transpose(x[half]);
                size_t at = d + half * LANES;
                for (size_t l = 0; l < LANES && at + l < dim; l++)
                    vf_store(out + (at + l) * out_stride + j, x[half][l]);
            }
        }
    }
}
