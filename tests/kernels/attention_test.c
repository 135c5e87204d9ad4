// SPDX-License-Identifier: Apache-2.0
// One suite over every registered kernel, against the float64 reference: shapes, bends, cuts; masks are in
// attention_masks.c, strange numbers in attention_numbers.c. Prints the largest error of each kernel as a
// fraction of the promised bound.
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
#include "tests/kernels/attention_suite.h"

#define MAX_GROUP 8

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
        for (int t = 0; t < (s % 2 ? 3 : SUITE_TYPES); t++) { // half of them, for time's sake
            if (!suite_wanted[t])
                continue;
            char name[100];
            snprintf(name, sizeof(name), "%s Dk %u Dv %u group %u rows %u keys %u", suite_type_names[t],
                     shapes[s].k_dim, shapes[s].v_dim, shapes[s].group, shapes[s].rows, shapes[s].keys);
            struct data d = {.name = name,
                             .spec = suite_spec(suite_types[t], shapes[s].k_dim, shapes[s].v_dim,
                                                shapes[s].group),
                             .rows = shapes[s].rows,
                             .keys = shapes[s].keys,
                             .key_first = 0,
                             .q_first = shapes[s].keys > shapes[s].rows ? shapes[s].keys - shapes[s].rows : 0,
                             .visible = shapes[s].keys};
            data_make(&d, s * SUITE_TYPES + (uint64_t)t);
            suite_check(&d, NULL, "causal at the end");
            d.q_first = 1u << 30;
            suite_check(&d, NULL, "sees all");
            d.q_first = 0;
            suite_check(&d, NULL, "causal from 0");
            d.visible = shapes[s].keys / 2;
            d.q_first = shapes[s].keys / 2;
            suite_check(&d, NULL, "half is visible");
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
            for (int t = 0; t < SUITE_TYPES; t++) {
                if (!suite_wanted[t])
                    continue;
                struct data d = {.name = bends[b].name,
                                 .spec = suite_spec(suite_types[t], 64, 64, groups[shape]),
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
                suite_check(&d, bends[b].sink ? sinks : NULL, suite_type_names[t]);
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
        for (int t = 0; t < SUITE_TYPES; t++) {
            if (!suite_wanted[t] || (shapes[s].keys > 5000 && t == 1))
                continue; // binary16 differs in the conversion alone
            if (shapes[s].keys > 5000 && shapes[s].rows > 1 && t > 2)
                continue; // suite_types of one byte differ in the scales alone
            for (enum data_mode mode = 0; mode < DATA_MODES; mode++) {
                char name[80];
                snprintf(name, sizeof(name), "%s, %s, %u keys, %u rows, group %u", data_mode_name(mode),
                         suite_type_names[t], shapes[s].keys, shapes[s].rows, shapes[s].group);
                struct data d = {.name = name,
                                 .spec = suite_spec(suite_types[t], shapes[s].k_dim, shapes[s].v_dim,
                                                    shapes[s].group),
                                 .mode = mode,
                                 .rows = shapes[s].rows,
                                 .keys = shapes[s].keys,
                                 .q_first = 1u << 20,
                                 .visible = shapes[s].keys};
                data_make(&d, shapes[s].keys + mode);
                suite_check(&d, NULL, "whole");
                data_free(&d);
            }
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
        if (!suite_wanted[round % SUITE_TYPES])
            continue;
        struct data d = {.name = data_mode_name((enum data_mode)(round % DATA_MODES)),
                         .spec = suite_spec(suite_types[round % SUITE_TYPES], 64, 48, round % 2 ? 1 : 4),
                         .mode = (enum data_mode)(round % DATA_MODES),
                         .rows = round % 4 == 3 ? 20 : 1,
                         .keys = 1 + data_random_below(&r, 3000),
                         .key_first = 500,
                         .q_first = 500 + data_random_below(&r, 3000),
                         .visible = 500 + data_random_below(&r, 3500)};
        data_make(&d, (uint64_t)round);
        struct suite_answer want = suite_reference(&d, NULL);
        uint32_t lengths[16];
        for (int i = 0; i < 16; i++)
            lengths[i] = 1 + data_random_below(&r, round % 2 ? 50 : 600);
        data_cut(&d, lengths, 16);
        data_shuffle_runs(&d, (uint64_t)round);
        uint32_t parts = 1 + data_random_below(&r, 40);
        const struct kernels_attention *kernel;
        for (uint32_t i = 0; (kernel = suite_next_kernel(&i));) {
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
            suite_compare(&d, &want, &chain, NULL, i - 1, "chain of parts");
            for (uint32_t step = 1; step < parts; step *= 2) {
                for (uint32_t x = 0; x + step < parts; x += 2 * step)
                    kernels_partial_merge(&p[x], &p[x + step]);
            }
            suite_compare(&d, &want, &p[0], NULL, i - 1, "tree of parts");
            data_partial_free(&chain);
            for (uint32_t x = 0; x < parts; x++)
                data_partial_free(&p[x]);
            free(p);
        }
        suite_answer_free(&want);
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
        for (int t = 0; t < SUITE_TYPES; t++) {
            if (!suite_wanted[t])
                continue;
            struct data d = {.name = "cuts",
                             .spec = suite_spec(suite_types[t], shapes[s].k_dim, shapes[s].v_dim,
                                                shapes[s].group),
                             .rows = shapes[s].rows,
                             .keys = 2003,
                             .key_first = 7,
                             .q_first = 1100,
                             .visible = 1999};
            d.spec.window = s % 2 ? 900 : 0;
            data_make(&d, s);
            const struct kernels_attention *kernel;
            for (uint32_t i = 0; (kernel = suite_next_kernel(&i));) {
                data_cut(&d, &d.keys, 1);
                struct kernels_partial whole = suite_run_whole(&d, kernel);
                for (size_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); c++) {
                    data_cut(&d, cuts[c], 4);
                    struct kernels_partial p = suite_run_whole(&d, kernel);
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

static void the_registry(void **state)
{
    (void)state;
    struct kernels_spec spec = suite_spec(KERNELS_KV_BF16, 64, 64, 4);
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
    struct kernels_spec good = suite_spec(KERNELS_KV_F16, 64, 64, 4), s;
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

// Arguments: the KV suite_types to run over, so that they can run side by side; none = all. What has a type
// of its own runs with f32.
int main(int argc, char **argv)
{
    for (int t = 0; t < SUITE_TYPES; t++)
        suite_wanted[t] = argc == 1;
    for (int i = 1; i < argc; i++) {
        int t = 0;
        while (t < SUITE_TYPES && strcmp(argv[i], suite_type_names[t]))
            t++;
        if (t == SUITE_TYPES) {
            fprintf(stderr, "'%s' is no KV type\n", argv[i]);
            return 2;
        }
        suite_wanted[t] = true;
    }
    const struct CMUnitTest by_type[] = {
        cmocka_unit_test(every_shape),
        cmocka_unit_test(every_bend),
        cmocka_unit_test(suite_every_mask),
        cmocka_unit_test(suite_latent_attention),
        cmocka_unit_test(suite_random_masks),
        cmocka_unit_test(suite_windows_behind_short_runs),
        cmocka_unit_test(adversarial_inputs),
        cmocka_unit_test(partition_invariance),
        cmocka_unit_test(bits_do_not_depend_on_cuts),
        cmocka_unit_test(suite_unseen_keys_do_not_leak),
        cmocka_unit_test(suite_not_finite_flows_through),
        cmocka_unit_test(suite_nan_codes_flow_through),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test(suite_trap_interleaved_chunks_mask_by_position),
        cmocka_unit_test(suite_causal_rows_do_not_leak),
        cmocka_unit_test(suite_intervals_rise),
        cmocka_unit_test(suite_vanished_rows),
        cmocka_unit_test(suite_no_keys_is_the_identity),
        cmocka_unit_test(suite_largest_logit_is_m),
        cmocka_unit_test(the_registry),
        cmocka_unit_test(bad_specs_are_named),
    };
    int failed = cmocka_run_group_tests(by_type, NULL, suite_report);
    return failed + (suite_wanted[0] ? cmocka_run_group_tests(others, NULL, NULL) : 0);
}
