// SPDX-License-Identifier: Apache-2.0
#include "bench/device_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory/blob.h"
#include "common/tensor/float16.h"
#include "common/tensor/float8.h"
#include "kernels/reference.h"

#define STARTS     ((uint64_t)1 << 20) // elements of the pool that a part may start at; a part follows them
#define SCALES     ((uint64_t)1 << 16)
#define PARTS      4u                  // of a head: K, V, their scales
#define CHECK_ALL  ((uint64_t)1 << 25) // multiply-adds of a dot product; beyond them only CHECK_SOME rows
#define CHECK_SOME 12u

// ---- sizes

static uint64_t element_bytes(const struct device_shape *s)
{
    return kernels_kv_bytes(s->kv);
}

static uint32_t chunks_of(const struct device_shape *s)
{
    return (s->context + DEVICE_CHUNK - 1) / DEVICE_CHUNK;
}

static uint64_t value_bytes(const struct device_shape *s) // of K or V of a full chunk and head
{
    return common_align64((uint64_t)DEVICE_CHUNK * s->dim * element_bytes(s));
}

static uint64_t head_bytes(const struct device_shape *s)
{
    uint64_t scales = kernels_kv_scaled(s->kv) ? DEVICE_CHUNK * sizeof(float) : 0;
    return (s->v_in_k ? 1 : 2) * (value_bytes(s) + scales);
}

uint32_t device_shape_v_dim(const struct device_shape *s)
{
    return s->v_in_k ? s->v_in_k : s->dim;
}

uint64_t device_shape_bytes(const struct device_shape *s)
{
    uint64_t scale = kernels_kv_scaled(s->kv) ? sizeof(float) : 0;
    return (s->v_in_k ? 1ULL : 2ULL) * s->batch * s->context * s->kv_heads *
           (s->dim * element_bytes(s) + scale);
}

uint64_t device_shape_stored(const struct device_shape *s)
{
    return (uint64_t)s->batch * chunks_of(s) * s->kv_heads * head_bytes(s);
}

// ---- contents

static uint64_t mix(uint64_t x) // splitmix64
{
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

// About normal: the sum of four uniform numbers, standard deviation 1, at most 3.5.
static float normal(uint64_t at)
{
    uint64_t bits = mix(at);
    float sum = 0;
    for (int i = 0; i < 4; i++, bits >>= 16)
        sum += (float)(bits & 0xffff) * 0x1p-16f;
    return (sum - 2) * 1.7320508f;
}

static void encode(enum kernels_kv_type kv, void *pool, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        float x = normal(i);
        if (kv == KERNELS_KV_F32)
            ((float *)pool)[i] = x;
        else if (kv == KERNELS_KV_F16)
            ((uint16_t *)pool)[i] = common_f16_from_float(x);
        else if (kv == KERNELS_KV_BF16)
            ((uint16_t *)pool)[i] = common_bf16_from_float(x);
        else if (kv == KERNELS_KV_INT8)
            ((int8_t *)pool)[i] = (int8_t)lrintf(x * (127 / 3.5f));
        else
            ((uint8_t *)pool)[i] = common_fp8_from_float(x * 128);
    }
}

static bool make_pool(struct device_data *data)
{
    uint64_t n = STARTS + (uint64_t)DEVICE_CHUNK * data->shape.dim;
    data->pool = aligned_alloc(KERNELS_ALIGN, common_align64(n * element_bytes(&data->shape)));
    data->scales = aligned_alloc(KERNELS_ALIGN, (SCALES + DEVICE_CHUNK) * sizeof(float));
    if (!data->pool || !data->scales)
        return false;
    encode(data->shape.kv, data->pool, n);
    // Back to about normal, up to a factor of 2 from key to key
    float unit = data->shape.kv == KERNELS_KV_INT8 ? 3.5f / 127 : 1.0f / 128;
    for (uint64_t i = 0; i < SCALES + DEVICE_CHUNK; i++)
        data->scales[i] = unit * (0.67f + (float)(mix(~i) >> 40) * 0x1p-24f * 0.67f);
    return true;
}

// Where a part's contents lie on the host. chunk counts those of all copies and sequences.
static const void *part_at(const struct device_data *data, uint64_t chunk, uint32_t head, uint32_t part)
{
    uint64_t hash = mix((chunk * data->shape.kv_heads + head) * PARTS + part);
    if (part >= 2)
        return data->scales + hash % SCALES / 16 * 16;
    return (const char *)data->pool + hash % STARTS / 64 * 64 * element_bytes(&data->shape);
}

static uint32_t rows_of(const struct device_data *data, uint64_t chunk)
{
    uint32_t first = (uint32_t)(chunk % data->chunks) * DEVICE_CHUNK, left = data->shape.context - first;
    return left < DEVICE_CHUNK ? left : DEVICE_CHUNK;
}

static uint64_t chunk_address(const struct device_data *data, uint64_t chunk)
{
    return data->blocks[chunk / data->per_block] + chunk % data->per_block * data->chunk_stride;
}

