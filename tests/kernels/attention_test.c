// SPDX-License-Identifier: Apache-2.0
// One suite over every registered kernel, against the float64 reference. Prints the largest error of each
// kernel as a fraction of the promised bound.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/reference.h"
#include "tests/kernels/data.h"

#define MAX_GROUP 8

static double worst_o[16], worst_lse[16]; // by index in the registry
static char worst_case[16][120];          // of worst_o

// Kernels that this machine can run, one after the other.
static const struct kernels_attention *next_kernel(uint32_t *i)
{
    while (kernels_attention_at(*i) && !kernels_attention_usable(kernels_attention_at(*i)))
        (*i)++;
    return kernels_attention_at((*i)++);
}

struct answer {
    double *o;
    struct kernels_reference_row *rows;
};

static struct answer reference_of(const struct data *d, const float *sinks)
{
    size_t n = (size_t)d->rows * d->spec.q_heads;
    struct answer a = {malloc(n * d->spec.v_dim * sizeof(double)), malloc(n * sizeof(*a.rows))};
    assert_non_null(a.o);
    assert_non_null(a.rows);
    struct kernels_job job = data_job(d);
    kernels_reference(&job, sinks, a.o, a.rows);
    return a;
}

static void answer_free(struct answer *a)
{
    free(a->o);
    free(a->rows);
}

// Finite where the reference is, and within the bound; not finite in the same way where it is not.
static void compare(const struct data *d, const struct answer *want, const struct kernels_partial *p,
                    const float *sinks, uint32_t kernel, const char *what)
{
    size_t n = (size_t)p->rows * p->heads;
    float *o = malloc(n * p->dv * sizeof(float)), *lse = malloc(n * sizeof(float));
    assert_non_null(o);
    assert_non_null(lse);
    kernels_partial_finish(p, sinks, o, lse);
    const char *name = kernels_attention_at(kernel)->name;
    for (size_t i = 0; i < n; i++) {
        const struct kernels_reference_row *row = &want->rows[i];
        double bound_o = kernels_reference_bound_o(row), bound_lse = kernels_reference_bound_lse(row);
        if (!isfinite(row->lse)) {
            if (!(isnan(row->lse) ? isnan(lse[i]) : lse[i] == row->lse))
                fail_msg("%s: %s, %s: row %zu: lse %g, want %g", name, d->name, what, i, lse[i], row->lse);
        } else {
            double ratio = fabs(lse[i] - row->lse) / bound_lse;
            if (!(ratio <= 1))
                fail_msg("%s: %s, %s: row %zu: lse %.9g, want %.9g, %.2f of the bound", name, d->name, what,
                         i, lse[i], row->lse, ratio);
            worst_lse[kernel] = fmax(worst_lse[kernel], ratio);
        }
        for (uint32_t c = 0; c < p->dv; c++) {
            double got = o[i * p->dv + c], ref = want->o[i * p->dv + c];
            if (!isfinite(ref)) {
                if (!(isnan(ref) ? isnan(got) : got == ref))
                    fail_msg("%s: %s, %s: row %zu: o[%u] %g, want %g", name, d->name, what, i, c, got, ref);
                continue;
            }
            if (row->keys == 0) {
                if (got != 0)
                    fail_msg("%s: %s, %s: row %zu sees nothing, o[%u] is %g", name, d->name, what, i, c, got);
                continue;
            }
            double ratio = got == ref ? 0 : fabs(got - ref) / bound_o;
            if (isfinite(bound_o) && !(ratio <= 1))
                fail_msg("%s: %s, %s: row %zu: o[%u] %.9g, want %.9g, %.2f of the bound", name, d->name, what,
                         i, c, got, ref, ratio);
            if (!isfinite(got))
                fail_msg("%s: %s, %s: row %zu: o[%u] %g, want %g", name, d->name, what, i, c, got, ref);
            if (isfinite(bound_o) && ratio > worst_o[kernel]) {
                worst_o[kernel] = ratio;
                snprintf(worst_case[kernel], sizeof(worst_case[kernel]), "%s", d->name);
            }
        }
    }
    free(o);
    free(lse);
}

static struct kernels_partial run_whole(const struct data *d, const struct kernels_attention *kernel)
{
    struct kernels_partial p = data_partial(d->rows, d->spec.q_heads, d->spec.v_dim);
    struct kernels_job job = data_job(d);
    job.out = p;
    data_run_kernel(kernel, &job);
    return p;
}

static void check_all_kernels(struct data *d, const float *sinks, const char *what)
{
    struct answer want = reference_of(d, sinks);
    const struct kernels_attention *kernel;
    for (uint32_t i = 0; (kernel = next_kernel(&i));) {
        if (d->keys >= 5000 && kernel == kernels_attention_find("reference"))
            continue; // slow, and no further from the same sums than with fewer keys
        struct kernels_partial p = run_whole(d, kernel);
        compare(d, &want, &p, sinks, i - 1, what);
        data_partial_free(&p);
    }
    answer_free(&want);
}

