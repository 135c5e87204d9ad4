// SPDX-License-Identifier: Apache-2.0
// A Llama-family transformer (RMSNorm, rotary embedding, grouped-query attention, SwiGLU; tied or untied
// output) whose attention is a function of the caller's: the model holds no KV cache.
#ifndef EXAMPLES_LLAMA_H
#define EXAMPLES_LLAMA_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "examples/matmul.h"

struct pool;

struct llama_config {
    uint32_t hidden, layers, q_heads, kv_heads, head_dim, intermediate, vocab;
    uint64_t max_positions;
    float norm_eps;
    double rope_theta;
    bool tied;
    struct { // "rope_scaling" of type llama3; factor 0: none
        double factor, low, high, original;
    } scaling;
};

struct llama_layer {
    float *input_norm, *post_norm; // [hidden]
    struct matrix q, k, v, o, gate, up, down;
};

struct llama {
    struct llama_config config;
    float *embedding; // [vocab][hidden]
    float *norm;      // [hidden]
    double *inv_freq; // [head_dim / 2]
    struct matrix output;
    struct llama_layer *layers;
};

// Reads DIR/config.json and DIR/model.safetensors (F32, F16 or BF16). INVALID_ARGUMENT names the file and the
// field or tensor that is wrong.
enum common_code llama_load(const char *dir, struct llama **out, struct common_error *err);
void llama_free(struct llama *model); // NULL is allowed

// Attention of one layer for rows at positions [first, first + rows): q [rows][q_heads][head_dim], k and v
// [rows][kv_heads][head_dim] of the same positions, not yet in any cache; o [rows][q_heads][head_dim]. Rows
// see their own position and all before it.
typedef enum common_code (*llama_attend_fn)(void *arg, uint32_t layer, uint64_t first, uint32_t rows,
                                            const float *q, const float *k, const float *v, float *o,
                                            struct common_error *err);

// Runs tokens [rows] at positions [first, …). logits [n_wanted][vocab] for the rows in `wanted` (ascending,
// relative to the block).
enum common_code llama_forward(const struct llama *model, struct pool *pool, const uint32_t *tokens,
                               uint64_t first, uint32_t rows, llama_attend_fn attend, void *arg,
                               const uint32_t *wanted, uint32_t n_wanted, float *logits,
                               struct common_error *err);

#endif
