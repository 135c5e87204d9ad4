// SPDX-License-Identifier: Apache-2.0
// Latents (MLA): one KV head whose keys of 576 elements hold the values in their first 512.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/common/sanitized.h"
#include "tests/cuda/device_cases.h"
#include "tests/cuda/device_harness.h"

static const enum kernels_kv_type types[] = {KERNELS_KV_F16, KERNELS_KV_BF16};
static const char *const type_names[] = {"f16", "bf16"};
static const uint32_t in_one_run[] = {UINT32_MAX};

static struct data latents(int type, uint32_t heads, uint32_t rows, uint32_t keys)
{
    return (struct data){.name = "latents",
                         .spec = {.kv_type = types[type],
                                  .k_dim = 576,
                                  .v_dim = 512,
                                  .v_in_k = true,
                                  .q_heads = heads,
                                  .kv_heads = 1,
                                  .scale = 1 / 24.0f},
                         .rows = rows,
                         .keys = keys,
                         .q_first = keys > rows ? keys - rows : 0,
                         .visible = keys};
}

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
    if (nth++ % SANITIZED(1, 3, 3))
        return;
    struct placed p = harness_place(d, 1, in_one_run, 1);
    check(&p, what);
    harness_remove(&p);
}

// Tiles of 16 and of 32 pairs, full and not; rounds of one and of two blocks of 16 keys, full and not.
void cases_latents_of_every_shape(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{16, 1, 1},   {16, 1, 16}, {16, 1, 33}, {8, 2, 150},
                                         {3, 3, 40},   {1, 1, 70},  {17, 1, 17}, {32, 1, 48},
                                         {128, 1, 65}, {16, 3, 90}, {5, 8, 131}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (int t = 0; t < 2; t++) {
            struct data d = latents(t, shapes[s][0], shapes[s][1], shapes[s][2]);
            char name[80];
            snprintf(name, sizeof(name), "latents %s, %u heads, %u rows, %u keys", type_names[t],
                     shapes[s][0], shapes[s][1], shapes[s][2]);
            d.name = name;
            make(&d, s);
            check_data(&d, "causal at the end");
            d.q_first = 0;
            check_data(&d, "causal from 0");
            data_free(&d);
        }
    }
}

// Random shapes, masks, cuts and orders of runs.
void cases_latents_at_random(void **state)
{
    (void)state;
    struct data_random r = {576};
    for (int round = 0; round < 12; round++) {
        static const uint32_t most_heads[] = {16, 32, 128}, most_keys[] = {1600, 500, 100};
        int size = round % 3, type = round / 3 % 2;
        uint32_t heads = 1 + data_random_below(&r, most_heads[size]), rows = 1 + data_random_below(&r, 8);
        struct data d = latents(type, heads, rows, 1 + data_random_below(&r, most_keys[size] / rows));
        // Of large logits that cancel, a row that sees few keys may have small ones alone, which no float32
        // sum gets within the bound: cases_latents_of_every_kind() has them, with many keys
        d.mode = (enum data_mode)(round % DATA_MODES);
        d.mode = d.mode == DATA_LARGE ? DATA_RANDOM : d.mode;
        d.key_first = data_random_below(&r, 100);
        uint64_t end = d.key_first + d.keys;
        d.q_first = d.key_first + data_random_below(&r, d.keys);
        d.visible = data_random_below(&r, 4) ? end : d.key_first + data_random_below(&r, d.keys + 1);
        if (data_random_below(&r, 2))
            d.spec.window = 1 + data_random_below(&r, d.keys);
        if (data_random_below(&r, 4) == 0)
            d.spec.mask_chunk = 1 + data_random_below(&r, d.keys);
        if (data_random_below(&r, 4) == 0) {
            d.block_first = d.q_first;
            d.block_end = d.q_first + 1 + data_random_below(&r, 40);
        }
        d.spec.not_causal = data_random_below(&r, 6) == 0;
        d.spec.soft_cap = data_random_below(&r, 4) == 0 ? 20 : 0;
        float slopes[128];
        for (uint32_t h = 0; h < heads; h++)
            slopes[h] = powf(2, -(float)(h % 8 + 1));
        d.spec.alibi = data_random_below(&r, 4) == 0 ? slopes : NULL;
        make(&d, (uint64_t)round);
        uint32_t lengths[8];
        for (int i = 0; i < 8; i++)
            lengths[i] = 1 + data_random_below(&r, 300);
        char what[80];
        snprintf(what, sizeof(what), "round %d: %s, %u heads, %u rows, %u keys", round, type_names[type],
                 heads, rows, d.keys);
        d.name = data_mode_name(d.mode);
        struct placed p = harness_place(&d, 1, lengths, round % 2 ? 8 : 1);
        if (round % 4 == 3)
            harness_shuffle(&p, (uint64_t)round);
        check(&p, what);
        harness_remove(&p);
        data_free(&d);
    }
}

