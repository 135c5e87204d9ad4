// SPDX-License-Identifier: Apache-2.0
// The cut of items into tasks, and the argument buffer that says so to the kernels.
//
// Width of a tile: the narrowest that holds all (row, head) pairs of a KV head, else the widest. A unit's
// length: as long as 1,024 tasks are left, 8 to 128 blocks of keys, a power of two: longer ones would add up
// more roundings of one sign than the bound allows; of latents, as long as 256 are left, as a task's partial is
// as large as 57 of their keys. The units of a round: as many as leave their partials in
// ROUND_FLOATS. All are rules of the item alone.
//
// Blocks of threads: one a task (and some for tasks to come). Where tasks are short, of no more than
// SHORT_BLOCKS blocks of keys, and more than the device holds blocks of threads, as many as it holds: each
// computes every n-th task, and asks for the next one's keys while it ends this one, where memory would wait
// for a task's begin and end (docs/GPU.md). Long tasks stay with a block each: the device then gives the next
// task to the block that is ready.
//
// So the workspace has a bound that no context raises: ROUND_FLOATS, or the partials of one unit of an item,
// which are no more than its answer and as much again. Which items share a pass depends on the step, and no
// bit depends on it.
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/internal.h"

#define UNIT_LEAST   8u
#define UNIT_MOST    128u
#define TASKS_WANTED 1024u
#define MLA_TASKS    256u
#define SHORT_BLOCKS 16u                  // of keys, of a task: two a warp are 8
#define PLAIN_CLASS  60u                  // the first of the plain kernels
#define MLA_CLASS    65u                  // the first of the kernels for latents
#ifndef ROUND_FLOATS                      // tests have few keys
#define ROUND_FLOATS ((uint64_t)32 << 20) // 128 MiB: many tasks for each multiprocessor
#endif

static uint64_t round_up(uint64_t n)
{
    return (n + 15) & ~(uint64_t)15;
}

static uint64_t blocks_of(uint32_t rows)
{
    return ((uint64_t)rows + CUDA_BLOCK_KEYS - 1) / CUDA_BLOCK_KEYS;
}

uint32_t cuda_plan_element(enum kernels_kv_type type)
{
    return type == KERNELS_KV_F32 ? 4 : type == KERNELS_KV_F16 || type == KERNELS_KV_BF16 ? 2 : 1;
}

static bool dim_index(const struct kernels_spec *spec, uint32_t *index)
{
    *index = spec->k_dim == 64 ? 0 : spec->k_dim == 128 ? 1 : 2;
    return spec->k_dim == spec->v_dim && (spec->k_dim == 64 || spec->k_dim == 128 || spec->k_dim == 256);
}

static bool is_mla(const struct kernels_spec *spec)
{
    return spec->v_in_k && spec->k_dim == CUDA_MLA_K_DIM && spec->v_dim == CUDA_MLA_V_DIM &&
           (spec->kv_type == KERNELS_KV_F16 || spec->kv_type == KERNELS_KV_BF16);
}

// Class = (type * 3 + dim) * 4 + width of the tiled kernels, then one plain kernel a type, then those for
// latents: type * 2 + width.
static uint32_t class_of(const struct kernels_spec *spec, uint64_t pairs, uint32_t *width)
{
    uint32_t dim, type = (uint32_t)spec->kv_type;
    if (is_mla(spec)) {
        *width = pairs <= 16 ? 16 : 32;
        return MLA_CLASS + (spec->kv_type == KERNELS_KV_BF16 ? 2 : 0) + (pairs <= 16 ? 0 : 1);
    }
    if (!dim_index(spec, &dim)) {
        *width = CUDA_PLAIN_WIDTH;
        return PLAIN_CLASS + type - 1;
    }
    uint32_t which = pairs <= 8 ? 0 : pairs <= 16 ? 1 : pairs <= 32 ? 2 : 3;
    static const uint32_t widths[3][4] = {{8, 16, 32, 64}, {8, 16, 32, 64}, {8, 32, 32, 32}};
    *width = widths[dim][which];
    if (type == KERNELS_KV_F32 && dim == 1 && which == 2)
        *width = 64; // with 32 its registers do not do (tile_bf16.cu)
    return ((type - 1) * 3 + dim) * 4 + which;
}

