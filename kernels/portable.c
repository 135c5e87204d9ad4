// SPDX-License-Identifier: Apache-2.0
// The vector kernel: any dims, any group, many rows, every KV type, float32 accumulation, in C with vector
// extensions. Compiled once per instruction set (kernels/CMakeLists.txt), so its name says what decides its
// bits.
//
// A tile of at most 64 (query row, head) pairs (tile.h) goes over the keys in panels of 4, 8 or 16 blocks of
// 16 keys:
//
//        panel of keys         scores S          weights P = exp(S - m)       hi, lo += P V
//      +---------------+    64 x 256 floats  ->  in place (softmax.h)     ->  64 x v_dim each
//      | 16 x 16 keys  |
//      +---------------+
//
// Accuracy. A logit is hi + lo until m is taken off, for the weights' sake. The sum over panels is
// compensated (hi + lo), so the error does not grow with the number of keys. m rises only when a logit passes
// it by 4, which keeps rescaling, and its roundings, rare; the true largest logit is put in at the end.
//
// Three paths for a panel:
//   wide     from WIDE pairs on: converted and transposed once, all loops run along keys (wide.h)
//   whole    below, when every pair sees all of it: keys are read in place and in order, and what follows is
//            asked for meanwhile (narrow.h)
//   blocks   what is left: block by block, converted, with the range of keys that each pair sees
#include <assert.h>
#include <math.h>

#define TILE_TYPE KERNELS_KV_F32 // of blocks that were converted
#include "kernels/blocks.h"
#include "kernels/narrow.h"
#include "kernels/softmax.h"
#include "kernels/variants.h"
#include "kernels/wide.h"

// Tiles of the same query rows, one a job, which take each panel in turn.
struct feed {
    struct tile *tiles;
    uint32_t n;
    struct panel panels[2]; // the one to compute, and the one being filled: of the first tile
    uint32_t filling;
};

// ---- scores -------------------------------------------------------------------------------------

// Row r's dot with key j of block b, again and in double: for dots that are not finite.
static float dot_again(const struct tile *t, uint32_t r, const struct block *b, uint32_t j)
{
    const float *q = row_q(t, r);
    const char *row = b->k + (size_t)j * t->k_dim * type_bytes(t->spec->kv_type);
    double x = 0;
    for (uint32_t d = 0; d < t->k_dim; d++) {
        float k[LANES];
        vf_store(k, load_tail(t->spec->kv_type, row, d, 1));
        x += (double)q[d] * k[0];
    }
    return (float)x;
}

// Chains that met an infinity may have made NaN of it.
static void dot_repair(struct tile *t, const struct panel *panel, uint32_t r)
{
    for (uint32_t b = 0; b < panel->count; b++) {
        const struct block *x = &panel->blocks[b];
        for (uint32_t j = x->begin; j < x->end; j++) {
            float *hi = &t->scores[(size_t)r * ROW + b * BLOCK + j];
            if (!isfinite(*hi))
                *hi = dot_again(t, r, x, j);
        }
    }
}

// Columns of the transposed keys of a panel: as many as there are, in whole tiles. A fixed stride of a power
// of two would leave half of the cache's sets idle.
static uint32_t wide_stride(const struct panel *panel)
{
    return round_up(panel->count * BLOCK, WIDE_KEYS);
}

// keys and values of the panel as float32: keys transposed for the wide path.
INLINE void convert_as(struct tile *t, const struct panel *panel, enum kernels_kv_type type)
{
    for (uint32_t b = 0; b < panel->count; b++) {
        const struct block *x = &panel->blocks[b];
        if (t->wide)
            transpose_block(type, x, t->k_dim, t->keys + b * BLOCK, wide_stride(panel));
        else
            copy_rows(type, false, x->k, x, t->k_dim, t->k_dim, t->k_pad,
                      t->keys + (size_t)b * BLOCK * t->k_pad);
        copy_rows(type, true, x->v, x, t->v_dim, t->v_stride, t->v_pad,
                  t->values + (size_t)b * BLOCK * t->v_pad);
    }
}

static __attribute__((noinline)) void convert_panel(struct tile *t, const struct panel *panel)
{
    switch (t->spec->kv_type) {
    case KERNELS_KV_F16:
        convert_as(t, panel, KERNELS_KV_F16);
        break;
    case KERNELS_KV_BF16:
        convert_as(t, panel, KERNELS_KV_BF16);
        break;
    case KERNELS_KV_INT8:
        convert_as(t, panel, KERNELS_KV_INT8);
        break;
    case KERNELS_KV_FP8:
        convert_as(t, panel, KERNELS_KV_FP8);
        break;
    default:
        convert_as(t, panel, KERNELS_KV_F32);
        break;
    }
}

