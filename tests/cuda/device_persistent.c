// SPDX-License-Identifier: Apache-2.0
// Blocks of threads that go on from task to task (kernels/cuda/tile.cuh): few of them for all tasks, against
// one for each, by bits. BANYAN_CUDA_PERSISTENT says how many, so that a real device with few tasks does it,
// too.
#include "tests/cuda/device_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/sanitized.h"
#include "tests/cuda/device_harness.h"

#define ITEMS 6u
#define HEADS 3u

struct set { // an item
    struct data heads[HEADS];
    uint32_t kv_heads, lengths[4];
};

// Of one KV head's shape; masters for all heads.
static struct set set_of(const struct data *shape, uint32_t kv_heads, uint64_t seed)
{
    struct set s = {.kv_heads = kv_heads, .lengths = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    for (uint32_t h = 0; h < kv_heads; h++) {
        struct data *d = &s.heads[h];
        *d = *shape;
        d->spec.kv_type = KERNELS_KV_F32;
        data_make(d, seed * HEADS + h);
        data_uncut(d);
        d->spec.kv_type = shape->spec.kv_type;
    }
    return s;
}

static void set_free(struct set *s)
{
    for (uint32_t h = 0; h < s->kv_heads; h++)
        data_free(&s->heads[h]);
}

static struct data shape_of(enum kernels_kv_type type, uint32_t dim, uint32_t group, uint32_t rows,
                            uint32_t keys)
{
    return (struct data){.name = "persistent",
                         .spec = {.kv_type = type,
                                  .k_dim = dim,
                                  .v_dim = dim,
                                  .q_heads = group,
                                  .kv_heads = 1,
                                  .scale = (float)(1 / sqrt(dim))},
                         .rows = rows,
                         .keys = keys,
                         .q_first = keys,
                         .visible = keys};
}

// One launch of all sets with so many blocks of threads; the first is judged, the others must have its bits.
static void check_with(const struct set *sets, uint32_t n, const char *blocks,
                       struct kernels_device_item *first)
{
    struct placed p[ITEMS];
    struct kernels_device_item items[ITEMS];
    struct common_error err;
    bool judge = !first[0].q;
    setenv("BANYAN_CUDA_PERSISTENT", blocks, 1);
    assert_int_equal(ops->open(0, UINT64_C(16) << 20, &device, &err), COMMON_OK);
    unsetenv("BANYAN_CUDA_PERSISTENT");
    for (uint32_t i = 0; i < n; i++) {
        p[i] = harness_place(sets[i].heads, sets[i].kv_heads, sets[i].lengths, 4);
        items[i] = harness_item(&p[i]);
    }
    for (int again = 0; again < (judge ? 1 : 3); again++) { // the third is a graph's
        if (harness_run(items, n, &err) != COMMON_OK)
            fail_msg("%s blocks: %s", blocks, err.message);
        for (uint32_t i = 0; i < n; i++) {
            if (judge)
                harness_judge(&p[i], &items[i].out, "one task a block of threads");
            const struct kernels_partial *a = judge ? &items[i].out : &first[i].out, *b = &items[i].out;
            size_t pairs = (size_t)a->rows * a->heads;
            assert_memory_equal(a->m, b->m, pairs * sizeof(float));
            assert_memory_equal(a->s, b->s, pairs * sizeof(float));
            assert_memory_equal(a->o, b->o, pairs * a->dv * sizeof(float));
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        harness_remove(&p[i]);
        if (judge)
            first[i] = items[i];
        else
            harness_item_free(&items[i]);
    }
    ops->close(device);
    device = NULL;
}

static void check(const struct set *sets, uint32_t n)
{
    static const char *const blocks[] = {"0", "1", "2", "5"};
    struct kernels_device_item first[ITEMS] = {0};
    for (size_t b = 0; b < sizeof(blocks) / sizeof(blocks[0]); b++)
        check_with(sets, n, blocks[b], first);
    for (uint32_t i = 0; i < n; i++)
        harness_item_free(&first[i]);
}

// Units of 8 blocks of 16 keys: 15 tasks, of which the last have 3 blocks, then one task.
void cases_more_tasks_than_blocks(void **state)
{
    (void)state;
    static const enum kernels_kv_type types[] = {KERNELS_KV_BF16, KERNELS_KV_F16};
    static const uint32_t keys[] = {555, 17, 16 * 8 + 1};
    for (int t = 0; t < 2; t++) {
        for (uint32_t dim = 64; dim <= 128; dim += 64) {
            for (int k = 0; k < 3; k++) {
                struct data shape = shape_of(types[t], dim, 4, 2, keys[k]);
                struct set s = set_of(&shape, k == 1 ? 1 : 3, k);
                check(&s, 1);
                set_free(&s);
            }
        }
    }
}

// Tasks that no key is seen of, before, between and behind others; warps without a block of their own.
void cases_tasks_without_keys(void **state)
{
    (void)state;
    static const struct {
        uint64_t window, visible, block_first, block_end;
    } masks[] = {{40, 600, 0, 0}, {0, 10, 0, 0}, {0, 600, 0, 0}, {150, 300, 0, 0}, {1, 600, 0, 0}};
    for (size_t m = 0; m < sizeof(masks) / sizeof(masks[0]); m++) {
        struct data shape = shape_of(m % 2 ? KERNELS_KV_F16 : KERNELS_KV_BF16, 64, 2, 3, 600);
        shape.spec.window = (uint32_t)masks[m].window;
        shape.visible = masks[m].visible;
        shape.q_first = m == 3 ? 350 : 597;
        struct set s = set_of(&shape, 2, 50 + m);
        s.lengths[0] = 3; // blocks of one and of nine keys
        s.lengths[1] = 9;
        s.lengths[2] = 100;
        s.lengths[3] = 17;
        check(&s, 1);
        set_free(&s);
    }
}

// What is not finite, in a task at the begin, amid others, at the end: done again behind the last, the others
// not.
void cases_tasks_done_again(void **state)
{
    (void)state;
    static const uint32_t at[] = {3, 300, 520};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < 2; t++) {
            struct data shape = shape_of(t ? KERNELS_KV_F16 : KERNELS_KV_BF16, t ? 64 : 128, 3, 1, 555);
            struct set sets[2] = {set_of(&shape, 2, 7), set_of(&shape, 2, 8)};
            sets[0].heads[1].k[at[i] * shape.spec.k_dim + 5] = values[i];
            sets[1].heads[0].v[at[i] * shape.spec.k_dim + 1] = values[2 - i];
            sets[1].heads[1].q[0] = values[1];
            check(sets, 2);
            set_free(&sets[0]);
            set_free(&sets[1]);
        }
    }
}

