// SPDX-License-Identifier: Apache-2.0
// The KV types as a caller of libbanyan sees them.
#ifndef EXAMPLES_ROUNDING_H
#define EXAMPLES_ROUNDING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "client/banyan.h"
#include "common/tensor/float16.h"
#include "common/tensor/float8.h"

static inline size_t rounding_bytes(banyan_kv_type type) // of an element or code
{
    return type == BANYAN_F32 ? 4 : banyan_kv_scaled(type) ? 1 : 2;
}

// rows × dim float32 → packed elements of `type`; scales [rows] are written for a type that has them.
static inline void rounding_pack(banyan_kv_type type, const float *x, size_t rows, uint32_t dim, void *out,
                                 float *scales)
{
    uint16_t *half = out;
    if (type == BANYAN_F32)
        memcpy(out, x, rows * dim * sizeof(float));
    else if (banyan_kv_scaled(type))
        banyan_quantise(type, x, rows, dim, out, scales);
    else
        for (size_t i = 0; i < rows * dim; i++)
            half[i] = type == BANYAN_F16 ? common_f16_from_float(x[i]) : common_bf16_from_float(x[i]);
}

// A row of `dim` float32 → the elements or codes that `type` holds of it, as float32. Returns the scale that
// they are to be multiplied by; 1 for a type without.
static inline float rounding_floats(banyan_kv_type type, const float *x, uint32_t dim, float *out)
{
    uint8_t *codes = (uint8_t *)out;
    float scale = 1;
    if (!banyan_kv_scaled(type)) {
        for (uint32_t i = 0; i < dim; i++)
            out[i] = type == BANYAN_F32   ? x[i]
                     : type == BANYAN_F16 ? common_f16_to_float(common_f16_from_float(x[i]))
                                          : common_bf16_to_float(common_bf16_from_float(x[i]));
        return scale;
    }
    banyan_quantise(type, x, 1, dim, codes, &scale);
    for (uint32_t i = dim; i-- > 0;) { // in place, from behind: code i lies below float i
        uint8_t code = codes[i];
        out[i] = type == BANYAN_INT8 ? (float)(int8_t)code : common_fp8_to_float(code);
    }
    return scale;
}

static inline const char *rounding_name(banyan_kv_type type)
{
    static const char *const names[] = {"", "f32", "f16", "bf16", "int8", "fp8"};
    return names[type];
}

#define ROUNDING_NAMES "f32, f16, bf16, int8 or fp8"

static inline bool rounding_parse(const char *name, banyan_kv_type *type)
{
    for (banyan_kv_type t = BANYAN_F32; t <= BANYAN_FP8; t++)
        if (strcmp(name, rounding_name(t)) == 0) {
            *type = t;
            return true;
        }
    return false;
}

#endif
