// SPDX-License-Identifier: Apache-2.0
#include "client/llama/attend.h"

#include <ggml-impl.h>
#include <stdlib.h>
#include <string.h>

enum {
    PARTS_MAX = 4096,
    STREAMS_MAX = 256,
    APPEND_BYTES =
        1 << 20, // of an item's K and V, that a coordinator takes with a step; more is attached before
};

// Rows of a batch that follow one another, in the batch and in one sequence.
struct part {
    uint32_t stream, round; // a sequence's parts are computed one after the other
    uint64_t row, rows;     // of the batch, all streams counted
    uint64_t first;         // position of the first one
    bool block;             // they see each other, later ones too
    bool attached;          // their keys and values are there already
};

struct batch { // of one attention
    struct cache *cache;
    struct cache_layer *layer;
    const struct ggml_tensor *op;
    uint32_t stream, n_streams; // of the tensors: [stream, stream + n_streams)
    uint64_t rows;              // of each of them
    struct part *parts;
    uint32_t n_parts, n_rounds;
    uint32_t wrong_row; // for which no plan or no mask was right; CELLS_NONE: none such
    bool appends;
};

static bool fail(struct cache *cache, const struct ggml_tensor *op, const char *why)
{
    cache_say(cache->why, "%s: %s", op->name, why);
    return false;
}

static int64_t index_at(const struct ggml_tensor *indices, uint64_t i)
{
    return indices->type == GGML_TYPE_I64 ? ((const int64_t *)indices->data)[i]
                                          : ((const int32_t *)indices->data)[i];
}

static bool make_parts(struct batch *batch, uint32_t count)
{
    struct part *parts = realloc(batch->parts, (count ? count : 1) * sizeof *parts);
    if (!parts)
        return fail(batch->cache, batch->op, "no memory");
    batch->parts = parts;
    batch->n_parts = count;
    return true;
}

// ---- which rows go where ------------------------------------------------------------------------------

// Rows that are set are those which attention reads, each key beside its value.
static bool read_indices(struct batch *batch)
{
    const struct ggml_tensor *put = batch->layer->put_k, *put_v = batch->layer->put_v;
    struct cache *cache = batch->cache;
    uint64_t rows = batch->rows * batch->n_streams;
    if (batch->layer->v != batch->layer->k && !put_v)
        return fail(cache, put, "keys are set without values");
    if ((uint64_t)put->src[1]->ne[0] != rows)
        return fail(cache, put, "the rows that are set are not those that attention reads");
    for (uint64_t i = 0; put_v && i < rows; i++)
        if (index_at(put_v->src[1], i) != index_at(put->src[1], i))
            return fail(cache, put, "a key and its value go to different cells: give -fa on");
    return true;
}

// Where SET_ROWS writes the batch's rows: for each stream one cell after the other.
static bool read_cells(struct batch *batch)
{
    const struct ggml_tensor *put = batch->layer->put_k;
    struct cache *cache = batch->cache;
    for (uint64_t i = 0; i < batch->rows * batch->n_streams; i++) {
        int64_t cell = index_at(put->src[1], i);
        struct part *part = &batch->parts[i / batch->rows];
        uint64_t row = i % batch->rows;
        if (cell < 0 || (uint64_t)cell / cache->cells != part->stream)
            return fail(cache, put, "a row goes to the cache of another sequence: give --no-kv-unified");
        if (row == 0)
            part->first = (uint64_t)cell % cache->cells;
        else if ((uint64_t)cell % cache->cells != part->first + row)
            return fail(cache, put,
                        "the batch's cells do not follow one another: give --no-kv-unified, for windows "
                        "--swa-full, and neither "
                        "context shift nor --cache-reuse");
    }
    return true;
}

// The mask of a part: as it lies there, or, where sequences share their cells, brought into the order of its
// sequence.
static const char *mask_of(struct batch *batch, uint32_t number, struct mask *out)
{
    const struct ggml_tensor *mask = batch->op->src[3];
    struct cache *cache = batch->cache;
    const struct part *part = &batch->parts[number];
    *out = (struct mask){.at = (const uint16_t *)mask->data,
                         .cells = (uint64_t)mask->ne[0],
                         .rows = part->rows,
                         .stride = mask->nb[1] / 2,
                         .alibi = batch->layer->max_bias > 0};
    if (!cache->shared) {
        out->at = (const uint16_t *)((const char *)mask->data + number * mask->nb[3]);
        return NULL;
    }
    const struct cells_part *planned = &cache->shared->parts[number];
    if (cells_in_order(cache->shared, planned)) {
        out->at += part->row * out->stride;
        return NULL;
    }
    uint64_t end = part->first + part->rows;
    if (!rows_room(&cache->mask, part->rows * end * sizeof(uint16_t)))
        return "no memory";
    const struct mask_seen known = {.window = cache->window, .chunk = cache->chunk};
    const char *wrong = cells_gather(cache->shared, planned, out, &known, cache->mask.at);
    out->at = cache->mask.at;
    out->cells = out->stride = end;
    return wrong;
}

