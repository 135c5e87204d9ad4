// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/attention_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/reference.h"
#include "tests/common/sanitized.h"

static double worst_o[16], worst_lse[16]; // by index in the registry
static char worst_case[16][120];          // of worst_o

const struct kernels_attention *suite_next_kernel(uint32_t *i)
{
    while (kernels_attention_at(*i) && !kernels_attention_usable(kernels_attention_at(*i)))
        (*i)++;
    return kernels_attention_at((*i)++);
}

struct suite_answer suite_reference(const struct data *d, const float *sinks)
{
    size_t n = (size_t)d->rows * d->spec.q_heads;
    struct suite_answer a = {malloc(n * d->spec.v_dim * sizeof(double)), malloc(n * sizeof(*a.rows))};
    assert_non_null(a.o);
    assert_non_null(a.rows);
    struct kernels_job job = data_job(d);
    kernels_reference(&job, sinks, a.o, a.rows);
    return a;
}

void suite_answer_free(struct suite_answer *a)
{
    free(a->o);
    free(a->rows);
}

void suite_compare(const struct data *d, const struct suite_answer *want, const struct kernels_partial *p,
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

struct kernels_partial suite_run_whole(const struct data *d, const struct kernels_attention *kernel)
{
    struct kernels_partial p = data_partial(d->rows, d->spec.q_heads, d->spec.v_dim);
    struct kernels_job job = data_job(d);
    job.out = p;
    data_run_kernel(kernel, &job);
    return p;
}

void suite_check(struct data *d, const float *sinks, const char *what)
{
    static uint32_t nth;
    if (nth++ % SANITIZED(1, 3, 3)) // shapes have four checks: each of them is done for some
        return;
    struct suite_answer want = suite_reference(d, sinks);
    const struct kernels_attention *kernel;
    for (uint32_t i = 0; (kernel = suite_next_kernel(&i));) {
        if (d->keys >= 5000 && kernel == kernels_attention_find("reference"))
            continue; // slow, and no further from the same sums than with fewer keys
        struct kernels_partial p = suite_run_whole(d, kernel);
        suite_compare(d, &want, &p, sinks, i - 1, what);
        data_partial_free(&p);
    }
    suite_answer_free(&want);
}

struct kernels_spec suite_spec(enum kernels_kv_type type, uint32_t k_dim, uint32_t v_dim, uint32_t group)
{
    return (struct kernels_spec){.kv_type = type,
                                 .k_dim = k_dim,
                                 .v_dim = v_dim,
                                 .q_heads = group,
                                 .kv_heads = 1,
                                 .scale = (float)(1 / sqrt(k_dim))};
}

const enum kernels_kv_type suite_types[SUITE_TYPES] = {KERNELS_KV_F32, KERNELS_KV_F16, KERNELS_KV_BF16,
                                                       KERNELS_KV_INT8, KERNELS_KV_FP8};
const char *const suite_type_names[SUITE_TYPES] = {"f32", "f16", "bf16", "int8", "fp8"};
bool suite_wanted[SUITE_TYPES];

int suite_report(void **state)
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
