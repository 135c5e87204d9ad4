// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference.h"

#include <math.h>
#include <string.h>

#include "common/tensor/float16.h"
#include "common/tensor/float8.h"
#include "kernels/variants.h"

#define STRETCH 64u   // elements of a row that are converted at a time
#define LOGITS  2048u // of a query that the first pass keeps for the second

// Elements first .. first + n - 1 of k or v, all of one row with this scale.
static void fetch(enum kernels_kv_type type, const void *base, float scale, uint64_t first, uint32_t n,
                  double *x)
{
    switch (type) {
    case KERNELS_KV_F16:
        for (uint32_t i = 0; i < n; i++)
            x[i] = common_f16_to_float(((const uint16_t *)base)[first + i]);
        break;
    case KERNELS_KV_BF16:
        for (uint32_t i = 0; i < n; i++)
            x[i] = common_bf16_to_float(((const uint16_t *)base)[first + i]);
        break;
    case KERNELS_KV_INT8:
        for (uint32_t i = 0; i < n; i++)
            x[i] = (double)scale * ((const int8_t *)base)[first + i];
        break;
    case KERNELS_KV_FP8:
        for (uint32_t i = 0; i < n; i++)
            x[i] = (double)scale * common_fp8_to_float(((const uint8_t *)base)[first + i]);
        break;
    default:
        for (uint32_t i = 0; i < n; i++)
            x[i] = ((const float *)base)[first + i];
        break;
    }
}

// Elements of the stretch from d on, of dim.
static uint32_t stretch(uint32_t d, uint32_t dim)
{
    return dim - d < STRETCH ? dim - d : STRETCH;
}

struct query {
    const struct kernels_job *job;
    const float *q;
    double slope;
    uint64_t position;
    struct kernels_interval sees;
};

static struct query query_of(const struct kernels_job *job, uint32_t row, uint32_t head)
{
    uint64_t h = (uint64_t)job->kv_head * kernels_spec_group(job->spec) + head;
    struct kernels_mask mask = kernels_job_mask(job);
    return (struct query){.job = job,
                          .q = job->q + row * job->q_row_stride + head * job->q_head_stride,
                          .slope = job->spec->alibi ? job->spec->alibi[h] : 0,
                          .position = job->q_first + row,
                          .sees = kernels_row_interval(&mask, job->q_first + row)};
}

static bool sees(const struct query *q, uint64_t key)
{
    return key >= q->sees.from && key < q->sees.to;
}

static double logit(const struct query *q, const struct kernels_run *run, uint32_t row)
{
    const struct kernels_spec *spec = q->job->spec;
    float scale = kernels_kv_scaled(spec->kv_type) ? run->k_scale[row] : 1;
    double x = 0, k[STRETCH];
    for (uint32_t d = 0; d < spec->k_dim; d += STRETCH) {
        uint32_t n = stretch(d, spec->k_dim);
        fetch(spec->kv_type, run->k, scale, (uint64_t)row * spec->k_dim + d, n, k);
        for (uint32_t i = 0; i < n; i++)
            x += q->q[d + i] * k[i];
    }
    x *= spec->scale;
    if (spec->soft_cap > 0)
        x = spec->soft_cap * tanh(x / spec->soft_cap);
    if (spec->alibi)
        x -= q->slope * (double)(int64_t)(q->position - (run->first + row));
    return x;
}

// Elements d .. d + n - 1 of a value.
static void value(const struct kernels_job *job, const struct kernels_run *run, uint32_t row, uint32_t d,
                  uint32_t n, double *v)
{
    const struct kernels_spec *spec = job->spec;
    const float *scales = spec->v_in_k ? run->k_scale : run->v_scale;
    uint64_t stride = spec->v_in_k ? spec->k_dim : spec->v_dim;
    float scale = kernels_kv_scaled(spec->kv_type) ? scales[row] : 1;
    fetch(spec->kv_type, spec->v_in_k ? run->k : run->v, scale, row * stride + d, n, v);
}

