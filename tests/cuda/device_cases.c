// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor/float16.h"
#include "tests/common/sanitized.h"
#include "tests/cuda/device_harness.h"

static const enum kernels_kv_type types[] = {KERNELS_KV_F32, KERNELS_KV_F16, KERNELS_KV_BF16, KERNELS_KV_INT8,
                                             KERNELS_KV_FP8};
static const char *const type_names[] = {"f32", "f16", "bf16", "int8", "fp8"};
#define TYPES 5
static const uint32_t in_one_run[] = {UINT32_MAX};

static struct kernels_spec spec_of(enum kernels_kv_type type, uint32_t k_dim, uint32_t v_dim, uint32_t group)
{
    return (struct kernels_spec){.kv_type = type,
                                 .k_dim = k_dim,
                                 .v_dim = v_dim,
                                 .q_heads = group,
                                 .kv_heads = 1,
                                 .scale = (float)(1 / sqrt(k_dim))};
}

// Masters alone: their encoding is the harness's.
static void make(struct data *d, uint64_t seed)
{
    enum kernels_kv_type type = d->spec.kv_type;
    d->spec.kv_type = KERNELS_KV_F32;
    data_make(d, seed);
    data_uncut(d);
    d->spec.kv_type = type;
}

static void check(const struct placed *p, const char *what)
{
    struct kernels_device_item item = harness_item(p);
    struct common_error err;
    if (harness_run(&item, 1, &err) != COMMON_OK)
        fail_msg("%s: %s", what, err.message);
    harness_judge(p, &item.out, what);
    harness_item_free(&item);
}

static void check_data(const struct data *d, const char *what)
{
    static uint32_t nth;
    if (nth++ % SANITIZED(1, 4, 4))
        return;
    struct placed p = harness_place(d, 1, in_one_run, 1);
    check(&p, what);
    harness_remove(&p);
}

void cases_every_shape(void **state)
{
    (void)state;
    static const struct {
        uint32_t k_dim, v_dim, group, rows, keys;
    } shapes[] = {
        {64, 64, 1, 1, 1},     {64, 64, 4, 1, 300},   {64, 64, 8, 2, 77},    {64, 64, 4, 20, 150},
        {128, 128, 4, 1, 520}, {128, 128, 3, 4, 100}, {128, 128, 2, 33, 90}, {256, 256, 8, 1, 129},
        {256, 256, 16, 1, 65}, {256, 256, 5, 9, 48},  {64, 64, 71, 2, 90},   {80, 80, 5, 1, 133},
        {1, 1, 1, 1, 100},     {3, 5, 2, 3, 40},      {576, 512, 8, 1, 50},  {1024, 1000, 1, 2, 40},
        {128, 64, 2, 1, 65},   {64, 64, 4, 7, 120},   {128, 128, 8, 3, 70},  {128, 128, 8, 4, 33},
    };
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (int t = 0; t < TYPES; t++) {
            char name[100];
            snprintf(name, sizeof(name), "%s Dk %u Dv %u group %u rows %u keys %u", type_names[t],
                     shapes[s].k_dim, shapes[s].v_dim, shapes[s].group, shapes[s].rows, shapes[s].keys);
            struct data d = {.name = name,
                             .spec = spec_of(types[t], shapes[s].k_dim, shapes[s].v_dim, shapes[s].group),
                             .rows = shapes[s].rows,
                             .keys = shapes[s].keys,
                             .q_first = shapes[s].keys > shapes[s].rows ? shapes[s].keys - shapes[s].rows : 0,
                             .visible = shapes[s].keys};
            make(&d, s * TYPES + (uint64_t)t);
            check_data(&d, "causal at the end");
            d.q_first = 0;
            check_data(&d, "causal from 0");
            d.visible = shapes[s].keys / 2;
            d.q_first = 1u << 30;
            check_data(&d, "half is visible");
            data_free(&d);
        }
    }
}

