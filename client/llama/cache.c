// SPDX-License-Identifier: Apache-2.0
#include "client/llama/cache.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/llama/spec.h"

void cache_say(char out[CACHE_WHY], const char *format, ...)
{
    char made[CACHE_WHY];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(made, sizeof made, format, arguments);
    va_end(arguments);
    memcpy(out, made, sizeof made);
}

// ---- sessions are used while the process lives ---------------------------------------------------------

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cache *list;
static bool keeping;

// Asks for the cache's sessions. The caller has locked the cache. false: the cluster does not answer.
static bool use_sessions(struct cache *cache)
{
    for (uint32_t i = 0; i < cache->n_streams; i++) {
        banyan_session_info info;
        if (!cache->streams[i].session || cache->streams[i].unsure)
            continue;
        banyan_code code = banyan_session_get_info(cache->streams[i].session, &info, NULL);
        if (code == BANYAN_OK)
            banyan_session_info_free(&info);
        else
            cache_doubt(cache, i, code);
        if (cache->streams[i].away)
            return false;
    }
    return true;
}

void cache_use(struct cache *cache)
{
    if (__atomic_exchange_n(&cache->due, false, __ATOMIC_RELAXED))
        (void)use_sessions(cache);
}

// One of the list that this round has not asked for yet, pinned; NULL: there is none. No lock is held while a
// cluster is asked, which may take as long as a call may: a pinned cache stays, whatever happens to the list
// meanwhile.
static struct cache *pin_next(uint64_t round)
{
    pthread_mutex_lock(&list_lock);
    struct cache *cache = list;
    while (cache && cache->round == round)
        cache = cache->next;
    if (cache) {
        cache->round = round;
        cache->pinned = true;
    }
    pthread_mutex_unlock(&list_lock);
    return cache;
}

static void cache_end(struct cache *cache);

static void unpin(struct cache *cache)
{
    pthread_mutex_lock(&list_lock);
    cache->pinned = false;
    bool gone = cache->gone;
    pthread_mutex_unlock(&list_lock);
    if (gone)
        cache_end(cache);
}

// false: the cluster does not answer. A cache that is computing asks when it is done.
static bool keep_sessions(struct cache *cache)
{
    if (pthread_mutex_trylock(&cache->lock) != 0) {
        __atomic_store_n(&cache->due, true, __ATOMIC_RELAXED);
        return true;
    }
    bool answers = use_sessions(cache);
    pthread_mutex_unlock(&cache->lock);
    return answers;
}

// A session lives for BANYAN_TTL after its last use, so that those of a process that was killed go. Asking
// for it is a use.
static void *keep(void *arg)
{
    uint64_t pause_ns = *(const uint64_t *)arg / 4;
    for (uint64_t round = 1;; round++) {
        nanosleep(&(struct timespec){(time_t)(pause_ns / 1000000000), (long)(pause_ns % 1000000000)}, NULL);
        bool answers = true;
        for (struct cache *cache; answers && (cache = pin_next(round));) {
            answers = keep_sessions(cache);
            unpin(cache);
        }
    }
    return NULL;
}

void cache_keep_from_now(const struct settings *settings)
{
    pthread_t thread;
    pthread_mutex_lock(&list_lock);
    if (!keeping && settings->ttl_ns > 0 &&
        pthread_create(&thread, NULL, keep, (void *)&settings->ttl_ns) == 0) {
        pthread_detach(thread);
        keeping = true;
    }
    pthread_mutex_unlock(&list_lock);
}

struct cache *cache_new(void)
{
    static unsigned caches;
    struct cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return NULL;
    pthread_mutex_init(&cache->lock, NULL);
    pthread_mutex_lock(&list_lock);
    cache->number = caches++;
    cache->next = list;
    list = cache;
    pthread_mutex_unlock(&list_lock);
    return cache;
}

static bool is_away(banyan_code code)
{
    return code == BANYAN_UNAVAILABLE || code == BANYAN_DEADLINE_EXCEEDED;
}

bool cache_drop_session(struct cache_stream *stream, bool delete)
{
    bool answers = !stream->away;
    if (stream->session && delete &&answers)
        answers = !is_away(banyan_session_delete(stream->session, NULL));
    banyan_session_close(stream->session);
    free(stream->lengths);
    stream->session = NULL;
    stream->lengths = NULL;
    stream->layers = 0;
    stream->unsure = stream->away = false;
    stream->changes++;
    return answers;
}

