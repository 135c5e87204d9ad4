// SPDX-License-Identifier: Apache-2.0
// Graphs over a cache, as llm_graph_context::build_attn makes them.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-alloc.h>

#include "tests/llama/cache.h"
#include "tests/llama/cache_internal.h"
#include "tests/llama/memory.h"

static struct ggml_tensor *input(struct ggml_tensor *tensor, const char *name)
{
    ggml_set_input(tensor);
    ggml_set_name(tensor, name);
    return tensor;
}

// llama_kv_cache::cpy_k and cpy_v.
static void store(struct cache_graph *g, const struct cache *cache, struct ggml_tensor *held,
                  struct ggml_tensor *rows, struct ggml_tensor *indices)
{
    int64_t width = rows->ne[0] * rows->ne[1];
    rows = ggml_view_2d(g->context, rows, width, rows->ne[2], rows->nb[2], 0);
    if (cache->shape.streams > 1)
        held = ggml_reshape_2d(g->context, held, width, (int64_t)cache->shape.cells * cache->shape.streams);
    ggml_build_forward_expand(g->graph, ggml_set_rows(g->context, held, rows, indices));
}

// llama_kv_cache::get_k and get_v.
static struct ggml_tensor *held_view(struct cache_graph *g, const struct cache *cache,
                                     struct ggml_tensor *held, int dim, const struct cache_step *step,
                                     int n_kv)
{
    size_t stream = ggml_row_size(held->type, held->ne[0] * cache->shape.cells);
    return ggml_view_4d(g->context, held, dim, cache->shape.kv_heads, n_kv, step->streams,
                        ggml_row_size(held->type, dim), ggml_row_size(held->type, held->ne[0]), stream,
                        stream * step->first_stream);
}

// llm_graph_context::build_attn_mha
static struct ggml_tensor *attention(struct cache_graph *g, const struct cache_shape *shape,
                                     struct ggml_tensor *q, struct ggml_tensor *k, struct ggml_tensor *v,
                                     struct ggml_tensor *mask, struct ggml_tensor *sinks)
{
    struct ggml_context *context = g->context;
    int64_t streams = k->ne[3];
    float scale = shape->scale != 0 ? shape->scale : (float)(1 / sqrt(shape->k_dim));
    q = ggml_view_4d(context, q, q->ne[0], q->ne[1], q->ne[2] / streams, streams, q->nb[1], q->nb[2],
                     q->nb[2] * (q->ne[2] / streams), 0);
    q = ggml_permute(context, q, 0, 2, 1, 3);
    k = ggml_permute(context, k, 0, 2, 1, 3);
    v = ggml_permute(context, v, 0, 2, 1, 3);
    if (shape->cast) {
        k = ggml_cast(context, k, GGML_TYPE_F16);
        v = ggml_cast(context, v, GGML_TYPE_F16);
    }
    struct ggml_tensor *o =
        ggml_flash_attn_ext(context, q, k, v, mask, scale, shape->max_bias, shape->soft_cap);
    ggml_flash_attn_ext_add_sinks(o, sinks);
    ggml_flash_attn_ext_set_n_kv_max(o, 0);
    ggml_prec_set_acc(o, GGML_PREC_F32);
    return ggml_reshape_2d(context, o, o->ne[0] * o->ne[1], o->ne[2] * o->ne[3]);
}

void cache_graph_layer(struct cache_graph *g, const struct cache *cache, const struct cache_step *step,
                       int n_kv, int a)
{
    const struct cache_shape *shape = &cache->shape;
    struct ggml_context *context = g->context;
    int l = cache_layer_of(cache, a);
    int64_t tokens = (int64_t)step->streams * step->rows;
    g->q[a] = input(ggml_new_tensor_3d(context, GGML_TYPE_F32, shape->k_dim, shape->heads, tokens), "q");
    struct ggml_tensor *q = ggml_scale(context, g->q[a], step->q_scale != 0 ? step->q_scale : 1);
    ggml_build_forward_expand(g->graph, q);
    if (a < shape->layers) {
        struct ggml_tensor *k, *v = NULL;
        g->k[a] =
            input(ggml_new_tensor_3d(context, GGML_TYPE_F32, shape->k_dim, shape->kv_heads, tokens), "k");
        k = ggml_scale(context, g->k[a], 1);
        if (!shape->v_in_k) {
            g->v[a] =
                input(ggml_new_tensor_2d(context, GGML_TYPE_F32, shape->v_dim * shape->kv_heads, tokens),
                      "v");
            v = ggml_reshape_3d(context, ggml_scale(context, g->v[a], 1), shape->v_dim, shape->kv_heads,
                                tokens);
            ggml_build_forward_expand(g->graph, v);
        }
        ggml_build_forward_expand(g->graph, k);
        store(g, cache, cache->k[l], k, g->k_indices);
        if (v)
            store(g, cache, cache->v[l], v, g->v_indices);
    }
    if (step->no_attention)
        return;
    struct ggml_tensor *k = held_view(g, cache, cache->k[l], shape->k_dim, step, n_kv), *v;
    if (shape->v_in_k)
        v = ggml_view_4d(context, k, shape->v_dim, k->ne[1], k->ne[2], k->ne[3], k->nb[1], k->nb[2], k->nb[3],
                         0);
    else
        v = held_view(g, cache, cache->v[l], shape->v_dim, step, n_kv);
    struct ggml_tensor *o = attention(g, shape, q, k, v, g->mask, cache->sinks[a]);
    g->o[a] = ggml_scale(context, o, 1);
    ggml_set_output(g->o[a]);
    ggml_build_forward_expand(g->graph, g->o[a]);
}