void cases_every_bend(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        float soft_cap;
        uint64_t window;
        bool alibi;
        float scale;
    } bends[] = {
        {"soft cap 50", 50, 0, false, 0.3f}, {"soft cap 0.5", 0.5f, 0, false, 1},
        {"ALiBi", 0, 0, true, 0.1f},         {"ALiBi and cap", 30, 0, true, 0.1f},
        {"window 1", 0, 1, false, 0.1f},     {"window 16", 0, 16, false, 0.1f},
        {"window 100", 0, 100, true, 0.1f},  {"negative scale", 0, 0, false, -0.1f},
        {"scale 0", 0, 40, false, 0},
    };
    static const uint32_t rows[] = {1, 3, 20}, groups[] = {4, 5, 2}, dims[] = {64, 128, 40};
    float slopes[8];
    for (int h = 0; h < 8; h++)
        slopes[h] = powf(2, (float)-(h + 1));
    for (size_t b = 0; b < sizeof(bends) / sizeof(bends[0]); b++) {
        for (int shape = 0; shape < 3; shape++) {
            struct data d = {.name = bends[b].name,
                             .spec = spec_of(types[(b + (size_t)shape) % TYPES], dims[shape], dims[shape],
                                             groups[shape]),
                             .rows = rows[shape],
                             .keys = 300,
                             .key_first = 1000,
                             .q_first = 1276,
                             .visible = 1296};
            d.spec.soft_cap = bends[b].soft_cap;
            d.spec.window = bends[b].window;
            d.spec.alibi = bends[b].alibi ? slopes : NULL;
            d.spec.scale = bends[b].scale;
            make(&d, b);
            check_data(&d, type_names[(b + (size_t)shape) % TYPES]);
            data_free(&d);
        }
    }
}

// Keys at positions 1000 .. 1299; one row, few and many, in tensor cores' shapes and in plain ones.
void cases_every_mask(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t window, mask_chunk, block_first, block_end, visible;
        bool not_causal, v_in_k;
    } masks[] = {
        {"chunks of 100", 0, 100, 0, 0, 1300, false, false},
        {"chunks of 16 and a window", 10, 16, 0, 0, 1300, false, false},
        {"not causal", 0, 0, 0, 0, 1290, true, false},
        {"a block", 0, 0, 1277, 1290, 1300, false, false},
        {"a block and a window", 20, 0, 1230, 1285, 1300, false, false},
        {"a block and chunks, past what is visible", 0, 32, 1277, 1350, 1295, false, false},
        {"a window past what is visible", 30, 0, 0, 0, 1246, false, false},
        {"values in keys", 0, 0, 0, 0, 1300, false, true},
        {"values in keys, chunks and a block", 0, 50, 1277, 1290, 1300, false, true},
    };
    static const uint32_t rows[] = {1, 3, 20}, groups[] = {4, 5, 2}, k_dims[] = {64, 128, 40},
                          v_dims[] = {64, 128, 24};
    for (size_t m = 0; m < sizeof(masks) / sizeof(masks[0]); m++) {
        for (int shape = 0; shape < 3; shape++) {
            for (int t = 0; t < TYPES; t += shape ? 3 : 1) {
                size_t type = (m + (size_t)(shape + t)) % TYPES;
                struct data d = {.name = masks[m].name,
                                 .spec = spec_of(types[type], k_dims[shape], v_dims[shape], groups[shape]),
                                 .rows = rows[shape],
                                 .keys = 300,
                                 .key_first = 1000,
                                 .q_first = 1276,
                                 .visible = masks[m].visible,
                                 .block_first = masks[m].block_first,
                                 .block_end = masks[m].block_end};
                d.spec.window = masks[m].window;
                d.spec.mask_chunk = masks[m].mask_chunk;
                d.spec.not_causal = masks[m].not_causal;
                d.spec.v_in_k = masks[m].v_in_k;
                make(&d, m);
                check_data(&d, type_names[type]);
                data_free(&d);
            }
        }
    }
}