// Of a block's values that are to be asked for beside its keys.
static size_t values_bytes(const struct tile *t)
{
    return t->spec->v_in_k ? 0 : type_bytes(t->spec->kv_type) * BLOCK * t->v_dim;
}

static __attribute__((noinline)) void score_wide(struct tile *t, const struct panel *panel,
                                                 const struct panel *next)
{
    size_t bytes = type_bytes(t->spec->kv_type) * BLOCK;
    struct wide_ahead ahead = {.panel = next, .k_bytes = bytes * t->k_dim, .v_bytes = values_bytes(t)};
    wide_ahead_part(&ahead);
    uint32_t columns = panel->count * BLOCK, stride = wide_stride(panel);
    uint32_t rest = stride - columns; // the last vectors hold what was there before
    for (uint32_t d = 0; rest > 0 && d < t->k_dim; d++)
        memset(t->keys + (size_t)d * stride + columns, 0, rest * sizeof(float));
    for (uint32_t r = 0; r < t->rows; r += WIDE_ROWS) {
        for (uint32_t c = 0; c < columns; c += WIDE_KEYS)
            dot_wide(t->q + (size_t)r * t->k_pad, t->k_pad, t->keys + c, stride, t->k_dim, &ahead,
                     t->scores + (size_t)r * ROW + c, t->lost + (size_t)r * ROW + c);
    }
    for (uint32_t r = 0; r < t->rows; r++) {
        vf x = {0};
        for (uint32_t c = 0; c < columns; c += LANES)
            x += vf_load(t->scores + (size_t)r * ROW + c) * 0.0f;
        if (vf_sum_lanes(x) != 0)
            dot_repair(t, panel, r);
    }
}

static void score_blocks(struct tile *t, const struct panel *panel)
{
    for (uint32_t b = 0; b < panel->count; b++) {
        const struct block *x = &panel->blocks[b];
        const float *k = t->keys + (size_t)b * BLOCK * t->k_pad;
        float *hi = t->scores + b * BLOCK, *lo = t->lost + b * BLOCK;
        for (uint32_t r = 0; r < t->rows;) {
            const float *q = t->q + (size_t)r * t->k_pad;
            size_t at = (size_t)r * ROW;
            uint32_t left = t->rows - r;
            if (left >= 3) {
                dot_block(4, q, left, k, x->begin, x->end, t->k_pad, hi + at, lo + at);
                r += 4;
            } else if (left == 2) {
                dot_block(2, q, left, k, x->begin, x->end, t->k_pad, hi + at, lo + at);
                r += 2;
            } else {
                dot_block(1, q, left, k, x->begin, x->end, t->k_pad, hi + at, lo + at);
                r += 1;
            }
        }
    }
}

// ---- panels -------------------------------------------------------------------------------------

static struct ahead_block *ahead_add(struct ahead_block *use, const char *const *blocks, uint32_t count,
                                     size_t bytes)
{
    for (uint32_t b = 0; b < count; b++)
        *use++ = (struct ahead_block){blocks[b], bytes};
    return use;
}

