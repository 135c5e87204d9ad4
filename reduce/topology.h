// SPDX-License-Identifier: Apache-2.0
// Tree shapes. Pure: sizes and fan-outs in, parents out; no member, host name or cost is known here.
//
// Every shape is a pre-order numbering: rank 0 is the root, and the subtree of rank r is the run of ranks
// [r, r + subtree of r). A rank's children stand in ascending order, the smallest subtree first and the
// largest last: answers are merged in ascending order, so the deepest, which is the last to answer, is merged
// last.
#ifndef REDUCE_TOPOLOGY_H
#define REDUCE_TOPOLOGY_H

#include <stdint.h>

#include "reduce/shape.h"

// Fills subtree[n], which alone fixes a tree: at most `fan` children for each rank, their subtrees as equal
// as they can be, or the binomial tree for REDUCE_FAN_BINOMIAL. n > 0, fan > 0.
void reduce_topology_fill(uint32_t n, uint32_t fan, uint32_t *subtree);

// Two levels: a tree of fan_out over the hosts, a tree of fan_in over the members of each. The first member
// of a host is its leader; only leaders have edges to other hosts. sizes[h] > 0 is how many members host h
// has; hosts and members are numbered in the order given. Fills nodes[sum of sizes] (`member` with the
// member's number). scratch: n_hosts + the largest size numbers.
void reduce_topology_join(uint32_t n_hosts, const uint32_t *sizes, uint32_t fan_in, uint32_t fan_out,
                          struct reduce_node *nodes, uint32_t *scratch);

// The sibling after `child`. The caller counts n_children.
static inline uint32_t reduce_topology_next(const struct reduce_node *nodes, uint32_t child)
{
    return child + nodes[child].subtree;
}

// Fills heights[n]: edges from a rank down to its deepest descendant. parents[r] < r; that of rank 0 is -1.
void reduce_topology_heights(const int32_t *parents, uint32_t n, uint32_t *heights);

// The order in which a rank sends to its children: the deepest subtree first, as it answers last; of equals
// the lower rank first. children[n] are ranks; order[n] receives indices into it.
void reduce_topology_send_order(const uint32_t *children, uint32_t n, const uint32_t *heights,
                                uint32_t *order);

#endif
