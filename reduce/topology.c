// SPDX-License-Identifier: Apache-2.0
// The shapes, for 8 ranks:
//
//    fan 1, chain     fan 2                    fan 7, star                  binomial
//
//    0                0                        0                            0
//    └1               ├1                       ├1                           ├1
//     └2              │├2                      ├2                           ├2
//      └3             │└3                      ├3                           │└3
//       └4            └4                       ├4                           └4
//        └5            ├5                      ├5                            ├5
//         └6           └6                      ├6                            └6
//          └7           └7                     └7                             └7
//
//    a frame at a     few levels, few          one level; the root          who has sent goes on sending: the
//    time, the most   frames a rank            sends and merges all         fewest steps if a hop costs no
//    more levels                                                                 than its two ends' processor
//    time
//
// Two levels joined: hosts A (3 members), B (2), C (3), D (1); fan_in 2, fan_out 2:
//
//    A0 A1 A2 B0 B1 C0 C1 C2 D0      A0 ──────────── between hosts ──┬──────┐
//    0  1  2  3  4  5  6  7  8       ├ A1                            B0     C0 ──────┐
//                                    └ A2                            └ B1   ├ C1     D0
//                                                                           └ C2
//
// A leader's own members come before the hosts below it: their answers arrive first.
#include "reduce/topology.h"

// Gives the `count` ranks below r to its children. The sizes come out ascending.
static void share_evenly(uint32_t r, uint32_t count, uint32_t fan, uint32_t *subtree)
{
    uint32_t children = count < fan ? count : fan;
    uint32_t child = r + 1;
    for (uint32_t i = 0; i < children; i++) {
        // The last count % children of them take one more.
        uint32_t size = count / children + (i >= children - count % children ? 1 : 0);
        subtree[child] = size;
        child += size;
    }
}

// A binomial root over s ranks gives floor(s / 2) to its last child and is a binomial root over the rest.
static void share_by_halves(uint32_t r, uint32_t count, uint32_t *subtree)
{
    uint32_t left = count + 1;
    while (left > 1) {
        uint32_t size = left / 2;
        left -= size;
        subtree[r + left] = size; // the ranks before it go on to be shared
    }
}

void reduce_topology_fill(uint32_t n, uint32_t fan, uint32_t *subtree)
{
    subtree[0] = n;
    for (uint32_t r = 0; r < n; r++) { // a parent stands before its children
        uint32_t count = subtree[r] - 1;
        if (fan == REDUCE_FAN_BINOMIAL)
            share_by_halves(r, count, subtree);
        else
            share_evenly(r, count, fan, subtree);
    }
}

// Numbers one host's members from rank `first` on; parents inside the host.
static void place_members(uint32_t first, const uint32_t *subtree, struct reduce_node *nodes)
{
    for (uint32_t m = 0; m < subtree[0]; m++) {
        nodes[first + m].member = first + m;
        nodes[first + m].subtree = subtree[m];
        nodes[first + m].n_children = 0;
        for (uint32_t c = m + 1; c < m + subtree[m]; c += subtree[c]) {
            nodes[first + c].parent = (int32_t)(first + m);
            nodes[first + m].n_children++;
        }
        nodes[first + m].first_child = first + m + 1; // meant only where there are children
    }
}

void reduce_topology_join(uint32_t n_hosts, const uint32_t *sizes, uint32_t fan_in, uint32_t fan_out,
                          struct reduce_node *nodes, uint32_t *scratch)
{
    uint32_t *hosts = scratch, *members = scratch + n_hosts;
    uint32_t rank = 0, shaped = 0;
    nodes[0].parent = -1;
    for (uint32_t h = 0; h < n_hosts; h++) {
        if (sizes[h] != shaped) // hosts of one size share their shape
            reduce_topology_fill(sizes[h], fan_in, members);
        shaped = sizes[h];
        place_members(rank, members, nodes);
        rank += sizes[h];
    }

    // Hosts in pre-order, each one's members together: a leader's subtree is its host's members and then the
    // hosts below, so ranks stay contiguous. From the last host up: what is below a leader is whole when it
    // is reached.
    reduce_topology_fill(n_hosts, fan_out, hosts);
    for (uint32_t h = n_hosts; h-- > 0;) {
        rank -= sizes[h];
        uint32_t below = rank + sizes[h];
        for (uint32_t child = h + 1; child < h + hosts[h]; child += hosts[child]) {
            nodes[below].parent = (int32_t)rank;
            nodes[rank].n_children++;
            nodes[rank].subtree += nodes[below].subtree;
            below += nodes[below].subtree;
        }
    }
}

void reduce_topology_heights(const int32_t *parents, uint32_t n, uint32_t *heights)
{
    for (uint32_t r = 0; r < n; r++)
        heights[r] = 0;
    for (uint32_t r = n; r-- > 1;) {
        uint32_t p = (uint32_t)parents[r];
        if (heights[p] < heights[r] + 1)
            heights[p] = heights[r] + 1;
    }
}

void reduce_topology_send_order(const uint32_t *children, uint32_t n, const uint32_t *heights,
                                uint32_t *order)
{
    uint32_t level = 0, sent = 0;
    for (uint32_t i = 0; i < n; i++)
        level = heights[children[i]] > level ? heights[children[i]] : level;
    for (; sent < n; level--) {
        for (uint32_t i = 0; i < n; i++) {
            if (heights[children[i]] == level)
                order[sent++] = i;
        }
    }
}
