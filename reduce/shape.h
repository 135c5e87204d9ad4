// SPDX-License-Identifier: Apache-2.0
// What the planner's files share: members, costs, nodes of a tree.
#ifndef REDUCE_SHAPE_H
#define REDUCE_SHAPE_H

#include <stdint.h>

#define REDUCE_PLAN_MEMBERS_MAX 4096
#define REDUCE_NAME_BYTES       65
#define REDUCE_FAN_BINOMIAL     UINT32_MAX // in place of a fan-out: the binomial tree (topology.c draws it)

struct reduce_member {
    char name[REDUCE_NAME_BYTES];   // unique in the cluster
    char host[REDUCE_NAME_BYTES];   // members with the same host share a machine
    char kernel[REDUCE_NAME_BYTES]; // variant: part of the digest
    uint64_t bandwidth;             // bytes of K and V per second that it computes; > 0
    uint32_t cores; // processors of its host that it may run on, shared with the host's others; > 0
};

// Times in nanoseconds. Latency is what a hop adds beyond its processor time; cpu is processor time per frame
// and side, which members on one host share (contention); bandwidth in bytes per second. Defaults come from
// measurement (reduce/README.md gives date and command).
struct reduce_cost {
    double local_latency_ns, remote_latency_ns; // one way, same host and between hosts
    double local_bandwidth, remote_bandwidth;   // bytes per second of one edge
    double frame_cpu_ns;                        // send or receive one frame, each side
    double merge_bandwidth;                     // bytes of partials merged per second
    double compute_fixed_ns;                    // per step and member; the same for every tree
    uint64_t partial_bytes;                     // of one step's partial
    uint64_t query_bytes;                       // that go down
};

void reduce_cost_default(struct reduce_cost *cost, uint32_t q_heads, uint32_t k_dim, uint32_t v_dim,
                         uint32_t rows); // cost.c

struct reduce_node {
    uint32_t member;      // index into the members given
    int32_t parent;       // rank, −1 for the root (rank 0)
    uint32_t first_child; // rank of the first child; children of a rank are merged in ascending rank
    uint32_t n_children;
    uint32_t subtree; // ranks in the subtree, itself included: ranks [self, self + subtree)
};

// A member that is not to be the other's parent: `from` does not reach `to`. Indices into the members given.
struct reduce_avoid {
    uint32_t from, to;
};

#endif