static enum common_code fill_chunk(const struct device_data *data, uint64_t chunk, struct common_error *err)
{
    const struct device_shape *s = &data->shape;
    uint32_t rows = rows_of(data, chunk), parts = kernels_kv_scaled(s->kv) ? 4 : 2;
    const uint64_t scales = (s->v_in_k ? 1 : 2) * value_bytes(s);
    const uint64_t offset[PARTS] = {0, value_bytes(s), scales, scales + DEVICE_CHUNK * sizeof(float)};
    uint64_t base = chunk_address(data, chunk);
    data->runs[chunk] = (struct kernels_device_run){.k = base,
                                                    .v = base + offset[1],
                                                    .k_scale = base + offset[2],
                                                    .v_scale = base + offset[3],
                                                    .head_stride = data->head_stride,
                                                    .first = chunk % data->chunks * DEVICE_CHUNK,
                                                    .rows = rows};
    for (uint32_t head = 0; head < s->kv_heads; head++) {
        struct kernels_device_piece pieces[PARTS];
        uint32_t n = 0;
        for (uint32_t part = 0; part < parts; part += s->v_in_k ? 2 : 1) // values inside keys: K's alone
            pieces[n++] = (struct kernels_device_piece){
                .device = base + head * data->head_stride + offset[part],
                .host = (void *)(uintptr_t)part_at(data, chunk, head, part),
                .width = rows * (part < 2 ? s->dim * element_bytes(s) : sizeof(float)),
                .height = 1};
        enum common_code code = data->ops->write(data->handle, pieces, n, err);
        if (code != COMMON_OK)
            return code;
    }
    return COMMON_OK;
}

// ---- life

enum common_code device_data_init(struct device_data *data, const struct kernels_device_ops *ops,
                                  struct kernels_device *handle, const struct device_shape *shape,
                                  uint32_t copies, struct common_error *err)
{
    *data = (struct device_data){.ops = ops,
                                 .handle = handle,
                                 .shape = *shape,
                                 .copies = copies,
                                 .chunks = chunks_of(shape),
                                 .head_stride = head_bytes(shape),
                                 .chunk_stride = shape->kv_heads * head_bytes(shape)};
    uint64_t chunks = (uint64_t)copies * shape->batch * data->chunks;
    data->per_block = KERNELS_DEVICE_BLOCK / data->chunk_stride; // >= 2, see --kv-heads and --dim
    if (data->per_block > chunks)
        data->per_block = chunks;
    data->blocks_n = (chunks + data->per_block - 1) / data->per_block;
    data->blocks = calloc(2 * data->blocks_n, sizeof *data->blocks);
    data->runs = calloc(chunks, sizeof *data->runs);
    if (!data->blocks || !data->runs || !make_pool(data))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a point");
    enum common_code code = COMMON_OK;
    for (uint64_t i = 0; code == COMMON_OK && i < 2 * data->blocks_n; i++) {
        uint64_t left = chunks - i % data->blocks_n * data->per_block;
        uint64_t n = left < data->per_block ? left : data->per_block;
        code = ops->alloc(handle, n * data->chunk_stride, &data->blocks[i], err);
    }
    for (uint64_t i = 0; code == COMMON_OK && i < chunks; i++)
        code = fill_chunk(data, i, err);
    return code;
}

void device_data_fini(struct device_data *data)
{
    for (uint64_t i = 0; data->blocks && i < 2 * data->blocks_n; i++)
        data->ops->free(data->handle, data->blocks[i]);
    free(data->blocks);
    free(data->runs);
    free(data->pool);
    free(data->scales);
    free(data->q);
    *data = (struct device_data){0};
}

enum common_code device_data_queries(struct device_data *data, const struct device_shape *shape,
                                     struct common_error *err)
{
    uint64_t n = (uint64_t)shape->batch * shape->rows * shape->kv_heads * shape->group * shape->dim;
    float *q = malloc(n * sizeof *q);
    if (!q)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for queries");
    for (uint64_t i = 0; i < n; i++)
        q[i] = normal(~i);
    free(data->q);
    data->q = q;
    data->shape = *shape;
    data->spec = (struct kernels_spec){.kv_type = shape->kv,
                                       .k_dim = shape->dim,
                                       .v_dim = device_shape_v_dim(shape),
                                       .v_in_k = shape->v_in_k != 0,
                                       .q_heads = shape->kv_heads * shape->group,
                                       .kv_heads = shape->kv_heads,
                                       .scale = (float)(1 / sqrt(shape->dim))};
    return COMMON_OK;
}

// ---- use

void device_data_items(const struct device_data *data, uint32_t copy, struct kernels_device_item *items)
{
    const struct device_shape *s = &data->shape;
    uint64_t row = (uint64_t)data->spec.q_heads * s->dim;
    for (uint32_t b = 0; b < s->batch; b++) {
        items[b].spec = &data->spec;
        items[b].rows = s->rows;
        items[b].q_first = s->context - s->rows;
        items[b].visible = s->context;
        items[b].q = data->q + b * s->rows * row;
        items[b].q_row_stride = row;
        items[b].q_head_stride = s->dim;
        items[b].run_count = data->chunks;
        items[b].runs = data->runs + ((uint64_t)copy * s->batch + b) * data->chunks;
    }
}

