// SPDX-License-Identifier: Apache-2.0
#include "kernels/split.h"

#include <assert.h>
#include <string.h>

#include "kernels/watched.h"

#define FEW_PAIRS 16u // of a tile: jobs of so few are worth being run together
#define TASKS     64u // for as many threads as a host may have

struct shape {
    uint32_t units, tile_rows, tiles, heads; // KV heads of a task
    uint64_t unit_chunks;
};

static uint64_t round_up(uint64_t n)
{
    return (n + KERNELS_ALIGN - 1) / KERNELS_ALIGN * KERNELS_ALIGN;
}

// Walks the chunks of the item. start: NULL, or where the first run of each unit and the end go.
static uint32_t walk_units(const struct kernels_item *item, uint64_t unit_chunks, uint32_t *start)
{
    uint64_t in_unit = 0, chunk_first = 0;
    uint32_t units = 0;
    for (uint32_t i = 0; i < item->run_count; i++) {
        uint64_t first = item->runs[i].first;
        if (i > 0 && first - chunk_first < item->chunk_tokens) // below it, the difference wraps
            continue;
        chunk_first = first - first % item->chunk_tokens;
        if (in_unit == 0) {
            if (start)
                start[units] = i;
            units++;
        }
        in_unit = (in_unit + 1) % unit_chunks;
    }
    if (start)
        start[units] = item->run_count;
    return units;
}

static struct shape shape_of(const struct kernels_item *item)
{
    uint64_t group = kernels_spec_group(item->spec), eights = (item->rows * group + 127) / 128;
    struct shape s;
    s.unit_chunks = 8 * (eights < 1 ? 1 : eights > 16 ? 16 : eights);
    s.tile_rows = group < 64 ? (uint32_t)(64 / group) : 1;
    s.tiles = (uint32_t)(((uint64_t)item->rows + s.tile_rows - 1) / s.tile_rows);
    s.units = walk_units(item, s.unit_chunks, NULL);
    uint64_t pairs = (item->rows < s.tile_rows ? item->rows : s.tile_rows) * group,
             kv_heads = item->spec->kv_heads;
    s.heads = pairs > FEW_PAIRS ? 1 : kv_heads < KERNELS_JOBS ? (uint32_t)kv_heads : KERNELS_JOBS;
    while (s.heads > 1 && s.units * ((kv_heads + s.heads - 1) / s.heads) * s.tiles < TASKS)
        s.heads = (s.heads + 1) / 2;
    return s;
}

static uint32_t groups_of(const struct kernels_item *item, const struct shape *s)
{
    return (item->spec->kv_heads + s->heads - 1) / s->heads;
}

// Bytes of the table of units, and of one partial, and how many there are. False if they pass what fits.
static bool sizes_of(const struct kernels_item *item, const struct shape *s, uint64_t *table,
                     uint64_t *partial, uint64_t *partials)
{
    *table = round_up(((uint64_t)s->units + 1) * sizeof(uint32_t));
    *partial = kernels_partial_bytes(s->tile_rows, kernels_spec_group(item->spec), item->spec->v_dim);
    uint64_t per_unit = (uint64_t)item->spec->kv_heads * s->tiles; // < 2^48
    *partials = per_unit > UINT32_MAX ? UINT64_MAX : per_unit * s->units;
    return item->rows > 0 && *partial > 0 && *partials < UINT32_MAX &&
           *partials <= ((uint64_t)1 << 62) / *partial;
}

uint64_t kernels_split_bytes(const struct kernels_item *item)
{
    struct shape s = shape_of(item);
    uint64_t table, partial, partials;
    return sizes_of(item, &s, &table, &partial, &partials) ? table + partial * partials : 0;
}

uint64_t kernels_split_scratch(const struct kernels_item *item)
{
    struct shape s = shape_of(item);
    return kernels_attention_scratch(item->kernel, item->spec, s.tile_rows, s.heads);
}

