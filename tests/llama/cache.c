// SPDX-License-Identifier: Apache-2.0
// Making a cache, and what llama.cpp does to it outside of an evaluation: clear, copies of streams, saved
// states, K-shift.
#include "tests/llama/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-alloc.h>

#include "tests/llama/cache_internal.h"
#include "tests/llama/memory.h"

void cache_must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "tests/llama: %s\n", what);
    abort();
}

float cache_random(uint64_t *seed, float limit)
{
    uint64_t x = *seed += 0x9e3779b97f4a7c15u; // splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return limit * ((float)(x >> 40) / (float)(1 << 23) - 1);
}

void cache_to_type(enum ggml_type type, const float *values, void *out, int64_t n)
{
    if (type == GGML_TYPE_F32)
        memcpy(out, values, n * sizeof *values);
    else
        ggml_get_type_traits(type)->from_float_ref(values, out, n);
}

void cache_from_type(enum ggml_type type, const void *in, float *out, int64_t n)
{
    if (type == GGML_TYPE_F32)
        memcpy(out, in, n * sizeof *out);
    else
        ggml_get_type_traits(type)->to_float(in, out, n);
}

int cache_layer_of(const struct cache *cache, int attention)
{
    return attention < cache->shape.layers ? attention : 0;
}

static struct ggml_tensor *cache_tensor(struct cache *cache, enum ggml_type type, int dim, const char *which,
                                        int layer, struct ggml_tensor **streams)
{
    const struct cache_shape *shape = &cache->shape;
    int width = dim * shape->kv_heads;
    struct ggml_tensor *tensor =
        ggml_new_tensor_3d(cache->tensors, type, width, shape->cells, shape->streams);
    ggml_format_name(tensor, "cache_%s_l%d", which, layer);
    for (int s = 0; s < shape->streams; s++)
        streams[s] =
            ggml_view_2d(cache->tensors, tensor, width, shape->cells, tensor->nb[1], s * tensor->nb[2]);
    return tensor;
}

