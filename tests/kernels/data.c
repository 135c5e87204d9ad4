// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/data.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor/float16.h"
#include "common/tensor/quantise.h"

uint64_t data_random_u64(struct data_random *r)
{
    uint64_t x = r->state += 0x9e3779b97f4a7c15ULL; // splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

uint32_t data_random_below(struct data_random *r, uint32_t n)
{
    return (uint32_t)((data_random_u64(r) >> 32) * n >> 32);
}

float data_random_normal(struct data_random *r)
{
    double u = ((double)(data_random_u64(r) >> 11) + 0.5) * 0x1p-53,
           v = (double)(data_random_u64(r) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

const char *data_mode_name(enum data_mode mode)
{
    static const char *const names[DATA_MODES] = {"random", "large",  "near ties", "dominant",
                                                  "equal",  "cancel", "ascending", "small rise"};
    return names[mode];
}

static void *allocate(size_t bytes)
{
    void *p = NULL;
    int rc = posix_memalign(&p, KERNELS_ALIGN, bytes ? bytes : 1);
    assert(rc == 0);
    (void)rc;
    return p;
}

// Keys along one direction u of q, so that logits are what the mode asks for: k = (target / scale) q / |q|^2
// for the first query row and head, plus noise orthogonal by chance.
static void aim_keys(struct data *d, struct data_random *r)
{
    uint32_t dim = d->spec.k_dim, heads = d->spec.q_heads;
    double norm = 0;
    for (uint32_t i = 0; i < dim; i++)
        norm += (double)d->q[i] * d->q[i];
    for (size_t row = 1; row < (size_t)d->rows * heads; row++) { // other rows: nearly the same direction
        for (uint32_t i = 0; i < dim; i++)
            d->q[row * dim + i] = d->q[i] * (1 + 0.01f * (float)(row % 7));
    }
    uint32_t winner = data_random_below(r, d->keys);
    for (uint32_t j = 0; j < d->keys; j++) {
        double target = 0;
        switch (d->mode) {
        case DATA_NEAR_TIES:
            target = 9000 + 0.002 * (double)data_random_below(r, 5);
            break;
        case DATA_DOMINANT:
            target = j == winner ? 60 : data_random_normal(r);
            break;
        case DATA_ASCENDING:
            target = -300 + 600.0 * j / d->keys;
            break;
        case DATA_SMALL_RISE:
            target = 3 + 1e-6 * j;
            break;
        default:
            target = 2;
            break;
        }
        for (uint32_t i = 0; i < dim; i++)
            d->k[(size_t)j * dim + i] = (float)(target / d->spec.scale * d->q[i] / norm);
    }
}

static void scale_to(struct data *d, double largest)
{
    uint32_t dim = d->spec.k_dim;
    double most = 0;
    for (size_t row = 0; row < (size_t)d->rows * d->spec.q_heads; row++) {
        for (uint32_t j = 0; j < d->keys; j++) {
            double x = 0;
            for (uint32_t i = 0; i < dim; i++)
                x += (double)d->q[row * dim + i] * d->k[(size_t)j * dim + i];
            most = fmax(most, fabs(x * d->spec.scale));
        }
    }
    for (size_t i = 0; i < (size_t)d->rows * d->spec.q_heads * dim; i++)
        d->q[i] *= (float)(largest / most);
}

void data_make(struct data *d, uint64_t seed)
{
    struct data_random r = {seed};
    size_t nq = (size_t)d->rows * d->spec.q_heads * d->spec.k_dim;
    size_t nk = (size_t)d->keys * d->spec.k_dim, nv = (size_t)d->keys * d->spec.v_dim;
    d->q = allocate(nq * sizeof(float));
    d->k = allocate(nk * sizeof(float));
    d->v = allocate(nv * sizeof(float));
    for (size_t i = 0; i < nq; i++)
        d->q[i] = data_random_normal(&r);
    for (size_t i = 0; i < nk; i++)
        d->k[i] = data_random_normal(&r);
    for (size_t i = 0; i < nv; i++)
        d->v[i] = data_random_normal(&r);
    if (d->mode == DATA_LARGE)
        scale_to(d, 1e4);
    else if (d->mode != DATA_RANDOM)
        aim_keys(d, &r);
    if (d->mode == DATA_EQUAL || d->mode == DATA_CANCEL) {
        for (size_t i = d->spec.v_dim; i < nv; i++) {
            float first = d->v[i % d->spec.v_dim];
            d->v[i] = d->mode == DATA_CANCEL && i / d->spec.v_dim % 2 ? -first : first;
        }
    }
    data_cut(d, &d->keys, 1);
}

void data_uncut(struct data *d)
{
    for (uint32_t i = 0; i < d->run_count; i++)
        data_run_free(&d->runs[i]);
    free(d->runs);
    d->runs = NULL;
    d->run_count = 0;
}

void data_free(struct data *d)
{
    data_uncut(d);
    free(d->q);
    free(d->k);
    free(d->v);
    d->q = d->k = d->v = NULL;
}

// `rows` rows of dim floats as the KV type has them; scales: of the scaled types, else NULL.
static void *convert(enum kernels_kv_type type, const float *from, uint32_t rows, uint32_t dim,
                     float **scales)
{
    size_t n = (size_t)rows * dim;
    char *to = allocate(n * kernels_kv_bytes(type));
    *scales = kernels_kv_scaled(type) ? allocate(rows * sizeof(float)) : NULL;
    for (uint32_t row = 0; *scales && row < rows; row++) {
        const float *x = from + (size_t)row * dim;
        if (type == KERNELS_KV_INT8)
            (*scales)[row] = common_quantise_int8(x, dim, (int8_t *)to + (size_t)row * dim);
        else
            (*scales)[row] = common_quantise_fp8(x, dim, (uint8_t *)to + (size_t)row * dim);
    }
    for (size_t i = 0; !*scales && i < n; i++) {
        if (type == KERNELS_KV_F32)
            ((float *)(void *)to)[i] = from[i];
        else
            ((uint16_t *)(void *)to)[i] =
                type == KERNELS_KV_F16 ? common_f16_from_float(from[i]) : common_bf16_from_float(from[i]);
    }
    return to;
}

struct kernels_run data_run(const struct data *d, uint32_t first, uint32_t rows)
{
    const struct kernels_spec *s = &d->spec;
    float *k_scale, *v_scale;
    struct kernels_run run = {.first = d->key_first + first, .rows = rows};
    run.k = convert(s->kv_type, d->k + (size_t)first * s->k_dim, rows, s->k_dim, &k_scale);
    run.k_scale = k_scale;
    if (s->v_in_k)
        return run;
    run.v = convert(s->kv_type, d->v + (size_t)first * s->v_dim, rows, s->v_dim, &v_scale);
    run.v_scale = v_scale;
    return run;
}

void data_run_free(struct kernels_run *run)
{
    free((void *)(uintptr_t)run->k);
    free((void *)(uintptr_t)run->v);
    free((void *)(uintptr_t)run->k_scale);
    free((void *)(uintptr_t)run->v_scale);
}

void data_cut(struct data *d, const uint32_t *lengths, uint32_t n)
{
    data_uncut(d);
    uint32_t count = 0;
    for (uint32_t at = 0; at < d->keys; at += lengths[count++ % n])
        continue;
    d->runs = allocate(count * sizeof(*d->runs));
    for (uint32_t at = 0, i = 0; at < d->keys; i++) {
        uint32_t rows = lengths[i % n] < d->keys - at ? lengths[i % n] : d->keys - at;
        d->runs[d->run_count++] = data_run(d, at, rows);
        at += rows;
    }
}

void data_shuffle_runs(struct data *d, uint64_t seed)
{
    struct data_random r = {seed};
    for (uint32_t i = d->run_count; i > 1; i--) {
        uint32_t j = data_random_below(&r, i);
        struct kernels_run x = d->runs[i - 1];
        d->runs[i - 1] = d->runs[j];
        d->runs[j] = x;
    }
}

struct kernels_job data_job(const struct data *d)
{
    return (struct kernels_job){
        .spec = &d->spec,
        .rows = d->rows,
        .q_first = d->q_first,
        .visible = d->visible,
        .block_first = d->block_first,
        .block_end = d->block_end,
        .q = d->q,
        .q_row_stride = (uint64_t)d->spec.q_heads * d->spec.k_dim,
        .q_head_stride = d->spec.k_dim,
        .runs = d->runs,
        .run_count = d->run_count,
    };
}

struct kernels_partial data_partial(uint32_t rows, uint32_t heads, uint32_t dv)
{
    uint64_t bytes = kernels_partial_bytes(rows, heads, dv);
    assert(bytes > 0);
    void *block = allocate(bytes);
    memset(block, 0xff, bytes); // NaN: what is not written is seen
    struct kernels_partial p;
    kernels_partial_view(block, rows, heads, dv, &p);
    return p;
}

void data_partial_free(struct kernels_partial *p)
{
    free(p->m);
    p->m = p->s = p->o = NULL;
}

void data_run_kernel(const struct kernels_attention *kernel, const struct kernels_job *job)
{
    uint64_t bytes = kernels_attention_scratch(kernel, job->spec, job->rows, 1);
    void *scratch = allocate(bytes);
    memset(scratch, 0xff, bytes);
    kernel->run(job, 1, scratch);
    free(scratch);
}