void kernels_split_init(struct kernels_split *split, const struct kernels_item *item, void *workspace)
{
    struct shape s = shape_of(item);
    uint64_t table = 0, partial = 0, partials = 0;
    bool fits = sizes_of(item, &s, &table, &partial, &partials);
    assert(fits && (uintptr_t)workspace % KERNELS_ALIGN == 0);
    walk_units(item, s.unit_chunks, workspace);
    *split = (struct kernels_split){.item = item,
                                    .units = s.units,
                                    .tiles = s.tiles,
                                    .tile_rows = s.tile_rows,
                                    .heads = s.heads,
                                    .tasks = s.units * groups_of(item, &s) * s.tiles,
                                    .unit_start = workspace,
                                    .partials = (char *)workspace + table,
                                    .partial_bytes = partial};
}

static struct kernels_partial partial_of(const struct kernels_split *split, uint32_t unit, uint32_t head,
                                         uint32_t tile)
{
    const struct kernels_item *item = split->item;
    uint64_t at = ((uint64_t)unit * item->spec->kv_heads + head) * split->tiles + tile;
    uint32_t first = tile * split->tile_rows;
    struct kernels_partial p;
    kernels_partial_view(split->partials + at * split->partial_bytes,
                         item->rows - first < split->tile_rows ? item->rows - first : split->tile_rows,
                         kernels_spec_group(item->spec), item->spec->v_dim, &p);
    return p;
}

// Task = (unit * groups of heads + group) * tiles + tile.
void kernels_split_run(const struct kernels_split *split, uint32_t task, void *scratch)
{
    assert(task < split->tasks);
    const struct kernels_item *item = split->item;
    uint32_t heads = item->spec->kv_heads, groups = (heads + split->heads - 1) / split->heads;
    uint32_t tile = task % split->tiles, head = task / split->tiles % groups * split->heads;
    uint32_t unit = task / split->tiles / groups, first = tile * split->tile_rows;
    struct kernels_job jobs[KERNELS_JOBS];
    uint32_t n = heads - head < split->heads ? heads - head : split->heads;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t q_head = (uint64_t)(head + i) * kernels_spec_group(item->spec);
        jobs[i] = (struct kernels_job){
            .spec = item->spec,
            .kv_head = head + i,
            .q_first = item->q_first + first,
            .visible = item->visible,
            .block_first = item->block_first,
            .block_end = item->block_end,
            .q = item->q + first * item->q_row_stride + q_head * item->q_head_stride,
            .q_row_stride = item->q_row_stride,
            .q_head_stride = item->q_head_stride,
            .runs = item->runs + (size_t)(head + i) * item->run_count + split->unit_start[unit],
            .run_count = split->unit_start[unit + 1] - split->unit_start[unit],
            .out = partial_of(split, unit, head + i, tile),
        };
        jobs[i].rows = jobs[i].out.rows;
    }
    kernels_watched(item->kernel, jobs, n, scratch);
    item->kernel->run(jobs, n, scratch);
}

void kernels_split_merge(const struct kernels_split *split, const struct kernels_partial *out)
{
    const struct kernels_item *item = split->item;
    assert(out->rows == item->rows && out->heads == item->spec->q_heads && out->dv == item->spec->v_dim);
    kernels_partial_reset(out);
    if (split->units == 0)
        return;
    for (uint32_t head = 0; head < item->spec->kv_heads; head++) {
        for (uint32_t tile = 0; tile < split->tiles; tile++) {
            for (uint64_t step = 1; step < split->units; step *= 2) {
                for (uint64_t u = 0; u + step < split->units; u += 2 * step) {
                    struct kernels_partial left = partial_of(split, (uint32_t)u, head, tile);
                    struct kernels_partial right = partial_of(split, (uint32_t)(u + step), head, tile);
                    kernels_partial_merge(&left, &right);
                }
            }
            struct kernels_partial whole = partial_of(split, 0, head, tile);
            kernels_partial_merge_at(out, tile * split->tile_rows, head * kernels_spec_group(item->spec),
                                     &whole);
        }
    }
}
