// SPDX-License-Identifier: Apache-2.0
// The seam between kernels/portable.c and a processor's matrix units, which take over the two products of a
// tile of many (query row, head) pairs. One thread, one tile at a time; nothing is allocated.
#pragma once

#include "kernels/panel.h"

#define KERNELS_MATRIX_ROWS 64u // pairs at most

// A tile's state. Fields are the implementation's, but for `odd`.
struct kernels_matrix {
    enum kernels_kv_type type;
    uint32_t rows; // pairs
    size_t k_dim, v_dim, k_tiles, v_tiles;
    size_t v_stride; // elements from a value to the next
    bool v_in_k;
    char *q, *keys, *values, *weights, *sums; // in the space that begin was given
    bool odd; // a dot was not finite: the tile has to be computed again otherwise
};

struct kernels_matrix_ops {
    uint32_t rows_from; // fewer pairs are as fast without
    bool (*takes)(enum kernels_kv_type type);
    // Of the space, for KERNELS_MATRIX_ROWS pairs; dims rounded up to 32.
    uint64_t (*bytes)(uint64_t k_pad, uint64_t v_pad);
    // q: `rows` rows of k_dim floats, read here alone; space aligned to KERNELS_ALIGN. False, and no end:
    // these q or this scale are outside of what the units compute exactly.
    bool (*begin)(struct kernels_matrix *x, const struct kernels_spec *spec, const float *const *q,
                  uint32_t rows, char *space);
    void (*end)(void);
    // Reads a panel's keys and values, those that some pair sees; the others count as zero.
    void (*panel)(const struct kernels_matrix *x, const struct panel *panel);
    // Of the panel read last: dots = scores + lost, [rows][ROW], in columns of `blocks` blocks. Meanwhile
    // memory is asked for the panel after it.
    void (*dots)(struct kernels_matrix *x, uint32_t blocks, const struct panel *next, float *scores,
                 float *lost);
    // Of the same panel: hi, lo [rows][v_pad] += weights [rows][ROW] * values, hi + lo being the sum; columns
    // in the order of copy_rows. Weights of keys that a pair does not see are zero, as are those up to the
    // next even number of blocks.
    void (*folds)(const struct kernels_matrix *x, uint32_t blocks, const float *weights, float *hi,
                  float *lo);
};

extern const struct kernels_matrix_ops kernels_matrix_amx;