void cases_adversarial_inputs(void **state)
{
    (void)state;
    static const uint32_t keys[] = {2, 100, 3000};
    for (enum data_mode mode = 0; mode < DATA_MODES; mode++) {
        for (int t = 0; t < TYPES; t++) {
            for (int n = 0; n < 3; n++) {
                char name[80];
                snprintf(name, sizeof(name), "%s, %s, %u keys", data_mode_name(mode), type_names[t], keys[n]);
                struct data d = {.name = name,
                                 .spec = spec_of(types[t], n == 1 ? 128 : 64, n == 1 ? 128 : 64, 1),
                                 .mode = mode,
                                 .rows = n == 1 ? 9 : 1,
                                 .keys = keys[n],
                                 .q_first = 1u << 20,
                                 .visible = keys[n]};
                make(&d, keys[n] + mode);
                check_data(&d, "whole");
                data_free(&d);
            }
        }
    }
    // Long sums, where errors of one sign would pile up
    static const enum data_mode long_modes[] = {DATA_EQUAL, DATA_SMALL_RISE, DATA_NEAR_TIES};
    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < TYPES; t++) {
            struct data d = {.name = data_mode_name(long_modes[i]),
                             .spec = spec_of(types[t], 64, 64, 1),
                             .mode = long_modes[i],
                             .rows = 1,
                             .keys = 8000,
                             .q_first = 1u << 20,
                             .visible = 8000};
            make(&d, (uint64_t)i);
            check_data(&d, type_names[t]);
            data_free(&d);
        }
    }
}

void cases_runs_in_any_order(void **state)
{
    (void)state;
    struct data_random r = {42};
    for (int round = 0; round < 15; round++) {
        struct data d = {.name = data_mode_name((enum data_mode)(round % DATA_MODES)),
                         .spec = spec_of(types[round % TYPES], round % 3 ? 64 : 128, round % 3 ? 64 : 128,
                                         round % 2 ? 1 : 4),
                         .mode = (enum data_mode)(round % DATA_MODES),
                         .rows = round % 4 == 3 ? 20 : 1,
                         .keys = 1 + data_random_below(&r, 700),
                         .key_first = 500,
                         .q_first = 500 + data_random_below(&r, 700),
                         .visible = 500 + data_random_below(&r, 900)};
        make(&d, (uint64_t)round);
        uint32_t lengths[16];
        for (int i = 0; i < 16; i++)
            lengths[i] = 1 + data_random_below(&r, round % 2 ? 40 : 300);
        struct placed p = harness_place(&d, 1, lengths, 16);
        harness_shuffle(&p, (uint64_t)round);
        check(&p, "shuffled");
        harness_remove(&p);
        data_free(&d);
    }
}

void cases_several_heads(void **state)
{
    (void)state;
    static const uint32_t pages[] = {256, 16, 16, 9};
    for (int t = 0; t < TYPES; t++) {
        struct data d[3];
        for (int h = 0; h < 3; h++) {
            d[h] = (struct data){.name = "three KV heads",
                                 .spec = spec_of(types[t], 64, 64, 2),
                                 .rows = 6,
                                 .keys = 297,
                                 .key_first = 512,
                                 .q_first = 800,
                                 .visible = 806};
            make(&d[h], (uint64_t)(t * 3 + h));
        }
        struct placed p = harness_place(d, 3, pages, 4);
        check(&p, type_names[t]);
        harness_remove(&p);
        for (int h = 0; h < 3; h++)
            data_free(&d[h]);
    }
}

static void same_bits(const struct kernels_partial *a, const struct kernels_partial *b)
{
    size_t n = (size_t)a->rows * a->heads;
    assert_memory_equal(a->m, b->m, n * sizeof(float));
    assert_memory_equal(a->s, b->s, n * sizeof(float));
    assert_memory_equal(a->o, b->o, n * a->dv * sizeof(float));
}

