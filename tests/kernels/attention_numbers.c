// SPDX-License-Identifier: Apache-2.0
// The conformance suite: numbers that are not finite, keys that no row sees, rows that see nothing.
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

// Keys that no row sees hold NaN, in the same blocks as keys that are seen: none of it may come out.
void suite_unseen_keys_do_not_leak(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        for (int t = 0; t < SUITE_TYPES; t++) {
            if (!suite_wanted[t])
                continue;
            struct data d = {.name = "NaN beyond what is visible",
                             .spec = suite_spec(suite_types[t], 64, 64, 2),
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
            suite_check(&d, NULL, suite_type_names[t]);
            data_free(&d);
        }
    }
}

// Row by row: a key that the later rows see and the earlier do not holds NaN.
void suite_causal_rows_do_not_leak(void **state)
{
    (void)state;
    for (uint32_t rows = 2; rows <= 32; rows += 15) {
        struct data d = {.name = "NaN in the last key",
                         .spec = suite_spec(KERNELS_KV_F32, 32, 32, 2),
                         .rows = rows,
                         .keys = 40,
                         .q_first = 40 - rows,
                         .visible = 40};
        data_make(&d, 3);
        for (uint32_t i = 0; i < 32; i++)
            d.k[39 * 32 + i] = d.v[39 * 32 + i] = NAN;
        data_cut(&d, &d.keys, 1);
        suite_check(&d, NULL, "all rows");
        struct suite_answer want = suite_reference(&d, NULL);
        assert_true(isnan(want.o[(size_t)(rows - 1) * 2 * 32]) &&
                    isfinite(want.o[(size_t)(rows - 2) * 2 * 32]));
        suite_answer_free(&want);
        data_free(&d);
    }
}

void suite_not_finite_flows_through(void **state)
{
    (void)state;
    const float values[] = {NAN, INFINITY, -INFINITY};
    for (int which = 0; which < 3; which++) { // in q, k, v
        for (int x = 0; x < 3; x++) {
            for (int wide = 0; wide < 2; wide++) {
                for (int t = 0; t < SUITE_TYPES; t++) {
                    static const uint32_t some[] = {1, 50, 300}; // a block, and a whole panel
                    for (int n = 0; n < 3; n++) {
                        if (!suite_wanted[t])
                            continue;
                        struct data d = {.name = which == 0   ? "not finite in q"
                                                 : which == 1 ? "not finite in k"
                                                              : "not finite in v",
                                         .spec = suite_spec(suite_types[t], 32, 32, 1),
                                         .rows = wide ? 12 : 2,
                                         .keys = some[n],
                                         .q_first = 1000,
                                         .visible = 1000};
                        data_make(&d, 9);
                        float *a = which == 0 ? d.q : which == 1 ? d.k : d.v;
                        a[5] = values[x]; // row 0 or key 0
                        data_cut(&d, &d.keys, 1);
                        suite_check(&d, NULL, suite_type_names[t]);
                        data_free(&d);
                    }
                }
            }
        }
    }
}

// A peer may send a NaN among fp8 codes under a scale that is none: in a key or a value, in a block or a
// panel.
void suite_nan_codes_flow_through(void **state)
{
    (void)state;
    static const uint32_t keys[] = {50, 300}, rows[] = {1, 2, 4, 20};
    for (int which = 0; which < 2 && suite_wanted[4]; which++) {
        for (int n = 0; n < 2; n++) {
            for (int r = 0; r < 4; r++) {
                for (int at = 0; at < 2; at++) {
                    struct data d = {.name = which ? "NaN code in v" : "NaN code in k",
                                     .spec = suite_spec(KERNELS_KV_FP8, 64, 64, 1),
                                     .rows = rows[r],
                                     .keys = keys[n],
                                     .q_first = 1000,
                                     .visible = 1000};
                    data_make(&d, 9);
                    uint8_t *code = (uint8_t *)(uintptr_t)(which ? d.runs[0].v : d.runs[0].k);
                    code[at ? 5 : 64 * 40 + 63] = at ? 0x7f : 0xff;
                    suite_check(&d, NULL, "fp8");
                    struct suite_answer want = suite_reference(&d, NULL);
                    assert_true(isnan(want.o[at ? 5 : 63]));
                    suite_answer_free(&want);
                    data_free(&d);
                }
            }
        }
    }
}

// Every logit is -inf: 0/0, as IEEE has it; and a value that is not finite under a weight of zero is NaN.
void suite_vanished_rows(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        for (int nan = 0; nan < 2; nan++) {
            struct data d = {.name = "all at -inf",
                             .spec = suite_spec(KERNELS_KV_F32, 16, 16, 1),
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
            for (uint32_t i = 0; (kernel = suite_next_kernel(&i));) {
                struct kernels_partial p = suite_run_whole(&d, kernel), mass = data_partial(d.rows, 1, 16);
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

void suite_no_keys_is_the_identity(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 64; rows += 63) {
        struct data d = {
            .name = "nothing", .spec = suite_spec(KERNELS_KV_BF16, 64, 64, 4), .rows = rows, .keys = 64};
        d.key_first = 100;
        d.visible = 100; // and with runs, none of which is seen
        d.q_first = 1000;
        data_make(&d, 1);
        const struct kernels_attention *kernel;
        for (uint32_t i = 0; (kernel = suite_next_kernel(&i));) {
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

void suite_largest_logit_is_m(void **state)
{
    (void)state;
    struct data d = {.name = "m", .spec = suite_spec(KERNELS_KV_F32, 64, 64, 2), .rows = 9, .keys = 1000};
    d.mode = DATA_ASCENDING;
    d.q_first = 5000;
    d.visible = 5000;
    data_make(&d, 4);
    const struct kernels_attention *kernel;
    for (uint32_t i = 0; (kernel = suite_next_kernel(&i));) {
        struct kernels_partial p = suite_run_whole(&d, kernel);
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
