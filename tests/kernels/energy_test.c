// SPDX-License-Identifier: Apache-2.0
// Attention as the gradient of an energy (docs/concepts/energy.md; Tree Attention, arXiv 2408.04093, section
// 4):
//
//     F(zeta) = log sum_a exp(x_a + zeta . v_a)       dF/dzeta at 0 = sum_a softmax(x)_a v_a = o       F(0) =
//     lse
//
// F is computed here, in float64, from the bytes that the kernels read, and differentiated by finite
// differences; o, lse and the masses of parts come out of the kernels, cut and merged as a worker does it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor/float16.h"
#include "common/tensor/float8.h"
#include "kernels/reference.h"
#include "kernels/split.h"
#include "tests/kernels/data.h"

#define CHUNK 32u

static double worst; // error as a fraction of what is promised

// ---- the energy ---------------------------------------------------------------------------------

static double element(enum kernels_kv_type type, const void *base, const float *scale, uint32_t row,
                      uint32_t dim, uint32_t column)
{
    size_t i = (size_t)row * dim + column;
    switch (type) {
    case KERNELS_KV_F16:
        return common_f16_to_float(((const uint16_t *)base)[i]);
    case KERNELS_KV_BF16:
        return common_bf16_to_float(((const uint16_t *)base)[i]);
    case KERNELS_KV_INT8:
        return (double)scale[row] * ((const int8_t *)base)[i];
    case KERNELS_KV_FP8:
        return (double)scale[row] * common_fp8_to_float(((const uint8_t *)base)[i]);
    default:
        return ((const float *)base)[i];
    }
}

struct energy { // of one query row and head
    uint32_t keys, dim;
    double *x;   // [keys] logits, −inf where the row does not see the key
    double *v;   // [keys][dim]
    double sink; // −inf: none
};

static void energy_make(struct energy *e, const struct data *d, uint32_t row, uint32_t head, double sink)
{
    const struct kernels_spec *spec = &d->spec;
    const struct kernels_run *run = &d->runs[0]; // all keys
    const float *q = d->q + ((size_t)row * spec->q_heads + head) * spec->k_dim;
    *e = (struct energy){.keys = d->keys,
                         .dim = spec->v_dim,
                         .x = malloc(d->keys * sizeof(double)),
                         .v = malloc((size_t)d->keys * spec->v_dim * sizeof(double)),
                         .sink = sink};
    assert_true(run->rows == d->keys && e->x && e->v);
    for (uint32_t a = 0; a < d->keys; a++) {
        uint64_t key = d->key_first + a, position = d->q_first + row;
        double x = 0;
        for (uint32_t i = 0; i < spec->k_dim; i++)
            x += q[i] * element(spec->kv_type, run->k, run->k_scale, a, spec->k_dim, i);
        x *= spec->scale;
        if (spec->soft_cap > 0)
            x = spec->soft_cap * tanh(x / spec->soft_cap);
        if (spec->alibi)
            x -= spec->alibi[head] * (double)(position - key);
        bool sees =
            key <= position && key < d->visible && (spec->window == 0 || position - key < spec->window);
        e->x[a] = sees ? x : -INFINITY;
        for (uint32_t i = 0; i < spec->v_dim; i++)
            e->v[(size_t)a * spec->v_dim + i] =
                element(spec->kv_type, run->v, run->v_scale, a, spec->v_dim, i);
    }
}

static void energy_free(struct energy *e)
{
    free(e->x);
    free(e->v);
}

// F(t · e_column), or with column = dim: what keys [from, to) gain t, the direction of their indicator. The
// sink is a key whose value is 0: no ζ moves it.
static double energy(const struct energy *e, uint32_t column, uint32_t from, uint32_t to, double t)
{
    double top = e->sink, sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t a = 0; a < e->keys; a++) {
            double bend = column < e->dim ? e->v[(size_t)a * e->dim + column] : a >= from && a < to;
            double y = e->x[a] + t * bend;
            if (pass == 0)
                top = fmax(top, y);
            else if (y != -INFINITY)
                sum += exp(y - top);
        }
    }
    return top + log(sum + (e->sink == -INFINITY ? 0 : exp(e->sink - top)));
}