static struct kernels_spec spec_of(enum kernels_kv_type type, uint32_t k_dim, uint32_t v_dim, uint32_t group)
{
    return (struct kernels_spec){.kv_type = type,
                                 .k_dim = k_dim,
                                 .v_dim = v_dim,
                                 .q_heads = group,
                                 .kv_heads = 1,
                                 .scale = (float)(1 / sqrt(k_dim))};
}

#define TYPES 5
static const enum kernels_kv_type types[TYPES] = {KERNELS_KV_F32, KERNELS_KV_F16, KERNELS_KV_BF16,
                                                  KERNELS_KV_INT8, KERNELS_KV_FP8};
static const char *const type_names[TYPES] = {"f32", "f16", "bf16", "int8", "fp8"};
static bool wanted[TYPES]; // by the arguments

static void every_shape(void **state)
{
    (void)state;
    static const struct {
        uint32_t k_dim, v_dim, group, rows, keys;
    } shapes[] = {
        {64, 64, 1, 1, 1},      {64, 64, 1, 1, 300},   {64, 64, 2, 1, 777},   {128, 128, 3, 1, 256},
        {128, 128, 4, 1, 1000}, {128, 128, 4, 2, 100}, {80, 80, 5, 1, 333},   {128, 64, 6, 1, 65},
        {64, 128, 7, 1, 130},   {128, 128, 8, 1, 513}, {1, 1, 1, 1, 100},     {1, 3, 2, 2, 40},
        {3, 1, 4, 64, 90},      {3, 3, 8, 1, 70},      {576, 512, 8, 1, 200}, {576, 512, 1, 1, 50},
        {192, 128, 1, 3, 99},   {64, 64, 1, 64, 200},  {64, 64, 4, 64, 640},  {128, 128, 2, 64, 150},
        {17, 33, 3, 5, 129},    {96, 96, 1, 7, 64},    {256, 256, 2, 33, 48}, {80, 80, 1, 64, 100},
        {5, 7, 1, 3, 15},       {64, 64, 64, 1, 100},  {64, 64, 71, 2, 90},
    };
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (int t = 0; t < (s % 2 ? 3 : TYPES); t++) { // half of them, for time's sake
            if (!wanted[t])
                continue;
            char name[100];
            snprintf(name, sizeof(name), "%s Dk %u Dv %u group %u rows %u keys %u", type_names[t],
                     shapes[s].k_dim, shapes[s].v_dim, shapes[s].group, shapes[s].rows, shapes[s].keys);
            struct data d = {.name = name,
                             .spec = spec_of(types[t], shapes[s].k_dim, shapes[s].v_dim, shapes[s].group),
                             .rows = shapes[s].rows,
                             .keys = shapes[s].keys,
                             .key_first = 0,
                             .q_first = shapes[s].keys > shapes[s].rows ? shapes[s].keys - shapes[s].rows : 0,
                             .visible = shapes[s].keys};
            data_make(&d, s * TYPES + (uint64_t)t);
            check_all_kernels(&d, NULL, "causal at the end");
            d.q_first = 1u << 30;
            check_all_kernels(&d, NULL, "sees all");
            d.q_first = 0;
            check_all_kernels(&d, NULL, "causal from 0");
            d.visible = shapes[s].keys / 2;
            d.q_first = shapes[s].keys / 2;
            check_all_kernels(&d, NULL, "half is visible");
            data_free(&d);
        }
    }
}

static void every_bend(void **state)
{
    (void)state;
    float slopes[MAX_GROUP], sinks[MAX_GROUP];
    for (int h = 0; h < MAX_GROUP; h++) {
        slopes[h] = powf(2, (float)-(h + 1));
        sinks[h] = (float)(h - 3);
    }
    static const struct {
        const char *name;
        float soft_cap;
        uint64_t window;
        bool alibi, sink;
        float scale;
    } bends[] = {
        {"soft cap 50", 50, 0, false, false, 0.3f}, {"soft cap 0.5", 0.5f, 0, false, false, 1},
        {"ALiBi", 0, 0, true, false, 0.1f},         {"ALiBi and cap", 30, 0, true, true, 0.1f},
        {"window 1", 0, 1, false, false, 0.1f},     {"window 16", 0, 16, false, false, 0.1f},
        {"window 100", 0, 100, true, true, 0.1f},   {"window 1000", 0, 1000, false, true, 0.1f},
        {"sinks", 0, 0, false, true, 0.1f},         {"negative scale", 0, 0, false, false, -0.1f},
        {"scale 0", 0, 40, false, false, 0},
    };
    const uint32_t rows[] = {1, 5, 64}, groups[] = {1, 4, 8};
    for (size_t b = 0; b < sizeof(bends) / sizeof(bends[0]); b++) {
        for (int shape = 0; shape < 3; shape++) {
            for (int t = 0; t < TYPES; t++) {
                if (!wanted[t])
                    continue;
                struct data d = {.name = bends[b].name,
                                 .spec = spec_of(types[t], 64, 64, groups[shape]),
                                 .rows = rows[shape],
                                 .keys = 400,
                                 .key_first = 1000,
                                 .q_first = 1336,
                                 .visible = 1400};
                d.spec.soft_cap = bends[b].soft_cap;
                d.spec.window = bends[b].window;
                d.spec.alibi = bends[b].alibi ? slopes : NULL;
                d.spec.scale = bends[b].scale;
                data_make(&d, b);
                check_all_kernels(&d, bends[b].sink ? sinks : NULL, type_names[t]);
                data_free(&d);
            }
        }
    }
}

