// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/gather.h"

#include <stdlib.h>

struct kernels_interval gather_seen(const struct kernels_job *job)
{
    struct kernels_mask mask = kernels_job_mask(job);
    struct kernels_interval seen = kernels_row_interval(&mask, job->q_first); // ends do not fall
    seen.to = kernels_row_interval(&mask, job->q_first + job->rows - 1).to;
    return seen;
}

void *gather_head(const void *rows, uint32_t heads, size_t bytes, uint32_t head, struct kernels_interval keys)
{
    if (!rows)
        return NULL;
    uint64_t n = keys.to - keys.from;
    uint8_t *out = aligned_alloc(64, (n * bytes + 64) / 64 * 64);
    if (!out)
        abort();
    const uint8_t *from = (const uint8_t *)rows + (keys.from * heads + head) * bytes;
    // No memcpy: a sanitizer looks at each byte of one.
    for (uint64_t i = 0; i < n; i++, from += heads * bytes)
        for (size_t b = 0; b < bytes; b++)
            out[i * bytes + b] = from[b];
    return out;
}
