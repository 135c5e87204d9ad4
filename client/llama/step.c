// SPDX-License-Identifier: Apache-2.0
#include "client/llama/step.h"

#include <ggml-impl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/llama/buffer.h"
#include "client/llama/cache.h"

enum {
    STREAMS_MAX = 256,
    APPEND_BYTES =
        1 << 20, // of an item's K and V, that a coordinator takes with a step; more is attached before
};

struct batch { // of one attention
    struct cache *cache;
    struct cache_layer *layer;
    const struct ggml_tensor *op;
    uint32_t stream, n_streams; // [stream, stream + n_streams)
    uint64_t rows;              // of each stream
    uint64_t first[STREAMS_MAX];
    bool block[STREAMS_MAX];
    bool appends;
};

static bool fail(struct cache *cache, const struct ggml_tensor *op, const char *why)
{
    cache_say(cache->why, "%s: %s", op->name, why);
    return false;
}

static struct cache *cache_of(const struct ggml_tensor *tensor)
{
    return tensor ? buffer_cache(tensor->view_src ? tensor->view_src : tensor) : NULL;
}

static int64_t index_at(const struct ggml_tensor *indices, uint64_t i)
{
    return indices->type == GGML_TYPE_I64 ? ((const int64_t *)indices->data)[i]
                                          : ((const int32_t *)indices->data)[i];
}

// Where SET_ROWS writes the batch's rows: for each stream one cell after the other.
static bool read_cells(struct batch *batch)
{
    const struct ggml_tensor *put = batch->layer->put_k, *put_v = batch->layer->put_v;
    struct cache *cache = batch->cache;
    if (batch->layer->v != batch->layer->k && !put_v)
        return fail(cache, put, "keys are set without values");
    if ((uint64_t)put->src[1]->ne[0] != batch->rows * batch->n_streams)
        return fail(cache, put, "the rows that are set are not those that attention reads");
    for (uint64_t i = 0; i < batch->rows * batch->n_streams; i++) {
        int64_t cell = index_at(put->src[1], i);
        uint64_t stream = i / batch->rows, row = i % batch->rows;
        if (put_v && index_at(put_v->src[1], i) != cell)
            return fail(cache, put, "a key and its value go to different cells: give -fa on");
        if (cell < 0 || (uint64_t)cell / cache->cells != batch->stream + stream)
            return fail(cache, put, "a row goes to the cache of another sequence: give --no-kv-unified");
        if (row == 0)
            batch->first[stream] = (uint64_t)cell % cache->cells;
        else if ((uint64_t)cell % cache->cells != batch->first[stream] + row)
            return fail(cache, put,
                        "the batch's cells do not follow one another: give --no-kv-unified, for windows "
                        "--swa-full, and neither "
                        "context shift nor --cache-reuse");
    }
    return true;
}

static bool read_masks(struct batch *batch)
{
    const struct ggml_tensor *mask = batch->op->src[3];
    struct cache *cache = batch->cache;
    uint64_t found[STREAMS_MAX] = {0};
    if (!mask || mask->type != GGML_TYPE_F16 || mask->ne[1] < (int64_t)batch->rows || mask->ne[2] != 1 ||
        mask->ne[3] != (int64_t)batch->n_streams)
        return fail(cache, batch->op, "an attention with no mask, or one for each head: not served");
    if (cache->doubted && batch->appends && batch->first[0] == 0)
        cache->window = cache->chunk = 0, cache->doubted = false;
    for (uint32_t s = 0; s < batch->n_streams; s++) {
        struct mask_seen known = {.window = cache->window, .chunk = cache->chunk}, seen;
        struct mask part = {.at = (const uint16_t *)((const char *)mask->data + s * mask->nb[3]),
                            .cells = (uint64_t)mask->ne[0],
                            .rows = batch->rows,
                            .stride = mask->nb[1] / 2,
                            .alibi = batch->layer->max_bias > 0};
        const char *wrong = mask_read(&part, batch->appends ? batch->first[s] : UINT64_MAX, &known, &seen);
        cache->doubted = cache->doubted || (wrong && (known.window || known.chunk));
        if (wrong)
            return fail(cache, batch->op, wrong);
        batch->block[s] = seen.block;
        found[s] = seen.first;
        // What one stream shows holds for those before it, too: they are read again with it.
        bool shown = seen.window != known.window || seen.chunk != known.chunk;
        cache->window = seen.window;
        cache->chunk = seen.chunk;
        if (shown && s > 0)
            s = UINT32_MAX; // from 0 on
    }
    memcpy(batch->first, found, sizeof found);
    return true;
}

// The stream's queries, [rows][heads][dim] float32: where they lie so already, themselves.
static const float *queries(struct batch *batch, uint32_t stream)
{
    const struct ggml_tensor *q = batch->op->src[0];
    const char *from = (const char *)q->data + stream * q->nb[3];
    size_t row = (size_t)q->ne[0] * sizeof(float);
    uint64_t heads = (uint64_t)q->ne[2];
    if ((q->nb[2] == row || heads == 1) && (q->nb[1] == row * heads || batch->rows == 1))
        return (const float *)from;
    char *out = (char *)batch->cache->q.at + stream * batch->rows * heads * row;
    for (uint64_t i = 0; i < batch->rows; i++)
        for (uint64_t h = 0; h < heads; h++)
            memcpy(out + (i * heads + h) * row, from + i * q->nb[1] + h * q->nb[2], row);
    return (const float *)out;
}

