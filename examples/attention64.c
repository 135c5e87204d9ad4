// SPDX-License-Identifier: Apache-2.0
#include "examples/attention64.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/pool.h"
#include "examples/products.h"
#include "examples/rounding.h"

#define TILE    8   // query rows that share a read of the keys: their logits stay in the second-level cache
#define STRETCH 256 // keys

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

struct attend {
    const struct attention64 *cache;
    uint32_t layer, rows, tiles;
    uint64_t first;
    const float *q;
    float *o;
    int failed;
};

struct tile { // of one query head
    const float *keys, *values, *key_scales, *value_scales;
    uint32_t rows, dim;
    uint64_t last;   // keys that its last row sees; each row before it sees one less
    double *q, *acc; // [TILE][dim]
    double *x;       // [TILE][last] logits, then weights
};

static uint64_t seen_by(const struct tile *t, uint32_t r)
{
    return t->last - t->rows + 1 + r;
}

// Logits of all rows with all keys of the tile, also those that a row does not see, and each row's largest of
// those that it sees.
static void tile_score(struct tile *t, const struct products *products, double scale, double *max)
{
    for (uint64_t from = 0; from < t->last; from += STRETCH) {
        uint64_t n = t->last - from < STRETCH ? t->last - from : STRETCH;
        for (uint32_t r = 0; r < t->rows; r += PRODUCTS_ROWS)
            products->score(t->q + (size_t)r * t->dim, t->keys + from * t->dim, t->key_scales + from, n,
                            t->dim, scale, t->x + r * t->last + from, t->last);
    }
    for (uint32_t r = 0; r < t->rows; r++) {
        max[r] = -INFINITY;
        for (uint64_t j = 0; j < seen_by(t, r); j++)
            max[r] = t->x[r * t->last + j] > max[r] ? t->x[r * t->last + j] : max[r];
    }
}

// Adds the weighted values to acc, and each row's weights to its total.
static void tile_weigh(struct tile *t, const struct products *products, const double *max, double *total)
{
    for (uint64_t from = 0; from < t->last; from += STRETCH) {
        uint64_t end = t->last - from < STRETCH ? t->last : from + STRETCH;
        for (uint32_t r = 0; r < TILE; r++) {
            double *x = t->x + r * t->last;
            uint64_t seen = r < t->rows ? seen_by(t, r) : 0, to = seen < from  ? from
                                                                  : seen < end ? seen
                                                                               : end;
            if (to > from)
                total[r] += products->weights(x + from, to - from, max[r], t->value_scales + from);
            memset(x + to, 0, (end - to) * sizeof(*x));
        }
        for (uint32_t r = 0; r < t->rows; r += PRODUCTS_ROWS)
            products->weigh(t->x + r * t->last + from, t->last, t->values + from * t->dim, end - from, t->dim,
                            t->acc + (size_t)r * t->dim);
    }
}

static void tile_attend(struct tile *t, double scale, double *total)
{
    const struct products *products = products_best();
    double max[TILE];
    tile_score(t, products, scale, max);
    tile_weigh(t, products, max, total);
}

// One query head of a tile of rows. The tile goes over the keys a stretch at a time, so that they are read
// from memory once for all of its rows.
static void attend_tile(void *arg, unsigned i)
{
    struct attend *a = arg;
    const struct llama_config *c = a->cache->config;
    uint32_t head = i / a->tiles, row = i % a->tiles * TILE, dim = a->cache->dim,
             kv_head = head / (c->q_heads / c->kv_heads);
    size_t offset = ((size_t)a->layer * c->kv_heads + kv_head) * a->cache->capacity;
    struct tile t = {.keys = a->cache->keys + offset * dim,
                     .values = a->cache->values + offset * dim,
                     .key_scales = a->cache->key_scales + offset,
                     .value_scales = a->cache->value_scales + offset,
                     .rows = a->rows - row < TILE ? a->rows - row : TILE,
                     .dim = dim};
    t.last = a->first + row + t.rows;
    double total[TILE] = {0}, *space = calloc((t.last + 2 * dim) * TILE, sizeof(*space));
    if (!space) {
        __atomic_store_n(&a->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    t.q = space;
    t.acc = t.q + (size_t)dim * TILE;
    t.x = t.acc + (size_t)dim * TILE;
    for (uint32_t r = 0; r < t.rows; r++)
        for (uint32_t d = 0; d < c->head_dim; d++)
            t.q[(size_t)r * dim + d] =
                (double)a->q[((size_t)(row + r) * c->q_heads + head) * c->head_dim + d];
    tile_attend(&t, 1.0 / sqrt(c->head_dim), total);
    for (uint32_t r = 0; r < t.rows; r++)
        for (uint32_t d = 0; d < c->head_dim; d++)
            a->o[((size_t)(row + r) * c->q_heads + head) * c->head_dim + d] =
                (float)(t.acc[(size_t)r * dim + d] / total[r]);
    free(space);
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
