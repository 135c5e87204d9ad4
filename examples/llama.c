// SPDX-License-Identifier: Apache-2.0
#include "examples/llama.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/pool.h"

static void rms_norm(const float *x, const float *weight, uint32_t n, float eps, float *y)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    float scale = (float)(1.0 / sqrt(sum / n + eps));
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * weight[i];
}

// Rotates each head's halves against each other (the layout of Hugging Face's Llama weights). Angles in
// float64: positions are large.
static void rope(float *x, uint32_t heads, uint32_t dim, uint64_t position, const double *inv_freq)
{
    uint32_t half = dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        double angle = (double)position * inv_freq[i];
        float c = (float)cos(angle), s = (float)sin(angle);
        for (uint32_t h = 0; h < heads; h++) {
            float *p = x + (size_t)h * dim;
            float a = p[i], b = p[i + half];
            p[i] = a * c - b * s;
            p[i + half] = b * c + a * s;
        }
    }
}

static void silu_times(float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static void add_to(float *x, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] += y[i];
}

// What one block needs, cut from one allocation.
struct block {
    float *x, *h, *q, *k, *v, *a, *gate, *up;
    void *memory;
};

static int block_alloc(const struct llama_config *c, uint32_t rows, struct block *b)
{
    size_t q = (size_t)c->q_heads * c->head_dim, kv = (size_t)c->kv_heads * c->head_dim;
    size_t sizes[8] = {c->hidden, c->hidden, q, kv, kv, q, c->intermediate, c->intermediate}, total = 0;
    float **at[8] = {&b->x, &b->h, &b->q, &b->k, &b->v, &b->a, &b->gate, &b->up};
    for (int i = 0; i < 8; i++)
        total += (sizes[i] * rows + 15) / 16 * 16;
    float *p = b->memory = aligned_alloc(64, total * sizeof(float));
    if (!p)
        return -1;
    for (int i = 0; i < 8; i++) {
        *at[i] = p;
        p += (sizes[i] * rows + 15) / 16 * 16;
    }
    return 0;
}

static enum common_code layer_forward(const struct llama *model, struct pool *pool, uint32_t l,
                                      uint64_t first, uint32_t rows, llama_attend_fn attend, void *arg,
                                      const struct block *b, struct common_error *err)
{
    const struct llama_config *c = &model->config;
    const struct llama_layer *layer = &model->layers[l];
    size_t q = (size_t)c->q_heads * c->head_dim, kv = (size_t)c->kv_heads * c->head_dim;

    for (uint32_t r = 0; r < rows; r++)
        rms_norm(b->x + (size_t)r * c->hidden, layer->input_norm, c->hidden, c->norm_eps,
                 b->h + (size_t)r * c->hidden);
    matrix_apply(&layer->q, pool, b->h, rows, b->q);
    matrix_apply(&layer->k, pool, b->h, rows, b->k);
    matrix_apply(&layer->v, pool, b->h, rows, b->v);
    for (uint32_t r = 0; r < rows; r++) {
        rope(b->q + r * q, c->q_heads, c->head_dim, first + r, model->inv_freq);
        rope(b->k + r * kv, c->kv_heads, c->head_dim, first + r, model->inv_freq);
    }
    enum common_code code = attend(arg, l, first, rows, b->q, b->k, b->v, b->a, err);
    if (code != COMMON_OK)
        return code;
    matrix_apply(&layer->o, pool, b->a, rows, b->h);
    add_to(b->x, b->h, (size_t)rows * c->hidden);

    for (uint32_t r = 0; r < rows; r++)
        rms_norm(b->x + (size_t)r * c->hidden, layer->post_norm, c->hidden, c->norm_eps,
                 b->h + (size_t)r * c->hidden);
    matrix_apply(&layer->gate, pool, b->h, rows, b->gate);
    matrix_apply(&layer->up, pool, b->h, rows, b->up);
    silu_times(b->gate, b->up, (size_t)rows * c->intermediate);
    matrix_apply(&layer->down, pool, b->gate, rows, b->h);
    add_to(b->x, b->h, (size_t)rows * c->hidden);
    return COMMON_OK;
}

enum common_code llama_forward(const struct llama *model, struct pool *pool, const uint32_t *tokens,
                               uint64_t first, uint32_t rows, llama_attend_fn attend, void *arg,
                               const uint32_t *wanted, uint32_t n_wanted, float *logits,
                               struct common_error *err)
{
    const struct llama_config *c = &model->config;
    if (rows == 0 || first + rows > c->max_positions)
        return common_error_set(err, COMMON_OUT_OF_RANGE, "the model ends at position %llu",
                                (unsigned long long)c->max_positions);
    for (uint32_t r = 0; r < rows; r++)
        if (tokens[r] >= c->vocab)
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "token %u is outside the vocabulary of %u",
                                    tokens[r], c->vocab);
    struct block b;
    if (block_alloc(c, rows, &b))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for a block of %u rows", rows);
    for (uint32_t r = 0; r < rows; r++)
        memcpy(b.x + (size_t)r * c->hidden, model->embedding + (size_t)tokens[r] * c->hidden,
               c->hidden * sizeof(float));
    enum common_code code = COMMON_OK;
    for (uint32_t l = 0; l < c->layers && code == COMMON_OK; l++)
        code = layer_forward(model, pool, l, first, rows, attend, arg, &b, err);
    if (code == COMMON_OK && n_wanted) {
        for (uint32_t i = 0; i < n_wanted; i++)
            rms_norm(b.x + (size_t)wanted[i] * c->hidden, model->norm, c->hidden, c->norm_eps,
                     b.h + (size_t)i * c->hidden);
        matrix_apply(&model->output, pool, b.h, n_wanted, logits);
    }
    free(b.memory);
    return code;
}