void cases_bits_do_not_depend_on_cuts(void **state)
{
    (void)state;
    static const uint32_t cuts[][4] = {
        {16, 16, 16, 16}, {256, 256, 256, 256}, {16, 48, 320, 32}, {64, 16, 16, 160}};
    static const struct {
        uint32_t dim, group, rows;
    } shapes[] = {{64, 1, 1}, {128, 4, 3}, {33, 3, 1}, {64, 2, 20}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (int t = 0; t < TYPES; t += s ? 2 : 1) {
            struct data d = {.name = "cuts",
                             .spec = spec_of(types[t], shapes[s].dim, shapes[s].dim, shapes[s].group),
                             .rows = shapes[s].rows,
                             .keys = 1003,
                             .key_first = 7,
                             .q_first = 900,
                             .visible = 999};
            d.spec.window = s % 2 ? 700 : 0;
            make(&d, s);
            struct placed p = harness_place(&d, 1, in_one_run, 1);
            struct kernels_device_item whole = harness_item(&p);
            assert_int_equal(harness_run(&whole, 1, NULL), COMMON_OK);
            for (size_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); c++) {
                harness_cut(&p, cuts[c], 4);
                struct kernels_device_item item = harness_item(&p);
                assert_int_equal(harness_run(&item, 1, NULL), COMMON_OK);
                same_bits(&whole.out, &item.out);
                harness_item_free(&item);
            }
            harness_item_free(&whole);
            harness_remove(&p);
            data_free(&d);
        }
    }
}

// Alone, among others, at another place among them, again as a graph: the same bits.
void cases_bits_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    enum { N = 7 };
    struct data d[N];
    struct placed p[N];
    struct kernels_device_item alone[N], together[N];
    for (int i = 0; i < N; i++) {
        d[i] = (struct data){.name = "together",
                             .spec = spec_of(types[i % TYPES], i == 5 ? 128 : 64, i == 5 ? 128 : 64,
                                             1 + (uint32_t)i),
                             .rows = 1 + (uint32_t)i % 3,
                             .keys = 50 + 60 * (uint32_t)i,
                             .q_first = 1000,
                             .visible = 1000};
        make(&d[i], (uint64_t)i);
        p[i] = harness_place(&d[i], 1, in_one_run, 1);
        alone[i] = harness_item(&p[i]);
        assert_int_equal(harness_run(&alone[i], 1, NULL), COMMON_OK);
        harness_judge(&p[i], &alone[i].out, "alone");
    }
    for (int round = 0; round < 4; round++) { // the shape of rounds 2 and 3 is a graph's
        for (int i = 0; i < N; i++)
            together[i] = harness_item(&p[round == 1 ? N - 1 - i : i]);
        assert_int_equal(harness_run(together, N, NULL), COMMON_OK);
        for (int i = 0; i < N; i++) {
            same_bits(&alone[round == 1 ? N - 1 - i : i].out, &together[i].out);
            harness_item_free(&together[i]);
        }
    }
    for (int i = 0; i < N; i++) {
        harness_item_free(&alone[i]);
        harness_remove(&p[i]);
        data_free(&d[i]);
    }
}

// Wide tiles leave out the products with parts of q that are zeros: the same bits as beside a row that has
// them.
void cases_bits_of_short_queries(void **state)
{
    (void)state;
    static const struct {
        uint32_t dim, group, rows;
    } shapes[] = {{64, 2, 20}, {128, 4, 20}, {256, 4, 5}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (int t = 0; t < TYPES; t++) {
            struct data d = {.name = "queries of bfloat16",
                             .spec = spec_of(types[t], shapes[s].dim, shapes[s].dim, shapes[s].group),
                             .rows = shapes[s].rows,
                             .keys = 200,
                             .q_first = 1000,
                             .visible = 200};
            make(&d, s);
            uint64_t row = (uint64_t)shapes[s].group * shapes[s].dim, all = row * d.rows;
            for (uint64_t i = 0; i < all; i++)
                d.q[i] = common_bf16_to_float(common_bf16_from_float(d.q[i]));
            d.q[3] = -0.0f;
            struct placed p = harness_place(&d, 1, in_one_run, 1);
            struct kernels_device_item brief = harness_item(&p);
            assert_int_equal(harness_run(&brief, 1, NULL), COMMON_OK);
            harness_judge(&p, &brief.out, type_names[t]);
            d.q[all - 1] += 1e-5f; // of the last row
            struct kernels_device_item full = harness_item(&p);
            assert_int_equal(harness_run(&full, 1, NULL), COMMON_OK);
            harness_judge(&p, &full.out, type_names[t]);
            uint64_t heads = (uint64_t)(d.rows - 1) * shapes[s].group;
            assert_memory_equal(brief.out.m, full.out.m, heads * sizeof(float));
            assert_memory_equal(brief.out.s, full.out.s, heads * sizeof(float));
            assert_memory_equal(brief.out.o, full.out.o, heads * shapes[s].dim * sizeof(float));
            harness_item_free(&brief);
            harness_item_free(&full);
            harness_remove(&p);
            data_free(&d);
        }
    }
}

