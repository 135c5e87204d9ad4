// SPDX-License-Identifier: Apache-2.0
// One evaluation: the graph as llm_graph_context::build_attn makes it, its inputs, and what came out.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-alloc.h>

#include "tests/llama/cache.h"
#include "tests/llama/cache_internal.h"
#include "tests/llama/memory.h"

// Tensors of one graph.
struct graph {
    struct ggml_context *context;
    struct ggml_cgraph *graph;
    struct ggml_tensor *k_indices, *v_indices, *mask;
    struct ggml_tensor *q[CACHE_LAYERS + 1], *k[CACHE_LAYERS], *v[CACHE_LAYERS], *o[CACHE_LAYERS + 1];
};

static struct ggml_tensor *input(struct ggml_tensor *tensor, const char *name)
{
    ggml_set_input(tensor);
    ggml_set_name(tensor, name);
    return tensor;
}

// llama_kv_cache::cpy_k and cpy_v.
static void store(struct graph *g, const struct cache *cache, struct ggml_tensor *held,
                  struct ggml_tensor *rows, struct ggml_tensor *indices)
{
    int64_t width = rows->ne[0] * rows->ne[1];
    rows = ggml_view_2d(g->context, rows, width, rows->ne[2], rows->nb[2], 0);
    if (cache->shape.streams > 1)
        held = ggml_reshape_2d(g->context, held, width, (int64_t)cache->shape.cells * cache->shape.streams);
    ggml_build_forward_expand(g->graph, ggml_set_rows(g->context, held, rows, indices));
}

// llama_kv_cache::get_k and get_v.
static struct ggml_tensor *held_view(struct graph *g, const struct cache *cache, struct ggml_tensor *held,
                                     int dim, const struct cache_step *step, int n_kv)
{
    size_t stream = ggml_row_size(held->type, held->ne[0] * cache->shape.cells);
    return ggml_view_4d(g->context, held, dim, cache->shape.kv_heads, n_kv, step->streams,
                        ggml_row_size(held->type, dim), ggml_row_size(held->type, held->ne[0]), stream,
                        stream * step->first_stream);
}

// llm_graph_context::build_attn_mha
static struct ggml_tensor *attention(struct graph *g, const struct cache_shape *shape, struct ggml_tensor *q,
                                     struct ggml_tensor *k, struct ggml_tensor *v, struct ggml_tensor *mask,
                                     struct ggml_tensor *sinks)
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

static void build_layer(struct graph *g, struct cache *cache, const struct cache_step *step, int n_kv, int a)
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

static void build(struct graph *g, struct cache *cache, const struct cache_step *step, int n_kv)
{
    const struct cache_shape *shape = &cache->shape;
    int64_t tokens = (int64_t)step->streams * step->rows;
    struct ggml_init_params room = {.mem_size = 256 * ggml_tensor_overhead() + ggml_graph_overhead(),
                                    .no_alloc = true};
    memset(g, 0, sizeof *g);
    g->context = ggml_init(room);
    g->graph = ggml_new_graph(g->context);
    g->k_indices = input(ggml_new_tensor_1d(g->context, GGML_TYPE_I64, tokens), "attn_inp_k_idxs");
    if (!shape->v_in_k)
        g->v_indices = input(ggml_new_tensor_1d(g->context, GGML_TYPE_I64, tokens), "attn_inp_v_idxs");
    g->mask = input(ggml_new_tensor_4d(g->context, GGML_TYPE_F16, n_kv, step->rows, 1, step->streams),
                    "attn_inp_kq_mask");
    for (int a = 0; a < shape->layers + shape->shared; a++)
        build_layer(g, cache, step, n_kv, a);
}

void cache_reserve(struct cache *cache)
{
    struct cache_step largest = {.streams = cache->shape.streams, .rows = 512 / cache->shape.streams};
    struct graph g;
    build(&g, cache, &largest, cache->shape.cells);
    cache_must(ggml_backend_sched_reserve(cache->sched, g.graph), "no memory for the graph");
    ggml_free(g.context);
}

