// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/quantise.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "common/tensor/float8.h"

// max|x| / largest; 0 where that is too small to divide by, NaN where an element is not finite.
static float scale_of(const float *x, size_t n, float largest)
{
    float top = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return NAN;
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    }
    float scale = top / largest;
    return scale < FLT_MIN ? 0 : scale;
}

float common_quantise_int8(const float *x, size_t n, int8_t *codes)
{
    float scale = scale_of(x, n, 127);
    if (!(scale > 0)) {
        memset(codes, 0, n);
        return scale;
    }
    const float shift = 0x1.8p23f; // adding it rounds to an integer
    for (size_t i = 0; i < n; i++) {
        float y = (x[i] / scale + shift) - shift;
        codes[i] = (int8_t)(y > 127 ? 127 : y < -127 ? -127 : y);
    }
    return scale;
}

float common_quantise_fp8(const float *x, size_t n, uint8_t *codes)
{
    float scale = scale_of(x, n, COMMON_FP8_LARGEST);
    if (!(scale > 0)) {
        memset(codes, 0, n);
        return scale;
    }
    for (size_t i = 0; i < n; i++)
        codes[i] = common_fp8_from_float(x[i] / scale);
    return scale;
}
