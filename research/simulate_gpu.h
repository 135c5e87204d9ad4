// SPDX-License-Identifier: Apache-2.0
// Decode steps over a cluster of GPUs: the tree by the planner's cost model, the ring by its passes. Pure.
//
//     tree    the best of some fan-outs within a node and between nodes, played by reduce/cost.h; a GPU
//             computes compute_fixed + bytes / memory
//     ring    compute + (p - 1) max(latency + bytes / link, compute); the link is the slowest that it
//             crosses: NVLink within one node, else one card of a GPU, or all of a node's cards together
#ifndef RESEARCH_SIMULATE_GPU_H
#define RESEARCH_SIMULATE_GPU_H

#include <stdint.h>

struct simulate_gpu { // times in nanoseconds, rates in bytes per second
    uint32_t per_node;
    double memory;                         // that attention reaches
    double compute_fixed_ns;               // to launch it
    double local_latency_ns, local_rate;   // NVLink, one way
    double remote_latency_ns, remote_rate; // one network card
    double frame_cpu_ns;                   // to send or receive one message, each side
    double merge_rate;
};

// H100 nodes: NVLink 4, a 400 Gb/s card for each GPU. simulate.c prints where each figure is from.
struct simulate_gpu simulate_gpu_h100(void);

struct simulate_size {
    uint32_t gpus, q_heads, kv_heads, dim;
    double tokens; // a GPU
};

struct simulate_times {
    double compute_us, tree_us;
    double ring_card_us, ring_cards_us; // over one card, over all of a node's
    uint32_t fan_in, fan_out;           // of the best tree
};

// INFINITY in tree_us: no memory. gpus: 1, or a multiple of per_node, or fewer than it.
struct simulate_times simulate_gpu_step(const struct simulate_gpu *gpu, const struct simulate_size *size);

#endif