struct sent {
    const void *k, *v;
    const float *k_scale, *v_scale;
    size_t k_row, v_row;
};

static bool make_rows(struct batch *batch, struct sent *out)
{
    struct cache *cache = batch->cache;
    const struct cache_layer *layer = batch->layer;
    banyan_kv_type held = cache_held(cache);
    const struct ggml_tensor *k = layer->put_k->src[0],
                             *v = layer->v == layer->k ? NULL : layer->put_v->src[0];
    uint64_t rows = batch->rows * batch->n_streams;
    *out = (struct sent){.k_row = rows_bytes(held, (uint64_t)layer->kv_heads * layer->k_dim),
                         .v_row = rows_bytes(held, (uint64_t)layer->kv_heads * layer->v_dim)};
    if (!rows_make(k->data, k->nb[1], k->type, rows, layer->kv_heads, layer->k_dim, layer->k->type, held,
                   &cache->k, &cache->k_scale, &out->k, &out->k_scale) ||
        (v && !rows_make(v->data, v->nb[1], v->type, rows, layer->kv_heads, layer->v_dim, layer->v->type,
                         held, &cache->v, &cache->v_scale, &out->v, &out->v_scale)))
        return fail(cache, batch->op, "no memory");
    return true;
}

// Attaches and commits `count` rows from row `row` of what was made at [first, first + count) of the stream.
static bool attach_rows(struct batch *batch, const struct sent *sent, uint32_t number, uint64_t row,
                        uint64_t first, uint64_t count)
{
    struct cache *cache = batch->cache;
    struct cache_stream *stream = &cache->streams[number];
    uint32_t heads = batch->layer->kv_heads, at = (uint32_t)(batch->layer - cache->layers);
    const void *k = (const char *)sent->k + row * sent->k_row,
               *v = sent->v ? (const char *)sent->v + row * sent->v_row : NULL;
    banyan_error error;
    banyan_code code =
        sent->k_scale
            ? banyan_attach_scaled(stream->session, at, first, count, k, sent->k_scale + row * heads, v,
                                   sent->v_scale ? sent->v_scale + row * heads : NULL, &error)
            : banyan_attach(stream->session, at, first, count, k, v, &error);
    if (code == BANYAN_OK)
        code = banyan_commit(stream->session, at, first, count, &error);
    stream->changes++;
    if (code == BANYAN_OK) {
        stream->lengths[at] = first + count;
        return true;
    }
    cache_doubt(cache, number, code);
    cache_say(cache->why, "%s: sequence %u: %s: %s", batch->op->name, number, banyan_code_name(code),
              error.message);
    return false;
}

static void fill_items(struct batch *batch, const struct sent *sent, banyan_item *items, banyan_error *errors)
{
    const struct cache_layer *layer = batch->layer;
    for (uint32_t s = 0; s < batch->n_streams; s++) {
        uint64_t row = s * batch->rows;
        items[s] = (banyan_item){.session = batch->cache->streams[batch->stream + s].session,
                                 .layer = (uint32_t)(layer - batch->cache->layers),
                                 .first = batch->first[s],
                                 .rows = (uint32_t)batch->rows,
                                 .q = queries(batch, s),
                                 .o = (float *)((char *)batch->op->data + s * batch->op->nb[3]),
                                 .block_first = batch->block[s] ? batch->first[s] : 0,
                                 .block_count = batch->block[s] ? batch->rows : 0,
                                 .error = &errors[s]};
        if (!batch->appends)
            continue;
        items[s].k = (const char *)sent->k + row * sent->k_row;
        items[s].v = sent->v ? (const char *)sent->v + row * sent->v_row : NULL;
        items[s].k_scale = sent->k_scale ? sent->k_scale + row * layer->kv_heads : NULL;
        items[s].v_scale = sent->v_scale ? sent->v_scale + row * layer->kv_heads : NULL;
    }
}

