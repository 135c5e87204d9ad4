// SPDX-License-Identifier: Apache-2.0
#include "research/simulate_gpu.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels/partial.h"
#include "reduce/cost.h"
#include "reduce/topology.h"

struct simulate_gpu simulate_gpu_h100(void)
{
    return (struct simulate_gpu){.per_node = 8,
                                 .memory = 0.85 * 3350e9,
                                 .compute_fixed_ns = 5000,
                                 .local_latency_ns = 1500,
                                 .local_rate = 450e9,
                                 .remote_latency_ns = 5000,
                                 .remote_rate = 50e9,
                                 .frame_cpu_ns = 1000,
                                 .merge_rate = 500e9};
}

static double compute_ns(const struct simulate_gpu *gpu, const struct simulate_size *size)
{
    return gpu->compute_fixed_ns + size->tokens * size->kv_heads * size->dim * 2 * 2 / gpu->memory * 1e9;
}

static double ring_us(const struct simulate_gpu *gpu, const struct simulate_size *size, double cards)
{
    bool one_node = size->gpus <= gpu->per_node;
    double rate = one_node ? gpu->local_rate : fmin(gpu->local_rate, gpu->remote_rate * cards);
    double latency = (one_node ? gpu->local_latency_ns : gpu->remote_latency_ns) + 2 * gpu->frame_cpu_ns;
    double compute = compute_ns(gpu, size);
    double wire = latency + size->tokens * size->kv_heads * size->dim * 2 * 2 / rate * 1e9;
    return (compute + (size->gpus - 1) * fmax(wire, compute)) / 1e3;
}

static void best_tree(const struct simulate_gpu *gpu, const struct simulate_size *size,
                      struct simulate_times *out)
{
    static const uint32_t fans[] = {7, 2, 4, 8, 16, 32, REDUCE_FAN_BINOMIAL};
    const uint32_t n_fans = sizeof fans / sizeof *fans;
    uint32_t n = size->gpus, in_node = n < gpu->per_node ? n : gpu->per_node,
             n_hosts = (n + in_node - 1) / in_node;
    struct reduce_cost cost = {.local_latency_ns = gpu->local_latency_ns,
                               .remote_latency_ns = gpu->remote_latency_ns,
                               .local_bandwidth = gpu->local_rate,
                               .remote_bandwidth = gpu->remote_rate,
                               .frame_cpu_ns = gpu->frame_cpu_ns,
                               .merge_bandwidth = gpu->merge_rate,
                               .partial_bytes = kernels_partial_bytes(1, size->q_heads, size->dim),
                               .query_bytes = (uint64_t)size->q_heads * size->dim * 4};
    uint32_t *hosts = calloc(n, sizeof *hosts), *cores = calloc(n_hosts, sizeof *cores);
    uint32_t *sizes = calloc(n_hosts, sizeof *sizes),
             *scratch = calloc((size_t)n_hosts + in_node, sizeof *scratch);
    struct reduce_node *nodes = calloc(n, sizeof *nodes);
    double *compute = calloc(n, sizeof *compute), best = INFINITY;
    struct reduce_sim *sim = NULL;
    if (!hosts || !cores || !sizes || !scratch || !nodes || !compute)
        goto out;
    for (uint32_t r = 0; r < n; r++) {
        hosts[r] = r / in_node;
        sizes[r / in_node]++;
        compute[r] = compute_ns(gpu, size);
    }
    for (uint32_t h = 0; h < n_hosts; h++)
        cores[h] = sizes[h]; // every GPU is its own
    sim = reduce_sim_new(n, hosts, n_hosts, cores, &cost);
    if (!sim)
        goto out;
    for (uint32_t i = 0; i < n_fans; i++) {
        if (fans[i] > 8 && fans[i] != REDUCE_FAN_BINOMIAL)
            continue; // more than a node has
        for (uint32_t o = 0; o < n_fans; o++) {
            reduce_topology_join(n_hosts, sizes, fans[i], fans[o], nodes, scratch);
            double ns = reduce_sim_run(sim, nodes, compute, best);
            if (ns < best) {
                best = ns;
                out->fan_in = fans[i];
                out->fan_out = fans[o];
            }
        }
    }

out:
    out->tree_us = best / 1e3;
    reduce_sim_free(sim);
    free(hosts);
    free(cores);
    free(sizes);
    free(scratch);
    free(nodes);
    free(compute);
}

struct simulate_times simulate_gpu_step(const struct simulate_gpu *gpu, const struct simulate_size *size)
{
    struct simulate_times times = {.compute_us = compute_ns(gpu, size) / 1e3,
                                   .ring_card_us = ring_us(gpu, size, 1),
                                   .ring_cards_us = ring_us(gpu, size, gpu->per_node)};
    best_tree(gpu, size, &times);
    return times;
}
