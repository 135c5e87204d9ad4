// SPDX-License-Identifier: Apache-2.0
// What the files of the cache (cache.h) share.
#ifndef TESTS_LLAMA_CACHE_INTERNAL_H
#define TESTS_LLAMA_CACHE_INTERNAL_H

#include "tests/llama/cache.h"

// Ends the program with `what` unless it holds.
void cache_must(bool holds, const char *what);

// Uniform in [-limit, limit).
float cache_random(uint64_t *seed, float limit);

// n values into a type of ggml, and back.
void cache_to_type(enum ggml_type type, const float *values, void *out, int64_t n);
void cache_from_type(enum ggml_type type, const void *in, float *out, int64_t n);

// Tensors of one graph over one cache. Two caches may share context and graph.
struct cache_graph {
    struct ggml_context *context;
    struct ggml_cgraph *graph;
    struct ggml_tensor *k_indices, *v_indices, *mask;
    struct ggml_tensor *q[CACHE_LAYERS + 1], *k[CACHE_LAYERS], *v[CACHE_LAYERS], *o[CACHE_LAYERS + 1];
};

// An empty graph.
void cache_graph_begin(struct cache_graph *out);
// A cache's indices and mask; then its attentions, one after another from 0, layers and what shares one.
void cache_graph_inputs(struct cache_graph *graph, const struct cache *cache, const struct cache_step *step,
                        int n_kv);
void cache_graph_layer(struct cache_graph *graph, const struct cache *cache, const struct cache_step *step,
                       int n_kv, int attention);

// The next step makes a graph of its own: after whatever else the scheduler was used for.
void cache_graph_drop(struct cache *cache);

// Lets the scheduler see the largest graph, as llama.cpp does when it makes a context.
void cache_reserve(struct cache *cache);

#endif