bool cuda_plan_wgmma(int major, int minor)
{
    const char *asked = getenv("BANYAN_CUDA_WGMMA");
    return major == 9 && minor == 0 && asked && !strcmp(asked, "1");
}

const struct cuda_kernel *cuda_plan_kernel(uint32_t class_index, bool wgmma)
{
    static const struct cuda_kernel(*const tables[5])[4] = {cuda_tiles_f32, cuda_tiles_f16, cuda_tiles_bf16,
                                                            cuda_tiles_int8, cuda_tiles_fp8};
    if (class_index >= MLA_CLASS)
        return &cuda_mla[(class_index - MLA_CLASS) / 2][(class_index - MLA_CLASS) % 2];
    if (class_index >= PLAIN_CLASS)
        return &cuda_plain[class_index - PLAIN_CLASS];
    const uint32_t type = class_index / 12, dim = class_index / 4 % 3;
    if (wgmma && class_index % 4 == 3 && dim < 2 &&
        (type + 1 == KERNELS_KV_F16 || type + 1 == KERNELS_KV_BF16)) // 64 pairs
        return &cuda_wgmma[type + 1 == KERNELS_KV_BF16][dim];
    return &tables[type][dim][class_index % 4];
}

const char *cuda_plan_spec_problem(const struct kernels_spec *spec)
{
    if (spec->kv_type < KERNELS_KV_F32 || spec->kv_type > KERNELS_KV_FP8)
        return "the type of keys and values is unknown";
    if (spec->k_dim == 0 || spec->v_dim == 0 || spec->k_dim > CUDA_LARGEST_DIM ||
        spec->v_dim > CUDA_LARGEST_DIM)
        return "head dimensions on a GPU are 1 to 1024";
    if (spec->kv_heads == 0 || spec->q_heads == 0 || spec->q_heads % spec->kv_heads != 0)
        return "query heads must be a multiple of KV heads";
    if (spec->v_in_k && spec->v_dim > spec->k_dim)
        return "values inside keys cannot be longer than keys";
    return NULL;
}

static enum common_code check_item(const struct kernels_device_item *item, struct common_error *err)
{
    const char *problem = cuda_plan_spec_problem(item->spec);
    if (problem)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "%s", problem);
    const struct kernels_partial *out = &item->out;
    if (item->rows == 0 || out->rows != item->rows || out->heads != item->spec->q_heads ||
        out->dv != item->spec->v_dim)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "an item and its partial differ in shape");
    if (item->rows > UINT32_MAX / item->spec->q_heads || item->q_first > INT64_MAX ||
        item->visible > INT64_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "an item has too many rows or too high positions");
    for (uint32_t i = 0; i < item->run_count; i++) {
        if (item->runs[i].rows == 0 || item->runs[i].first > (uint64_t)INT64_MAX - item->runs[i].rows)
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "a run is empty or at too high a position");
    }
    return COMMON_OK;
}

// Pieces of runs, no one across a unit's border.
static uint64_t count_pieces(const struct kernels_device_item *item, uint32_t unit_blocks)
{
    uint64_t at = 0, pieces = 0;
    for (uint32_t i = 0; i < item->run_count; i++) {
        uint64_t blocks = blocks_of(item->runs[i].rows);
        pieces += (at + blocks - 1) / unit_blocks - at / unit_blocks + 1;
        at += blocks;
    }
    return pieces;
}

// An item's block within what the sink stands for.
static bool place_in_sink(const struct kernels_device_sink *sink, const struct kernels_partial *out,
                          uint64_t *floats)
{
    uint64_t at = (uintptr_t)out->m - (uintptr_t)sink->base; // wraps for what lies before
    uint64_t n = (uint64_t)out->rows * out->heads, plane = round_up(n) * sizeof(float);
    uint64_t bytes = 2 * plane + round_up(n * out->dv) * sizeof(float); // < 2^46
    *floats = at / sizeof(float);
    return at % 64 == 0 && at <= sink->bytes && bytes <= sink->bytes - at &&
           (uintptr_t)out->s == (uintptr_t)out->m + plane && (uintptr_t)out->o == (uintptr_t)out->s + plane;
}