enum common_code device_data_copy(const struct device_data *data, uint32_t copy, uint64_t *bytes,
                                  struct common_error *err)
{
    uint64_t at = (uint64_t)copy * data->shape.batch * data->chunks;
    uint64_t end = at + (uint64_t)data->shape.batch * data->chunks, some;
    *bytes = (end - at) * data->chunk_stride;
    for (; at < end; at += some) { // as much of it as lies in one block
        uint64_t block = at / data->per_block, in = at % data->per_block * data->chunk_stride;
        some = data->per_block - at % data->per_block;
        some = some < end - at ? some : end - at;
        const struct kernels_device_copy piece = {.to = data->blocks[data->blocks_n + block] + in,
                                                  .from = data->blocks[block] + in,
                                                  .width = some * data->chunk_stride,
                                                  .height = 1};
        enum common_code code = data->ops->copy(data->handle, &piece, 1, err);
        if (code != COMMON_OK)
            return code;
    }
    return COMMON_OK;
}

enum common_code device_data_wait(const struct device_data *data, struct common_error *err)
{
    char few[4];
    const struct kernels_device_piece piece = {
        .device = data->blocks[data->blocks_n], .host = few, .width = sizeof few, .height = 1};
    return data->ops->read(data->handle, &piece, 1, err);
}

struct host_runs { // of one sequence and head, on the host
    struct kernels_run *runs;
    float *o, *lse; // of one item, finished
    double *exact;
};

// One query row and head of a sequence against the reference.
static double check(const struct device_data *data, const struct host_runs *host, uint64_t sequence,
                    uint32_t row, uint32_t head)
{
    const struct device_shape *s = &data->shape;
    struct kernels_spec spec = data->spec;
    struct kernels_reference_row reference;
    uint32_t kv_head = head / s->group;
    uint64_t q_row = (uint64_t)data->spec.q_heads * s->dim, at = (uint64_t)row * data->spec.q_heads + head;
    spec.q_heads = spec.kv_heads; // a group of one: the head alone
    for (uint32_t i = 0; i < data->chunks; i++) {
        uint64_t chunk = sequence * data->chunks + i;
        host->runs[i] = (struct kernels_run){.k = part_at(data, chunk, kv_head, 0),
                                             .v = part_at(data, chunk, kv_head, 1),
                                             .k_scale = part_at(data, chunk, kv_head, 2),
                                             .v_scale = part_at(data, chunk, kv_head, 3),
                                             .first = (uint64_t)i * DEVICE_CHUNK,
                                             .rows = rows_of(data, chunk)};
    }
    const struct kernels_job job = {.spec = &spec,
                                    .kv_head = kv_head,
                                    .rows = 1,
                                    .q_first = s->context - s->rows + row,
                                    .visible = s->context,
                                    .q = data->q + (sequence % s->batch * s->rows + row) * q_row +
                                         (uint64_t)head * s->dim,
                                    .q_row_stride = q_row,
                                    .q_head_stride = s->dim,
                                    .runs = host->runs,
                                    .run_count = data->chunks};
    kernels_reference(&job, NULL, host->exact, &reference);
    double worst = fabs(host->lse[at] - reference.lse) / kernels_reference_bound_lse(&reference);
    for (uint32_t d = 0, v_dim = spec.v_dim; d < v_dim; d++) {
        double error = fabs(host->o[at * v_dim + d] - host->exact[d]) / kernels_reference_bound_o(&reference);
        if (!(error <= worst))
            worst = error;
    }
    return worst;
}

double device_data_error(const struct device_data *data, uint32_t copy, const struct kernels_partial *outs)
{
    const struct device_shape *s = &data->shape;
    uint64_t pairs = (uint64_t)s->rows * data->spec.q_heads, checked = pairs;
    struct host_runs host = {.runs = calloc(data->chunks, sizeof *host.runs),
                             .o = malloc(pairs * data->spec.v_dim * sizeof *host.o),
                             .lse = malloc(pairs * sizeof *host.lse),
                             .exact = malloc(data->spec.v_dim * sizeof *host.exact)};
    double worst = host.runs && host.o && host.lse && host.exact ? 0 : NAN;
    if (pairs > CHECK_SOME && pairs * s->batch * s->context * s->dim > CHECK_ALL)
        checked = CHECK_SOME; // the first and the last among them
    for (uint32_t b = 0; worst >= 0 && b < s->batch; b++) {
        kernels_partial_finish(&outs[b], NULL, host.o, host.lse);
        for (uint64_t i = 0; worst >= 0 && i < checked; i++) {
            uint64_t pair = checked > 1 ? i * (pairs - 1) / (checked - 1) : 0;
            double error =
                check(data, &host, (uint64_t)copy * s->batch + b, (uint32_t)(pair / data->spec.q_heads),
                      (uint32_t)(pair % data->spec.q_heads));
            if (!(error <= worst))
                worst = error;
        }
    }
    free(host.runs);
    free(host.o);
    free(host.lse);
    free(host.exact);
    return worst;
}