// Cells of the step's rows, and how many of each stream are then in use.
static void place(const struct cache *cache, struct cache_answer *answer, int *used)
{
    const struct cache_step *step = &answer->step;
    for (int s = 0; s < step->streams; s++) {
        int *cells = answer->cells + s * step->rows;
        for (int r = 0; r < step->rows; r++)
            cells[r] =
                step->cells ? step->cells[s * step->rows + r] : cache->used[step->first_stream + s] + r;
        used[s] = cells[step->rows - 1] + 1;
    }
}

// llama_kv_cache::get_n_kv
static int padded(const struct cache *cache, const struct cache_step *step, const int *used)
{
    int n = 256;
    for (int s = 0; s < step->streams; s++) {
        int cells = used[s];
        if (step->sees && cache->used[step->first_stream + s] > cells)
            cells = cache->used[step->first_stream + s];
        cells = (cells + 255) / 256 * 256;
        n = cells > n ? cells : n;
    }
    return n < cache->shape.cells ? n : cache->shape.cells;
}

static bool visible(const struct cache *cache, const struct cache_step *step, int s, int row, int cell,
                    int used, int own)
{
    const struct cache_shape *shape = &cache->shape;
    if (step->sees)
        return step->sees(step, step->first_stream + s, row, cell);
    if (cell >= used)
        return false;
    if (shape->mask == CACHE_ALL || step->not_causal)
        return true;
    if (cell > own)
        return false;
    if (shape->mask == CACHE_WINDOW)
        return own - cell < shape->span;
    return shape->mask != CACHE_CHUNK || cell >= own / shape->span * shape->span;
}

// llama_kv_cache::set_input_kq_mask; out in float16, and in the answer as that leaves it.
static void make_mask(const struct cache *cache, struct cache_answer *answer, const int *used,
                      ggml_fp16_t *out)
{
    const struct cache_step *step = &answer->step;
    for (int s = 0; s < step->streams; s++)
        for (int r = 0; r < step->rows; r++) {
            size_t row = (size_t)s * step->rows + r;
            int own = answer->cells[row];
            for (int c = 0; c < answer->n_kv; c++) {
                float value = -INFINITY;
                if (visible(cache, step, s, r, c, used[s], own))
                    value = cache->shape.max_bias > 0 ? (float)-abs(c - own) : 0;
                out[row * answer->n_kv + c] = ggml_fp32_to_fp16(value);
                answer->mask[row * answer->n_kv + c] = ggml_fp16_to_fp32(out[row * answer->n_kv + c]);
            }
        }
}