// The pass that an item goes to: the last one where there is room, else a new one. NULL: out of memory.
static struct cuda_plan_pass *pass_for(struct cuda_plan *plan, uint64_t floats, uint32_t rounds)
{
    struct cuda_plan_pass *last = plan->pass_count ? &plan->passes[plan->pass_count - 1] : NULL;
    if (last && rounds == 1 && last->rounds == 1 && last->floats + floats <= ROUND_FLOATS)
        return last;
    if (plan->pass_count == plan->pass_cap) {
        uint32_t cap = plan->pass_cap ? plan->pass_cap * 2 : 4;
        struct cuda_plan_pass *grown = realloc(plan->passes, cap * sizeof(*grown));
        if (!grown)
            return NULL;
        plan->passes = grown;
        plan->pass_cap = cap;
    }
    last = &plan->passes[plan->pass_count++];
    memset(last, 0, sizeof(*last));
    last->rounds = rounds;
    return last;
}

static enum common_code lay_out(struct cuda_plan *plan, const struct kernels_device_item *item,
                                const struct kernels_device_sink *sink, struct cuda_plan_item *to,
                                struct common_error *err)
{
    const struct kernels_spec *spec = item->spec;
    uint64_t pairs = (uint64_t)item->rows * kernels_spec_group(spec), blocks = 0;
    uint64_t row = (uint64_t)(spec->k_dim + (spec->v_in_k ? 0 : spec->v_dim)) * spec->kv_heads *
                   cuda_plan_element(spec->kv_type);
    for (uint32_t i = 0; i < item->run_count; i++) {
        blocks += blocks_of(item->runs[i].rows);
        plan->read_bytes += item->runs[i].rows * row; // < 2^32 * 2^45: a hint, may wrap
    }
    to->class_index = class_of(spec, pairs, &to->width);
    to->tiles = (uint32_t)((pairs + to->width - 1) / to->width);
    uint64_t tasks = (uint64_t)spec->kv_heads * to->tiles; // of a unit: < 2^49
    if (blocks > UINT32_MAX || tasks > UINT32_MAX)
        goto too_much;
    to->unit_blocks = UNIT_LEAST;
    const uint32_t wanted = to->class_index >= MLA_CLASS ? MLA_TASKS : TASKS_WANTED;
    while (to->unit_blocks < UNIT_MOST && blocks * tasks / (2 * to->unit_blocks) >= wanted)
        to->unit_blocks *= 2;
    to->unit_count = (uint32_t)((blocks + to->unit_blocks - 1) / to->unit_blocks);
    uint64_t pieces = count_pieces(item, to->unit_blocks), each = (uint64_t)to->width * (2 + spec->v_dim);
    uint64_t most = ROUND_FLOATS / each / tasks; // units of a round
    to->round_units = most == 0 ? 1 : most < to->unit_count ? (uint32_t)most : to->unit_count;
    uint32_t rounds = to->unit_count == 0 ? 1 : (to->unit_count + to->round_units - 1) / to->round_units;
    tasks *= to->round_units < to->unit_count ? to->round_units : to->unit_count;
    uint64_t merges = (uint64_t)item->rows * spec->q_heads;
    if (pieces > UINT32_MAX || tasks > INT32_MAX || merges > INT32_MAX)
        goto too_much;
    struct cuda_plan_pass *pass = pass_for(plan, tasks * each, rounds);
    if (!pass)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a step");
    struct cuda_class *class = &pass->header.classes[to->class_index];
    if (tasks > (uint64_t)INT32_MAX - class->tasks || merges > (uint64_t)INT32_MAX - pass->header.merges)
        goto too_much;
    to->pieces = (uint32_t)pieces;
    to->pass = plan->pass_count - 1;
    class->items++;
    class->tasks += (uint32_t)tasks;
    if (to->unit_blocks > pass->longest[to->class_index])
        pass->longest[to->class_index] = to->unit_blocks;
    pass->header.items++;
    pass->header.merges += (uint32_t)merges;