// A whole panel, keys and values read where they lie.
static void run_whole(struct tile *t, const struct panel *panel, const struct panel *next)
{
    enum kernels_kv_type type = t->spec->kv_type;
    uint32_t count = panel->count;
    float scales[2][PANEL];
    struct narrow n = {.rows = t->rows,
                       .blocks = count,
                       .k_dim = t->k_dim,
                       .v_dim = t->v_dim,
                       .v_stride = t->v_stride,
                       .q = t->q,
                       .scores = t->scores,
                       .lost = t->lost,
                       .hi = t->hi,
                       .lo = t->lo,
                       .streams = kernels_cpu_streams()};
    const char *next_k[MOST_BLOCKS], *next_v[MOST_BLOCKS];
    for (uint32_t b = 0; b < count; b++) {
        const struct block *now = &panel->blocks[b];
        n.k[b] = now->k;
        n.v[b] = now->v;
        if (type_scaled(type)) {
            memcpy(scales[0] + b * BLOCK, now->k_scale, BLOCK * sizeof(float));
            memcpy(scales[1] + b * BLOCK, now->v_scale, BLOCK * sizeof(float));
        }
    }
    for (uint32_t b = 0; b < next->count; b++) {
        next_k[b] = next->blocks[b].k;
        next_v[b] = next->blocks[b].v;
    }
    size_t k_bytes = type_bytes(type) * BLOCK * t->k_dim, v_bytes = values_bytes(t);
    // Looking for NaN has read all of a panel of fp8 before it is computed: that is the time to ask for the
    // next
    n.distance = type == KERNELS_KV_FP8 ? 2 * count : ahead_distance(type, k_bytes, n.streams);
#if LANES == 8
    n.room = (uint16_t *)t->keys;
    ahead_avx2(&n, type, k_bytes);
#endif
    struct ahead_block *use = ahead_add(n.use, n.k, count, k_bytes);
    if (v_bytes > 0)
        use = ahead_add(use, n.v, count, v_bytes);
    use = ahead_add(use, next_k, next->count, k_bytes);
    if (v_bytes > 0)
        use = ahead_add(use, next_v, next->count, v_bytes);
    n.uses = (uint32_t)(use - n.use);
    const struct kernels_narrow_ops *ops = narrow_ops(type);
    ops->dots(&n);
    if (type_scaled(type))
        score_scale(t, type, count * BLOCK, scales[0]);
    bend_panel(t, panel);
    softmax_whole(t, count * BLOCK, type_scaled(type) ? scales[1] : NULL);
    ops->folds(&n);
}

static bool same_ranges(const struct ranges *a, const struct ranges *b, uint32_t blocks)
{
    return !memcmp(a->begin, b->begin, blocks * sizeof(a->begin[0])) &&
           !memcmp(a->end, b->end, blocks * sizeof(a->end[0]));
}

// Pairs r .. end - 1, which see the same keys (begin == end everywhere: none).
static __attribute__((noinline)) void fold_alike(struct tile *t, uint32_t r, uint32_t end, uint32_t blocks,
                                                 const struct ranges *range)
{
    while (r < end) {
        const float *w = t->scores + (size_t)r * ROW;
        float *hi = t->hi + (size_t)r * t->v_pad, *lo = t->lo + (size_t)r * t->v_pad;
        if (end - r >= 4) {
            fold_blocks(4, w, t->values, blocks, range, t->v_pad, hi, lo);
            r += 4;
        } else if (end - r >= 2) {
            fold_blocks(2, w, t->values, blocks, range, t->v_pad, hi, lo);
            r += 2;
        } else {
            fold_blocks(1, w, t->values, blocks, range, t->v_pad, hi, lo);
            r += 1;
        }
    }
}

// The scales of the keys that are seen, by column; others are not read, and count as 0.
static void gather_scales(const struct panel *panel, float *k_scales, float *v_scales)
{
    memset(k_scales, 0, panel->count * BLOCK * sizeof(float));
    memset(v_scales, 0, panel->count * BLOCK * sizeof(float));
    for (uint32_t b = 0; b < panel->count; b++) {
        const struct block *x = &panel->blocks[b];
        size_t at = b * BLOCK + x->begin, bytes = (x->end - x->begin) * sizeof(float);
        memcpy(k_scales + at, x->k_scale + x->begin, bytes);
        memcpy(v_scales + at, x->v_scale + x->begin, bytes);
    }
}

// Softmax of a panel's scores, each pair over the keys that it sees: `range` of each, or nothing if the panel
// is whole.
static void weigh_panel(struct tile *t, const struct panel *panel, struct ranges *range)
{
    enum kernels_kv_type type = t->spec->kv_type;
    uint32_t columns = panel->count * BLOCK;
    float scales[2][PANEL];
    if (type_scaled(type)) {
        gather_scales(panel, scales[0], scales[1]);
        score_scale(t, type, columns, scales[0]);
    }
    const float *v_scales = type_scaled(type) ? scales[1] : NULL;
    bend_panel(t, panel);
    if (panel->whole) {
        softmax_whole(t, columns, v_scales);
        return;
    }
    for (uint32_t r = 0; r < t->rows; r++) {
        if (row_ranges(t, panel, r, &range[r])) {
            softmax_top(t, r, columns, &range[r]);
            softmax_weigh(t, r, columns, &range[r], v_scales);
        } else {
            memset(t->scores + (size_t)r * ROW, 0, columns * sizeof(float));
        }
    }
}

