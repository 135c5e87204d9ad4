// SPDX-License-Identifier: Apache-2.0
#include "research/paper_formula.h"

uint64_t paper_query_bytes(const struct paper_geometry *g)
{
    return (uint64_t)g->q_heads * g->dim * 4;
}

uint64_t paper_partial_bytes(const struct paper_geometry *g)
{
    return (uint64_t)g->q_heads * (g->dim + 2) * 4;
}

uint64_t paper_shard_bytes(const struct paper_geometry *g, uint64_t tokens)
{
    return tokens * g->kv_heads * g->dim * 2 * 2;
}

uint64_t paper_doubling_messages(uint32_t p)
{
    uint32_t whole = 1, rounds = 0;
    for (; whole <= p / 2; whole *= 2)
        rounds++;
    return 2 * (uint64_t)(p - whole) + (uint64_t)whole * rounds;
}

double paper_formula_bytes(enum paper_form form, const struct paper_geometry *g, uint32_t p,
                           const uint64_t *tokens)
{
    double bytes = 0;
    switch (form) {
    case PAPER_FORM_TREE:
        return (double)(p - 1) * (double)(paper_query_bytes(g) + paper_partial_bytes(g));
    case PAPER_FORM_TREE_LIBRARY:
        return (double)(p - 1) * (double)paper_query_bytes(g) +
               (p > 1 ? p : 0) * (double)paper_partial_bytes(g);
    case PAPER_FORM_ALLREDUCE:
        return (double)(p - 1) * (double)paper_query_bytes(g) +
               (double)paper_doubling_messages(p) * (double)paper_partial_bytes(g);
    case PAPER_FORM_RING:
        for (uint32_t r = 0; r < p; r++)
            bytes += (double)(p - 1) * (double)paper_shard_bytes(g, tokens[r]);
        return bytes;
    case PAPER_FORM_RING_LEAN:
        for (uint32_t r = 1; r < p; r++)
            bytes += (double)(p - r) * (double)paper_shard_bytes(g, tokens[r]);
        return bytes;
    }
    return 0;
}

double paper_published_bytes(enum paper_form form, const struct paper_geometry *g, uint32_t p, double t)
{
    double keys = (double)g->kv_heads * g->dim, query = (double)g->q_heads * g->dim;
    if (form == PAPER_FORM_RING || form == PAPER_FORM_RING_LEAN)
        return 2 * t * keys * p * 2;
    return 2.0 * (p - 1) / p * (query + 2.0 * g->q_heads) * 4;
}
