// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/gather.h"

#include <stdlib.h>

#include "common/tensor/float16.h"

struct kernels_interval gather_seen(const struct kernels_job *job)
{
    struct kernels_mask mask = kernels_job_mask(job);
    struct kernels_interval seen = kernels_row_interval(&mask, job->q_first); // ends do not fall
    seen.to = kernels_row_interval(&mask, job->q_first + job->rows - 1).to;
    return seen;
}

enum kernels_kv_type gather_type(enum kernels_kv_type type)
{
    return type == KERNELS_KV_F16 || type == KERNELS_KV_BF16 ? KERNELS_KV_F32 : type;
}

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!p)
        abort();
    return p;
}

// [rows][heads][bytes] → [keys.to - keys.from][bytes].
static void *one_head(const void *rows, uint32_t heads, size_t bytes, uint32_t head,
                      struct kernels_interval keys)
{
    if (!rows)
        return NULL;
    uint64_t n = keys.to - keys.from;
    const uint8_t *from = (const uint8_t *)rows + (keys.from * heads + head) * bytes;
    uint8_t *out = allocate(n * bytes);
    // No memcpy: a sanitizer looks at each byte of one.
    for (uint64_t i = 0; i < n; i++, from += heads * bytes)
        for (size_t b = 0; b < bytes; b++)
            out[i * bytes + b] = from[b];
    return out;
}

void *gather_rows(enum kernels_kv_type type, const void *rows, uint32_t heads, uint32_t dim, uint32_t head,
                  struct kernels_interval keys)
{
    void *packed = one_head(rows, heads, (size_t)dim * kernels_kv_bytes(type), head, keys);
    if (!packed || gather_type(type) == type)
        return packed;
    size_t n = (keys.to - keys.from) * dim;
    float *out = allocate(n * sizeof(*out));
    for (size_t i = 0; i < n; i++)
        out[i] = type == KERNELS_KV_F16 ? common_f16_to_float(((const uint16_t *)packed)[i])
                                        : common_bf16_to_float(((const uint16_t *)packed)[i]);
    free(packed);
    return out;
}

float *gather_scales(const float *scales, uint32_t heads, uint32_t head, struct kernels_interval keys)
{
    return one_head(scales, heads, sizeof(float), head, keys);
}