static void adversarial_inputs(void **state)
{
    (void)state;
    static const struct {
        uint32_t keys, k_dim, v_dim, group, rows; // few and many rows take different paths
    } shapes[] = {
        {2, 128, 128, 1, 1},  {100, 128, 128, 1, 1},  {5000, 128, 128, 4, 1},  {65536, 32, 16, 1, 1},
        {2, 128, 128, 1, 17}, {100, 128, 128, 1, 17}, {5000, 128, 128, 1, 17}, {65536, 32, 16, 1, 17},
    };
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (int t = 0; t < TYPES; t++) {
            if (!wanted[t] || (shapes[s].keys > 5000 && t == 1))
                continue; // binary16 differs in the conversion alone
            if (shapes[s].keys > 5000 && shapes[s].rows > 1 && t > 2)
                continue; // types of one byte differ in the scales alone
            for (enum data_mode mode = 0; mode < DATA_MODES; mode++) {
                char name[80];
                snprintf(name, sizeof(name), "%s, %s, %u keys, %u rows, group %u", data_mode_name(mode),
                         type_names[t], shapes[s].keys, shapes[s].rows, shapes[s].group);
                struct data d = {.name = name,
                                 .spec = spec_of(types[t], shapes[s].k_dim, shapes[s].v_dim, shapes[s].group),
                                 .mode = mode,
                                 .rows = shapes[s].rows,
                                 .keys = shapes[s].keys,
                                 .q_first = 1u << 20,
                                 .visible = shapes[s].keys};
                data_make(&d, shapes[s].keys + mode);
                check_all_kernels(&d, NULL, "whole");
                data_free(&d);
            }
        }
    }
}

// Keys at positions 1000 .. 1399, rows up to 64 from 1336 on.
static void every_mask(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t window, mask_chunk, block_first, block_end, visible;
        bool not_causal, v_in_k;
    } masks[] = {
        {"chunks of 100", 0, 100, 0, 0, 1400, false, false},
        {"chunks of 16", 0, 16, 0, 0, 1400, false, false},
        {"chunks of 1", 0, 1, 0, 0, 1400, false, false},
        {"one chunk", 0, UINT64_MAX, 0, 0, 1400, false, false},
        {"chunks and a window", 30, 50, 0, 0, 1400, false, false},
        {"not causal", 0, 0, 0, 0, 1400, true, false},
        {"not causal, half visible", 0, 0, 0, 0, 1200, true, false},
        {"a block", 0, 0, 1337, 1390, 1400, false, false},
        {"a block of nearly all", 0, 0, 1001, 1399, 1400, false, false},
        {"a block past what is visible", 0, 0, 1339, 1500, 1395, false, false},
        {"a block and a window", 20, 0, 1310, 1370, 1400, false, false},
        {"a block and chunks", 0, 32, 1337, 1361, 1400, false, false},
        {"an empty block", 0, 0, 1350, 1340, 1400, false, false},
        {"a window past what is visible", 30, 0, 0, 0, 1306, false, false},
        {"values in keys", 0, 0, 0, 0, 1400, false, true},
        {"values in keys, a block and a window", 50, 0, 1337, 1390, 1400, false, true},
    };
    const uint32_t rows[] = {1, 5, 64}, groups[] = {1, 4, 8};
    for (size_t m = 0; m < sizeof(masks) / sizeof(masks[0]); m++) {
        for (int shape = 0; shape < 3; shape++) {
            for (int t = 0; t < TYPES; t++) {
                if (!wanted[t])
                    continue;
                struct data d = {.name = masks[m].name,
                                 .spec = spec_of(types[t], 96, 64, groups[shape]),
                                 .rows = rows[shape],
                                 .keys = 400,
                                 .key_first = 1000,
                                 .q_first = 1336,
                                 .visible = masks[m].visible,
                                 .block_first = masks[m].block_first,
                                 .block_end = masks[m].block_end};
                d.spec.window = masks[m].window;
                d.spec.mask_chunk = masks[m].mask_chunk;
                d.spec.not_causal = masks[m].not_causal;
                d.spec.v_in_k = masks[m].v_in_k;
                assert_null(kernels_spec_problem(&d.spec));
                data_make(&d, m);
                check_all_kernels(&d, NULL, type_names[t]);
                data_free(&d);
            }
        }
    }
}

// Multi-head latent attention as DeepSeek has it: few heads, a tile of them, two tiles.
static void latent_attention(void **state)
{
    (void)state;
    static const struct {
        uint32_t heads, rows;
    } shapes[] = {{8, 1}, {16, 1}, {16, 3}, {20, 1}, {128, 1}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (int t = 0; t < TYPES; t++) {
            if (!wanted[t])
                continue;
            struct data d = {.name = "latent attention",
                             .spec = spec_of(types[t], 576, 512, shapes[s].heads),
                             .rows = shapes[s].rows,
                             .keys = 150,
                             .q_first = 150 - shapes[s].rows,
                             .visible = 150};
            d.spec.v_in_k = true;
            data_make(&d, s);
            check_all_kernels(&d, NULL, type_names[t]);
            data_free(&d);
        }
    }
}