static bool send(struct batch *batch)
{
    struct cache *cache = batch->cache;
    const struct ggml_tensor *q = batch->op->src[0];
    banyan_item *items = calloc(batch->n_streams, sizeof *items);
    banyan_error *errors = calloc(batch->n_streams, sizeof *errors), error;
    struct sent sent = {0};
    bool done = items && errors &&
                rows_room(&cache->q, (size_t)q->ne[0] * q->ne[1] * q->ne[2] * q->ne[3] * sizeof(float)) &&
                (!batch->appends || make_rows(batch, &sent));
    if (!done) {
        fail(cache, batch->op, "no memory");
    } else {
        banyan_client *client = cluster_client(cache->why, sizeof cache->why);
        for (uint32_t s = 0; done && batch->appends && s < batch->n_streams; s++)
            if (batch->rows * (sent.k_row + sent.v_row) > APPEND_BYTES)
                done = attach_rows(batch, &sent, batch->stream + s, s * batch->rows, batch->first[s],
                                   batch->rows);
        if (!done) {
            free(items);
            free(errors);
            return false;
        }
        batch->appends = batch->appends && batch->rows * (sent.k_row + sent.v_row) <= APPEND_BYTES;
        fill_items(batch, &sent, items, errors);
        banyan_code code =
            client ? banyan_attend(client, items, batch->n_streams, 0, NULL, &error) : BANYAN_UNAVAILABLE;
        for (uint32_t s = 0; s < batch->n_streams; s++) {
            struct cache_stream *stream = &cache->streams[batch->stream + s];
            banyan_code of_item = code == BANYAN_OK ? items[s].code : code;
            stream->changes++;
            if (of_item == BANYAN_OK) {
                stream->lengths[batch->layer - cache->layers] = items[s].length;
                continue;
            }
            cache_doubt(cache, batch->stream + s, of_item);
            const banyan_error *why = code == BANYAN_OK ? &errors[s] : &error;
            if (client && done)
                cache_say(cache->why, "%s: sequence %u: %s: %s", batch->op->name, batch->stream + s,
                          banyan_code_name(of_item), why->message);
            done = false;
        }
    }
    free(items);
    free(errors);
    return done;
}

static bool attend(struct cache *cache, const struct ggml_tensor *op)
{
    const struct ggml_tensor *k = cache_source(op->src[1]), *q = op->src[0];
    struct cache_layer *layer = cache_layer_of(cache, k->view_src ? k->view_src : k);
    struct batch batch = {.cache = cache,
                          .layer = layer,
                          .op = op,
                          .n_streams = (uint32_t)k->ne[3],
                          .rows = (uint64_t)q->ne[1]};
    if (!layer)
        return fail(cache, op,
                    cache->why[0] ? cache->why
                                  : "an attention over a cache that was not shown before it is computed");
    batch.stream = (uint32_t)(k->view_offs / layer->k->nb[2]);
    batch.appends = layer->put_k != NULL;
    if (batch.n_streams > STREAMS_MAX || batch.n_streams != (uint64_t)q->ne[3] ||
        batch.stream + batch.n_streams > cache->n_streams)
        return fail(
            cache, op,
            "more than 256 sequences in a batch, or another number of them in the queries: not served");
    if (q->type != GGML_TYPE_F32 || op->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float) ||
        !ggml_is_contiguous(op))
        return fail(cache, op, "queries or answers that are not float32, or are not contiguous: not served");
    if (batch.appends && !read_cells(&batch))
        return false;
    if (!read_masks(&batch))
        return false;
    for (uint32_t s = 0; s < batch.n_streams; s++)
        if (batch.appends ? !cache_begin(cache, batch.stream + s, layer, batch.first[s])
                          : !cache_look(cache, batch.stream + s, layer, batch.first[s] + batch.rows))
            return false;
    bool sent = send(&batch);
    layer->put_k = layer->put_v = NULL;
    return sent;
}

// Keys and values that no attention of this part reads: they are appended for themselves.
static bool append_alone(struct cache *cache, struct cache_layer *layer)
{
    const struct ggml_tensor *indices = layer->put_k->src[1];
    struct batch batch = {.cache = cache, .layer = layer, .op = layer->put_k, .appends = true};
    uint64_t total = (uint64_t)indices->ne[0], done = 0;
    struct sent sent;
    if (layer->v != layer->k && !layer->put_v)
        return fail(cache, batch.op, "keys are set without values");
    batch.n_streams = 1;
    batch.rows = total;
    if (!make_rows(&batch, &sent))
        return false;
    while (done < total) {
        uint64_t cell = (uint64_t)index_at(indices, done), first = cell % cache->cells, count = 1;
        uint32_t stream = (uint32_t)(cell / cache->cells);
        while (done + count < total && (uint64_t)index_at(indices, done + count) == cell + count &&
               first + count < cache->cells)
            count++;
        if (stream >= cache->n_streams)
            return fail(cache, batch.op, "a row goes beyond the cache's end");
        if (!cache_begin(cache, stream, layer, first))
            return false;
        if (!attach_rows(&batch, &sent, stream, done, first, count))
            return false;
        done += count;
    }
    return true;
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
    bool all =
        !by || by->type != GGML_TYPE_I32 || (uint64_t)ggml_nelements(by) != cache->cells * cache->n_streams;
    for (uint32_t i = 0; i < cache->n_streams; i++) {
        bool turned = all;
        for (uint64_t j = 0; !turned && j < cache->cells; j++)
            turned = ((const int32_t *)by->data)[i * cache->cells + j] != 0;
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
        return cache_learn_locked(cache, op) && attend(cache, op);
    return other(cache, op);
}

static bool flush(struct cache *cache)
{
    bool done = true;
    for (uint32_t i = 0; i < cache->n_layers; i++) {
        struct cache_layer *layer = &cache->layers[i];
        if (done && layer->put_k)
            done = append_alone(cache, layer);
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