static void fold_ranges(struct tile *t, const struct panel *panel, struct ranges *range)
{
    if (panel->whole) {
        row_ranges(t, panel, 0, range);
        fold_alike(t, 0, t->rows, panel->count, range);
        return;
    }
    for (uint32_t r = 0; r < t->rows;) {
        uint32_t alike = 1;
        while (r + alike < t->rows && same_ranges(&range[r], &range[r + alike], panel->count))
            alike++;
        fold_alike(t, r, r + alike, panel->count, &range[r]);
        r += alike;
    }
}

// Any panel, block by block, converted to float32 first.
static void run_blocks(struct tile *t, const struct panel *panel, const struct panel *next)
{
    struct ranges range[TILE];
    convert_panel(t, panel);
    if (t->wide)
        score_wide(t, panel, next);
    else
        score_blocks(t, panel);
    weigh_panel(t, panel, range);
    fold_ranges(t, panel, range);
}

// Any panel, by matrix units.
static void run_units(struct tile *t, const struct panel *panel, const struct panel *next)
{
    struct ranges range[TILE];
    t->units->panel(&t->matrix, panel);
    t->units->dots(&t->matrix, panel->count, next, t->scores, t->lost);
    weigh_panel(t, panel, range);
    for (uint32_t r = 0; panel->count % 2 && r < t->rows; r++)
        memset(t->scores + (size_t)r * ROW + panel->count * BLOCK, 0, BLOCK * sizeof(float));
    t->units->folds(&t->matrix, panel->count, t->scores, t->hi, t->lo);
}

// Whether all of a panel may be read where it lies: not if an fp8 code is NaN.
static bool panel_in_place(const struct tile *t, const struct panel *panel)
{
    bool yes = t->in_place && panel->whole, fp8 = t->spec->kv_type == KERNELS_KV_FP8;
    for (uint32_t b = 0; yes && fp8 && b < panel->count; b++)
        yes = vf_fp8_numbers((const uint8_t *)panel->blocks[b].k, (size_t)BLOCK * t->k_dim);
    for (uint32_t b = 0; yes && fp8 && !t->spec->v_in_k && b < panel->count; b++)
        yes = vf_fp8_numbers((const uint8_t *)panel->blocks[b].v, (size_t)BLOCK * t->v_dim);
    return yes;
}

// A panel that cannot be read where it lies, in parts that can be converted: fp8 with a NaN may be longer.
static void run_parts(struct tile *t, const struct panel *panel, const struct panel *next)
{
    uint32_t most = t->wide ? panel->count : type_blocks(t->spec->kv_type);
    if (panel->count <= most) {
        run_blocks(t, panel, next);
        return;
    }
    for (uint32_t b = 0; b < panel->count; b += most) {
        struct panel part = {.count = panel->count - b < most ? panel->count - b : most, .whole = true};
        memcpy(part.blocks, panel->blocks + b, part.count * sizeof(part.blocks[0]));
        run_blocks(t, &part, next);
    }
}

static void compute_panel(struct tile *t, const struct panel *panel, const struct panel *next)
{
    if (t->units)
        run_units(t, panel, next);
    else if (panel_in_place(t, panel))
        run_whole(t, panel, next);
    else
        run_parts(t, panel, next);
}

// Where a block lies in the job's memory.
static void block_place(const struct kernels_job *job, struct block *b)
{
    const struct kernels_spec *spec = job->spec;
    const struct kernels_run *run = &job->runs[b->run];
    size_t bytes = type_bytes(spec->kv_type);
    bool scaled = type_scaled(spec->kv_type);
    b->k = (const char *)run->k + b->at * spec->k_dim * bytes;
    b->k_scale = scaled ? run->k_scale + b->at : NULL;
    b->v = spec->v_in_k ? b->k : (const char *)run->v + b->at * spec->v_dim * bytes;
    b->v_scale = spec->v_in_k ? b->k_scale : scaled ? run->v_scale + b->at : NULL;
}

// The same keys in another job's memory.
static void panel_of(const struct kernels_job *job, const struct panel *panel, struct panel *out)
{
    *out = (struct panel){.count = panel->count, .whole = panel->whole};
    for (uint32_t b = 0; b < panel->count; b++) {
        out->blocks[b] = panel->blocks[b];
        block_place(job, &out->blocks[b]);
    }
}

static void compute_panels(struct feed *f, const struct panel *panel, const struct panel *next)
{
    struct panel moved[2];
    for (uint32_t i = 0; i < f->n; i++) {
        const struct panel *after = next;
        if (i + 1 < f->n) {
            panel_of(f->tiles[i + 1].job, panel, &moved[i % 2]);
            after = &moved[i % 2];
        }
        compute_panel(&f->tiles[i], i == 0 ? panel : &moved[(i - 1) % 2], after);
    }
}

