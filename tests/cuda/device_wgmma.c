// SPDX-License-Identifier: Apache-2.0
// Tiles of 64 pairs by products of a warpgroup (kernels/cuda/wgmma.cuh).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/tensor/float16.h"
#include "tests/cuda/device_cases.h"
#include "tests/cuda/device_harness.h"

static const enum kernels_kv_type types[] = {KERNELS_KV_F16, KERNELS_KV_BF16};
static const char *const type_names[] = {"f16", "bf16"};
static const uint32_t in_one_run[] = {UINT32_MAX};

static struct data wide(int type, uint32_t dim, uint32_t group, uint32_t rows, uint32_t keys)
{
    return (struct data){.name = "wide",
                         .spec = {.kv_type = types[type],
                                  .k_dim = dim,
                                  .v_dim = dim,
                                  .q_heads = group,
                                  .kv_heads = 1,
                                  .scale = (float)(1 / sqrt(dim))},
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
    struct placed p = harness_place(d, 1, in_one_run, 1);
    check(&p, what);
    harness_remove(&p);
}

void cases_wgmma_is_chosen(void **state)
{
    (void)state;
    struct kernels_device_info info;
    ops->info(device, &info);
    assert_non_null(strstr(info.kernel, "-wgmma")); // else these cases test tile.cuh
}

// Tiles full and not, and several; rounds of 64 keys full and not, and more of them than the ring has stages.
void cases_wgmma_of_every_shape(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{1, 33, 1},  {4, 9, 16},   {4, 16, 64},  {8, 8, 65}, {5, 13, 150},
                                         {2, 70, 90}, {1, 129, 48}, {64, 1, 700}, {40, 1, 63}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (int t = 0; t < 4; t++) {
            struct data d = wide(t % 2, t < 2 ? 64 : 128, shapes[s][0], shapes[s][1], shapes[s][2]);
            char name[80];
            snprintf(name, sizeof(name), "%s, %u dims, group %u, %u rows, %u keys", type_names[t % 2],
                     d.spec.k_dim, shapes[s][0], shapes[s][1], shapes[s][2]);
            d.name = name;
            make(&d, s);
            check_data(&d, "causal at the end");
            d.q_first = 0;
            check_data(&d, "causal from 0");
            data_free(&d);
        }
    }
}

// Queries that bfloat16 holds take a path of their own, with the same bits: -0 of another part decides
// nothing.
void cases_wgmma_of_short_queries(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        struct data d = wide(t % 2, t < 2 ? 64 : 128, 4, 16, 200);
        make(&d, (uint64_t)t);
        for (size_t i = 0; i < (size_t)d.rows * d.spec.q_heads * d.spec.k_dim; i++)
            d.q[i] = common_bf16_to_float(common_bf16_from_float(d.q[i]));
        check_data(&d, "short queries");
        data_free(&d);
    }
}

// Random shapes, kinds of data, masks, cuts and orders of runs.
void cases_wgmma_at_random(void **state)
{
    (void)state;
    struct data_random r = {64};
    for (int round = 0; round < 24; round++) {
        const uint32_t group = 1 + data_random_below(&r, 12),
                       rows = 33 / group + 1 + data_random_below(&r, 20);
        struct data d =
            wide(round % 2, round / 2 % 2 ? 64 : 128, group, rows, 1 + data_random_below(&r, 500));
        d.mode = (enum data_mode)(round % DATA_MODES);
        d.mode = d.mode == DATA_LARGE ? DATA_RANDOM : d.mode; // as in device_latents.c
        d.key_first = data_random_below(&r, 100);
        d.q_first = d.key_first + data_random_below(&r, d.keys);
        d.visible = d.key_first + (data_random_below(&r, 4) ? d.keys : data_random_below(&r, d.keys + 1));
        if (data_random_below(&r, 2))
            d.spec.window = 1 + data_random_below(&r, d.keys);
        if (data_random_below(&r, 4) == 0)
            d.spec.mask_chunk = 1 + data_random_below(&r, d.keys);
        d.spec.not_causal = data_random_below(&r, 6) == 0;
        d.spec.soft_cap = data_random_below(&r, 4) == 0 ? 20 : 0;
        float slopes[12];
        for (uint32_t h = 0; h < group; h++)
            slopes[h] = powf(2, -(float)(h % 8 + 1));
        d.spec.alibi = data_random_below(&r, 4) == 0 ? slopes : NULL;
        make(&d, (uint64_t)round);
        uint32_t lengths[8];
        for (int i = 0; i < 8; i++)
            lengths[i] = 1 + data_random_below(&r, 120);
        char what[80];
        snprintf(what, sizeof(what), "round %d, %s, %u dims", round, type_names[round % 2], d.spec.k_dim);
        struct placed p = harness_place(&d, 1, lengths, 8);
        harness_shuffle(&p, (uint64_t)round);
        check(&p, what);
        harness_remove(&p);
        data_free(&d);
    }
}