// The largest logit, or NaN if one is NaN, and what judges errors. The first LOGITS seen are kept in logits.
static double first_pass(const struct query *q, struct kernels_reference_row *row, double *logits)
{
    const struct kernels_job *job = q->job;
    double m = -INFINITY;
    *row = (struct kernels_reference_row){0};
    for (uint32_t i = 0; i < job->run_count; i++) {
        for (uint32_t j = 0; j < job->runs[i].rows; j++) {
            if (!sees(q, job->runs[i].first + j))
                continue;
            double x = logit(q, &job->runs[i], j);
            if (row->keys < LOGITS)
                logits[row->keys] = x;
            m = isnan(m) || m >= x ? m : x;
            row->x_abs = fmax(row->x_abs, fabs(x));
            row->keys++;
            for (uint32_t d = 0; d < job->spec->v_dim; d += STRETCH) {
                uint32_t n = stretch(d, job->spec->v_dim);
                double v[STRETCH];
                value(job, &job->runs[i], j, d, n, v);
                for (uint32_t c = 0; c < n; c++)
                    row->v_abs = fabs(v[c]) > row->v_abs ? fabs(v[c]) : row->v_abs;
            }
        }
    }
    return m;
}

// o = sum of exp(x - m) v; returns s = sum of exp(x - m).
static double second_pass(const struct query *q, double m, const double *logits, double *o)
{
    const struct kernels_job *job = q->job;
    double s = 0;
    uint64_t key = 0;
    memset(o, 0, job->spec->v_dim * sizeof(*o));
    for (uint32_t i = 0; i < job->run_count; i++) {
        for (uint32_t j = 0; j < job->runs[i].rows; j++) {
            if (!sees(q, job->runs[i].first + j))
                continue;
            double x = key < LOGITS ? logits[key] : logit(q, &job->runs[i], j);
            double w = x == -INFINITY && m == x ? 0 : exp(x - m);
            key++;
            s += w;
            for (uint32_t d = 0; d < job->spec->v_dim; d += STRETCH) {
                uint32_t n = stretch(d, job->spec->v_dim);
                double v[STRETCH];
                value(job, &job->runs[i], j, d, n, v);
                for (uint32_t c = 0; c < n; c++)
                    o[d + c] += w * v[c];
            }
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
        double logits[LOGITS], m = first_pass(&q, rows, logits), s = second_pass(&q, m, logits, o);
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

static uint64_t scratch_bytes(const struct kernels_spec *spec, uint32_t rows, uint32_t jobs)
{
    (void)rows;
    (void)jobs;
    return spec->v_dim * sizeof(double);
}

// As a kernel: slow, for BANYAN_KERNEL=reference, which makes a whole cluster an oracle.
static void run_one(const struct kernels_job *job, double *sum)
{
    uint32_t group = kernels_spec_group(job->spec), v_dim = job->spec->v_dim;
    for (uint64_t i = 0; i < (uint64_t)job->rows * group; i++) {
        struct query q = query_of(job, (uint32_t)(i / group), (uint32_t)(i % group));
        struct kernels_reference_row row;
        double logits[LOGITS], exact = first_pass(&q, &row, logits);
        float m = (float)exact, *o = job->out.o + i * v_dim;
        // Weights are taken against the rounded m, which is the m that others see
        double s = second_pass(&q, isinf(m) ? exact : m, logits, sum);
        bool nan = false;
        for (uint32_t d = 0; d < v_dim; d++) {
            o[d] = (float)sum[d];
            nan = nan || isnan(o[d]);
        }
        job->out.m[i] = m;
        job->out.s[i] = row.keys && s == 0 ? (nan ? NAN : -0.0f) : (float)s;
    }
}

static void reference_run(const struct kernels_job *jobs, uint32_t n, void *scratch)
{
    for (uint32_t i = 0; i < n; i++)
        run_one(&jobs[i], scratch);
}

const struct kernels_attention kernels_reference_kernel = {
    .name = "reference",
    .rank = 0,
    .scratch_bytes = scratch_bytes,
    .run = reference_run,
};
