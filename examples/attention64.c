// SPDX-License-Identifier: Apache-2.0
#include "examples/attention64.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/pool.h"
#include "examples/rounding.h"

#define TILE    8   // query rows that share a read of the keys: their logits stay in the second-level cache
#define STRETCH 256 // keys

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

struct attention64 {
    const struct llama_config *config;
    struct pool *pool;
    banyan_kv_type kv_type;
    uint64_t capacity;
    uint32_t dim;         // head_dim rounded up to 8
    float *keys, *values; // [layers][kv_heads][capacity][dim]: elements or codes, rounded, zero-padded
    float *key_scales, *value_scales; // [layers][kv_heads][capacity]; 1 for a type without
};

struct attention64 *attention64_new(const struct llama_config *config, struct pool *pool,
                                    banyan_kv_type kv_type, uint64_t capacity)
{
    struct attention64 *cache = calloc(1, sizeof(*cache));
    if (!cache)
        return NULL;
    uint32_t dim = (config->head_dim + 7) / 8 * 8;
    size_t n = (size_t)config->layers * config->kv_heads * capacity * dim;
    *cache = (struct attention64){.config = config,
                                  .pool = pool,
                                  .kv_type = kv_type,
                                  .capacity = capacity,
                                  .dim = dim,
                                  .keys = calloc(n, sizeof(float)),
                                  .values = calloc(n, sizeof(float)),
                                  .key_scales = calloc(n / dim, sizeof(float)),
                                  .value_scales = calloc(n / dim, sizeof(float))};
    if (!cache->keys || !cache->values || !cache->key_scales || !cache->value_scales) {
        attention64_free(cache);
        return NULL;
    }
    return cache;
}

void attention64_free(struct attention64 *cache)
{
    if (!cache)
        return;
    free(cache->keys);
    free(cache->values);
    free(cache->key_scales);
    free(cache->value_scales);
    free(cache);
}

typedef double vec __attribute__((vector_size(64))); // eight lanes: one sum is eight sums, added at the end

typedef float packed __attribute__((vector_size(32), aligned(4)));
#define WIDEN(x) __builtin_convertvector(*(const packed *)(x), vec)

// Logits of keys [from, to) for one row and head; returns the larger of their maximum and `max`. Four keys at
// a time hide the latency of the additions; dim is a multiple of 8, padded with zeros.
CLONES static double score(const float *q, const float *keys, const float *key_scales, uint64_t from,
                           uint64_t to, uint32_t dim, double scale, double max, double *x)
{
    for (uint64_t j = from; j < to; j += 4) {
        const float *k[4];
        vec sum[4] = {{0}};
        for (int i = 0; i < 4; i++)
            k[i] = keys + (j + i < to ? j + i : j) * dim;
        for (uint32_t d = 0; d < dim; d += 8) {
            vec qd = WIDEN(q + d);
            for (int i = 0; i < 4; i++)
                sum[i] += qd * WIDEN(k[i] + d);
        }
        for (int i = 0; i < 4 && j + i < to; i++) {
            double total = 0;
            for (int l = 0; l < 8; l++)
                total += sum[i][l];
            x[j + i] = total * (double)key_scales[j + i] * scale;
            max = x[j + i] > max ? x[j + i] : max;
        }
    }
    return max;
}

// Adds the weighted values of keys [from, to) to acc; returns the sum of their weights.
CLONES static double weigh(const double *x, double max, const float *values, const float *value_scales,
                           uint64_t from, uint64_t to, uint32_t dim, double *acc)
{
    double total = 0;
    for (uint64_t j = from; j < to; j += 4) {
        const float *v[4];
        double w[4];
        for (int i = 0; i < 4; i++) {
            w[i] = j + i < to ? exp(x[j + i] - max) : 0;
            v[i] = values + (j + i < to ? j + i : j) * dim;
            total += w[i];
            w[i] *= j + i < to ? (double)value_scales[j + i] : 0;
        }
        for (uint32_t d = 0; d < dim; d += 8) {
            vec sum = WIDEN(v[0] + d) * w[0] + WIDEN(v[1] + d) * w[1] + WIDEN(v[2] + d) * w[2] +
                      WIDEN(v[3] + d) * w[3];
            for (int l = 0; l < 8; l++)
                acc[d + l] += sum[l];
        }
    }
    return total;
}