// Compares the masks of all parts with what sessions compute. NULL: they are the same.
static const char *read_masks(struct batch *batch)
{
    struct cache *cache = batch->cache;
    bool shared = cache->shared != NULL;
    for (uint32_t i = 0; i < batch->n_parts; i++) {
        struct part *part = &batch->parts[i];
        struct mask_seen known = {.window = cache->window, .chunk = cache->chunk}, seen;
        struct mask mask;
        const char *wrong = mask_of(batch, i, &mask);
        batch->wrong_row = (uint32_t)part->row;
        if (!wrong)
            wrong = mask_read(&mask, batch->appends || shared ? part->first : UINT64_MAX, &known, &seen);
        if (wrong)
            return wrong;
        part->block = seen.block;
        part->first = seen.first;
        if (seen.block && batch->n_rounds > 1)
            return "rows that see later ones, with rows of other sequences in between: give --no-kv-unified";
        // What one part shows holds for those before it, too: they are read again with it.
        bool shown = seen.window != known.window || seen.chunk != known.chunk;
        cache->window = seen.window;
        cache->chunk = seen.chunk;
        if (shown && i > 0)
            return read_masks(batch);
    }
    return NULL;
}

static bool has_mask(struct batch *batch)
{
    const struct ggml_tensor *mask = batch->op->src[3];
    if (!mask || mask->type != GGML_TYPE_F16 || mask->ne[1] < (int64_t)batch->rows || mask->ne[2] != 1 ||
        mask->ne[3] != (int64_t)batch->n_streams)
        return fail(batch->cache, batch->op, "an attention with no mask, or one for each head: not served");
    return true;
}

static bool judge(struct batch *batch, const char *wrong)
{
    struct cache *cache = batch->cache;
    cache->doubted = cache->doubted || (wrong && (cache->window || cache->chunk));
    return wrong ? fail(cache, batch->op, wrong) : true;
}

// Each sequence has a stream of its own.
static bool plan_streams(struct batch *batch)
{
    struct cache *cache = batch->cache;
    if (!make_parts(batch, batch->n_streams))
        return false;
    batch->n_rounds = 1;
    for (uint32_t i = 0; i < batch->n_parts; i++)
        batch->parts[i] = (struct part){
            .stream = batch->stream + i, .row = i * batch->rows, .rows = batch->rows, .first = UINT64_MAX};
    if (batch->appends && !read_cells(batch))
        return false;
    if (cache->doubted && batch->appends && batch->parts[0].first == 0)
        cache->window = cache->chunk = 0, cache->doubted = false;
    return judge(batch, read_masks(batch));
}

static bool take_parts(struct batch *batch)
{
    const struct cells *shared = batch->cache->shared;
    if (!make_parts(batch, shared->n_parts))
        return false;
    batch->n_rounds = shared->n_rounds;
    for (uint32_t i = 0; i < shared->n_parts; i++)
        batch->parts[i] = (struct part){.stream = shared->parts[i].list,
                                        .round = shared->parts[i].round,
                                        .row = shared->parts[i].row,
                                        .rows = shared->parts[i].rows,
                                        .first = shared->parts[i].first};
    return true;
}

static int64_t *written_cells(struct batch *batch, const struct ggml_tensor *put, uint64_t rows)
{
    struct cache *cache = batch->cache;
    if (!rows_room(&cache->written, rows * sizeof(int64_t))) {
        (void)fail(cache, put, "no memory");
        return NULL;
    }
    int64_t *out = cache->written.at;
    for (uint64_t i = 0; i < rows; i++)
        out[i] = index_at(put->src[1], i);
    return out;
}

