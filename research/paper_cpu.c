// SPDX-License-Identifier: Apache-2.0
// Local attention by the processor: the kernel that the service would take, on this thread.
#include <stdlib.h>
#include <string.h>

#include "kernels/split.h"
#include "research/paper_local.h"
#include "research/paper_shard.h"

struct cpu {
    struct paper_local local;
    struct kernels_item item;
    struct kernels_split split;
    struct kernels_run *runs;
    uint64_t most_runs, workspace_bytes;
    void *workspace, *scratch;
    uint32_t task;
    struct kernels_partial out;
};

static void *aligned(uint64_t bytes)
{
    return aligned_alloc(KERNELS_ALIGN, (bytes + KERNELS_ALIGN) / KERNELS_ALIGN * KERNELS_ALIGN);
}

static bool cpu_means(const char *device)
{
    return strcmp(device, "cpu") == 0;
}

static void cpu_close(struct paper_local *local)
{
    struct cpu *c = (struct cpu *)local;
    free(c->runs);
    free(c->workspace);
    free(c->scratch);
    free(c);
}

static enum common_code cpu_open(const struct paper_local_options *options, struct paper_local **out,
                                 struct common_error *err)
{
    const struct paper_geometry *g = options->g;
    struct cpu *c = calloc(1, sizeof *c);
    if (!c)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory");
    c->local = (struct paper_local){.ops = &paper_cpu, .g = g, .spec = paper_spec(g), .device = "cpu"};
    const struct kernels_attention *kernel = kernels_attention_default(&c->local.spec);
    if (!kernel) {
        cpu_close(&c->local);
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "BANYAN_KERNEL names no kernel that can do this here");
    }
    strncpy(c->local.kernel, kernel->name, sizeof c->local.kernel - 1);
    c->item = (struct kernels_item){.spec = &c->local.spec,
                                    .kernel = kernel,
                                    .rows = 1,
                                    .q_row_stride = (uint64_t)g->q_heads * g->dim,
                                    .q_head_stride = g->dim,
                                    .chunk_tokens = PAPER_CHUNK};
    c->scratch = aligned(kernels_split_scratch(&c->item));
    if (!c->scratch) {
        cpu_close(&c->local);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory");
    }
    *out = &c->local;
    return COMMON_OK;
}

// ---- blocks: the host's memory itself -------------------------------------------------------------------

static bool cpu_block_init(struct paper_local *local, struct paper_block *block, size_t bytes, bool travels)
{
    (void)local;
    (void)travels;
    void *host = paper_kv_alloc(bytes);
    if (!host)
        return false;
    *block = (struct paper_block){.host = host, .bytes = bytes};
    paper_kv_count((int64_t)bytes);
    return true;
}

static void cpu_block_fini(struct paper_local *local, struct paper_block *block)
{
    (void)local;
    paper_kv_count(-(int64_t)block->bytes);
    paper_kv_free(block->host);
}

static bool cpu_up(struct paper_local *local, struct paper_block *block, const void *kv, uint64_t tokens,
                   uint64_t *at)
{
    (void)local, (void)block, (void)kv, (void)tokens, (void)at;
    return false;
}

static bool cpu_down(struct paper_local *local, struct paper_block *block, uint64_t tokens, uint64_t *at)
{
    (void)local, (void)block, (void)tokens, (void)at;
    return false;
}

// ---- attention ------------------------------------------------------------------------------------------

// Lays one run a chunk and head over a block. A chunk begins where the block does.
static void lay_runs(struct cpu *c, const void *kv, uint64_t first, uint64_t tokens)
{
    const struct paper_geometry *g = c->local.g;
    uint64_t row = (uint64_t)g->dim * 2, most = (tokens / PAPER_CHUNK + 2) * g->kv_heads;
    if (most > c->most_runs) { // a block may begin and end inside a chunk; in the first, untimed call
        free(c->runs);
        c->runs = calloc(most, sizeof *c->runs);
        c->most_runs = most;
        if (!c->runs)
            abort();
    }
    struct kernels_run *run = c->runs;
    c->item.runs = run;
    c->item.run_count = 0;
    for (uint32_t head = 0; head < g->kv_heads; head++) {
        const char *k = paper_shard_k(g, kv, tokens, head), *v = k + tokens * row;
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

static void cpu_begin(struct paper_local *local, const struct paper_block *block, uint64_t first,
                      uint64_t tokens, uint64_t total, const float *q, const struct kernels_partial *out)
{
    struct cpu *c = (struct cpu *)local;
    lay_runs(c, block->host, first, tokens);
    c->item.q = q;
    c->item.q_first = total - 1;
    c->item.visible = total;
    c->out = *out;
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

// One task.
static bool cpu_step(struct paper_local *local)
{
    struct cpu *c = (struct cpu *)local;
    if (c->task == c->split.tasks) {
        kernels_split_merge(&c->split, &c->out);
        return false;
    }
    kernels_split_run(&c->split, c->task++, c->scratch);
    return true;
}

const struct paper_local_ops paper_cpu = {
    .means = cpu_means,
    .open = cpu_open,
    .close = cpu_close,
    .block_init = cpu_block_init,
    .block_fini = cpu_block_fini,
    .up = cpu_up,
    .down = cpu_down,
    .begin = cpu_begin,
    .step = cpu_step,
};
