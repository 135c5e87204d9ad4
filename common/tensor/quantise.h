// SPDX-License-Identifier: Apache-2.0
// Symmetric quantisation of a row of floats with one float32 scale: x ~ scale * code.
//
//     int8   scale = max|x| / 127    code = x / scale rounded to nearest, ties to even, in -127 .. 127
//     fp8    scale = max|x| / 448    code = e4m3 of x / scale (common/tensor/float8.h)
//
// A row of zeros, or so small that the scale would be subnormal, has scale 0 and codes 0. A row with a NaN or
// an infinity has scale NaN: what is not a number stays visible. Nothing here allocates.
#pragma once

#include <stddef.h>
#include <stdint.h>

float common_quantise_int8(const float *x, size_t n, int8_t *codes);
float common_quantise_fp8(const float *x, size_t n, uint8_t *codes);
