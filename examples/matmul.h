// SPDX-License-Identifier: Apache-2.0
// y = x · Wᵀ for the model's linear layers, float32. Weights are packed once into panels of 32 outputs, so
// that one pass over them streams. A row's result does not depend on how many rows are computed with it.
#ifndef EXAMPLES_MATMUL_H
#define EXAMPLES_MATMUL_H

#include <stddef.h>
#include <stdint.h>

struct pool;

struct matrix {
    uint32_t in, out;
    float *panels; // [ceil(out/32)][in][32], zero-padded; owned, 64-byte aligned
};

// Reads w [out][in]. 0, or −1 when out of memory.
int matrix_pack(struct matrix *matrix, const float *w, uint32_t out, uint32_t in);
void matrix_free(struct matrix *matrix);

// x [rows][in], y [rows][out].
void matrix_apply(const struct matrix *matrix, struct pool *pool, const float *x, uint32_t rows, float *y);

#endif
