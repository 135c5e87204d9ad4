// SPDX-License-Identifier: Apache-2.0
#include "client/llama/spec.h"

#include <ggml-backend.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS_MAX = 64 };

struct making {
    banyan_kind kinds[KINDS_MAX];
    uint32_t n_kinds;
    uint32_t *layer_kind;
    const float **sinks;
    float *alibi[KINDS_MAX];
};

// ALiBi's slopes as ggml has them (Press et al. 2022): powers of 2^-(max_bias / n), n the largest power of
// two that is not above the number of heads, and for the heads above it the odd powers of its root.
static float *slopes(uint32_t heads, float max_bias)
{
    float *out = malloc(heads * sizeof *out);
    uint32_t n = 1u << (31 - __builtin_clz(heads));
    float m0 = powf(2.0f, -max_bias / (float)n), m1 = powf(2.0f, -(max_bias / 2.0f) / (float)n);
    for (uint32_t h = 0; out && h < heads; h++)
        out[h] = h < n ? powf(m0, (float)(h + 1)) : powf(m1, (float)(2 * (h - n) + 1));
    return out;
}

static bool same_kind(const banyan_kind *a, const banyan_kind *b)
{
    return a->q_heads == b->q_heads && a->kv_heads == b->kv_heads && a->k_dim == b->k_dim &&
           a->v_dim == b->v_dim && a->scale == b->scale && a->soft_cap == b->soft_cap &&
           a->v_in_k == b->v_in_k;
}

// The kind of a layer, found or added; KINDS_MAX: there are too many, or no memory.
static uint32_t kind_of(struct making *making, const struct cache *cache, const struct cache_layer *layer,
                        const float *max_bias)
{
    banyan_kind kind = {.q_heads = layer->q_heads,
                        .kv_heads = layer->kv_heads,
                        .k_dim = layer->k_dim,
                        .v_dim = layer->v_dim,
                        .scale = layer->scale,
                        .soft_cap = layer->soft_cap,
                        .window = cache->window,
                        .mask_chunk = cache->chunk,
                        .v_in_k = layer->v == layer->k};
    for (uint32_t i = 0; i < making->n_kinds; i++)
        if (same_kind(&making->kinds[i], &kind) && (making->alibi[i] != NULL) == (*max_bias > 0))
            return i;
    if (making->n_kinds == KINDS_MAX)
        return KINDS_MAX;
    if (*max_bias > 0) {
        kind.alibi = making->alibi[making->n_kinds] = slopes(layer->q_heads, *max_bias);
        if (!kind.alibi)
            return KINDS_MAX;
    }
    making->kinds[making->n_kinds] = kind;
    return making->n_kinds++;
}

static bool fill(struct making *making, struct cache *cache)
{
    for (uint32_t i = 0; i < cache->n_layers; i++) {
        const struct cache_layer *layer = &cache->layers[i];
        making->layer_kind[i] = kind_of(making, cache, layer, &layer->max_bias);
        if (making->layer_kind[i] == KINDS_MAX) {
            cache_say(cache->why, "the model has more than %d kinds of layers, or there is no memory",
                      KINDS_MAX);
            return false;
        }
        if (!layer->sinks)
            continue;
        float *sinks = malloc(layer->q_heads * sizeof *sinks);
        if (!sinks) {
            cache_say(cache->why, "no memory");
            return false;
        }
        ggml_backend_tensor_get(layer->sinks, sinks, 0, layer->q_heads * sizeof *sinks);
        making->sinks[i] = sinks;
    }
    return true;
}

banyan_code spec_create(struct cache *cache, banyan_client *client, const char *name, banyan_session **out)
{
    const struct settings *settings = cluster_settings(NULL, 0);
    struct making making = {.layer_kind = calloc(cache->n_layers, sizeof *making.layer_kind),
                            .sinks = calloc(cache->n_layers, sizeof *making.sinks)};
    banyan_error error;
    banyan_code code = BANYAN_RESOURCE_EXHAUSTED;
    if (!making.layer_kind || !making.sinks) {
        cache_say(cache->why, "no memory");
    } else if (fill(&making, cache)) {
        banyan_spec spec = {.layers = cache->n_layers,
                            .kv_type = cache_held(cache),
                            .idle_ttl_ns = settings->ttl_ns,
                            .n_kinds = making.n_kinds,
                            .kinds = making.kinds,
                            .layer_kind = making.layer_kind,
                            .layer_sinks = making.sinks,
                            .replicas = settings->replicas};
        code = banyan_session_create(client, &spec, name, out, &error);
        if (code != BANYAN_OK)
            cache_say(cache->why, "a session cannot be created: %s", error.message);
    }
    for (uint32_t i = 0; making.sinks && i < cache->n_layers; i++)
        free((void *)making.sinks[i]);
    for (uint32_t i = 0; i < making.n_kinds; i++)
        free(making.alibi[i]);
    free(making.sinks);
    free(making.layer_kind);
    return code;
}

static banyan_kind kind_in(const banyan_spec *spec, uint32_t layer)
{
    if (spec->n_kinds > 0)
        return spec->kinds[spec->layer_kind ? spec->layer_kind[layer] : 0];
    return (banyan_kind){.q_heads = spec->q_heads,
                         .kv_heads = spec->kv_heads,
                         .k_dim = spec->k_dim,
                         .v_dim = spec->v_dim,
                         .scale = spec->scale,
                         .soft_cap = spec->soft_cap,
                         .window = spec->window};
}

bool spec_is(struct cache *cache, const banyan_spec *spec)
{
    bool same = spec->layers == cache->n_layers && spec->kv_type == cache_held(cache);
    uint64_t window = 0, chunk = 0;
    for (uint32_t i = 0; same && i < cache->n_layers; i++) {
        const struct cache_layer *layer = &cache->layers[i];
        banyan_kind kind = kind_in(spec, i);
        same = kind.q_heads == layer->q_heads && kind.kv_heads == layer->kv_heads &&
               kind.k_dim == layer->k_dim && kind.v_dim == layer->v_dim && kind.scale == layer->scale &&
               kind.soft_cap == layer->soft_cap;
        window = kind.window;
        chunk = kind.mask_chunk;
    }
    if (!same) {
        cache_say(cache->why, "the state is of another model, or of another type of keys and values");
        return false;
    }
    if (cache->window == 0 && cache->chunk == 0) {
        cache->window = window;
        cache->chunk = chunk;
    }
    if (cache->window == window && cache->chunk == chunk)
        return true;
    cache_say(cache->why, "the state is of a model with another window");
    return false;
}
