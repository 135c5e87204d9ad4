// SPDX-License-Identifier: Apache-2.0
#include "client/llama/step.h"

#include <ggml-impl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/llama/attend.h"
#include "client/llama/buffer.h"
#include "client/llama/cache.h"

static bool fail(struct cache *cache, const struct ggml_tensor *op, const char *why)
{
    cache_say(cache->why, "%s: %s", op->name, why);
    return false;
}

static struct cache *cache_of(const struct ggml_tensor *tensor)
{
    return tensor ? buffer_cache(tensor->view_src ? tensor->view_src : tensor) : NULL;
}

static bool put(struct cache *cache, const struct ggml_tensor *op)
{
    const struct ggml_tensor *root = op->view_src;
    struct cache_layer *layer = cache_layer_of(cache, root);
    if (!layer)
        return fail(cache, op, "rows of a layer that no attention reads: give -fa on");
    if (op->src[0]->ne[2] != 1 || op->src[0]->ne[3] != 1 ||
        (uint64_t)op->src[0]->ne[0] != (uint64_t)root->ne[0])
        return fail(cache, op, "rows are set in parts: give -fa on");
    if (root == layer->k)
        layer->put_k = op;
    else
        layer->put_v = op;
    return true;
}

// Whether a shift by so much turns keys of the sequence. NULL, or a tensor of another shape: it may.
static bool is_turned(const struct cache *cache, uint32_t stream, const struct ggml_tensor *by)
{
    uint64_t streams = cache->shared ? 1 : cache->n_streams;
    if (!by || by->type != GGML_TYPE_I32 || (uint64_t)ggml_nelements(by) != cache->cells * streams)
        return true;
    const int32_t *turn = (const int32_t *)by->data + (cache->shared ? 0 : stream * cache->cells);
    for (uint64_t i = 0; i < cache->cells; i++)
        if (turn[i] != 0 && (!cache->shared || cache->shared->lists[stream].at[i] != CELLS_NONE))
            return true;
    return false;
}

// llama.cpp turns keys in place (a K-shift), which sessions cannot follow. It does so again before each batch
// until it has succeeded, so this succeeds; the streams that are turned cannot be used until their cell 0 is
// written again. Of a quantised cache a shift begins with a copy in float32 and ends with one back, and
// nothing says of which streams: of all.
static bool shift(struct cache *cache, const struct ggml_tensor *op)
{
    static const char why[] =
        "llama.cpp shifted the context (K-shift), which rows in a cluster cannot follow: give "
        "--no-context-shift, no --cache-reuse and no self-extend";
    const struct ggml_tensor *by = op->op == GGML_OP_ROPE ? op->src[1] : NULL;
    for (uint32_t i = 0; i < cache->n_streams; i++) {
        bool turned = is_turned(cache, i, by);
        struct cache_stream *stream = &cache->streams[i];
        if (!turned || !stream->session || strcmp(stream->lost, why) == 0)
            continue;
        cache_say(stream->lost, "%s", why);
        stream->changes++;
        GGML_LOG_ERROR("banyan: sequence %u: %s\n", i, why);
    }
    return true;
}

static bool other(struct cache *cache, const struct ggml_tensor *op)
{
    char why[CACHE_WHY];
    const struct ggml_tensor *of = op->src[0];
    if (op->op == GGML_OP_ROPE ||
        (op->op == GGML_OP_CPY &&
         (ggml_is_quantized(of->type) || (ggml_is_quantized(op->type) && cache_of(op) == cache))))
        return shift(cache, op);
    cache_say(why,
              "the operation %s over the cache is not served: give -fa on; a cache of recurrent layers is "
              "not served at all",
              ggml_op_name(op->op));
    for (uint32_t i = 0; i < cache->n_streams; i++)
        if (cache->streams[i].session && op->view_src && buffer_cache(op->view_src))
            cache_say(cache->streams[i].lost, "%s", why);
    return fail(cache, op, why);
}