// Whether a row sees a key, by the words of kernels/attention.h and no interval.
static bool row_sees(const struct data *d, uint64_t p, uint64_t j)
{
    const struct kernels_spec *s = &d->spec;
    if (j >= d->visible)
        return false;
    bool in_block = p >= d->block_first && p < d->block_end;
    if (in_block && j >= d->block_first && j < d->block_end)
        return true;
    if (in_block && j > p)
        return s->not_causal;
    if (in_block && j >= d->block_first)
        return true;
    bool causal = s->not_causal || j <= p, window = s->window == 0 || j > p || p - j < s->window;
    bool chunk = s->mask_chunk == 0 || j / s->mask_chunk >= p / s->mask_chunk;
    return causal && window && chunk;
}

// A mask at random, of all kinds and sizes; edges are often at blocks' borders.
static void random_mask(struct data *d, struct data_random *r)
{
    uint64_t any = d->key_first + data_random_below(r, d->keys + 40);
    d->q_first = d->key_first + data_random_below(r, d->keys);
    d->visible = data_random_below(r, 3) ? d->q_first + d->rows : any;
    d->block_end = data_random_below(r, 2) ? 0 : any;
    d->block_first = any - data_random_below(r, 100);
    d->spec.not_causal = data_random_below(r, 4) == 0;
    if (d->spec.not_causal)
        return;
    d->spec.window = data_random_below(r, 2) ? 0 : 1 + data_random_below(r, 90);
    d->spec.mask_chunk = data_random_below(r, 2) ? 0 : 1 + data_random_below(r, 90);
}

// Random masks over random cuts: the interval is what its words say, and NaN in keys that no row sees, and in
// those that only the first or the last row sees, stays where it is.
static void random_masks(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 2, 7, 20, 64}, lengths[][4] = {{16, 48, 7, 64}, {256, 256, 256, 256}};
    struct data_random r = {11};
    for (int round = 0; round < 120; round++) {
        int t = round % TYPES;
        struct data d = {.name = "a random mask",
                         .spec = spec_of(types[t], 32, round % 2 ? 32 : 20, round % 3 ? 1 : 3),
                         .rows = rows[data_random_below(&r, 5)],
                         .keys = 200 + data_random_below(&r, 200),
                         .key_first = 496};
        d.spec.v_in_k = round % 7 == 0;
        random_mask(&d, &r);
        if (!wanted[t])
            continue;
        assert_null(kernels_spec_problem(&d.spec));
        data_make(&d, (uint64_t)round);
        struct kernels_job job = data_job(&d);
        struct kernels_mask mask = kernels_job_mask(&job);
        for (uint32_t j = 0; j < d.keys; j++) {
            uint32_t seen = 0;
            for (uint32_t i = 0; i < d.rows; i++) {
                struct kernels_interval x = kernels_row_interval(&mask, d.q_first + i);
                uint64_t key = d.key_first + j;
                assert_true(x.from <= x.to &&
                            (key >= x.from && key < x.to) == row_sees(&d, d.q_first + i, key));
                seen += key >= x.from && key < x.to;
            }
            bool spoilt = seen == 0 || (round % 4 == 0 && seen == 1 && d.rows > 1 && t < 3);
            for (uint32_t c = 0; spoilt && c < d.spec.k_dim; c++)
                d.k[j * d.spec.k_dim + c] = NAN;
            for (uint32_t c = 0; spoilt && c < d.spec.v_dim; c++)
                d.v[j * d.spec.v_dim + c] = INFINITY;
        }
        data_cut(&d, lengths[round % 2], 4);
        check_all_kernels(&d, NULL, type_names[t]);
        data_free(&d);
    }
}

// Ends of intervals do not fall from a row to the next: tiles take those of their first and last rows.
static void intervals_rise(void **state)
{
    (void)state;
    struct data_random r = {12};
    for (int round = 0; round < 2000; round++) {
        struct data d = {.keys = 300, .rows = 1, .key_first = 100};
        random_mask(&d, &r);
        struct kernels_job job = data_job(&d);
        struct kernels_mask mask = kernels_job_mask(&job);
        struct kernels_interval before = {0, 0};
        for (uint64_t p = 0; p < 600; p++) {
            struct kernels_interval x = kernels_row_interval(&mask, p);
            assert_true(x.from >= before.from && x.to >= before.to && x.to <= mask.visible);
            before = x;
        }
    }
    // The largest positions wrap nothing
    const struct kernels_mask all = {.visible = UINT64_MAX, .mask_chunk = UINT64_MAX};
    assert_true(kernels_row_interval(&all, UINT64_MAX).to == UINT64_MAX);
    assert_true(kernels_row_interval(&all, UINT64_MAX - 1).from == 0);
}

