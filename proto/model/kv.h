// SPDX-License-Identifier: Apache-2.0
// Bytes of keys and values by KV type. The size of a row comes from here.
//
// A token's row of K, of one layer: for F32, F16 and BF16
//
//     | head 0: [dim] elements | head 1 | ...
//
// and for INT8 and FP8_E4M3, whose element is scale * code, the scales behind the codes (unaligned):
//
//     | head 0: [dim] codes, 1 byte each | head 1 | ... | [kv_heads] float32 scales |
//
// V alike. So rows of a range are one piece of memory whatever the type.
#ifndef PROTO_KV_H
#define PROTO_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/banyan.pb-c.h"
#include "proto/model/limits.h"

// Bytes of one element or code; 0: not a KV type. `type`: Banyan__Pb__Dtype.
static inline uint32_t proto_kv_element_bytes(uint32_t type)
{
    switch (type) {
    case BANYAN__PB__DTYPE__DTYPE_F32:
        return 4;
    case BANYAN__PB__DTYPE__DTYPE_F16:
    case BANYAN__PB__DTYPE__DTYPE_BF16:
        return 2;
    case BANYAN__PB__DTYPE__DTYPE_INT8:
    case BANYAN__PB__DTYPE__DTYPE_FP8_E4M3:
        return 1;
    default:
        return 0;
    }
}

// Whether a type has a scale per token and KV head, for K and for V.
static inline bool proto_kv_scaled(uint32_t type)
{
    return type == BANYAN__PB__DTYPE__DTYPE_INT8 || type == BANYAN__PB__DTYPE__DTYPE_FP8_E4M3;
}

// Bytes of the K (or V) of one token and layer. 0: not a KV type, or heads or dim are none that a spec may
// have. At most 4 MiB: the bytes of 2^40 rows do not wrap.
static inline size_t proto_kv_row_bytes(uint32_t type, uint32_t kv_heads, uint32_t dim)
{
    if (kv_heads < 1 || kv_heads > PROTO_KV_HEADS_MAX || dim < 1 || dim > PROTO_KV_DIM_MAX)
        return 0;
    size_t element = proto_kv_element_bytes(type), scale = proto_kv_scaled(type) ? sizeof(float) : 0;
    return element ? kv_heads * (dim * element + scale) : 0;
}

#endif