// Errors of one sign would pile up in long sums; unit after unit is merged.
void cases_latents_of_every_kind(void **state)
{
    (void)state;
    for (enum data_mode mode = 0; mode < DATA_MODES; mode++) {
        for (int t = 0; t < 2; t++) {
            for (uint32_t heads = 2; heads <= 20; heads += 18) {
                struct data d = latents(t, heads, 1, heads == 2 ? 600 : 100);
                d.name = data_mode_name(mode);
                d.mode = mode;
                make(&d, mode);
                check_data(&d, type_names[t]);
                data_free(&d);
            }
        }
    }
}

static void same_bits(const struct kernels_partial *a, const struct kernels_partial *b)
{
    size_t n = (size_t)a->rows * a->heads;
    assert_memory_equal(a->m, b->m, n * sizeof(float));
    assert_memory_equal(a->s, b->s, n * sizeof(float));
    assert_memory_equal(a->o, b->o, n * a->dv * sizeof(float));
}

// However the keys are cut into runs, whatever else is in the batch.
void cases_latents_have_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t cuts[][4] = {
        {16, 16, 16, 16}, {256, 256, 256, 256}, {16, 48, 320, 32}, {64, 16, 16, 160}};
    for (int t = 0; t < 2; t++) {
        for (uint32_t heads = 12; heads <= 40; heads += 28) {
            struct data d = latents(t, heads, 2, 700);
            d.key_first = 7;
            d.q_first = 690;
            d.spec.window = heads == 40 ? 500 : 0;
            make(&d, heads);
            struct placed p = harness_place(&d, 1, in_one_run, 1);
            struct kernels_device_item whole = harness_item(&p);
            assert_int_equal(harness_run(&whole, 1, NULL), COMMON_OK);
            harness_judge(&p, &whole.out, "whole");
            struct data other = latents(!t, 20, 1, 100);
            make(&other, 1);
            struct placed p2 = harness_place(&other, 1, in_one_run, 1);
            for (size_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); c++) {
                harness_cut(&p, cuts[c], 4);
                struct kernels_device_item both[2] = {harness_item(c % 2 ? &p : &p2),
                                                      harness_item(c % 2 ? &p2 : &p)};
                assert_int_equal(harness_run(both, 2, NULL), COMMON_OK);
                same_bits(&whole.out, &both[c % 2 ? 0 : 1].out);
                harness_item_free(&both[0]);
                harness_item_free(&both[1]);
            }
            harness_item_free(&whole);
            harness_remove(&p);
            harness_remove(&p2);
            data_free(&d);
            data_free(&other);
        }
    }
}

// NaN and Inf: what rows do not see does not leak, what they see comes through; numbers that binary16 sums
// cannot hold beside others; and no keys at all.
void cases_latents_that_are_not_finite(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    static const uint32_t places[] = {3, 511, 512, 575};
    for (int t = 0; t < 2; t++) {
        for (uint32_t heads = 4; heads <= 20; heads += 16) {
            struct data d = latents(t, heads, 2, 150);
            d.q_first = 98;
            d.visible = 100;
            d.spec.window = 70;
            make(&d, 5);
            for (uint32_t j = 0; j < d.keys; j++) {
                for (uint32_t i = 0; i < 576 && (j < 29 || j >= 100); i++)
                    d.k[j * 576 + i] = j % 2 ? NAN : INFINITY;
            }
            check_data(&d, "unseen");
            for (uint32_t i = 0; i < 576; i++) // the last row alone sees it
                d.k[99 * 576 + i] = NAN;
            check_data(&d, "seen by one");
            data_free(&d);
            for (int x = 0; x < 12; x++) {
                d = latents(t, heads, 1, 50);
                make(&d, 6);
                if (x < 9)
                    d.k[17 * 576 + places[x % 3 + x / 8]] = values[x / 3];
                else
                    d.q[places[x - 9]] = values[x - 9];
                char what[60];
                snprintf(what, sizeof(what), "%s, %u heads, not finite %d", type_names[t], heads, x);
                check_data(&d, what);
                data_free(&d);
            }
        }
        struct data d = latents(t, 20, 1, 64);
        d.key_first = 100;
        d.q_first = 1000;
        d.visible = 100;
        make(&d, 1);
        struct placed p = harness_place(&d, 1, in_one_run, 1);
        struct kernels_device_item item = harness_item(&p);
        assert_int_equal(harness_run(&item, 1, NULL), COMMON_OK);
        for (uint32_t i = 0; i < 20; i++)
            assert_true(item.out.m[i] == -INFINITY && item.out.s[i] == 0 && !signbit(item.out.s[i]));
        for (uint32_t i = 0; i < 20 * 512; i++)
            assert_true(item.out.o[i] == 0);
        harness_item_free(&item);
        harness_remove(&p);
        data_free(&d);
    }
}