// A window that begins behind the end of a short run, in the same 16 keys: nothing of the run is seen.
static void windows_behind_short_runs(void **state)
{
    (void)state;
    const uint32_t lengths[] = {7, 50};
    for (int t = 0; t < TYPES; t++) {
        for (uint32_t rows = 1; rows <= 21 && wanted[t]; rows += 20) {
            struct data d = {.name = "behind a short run",
                             .spec = spec_of(types[t], 32, 32, 1),
                             .rows = rows,
                             .keys = 57,
                             .q_first = 40,
                             .visible = 57};
            d.spec.window = 31; // from position 10 on
            data_make(&d, 1);
            data_cut(&d, lengths, 2);
            check_all_kernels(&d, NULL, type_names[t]);
            data_free(&d);
        }
    }
}

// Any partition of the keys, merged, is the whole: random parts, some empty, out of order, in a chain and in
// a tree.
static void partition_invariance(void **state)
{
    (void)state;
    for (int round = 0; round < 24; round++) {
        struct data_random r = {42 + (uint64_t)round};
        if (!wanted[round % TYPES])
            continue;
        struct data d = {.name = data_mode_name((enum data_mode)(round % DATA_MODES)),
                         .spec = spec_of(types[round % TYPES], 64, 48, round % 2 ? 1 : 4),
                         .mode = (enum data_mode)(round % DATA_MODES),
                         .rows = round % 4 == 3 ? 20 : 1,
                         .keys = 1 + data_random_below(&r, 3000),
                         .key_first = 500,
                         .q_first = 500 + data_random_below(&r, 3000),
                         .visible = 500 + data_random_below(&r, 3500)};
        data_make(&d, (uint64_t)round);
        struct answer want = reference_of(&d, NULL);
        uint32_t lengths[16];
        for (int i = 0; i < 16; i++)
            lengths[i] = 1 + data_random_below(&r, round % 2 ? 50 : 600);
        data_cut(&d, lengths, 16);
        data_shuffle_runs(&d, (uint64_t)round);
        uint32_t parts = 1 + data_random_below(&r, 40);
        const struct kernels_attention *kernel;
        for (uint32_t i = 0; (kernel = next_kernel(&i));) {
            struct kernels_partial *p = calloc(parts, sizeof(*p));
            assert_non_null(p);
            for (uint32_t x = 0; x < parts; x++) { // more parts than runs: some see nothing
                uint32_t from = (uint32_t)((uint64_t)d.run_count * x / parts);
                uint32_t to = (uint32_t)((uint64_t)d.run_count * (x + 1) / parts);
                p[x] = data_partial(d.rows, d.spec.q_heads, d.spec.v_dim);
                struct kernels_job job = data_job(&d);
                job.runs = d.runs + from;
                job.run_count = to - from;
                job.out = p[x];
                data_run_kernel(kernel, &job);
            }
            struct kernels_partial chain = data_partial(d.rows, d.spec.q_heads, d.spec.v_dim);
            kernels_partial_reset(&chain);
            for (uint32_t x = 0; x < parts; x++)
                kernels_partial_merge(&chain, &p[x]);
            compare(&d, &want, &chain, NULL, i - 1, "chain of parts");
            for (uint32_t step = 1; step < parts; step *= 2) {
                for (uint32_t x = 0; x + step < parts; x += 2 * step)
                    kernels_partial_merge(&p[x], &p[x + step]);
            }
            compare(&d, &want, &p[0], NULL, i - 1, "tree of parts");
            data_partial_free(&chain);
            for (uint32_t x = 0; x < parts; x++)
                data_partial_free(&p[x]);
            free(p);
        }
        answer_free(&want);
        data_free(&d);
    }
}

// The rule of attention.h: cuts at multiples of 16 from a stretch's start leave every bit as it was.
static void bits_do_not_depend_on_cuts(void **state)
{
    (void)state;
    static const uint32_t cuts[][4] = {
        {16, 16, 16, 16}, {256, 256, 256, 256}, {16, 48, 1024, 32}, {64, 16, 16, 160}};
    static const struct {
        uint32_t k_dim, v_dim, group, rows;
    } shapes[] = {{64, 64, 1, 1}, {128, 128, 4, 1}, {80, 33, 3, 1}, {64, 64, 2, 40}, {17, 5, 1, 12}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (int t = 0; t < TYPES; t++) {
            if (!wanted[t])
                continue;
            struct data d = {.name = "cuts",
                             .spec = spec_of(types[t], shapes[s].k_dim, shapes[s].v_dim, shapes[s].group),
                             .rows = shapes[s].rows,
                             .keys = 2003,
                             .key_first = 7,
                             .q_first = 1100,
                             .visible = 1999};
            d.spec.window = s % 2 ? 900 : 0;
            data_make(&d, s);
            const struct kernels_attention *kernel;
            for (uint32_t i = 0; (kernel = next_kernel(&i));) {
                data_cut(&d, &d.keys, 1);
                struct kernels_partial whole = run_whole(&d, kernel);
                for (size_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); c++) {
                    data_cut(&d, cuts[c], 4);
                    struct kernels_partial p = run_whole(&d, kernel);
                    size_t n = (size_t)d.rows * d.spec.q_heads;
                    assert_memory_equal(p.m, whole.m, n * sizeof(float));
                    assert_memory_equal(p.s, whole.s, n * sizeof(float));
                    assert_memory_equal(p.o, whole.o, n * d.spec.v_dim * sizeof(float));
                    data_partial_free(&p);
                }
                data_partial_free(&whole);
            }
            data_free(&d);
        }
    }
}