    // None of these sums can wrap: each term is below 2^46
    to->q = plan->args_bytes;
    plan->args_bytes += round_up(merges * spec->k_dim * sizeof(float));
    to->alibi = spec->alibi ? plan->args_bytes : 0;
    plan->args_bytes += spec->alibi ? round_up(spec->q_heads * sizeof(float)) : 0;
    to->units = plan->args_bytes;
    plan->args_bytes += round_up(((uint64_t)to->unit_count + 1) * sizeof(uint32_t));
    to->runs = plan->args_bytes;
    plan->args_bytes += round_up(pieces * sizeof(struct cuda_run));
    to->partial = pass->floats;
    pass->floats += tasks * each;
    to->carry = pass->floats;
    pass->floats += rounds > 1 ? merges * CUDA_CARRY(spec->v_dim) : 0;
    if (pass->floats > plan->partial_floats)
        plan->partial_floats = pass->floats;
    to->out = plan->out_floats;
    plan->out_floats += 2 * round_up(merges) + round_up(merges * spec->v_dim);
    if (sink && !place_in_sink(sink, &item->out, &to->out))
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "an item's partial is not a block of the sink");
    return COMMON_OK;
too_much:
    return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "a step has more tasks than a GPU takes at once");
}

enum common_code cuda_plan_make(struct cuda_plan *plan, const struct kernels_device_item *items, uint32_t n,
                                const struct kernels_device_sink *sink, struct common_error *err)
{
    if (n == 0 || n > UINT16_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "a launch must have 1 to 65535 items");
    if (n > plan->item_cap) {
        struct cuda_plan_item *grown = realloc(plan->items, n * sizeof(*grown));
        if (!grown)
            return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a step");
        plan->items = grown;
        plan->item_cap = n;
    }
    plan->pass_count = 0;
    plan->args_bytes = plan->partial_floats = plan->out_floats = plan->read_bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        enum common_code code = check_item(&items[i], err);
        if (code == COMMON_OK)
            code = lay_out(plan, &items[i], sink, &plan->items[i], err);
        if (code != COMMON_OK)
            return code;
    }
    // Only now it is known how long what comes first is
    uint64_t heads = plan->pass_count * sizeof(struct cuda_header);
    uint64_t base = round_up(heads + n * sizeof(struct cuda_item));
    plan->args_bytes += base;
    for (uint32_t p = 0, first = 0, i = 0; p < plan->pass_count; p++) {
        struct cuda_header *header = &plan->passes[p].header;
        uint32_t next[CUDA_CLASSES], at = 0;
        header->items_at = heads + first * sizeof(struct cuda_item);
        for (uint32_t c = 0; c < CUDA_CLASSES; c++) {
            header->classes[c].first_item = next[c] = at;
            at += header->classes[c].items;
        }
        for (; i < n && plan->items[i].pass == p; i++) {
            struct cuda_plan_item *item = &plan->items[i];
            item->place = first + next[item->class_index]++;
            item->q += base;
            item->alibi += items[i].spec->alibi ? base : 0;
            item->units += base;
            item->runs += base;
        }
        first += header->items;
    }
    return COMMON_OK;
}

// Up by at most an eighth.
uint32_t cuda_plan_round_grid(uint32_t n)
{
    uint32_t step = 1;
    while (step * 16 <= n)
        step *= 2;
    return (n + step - 1) / step * step;
}

uint32_t cuda_plan_grid(const struct cuda_plan_pass *pass, uint32_t class_index, uint32_t resident)
{
    const uint32_t tasks = pass->header.classes[class_index].tasks;
    if (resident == 0 || tasks <= resident || pass->longest[class_index] > SHORT_BLOCKS)
        return cuda_plan_round_grid(tasks);
    // A continued session keeps a bit per task, and grids are rounded up: a session that grows keeps its
    // shape
    const uint32_t least = cuda_plan_round_grid((tasks + CUDA_TASKS_MOST - 1) / CUDA_TASKS_MOST);
    return resident > least ? resident : least;
}

static void fill_queries(const struct kernels_device_item *item, float *to)
{
    uint64_t k_dim = item->spec->k_dim, heads = item->spec->q_heads;
    if (item->q_head_stride == k_dim && item->q_row_stride == heads * k_dim) {
        memcpy(to, item->q, item->rows * heads * k_dim * sizeof(float));
        return;
    }
    for (uint64_t row = 0; row < item->rows; row++) {
        for (uint64_t head = 0; head < heads; head++, to += k_dim)
            memcpy(to, item->q + row * item->q_row_stride + head * item->q_head_stride,
                   k_dim * sizeof(float));
    }
}

static struct kernels_mask mask_of(const struct kernels_device_item *item)
{
    const struct kernels_job job = {.spec = item->spec,
                                    .visible = item->visible,
                                    .block_first = item->block_first,
                                    .block_end = item->block_end};
    return kernels_job_mask(&job);
}