struct attend {
    const struct attention64 *cache;
    uint32_t layer, rows, tiles;
    uint64_t first;
    const float *q;
    float *o;
    int failed;
};

// One query head of a tile of rows. The tile goes over the keys a stretch at a time, so that they are read
// from memory once for all of its rows.
static void attend_tile(void *arg, unsigned i)
{
    struct attend *a = arg;
    const struct llama_config *c = a->cache->config;
    uint32_t head = i / a->tiles, row = i % a->tiles * TILE, dim = a->cache->dim,
             kv_head = head / (c->q_heads / c->kv_heads);
    uint32_t n_rows = a->rows - row < TILE ? a->rows - row : TILE;
    size_t row_offset = ((size_t)a->layer * c->kv_heads + kv_head) * a->cache->capacity;
    const float *keys = a->cache->keys + row_offset * dim, *values = a->cache->values + row_offset * dim;
    const float *key_scales = a->cache->key_scales + row_offset;
    const float *value_scales = a->cache->value_scales + row_offset;
    uint64_t last = a->first + row + n_rows; // keys that the tile's last row sees
    double max[TILE], total[TILE] = {0};
    double *x = malloc((last + dim) * TILE * sizeof(*x)), *acc = x ? x + last * TILE : NULL;
    float *q = calloc((size_t)dim * TILE, sizeof(*q));
    if (!x || !q) {
        free(x);
        free(q);
        __atomic_store_n(&a->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    for (uint32_t r = 0; r < n_rows; r++)
        max[r] = -INFINITY;
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(q + (size_t)r * dim, a->q + ((size_t)(row + r) * c->q_heads + head) * c->head_dim,
               c->head_dim * sizeof(float));
    memset(acc, 0, (size_t)dim * TILE * sizeof(*acc));
    for (int pass = 0; pass < 2; pass++)
        for (uint64_t from = 0; from < last; from += STRETCH)
            for (uint32_t r = 0; r < n_rows; r++) {
                uint64_t n = last - n_rows + r + 1, to = from + STRETCH < n ? from + STRETCH : n;
                if (from >= to)
                    continue;
                if (pass == 0)
                    max[r] = score(q + (size_t)r * dim, keys, key_scales, from, to, dim,
                                   1.0 / sqrt(c->head_dim), max[r], x + r * last);
                else
                    total[r] += weigh(x + r * last, max[r], values, value_scales, from, to, dim,
                                      acc + (size_t)r * dim);
            }
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t d = 0; d < c->head_dim; d++)
            a->o[((size_t)(row + r) * c->q_heads + head) * c->head_dim + d] =
                (float)(acc[(size_t)r * dim + d] / total[r]);
    free(q);
    free(x);
}

enum common_code attention64_attend(void *arg, uint32_t layer, uint64_t first, uint32_t rows, const float *q,
                                    const float *k, const float *v, float *o, struct common_error *err)
{
    struct attention64 *cache = arg;
    const struct llama_config *c = cache->config;
    if (first + rows > cache->capacity)
        return common_error_set(err, COMMON_OUT_OF_RANGE, "the reference's cache ends at %llu",
                                (unsigned long long)cache->capacity);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t h = 0; h < c->kv_heads; h++) {
            size_t to = ((size_t)layer * c->kv_heads + h) * cache->capacity + first + r;
            size_t from = ((size_t)r * c->kv_heads + h) * c->head_dim;
            cache->key_scales[to] =
                rounding_floats(cache->kv_type, k + from, c->head_dim, cache->keys + to * cache->dim);
            cache->value_scales[to] =
                rounding_floats(cache->kv_type, v + from, c->head_dim, cache->values + to * cache->dim);
        }
    struct attend a = {cache, layer, rows, (rows + TILE - 1) / TILE, first, q, o, 0};
    pool_run(cache->pool, c->q_heads * a.tiles, attend_tile, &a);
    if (a.failed)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for the reference's logits");
    return COMMON_OK;
}