// Chunks dealt round to two workers: each masks by the positions of its keys, not by their order in its
// memory.
static void trap_interleaved_chunks_mask_by_position(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        struct data d = {.name = "interleaved",
                         .spec = spec_of(KERNELS_KV_F32, 32, 32, 2),
                         .rows = wide ? 64 : 3,
                         .keys = 512,
                         .q_first = wide ? 300 : 333,
                         .visible = 512};
        data_make(&d, 5);
        struct answer want = reference_of(&d, NULL);
        const uint32_t page = 32;
        data_cut(&d, &page, 1);
        const struct kernels_attention *kernel;
        for (uint32_t i = 0; (kernel = next_kernel(&i));) {
            struct kernels_partial sum = data_partial(d.rows, 2, 32), part = data_partial(d.rows, 2, 32);
            kernels_partial_reset(&sum);
            for (uint32_t worker = 0; worker < 2; worker++) {
                struct kernels_run mine[8];
                for (uint32_t c = 0; c < 8; c++)
                    mine[c] = d.runs[2 * c + worker];
                struct kernels_job job = data_job(&d);
                job.runs = mine;
                job.run_count = 8;
                job.out = part;
                data_run_kernel(kernel, &job);
                kernels_partial_merge(&sum, &part);
            }
            compare(&d, &want, &sum, NULL, i - 1, "two workers");
            data_partial_free(&sum);
            data_partial_free(&part);
        }
        answer_free(&want);
        data_free(&d);
    }
}

// Keys that no row sees hold NaN, in the same blocks as keys that are seen: none of it may come out.
static void unseen_keys_do_not_leak(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        for (int t = 0; t < TYPES; t++) {
            if (!wanted[t])
                continue;
            struct data d = {.name = "NaN beyond what is visible",
                             .spec = spec_of(types[t], 64, 64, 2),
                             .rows = wide ? 16 : 1,
                             .keys = 300,
                             .q_first = wide ? 150 : 165,
                             .visible = 166};
            d.spec.window = 100;
            data_make(&d, 3);
            for (uint32_t j = 0; j < d.keys; j++) {
                if (j + d.spec.window <= d.q_first || j >= d.visible) {
                    for (uint32_t i = 0; i < 64; i++)
                        d.k[j * 64 + i] = d.v[j * 64 + i] = j % 2 ? NAN : INFINITY;
                }
            }
            data_cut(&d, &d.keys, 1);
            check_all_kernels(&d, NULL, type_names[t]);
            data_free(&d);
        }
    }
}

// Row by row: a key that the later rows see and the earlier do not holds NaN.
static void causal_rows_do_not_leak(void **state)
{
    (void)state;
    for (uint32_t rows = 2; rows <= 32; rows += 15) {
        struct data d = {.name = "NaN in the last key",
                         .spec = spec_of(KERNELS_KV_F32, 32, 32, 2),
                         .rows = rows,
                         .keys = 40,
                         .q_first = 40 - rows,
                         .visible = 40};
        data_make(&d, 3);
        for (uint32_t i = 0; i < 32; i++)
            d.k[39 * 32 + i] = d.v[39 * 32 + i] = NAN;
        data_cut(&d, &d.keys, 1);
        check_all_kernels(&d, NULL, "all rows");
        struct answer want = reference_of(&d, NULL);
        assert_true(isnan(want.o[(size_t)(rows - 1) * 2 * 32]) &&
                    isfinite(want.o[(size_t)(rows - 2) * 2 * 32]));
        answer_free(&want);
        data_free(&d);
    }
}

static void not_finite_flows_through(void **state)
{
    (void)state;
    const float values[] = {NAN, INFINITY, -INFINITY};
    for (int which = 0; which < 3; which++) { // in q, k, v
        for (int x = 0; x < 3; x++) {
            for (int wide = 0; wide < 2; wide++) {
                for (int t = 0; t < TYPES; t++) {
                    static const uint32_t some[] = {1, 50, 300}; // a block, and a whole panel
                    for (int n = 0; n < 3; n++) {
                        if (!wanted[t])
                            continue;
                        struct data d = {.name = which == 0   ? "not finite in q"
                                                 : which == 1 ? "not finite in k"
                                                              : "not finite in v",
                                         .spec = spec_of(types[t], 32, 32, 1),
                                         .rows = wide ? 12 : 2,
                                         .keys = some[n],
                                         .q_first = 1000,
                                         .visible = 1000};
                        data_make(&d, 9);
                        float *a = which == 0 ? d.q : which == 1 ? d.k : d.v;
                        a[5] = values[x]; // row 0 or key 0
                        data_cut(&d, &d.keys, 1);
                        check_all_kernels(&d, NULL, type_names[t]);
                        data_free(&d);
                    }
                }
            }
        }
    }
}