// Sessions of all lengths, masks, heads and pages in one launch, of two dims and types: four kernels.
void cases_tasks_of_different_items(void **state)
{
    (void)state;
    struct data_random r = {18};
    float slopes[4] = {0.5f, 0.25f, 0.125f, 0.0625f};
    for (uint64_t round = 0; round < SANITIZED(12, 3, 3); round++) {
        struct set sets[ITEMS];
        uint32_t n = 2 + data_random_below(&r, ITEMS - 1);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t group = 1 + data_random_below(&r, 4), keys = 1 + data_random_below(&r, 400);
            struct data shape = shape_of(data_random_below(&r, 3) ? KERNELS_KV_BF16 : KERNELS_KV_F16,
                                         data_random_below(&r, 3) ? 64 : 128, group,
                                         1 + data_random_below(&r, 8 / group), keys);
            shape.key_first = data_random_below(&r, 100);
            shape.q_first = shape.key_first + data_random_below(&r, keys + 50);
            shape.visible = shape.key_first + data_random_below(&r, keys + 50);
            shape.spec.window = data_random_below(&r, 3) ? 0 : 1 + data_random_below(&r, 200);
            shape.spec.soft_cap = data_random_below(&r, 4) ? 0 : 20;
            shape.spec.alibi = data_random_below(&r, 4) || data_random_below(&r, 2) ? NULL : slopes;
            uint32_t kv_heads = shape.spec.alibi ? 1 : 1 + data_random_below(&r, HEADS);
            sets[i] = set_of(&shape, kv_heads, round * ITEMS + i);
            for (int j = 0; j < 4; j++)
                sets[i].lengths[j] = 1 + data_random_below(&r, 200);
            if (data_random_below(&r, 5) == 0)
                sets[i].heads[0].k[data_random_below(&r, keys) * shape.spec.k_dim] = NAN;
        }
        check(sets, n);
        for (uint32_t i = 0; i < n; i++)
            set_free(&sets[i]);
    }
}
