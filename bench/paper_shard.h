// SPDX-License-Identifier: Apache-2.0
// Keys and values of bench/paper, a rank's share of them, and the attention over a block. Data is a function
// of the position alone, so every program sees the same whatever the number of ranks.
//
// A shard is one block of bytes, which is also what a ring sends: for each KV head K[tokens][dim], then
// V[tokens][dim], bfloat16. No KV head is repeated for its query heads and nothing is padded.
#ifndef BENCH_PAPER_SHARD_H
#define BENCH_PAPER_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/paper_formula.h"
#include "kernels/reference.h"
#include "kernels/split.h"

#define PAPER_CHUNK 256u // tokens, as the service's

// K (which = 0) or V (1) of one token and KV head: out[dim], bfloat16, uniform in (-1, 1). dim: of four.
void paper_data_row(const struct paper_geometry *g, uint64_t token, uint32_t head, uint32_t which,
                    uint16_t *out);
void paper_data_query(const struct paper_geometry *g, float *out); // [q_heads][dim]

// Fills a shard with tokens [first, first + tokens).
void paper_shard_fill(const struct paper_geometry *g, void *kv, uint64_t first, uint64_t tokens);

// Memory for keys and values. The most that was held at once since the last reset is the working set.
void *paper_kv_alloc(size_t bytes); // aligned, its pages there; NULL: no memory
void paper_kv_free(void *kv, size_t bytes);
uint64_t paper_kv_peak(void);
void paper_kv_peak_reset(void); // starts from what is held now

// One attention at a time: begin, step until false, finish. Bound to one thread.
struct paper_compute {
    const struct paper_geometry *g;
    struct kernels_spec spec;
    const struct kernels_attention *kernel;
    struct kernels_item item;
    struct kernels_split split;
    struct kernels_run *runs;
    void *workspace, *scratch;
    uint64_t most_tokens, workspace_bytes;
    uint32_t task;
};

// The kernel that the service would take. Room for blocks of up to most_tokens. False with the reason on
// stderr.
bool paper_compute_init(struct paper_compute *c, const struct paper_geometry *g, uint64_t most_tokens);
void paper_compute_fini(struct paper_compute *c); // zeroed is allowed

// A block at positions [first, first + tokens) of `total`; the query is the last position.
void paper_compute_begin(struct paper_compute *c, const void *kv, uint64_t first, uint64_t tokens,
                         uint64_t total, const float *q);
bool paper_compute_step(struct paper_compute *c); // one task; false: none was left
void paper_compute_finish(struct paper_compute *c, const struct kernels_partial *out); // overwrites out

// The float64 reference over one block: o[q_heads][dim], rows[q_heads].
void paper_reference(const struct paper_compute *c, const void *kv, uint64_t first, uint64_t tokens,
                     uint64_t total, const float *q, double *o, struct kernels_reference_row *rows);

#endif