// The panel that was filled is next; the one before it is computed now.
static void turn_panel(struct feed *f)
{
    struct panel *full = &f->panels[f->filling], *before = &f->panels[!f->filling];
    if (before->count > 0)
        compute_panels(f, before, full);
    before->count = 0;
    f->filling = !f->filling;
}

// Blocks that can be read where they lie and others do not share a panel, of which the latter have fewer.
static void feed_block(struct feed *f, const struct block *b)
{
    const struct tile *t = f->tiles;
    bool whole = b->first >= t->all_from && b->first + BLOCK <= t->all_to && b->begin == 0 && b->end == BLOCK;
    if (t->in_place && f->panels[f->filling].count > 0 && f->panels[f->filling].whole != whole)
        turn_panel(f);
    struct panel *panel = &f->panels[f->filling];
    panel->whole = (panel->count == 0 || panel->whole) && whole;
    panel->blocks[panel->count++] = *b;
    if (panel->count == (t->in_place && !whole ? type_blocks(t->spec->kv_type) : t->blocks))
        turn_panel(f);
}

// Cuts a run into blocks from its start and hands on those of which the tiles see a key.
static void feed_run(struct feed *f, uint32_t i)
{
    const struct tile *t = f->tiles;
    const struct kernels_run *run = &t->job->runs[i];
    uint64_t from = t->from[0], to = t->to[t->rows - 1]; // neither falls with the row
    uint64_t begin = from > run->first ? from - run->first : 0;
    uint64_t end = to > run->first ? to - run->first : 0;
    if (end > run->rows)
        end = run->rows;
    if (begin >= end) // also where both lie in one block
        return;
    for (uint64_t at = begin / BLOCK * BLOCK; at < end; at += BLOCK) {
        struct block b = {.first = run->first + at,
                          .begin = begin > at ? (uint32_t)(begin - at) : 0,
                          .end = end - at < BLOCK ? (uint32_t)(end - at) : BLOCK,
                          .run = i,
                          .at = at};
        block_place(t->job, &b);
        feed_block(f, &b);
    }
}

static void finish_row(struct tile *t, uint32_t r, float *m, float *s, float *o)
{
    const float *hi = t->hi + (size_t)r * t->v_pad, *lo = t->lo + (size_t)r * t->v_pad;
    if (!t->seen[r]) {
        *m = -INFINITY;
        *s = 0;
        memset(o, 0, t->v_dim * sizeof(float));
        return;
    }
    float factor =
        t->m[r] == -INFINITY ? 1.0f : (float)kernels_scalar_exp((double)t->m[r] - (double)t->top[r]);
    vf first = vf_splat(factor), second = vf_splat(type_factor(t->spec->kv_type)), any = {0};
    float *sum = t->hi + (size_t)r * t->v_pad;
    for (uint32_t c = 0; c < t->v_pad; c += LANES) {
        vf high = vf_load(hi + c), both = high + vf_load(lo + c);
        vf x = vf_select(high - high == 0, both, high) * first * second; // an infinity has lost nothing
        any += x - x;                                                    // NaN where x is not finite
        vf_store(sum + c, x);
    }
    type_restore(t->spec->kv_type, t->v_dim, sum, o);
    bool nan = false;
    if (vf_sum_lanes(any) != 0) {
        for (uint32_t c = 0; c < t->v_dim; c++)
            nan = nan || isnan(o[c]);
    }
    *m = t->top[r];
    *s = (isfinite(t->s_hi[r]) ? t->s_hi[r] + t->s_lo[r] : t->s_hi[r]) * factor;
    if (*s == 0)
        *s = nan ? NAN : -0.0f; // keys seen, no mass: kernels/partial.h
}

// Matrix units may count subnormal numbers as zero and make NaN of an infinity: such a result is not kept.
// That of a row whose values are all zero, or cancel, is refused for nothing.
static bool units_trusted(const struct tile *t)
{
    bool trusted = !t->matrix.odd;
    for (uint32_t r = 0; r < t->rows && trusted; r++) {
        const float *o = t->job->out.o + (size_t)(t->first + r) * t->v_dim;
        float largest = 0, any = t->job->out.s[t->first + r] * 0;
        for (uint32_t c = 0; c < t->v_dim; c++) {
            any += o[c] * 0;
            largest = fabsf(o[c]) > largest ? fabsf(o[c]) : largest;
        }
        trusted = any == 0 && (!t->seen[r] || largest >= 0x1p-60f);
    }
    return trusted;
}

