// SPDX-License-Identifier: Apache-2.0
// The conformance suite: which keys a row sees.
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

// Keys at positions 1000 .. 1399, rows up to 64 from 1336 on.
void suite_every_mask(void **state)
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
            for (int t = 0; t < SUITE_TYPES; t++) {
                if (!suite_wanted[t])
                    continue;
                struct data d = {.name = masks[m].name,
                                 .spec = suite_spec(suite_types[t], 96, 64, groups[shape]),
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
                suite_check(&d, NULL, suite_type_names[t]);
                data_free(&d);
            }
        }
    }
}

// Multi-head latent attention as DeepSeek has it: few heads, a tile of them, two tiles.
void suite_latent_attention(void **state)
{
    (void)state;
    static const struct {
        uint32_t heads, rows;
    } shapes[] = {{8, 1}, {16, 1}, {16, 3}, {20, 1}, {128, 1}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (int t = 0; t < SUITE_TYPES; t++) {
            if (!suite_wanted[t])
                continue;
            struct data d = {.name = "latent attention",
                             .spec = suite_spec(suite_types[t], 576, 512, shapes[s].heads),
                             .rows = shapes[s].rows,
                             .keys = 150,
                             .q_first = 150 - shapes[s].rows,
                             .visible = 150};
            d.spec.v_in_k = true;
            data_make(&d, s);
            suite_check(&d, NULL, suite_type_names[t]);
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
void suite_random_masks(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 2, 7, 20, 64}, lengths[][4] = {{16, 48, 7, 64}, {256, 256, 256, 256}};
    struct data_random r = {11};
    for (int round = 0; round < 120; round++) {
        int t = round % SUITE_TYPES;
        struct data d = {.name = "a random mask",
                         .spec = suite_spec(suite_types[t], 32, round % 2 ? 32 : 20, round % 3 ? 1 : 3),
                         .rows = rows[data_random_below(&r, 5)],
                         .keys = 200 + data_random_below(&r, 200),
                         .key_first = 496};
        d.spec.v_in_k = round % 7 == 0;
        random_mask(&d, &r);
        if (!suite_wanted[t])
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
        suite_check(&d, NULL, suite_type_names[t]);
        data_free(&d);
    }
}

// Ends of intervals do not fall from a row to the next: tiles take those of their first and last rows.
void suite_intervals_rise(void **state)
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
void suite_windows_behind_short_runs(void **state)
{
    (void)state;
    const uint32_t lengths[] = {7, 50};
    for (int t = 0; t < SUITE_TYPES; t++) {
        for (uint32_t rows = 1; rows <= 21 && suite_wanted[t]; rows += 20) {
            struct data d = {.name = "behind a short run",
                             .spec = suite_spec(suite_types[t], 32, 32, 1),
                             .rows = rows,
                             .keys = 57,
                             .q_first = 40,
                             .visible = 57};
            d.spec.window = 31; // from position 10 on
            data_make(&d, 1);
            data_cut(&d, lengths, 2);
            suite_check(&d, NULL, suite_type_names[t]);
            data_free(&d);
        }
    }
}

// Chunks dealt round to two workers: each masks by the positions of its keys, not by their order in its
// memory.
void suite_trap_interleaved_chunks_mask_by_position(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        struct data d = {.name = "interleaved",
                         .spec = suite_spec(KERNELS_KV_F32, 32, 32, 2),
                         .rows = wide ? 64 : 3,
                         .keys = 512,
                         .q_first = wide ? 300 : 333,
                         .visible = 512};
        data_make(&d, 5);
        struct suite_answer want = suite_reference(&d, NULL);
        const uint32_t page = 32;
        data_cut(&d, &page, 1);
        const struct kernels_attention *kernel;
        for (uint32_t i = 0; (kernel = suite_next_kernel(&i));) {
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
            suite_compare(&d, &want, &sum, NULL, i - 1, "two workers");
            data_partial_free(&sum);
            data_partial_free(&part);
        }
        suite_answer_free(&want);
        data_free(&d);
    }
}
