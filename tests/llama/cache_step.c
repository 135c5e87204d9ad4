// SPDX-License-Identifier: Apache-2.0
// One evaluation: its inputs, and what came out.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/banyan.h"
#include "tests/llama/cache.h"
#include "tests/llama/cache_internal.h"
#include "tests/llama/memory.h"

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

// With BANYAN_Q8=int8 the plug-in keeps rows of q8_0 as codes with a scale for each head, made of what the
// graph sent.
static void as_int8(const float *row, int heads, int dim, float *out)
{
    int8_t *codes = memory_make((size_t)heads * dim, sizeof *codes);
    float *scales = memory_make(heads, sizeof *scales);
    cache_must(banyan_quantise(BANYAN_INT8, row, heads, dim, codes, scales) == BANYAN_OK,
               "rows are not quantised");
    for (int i = 0; i < heads * dim; i++)
        out[i] = scales[i / dim] * codes[i];
    free(scales);
    free(codes);
}

// Rows as their type leaves them, into the cells that were written.
static void hold(struct cache *cache, const struct cache_answer *answer, enum ggml_type type, int dim,
                 const float *rows, float *held)
{
    const struct cache_step *step = &answer->step;
    int heads = cache->shape.kv_heads, width = heads * dim;
    const char *q8 = getenv("BANYAN_Q8");
    if (!rows)
        return;
    char *typed = memory_make(1, ggml_row_size(type, width));
    for (int i = 0; i < step->streams * step->rows; i++) {
        size_t stream = step->first_stream + i / step->rows,
               cell = stream * cache->shape.cells + answer->cells[i];
        if (type == GGML_TYPE_Q8_0 && q8 && strcmp(q8, "int8") == 0) {
            as_int8(rows + (size_t)i * width, heads, dim, held + cell * width);
            continue;
        }
        cache_to_type(type, rows + (size_t)i * width, typed, width);
        cache_from_type(type, typed, held + cell * width, width);
    }
    free(typed);
}

static void send_indices(const struct cache *cache, const struct cache_answer *answer,
                         const struct cache_graph *g)
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