// Of the rows as they are: each part's list and mask.
static const char *plan_once(struct batch *batch, const struct mask *all)
{
    struct cache *cache = batch->cache;
    struct cells *shared = cache->shared;
    const char *wrong = cells_plan(shared, all, cache->window || cache->chunk);
    batch->wrong_row = shared->mixed;
    if (wrong)
        return wrong;
    if (shared->n_parts > PARTS_MAX)
        return "rows of many sequences take turns in a batch: give --no-kv-unified";
    if (!take_parts(batch))
        return "no memory";
    if (cache->doubted && batch->parts[0].first == 0)
        cache->window = cache->chunk = 0, cache->doubted = false;
    return read_masks(batch);
}

// What a row sees may be no beginning of a session: a restored state has its rows in the order of cells, and
// llama.cpp may take any row back. Where there is no window, the order of rows tells nothing apart: what the
// row sees is copied to a session of its own.
static const char *plan_anew(struct batch *batch, const int64_t *written)
{
    struct cache *cache = batch->cache;
    const struct ggml_tensor *mask = batch->op->src[3];
    const struct mask all = {.at = (const uint16_t *)mask->data,
                             .cells = (uint64_t)mask->ne[0],
                             .rows = batch->rows,
                             .stride = mask->nb[1] / 2};
    const char *wrong = cells_write(cache->shared, written, (uint32_t)batch->rows);
    if (wrong)
        return wrong;
    bool windowed = cache->window || cache->chunk;
    for (uint32_t copied = CELLS_NONE;;) {
        wrong = plan_once(batch, &all);
        if (!wrong || windowed || batch->wrong_row == CELLS_NONE || batch->wrong_row == copied)
            return wrong;
        cache->window = cache->chunk = 0; // what such a row seemed to show
        copied = batch->wrong_row;
        uint32_t list = cells_collect(cache->shared, &all, copied);
        if (list == CELLS_NONE)
            return wrong;
        if (!cache_collect(cache, list))
            return cache->why;
    }
}

// Sequences share their cells. Layers of one batch have the same plan.
static bool plan_shared(struct batch *batch)
{
    struct cache *cache = batch->cache;
    struct cells *shared = cache->shared;
    const int64_t *written = NULL;
    if (batch->appends && !(written = written_cells(batch, batch->layer->put_k, batch->rows)))
        return false;
    // A layer that has used the plan already shows it for the second time: that is another batch.
    bool planned = batch->appends ? batch->layer->plan != cache->plans &&
                                        cells_planned(shared, written, (uint32_t)batch->rows)
                                  : shared->n_parts > 0 && shared->rows == batch->rows;
    const char *wrong = "an attention over cells that this batch has not written: give --no-kv-unified";
    if (planned) {
        wrong = take_parts(batch) ? read_masks(batch) : "no memory";
    } else if (batch->appends) {
        cache->plans++;
        wrong = plan_anew(batch, written);
    }
    batch->layer->plan = cache->plans;
    if (!judge(batch, wrong)) {
        shared->n_parts = 0;
        return false;
    }
    return !batch->appends || cache_follow(cache);
}

// ---- rows ---------------------------------------------------------------------------------------------

// A part's queries, [rows][heads][dim] float32: where they lie so already, themselves.
static const float *queries(struct batch *batch, const struct part *part)
{
    const struct ggml_tensor *q = batch->op->src[0];
    const char *from =
        (const char *)q->data + part->row / batch->rows * q->nb[3] + part->row % batch->rows * q->nb[1];
    size_t row = (size_t)q->ne[0] * sizeof(float);
    uint64_t heads = (uint64_t)q->ne[2];
    if ((q->nb[2] == row || heads == 1) && (q->nb[1] == row * heads || part->rows == 1))
        return (const float *)from;
    char *out = (char *)batch->cache->q.at + part->row * heads * row;
    for (uint64_t i = 0; i < part->rows; i++)
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

// ---- a round: one part of each sequence -------------------------------------------------------------------

// How many rows the sequence has after the batch.
static uint64_t end_of(const struct batch *batch, uint32_t stream)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < batch->n_parts; i++)
        if (batch->parts[i].stream == stream)
            end = batch->parts[i].first + batch->parts[i].rows;
    return end;
}

static bool begin_round(struct batch *batch, uint32_t round)
{
    for (uint32_t i = 0; i < batch->n_parts; i++) {
        const struct part *part = &batch->parts[i];
        if (part->round != round)
            continue;
        if (batch->appends
                ? !cache_begin(batch->cache, part->stream, batch->layer, part->first)
                : !cache_look(batch->cache, part->stream, batch->layer, end_of(batch, part->stream)))
            return false;
    }
    return true;
}