// It is in no list and is not pinned.
static void cache_end(struct cache *cache)
{
    bool answers = true;
    for (uint32_t i = 0; i < cache->n_streams; i++)
        answers = cache_drop_session(&cache->streams[i], answers) && answers;
    struct rows_memory *memories[] = {&cache->q,       &cache->k,    &cache->v,      &cache->k_scale,
                                      &cache->v_scale, &cache->mask, &cache->written};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        free(memories[i]->at);
    if (cache->shared)
        cells_free(cache->shared);
    free(cache->shared);
    free(cache->streams);
    free(cache->layers);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

// One that is pinned is ended by the code that pinned it: the caller does not wait for that one's call.
void cache_free(struct cache *cache)
{
    if (!cache)
        return;
    pthread_mutex_lock(&list_lock);
    struct cache **at = &list;
    while (*at != cache)
        at = &(*at)->next;
    *at = cache->next;
    cache->gone = true;
    bool pinned = cache->pinned;
    pthread_mutex_unlock(&list_lock);
    if (!pinned)
        cache_end(cache);
}

banyan_kv_type cache_held(const struct cache *cache)
{
    const struct settings *settings = cluster_settings(NULL, 0);
    banyan_kv_type held = 0;
    for (uint32_t i = 0; i < cache->n_layers; i++) {
        const struct cache_layer *layer = &cache->layers[i];
        banyan_kv_type of = rows_kv_type(layer->k->type, layer->v->type, settings && settings->q8_as_int8);
        held = i == 0 || held == of ? of : BANYAN_F32;
    }
    return held;
}

// ---- layers ---------------------------------------------------------------------------------------

struct cache_layer *cache_layer_of(struct cache *cache, const struct ggml_tensor *root)
{
    for (uint32_t i = 0; i < cache->n_layers; i++)
        if (cache->layers[i].k == root || cache->layers[i].v == root)
            return &cache->layers[i];
    return NULL;
}

const struct ggml_tensor *cache_source(const struct ggml_tensor *source)
{
    bool copy = source && source->op == GGML_OP_CPY && source->type == GGML_TYPE_F16 &&
                source->src[0]->type == GGML_TYPE_F32;
    return copy ? source->src[0] : source;
}

static const struct ggml_tensor *root_of(const struct ggml_tensor *tensor)
{
    return tensor->view_src ? tensor->view_src : tensor;
}

static bool read_attention(struct cache *cache, const struct ggml_tensor *op, struct cache_layer *out)
{
    const struct ggml_tensor *q = op->src[0], *k = cache_source(op->src[1]), *v = cache_source(op->src[2]);
    *out = (struct cache_layer){.k = root_of(k),
                                .v = root_of(v),
                                .q_heads = (uint32_t)q->ne[2],
                                .kv_heads = (uint32_t)k->ne[2],
                                .k_dim = (uint32_t)k->ne[0],
                                .v_dim = (uint32_t)v->ne[0],
                                .sinks = op->src[4]};
    memcpy(&out->scale, (const float *)op->op_params + 0, sizeof(float));
    memcpy(&out->max_bias, (const float *)op->op_params + 1, sizeof(float));
    memcpy(&out->soft_cap, (const float *)op->op_params + 2, sizeof(float));
    if (out->v == out->k &&
        (v->view_offs != k->view_offs || out->v_dim > out->k_dim || v->ne[2] != k->ne[2])) {
        cache_say(cache->why, "%s: V is a part of K other than its first elements: not served", out->k->name);
        return false;
    }
    if (v->ne[2] != k->ne[2] || q->ne[2] % k->ne[2] != 0 ||
        (uint64_t)out->k->ne[0] != (uint64_t)out->kv_heads * out->k_dim) {
        cache_say(cache->why, "%s: heads of K (%lld) and V (%lld), or rows longer than they: not served",
                  out->k->name, (long long)k->ne[2], (long long)v->ne[2]);
        return false;
    }
    return true;
}

static bool room_for_streams(struct cache *cache, const struct ggml_tensor *k)
{
    uint64_t streams = cache->shared ? 1 : cache->n_streams;
    if (cache->cells)
        return streams == (uint64_t)k->ne[2] && cache->cells == (uint64_t)k->ne[1];
    if (k->ne[2] == 1) {
        cache->shared = calloc(1, sizeof *cache->shared);
        cache->restored = CELLS_NONE;
        if (!cache->shared || !cells_init(cache->shared, (uint32_t)k->ne[1])) {
            free(cache->shared);
            cache->shared = NULL;
            return false;
        }
    } else {
        cache->streams = calloc((size_t)k->ne[2], sizeof *cache->streams);
        if (!cache->streams)
            return false;
        cache->n_streams = (uint32_t)k->ne[2];
    }
    cache->cells = (uint64_t)k->ne[1];
    return true;
}

bool cache_room(struct cache *cache)
{
    uint32_t lists = cache->shared->n_lists;
    if (lists <= cache->n_streams)
        return true;
    struct cache_stream *more = realloc(cache->streams, lists * sizeof *more);
    if (!more) {
        cache_say(cache->why, "no memory");
        return false;
    }
    memset(more + cache->n_streams, 0, (lists - cache->n_streams) * sizeof *more);
    cache->streams = more;
    cache->n_streams = lists;
    return true;
}

bool cache_learn_locked(struct cache *cache, const struct ggml_tensor *attention)
{
    struct cache_layer seen;
    if (!read_attention(cache, attention, &seen))
        return false;
    struct cache_layer *layer = cache_layer_of(cache, seen.k);
    if (layer) {
        if (layer->v != seen.v || layer->q_heads != seen.q_heads || layer->kv_heads != seen.kv_heads ||
            layer->k_dim != seen.k_dim || layer->v_dim != seen.v_dim || layer->scale != seen.scale ||
            layer->soft_cap != seen.soft_cap || layer->max_bias != seen.max_bias ||
            !layer->sinks != !seen.sinks) {
            cache_say(cache->why,
                      "%s: two layers read the same keys with other heads, scales or caps: not served",
                      seen.k->name);
            return false;
        }
        return true;
    }
    if (!room_for_streams(cache, seen.k)) {
        cache_say(cache->why, "%s: layers of one cache with other cells or streams, or no memory",
                  seen.k->name);
        return false;
    }
    struct cache_layer *more = realloc(cache->layers, (cache->n_layers + 1) * sizeof *more);
    if (!more) {
        cache_say(cache->why, "no memory");
        return false;
    }
    cache->layers = more;
    cache->layers[cache->n_layers++] = seen;
    return true;
}

bool cache_learn(struct cache *cache, const struct ggml_tensor *attention)
{
    pthread_mutex_lock(&cache->lock);
    bool learnt = cache_learn_locked(cache, attention);
    pthread_mutex_unlock(&cache->lock);
    return learnt;
}

// ---- a stream's session -----------------------------------------------------------------------------

static bool fail(struct cache *cache, uint32_t stream, const char *what, const banyan_error *error)
{
    cache_say(cache->why, "sequence %u: %s: %s%s%s", stream, what, error->message,
              error->worker[0] ? ", worker " : "", error->worker);
    return false;
}

bool cache_take_lengths(struct cache_stream *stream, uint32_t layers)
{
    free(stream->lengths);
    stream->lengths = calloc(layers ? layers : 1, sizeof *stream->lengths);
    stream->layers = stream->lengths ? layers : 0;
    return stream->lengths != NULL;
}

void cache_name_of(const struct cache *cache, uint32_t number, char out[128])
{
    snprintf(out, 128, "%.60s-%d-%u-%u-%llu", cluster_settings(NULL, 0)->session, (int)getpid(),
             cache->number, number, (unsigned long long)cache->streams[number].changes);
}

bool cache_create_session(struct cache *cache, uint32_t number)
{
    struct cache_stream *stream = &cache->streams[number];
    const struct settings *settings = cluster_settings(cache->why, sizeof cache->why);
    banyan_client *client = settings ? cluster_client(cache->why, sizeof cache->why) : NULL;
    char name[128];
    if (!client)
        return false;
    cache_keep_from_now(settings);
    cache_name_of(cache, number, name);
    if (!cache_take_lengths(stream, cache->n_layers)) {
        cache_say(cache->why, "no memory");
        return false;
    }
    // The name is for people: another machine's process of this number may have it.
    banyan_code code = spec_create(cache, client, name, &stream->session);
    if (code == BANYAN_ALREADY_EXISTS)
        code = spec_create(cache, client, NULL, &stream->session);
    if (code != BANYAN_OK)
        return false;
    stream->window = cache->window;
    stream->chunk = cache->chunk;
    stream->unsure = false;
    stream->lost[0] = '\0';
    stream->changes++;
    return true;
}

static void forget_session(struct cache_stream *stream)
{
    cache_drop_session(stream, false);
    cache_say(stream->lost,
              "its session is no longer in the cluster (deleted, or unused for longer than BANYAN_TTL)");
}

// What the cluster has of the session now.
static bool resync(struct cache *cache, uint32_t number)
{
    struct cache_stream *stream = &cache->streams[number];
    banyan_session_info info;
    banyan_error error;
    banyan_code code = banyan_session_get_info(stream->session, &info, &error);
    if (code == BANYAN_NOT_FOUND) {
        forget_session(stream);
        return true;
    }
    if (code != BANYAN_OK) {
        cache_doubt(cache, number, code);
        return fail(cache, number, "its state", &error);
    }
    for (uint32_t i = 0; i < stream->layers; i++)
        stream->lengths[i] = i < info.n_layers ? info.layer_lengths[i] : 0;
    banyan_session_info_free(&info);
    stream->unsure = stream->away = false;
    stream->changes++;
    return true;
}

bool cache_ask(struct cache *cache, uint32_t number)
{
    struct cache_stream *stream = &cache->streams[number];
    return !stream->session || !stream->unsure || resync(cache, number);
}

bool cache_truncate(struct cache *cache, uint32_t number, uint64_t length)
{
    struct cache_stream *stream = &cache->streams[number];
    uint64_t longest = 0;
    banyan_error error;
    for (uint32_t i = 0; i < stream->layers; i++)
        longest = stream->lengths[i] > longest ? stream->lengths[i] : longest;
    if (longest <= length)
        return true;
    stream->changes++;
    banyan_code code = banyan_session_truncate(stream->session, length, &error);
    if (code != BANYAN_OK) {
        cache_doubt(cache, number, code);
        if (code == BANYAN_NOT_FOUND)
            forget_session(stream);
        return fail(cache, number, "cells that are written again", &error);
    }
    for (uint32_t i = 0; i < stream->layers; i++)
        stream->lengths[i] = stream->lengths[i] < length ? stream->lengths[i] : length;
    return true;
}

enum { MOVE_BYTES = 8 << 20 };

bool cache_move_rows(struct cache *cache, uint32_t number, const struct cache_layer *layer, uint64_t from,
                     banyan_session *to, uint64_t begin, uint64_t length)
{
    struct cache_stream *stream = &cache->streams[number];
    uint32_t at = (uint32_t)(layer - cache->layers);
    banyan_kv_type held = cache_held(cache);
    bool scaled = banyan_kv_scaled(held), alone = layer->v == layer->k;
    size_t k_row = rows_bytes(held, (uint64_t)layer->kv_heads * layer->k_dim),
           v_row = rows_bytes(held, (uint64_t)layer->kv_heads * layer->v_dim);
    uint64_t piece = MOVE_BYTES / (k_row + v_row) + 1;
    // Not the cache's own memory: rows of the step may lie there.
    size_t scale_row = scaled ? layer->kv_heads * sizeof(float) : 0;
    char *memory = malloc(piece * (k_row + v_row + 2 * scale_row) + 3 * 64), *k = memory;
    if (!memory) {
        cache_say(cache->why, "no memory");
        return false;
    }
    char *after_k = k + (piece * k_row + 63) / 64 * 64, *after_v = after_k + (piece * v_row + 63) / 64 * 64;
    void *v = alone ? NULL : after_k;
    float *k_scale = scaled ? (float *)after_v : NULL,
          *v_scale = scaled && !alone ? (float *)(after_v + piece * scale_row) : NULL;
    banyan_error error = {0};
    banyan_code code = BANYAN_OK;
    for (uint64_t first = 0; code == BANYAN_OK && first < length; first += piece) {
        uint64_t count = length - first < piece ? length - first : piece;
        uint64_t there = begin + first;
        code = banyan_read_rows(stream->session, at, from + first, count, k, k_scale, v, v_scale, &error);
        if (code == BANYAN_OK)
            code = scaled ? banyan_attach_scaled(to, at, there, count, k, k_scale, v, v_scale, &error)
                          : banyan_attach(to, at, there, count, k, v, &error);
        if (code == BANYAN_OK)
            code = banyan_commit(to, at, there, count, &error);
    }
    free(memory);
    if (code == BANYAN_OK)
        return true;
    cache_doubt(cache, number, code);
    return fail(cache, number, "its rows, which go to another session", &error);
}

// The session again, with the window that a mask has shown.
static bool make_again(struct cache *cache, uint32_t number)
{
    struct cache_stream *stream = &cache->streams[number], old = *stream;
    uint64_t length = UINT64_MAX;
    for (uint32_t i = 0; i < old.layers; i++)
        length = old.lengths[i] < length ? old.lengths[i] : length;
    if (!cache_truncate(cache, number, length))
        return false;
    old = *stream;
    stream->session = NULL;
    stream->lengths = NULL;
    bool made = cache_create_session(cache, number);
    struct cache_stream made_stream = *stream;
    for (uint32_t i = 0; made && length > 0 && i < old.layers; i++) {
        stream->session = old.session; // whence move_rows reads
        made = cache_move_rows(cache, number, &cache->layers[i], 0, made_stream.session, 0, length);
        stream->session = made_stream.session;
    }
    if (!made) {
        old.unsure = stream->unsure;
        old.away = stream->away;
        cache_drop_session(stream, true);
        *stream = old;
        return false;
    }
    for (uint32_t i = 0; i < stream->layers; i++)
        stream->lengths[i] = length;
    cache_drop_session(&old, true);
    return true;
}

// Makes one for a stream that has none, if nothing of it is needed.
static bool has_session(struct cache *cache, uint32_t number, uint64_t first)
{
    struct cache_stream *stream = &cache->streams[number];
    if (stream->lost[0] && first > 0) {
        cache_say(cache->why, "sequence %u: %s; its prompt must be processed from the start again", number,
                  stream->lost);
        return false;
    }
    if (!stream->session && first > 0) {
        cache_say(cache->why, "sequence %u: cell %llu is used, but cells before it were never written",
                  number, (unsigned long long)first);
        return false;
    }
    return stream->session || cache_create_session(cache, number);
}

// Usable: it is there, as the cluster has it, with the cache's window.
static bool ready(struct cache *cache, uint32_t number, const struct cache_layer *layer, uint64_t first)
{
    struct cache_stream *stream = &cache->streams[number];
    if (!cache_ask(cache, number))
        return false;
    if (!has_session(cache, number, first))
        return false;
    // Layers before it may have the batch's rows already; where this one has rows from there on, llama.cpp
    // has taken them back.
    uint32_t at = (uint32_t)(layer - cache->layers);
    if (at < stream->layers && stream->lengths[at] > first && !cache_truncate(cache, number, first) &&
        (stream->session || !has_session(cache, number, first)))
        return false;
    stream->lost[0] = '\0';
    if (stream->layers != cache->n_layers) {
        if (first == 0) {
            cache_drop_session(stream, true);
            return cache_create_session(cache, number);
        }
        cache_say(cache->why, "sequence %u: attention of a layer that did not exist before", number);
        return false;
    }
    return (stream->window == cache->window && stream->chunk == cache->chunk) || make_again(cache, number);
}

bool cache_begin(struct cache *cache, uint32_t number, const struct cache_layer *layer, uint64_t first)
{
    if (!ready(cache, number, layer, first))
        return false;
    struct cache_stream *stream = &cache->streams[number];
    uint64_t length = stream->lengths[layer - cache->layers];
    if (length != first) {
        cache_say(cache->why, "sequence %u: cell %llu is written, but cells from %llu onwards never were",
                  number, (unsigned long long)first, (unsigned long long)length);
        return false;
    }
    return true;
}

bool cache_look(struct cache *cache, uint32_t number, const struct cache_layer *layer, uint64_t end)
{
    struct cache_stream *stream = &cache->streams[number];
    if (!ready(cache, number, layer, end))
        return false;
    if (stream->lengths[layer - cache->layers] < end) {
        cache_say(cache->why, "sequence %u: an attention over cells up to %llu, of which %llu were written",
                  number, (unsigned long long)end,
                  (unsigned long long)stream->lengths[layer - cache->layers]);
        return false;
    }
    return true;
}

void cache_doubt(struct cache *cache, uint32_t number, banyan_code code)
{
    cache->streams[number].away = is_away(code);
    cache->streams[number].unsure = true;
    cache->streams[number].changes++;
}

// ---- what llama.cpp does to the whole ----------------------------------------------------------------

void cache_lose(struct cache *cache, const char *why)
{
    pthread_mutex_lock(&cache->lock);
    for (uint32_t i = 0; i < cache->n_streams; i++)
        if (cache->streams[i].session)
            cache_say(cache->streams[i].lost, "%s", why);
    pthread_mutex_unlock(&cache->lock);
}

void cache_clear(struct cache *cache)
{
    pthread_mutex_lock(&cache->lock);
    bool answers = true;
    cache->chunk = 0; // what looked like one may have been the cells of another sequence
    for (uint32_t i = 0; cache->shared && i < cache->shared->n_lists; i++)
        cells_cut(cache->shared, i, 0);
    if (cache->shared)
        cache->shared->n_parts = 0;
    for (uint32_t i = 0; i < cache->n_streams; i++) {
        struct cache_stream *stream = &cache->streams[i];
        stream->staged_first = stream->staged_end = 0;
        // Where it fails, the next write at cell 0 does it.
        if (stream->session && !stream->unsure && answers)
            (void)cache_truncate(cache, i, 0);
        stream->unsure = stream->unsure || (stream->session && !answers);
        answers = answers && !stream->away;
        stream->lost[0] = '\0';
    }
    pthread_mutex_unlock(&cache->lock);
}