// dF/dt at 0, by a stencil of four points: its error is of the order of h⁴.
static double slope(const struct energy *e, uint32_t column, uint32_t from, uint32_t to)
{
    const double h = 1e-3;
    return (8 * (energy(e, column, from, to, h) - energy(e, column, from, to, -h)) -
            (energy(e, column, from, to, 2 * h) - energy(e, column, from, to, -2 * h))) /
           (12 * h);
}

// ---- what the kernels say -----------------------------------------------------------------------

// Keys [from, to) of the job through the split rule, as a worker computes them.
static struct kernels_partial part_of(const struct data *d, const struct kernels_attention *kernel,
                                      uint32_t from, uint32_t to)
{
    struct kernels_run runs[64];
    uint32_t n = 0;
    for (uint32_t at = from; at < to; at += CHUNK) // chunks, as the split rule takes them
        runs[n++] = data_run(d, at, to - at < CHUNK ? to - at : CHUNK);
    struct kernels_item item = {.spec = &d->spec,
                                .kernel = kernel,
                                .rows = d->rows,
                                .q_first = d->q_first,
                                .visible = d->visible,
                                .q = d->q,
                                .q_row_stride = (uint64_t)d->spec.q_heads * d->spec.k_dim,
                                .q_head_stride = d->spec.k_dim,
                                .chunk_tokens = CHUNK,
                                .run_count = n,
                                .runs = runs};
    struct kernels_split split;
    struct kernels_partial out = data_partial(d->rows, d->spec.q_heads, d->spec.v_dim);
    uint64_t bytes = kernels_split_bytes(&item), scratch_bytes = kernels_split_scratch(&item);
    void *workspace = aligned_alloc(KERNELS_ALIGN, (bytes + KERNELS_ALIGN) / KERNELS_ALIGN * KERNELS_ALIGN);
    void *scratch =
        aligned_alloc(KERNELS_ALIGN, (scratch_bytes + KERNELS_ALIGN) / KERNELS_ALIGN * KERNELS_ALIGN);
    assert_true(bytes > 0 && workspace && scratch);
    kernels_split_init(&split, &item, workspace);
    for (uint32_t t = 0; t < split.tasks; t++)
        kernels_split_run(&split, t, scratch);
    kernels_split_merge(&split, &out);
    for (uint32_t i = 0; i < n; i++)
        data_run_free(&runs[i]);
    free(workspace);
    free(scratch);
    return out;
}

static void close_to(double got, double want, double allowed, const char *what, const char *kernel,
                     const struct data *d, uint32_t at)
{
    if (!(fabs(got - want) <= allowed))
        fail_msg("%s, kernel %s, %s, type %d, %u: %.10g, the energy says %.10g, allowed %.3g", what, kernel,
                 d->name, d->spec.kv_type, at, got, want, allowed);
    worst = fmax(worst, fabs(got - want) / allowed);
}

