// SPDX-License-Identifier: Apache-2.0
// Keys and values of research/paper, a rank's share of them, and the attention over a block. Data is a function
// of the position alone, so every program sees the same whatever the number of ranks.
//
// A shard is one block of bytes, which is also what a ring sends: for each KV head K[tokens][dim], then
// V[tokens][dim], bfloat16. No KV head is repeated for its query heads and nothing is padded.
#ifndef RESEARCH_PAPER_SHARD_H
#define RESEARCH_PAPER_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/reference.h"
#include "research/paper_formula.h"

#define PAPER_CHUNK 256u // tokens, as the service's

// K (which = 0) or V (1) of one token and KV head: out[dim], bfloat16, uniform in (-1, 1). dim: of four.
void paper_data_row(const struct paper_geometry *g, uint64_t token, uint32_t head, uint32_t which,
                    uint16_t *out);
void paper_data_query(const struct paper_geometry *g, float *out); // [q_heads][dim]

// Fills a shard with tokens [first, first + tokens).
void paper_shard_fill(const struct paper_geometry *g, void *kv, uint64_t first, uint64_t tokens);

const char *paper_shard_k(const struct paper_geometry *g, const void *kv, uint64_t tokens, uint32_t head);

// Memory of the host for keys and values.
void *paper_kv_alloc(size_t bytes); // aligned, its pages there; NULL: no memory
void paper_kv_free(void *kv);

// Counts what holds keys and values, wherever that is. The most that was held at once since the last reset is
// the working set.
void paper_kv_count(int64_t bytes);
uint64_t paper_kv_peak(void);
void paper_kv_peak_reset(void); // starts from what is held now

struct kernels_spec paper_spec(const struct paper_geometry *g); // bfloat16

// The float64 reference over one block: o[q_heads][dim], rows[q_heads].
void paper_reference(const struct paper_geometry *g, const void *kv, uint64_t first, uint64_t tokens,
                     uint64_t total, const float *q, double *o, struct kernels_reference_row *rows);

#endif
