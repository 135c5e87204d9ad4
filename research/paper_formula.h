// SPDX-License-Identifier: Apache-2.0
// Bytes that each algorithm of research/paper must send and hold, derived from its messages, and the formulas of
// the paper (Tree Attention, arXiv 2408.04093). Pure. All are of one step, one query row (b = 1).
//
//     q = q_heads * dim * 4        the query, float32
//     P = q_heads * (dim + 2) * 4  a partial: m, s and o of each head, float32
//     S = shard: tokens * kv_heads * dim * 2 * 2    K and V, bfloat16
//
//     algorithm      sent by all ranks together                      why
//     tree           (p - 1) (q + P)                                 each edge: q down, one partial up
//     gather         (p - 1) (q + P)                                 each rank's partial goes straight to the
//     root allreduce1     (p - 1) q + D(p) P                              D(p): messages of recursive
//     doubling allreduce3     (p - 1) q + D(p) (P of lse, n and d: as many)   the same elements in three
//     calls ring           (p - 1) * sum of S                              every rank passes on p - 1 blocks
//     ring-lean      sum over ranks r > 0 of (p - r) S_r             a block stops when the root has seen it
//
// With 2^k the largest power of two <= p and e = p - 2^k, recursive doubling sends D(p) = 2 e + 2^k k.
//
// The paper counts, per device and in elements: ring 2 b t d p (eq. 10), tree 2 (p - 1)/p (b d + 2 b n_h)
// (eq. 14); d is the hidden size of the keys (kv_heads * dim) and of the query (q_heads * dim). Keys take two
// bytes here, what is reduced four.
#ifndef RESEARCH_PAPER_FORMULA_H
#define RESEARCH_PAPER_FORMULA_H

#include <stdint.h>

struct paper_geometry {
    const char *name;
    uint32_t q_heads, kv_heads, dim;
};

enum paper_form {
    PAPER_FORM_TREE, // gather's is the same
    PAPER_FORM_TREE_LIBRARY,
    PAPER_FORM_ALLREDUCE,
    PAPER_FORM_RING,
    PAPER_FORM_RING_LEAN,
};

uint64_t paper_query_bytes(const struct paper_geometry *g);
uint64_t paper_partial_bytes(const struct paper_geometry *g);
uint64_t paper_shard_bytes(const struct paper_geometry *g, uint64_t tokens); // K and V

// Messages of one all-reduce by recursive doubling over p ranks.
uint64_t paper_doubling_messages(uint32_t p);

// Bytes that all ranks together send in a step; tokens[p]: keys that each holds.
double paper_formula_bytes(enum paper_form form, const struct paper_geometry *g, uint32_t p,
                           const uint64_t *tokens);

// The paper's volume of one device in bytes, for t tokens a device.
double paper_published_bytes(enum paper_form form, const struct paper_geometry *g, uint32_t p, double t);

#endif