// With values inside keys, both are read from the same place.
static void fill_runs(const struct kernels_device_item *item, const struct cuda_plan_item *plan,
                      uint32_t *units, struct cuda_run *to)
{
    uint64_t key = (uint64_t)item->spec->k_dim * cuda_plan_element(item->spec->kv_type);
    bool inside = item->spec->v_in_k;
    uint64_t value = inside ? key : (uint64_t)item->spec->v_dim * cuda_plan_element(item->spec->kv_type);
    uint32_t unit = 0, in_unit = 0, piece = 0;
    for (uint32_t i = 0; i < item->run_count; i++) {
        const struct kernels_device_run *run = &item->runs[i];
        for (uint64_t row = 0; row < run->rows; piece++) {
            if (in_unit == 0)
                units[unit++] = piece;
            uint64_t room = (uint64_t)(plan->unit_blocks - in_unit) * CUDA_BLOCK_KEYS, left = run->rows - row;
            uint32_t rows = (uint32_t)(left < room ? left : room);
            to[piece] =
                (struct cuda_run){.k = run->k + row * key,
                                  .v = (inside ? run->k : run->v) + row * value,
                                  .k_scale = run->k_scale + row * sizeof(float),
                                  .v_scale = (inside ? run->k_scale : run->v_scale) + row * sizeof(float),
                                  .head_stride = run->head_stride,
                                  .first = run->first + row,
                                  .rows = rows,
                                  .block = in_unit};
            in_unit = (in_unit + (uint32_t)blocks_of(rows)) % plan->unit_blocks;
            row += rows;
        }
    }
    units[unit] = piece;
}

void cuda_plan_fill(const struct cuda_plan *plan, const struct kernels_device_item *items, uint32_t n,
                    void *args)
{
    char *base = args;
    for (uint32_t p = 0; p < plan->pass_count; p++)
        memcpy(base + p * sizeof(struct cuda_header), &plan->passes[p].header, sizeof(struct cuda_header));
    struct cuda_item *table = (struct cuda_item *)(base + plan->pass_count * sizeof(struct cuda_header));
    for (uint32_t i = 0; i < n; i++) {
        const struct kernels_device_item *item = &items[i];
        const struct kernels_spec *spec = item->spec;
        const struct cuda_plan_item *p = &plan->items[i];
        table[p->place] = (struct cuda_item){.q_first = item->q_first,
                                             .mask = mask_of(item),
                                             .q = p->q,
                                             .alibi = p->alibi,
                                             .units = p->units,
                                             .runs = p->runs,
                                             .partial = p->partial,
                                             .carry = p->carry,
                                             .out = p->out,
                                             .rows = item->rows,
                                             .kv_heads = spec->kv_heads,
                                             .group = kernels_spec_group(spec),
                                             .k_dim = spec->k_dim,
                                             .v_dim = spec->v_dim,
                                             .v_stride = spec->v_in_k ? spec->k_dim : spec->v_dim,
                                             .unit_count = p->unit_count,
                                             .round_units = p->round_units,
                                             .tiles = p->tiles,
                                             .width = p->width,
                                             .scale = spec->scale,
                                             .soft_cap = spec->soft_cap};
        fill_queries(item, (float *)(base + p->q));
        if (spec->alibi)
            memcpy(base + p->alibi, spec->alibi, spec->q_heads * sizeof(float));
        fill_runs(item, p, (uint32_t *)(base + p->units), (struct cuda_run *)(base + p->runs));
    }
    for (uint32_t p = 0, i = 0; p < plan->pass_count; p++) {
        uint32_t merges = 0;
        for (uint32_t c = 0; c < CUDA_CLASSES; c++) {
            uint32_t tasks = 0;
            for (uint32_t end = i + plan->passes[p].header.classes[c].items; i < end; i++) {
                uint32_t units =
                    table[i].round_units < table[i].unit_count ? table[i].round_units : table[i].unit_count;
                table[i].first_task = tasks;
                table[i].first_merge = merges;
                tasks += units * table[i].kv_heads * table[i].tiles;
                merges += table[i].rows * table[i].kv_heads * table[i].group;
            }
        }
    }
}

void cuda_plan_fini(struct cuda_plan *plan)
{
    free(plan->items);
    free(plan->passes);
    *plan = (struct cuda_plan){0};
}
