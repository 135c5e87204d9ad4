// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor/float16.h"
#include "common/tensor/float8.h"

const struct kernels_device_ops *ops;
struct kernels_device *device;

static double worst_o[6], worst_lse[6]; // by KV type
static char worst_case[6][120];

static unsigned (*late_loads)(void);

bool harness_load(const char *path)
{
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
    ops = dlsym(module, KERNELS_DEVICE_SYMBOL);
    if (!ops || ops->abi != KERNELS_DEVICE_ABI || ops->size != sizeof(*ops)) {
        fprintf(stderr, "%s has no table of this version\n", path);
        return false;
    }
    void *counts = dlsym(module, "emulated_late_loads");
    memcpy(&late_loads, &counts, sizeof counts);
    return true;
}

unsigned harness_late_loads(void)
{
    return late_loads ? late_loads() : 0;
}

static void *allocate(uint64_t bytes)
{
    void *p = aligned_alloc(KERNELS_ALIGN, (bytes + KERNELS_ALIGN) / KERNELS_ALIGN * KERNELS_ALIGN);
    assert_non_null(p);
    return p;
}

// One row into codes; *scale is set for scaled types.
static void encode(enum kernels_kv_type type, const float *from, uint32_t n, uint8_t *to, float *scale)
{
    float most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = isfinite(from[i]) ? fmaxf(most, fabsf(from[i])) : most;
    *scale = most == 0 ? 1 : most / (type == KERNELS_KV_INT8 ? 127 : 448);
    for (uint32_t i = 0; i < n; i++) {
        if (type == KERNELS_KV_F32)
            ((float *)(void *)to)[i] = from[i];
        else if (type == KERNELS_KV_F16)
            ((uint16_t *)(void *)to)[i] = common_f16_from_float(from[i]);
        else if (type == KERNELS_KV_BF16)
            ((uint16_t *)(void *)to)[i] = common_bf16_from_float(from[i]);
        else if (type == KERNELS_KV_FP8)
            to[i] = isinf(from[i]) ? 0x7f : common_fp8_from_float(from[i] / *scale);
        else
            to[i] = isfinite(from[i]) ? (uint8_t)(int8_t)lrintf(from[i] / *scale) : 0;
        if (type == KERNELS_KV_INT8 && !isfinite(from[i]))
            *scale = from[i]; // the only way for such a row not to be finite
    }
}

static uint8_t *encode_all(const struct data *d, const float *from, uint32_t dim, float *scales)
{
    uint64_t row = (uint64_t)dim * kernels_kv_bytes(d->spec.kv_type);
    uint8_t *codes = allocate(d->keys * row);
    for (uint32_t j = 0; j < d->keys; j++)
        encode(d->spec.kv_type, from + (size_t)j * dim, dim, codes + j * row, &scales[j]);
    return codes;
}

struct placed harness_place(const struct data *heads, uint32_t kv_heads, const uint32_t *lengths, uint32_t n)
{
    struct placed p = {.heads = heads, .kv_heads = kv_heads, .spec = heads[0].spec};
    p.spec.kv_heads = kv_heads;
    p.spec.q_heads = heads[0].spec.q_heads * kv_heads;
    p.k = calloc(kv_heads, sizeof(*p.k));
    p.v = calloc(kv_heads, sizeof(*p.v));
    p.k_scale = calloc(kv_heads, sizeof(*p.k_scale));
    p.v_scale = calloc(kv_heads, sizeof(*p.v_scale));
    p.whole = calloc(kv_heads, sizeof(*p.whole));
    for (uint32_t h = 0; h < kv_heads; h++) {
        const struct data *d = &heads[h];
        p.k_scale[h] = allocate(d->keys * sizeof(float));
        p.v_scale[h] = allocate(d->keys * sizeof(float));
        p.k[h] = encode_all(d, d->k, d->spec.k_dim, p.k_scale[h]);
        p.v[h] = encode_all(d, d->v, d->spec.v_dim, p.v_scale[h]);
        p.whole[h] = (struct kernels_run){.k = p.k[h],
                                          .v = d->spec.v_in_k ? NULL : p.v[h],
                                          .first = d->key_first,
                                          .rows = d->keys,
                                          .k_scale = p.k_scale[h],
                                          .v_scale = d->spec.v_in_k ? NULL : p.v_scale[h]};
    }
    harness_cut(&p, lengths, n);
    return p;
}

static void uncut(struct placed *p)
{
    for (uint32_t i = 0; i < p->run_count; i++)
        ops->free(device, p->blocks[i]);
    free(p->runs);
    free(p->blocks);
    p->runs = NULL;
    p->blocks = NULL;
    p->run_count = 0;
}

