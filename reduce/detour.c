// SPDX-License-Identifier: Apache-2.0
// The tree grows from a root. A member whose parent is in it and reaches it joins under that parent. When
// there is none any more, one that has lost its parent is taken in below another one, and may bring others
// with it.
//
//    three members, a star; 0 and 1 do not reach 2, nor 2 reaches 0, so no order of them will do:
//
//    0            2
//    ├1    ──▶    └1
//    └2            └0
#include "reduce/detour.h"

#include <stdlib.h>

#define NOBODY UINT32_MAX // of a rank that is not in the tree
#define ROOT   (UINT32_MAX - 1)

uint64_t reduce_avoid_pair(const struct reduce_avoid *avoid, uint32_t n, uint32_t parent, uint32_t child)
{
    uint64_t cost = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (avoid[i].from == parent && avoid[i].to == child)
            cost += REDUCE_AVOID_COST;
        else if (avoid[i].from == child && avoid[i].to == parent)
            cost++;
    }
    return cost;
}

struct growth {
    const struct reduce_node *nodes; // [n] of the tree as it was
    const struct reduce_avoid *avoid;
    uint32_t n, n_avoid;
    uint32_t *parent;   // [n] by rank, in the tree that grows
    uint32_t *children; // [n] how many it has there
};

static uint64_t cost_of(const struct growth *g, uint32_t parent, uint32_t child)
{
    return reduce_avoid_pair(g->avoid, g->n_avoid, g->nodes[parent].member, g->nodes[child].member);
}

static void attach(struct growth *g, uint32_t parent, uint32_t child)
{
    g->parent[child] = parent;
    g->children[parent]++;
}

// Parents have lower ranks than their children: one pass takes in all below those taken in.
static uint32_t attach_to_own(struct growth *g)
{
    uint32_t more = 0;
    for (uint32_t r = 1; r < g->n; r++) {
        uint32_t own = (uint32_t)g->nodes[r].parent;
        if (g->parent[r] != NOBODY || g->parent[own] == NOBODY || cost_of(g, own, r) >= REDUCE_AVOID_COST)
            continue;
        attach(g, own, r);
        more++;
    }
    return more;
}

// The cheapest parent; of equals the one with the fewest children, then the lowest rank. NOBODY: none reaches
// it.
static uint32_t best_parent(const struct growth *g, uint32_t child)
{
    uint32_t best = NOBODY;
    uint64_t least = REDUCE_AVOID_COST;
    for (uint32_t r = 0; r < g->n; r++) {
        uint64_t cost = g->parent[r] != NOBODY ? cost_of(g, r, child) : REDUCE_AVOID_COST;
        if (cost < least || (cost == least && best != NOBODY && g->children[r] < g->children[best])) {
            best = r;
            least = cost;
        }
    }
    return best;
}

static bool attach_one(struct growth *g)
{
    for (uint32_t r = 0; r < g->n; r++) {
        uint32_t parent = g->parent[r] == NOBODY ? best_parent(g, r) : NOBODY;
        if (parent == NOBODY)
            continue;
        attach(g, parent, r);
        return true;
    }
    return false;
}

// False: not all can be reached from there.
static bool grow(struct growth *g, uint32_t root)
{
    for (uint32_t r = 0; r < g->n; r++) {
        g->parent[r] = NOBODY;
        g->children[r] = 0;
    }
    g->parent[root] = ROOT;
    uint32_t in = 1 + attach_to_own(g);
    while (in < g->n) {
        if (!attach_one(g))
            return false;
        in += 1 + attach_to_own(g);
    }
    return true;
}

// Numbers them in pre-order, children in the order in which they were. scratch: 2 n.
static void number(const struct growth *g, uint32_t root, uint32_t *scratch, struct reduce_node *out)
{
    uint32_t *rank_of = scratch, *stack = scratch + g->n, depth = 1;
    stack[0] = root;
    for (uint32_t rank = 0; rank < g->n; rank++) {
        uint32_t at = stack[--depth];
        rank_of[at] = rank;
        out[rank] = (struct reduce_node){.member = g->nodes[at].member,
                                         .parent = at == root ? -1 : (int32_t)rank_of[g->parent[at]],
                                         .first_child = rank + 1,
                                         .n_children = g->children[at],
                                         .subtree = 1};
        for (uint32_t r = g->n; r-- > 0;)
            if (g->parent[r] == at)
                stack[depth++] = r;
    }
    for (uint32_t rank = g->n; rank-- > 1;)
        out[out[rank].parent].subtree += out[rank].subtree;
}

enum common_code reduce_detour(struct reduce_node *nodes, uint32_t n, const struct reduce_avoid *avoid,
                               uint32_t n_avoid, bool *found)
{
    enum common_code code = COMMON_RESOURCE_EXHAUSTED;
    uint32_t *scratch = calloc(n, 4 * sizeof *scratch);
    struct reduce_node *out = calloc(n, sizeof *out);
    struct growth g = {.nodes = nodes, .avoid = avoid, .n = n, .n_avoid = n_avoid};
    if (!scratch || !out)
        goto out;
    code = COMMON_OK;
    *found = false;
    g.parent = scratch;
    g.children = scratch + n;
    for (uint32_t root = 0; root < n && !*found; root++) {
        *found = grow(&g, root);
        if (*found)
            number(&g, root, scratch + 2 * n, out);
    }
    for (uint32_t r = 0; r < n && *found; r++)
        nodes[r] = out[r];

out:
    free(out);
    free(scratch);
    return code;
}