static float *random_values(struct cache *cache, size_t n, float limit)
{
    float *values = memory_make(n, sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = cache_random(&cache->seed, limit);
    return values;
}

// Sends random rows; they are the caller's to free.
static float *send_rows(struct cache *cache, struct ggml_tensor *to, float limit)
{
    if (!to)
        return NULL;
    float *values = random_values(cache, ggml_nelements(to), limit);
    ggml_backend_tensor_set(to, values, 0, ggml_nbytes(to));
    return values;
}

// Rows as their type leaves them, into the cells that were written.
static void hold(struct cache *cache, const struct cache_answer *answer, enum ggml_type type, int width,
                 const float *rows, float *held)
{
    const struct cache_step *step = &answer->step;
    if (!rows)
        return;
    char *typed = memory_make(1, ggml_row_size(type, width));
    for (int i = 0; i < step->streams * step->rows; i++) {
        size_t stream = step->first_stream + i / step->rows,
               cell = stream * cache->shape.cells + answer->cells[i];
        cache_to_type(type, rows + (size_t)i * width, typed, width);
        cache_from_type(type, typed, held + cell * width, width);
    }
    free(typed);
}

static void send_indices(const struct cache *cache, const struct cache_answer *answer, const struct graph *g)
{
    const struct cache_step *step = &answer->step;
    int n = step->streams * step->rows;
    int64_t *indices = memory_make(n, sizeof *indices);
    for (int i = 0; i < n; i++)
        indices[i] = (int64_t)(step->first_stream + i / step->rows) * cache->shape.cells + answer->cells[i];
    ggml_backend_tensor_set(g->k_indices, indices, 0, n * sizeof *indices);
    if (g->v_indices)
        ggml_backend_tensor_set(g->v_indices, indices, 0, n * sizeof *indices);
    free(indices);
}

static void take(struct cache *cache, const struct graph *g, struct cache_answer *answer, const int *used,
                 float **k, float **v)
{
    const struct cache_shape *shape = &cache->shape;
    const struct cache_step *step = &answer->step;
    for (int l = 0; l < shape->layers; l++) {
        hold(cache, answer, shape->k, shape->kv_heads * shape->k_dim, k[l], cache->k_held[l]);
        hold(cache, answer, shape->v, shape->kv_heads * shape->v_dim, v[l], cache->v_held[l]);
    }
    for (int s = 0; s < step->streams; s++)
        cache->used[step->first_stream + s] = used[s];
    for (int a = 0; a < answer->attentions; a++) {
        answer->o[a] = memory_make(ggml_nelements(g->o[a]), sizeof(float));
        ggml_backend_tensor_get(g->o[a], answer->o[a], 0, ggml_nbytes(g->o[a]));
        for (int64_t i = 0; step->q_scale != 0 && i < ggml_nelements(g->q[a]); i++)
            answer->q[a][i] *= step->q_scale;
    }
}

enum ggml_status cache_run(struct cache *cache, const struct cache_step *step, struct cache_answer *out)
{
    int used[CACHE_STREAMS], rows = step->streams * step->rows;
    float *k[CACHE_LAYERS] = {0}, *v[CACHE_LAYERS] = {0};
    struct cache_answer answer = {.step = *step, .attentions = cache->shape.layers + cache->shape.shared};
    struct graph g;
    answer.cells = memory_make(rows, sizeof *answer.cells);
    place(cache, &answer, used);
    answer.n_kv = padded(cache, step, used);
    answer.mask = memory_make((size_t)rows * answer.n_kv, sizeof *answer.mask);
    ggml_fp16_t *mask = memory_make((size_t)rows * answer.n_kv, sizeof *mask);
    make_mask(cache, &answer, used, mask);

    build(&g, cache, step, answer.n_kv);
    ggml_backend_sched_reset(cache->sched);
    cache_must(ggml_backend_sched_alloc_graph(cache->sched, g.graph), "no memory for the graph");
    send_indices(cache, &answer, &g);
    ggml_backend_tensor_set(g.mask, mask, 0, ggml_nbytes(g.mask));
    for (int a = 0; a < answer.attentions; a++)
        answer.q[a] = send_rows(cache, g.q[a], 2);
    for (int l = 0; l < cache->shape.layers; l++) {
        k[l] = send_rows(cache, g.k[l], 3);
        v[l] = send_rows(cache, g.v[l], 1);
    }
    enum ggml_status status = ggml_backend_sched_graph_compute(cache->sched, g.graph);
    if (status == GGML_STATUS_SUCCESS) {
        take(cache, &g, &answer, used, k, v);
        *out = answer;
    } else {
        cache_answer_free(&answer);
    }
    for (int l = 0; l < CACHE_LAYERS; l++) {
        free(k[l]);
        free(v[l]);
    }
    free(mask);
    ggml_free(g.context);
    return status;
}

enum ggml_status cache_append(struct cache *cache, int rows, struct cache_answer *out)
{
    return cache_run(cache, &(struct cache_step){.streams = cache->shape.streams, .rows = rows}, out);
}

void cache_answer_free(struct cache_answer *answer)
{
    free(answer->cells);
    free(answer->mask);
    for (int a = 0; a <= CACHE_LAYERS; a++) {
        free(answer->q[a]);
        free(answer->o[a]);
    }
    memset(answer, 0, sizeof *answer);
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
    struct graph g = {.context = ggml_init(room)};
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