static bool attach_large(struct batch *batch, const struct sent *sent, uint32_t round)
{
    for (uint32_t i = 0; batch->appends && i < batch->n_parts; i++) {
        struct part *part = &batch->parts[i];
        part->attached = part->rows * (sent->k_row + sent->v_row) > APPEND_BYTES;
        if (part->round == round && part->attached &&
            !attach_rows(batch, sent, part->stream, part->row, part->first, part->rows))
            return false;
    }
    return true;
}

static void fill_item(struct batch *batch, const struct sent *sent, const struct part *part,
                      banyan_item *item, banyan_error *error)
{
    const struct cache_layer *layer = batch->layer;
    size_t o_row = (size_t)batch->op->ne[0] * batch->op->ne[1] * sizeof(float);
    *item = (banyan_item){.session = batch->cache->streams[part->stream].session,
                          .layer = (uint32_t)(layer - batch->cache->layers),
                          .first = part->first,
                          .rows = (uint32_t)part->rows,
                          .q = queries(batch, part),
                          .o = (float *)((char *)batch->op->data + part->row * o_row),
                          .block_first = part->block ? part->first : 0,
                          .block_count = part->block ? part->rows : 0,
                          .error = error};
    if (!batch->appends || part->attached)
        return;
    item->k = (const char *)sent->k + part->row * sent->k_row;
    item->v = sent->v ? (const char *)sent->v + part->row * sent->v_row : NULL;
    item->k_scale = sent->k_scale ? sent->k_scale + part->row * layer->kv_heads : NULL;
    item->v_scale = sent->v_scale ? sent->v_scale + part->row * layer->kv_heads : NULL;
}

static bool take_result(struct batch *batch, const struct part *part, banyan_code code,
                        const banyan_item *item, const banyan_error *error)
{
    struct cache *cache = batch->cache;
    struct cache_stream *stream = &cache->streams[part->stream];
    stream->changes++;
    if (code == BANYAN_OK) {
        stream->lengths[batch->layer - cache->layers] = item->length;
        return true;
    }
    cache_doubt(cache, part->stream, code);
    cache_say(cache->why, "%s: sequence %u: %s: %s", batch->op->name, part->stream, banyan_code_name(code),
              error->message);
    return false;
}

static bool send_round(struct batch *batch, const struct sent *sent, uint32_t round, banyan_item *items,
                       banyan_error *errors)
{
    struct cache *cache = batch->cache;
    banyan_client *client = cluster_client(cache->why, sizeof cache->why);
    banyan_error error;
    uint32_t n = 0;
    if (!client || !begin_round(batch, round) || !attach_large(batch, sent, round))
        return false;
    for (uint32_t i = 0; i < batch->n_parts; i++)
        if (batch->parts[i].round == round) {
            fill_item(batch, sent, &batch->parts[i], &items[n], &errors[n]);
            n++;
        }
    banyan_code code = banyan_attend(client, items, n, 0, NULL, &error);
    bool done = true;
    n = 0;
    for (uint32_t i = 0; i < batch->n_parts; i++) {
        if (batch->parts[i].round != round)
            continue;
        bool sound = code == BANYAN_OK;
        done = take_result(batch, &batch->parts[i], sound ? items[n].code : code, &items[n],
                           sound ? &errors[n] : &error) &&
               done;
        n++;
    }
    return done;
}

static bool send(struct batch *batch)
{
    struct cache *cache = batch->cache;
    const struct ggml_tensor *q = batch->op->src[0];
    banyan_item *items = calloc(batch->n_parts, sizeof *items);
    banyan_error *errors = calloc(batch->n_parts, sizeof *errors);
    struct sent sent = {0};
    bool done = items && errors &&
                rows_room(&cache->q, (size_t)q->ne[0] * q->ne[1] * q->ne[2] * q->ne[3] * sizeof(float)) &&
                (!batch->appends || make_rows(batch, &sent));
    if (!done)
        (void)fail(cache, batch->op, "no memory");
    for (uint32_t round = 0; done && round < batch->n_rounds; round++)
        done = send_round(batch, &sent, round, items, errors);
    free(items);
    free(errors);
    return done;
}

// ---- an attention, an append
// --------------------------------------------------------------------------------