void cache_graph_begin(struct cache_graph *g)
{
    struct ggml_init_params room = {.mem_size = 512 * ggml_tensor_overhead() + ggml_graph_overhead(),
                                    .no_alloc = true};
    memset(g, 0, sizeof *g);
    g->context = ggml_init(room);
    g->graph = ggml_new_graph(g->context);
}

void cache_graph_inputs(struct cache_graph *g, const struct cache *cache, const struct cache_step *step,
                        int n_kv)
{
    int64_t tokens = (int64_t)step->streams * step->rows;
    g->k_indices = input(ggml_new_tensor_1d(g->context, GGML_TYPE_I64, tokens), "attn_inp_k_idxs");
    if (!cache->shape.v_in_k)
        g->v_indices = input(ggml_new_tensor_1d(g->context, GGML_TYPE_I64, tokens), "attn_inp_v_idxs");
    g->mask = input(ggml_new_tensor_4d(g->context, GGML_TYPE_F16, n_kv, step->rows, 1, step->streams),
                    "attn_inp_kq_mask");
}

void cache_reserve(struct cache *cache)
{
    struct cache_step largest = {.streams = cache->shape.streams, .rows = 512 / cache->shape.streams};
    struct cache_graph g;
    cache_graph_begin(&g);
    cache_graph_inputs(&g, cache, &largest, cache->shape.cells);
    for (int a = 0; a < cache->shape.layers + cache->shape.shared; a++)
        cache_graph_layer(&g, cache, &largest, cache->shape.cells, a);
    cache_must(ggml_backend_sched_reserve(cache->sched, g.graph), "no memory for the graph");
    ggml_free(g.context);
}

// A tensor's values from what the cache should hold of the step's streams: [dim, kv_heads, n_kv, streams].
static void set_held(const struct cache *cache, const struct cache_answer *answer, struct ggml_tensor *to,
                     const float *held)
{
    size_t width = to->ne[0] * to->ne[1], n = width * to->ne[2], bytes = ggml_row_size(to->type, n);
    char *typed = memory_make(1, bytes);
    for (int s = 0; s < answer->step.streams; s++) {
        size_t cell = (size_t)(answer->step.first_stream + s) * cache->shape.cells;
        cache_to_type(to->type, held + cell * width, typed, n);
        ggml_backend_tensor_set(to, typed, s * bytes, bytes);
    }
    free(typed);
}

float *cache_on_cpu(const struct cache *cache, const struct cache_answer *answer, int a, enum ggml_type type)
{
    struct cache_shape shape = cache->shape;
    const struct cache_step *step = &answer->step;
    int layer = cache_layer_of(cache, a), rows = step->streams * step->rows;
    struct ggml_init_params room = {.mem_size = 32 * ggml_tensor_overhead() + ggml_graph_overhead(),
                                    .no_alloc = true};
    struct cache_graph g = {.context = ggml_init(room)};
    g.graph = ggml_new_graph(g.context);
    shape.cast = false;
    struct ggml_tensor *q = ggml_new_tensor_3d(g.context, GGML_TYPE_F32, shape.k_dim, shape.heads, rows), *v;
    struct ggml_tensor *k =
        ggml_new_tensor_4d(g.context, type, shape.k_dim, shape.kv_heads, answer->n_kv, step->streams);
    if (shape.v_in_k)
        v = ggml_view_4d(g.context, k, shape.v_dim, k->ne[1], k->ne[2], k->ne[3], k->nb[1], k->nb[2],
                         k->nb[3], 0);
    else
        v = ggml_new_tensor_4d(g.context, type, shape.v_dim, shape.kv_heads, answer->n_kv, step->streams);
    g.mask = ggml_new_tensor_4d(g.context, GGML_TYPE_F16, answer->n_kv, step->rows, 1, step->streams);
    struct ggml_tensor *o = attention(&g, &shape, q, k, v, g.mask, cache->sinks[a]);
    ggml_build_forward_expand(g.graph, o);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(g.context, cache->devices.cpu);
    cache_must(buffer, "no memory on the CPU");

    set_held(cache, answer, k, cache->k_held[layer]);
    if (!shape.v_in_k)
        set_held(cache, answer, v, cache->v_held[layer]);
    ggml_backend_tensor_set(q, answer->q[a], 0, ggml_nbytes(q));
    ggml_fp16_t *mask = memory_make(ggml_nelements(g.mask), sizeof *mask);
    ggml_fp32_to_fp16_row(answer->mask, mask, ggml_nelements(g.mask));
    ggml_backend_tensor_set(g.mask, mask, 0, ggml_nbytes(g.mask));
    free(mask);
    cache_must(ggml_backend_graph_compute(cache->devices.cpu, g.graph) == GGML_STATUS_SUCCESS,
               "the CPU backend failed");
    float *out = memory_make(ggml_nelements(o), sizeof *out);
    ggml_backend_tensor_get(o, out, 0, ggml_nbytes(o));
    ggml_backend_buffer_free(buffer);
    ggml_free(g.context);
    return out;
}
