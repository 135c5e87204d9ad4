// SPDX-License-Identifier: Apache-2.0
#include "bench/attention_data.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/memory/blob.h"
#include "common/tensor/float16.h"

#define HUGE_PAGE ((uint64_t)2 << 20)
#define SCALES    ((uint64_t)1 << 16)

static const char *const names[] = {[KERNELS_KV_F32] = "f32",
                                    [KERNELS_KV_F16] = "f16",
                                    [KERNELS_KV_BF16] = "bf16",
                                    [KERNELS_KV_INT8] = "int8",
                                    [KERNELS_KV_FP8] = "fp8"};

const char *attention_kv_name(enum kernels_kv_type kv)
{
    return names[kv];
}

enum kernels_kv_type attention_kv_find(const char *name, size_t len)
{
    for (unsigned i = KERNELS_KV_F32; i <= KERNELS_KV_FP8; i++) {
        if (strlen(names[i]) == len && !memcmp(names[i], name, len))
            return i;
    }
    return 0;
}

// K, and V where it is not in K.
static uint32_t parts(const struct attention_shape *s)
{
    return s->v_in_k ? 1 : 2;
}

static uint32_t part_dim(const struct attention_shape *s, uint32_t which)
{
    return which ? s->v_dim : s->dim;
}

// What a query row sees.
static struct kernels_interval row_of(const struct attention_shape *s, uint32_t row)
{
    const struct kernels_mask mask = {.visible = s->context,
                                      .window = s->window,
                                      .mask_chunk = s->mask_chunk,
                                      .block_first = s->context - s->block,
                                      .block_end = s->block ? s->context : 0,
                                      .not_causal = s->not_causal};
    return kernels_row_interval(&mask, s->context - s->rows + row);
}

// Of a position: K, V and scales of all heads.
static uint64_t key_bytes(const struct attention_shape *s)
{
    uint64_t bytes = 0;
    for (uint32_t which = 0; which < parts(s); which++)
        bytes += (uint64_t)part_dim(s, which) * kernels_kv_bytes(s->kv) +
                 (kernels_kv_scaled(s->kv) ? sizeof(float) : 0);
    return bytes * s->kv_heads;
}

uint64_t attention_shape_bytes(const struct attention_shape *s)
{
    return key_bytes(s) * (row_of(s, s->rows - 1).to - row_of(s, 0).from);
}

uint64_t attention_shape_held(const struct attention_shape *s)
{
    return key_bytes(s) * s->context;
}

uint64_t attention_shape_flops(const struct attention_shape *s)
{
    uint64_t seen = 0;
    for (uint32_t row = 0; row < s->rows; row++)
        seen += row_of(s, row).to - row_of(s, row).from;
    return 2 * seen * s->kv_heads * s->group * ((uint64_t)s->dim + s->v_dim);
}

static uint64_t part_bytes(const struct attention_shape *s, uint32_t which, uint32_t rows)
{
    return common_align64((uint64_t)rows * part_dim(s, which) * kernels_kv_bytes(s->kv));
}

static uint64_t scale_bytes(const struct attention_shape *s, uint32_t rows)
{
    return kernels_kv_scaled(s->kv) ? common_align64(rows * sizeof(float)) : 0;
}

static uint64_t chunk_bytes(const struct attention_shape *s, uint32_t rows)
{
    uint64_t bytes = 0;
    for (uint32_t which = 0; which < parts(s); which++)
        bytes += part_bytes(s, which, rows) + scale_bytes(s, rows);
    return s->kv_heads * bytes;
}

uint64_t attention_shape_stored(const struct attention_shape *s)
{
    uint32_t rest = s->context % ATTENTION_CHUNK;
    return s->context / ATTENTION_CHUNK * chunk_bytes(s, ATTENTION_CHUNK) + (rest ? chunk_bytes(s, rest) : 0);
}

uint64_t attention_data_offset(uint64_t chunk, uint32_t kv_heads, uint32_t head, uint32_t which)
{
    return ((chunk * kv_heads + head) * 2 + which) * 2654435761u % ATTENTION_POOL;
}

static uint32_t noise(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}

// About normal: the sum of four uniform numbers, standard deviation 1.
static float normal(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(noise(state) >> 8) * 0x1p-24f;
    return (sum - 2) * 1.7320508f;
}

static void make_pool(void *pool, enum kernels_kv_type kv)
{
    uint64_t state = 0x9e3779b97f4a7c15ULL;
    for (uint64_t i = 0; i < 2 * ATTENTION_POOL; i++) {
        float x = normal(&state);
        switch (kv) {
        case KERNELS_KV_F32:
            ((float *)pool)[i] = x;
            break;
        case KERNELS_KV_F16:
            ((uint16_t *)pool)[i] = common_f16_from_float(x);
            break;
        case KERNELS_KV_BF16:
            ((uint16_t *)pool)[i] = common_bf16_from_float(x);
            break;
        case KERNELS_KV_INT8:
            ((int8_t *)pool)[i] = (int8_t)lrintf(x * (127 / 3.5f));
            break;
        case KERNELS_KV_FP8: { // either sign, 2^-3 to 2^2 · 1.875
            uint32_t r = noise(&state);
            ((uint8_t *)pool)[i] = (uint8_t)((r & 0x87) | (4 + (r >> 8) % 6) << 3);
            break;
        }
        }
    }
}

// Scales that bring codes back to about normal, up to a factor of 2 from token to token.
static void make_scales(float *scales, enum kernels_kv_type kv)
{
    uint64_t state = 0x2545f4914f6cdd1dULL;
    float unit = kv == KERNELS_KV_INT8 ? 3.5f / 127 : 0.4f;
    for (uint64_t i = 0; i < SCALES + ATTENTION_CHUNK; i++)
        scales[i] = unit * (0.67f + (float)(noise(&state) >> 8) * 0x1p-24f * 0.67f);
}