// A peer may send a NaN among fp8 codes under a scale that is none: in a key or a value, in a block or a
// panel.
static void nan_codes_flow_through(void **state)
{
    (void)state;
    static const uint32_t keys[] = {50, 300}, rows[] = {1, 2, 4, 20};
    for (int which = 0; which < 2 && wanted[4]; which++) {
        for (int n = 0; n < 2; n++) {
            for (int r = 0; r < 4; r++) {
                for (int at = 0; at < 2; at++) {
                    struct data d = {.name = which ? "NaN code in v" : "NaN code in k",
                                     .spec = spec_of(KERNELS_KV_FP8, 64, 64, 1),
                                     .rows = rows[r],
                                     .keys = keys[n],
                                     .q_first = 1000,
                                     .visible = 1000};
                    data_make(&d, 9);
                    uint8_t *code = (uint8_t *)(uintptr_t)(which ? d.runs[0].v : d.runs[0].k);
                    code[at ? 5 : 64 * 40 + 63] = at ? 0x7f : 0xff;
                    check_all_kernels(&d, NULL, "fp8");
                    struct answer want = reference_of(&d, NULL);
                    assert_true(isnan(want.o[at ? 5 : 63]));
                    answer_free(&want);
                    data_free(&d);
                }
            }
        }
    }
}

// Every logit is -inf: 0/0, as IEEE has it; and a value that is not finite under a weight of zero is NaN.
static void vanished_rows(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        for (int nan = 0; nan < 2; nan++) {
            struct data d = {.name = "all at -inf",
                             .spec = spec_of(KERNELS_KV_F32, 16, 16, 1),
                             .rows = wide ? 8 : 1,
                             .keys = 100,
                             .q_first = 200,
                             .visible = 1000};
            data_make(&d, 9);
            for (uint32_t i = 0; i < d.rows * 16; i++)
                d.q[i] = 1;
            for (uint32_t j = 0; j < d.keys; j++)
                d.k[j * 16] = -INFINITY;
            if (nan)
                d.v[3] = INFINITY;
            data_cut(&d, &d.keys, 1);
            const struct kernels_attention *kernel;
            for (uint32_t i = 0; (kernel = next_kernel(&i));) {
                struct kernels_partial p = run_whole(&d, kernel), mass = data_partial(d.rows, 1, 16);
                kernels_partial_reset(&mass);
                float o[8 * 16], lse[8];
                kernels_partial_finish(&p, NULL, o, lse);
                for (uint32_t c = 0; c < d.rows * 16; c++)
                    assert_true(isnan(o[c]));
                // beside a part with mass: weight zero, but zero times infinity is NaN and stays
                for (uint32_t r = 0; r < d.rows; r++) {
                    mass.m[r] = 1;
                    mass.s[r] = 1;
                }
                kernels_partial_merge(&mass, &p);
                kernels_partial_finish(&mass, NULL, o, lse);
                assert_true(nan ? isnan(o[3]) : o[3] == 0);
                data_partial_free(&p);
                data_partial_free(&mass);
            }
            data_free(&d);
        }
    }
}

static void no_keys_is_the_identity(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 64; rows += 63) {
        struct data d = {
            .name = "nothing", .spec = spec_of(KERNELS_KV_BF16, 64, 64, 4), .rows = rows, .keys = 64};
        d.key_first = 100;
        d.visible = 100; // and with runs, none of which is seen
        d.q_first = 1000;
        data_make(&d, 1);
        const struct kernels_attention *kernel;
        for (uint32_t i = 0; (kernel = next_kernel(&i));) {
            for (uint32_t runs = 0; runs <= d.run_count; runs++) {
                struct kernels_partial p = data_partial(rows, 4, 64);
                struct kernels_job job = data_job(&d);
                job.run_count = runs;
                job.out = p;
                data_run_kernel(kernel, &job);
                for (uint32_t r = 0; r < rows * 4; r++)
                    assert_true(p.m[r] == -INFINITY && p.s[r] == 0 && !signbit(p.s[r]));
                for (uint32_t c = 0; c < rows * 4 * 64; c++)
                    assert_true(p.o[c] == 0);
                data_partial_free(&p);
            }
        }
        data_free(&d);
    }
}

static void largest_logit_is_m(void **state)
{
    (void)state;
    struct data d = {.name = "m", .spec = spec_of(KERNELS_KV_F32, 64, 64, 2), .rows = 9, .keys = 1000};
    d.mode = DATA_ASCENDING;
    d.q_first = 5000;
    d.visible = 5000;
    data_make(&d, 4);
    const struct kernels_attention *kernel;
    for (uint32_t i = 0; (kernel = next_kernel(&i));) {
        struct kernels_partial p = run_whole(&d, kernel);
        for (uint32_t r = 0; r < 18; r++) {
            double most = -INFINITY;
            for (uint32_t j = 0; j < d.keys; j++) {
                double x = 0;
                for (uint32_t c = 0; c < 64; c++)
                    x += (double)d.q[r * 64 + c] * d.k[j * 64 + c];
                most = fmax(most, x * d.spec.scale);
            }
            assert_true(fabs(p.m[r] - most) <= 2e-6 * most);
        }
        data_partial_free(&p);
    }
    data_free(&d);
}