void cases_unseen_keys_do_not_leak(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 21; rows += 10) {
        for (int t = 0; t < TYPES; t++) {
            struct data d = {.name = "NaN beyond what is visible",
                             .spec = spec_of(types[t], 64, 64, 2),
                             .rows = rows,
                             .keys = 300,
                             .q_first = 166 - rows,
                             .visible = 166};
            d.spec.window = 100;
            make(&d, 3);
            for (uint32_t j = 0; j < d.keys; j++) {
                if (j + d.spec.window <= d.q_first || j >= d.visible) {
                    for (uint32_t i = 0; i < 64; i++)
                        d.k[j * 64 + i] = d.v[j * 64 + i] = j % 2 ? NAN : INFINITY;
                }
            }
            check_data(&d, type_names[t]);
            // And row by row: the last key is seen by the last row alone
            for (uint32_t i = 0; i < 64; i++)
                d.k[165 * 64 + i] = d.v[165 * 64 + i] = NAN;
            check_data(&d, type_names[t]);
            data_free(&d);
        }
    }
}

void cases_not_finite_flows_through(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    static const char *const names[] = {"not finite in q", "not finite in k", "not finite in v"};
    for (int which = 0; which < 3; which++) {
        for (int x = 0; x < 3; x++) {
            for (int t = 0; t < TYPES; t++) {
                for (int shape = 0; shape < 3; shape++) {
                    struct data d = {.name = names[which],
                                     .spec = spec_of(types[t], 64, 64, 1),
                                     .rows = shape == 2 ? 20 : 2,
                                     .keys = shape == 0 ? 1 : 50,
                                     .q_first = 100,
                                     .visible = 1000};
                    make(&d, 9);
                    float *a = which == 0 ? d.q : which == 1 ? d.k : d.v;
                    a[5] = values[x];               // row 0 or key 0
                    if (shape == 1 && which == 0) { // q of few bits: parts of zero beside an infinity of K
                        for (uint32_t i = 0; i < 64; i++)
                            d.q[i] = i % 2 ? 1 : -2;
                        d.k[7] = values[x];
                    }
                    char what[60];
                    snprintf(what, sizeof(what), "%s, %g, shape %d", type_names[t], values[x], shape);
                    check_data(&d, what);
                    data_free(&d);
                }
            }
        }
    }
}

void cases_vanished_rows(void **state)
{
    (void)state;
    static const uint32_t dims[] = {16, 64};
    static const enum kernels_kv_type kinds[] = {KERNELS_KV_F32, KERNELS_KV_F16, KERNELS_KV_BF16};
    for (int i = 0; i < 12; i++) {
        uint32_t dim = dims[i / 3 % 2];
        bool nan = i >= 6;
        struct data d = {.name = "all at -inf",
                         .spec = spec_of(kinds[i % 3], dim, dim, 1),
                         .rows = 2,
                         .keys = 100,
                         .q_first = 200,
                         .visible = 1000};
        make(&d, 9);
        for (uint32_t j = 0; j < d.rows * dim; j++)
            d.q[j] = 1;
        for (uint32_t j = 0; j < d.keys; j++)
            d.k[j * dim] = -INFINITY;
        if (nan)
            d.v[3] = INFINITY;
        struct placed p = harness_place(&d, 1, in_one_run, 1);
        struct kernels_device_item item = harness_item(&p);
        assert_int_equal(harness_run(&item, 1, NULL), COMMON_OK);
        for (uint32_t row = 0; row < d.rows; row++) {
            assert_true(item.out.m[row] == -INFINITY || isnan(item.out.m[row]) || nan);
            assert_true(nan ? isnan(item.out.s[row]) : item.out.s[row] == 0 && signbit(item.out.s[row]));
        }
        harness_item_free(&item);
        harness_remove(&p);
        data_free(&d);
    }
}

