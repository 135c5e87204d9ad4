// SPDX-License-Identifier: Apache-2.0
#include "tests/llama/exact.h"

#include <math.h>
#include <stdlib.h>

#include "tests/llama/memory.h"

#define WORK 3e8 // multiplications that one comparison may take

double exact_slope(int heads, float max_bias, int head)
{
    if (max_bias <= 0)
        return 1;
    int below = 1; // the largest power of two that is not above heads
    while (below * 2 <= heads)
        below *= 2;
    return head < below ? pow(2, -(double)max_bias / below * (head + 1))
                        : pow(2, -(double)max_bias / 2 / below * (2 * (head - below) + 1));
}

struct row {
    const float *q, *k, *v; // k, v: of the first cell
    size_t k_stride, v_stride;
    const float *mask; // [n_kv]
    int n_kv, own;     // cells, and the row's
    double scale, slope;
    bool has_sink;
    double sink;
};

// o [v_dim]; largest_logit and largest_v over the keys that the row sees, of which there are `keys`.
static void attend(const struct row *row, const struct cache_shape *shape, double *logits, double *o,
                   double *largest_logit, double *largest_v, int *keys)
{
    double top = row->has_sink ? row->sink : -INFINITY;
    *largest_logit = *largest_v = 0;
    *keys = 0;
    for (int c = 0; c < row->n_kv; c++) {
        logits[c] = -INFINITY;
        if (isinf(row->mask[c]))
            continue;
        const float *k = row->k + (size_t)c * row->k_stride;
        double x = 0;
        for (int i = 0; i < shape->k_dim; i++)
            x += (double)row->q[i] * k[i];
        x *= row->scale;
        if (shape->soft_cap != 0)
            x = shape->soft_cap * tanh(x / shape->soft_cap);
        x += row->slope * (row->mask[c] < 0 ? -abs(c - row->own) : 0); // exact, where float16 rounds it
        logits[c] = x;
        top = fmax(top, x);
        *largest_logit = fmax(*largest_logit, fabs(x));
        ++*keys;
    }
    double sum = row->has_sink ? exp(row->sink - top) : 0;
    for (int i = 0; i < shape->v_dim; i++)
        o[i] = 0;
    for (int c = 0; c < row->n_kv; c++) {
        if (isinf(logits[c]))
            continue;
        double p = exp(logits[c] - top);
        const float *v = row->v + (size_t)c * row->v_stride;
        sum += p;
        for (int i = 0; i < shape->v_dim; i++) {
            o[i] += p * v[i];
            *largest_v = fmax(*largest_v, fabs(v[i]));
        }
    }
    for (int i = 0; i < shape->v_dim; i++)
        o[i] /= sum;
}

// Error of one row and head as a fraction of the bound.
static double row_error(const struct row *row, const struct cache_shape *shape, double *logits, double *exact,
                        const float *o)
{
    double x, v, largest_o = 0, worst = 0;
    int keys;
    attend(row, shape, logits, exact, &x, &v, &keys);
    for (int i = 0; i < shape->v_dim; i++) {
        largest_o = fmax(largest_o, fabs(exact[i]));
        if (!isfinite(o[i]))
            return INFINITY;
        worst = fmax(worst, fabs(o[i] - exact[i]));
    }
    return worst / (2e-6 * fmax(1, x / 16) * fmax(largest_o, v / sqrt(keys)));
}

double exact_error(const struct cache *cache, const struct cache_answer *answer, int attention,
                   const float *o)
{
    const struct cache_shape *shape = &cache->shape;
    const struct cache_step *step = &answer->step;
    int layer = cache_layer_of(cache, attention), group = shape->heads / shape->kv_heads;
    double work =
        (double)step->streams * step->rows * shape->heads * answer->n_kv * (shape->k_dim + shape->v_dim);
    int stride = 1 + (int)(work / WORK);
    double worst = 0, *logits = memory_make(answer->n_kv, sizeof *logits),
           *exact = memory_make(shape->v_dim, sizeof *exact);
    float sinks[64] = {0};
    if (shape->sinks)
        ggml_backend_tensor_get(cache->sinks[attention], sinks, 0, shape->heads * sizeof *sinks);
    for (int s = 0; s < step->streams; s++)
        for (int r = 0; r < step->rows; r++)
            for (int h = 0; h < shape->heads && (r % stride == 0 || r == step->rows - 1); h++) {
                size_t at = ((size_t)s * step->rows + r) * shape->heads + h;
                size_t cell = (size_t)(step->first_stream + s) * shape->cells * shape->kv_heads + h / group;
                struct row row = {.q = answer->q[attention] + at * shape->k_dim,
                                  .k = cache->k_held[layer] + cell * shape->k_dim,
                                  .k_stride = (size_t)shape->kv_heads * shape->k_dim,
                                  .mask = answer->mask + ((size_t)s * step->rows + r) * answer->n_kv,
                                  .n_kv = answer->n_kv,
                                  .own = answer->cells[(size_t)s * step->rows + r],
                                  .scale = shape->scale != 0 ? shape->scale : (float)(1 / sqrt(shape->k_dim)),
                                  .slope = exact_slope(shape->heads, shape->max_bias, h),
                                  .has_sink = shape->sinks,
                                  .sink = sinks[h]};
                row.v = shape->v_in_k ? row.k : cache->v_held[layer] + cell * shape->v_dim;
                row.v_stride = shape->v_in_k ? row.k_stride : (size_t)shape->kv_heads * shape->v_dim;
                worst = fmax(worst, row_error(&row, shape, logits, exact, o + at * shape->v_dim));
            }
    free(logits);
    free(exact);
    return worst;
}