// o is the slope along each ζ, lse is F(0), and the mass of a part, from lse alone, the slope along its
// indicator.
static void judge(struct data *d, const struct kernels_attention *kernel, const float *sinks)
{
    const struct kernels_spec *spec = &d->spec;
    size_t pairs = (size_t)d->rows * spec->q_heads;
    const uint32_t cuts[] = {0, CHUNK, 3 * CHUNK, d->keys};
    struct kernels_partial parts[3], whole = data_partial(d->rows, spec->q_heads, spec->v_dim);
    float *o = malloc(pairs * spec->v_dim * sizeof(float)), *lse = malloc(4 * pairs * sizeof(float)),
          *unused = malloc(pairs * spec->v_dim * sizeof(float));
    assert_true(o && lse && unused);
    kernels_partial_reset(&whole);
    for (uint32_t p = 0; p < 3; p++) { // three workers
        parts[p] = part_of(d, kernel, cuts[p], cuts[p + 1]);
        kernels_partial_finish(&parts[p], NULL, unused, lse + (p + 1) * pairs);
        kernels_partial_merge(&whole, &parts[p]);
    }
    kernels_partial_finish(&whole, sinks, o, lse);
    struct kernels_job job = data_job(d);
    double *reference = malloc(pairs * spec->v_dim * sizeof(double));
    struct kernels_reference_row *rows = malloc(pairs * sizeof(*rows));
    assert_true(reference && rows);
    kernels_reference(&job, sinks, reference, rows); // for the bounds alone
    for (size_t i = 0; i < pairs; i++) {
        uint32_t head = (uint32_t)(i % spec->q_heads);
        struct energy e;
        energy_make(&e, d, (uint32_t)(i / spec->q_heads), head, sinks ? (double)sinks[head] : -INFINITY);
        for (uint32_t c = 0; c < spec->v_dim; c++)
            close_to(o[i * spec->v_dim + c], slope(&e, c, 0, 0), kernels_reference_bound_o(&rows[i]) + 1e-9,
                     "o", kernel->name, d, c);
        double bound = kernels_reference_bound_lse(&rows[i]);
        close_to(lse[i], energy(&e, 0, 0, 0, 0), bound, "lse", kernel->name, d, (uint32_t)i);
        double sum = sinks ? exp(sinks[head] - (double)lse[i]) : 0;
        for (uint32_t p = 0; p < 3; p++) {
            double mass = exp((double)lse[(p + 1) * pairs + i] - lse[i]);
            close_to(mass, slope(&e, spec->v_dim, cuts[p], cuts[p + 1]), 2 * bound + 1e-9, "mass",
                     kernel->name, d, p);
            sum += mass;
        }
        close_to(sum, 1, 4 * bound, "sum of masses", kernel->name, d, (uint32_t)i);
        energy_free(&e);
    }
    for (uint32_t p = 0; p < 3; p++)
        data_partial_free(&parts[p]);
    data_partial_free(&whole);
    free(o);
    free(lse);
    free(unused);
    free(reference);
    free(rows);
}

static const float alibi[4] = {0.5f, 0.25f, 0.125f, 0.0625f};
static const float sinks[4] = {1, -2, 6, 0};

static void the_output_is_the_slope_of_the_energy(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        float soft_cap;
        uint64_t window;
        const float *alibi, *sinks;
        uint32_t rows, group, k_dim, v_dim;
    } shapes[] = {
        {"one row", 0, 0, NULL, NULL, 1, 1, 64, 16},     {"groups", 0, 0, NULL, NULL, 3, 4, 32, 24},
        {"soft cap", 5, 0, NULL, NULL, 1, 2, 32, 16},    {"window", 0, 50, NULL, NULL, 2, 2, 32, 16},
        {"ALiBi", 0, 0, alibi, NULL, 1, 4, 16, 8},       {"sinks", 0, 0, NULL, sinks, 2, 4, 32, 16},
        {"all bends", 9, 90, alibi, sinks, 2, 4, 17, 5}, {"one value", 0, 0, NULL, NULL, 3, 4, 128, 1},
    };
    for (uint32_t k = 0; k < kernels_attention_count(); k++) {
        const struct kernels_attention *kernel = kernels_attention_at(k);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes && kernels_attention_usable(kernel); s++)
            for (int type = KERNELS_KV_F32; type <= KERNELS_KV_FP8; type++) {
                struct data d = {.name = shapes[s].name,
                                 .spec = {.kv_type = (enum kernels_kv_type)type,
                                          .k_dim = shapes[s].k_dim,
                                          .v_dim = shapes[s].v_dim,
                                          .q_heads = shapes[s].group,
                                          .kv_heads = 1,
                                          .scale = 1 / sqrtf((float)shapes[s].k_dim),
                                          .soft_cap = shapes[s].soft_cap,
                                          .window = shapes[s].window,
                                          .alibi = shapes[s].alibi},
                                 .mode = DATA_RANDOM,
                                 .rows = shapes[s].rows,
                                 .keys = 150,
                                 .q_first = 150 - shapes[s].rows,
                                 .visible = 150};
                if (!kernels_attention_supports(kernel, &d.spec))
                    continue;
                data_make(&d, s * 8 + (size_t)type);
                judge(&d, kernel, shapes[s].sinks);
                data_free(&d);
            }
    }
    printf("largest error as a fraction of what is promised: %.3f\n", worst);
    assert_true(worst > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_output_is_the_slope_of_the_energy)};
    return cmocka_run_group_tests_name("energy", tests, NULL, NULL);
}