static bool is_view(const struct ggml_tensor *op)
{
    return op->op == GGML_OP_NONE || op->op == GGML_OP_VIEW || op->op == GGML_OP_RESHAPE ||
           op->op == GGML_OP_PERMUTE || op->op == GGML_OP_TRANSPOSE;
}

// The cache that an operation is over: of its result or of one of its sources.
static struct cache *over(const struct ggml_tensor *op)
{
    struct cache *cache = cache_of(op);
    for (int i = 0; !cache && i < GGML_MAX_SRC; i++)
        cache = cache_of(cache_source(op->src[i]));
    return cache;
}

bool step_claims(const struct ggml_tensor *op)
{
    struct cache *cache = over(op);
    if (is_view(op))
        return true;
    if (!cache)
        return buffer_is_cache(op);
    if (op->op == GGML_OP_FLASH_ATTN_EXT && cache_of(cache_source(op->src[1])) == cache)
        (void)cache_learn(cache, op); // what cannot be served fails when it is computed, with a sentence
    return true;
}

// Whether an operation is a copy of the cache that attentions alone read, of which none is made
// (cache_source).
static bool is_unmade(struct ggml_cgraph *graph, const struct ggml_tensor *op)
{
    bool read = false;
    if (cache_source(op) == op)
        return false;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        const struct ggml_tensor *node = ggml_graph_node(graph, i);
        for (int s = 0; node != op && s < GGML_MAX_SRC; s++) {
            if (node->src[s] != op)
                continue;
            if (node->op != GGML_OP_FLASH_ATTN_EXT || (s != 1 && s != 2))
                return false;
            read = true;
        }
    }
    return read;
}

static bool compute(struct cache *cache, struct ggml_cgraph *graph, const struct ggml_tensor *op)
{
    if (op->op == GGML_OP_SET_ROWS && cache_of(op) == cache)
        return put(cache, op);
    if (is_unmade(graph, op))
        return true;
    if (op->op == GGML_OP_FLASH_ATTN_EXT && cache_of(cache_source(op->src[1])) == cache)
        return cache_learn_locked(cache, op) && attend_compute(cache, op);
    return other(cache, op);
}

static bool flush(struct cache *cache)
{
    bool done = true;
    for (uint32_t i = 0; i < cache->n_layers; i++) {
        struct cache_layer *layer = &cache->layers[i];
        if (done && layer->put_k)
            done = attend_append(cache, layer);
        layer->put_k = layer->put_v = NULL;
    }
    return done;
}

static void forget(struct cache *cache)
{
    for (uint32_t i = 0; i < cache->n_layers; i++)
        cache->layers[i].put_k = cache->layers[i].put_v = NULL;
}

bool step_compute(struct ggml_cgraph *graph, char why[CACHE_WHY])
{
    struct cache *last = NULL;
    bool done = true;
    for (int i = 0; done && i < ggml_graph_n_nodes(graph); i++) {
        const struct ggml_tensor *op = ggml_graph_node(graph, i);
        struct cache *cache = is_view(op) || ggml_is_empty(op) ? NULL : over(op);
        if (is_view(op) || ggml_is_empty(op))
            continue;
        if (!cache) {
            cache_say(why, "%s: the operation %s is not served", op->name, ggml_op_name(op->op));
            done = false;
            break;
        }
        pthread_mutex_lock(&cache->lock);
        cache->why[0] = '\0';
        if (last != cache && last) {
            pthread_mutex_unlock(&cache->lock);
            pthread_mutex_lock(&last->lock);
            done = flush(last);
            if (!done)
                cache_say(why, "%s", last->why);
            pthread_mutex_unlock(&last->lock);
            pthread_mutex_lock(&cache->lock);
        }
        if (done && !compute(cache, graph, op)) {
            cache_say(why, "%s", cache->why);
            forget(cache);
            done = false;
        }
        last = cache;
        pthread_mutex_unlock(&cache->lock);
    }
    if (!last)
        return done;
    pthread_mutex_lock(&last->lock);
    if (!done)
        forget(last);
    else if (!flush(last)) {
        cache_say(why, "%s", last->why);
        done = false;
    }
    cache_use(last);
    pthread_mutex_unlock(&last->lock);
    return done;
}