static void run_tiles(struct tile *tiles, uint32_t n)
{
    struct feed f = {.tiles = tiles, .n = n};
    f.panels[0].count = f.panels[1].count = f.filling = 0;
    for (uint32_t i = 0; i < tiles->job->run_count; i++)
        feed_run(&f, i);
    turn_panel(&f);
    turn_panel(&f);
    for (struct tile *t = tiles; t < tiles + n; t++) {
        const struct kernels_partial *out = &t->job->out;
        for (uint32_t r = 0; r < t->rows; r++)
            finish_row(t, r, out->m + t->first + r, out->s + t->first + r,
                       out->o + (size_t)(t->first + r) * t->v_dim);
    }
}

// By matrix units. False: nothing was done, or it cannot be kept.
static bool run_tile_units(struct tile *t, const struct kernels_matrix_ops *units, char *space)
{
    const float *q[TILE];
    for (uint32_t r = 0; r < t->rows; r++)
        q[r] = row_q(t, r);
    if (!units->begin(&t->matrix, t->spec, q, t->rows, space))
        return false;
    t->units = units;
    t->blocks = type_blocks(t->spec->kv_type);
    t->in_place = false;
    run_tiles(t, 1);
    units->end();
    return units_trusted(t);
}

// Tile after tile of one job. units: NULL = none.
static void run_alone(const struct kernels_job *job, uint64_t pairs, void *scratch,
                      const struct kernels_matrix_ops *units)
{
    struct tile t;
    for (uint64_t first = 0; first < pairs; first += TILE) {
        uint32_t rows = pairs - first < TILE ? (uint32_t)(pairs - first) : TILE;
        tile_init(&t, job, 0, first, rows, scratch);
        if (units && rows >= units->rows_from && units->takes(job->spec->kv_type)) {
            if (run_tile_units(&t, units, (char *)scratch + scratch_bytes(job->spec, job->rows, 1)))
                continue;
            tile_init(&t, job, 0, first, rows, scratch);
        }
        run_tiles(&t, 1);
    }
}

// Many pairs keep a thread busy with one job; those of few go through memory together.
INLINE void run_jobs(const struct kernels_job *jobs, uint32_t n, void *scratch,
                     const struct kernels_matrix_ops *units)
{
    uint64_t pairs = (uint64_t)jobs->rows * kernels_spec_group(jobs->spec);
    struct tile tiles[KERNELS_JOBS];
    for (uint32_t i = 0, together; i < n; i += together) {
        together = pairs >= WIDE ? 1 : n - i < KERNELS_JOBS ? n - i : KERNELS_JOBS;
        if (pairs >= WIDE) {
            run_alone(&jobs[i], pairs, scratch, units);
            continue;
        }
        for (uint32_t j = 0; j < together; j++)
            tile_init(&tiles[j], &jobs[i + j], j, 0, (uint32_t)pairs, scratch);
        run_tiles(tiles, together);
    }
}

static void portable_run(const struct kernels_job *jobs, uint32_t n, void *scratch)
{
    run_jobs(jobs, n, scratch, NULL);
}

#if LANES == 16
static uint64_t amx_scratch_bytes(const struct kernels_spec *spec, uint32_t rows, uint32_t jobs)
{
    return scratch_bytes(spec, rows, jobs) +
           kernels_matrix_amx.bytes(round_up(spec->k_dim, 32), round_up(spec->v_dim, 32));
}

static void amx_run(const struct kernels_job *jobs, uint32_t n, void *scratch)
{
    run_jobs(jobs, n, scratch, &kernels_matrix_amx);
}

const struct kernels_attention kernels_amx = {
    .name = "amx",
    .rank = 40,
    .usable = kernels_cpu_amx,
    .scratch_bytes = amx_scratch_bytes,
    .run = amx_run,
};
#endif

#if LANES == 16
const struct kernels_attention kernels_avx512 = {
    .name = "avx512",
    .rank = 30,
    .usable = kernels_cpu_avx512,
#elif LANES == 8
const struct kernels_attention kernels_avx2 = {
    .name = "avx2",
    .rank = 20,
    .usable = kernels_cpu_avx2,
#elif NEON
const struct kernels_attention kernels_neon = {
    .name = "neon",
    .rank = 20,
#else
const struct kernels_attention kernels_portable = {
    .name = "portable",
    .rank = 10,
#endif
    .scratch_bytes = scratch_bytes,
    .run = portable_run,
};