static void take(struct cache *cache, const struct cache_graph *g, struct cache_answer *answer,
                 const int *used, float **k, float **v)
{
    const struct cache_shape *shape = &cache->shape;
    const struct cache_step *step = &answer->step;
    for (int l = 0; l < shape->layers; l++) {
        hold(cache, answer, shape->k, shape->k_dim, k[l], cache->k_held[l]);
        hold(cache, answer, shape->v, shape->v_dim, v[l], cache->v_held[l]);
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

// One cache's part of an evaluation.
struct part {
    struct cache *cache;
    struct cache_answer answer;
    int used[CACHE_STREAMS];
    ggml_fp16_t *mask;
    float *k[CACHE_LAYERS], *v[CACHE_LAYERS];
    struct cache_graph graph;
};

static void part_begin(struct part *part, struct cache *cache, const struct cache_step *step)
{
    int rows = step->streams * step->rows;
    struct cache_answer *answer = &part->answer;
    memset(part, 0, sizeof *part);
    part->cache = cache;
    *answer = (struct cache_answer){
        .step = *step, .attentions = step->no_attention ? 0 : cache->shape.layers + cache->shape.shared};
    answer->cells = memory_make(rows, sizeof *answer->cells);
    place(cache, answer, part->used);
    answer->n_kv = padded(cache, step, part->used);
    answer->mask = memory_make((size_t)rows * answer->n_kv, sizeof *answer->mask);
    part->mask = memory_make((size_t)rows * answer->n_kv, sizeof *part->mask);
    make_mask(cache, answer, part->used, part->mask);
}

static void part_send(struct part *part)
{
    struct cache *cache = part->cache;
    struct cache_graph *g = &part->graph;
    send_indices(cache, &part->answer, g);
    if (!part->answer.step.no_attention)
        ggml_backend_tensor_set(g->mask, part->mask, 0, ggml_nbytes(g->mask));
    for (int a = 0; a < part->answer.attentions; a++)
        part->answer.q[a] = send_rows(cache, g->q[a], 2);
    for (int l = 0; l < cache->shape.layers; l++) {
        part->k[l] = send_rows(cache, g->k[l], 3);
        part->v[l] = send_rows(cache, g->v[l], 1);
    }
}

static void part_end(struct part *part, enum ggml_status status, struct cache_answer *out)
{
    if (status == GGML_STATUS_SUCCESS) {
        take(part->cache, &part->graph, &part->answer, part->used, part->k, part->v);
        *out = part->answer;
    } else {
        cache_answer_free(&part->answer);
    }
    for (int l = 0; l < CACHE_LAYERS; l++) {
        free(part->k[l]);
        free(part->v[l]);
    }
    free(part->mask);
}

// llama.cpp evaluates a graph again where the next batch has the same shape.
static bool same_graph(const struct cache *cache, const struct cache_answer *answer)
{
    const struct cache_step *a = &cache->last, *b = &answer->step;
    return cache->graph && cache->last_n_kv == answer->n_kv && a->first_stream == b->first_stream &&
           a->streams == b->streams && a->rows == b->rows && a->q_scale == b->q_scale &&
           a->no_attention == b->no_attention;
}

void cache_graph_drop(struct cache *cache)
{
    if (cache->graph)
        ggml_free(cache->graph->context);
    free(cache->graph);
    cache->graph = NULL;
}

static void graph_keep(struct cache *cache, const struct part *part)
{
    cache->graph = memory_make(1, sizeof *cache->graph);
    *cache->graph = part->graph;
    cache->last = part->answer.step;
    cache->last_n_kv = part->answer.n_kv;
}

enum ggml_status cache_run(struct cache *cache, const struct cache_step *step, struct cache_answer *out)
{
    struct part part;
    part_begin(&part, cache, step);
    if (same_graph(cache, &part.answer)) {
        part.graph = *cache->graph;
    } else {
        cache_graph_drop(cache);
        cache_graph_begin(&part.graph);
        cache_graph_inputs(&part.graph, cache, step, part.answer.n_kv);
        for (int a = 0; a < cache->shape.layers + cache->shape.shared; a++)
            cache_graph_layer(&part.graph, cache, step, part.answer.n_kv, a);
        ggml_backend_sched_reset(cache->sched);
        cache_must(ggml_backend_sched_alloc_graph(cache->sched, part.graph.graph), "no memory for the graph");
        graph_keep(cache, &part);
    }
    part_send(&part);
    enum ggml_status status = ggml_backend_sched_graph_compute(cache->sched, part.graph.graph);
    part_end(&part, status, out);
    if (status != GGML_STATUS_SUCCESS)
        cache_graph_drop(cache);
    return status;
}

enum ggml_status cache_run_both(struct cache *const caches[2], const struct cache_step *step,
                                struct cache_answer out[2])
{
    struct part parts[2];
    cache_graph_drop(caches[0]);
    for (int i = 0; i < 2; i++) {
        part_begin(&parts[i], caches[i], step);
        if (i == 0)
            cache_graph_begin(&parts[i].graph);
        else
            parts[i].graph =
                (struct cache_graph){.context = parts[0].graph.context, .graph = parts[0].graph.graph};
        cache_graph_inputs(&parts[i].graph, caches[i], step, parts[i].answer.n_kv);
    }
    for (int a = 0; a < CACHE_LAYERS + 1; a++)
        for (int i = 0; i < 2; i++)
            if (a < parts[i].answer.attentions)
                cache_graph_layer(&parts[i].graph, caches[i], step, parts[i].answer.n_kv, a);
    ggml_backend_sched_reset(caches[0]->sched);
    cache_must(ggml_backend_sched_alloc_graph(caches[0]->sched, parts[0].graph.graph),
               "no memory for the graph");
    part_send(&parts[0]);
    part_send(&parts[1]);
    enum ggml_status status = ggml_backend_sched_graph_compute(caches[0]->sched, parts[0].graph.graph);
    part_end(&parts[0], status, &out[0]);
    part_end(&parts[1], status, &out[1]);
    ggml_free(parts[0].graph.context);
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