void cases_no_keys_is_the_identity(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 20; rows += 19) {
        struct data d = {.name = "nothing",
                         .spec = spec_of(KERNELS_KV_BF16, 64, 64, 4),
                         .rows = rows,
                         .keys = 64,
                         .key_first = 100,
                         .q_first = 1000,
                         .visible = 100};
        make(&d, 1);
        struct placed p = harness_place(&d, 1, in_one_run, 1);
        for (uint32_t runs = 0; runs <= p.run_count; runs++) {
            struct kernels_device_item item = harness_item(&p);
            item.run_count = runs;
            assert_int_equal(harness_run(&item, 1, NULL), COMMON_OK);
            for (uint32_t i = 0; i < rows * 4; i++)
                assert_true(item.out.m[i] == -INFINITY && item.out.s[i] == 0 && !signbit(item.out.s[i]));
            for (uint32_t i = 0; i < rows * 4 * 64; i++)
                assert_true(item.out.o[i] == 0);
            harness_item_free(&item);
        }
        harness_remove(&p);
        data_free(&d);
    }
}

// Scales that differ by much between neighbours, tiny, huge and zero ones; and queries of any size.
void cases_scales_of_any_size(void **state)
{
    (void)state;
    static const float sizes[] = {1e-30f, 1e-12f, 1, 1e6f, 1e18f, 1e30f};
    for (int i = 0; i < 12; i++) {
        for (int t = 0; t < TYPES; t++) {
            bool scaled = types[t] == KERNELS_KV_INT8 || types[t] == KERNELS_KV_FP8;
            struct data d = {.name = "scales",
                             .spec = spec_of(types[t], 64, 64, 2),
                             .rows = i % 2 ? 6 : 1,
                             .keys = 100,
                             .q_first = 1000,
                             .visible = 1000};
            make(&d, (uint64_t)i);
            float q = sizes[i / 2];
            d.spec.scale /= q;
            for (uint32_t j = 0; j < d.rows * 2 * 64; j++)
                d.q[j] *= q;
            for (uint32_t j = 0; scaled && j < d.keys; j++) {
                for (uint32_t c = 0; c < 64; c++)
                    d.v[j * 64 + c] *= i < 6 ? sizes[(j + (uint32_t)i) % 4] : j % 3 ? sizes[i / 2] : 0;
            }
            check_data(&d, type_names[t]);
            data_free(&d);
        }
    }
    // float32 up to its ends: all keys, all values, or a single element of each
    static const float ends[] = {1e-42f, 1e-37f, 1e-33f, 1e-20f, 1e20f, 1e35f};
    for (int i = 0; i < 18; i++) {
        for (uint32_t rows = 1; rows <= 20; rows += 19) {
            float x = ends[i / 3], back = i / 3 == 0 ? 1e37f : 1 / x;
            struct data d = {.name = "float32 of any size",
                             .spec = spec_of(KERNELS_KV_F32, 64, 64, 2),
                             .rows = rows,
                             .keys = 100,
                             .q_first = 1000,
                             .visible = 1000};
            make(&d, (uint64_t)i);
            for (uint32_t j = 0; j < d.keys * 64; j++) {
                if (i % 3 == 0)
                    d.k[j] *= x;
                else if (i % 3 == 1)
                    d.v[j] *= fmaxf(x, 1e-37f); // an o of 1e-42 has three digits
                else if (x < 1 && j == 7 * 64 + 3)
                    d.k[j] = d.v[j] = x * 0.7f;
            }
            for (uint32_t j = 0; i % 3 == 0 && j < rows * 2 * 64; j++)
                d.q[j] *= back;
            if (i == 0)
                d.spec.scale *= 1e5f;
            char what[60];
            snprintf(what, sizeof(what), "%g, part %d, %u rows", (double)x, i % 3, rows);
            check_data(&d, what);
            data_free(&d);
        }
    }
}