static void the_registry(void **state)
{
    (void)state;
    struct kernels_spec spec = spec_of(KERNELS_KV_BF16, 64, 64, 4);
    unsetenv("BANYAN_KERNEL");
    const struct kernels_attention *best = kernels_attention_default(&spec);
    assert_non_null(best);
    assert_non_null(kernels_attention_find("portable"));
    assert_null(kernels_attention_find("none such"));
    assert_null(kernels_attention_at(kernels_attention_count()));
    for (uint32_t i = 0; i < kernels_attention_count(); i++) {
        const struct kernels_attention *k = kernels_attention_at(i);
        assert_non_null(k->run);
        assert_true(k->rank <= best->rank || !kernels_attention_usable(k));
        for (uint32_t j = 0; j < i; j++) {
            assert_string_not_equal(k->name, kernels_attention_at(j)->name);
            assert_true(kernels_attention_digest(k) != kernels_attention_digest(kernels_attention_at(j)));
        }
    }
    setenv("BANYAN_KERNEL", "reference", 1);
    assert_string_equal(kernels_attention_default(&spec)->name, "reference");
    setenv("BANYAN_KERNEL", "none such", 1);
    assert_null(kernels_attention_default(&spec));
    unsetenv("BANYAN_KERNEL");
    spec.kv_type = KERNELS_KV_FP8;
    assert_non_null(kernels_attention_default(&spec));
}

static void bad_specs_are_named(void **state)
{
    (void)state;
    struct kernels_spec good = spec_of(KERNELS_KV_F16, 64, 64, 4), s;
    float slope[4] = {0, 0, INFINITY, 0}, last[4] = {0, 0, 0, NAN}, none[4] = {0};
    assert_null(kernels_spec_problem(&good));
#define BAD(field, value)                                                                                    \
    s = good;                                                                                                \
    s.field = value;                                                                                         \
    assert_non_null(kernels_spec_problem(&s))
    BAD(kv_type, (enum kernels_kv_type)0);
    BAD(kv_type, (enum kernels_kv_type)99);
    BAD(k_dim, 0);
    BAD(k_dim, 65536);
    BAD(v_dim, 0);
    BAD(v_dim, UINT32_MAX);
    BAD(q_heads, 0);
    BAD(kv_heads, 0);
    BAD(kv_heads, 3);
    BAD(scale, NAN);
    BAD(scale, INFINITY);
    BAD(soft_cap, -1);
    BAD(soft_cap, NAN);
    BAD(alibi, slope);
    BAD(alibi, last);
    good.not_causal = good.v_in_k = true;
    assert_null(kernels_spec_problem(&good));
    BAD(window, 1);
    BAD(mask_chunk, 1);
    BAD(alibi, none);
    BAD(v_dim, 65);
#undef BAD
}

static int report(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < kernels_attention_count(); i++) {
        const struct kernels_attention *k = kernels_attention_at(i);
        if (kernels_attention_usable(k))
            printf("%-16s largest error / bound: o %.3f (%s), lse %.3f\n", k->name, worst_o[i], worst_case[i],
                   worst_lse[i]);
        else
            printf("%-16s skipped: this CPU cannot run it\n", k->name);
    }
    return 0;
}

// Arguments: the KV types to run over, so that they can run side by side; none = all. What has a type of its
// own runs with f32.
int main(int argc, char **argv)
{
    for (int t = 0; t < TYPES; t++)
        wanted[t] = argc == 1;
    for (int i = 1; i < argc; i++) {
        int t = 0;
        while (t < TYPES && strcmp(argv[i], type_names[t]))
            t++;
        if (t == TYPES) {
            fprintf(stderr, "'%s' is no KV type\n", argv[i]);
            return 2;
        }
        wanted[t] = true;
    }
    const struct CMUnitTest by_type[] = {
        cmocka_unit_test(every_shape),
        cmocka_unit_test(every_bend),
        cmocka_unit_test(every_mask),
        cmocka_unit_test(latent_attention),
        cmocka_unit_test(random_masks),
        cmocka_unit_test(windows_behind_short_runs),
        cmocka_unit_test(adversarial_inputs),
        cmocka_unit_test(partition_invariance),
        cmocka_unit_test(bits_do_not_depend_on_cuts),
        cmocka_unit_test(unseen_keys_do_not_leak),
        cmocka_unit_test(not_finite_flows_through),
        cmocka_unit_test(nan_codes_flow_through),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test(trap_interleaved_chunks_mask_by_position),
        cmocka_unit_test(causal_rows_do_not_leak),
        cmocka_unit_test(intervals_rise),
        cmocka_unit_test(vanished_rows),
        cmocka_unit_test(no_keys_is_the_identity),
        cmocka_unit_test(largest_logit_is_m),
        cmocka_unit_test(the_registry),
        cmocka_unit_test(bad_specs_are_named),
    };
    int failed = cmocka_run_group_tests(by_type, NULL, report);
    return failed + (wanted[0] ? cmocka_run_group_tests(others, NULL, NULL) : 0);
}
