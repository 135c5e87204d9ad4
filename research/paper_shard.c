// SPDX-License-Identifier: Apache-2.0
#include "research/paper_shard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/hash/hash.h"
#include "common/tensor/float16.h"

// ---- data -----------------------------------------------------------------------------------------------

static float uniform(uint64_t bits16)
{
    return (float)((int)(bits16 & 0xffff) - 32768) / 32768.0f;
}

void paper_data_row(const struct paper_geometry *g, uint64_t token, uint32_t head, uint32_t which,
                    uint16_t *out)
{
    uint64_t at = ((token * g->kv_heads + head) * 2 + which) * g->dim;
    for (uint32_t d = 0; d < g->dim; d += 4) {
        uint64_t bits = common_mix64(at + d);
        for (uint32_t i = 0; i < 4; i++)
            out[d + i] = common_bf16_from_float(uniform(bits >> (16 * i)));
    }
}

// Four times the keys' range, so that weights differ by orders of magnitude.
void paper_data_query(const struct paper_geometry *g, float *out)
{
    for (uint32_t i = 0; i < g->q_heads * g->dim; i++)
        out[i] = 4 * uniform(common_mix64(UINT64_C(1) << 60 | i));
}

const char *paper_shard_k(const struct paper_geometry *g, const void *kv, uint64_t tokens, uint32_t head)
{
    return (const char *)kv + (uint64_t)head * 2 * tokens * g->dim * 2;
}

void paper_shard_fill(const struct paper_geometry *g, void *kv, uint64_t first, uint64_t tokens)
{
    uint16_t *out = kv;
    for (uint32_t head = 0; head < g->kv_heads; head++) {
        for (uint32_t which = 0; which < 2; which++) {
            for (uint64_t t = 0; t < tokens; t++, out += g->dim)
                paper_data_row(g, first + t, head, which, out);
        }
    }
}

// ---- memory ---------------------------------------------------------------------------------------------

#define HUGE_PAGE ((size_t)2 << 20)

static uint64_t held, peak;

void *paper_kv_alloc(size_t bytes)
{
    size_t whole = (bytes / HUGE_PAGE + 1) * HUGE_PAGE;
    void *kv = aligned_alloc(HUGE_PAGE, whole);
    if (!kv)
        return NULL;
    madvise(kv, whole, MADV_HUGEPAGE);
    memset(kv, 0, bytes);
    return kv;
}

void paper_kv_free(void *kv)
{
    free(kv);
}

void paper_kv_count(int64_t bytes)
{
    held += (uint64_t)bytes;
    peak = held > peak ? held : peak;
}

uint64_t paper_kv_peak(void)
{
    return peak;
}

void paper_kv_peak_reset(void)
{
    peak = held;
}

// ---- reference ------------------------------------------------------------------------------------------

struct kernels_spec paper_spec(const struct paper_geometry *g)
{
    return (struct kernels_spec){.kv_type = KERNELS_KV_BF16,
                                 .k_dim = g->dim,
                                 .v_dim = g->dim,
                                 .q_heads = g->q_heads,
                                 .kv_heads = g->kv_heads,
                                 .scale = 1.0f / sqrtf((float)g->dim)};
}

void paper_reference(const struct paper_geometry *g, const void *kv, uint64_t first, uint64_t tokens,
                     uint64_t total, const float *q, double *o, struct kernels_reference_row *rows)
{
    const struct kernels_spec spec = paper_spec(g);
    uint32_t group = g->q_heads / g->kv_heads;
    for (uint32_t head = 0; head < g->kv_heads; head++) {
        const char *k = paper_shard_k(g, kv, tokens, head);
        struct kernels_run run = {
            .k = k, .v = k + tokens * g->dim * 2, .first = first, .rows = (uint32_t)tokens};
        struct kernels_job job = {.spec = &spec,
                                  .kv_head = head,
                                  .rows = 1,
                                  .q_first = total - 1,
                                  .visible = total,
                                  .q = q + (uint64_t)head * group * g->dim,
                                  .q_row_stride = (uint64_t)g->q_heads * g->dim,
                                  .q_head_stride = g->dim,
                                  .runs = &run,
                                  .run_count = tokens > 0};
        kernels_reference(&job, NULL, o + (uint64_t)head * group * g->dim, rows + (uint64_t)head * group);
    }
}
