// SPDX-License-Identifier: Apache-2.0
// A KV cache that is made, written and read as llama.cpp does it (llama_kv_cache and
// llm_graph_context::build_attn), over any device of ggml. Beside it, in float32, stands what it should hold:
// exact.h computes from that.
//
//     cache tensors   K [kv_heads * k_dim, cells, streams], V [kv_heads * v_dim, cells, streams] for each layer
//     one graph       for each layer: SET_ROWS of K and V, then FLASH_ATTN_EXT over views of the cache; q, k and v
//                     come from operations of the CPU, the result goes to one
//     a step          the same number of rows in each of a run of streams
//
// Whatever of ggml itself fails here ends the program: that is the harness's fault, not a device's.
#ifndef TESTS_LLAMA_CACHE_H
#define TESTS_LLAMA_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ggml-backend.h>
#include <ggml.h>

#define CACHE_LAYERS  4 // at most
#define CACHE_STREAMS 4 // at most

enum cache_mask {
    CACHE_CAUSAL,
    CACHE_WINDOW, // of `span` tokens, the row's own one included
    CACHE_CHUNK,  // from the last multiple of `span` on
    CACHE_ALL,    // all cells in use, later ones too
};

struct cache_shape {
    enum ggml_type k, v;
    int layers, heads, kv_heads;
    int k_dim, v_dim;
    int cells, streams;
    bool v_in_k; // MLA: there is no V tensor
    bool shared; // one more attention, at the end, over the first layer's K and V
    bool cast;   // as llama.cpp does with a float32 cache: attention over a copy in float16
    enum cache_mask mask;
    int span;
    float scale; // 0: 1/sqrt(k_dim)
    float soft_cap, max_bias;
    bool sinks;
};

struct cache_devices {
    ggml_backend_t own; // the device that holds the cache; NULL: the CPU does
    ggml_backend_t cpu;
};

// One evaluation. Streams first_stream … first_stream + streams − 1 each get `rows` rows.
struct cache_step {
    int first_stream, streams, rows;
    // Cell of each row, [streams][rows]; NULL: the stream's next ones.
    const int *cells;
    // Whether row r of stream s sees a cell; NULL: as the shape's mask says, by cells.
    bool (*sees)(const struct cache_step *step, int stream, int row, int cell);
    // What the CPU multiplies q by before the attention; 0: 1
    float q_scale;
    bool not_causal;   // this step's mask is CACHE_ALL
    bool no_attention; // rows are stored, and nothing is asked
};

struct cache {
    struct cache_shape shape;
    struct cache_devices devices;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *k[CACHE_LAYERS], *v[CACHE_LAYERS]; // v: NULL with v_in_k
    struct ggml_tensor *k_stream[CACHE_LAYERS][CACHE_STREAMS], *v_stream[CACHE_LAYERS][CACHE_STREAMS];
    // What it should hold: [streams][cells][kv_heads][dim], as the type leaves it.
    float *k_held[CACHE_LAYERS], *v_held[CACHE_LAYERS];
    int used[CACHE_STREAMS]; // cells in use: 0 to used - 1
    struct ggml_context *tensors, *weights;
    ggml_backend_buffer_t weights_buffer;
    struct ggml_tensor *sinks[CACHE_LAYERS + 1];
    ggml_backend_sched_t sched;
    struct cache_graph *graph; // of the last step, to be evaluated again; NULL: none
    struct cache_step last;
    int last_n_kv;
    uint64_t seed;
};

// What a step sent and got, for as long as the caller keeps it: attentions = layers (+ 1 with `shared`).
struct cache_answer {
    struct cache_step step;
    int attentions;
    int n_kv;                   // cells that the mask shows, padded
    int *cells;                 // [streams][rows]
    float *mask;                // [streams][rows][n_kv], as float16 leaves it: 0, −distance or −inf
    float *q[CACHE_LAYERS + 1]; // [streams][rows][heads][k_dim]
    float *o[CACHE_LAYERS + 1]; // [streams][rows][heads][v_dim]
};

// devices.own may be NULL.
void cache_open(const struct cache_shape *shape, struct cache_devices devices, struct cache *out);
void cache_close(struct cache *cache);

// Evaluates one step. On success what should be held and used follows, and the answer is the caller's to
// free; otherwise neither is touched.
enum ggml_status cache_run(struct cache *cache, const struct cache_step *step, struct cache_answer *out);

// The same rows of two caches in one graph, layer by layer in turn, as a model has them of which some layers
// have a window. Both caches have the same streams.
enum ggml_status cache_run_both(struct cache *const caches[2], const struct cache_step *step,
                                struct cache_answer out[2]);

// Next rows of all streams of the cache, each behind what it has.
enum ggml_status cache_append(struct cache *cache, int rows, struct cache_answer *out);

void cache_answer_free(struct cache_answer *answer);

// The same attention by ggml's CPU backend alone, over tensors of `type` with what the cache should hold:
// o [streams][rows][heads][v_dim], the caller's to free.
float *cache_on_cpu(const struct cache *cache, const struct cache_answer *answer, int attention,
                    enum ggml_type type);

// Empties cache and streams, as llama_memory_clear does.
void cache_clear(struct cache *cache);

// What llama_memory_seq_cp of a whole stream does.
void cache_copy_stream(struct cache *cache, int from, int to);

// As a saved slot: rows [from, to) of one stream, K of each layer, then V of each layer.
size_t cache_state_bytes(const struct cache *cache, int from, int to);
void cache_state_get(const struct cache *cache, int stream, int from, int to, void *out);
// Writes such a state to cells [from, to) of another stream; `of` is the cache and stream that it was got
// from.
void cache_state_set(struct cache *cache, int stream, int from, int to, const void *state,
                     const struct cache *of, int of_stream);
// Whether a state has what the cache should hold there. true of a state of names (BANYAN_KEEP).
bool cache_state_equal(const struct cache *cache, int stream, int from, int to, const void *state);

// K-shift: rotates K of all cells in place, as after a context shift.
enum ggml_status cache_shift(struct cache *cache);

// Which of the layers' K and V an attention reads.
int cache_layer_of(const struct cache *cache, int attention);

#endif