static uint64_t align64(uint64_t n)
{
    return (n + 63) / 64 * 64;
}

// A block as long as its rows, full of finite rubbish, with a run's parts at multiples of 64 behind each
// other, head by head.
static void place_run(struct placed *p, uint32_t at, uint32_t rows)
{
    uint64_t element = kernels_kv_bytes(p->spec.kv_type);
    uint64_t k_row = p->spec.k_dim * element, v_row = p->spec.v_dim * element;
    uint64_t v = align64(rows * k_row), ks = v + align64(rows * v_row),
             vs = ks + align64(rows * sizeof(float));
    uint64_t stride = vs + align64(rows * sizeof(float)), block;
    struct common_error err;
    assert_int_equal(ops->alloc(device, stride * p->kv_heads, &block, &err), COMMON_OK);
    uint8_t *bytes = allocate(stride * p->kv_heads);
    memset(bytes, 0x5a, stride * p->kv_heads);
    for (uint32_t h = 0; h < p->kv_heads; h++) {
        uint8_t *head = bytes + h * stride;
        memcpy(head, p->k[h] + at * k_row, rows * k_row);
        if (!p->spec.v_in_k)
            memcpy(head + v, p->v[h] + at * v_row, rows * v_row);
        if (kernels_kv_scaled(p->spec.kv_type)) {
            memcpy(head + ks, p->k_scale[h] + at, rows * sizeof(float));
            memcpy(head + vs, p->v_scale[h] + at, rows * sizeof(float));
        }
    }
    struct kernels_device_piece piece = {
        .device = block, .host = bytes, .width = stride * p->kv_heads, .height = 1};
    bool inside = p->spec.v_in_k;
    assert_int_equal(ops->write(device, &piece, 1, &err), COMMON_OK);
    memset(bytes, 0x5a, stride * p->kv_heads); // it may be reused
    free(bytes);
    p->blocks[p->run_count] = block;
    p->runs[p->run_count++] = (struct kernels_device_run){.k = block,
                                                          .v = inside ? 0 : block + v,
                                                          .k_scale = block + ks,
                                                          .v_scale = inside ? 0 : block + vs,
                                                          .head_stride = stride,
                                                          .first = p->heads[0].key_first + at,
                                                          .rows = rows};
}

void harness_cut(struct placed *p, const uint32_t *lengths, uint32_t n)
{
    uncut(p);
    uint32_t keys = p->heads[0].keys, count = 0;
    for (uint32_t at = 0; at < keys; at += lengths[count++ % n])
        continue;
    p->runs = calloc(count, sizeof(*p->runs));
    p->blocks = calloc(count, sizeof(*p->blocks));
    for (uint32_t at = 0, i = 0; at < keys; i++) {
        uint32_t rows = lengths[i % n] < keys - at ? lengths[i % n] : keys - at;
        place_run(p, at, rows);
        at += rows;
    }
}

void harness_shuffle(struct placed *p, uint64_t seed)
{
    struct data_random r = {seed};
    for (uint32_t i = p->run_count; i > 1; i--) {
        uint32_t j = data_random_below(&r, i);
        struct kernels_device_run x = p->runs[i - 1];
        p->runs[i - 1] = p->runs[j];
        p->runs[j] = x;
    }
}

void harness_remove(struct placed *p)
{
    uncut(p);
    for (uint32_t h = 0; h < p->kv_heads; h++) {
        free(p->k[h]);
        free(p->v[h]);
        free(p->k_scale[h]);
        free(p->v_scale[h]);
    }
    free(p->k);
    free(p->v);
    free(p->k_scale);
    free(p->v_scale);
    free(p->whole);
}

struct kernels_device_item harness_item(const struct placed *p)
{
    const struct data *d = &p->heads[0];
    uint64_t group = d->spec.q_heads, dim = d->spec.k_dim;
    float *q = allocate(d->rows * group * p->kv_heads * dim * sizeof(float));
    for (uint64_t r = 0; r < d->rows; r++) {
        for (uint64_t h = 0; h < p->kv_heads; h++)
            memcpy(q + (r * p->kv_heads + h) * group * dim, p->heads[h].q + r * group * dim,
                   group * dim * sizeof(float));
    }
    return (struct kernels_device_item){.spec = &p->spec,
                                        .rows = d->rows,
                                        .q_first = d->q_first,
                                        .visible = d->visible,
                                        .block_first = d->block_first,
                                        .block_end = d->block_end,
                                        .q = q,
                                        .q_row_stride = group * p->kv_heads * dim,
                                        .q_head_stride = dim,
                                        .run_count = p->run_count,
                                        .runs = p->runs,
                                        .out = data_partial(d->rows, p->spec.q_heads, d->spec.v_dim)};
}