static bool is_served(struct batch *batch)
{
    const struct ggml_tensor *q = batch->op->src[0];
    struct cache *cache = batch->cache;
    uint32_t streams = cache->shared ? 1 : cache->n_streams;
    if (batch->n_streams > STREAMS_MAX || batch->n_streams != (uint64_t)q->ne[3] ||
        batch->stream + batch->n_streams > streams)
        return fail(
            cache, batch->op,
            "more than 256 sequences in a batch, or another number of them in the queries: not served");
    if (q->type != GGML_TYPE_F32 || batch->op->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float) ||
        !ggml_is_contiguous(batch->op))
        return fail(cache, batch->op,
                    "queries or answers that are not float32, or are not contiguous: not served");
    return true;
}

bool attend_compute(struct cache *cache, const struct ggml_tensor *op)
{
    const struct ggml_tensor *k = cache_source(op->src[1]);
    struct cache_layer *layer = cache_layer_of(cache, k->view_src ? k->view_src : k);
    struct batch batch = {.cache = cache,
                          .layer = layer,
                          .op = op,
                          .n_streams = (uint32_t)k->ne[3],
                          .rows = (uint64_t)op->src[0]->ne[1]};
    if (!layer)
        return fail(cache, op,
                    cache->why[0] ? cache->why
                                  : "an attention over a cache that was not shown before it is computed");
    batch.stream = (uint32_t)(k->view_offs / layer->k->nb[2]);
    batch.appends = layer->put_k != NULL;
    bool done = is_served(&batch) && (!batch.appends || read_indices(&batch)) && has_mask(&batch) &&
                (cache->shared ? plan_shared(&batch) : plan_streams(&batch)) && send(&batch);
    free(batch.parts);
    if (done)
        layer->put_k = layer->put_v = NULL;
    return done;
}

// Rows of several streams, one after the other.
static bool part_streams(struct batch *batch)
{
    struct cache *cache = batch->cache;
    const struct ggml_tensor *indices = batch->layer->put_k->src[1];
    if (!make_parts(batch, (uint32_t)batch->rows))
        return false;
    batch->n_parts = 0;
    for (uint64_t row = 0; row < batch->rows; row++) {
        uint64_t cell = (uint64_t)index_at(indices, row), first = cell % cache->cells;
        uint32_t stream = (uint32_t)(cell / cache->cells);
        struct part *last = batch->n_parts ? &batch->parts[batch->n_parts - 1] : NULL;
        if (last && last->stream == stream && last->first + last->rows == first) {
            last->rows++;
            continue;
        }
        if (stream >= cache->n_streams)
            return fail(cache, batch->op, "a row goes beyond the cache's end");
        batch->parts[batch->n_parts++] =
            (struct part){.stream = stream, .row = row, .rows = 1, .first = first};
    }
    return true;
}

static bool part_shared(struct batch *batch)
{
    struct cache *cache = batch->cache;
    struct cells *shared = cache->shared;
    const int64_t *written = written_cells(batch, batch->op, batch->rows);
    const char *wrong = NULL;
    if (!written)
        return false;
    if (batch->layer->plan == cache->plans || !cells_planned(shared, written, (uint32_t)batch->rows)) {
        cache->plans++;
        wrong = cells_write(shared, written, (uint32_t)batch->rows);
        if (!wrong)
            wrong = cells_plan_blind(shared);
    }
    batch->layer->plan = cache->plans;
    if (wrong)
        return fail(cache, batch->op, wrong);
    return take_parts(batch) && cache_follow(cache);
}

bool attend_append(struct cache *cache, struct cache_layer *layer)
{
    struct batch batch = {.cache = cache,
                          .layer = layer,
                          .op = layer->put_k,
                          .n_streams = 1,
                          .rows = (uint64_t)layer->put_k->src[1]->ne[0],
                          .appends = true};
    struct sent sent;
    if (layer->v != layer->k && !layer->put_v)
        return fail(cache, batch.op, "keys are set without values");
    bool done = make_rows(&batch, &sent) && (cache->shared ? part_shared(&batch) : part_streams(&batch));
    for (uint32_t i = 0; done && i < batch.n_parts; i++) {
        const struct part *part = &batch.parts[i];
        done = cache_begin(cache, part->stream, layer, part->first) &&
               attach_rows(&batch, &sent, part->stream, part->row, part->first, part->rows);
    }
    free(batch.parts);
    return done;
}
