// SPDX-License-Identifier: Apache-2.0
#include "bench/paper_shard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/float16.h"
#include "common/hash.h"

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

static const char *block_k(const struct paper_geometry *g, const void *kv, uint64_t tokens, uint32_t head)
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
    held += bytes;
    peak = held > peak ? held : peak;
    return kv;
}

void paper_kv_free(void *kv, size_t bytes)
{
    if (!kv)
        return;
    free(kv);
    held -= bytes;
}

uint64_t paper_kv_peak(void)
{
    return peak;
}

void paper_kv_peak_reset(void)
{
    peak = held;
}

// ---- attention ------------------------------------------------------------------------------------------

static void *aligned(uint64_t bytes)
{
    return aligned_alloc(KERNELS_ALIGN, (bytes + KERNELS_ALIGN) / KERNELS_ALIGN * KERNELS_ALIGN);
}

// Lays one run a chunk and head over a block. A chunk begins where the block does.
static void lay_runs(struct paper_compute *c, const void *kv, uint64_t first, uint64_t tokens)
{
    const struct paper_geometry *g = c->g;
    uint64_t row = (uint64_t)g->dim * 2;
    struct kernels_run *run = c->runs;
    c->item.run_count = 0;
    for (uint32_t head = 0; head < g->kv_heads; head++) {
        const char *k = block_k(g, kv, tokens, head), *v = k + tokens * row;
        uint32_t count = 0;
        for (uint64_t t = 0; t < tokens; count++, run++) {
            uint64_t rows = PAPER_CHUNK - (first + t) % PAPER_CHUNK; // runs stay inside a chunk
            rows = rows < tokens - t ? rows : tokens - t;
            *run = (struct kernels_run){
                .k = k + t * row, .v = v + t * row, .first = first + t, .rows = (uint32_t)rows};
            t += rows;
        }
        c->item.run_count = count;
    }
}

bool paper_compute_init(struct paper_compute *c, const struct paper_geometry *g, uint64_t most_tokens)
{
    *c = (struct paper_compute){.g = g, .most_tokens = most_tokens};
    c->spec = (struct kernels_spec){.kv_type = KERNELS_KV_BF16,
                                    .k_dim = g->dim,
                                    .v_dim = g->dim,
                                    .q_heads = g->q_heads,
                                    .kv_heads = g->kv_heads,
                                    .scale = 1.0f / sqrtf((float)g->dim)};
    c->kernel = kernels_attention_default(&c->spec);
    if (!c->kernel) {
        fprintf(stderr, "paper: BANYAN_KERNEL names no kernel that can do this here\n");
        return false;
    }
    uint64_t chunks = most_tokens / PAPER_CHUNK + 2; // a block may begin and end inside one
    c->runs = calloc(chunks * g->kv_heads, sizeof *c->runs);
    if (!c->runs)
        return false;
    c->item = (struct kernels_item){.spec = &c->spec,
                                    .kernel = c->kernel,
                                    .rows = 1,
                                    .q_row_stride = (uint64_t)g->q_heads * g->dim,
                                    .q_head_stride = g->dim,
                                    .chunk_tokens = PAPER_CHUNK,
                                    .runs = c->runs};
    c->scratch = aligned(kernels_split_scratch(&c->item));
    if (c->scratch)
        return true;
    fprintf(stderr, "paper: no memory\n");
    return false;
}

void paper_compute_fini(struct paper_compute *c)
{
    free(c->runs);
    free(c->workspace);
    free(c->scratch);
    *c = (struct paper_compute){0};
}

void paper_compute_begin(struct paper_compute *c, const void *kv, uint64_t first, uint64_t tokens,
                         uint64_t total, const float *q)
{
    lay_runs(c, kv, first, tokens);
    c->item.q = q;
    c->item.q_first = total - 1;
    c->item.visible = total;
    uint64_t bytes = kernels_split_bytes(&c->item);
    if (bytes > c->workspace_bytes) { // in the first, untimed call
        free(c->workspace);
        c->workspace = aligned(bytes);
        c->workspace_bytes = bytes;
        if (!c->workspace)
            abort();
    }
    kernels_split_init(&c->split, &c->item, c->workspace);
    c->task = 0;
}

bool paper_compute_step(struct paper_compute *c)
{
    if (c->task == c->split.tasks)
        return false;
    kernels_split_run(&c->split, c->task++, c->scratch);
    return true;
}

void paper_compute_finish(struct paper_compute *c, const struct kernels_partial *out)
{
    kernels_split_merge(&c->split, out);
}

void paper_reference(const struct paper_compute *c, const void *kv, uint64_t first, uint64_t tokens,
                     uint64_t total, const float *q, double *o, struct kernels_reference_row *rows)
{
    const struct paper_geometry *g = c->g;
    uint32_t group = g->q_heads / g->kv_heads;
    for (uint32_t head = 0; head < g->kv_heads; head++) {
        const char *k = block_k(g, kv, tokens, head);
        struct kernels_run run = {
            .k = k, .v = k + tokens * g->dim * 2, .first = first, .rows = (uint32_t)tokens};
        struct kernels_job job = {.spec = &c->spec,
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
