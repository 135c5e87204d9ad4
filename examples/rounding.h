// SPDX-License-Identifier: Apache-2.0
// The KV types as a caller of libbanyan sees them.
#ifndef EXAMPLES_ROUNDING_H
#define EXAMPLES_ROUNDING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "client/banyan.h"
#include "common/float16.h"

static inline size_t rounding_bytes(banyan_kv_type type)
{
    return type == BANYAN_F32 ? 4 : 2;
}

// float32 → packed elements of `type`.
static inline void rounding_pack(banyan_kv_type type, const float *x, size_t n, void *out)
{
    uint16_t *half = out;
    if (type == BANYAN_F32)
        memcpy(out, x, n * sizeof(float));
    else
        for (size_t i = 0; i < n; i++)
            half[i] = type == BANYAN_F16 ? common_f16_from_float(x[i]) : common_bf16_from_float(x[i]);
}

// float32 → the float32 that `type` holds of it.
static inline void rounding_floats(banyan_kv_type type, const float *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = type == BANYAN_F32   ? x[i]
                 : type == BANYAN_F16 ? common_f16_to_float(common_f16_from_float(x[i]))
                                      : common_bf16_to_float(common_bf16_from_float(x[i]));
}

#endif