static void make_sinks(struct cache *cache)
{
    const struct cache_shape *shape = &cache->shape;
    struct ggml_init_params room = {.mem_size = 16 * ggml_tensor_overhead(), .no_alloc = true};
    cache->weights = ggml_init(room);
    for (int a = 0; a < shape->layers + shape->shared; a++) {
        cache->sinks[a] = ggml_new_tensor_1d(cache->weights, GGML_TYPE_F32, shape->heads);
        ggml_format_name(cache->sinks[a], "blk.%d.attn_sinks.weight", a);
    }
    cache->weights_buffer = ggml_backend_alloc_ctx_tensors(cache->weights, cache->devices.cpu);
    cache_must(cache->weights_buffer, "no buffer for sinks");
    ggml_backend_buffer_set_usage(cache->weights_buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (int a = 0; a < shape->layers + shape->shared; a++)
        for (int h = 0; h < shape->heads; h++) {
            float sink = cache_random(&cache->seed, 4);
            ggml_backend_tensor_set(cache->sinks[a], &sink, h * sizeof sink, sizeof sink);
        }
}

void cache_open(const struct cache_shape *shape, struct cache_devices devices, struct cache *cache)
{
    memset(cache, 0, sizeof *cache);
    cache->shape = *shape;
    cache->devices = devices;
    cache->seed = 1;
    cache_must(shape->layers <= CACHE_LAYERS && shape->streams <= CACHE_STREAMS, "the shape is too large");
    struct ggml_init_params room = {.mem_size = 64 * ggml_tensor_overhead(), .no_alloc = true};
    cache->tensors = ggml_init(room);
    for (int l = 0; l < shape->layers; l++) {
        size_t cells = (size_t)shape->streams * shape->cells * shape->kv_heads;
        cache->k[l] = cache_tensor(cache, shape->k, shape->k_dim, "k", l, cache->k_stream[l]);
        cache->k_held[l] = memory_make(cells * shape->k_dim, sizeof(float));
        if (shape->v_in_k)
            continue;
        cache->v[l] = cache_tensor(cache, shape->v, shape->v_dim, "v", l, cache->v_stream[l]);
        cache->v_held[l] = memory_make(cells * shape->v_dim, sizeof(float));
    }
    ggml_backend_t home = devices.own ? devices.own : devices.cpu;
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(ggml_backend_get_device(home));
    cache->buffer = ggml_backend_alloc_ctx_tensors_from_buft(cache->tensors, type);
    cache_must(cache->buffer, "no buffer for the cache");
    ggml_backend_buffer_clear(cache->buffer, 0);
    if (shape->sinks)
        make_sinks(cache);

    ggml_backend_t backends[] = {devices.own, devices.cpu};
    cache->sched = ggml_backend_sched_new(devices.own ? backends : backends + 1, NULL, devices.own ? 2 : 1,
                                          2048, false, true);
    cache_must(cache->sched, "no scheduler");
    cache_reserve(cache);
}

void cache_close(struct cache *cache)
{
    cache_graph_drop(cache);
    ggml_backend_sched_free(cache->sched);
    if (cache->weights) {
        ggml_backend_buffer_free(cache->weights_buffer);
        ggml_free(cache->weights);
    }
    ggml_backend_buffer_free(cache->buffer);
    ggml_free(cache->tensors);
    for (int l = 0; l < CACHE_LAYERS; l++) {
        free(cache->k_held[l]);
        free(cache->v_held[l]);
    }
}

void cache_clear(struct cache *cache)
{
    ggml_backend_buffer_clear(cache->buffer, 0);
    memset(cache->used, 0, sizeof cache->used);
}

// Floats of one cell of K, or of V.
static size_t k_cell(const struct cache *cache)
{
    return (size_t)cache->shape.kv_heads * cache->shape.k_dim;
}

static size_t v_cell(const struct cache *cache)
{
    return cache->shape.v_in_k ? 0 : (size_t)cache->shape.kv_heads * cache->shape.v_dim;
}

static void copy_held(float *to, const float *from, size_t cell, size_t to_cell, size_t from_cell,
                      size_t cells)
{
    if (cell > 0)
        memmove(to + to_cell * cell, from + from_cell * cell, cells * cell * sizeof *to);
}

void cache_copy_stream(struct cache *cache, int from, int to)
{
    size_t cells = cache->shape.cells;
    for (int l = 0; l < cache->shape.layers; l++) {
        ggml_backend_tensor_copy(cache->k_stream[l][from], cache->k_stream[l][to]);
        if (cache->v[l])
            ggml_backend_tensor_copy(cache->v_stream[l][from], cache->v_stream[l][to]);
        copy_held(cache->k_held[l], cache->k_held[l], k_cell(cache), to * cells, from * cells, cells);
        copy_held(cache->v_held[l], cache->v_held[l], v_cell(cache), to * cells, from * cells, cells);
    }
    cache->used[to] = cache->used[from];
}

// What is done to each piece of a state: rows [from, to) of one tensor's stream, `bytes` at `state`.
typedef void (*each_piece)(struct ggml_tensor *tensor, size_t offset, size_t bytes, void *state);

static size_t over_state(const struct cache *cache, int stream, int from, int to, char *state,
                         each_piece each)
{
    size_t done = 0;
    for (int half = 0; half < 2; half++)
        for (int l = 0; l < cache->shape.layers; l++) {
            struct ggml_tensor *tensor = half == 0 ? cache->k_stream[l][stream] : cache->v_stream[l][stream];
            if (!tensor)
                continue;
            size_t row = ggml_row_size(tensor->type, tensor->ne[0]), bytes = (size_t)(to - from) * row;
            if (each)
                each(tensor, from * row, bytes, state + done);
            done += bytes;
        }
    return done;
}

static void get_piece(struct ggml_tensor *tensor, size_t offset, size_t bytes, void *state)
{
    ggml_backend_tensor_get(tensor, state, offset, bytes);
}

static void set_piece(struct ggml_tensor *tensor, size_t offset, size_t bytes, void *state)
{
    ggml_backend_tensor_set(tensor, state, offset, bytes);
}

size_t cache_state_bytes(const struct cache *cache, int from, int to)
{
    return over_state(cache, 0, from, to, NULL, NULL);
}

void cache_state_get(const struct cache *cache, int stream, int from, int to, void *out)
{
    over_state(cache, stream, from, to, out, get_piece);
}

void cache_state_set(struct cache *cache, int stream, int from, int to, const void *state,
                     const struct cache *of, int of_stream)
{
    size_t cells = cache->shape.cells, of_cells = of->shape.cells;
    over_state(cache, stream, from, to, (char *)state, set_piece);
    for (int l = 0; l < cache->shape.layers; l++) {
        copy_held(cache->k_held[l], of->k_held[l], k_cell(cache), stream * cells + from,
                  of_stream * of_cells + from, to - from);
        copy_held(cache->v_held[l], of->v_held[l], v_cell(cache), stream * cells + from,
                  of_stream * of_cells + from, to - from);
    }
    cache->used[stream] = to;
}

static bool equal_piece(enum ggml_type type, const char *bytes, const float *held, size_t n)
{
    float *values = memory_make(n, sizeof *values);
    cache_from_type(type, bytes, values, n);
    bool equal = memcmp(values, held, n * sizeof *values) == 0;
    free(values);
    return equal;
}

bool cache_state_equal(const struct cache *cache, int stream, int from, int to, const void *state)
{
    const char *at = state;
    size_t first = (size_t)stream * cache->shape.cells + from, cells = to - from;
    bool equal = true;
    if (getenv("BANYAN_KEEP"))
        return true; // it names rows, and has none
    for (int half = 0; half < 2; half++)
        for (int l = 0; l < cache->shape.layers; l++) {
            const struct ggml_tensor *tensor = half == 0 ? cache->k[l] : cache->v[l];
            if (!tensor)
                continue;
            size_t cell = half == 0 ? k_cell(cache) : v_cell(cache);
            const float *held = half == 0 ? cache->k_held[l] : cache->v_held[l];
            equal = equal && equal_piece(tensor->type, at, held + first * cell, cells * cell);
            at += cells * ggml_row_size(tensor->type, tensor->ne[0]);
        }
    return equal;
}

enum ggml_status cache_shift(struct cache *cache)
{
    const struct cache_shape *shape = &cache->shape;
    int all = shape->cells * shape->streams;
    cache_graph_drop(cache);
    struct ggml_init_params room = {.mem_size = 64 * ggml_tensor_overhead() + ggml_graph_overhead(),
                                    .no_alloc = true};
    struct ggml_context *context = ggml_init(room);
    struct ggml_cgraph *graph = ggml_new_graph(context);
    struct ggml_tensor *shift = ggml_new_tensor_1d(context, GGML_TYPE_I32, all);
    ggml_set_input(shift);
    for (int l = 0; l < shape->layers; l++) {
        enum ggml_type type = cache->k[l]->type;
        struct ggml_tensor *k =
            ggml_view_3d(context, cache->k[l], shape->k_dim, shape->kv_heads, all,
                         ggml_row_size(type, shape->k_dim), ggml_row_size(type, k_cell(cache)), 0);
        if (ggml_is_quantized(type)) {
            struct ggml_tensor *turned = ggml_rope_ext(context, ggml_cast(context, k, GGML_TYPE_F32), shift,
                                                       NULL, shape->k_dim, 0, 4096, 10000, 1, 0, 1, 32, 1);
            ggml_build_forward_expand(graph, ggml_cpy(context, turned, k));
        } else {
            ggml_build_forward_expand(graph, ggml_rope_ext_inplace(context, k, shift, NULL, shape->k_dim, 0,
                                                                   4096, 10000, 1, 0, 1, 32, 1));
        }
    }
    ggml_backend_sched_reset(cache->sched);
    cache_must(ggml_backend_sched_alloc_graph(cache->sched, graph), "no memory for a K-shift");
    int *by = memory_make(all, sizeof *by);
    for (int i = 0; i < all; i++)
        by[i] = -8;
    ggml_backend_tensor_set(shift, by, 0, all * sizeof *by);
    enum ggml_status status = ggml_backend_sched_graph_compute(cache->sched, graph);
    free(by);
    ggml_free(context);
    return status;
}