void harness_item_free(struct kernels_device_item *item)
{
    free((void *)(uintptr_t)item->q);
    data_partial_free(&item->out);
}

struct outcome {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int calls;
    enum common_code code;
    struct common_error err;
};

static void note(void *arg, enum common_code code, const struct common_error *err)
{
    struct outcome *o = arg;
    pthread_mutex_lock(&o->lock);
    o->calls++;
    o->code = code;
    o->err = *err;
    pthread_cond_signal(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

enum common_code harness_run_to(const struct kernels_device_sink *sink,
                                const struct kernels_device_item *items, uint32_t n, struct common_error *err)
{
    struct outcome o = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    enum common_code code = ops->submit(device, items, n, sink, note, &o, err);
    if (code != COMMON_OK)
        return code;
    pthread_mutex_lock(&o.lock);
    while (o.calls == 0)
        pthread_cond_wait(&o.changed, &o.lock);
    pthread_mutex_unlock(&o.lock);
    assert_int_equal(o.calls, 1);
    if (err)
        *err = o.err;
    return o.code;
}

enum common_code harness_run(const struct kernels_device_item *items, uint32_t n, struct common_error *err)
{
    return harness_run_to(NULL, items, n, err);
}

static void judge_row(const struct data *d, const struct kernels_reference_row *row, const double *want,
                      const float *got, double lse, const char *what)
{
    double bound_o = kernels_reference_bound_o(row), bound_lse = kernels_reference_bound_lse(row);
    int type = (int)d->spec.kv_type;
    if (!isfinite(row->lse)) {
        if (!(isnan(row->lse) ? isnan(lse) : lse == row->lse))
            fail_msg("%s, %s: lse %g, want %g", d->name, what, lse, row->lse);
    } else {
        double ratio = fabs(lse - row->lse) / bound_lse;
        if (!(ratio <= 1))
            fail_msg("%s, %s: lse %.9g, want %.9g, %.2f of the bound", d->name, what, lse, row->lse, ratio);
        worst_lse[type] = fmax(worst_lse[type], ratio);
    }
    for (uint32_t c = 0; c < d->spec.v_dim; c++) {
        if (!isfinite(want[c])) {
            if (!(isnan(want[c]) ? isnan(got[c]) : got[c] == want[c]))
                fail_msg("%s, %s: o[%u] %g, want %g", d->name, what, c, got[c], want[c]);
            continue;
        }
        double ratio = got[c] == want[c] ? 0 : fabs(got[c] - want[c]) / bound_o;
        if (!isfinite(got[c]) || (isfinite(bound_o) && !(ratio <= 1)))
            fail_msg("%s, %s: o[%u] %.9g, want %.9g, %.2f of the bound", d->name, what, c, got[c], want[c],
                     ratio);
        if (isfinite(bound_o) && ratio > worst_o[type]) {
            worst_o[type] = ratio;
            snprintf(worst_case[type], sizeof(worst_case[type]), "%s, %s", d->name, what);
        }
    }
}

void harness_judge(const struct placed *p, const struct kernels_partial *out, const char *what)
{
    uint64_t n = (uint64_t)out->rows * out->heads;
    float *o = malloc(n * out->dv * sizeof(float)), *lse = malloc(n * sizeof(float));
    assert_non_null(o);
    assert_non_null(lse);
    kernels_partial_finish(out, NULL, o, lse);
    for (uint32_t h = 0; h < p->kv_heads; h++) {
        const struct data *d = &p->heads[h];
        uint64_t group = d->spec.q_heads, pairs = d->rows * group;
        double *want = malloc(pairs * out->dv * sizeof(double));
        struct kernels_reference_row *rows = malloc(pairs * sizeof(*rows));
        assert_non_null(want);
        assert_non_null(rows);
        struct kernels_job job = data_job(d);
        job.runs = &p->whole[h];
        job.run_count = 1;
        kernels_reference(&job, NULL, want, rows);
        for (uint64_t i = 0; i < pairs; i++) {
            uint64_t at = i / group * out->heads + h * group + i % group;
            judge_row(d, &rows[i], want + i * out->dv, o + at * out->dv, lse[at], what);
        }
        free(want);
        free(rows);
    }
    free(o);
    free(lse);
}

void harness_print_worst(void)
{
    static const char *const names[] = {"", "f32", "f16", "bf16", "int8", "fp8"};
    for (int t = 1; t < 6; t++)
        printf("%-5s o within %.3f, lse within %.3f of the bound (%s)\n", names[t], worst_o[t], worst_lse[t],
               worst_case[t]);
}
