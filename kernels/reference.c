// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference.h"

#include <math.h>
#include <string.h>

#include "common/float16.h"
#include "common/float8.h"
#include "kernels/variants.h"

// Element `column` of row `row` of k or v, `dim` wide.
static double element(enum kernels_kv_type type, const void *base, const float *scale, uint32_t row,
                      uint32_t dim, uint32_t column)
{
    uint64_t i = (uint64_t)row * dim + column;
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

struct query {
    const struct kernels_job *job;
    const float *q;
    double slope;
    uint64_t position;
};

static struct query query_of(const struct kernels_job *job, uint32_t row, uint32_t head)
{
    uint64_t h = (uint64_t)job->kv_head * kernels_spec_group(job->spec) + head;
    return (struct query){.job = job,
                          .q = job->q + row * job->q_row_stride + head * job->q_head_stride,
                          .slope = job->spec->alibi ? job->spec->alibi[h] : 0,
                          .position = job->q_first + row};
}

static bool sees(const struct query *q, uint64_t key)
{
    uint64_t window = q->job->spec->window;
    return key < q->job->visible && key <= q->position && (window == 0 || q->position - key < window);
}

static double logit(const struct query *q, const struct kernels_run *run, uint32_t row)
{
    const struct kernels_spec *spec = q->job->spec;
    double x = 0;
    for (uint32_t d = 0; d < spec->k_dim; d++)
        x += q->q[d] * element(spec->kv_type, run->k, run->k_scale, row, spec->k_dim, d);
    x *= spec->scale;
    if (spec->soft_cap > 0)
        x = spec->soft_cap * tanh(x / spec->soft_cap);
    if (spec->alibi)
        x -= q->slope * (double)(q->position - (run->first + row));
    return x;
}

static double value(const struct kernels_job *job, const struct kernels_run *run, uint32_t row, uint32_t d)
{
    return element(job->spec->kv_type, run->v, run->v_scale, row, job->spec->v_dim, d);
}

// The largest logit, or NaN if one is NaN, and what judges errors.
static double first_pass(const struct query *q, struct kernels_reference_row *row)
{
    const struct kernels_job *job = q->job;
    double m = -INFINITY;
    *row = (struct kernels_reference_row){0};
    for (uint32_t i = 0; i < job->run_count; i++) {
        for (uint32_t j = 0; j < job->runs[i].rows; j++) {
            if (!sees(q, job->runs[i].first + j))
                continue;
            double x = logit(q, &job->runs[i], j);
            m = isnan(m) || m >= x ? m : x;
            row->x_abs = fmax(row->x_abs, fabs(x));
            row->keys++;
            for (uint32_t d = 0; d < job->spec->v_dim; d++) {
                double v = value(job, &job->runs[i], j, d);
                row->v_abs = fmax(row->v_abs, fabs(v));
            }
        }
    }
    return m;
}

// o = sum of exp(x - m) v; returns s = sum of exp(x - m).
static double second_pass(const struct query *q, double m, double *o)
{
    const struct kernels_job *job = q->job;
    double s = 0;
    memset(o, 0, job->spec->v_dim * sizeof(*o));
    for (uint32_t i = 0; i < job->run_count; i++) {
        for (uint32_t j = 0; j < job->runs[i].rows; j++) {
            if (!sees(q, job->runs[i].first + j))
                continue;
            double x = logit(q, &job->runs[i], j), w = x == -INFINITY && m == x ? 0 : exp(x - m);
            s += w;
            for (uint32_t d = 0; d < job->spec->v_dim; d++)
                o[d] += w * value(job, &job->runs[i], j, d);
        }
    }
    return s;
}

void kernels_reference(const struct kernels_job *job, const float *sinks, double *o,
                       struct kernels_reference_row *rows)
{
    uint32_t group = kernels_spec_group(job->spec), v_dim = job->spec->v_dim;
    for (uint64_t i = 0; i < (uint64_t)job->rows * group; i++, o += v_dim, rows++) {
        uint32_t head = (uint32_t)(i % group);
        struct query q = query_of(job, (uint32_t)(i / group), head);
        double m = first_pass(&q, rows), s = second_pass(&q, m, o);
        double sink = sinks ? sinks[(uint64_t)job->kv_head * group + head] : -INFINITY;
        if (rows->keys == 0) {
            rows->lse = sink;
            continue;
        }
        double top = isnan(m) || m >= sink ? m : sink;
        if (sink != -INFINITY) {
            double a = m == -INFINITY ? 1 : exp(m - top);
            for (uint32_t d = 0; d < v_dim; d++)
                o[d] *= a;
            s = s * a + exp(sink - top);
            rows->x_abs = fmax(rows->x_abs, fabs(sink));
        }
        rows->lse = top + log(s);
        for (uint32_t d = 0; d < v_dim; d++) {
            o[d] /= s;
            rows->o_abs = fmax(rows->o_abs, fabs(o[d]));
        }
    }
}

double kernels_reference_bound_o(const struct kernels_reference_row *row)
{
    return 2e-6 * fmax(1, row->x_abs / 16) *
           fmax(row->o_abs, row->keys ? row->v_abs / sqrt((double)row->keys) : 0);
}

double kernels_reference_bound_lse(const struct kernels_reference_row *row)
{
    return 2e-6 * fmax(1, row->x_abs);
}

static uint64_t scratch_bytes(const struct kernels_spec *spec, uint32_t rows)
{
    (void)rows;
    return spec->v_dim * sizeof(double);
}

// As a kernel: slow, for BANYAN_KERNEL=reference, which makes a whole cluster an oracle.
static void run(const struct kernels_job *job, void *scratch)
{
    uint32_t group = kernels_spec_group(job->spec), v_dim = job->spec->v_dim;
    double *sum = scratch;
    for (uint64_t i = 0; i < (uint64_t)job->rows * group; i++) {
        struct query q = query_of(job, (uint32_t)(i / group), (uint32_t)(i % group));
        struct kernels_reference_row row;
        double exact = first_pass(&q, &row);
        float m = (float)exact, *o = job->out.o + i * v_dim;
        // Weights are taken against the rounded m, which is the m that others see
        double s = second_pass(&q, isinf(m) ? exact : m, sum);
        bool nan = false;
        for (uint32_t d = 0; d < v_dim; d++) {
            o[d] = (float)sum[d];
            nan = nan || isnan(o[d]);
        }
        job->out.m[i] = m;
        job->out.s[i] = row.keys && s == 0 ? (nan ? NAN : -0.0f) : (float)s;
    }
}

const struct kernels_attention kernels_reference_kernel = {
    .name = "reference",
    .rank = 0,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