bool attention_data_init(struct attention_data *data, uint64_t memory_bytes, uint64_t runs)
{
    *data = (struct attention_data){.memory_bytes = (memory_bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE,
                                    .run_most = runs};
    data->memory = aligned_alloc(HUGE_PAGE, data->memory_bytes);
    data->pool = aligned_alloc(64, 2 * ATTENTION_POOL * sizeof(float));
    data->scales = aligned_alloc(64, common_align64((SCALES + ATTENTION_CHUNK) * sizeof(float)));
    data->runs = malloc(runs * sizeof *data->runs);
    if (!data->memory || !data->pool || !data->scales || !data->runs) {
        fprintf(stderr, "attention: no memory for %.1f GiB of keys and values: ask for shorter contexts\n",
                (double)memory_bytes / (1 << 30));
        attention_data_fini(data);
        return false;
    }
    madvise(data->memory, data->memory_bytes, MADV_HUGEPAGE); // a wish: small pages are right, too
    return true;
}

void attention_data_fini(struct attention_data *data)
{
    free(data->memory);
    free(data->pool);
    free(data->scales);
    free(data->runs);
    free(data->q);
    *data = (struct attention_data){0};
}

struct filler {
    struct attention_data *data;
    atomic_uint next;
};

static void fill_chunk(struct attention_data *data, uint32_t chunk)
{
    const struct attention_shape *s = &data->shape;
    uint32_t chunks = (s->context + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK, first = chunk * ATTENTION_CHUNK;
    uint32_t rows = s->context - first < ATTENTION_CHUNK ? s->context - first : ATTENTION_CHUNK;
    uint32_t element = kernels_kv_bytes(s->kv);
    char *at = data->memory + chunk * chunk_bytes(s, ATTENTION_CHUNK);
    for (uint32_t head = 0; head < s->kv_heads; head++) {
        struct kernels_run run = {.first = first, .rows = rows};
        for (uint32_t which = 0; which < parts(s); which++) {
            uint64_t offset = attention_data_offset(chunk, s->kv_heads, head, which);
            memcpy(at, (char *)data->pool + offset * element, (uint64_t)rows * part_dim(s, which) * element);
            *(which ? &run.v : &run.k) = at;
            at += part_bytes(s, which, rows);
        }
        for (uint32_t which = 0; which < parts(s) && kernels_kv_scaled(s->kv); which++) {
            uint64_t offset = attention_data_offset(chunk, s->kv_heads, head, which) % SCALES;
            memcpy(at, data->scales + offset, rows * sizeof(float));
            *(which ? &run.v_scale : &run.k_scale) = (const float *)(const void *)at;
            at += scale_bytes(s, rows);
        }
        data->runs[(uint64_t)head * chunks + chunk] = run;
    }
}

static void fill(void *arg, uint32_t thread)
{
    struct filler *filler = arg;
    uint32_t chunks = (filler->data->shape.context + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK;
    (void)thread;
    for (uint32_t chunk; (chunk = atomic_fetch_add(&filler->next, 1)) < chunks;)
        fill_chunk(filler->data, chunk);
}

bool attention_data_fill(struct attention_data *data, const struct attention_shape *shape,
                         struct attention_team *team)
{
    const struct attention_shape was = data->shape;
    uint64_t floats = (uint64_t)shape->rows * shape->kv_heads * shape->group * shape->dim;
    if (floats > data->q_floats) {
        free(data->q);
        data->q = malloc(floats * sizeof(float));
        data->q_floats = data->q ? floats : 0;
        if (!data->q) {
            fprintf(stderr, "attention: no memory for queries\n");
            return false;
        }
    }
    uint64_t state = 0xda942042e4dd58b5ULL;
    for (uint64_t i = 0; i < floats; i++)
        data->q[i] = normal(&state);
    data->shape = *shape;
    if (was.kv != shape->kv) {
        make_pool(data->pool, shape->kv);
        make_scales(data->scales, shape->kv);
    }
    if (was.kv == shape->kv && was.context == shape->context && was.kv_heads == shape->kv_heads &&
        was.dim == shape->dim && was.v_dim == shape->v_dim && was.v_in_k == shape->v_in_k)
        return true;
    struct filler filler = {.data = data};
    attention_team_run(team, fill, &filler);
    return true;
}

void attention_data_item(const struct attention_data *data, const struct kernels_attention *kernel,
                         struct kernels_spec *spec, struct kernels_item *item)
{
    const struct attention_shape *s = &data->shape;
    *spec = (struct kernels_spec){.kv_type = s->kv,
                                  .k_dim = s->dim,
                                  .v_dim = s->v_dim,
                                  .q_heads = s->kv_heads * s->group,
                                  .kv_heads = s->kv_heads,
                                  .scale = (float)(1 / sqrt(s->dim)),
                                  .window = s->window,
                                  .mask_chunk = s->mask_chunk,
                                  .not_causal = s->not_causal,
                                  .v_in_k = s->v_in_k};
    *item = (struct kernels_item){.spec = spec,
                                  .kernel = kernel,
                                  .rows = s->rows,
                                  .q_first = s->context - s->rows,
                                  .visible = s->context,
                                  .block_first = s->context - s->block,
                                  .block_end = s->block ? s->context : 0,
                                  .q = data->q,
                                  .q_row_stride = (uint64_t)spec->q_heads * s->dim,
                                  .q_head_stride = s->dim,
                                  .chunk_tokens = ATTENTION_CHUNK,
                                  .run_count = (s->context + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK,
                                  .runs = data->runs};
}
