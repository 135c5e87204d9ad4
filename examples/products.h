// SPDX-License-Identifier: Apache-2.0
// The inner loops of the model and of its check, in vectors of the machine's own width: products.c is
// compiled once per instruction set (CMakeLists.txt), and the best that this processor has is chosen at run
// time. Products are fused into sums, and one output is one chain of additions in the order of its terms, or
// as many as a vector has lanes: float32 results are the same in all variants, float64 results differ in
// their last bits.
#ifndef EXAMPLES_PRODUCTS_H
#define EXAMPLES_PRODUCTS_H

#include <stddef.h>
#include <stdint.h>

#define PRODUCTS_PANEL 32u // outputs of a panel of weights
#define PRODUCTS_ROWS  4u  // rows that share one read of weights, keys or values

struct products {
    // y[r][o] = sum over i of panel[i][o] * x[r][i], float32. panel [in][PRODUCTS_PANEL], y
    // [PRODUCTS_ROWS][PRODUCTS_PANEL], both at a multiple of 64 bytes; x: PRODUCTS_ROWS rows of `in`.
    void (*panel)(const float *panel, uint32_t in, const float *const *x, float *y);

    // Attention in float64, for PRODUCTS_ROWS rows at a time and n keys; dim is a multiple of 8. x[r][j] =
    // (sum over d of q[r][d] * keys[j][d]) * key_scales[j] * scale. q [PRODUCTS_ROWS][dim], keys [n][dim];
    // stride: doubles from a row of x to the next.
    void (*score)(const double *q, const float *keys, const float *key_scales, size_t n, uint32_t dim,
                  double scale, double *x, size_t stride);
    // x[j] = exp(x[j] - max) * value_scales[j], within 2 units in the last place; no x is above max. Returns
    // the sum of the exponentials.
    double (*weights)(double *x, size_t n, double max, const float *value_scales);
    // acc[r][d] += sum over j of x[r][j] * values[j][d]. acc [PRODUCTS_ROWS][dim], values [n][dim].
    void (*weigh)(const double *x, size_t stride, const float *values, size_t n, uint32_t dim, double *acc);
};

const struct products *products_best(void); // static; any thread

#endif
