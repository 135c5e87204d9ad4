// SPDX-License-Identifier: Apache-2.0
// Steps of a cluster whose members share one machine's cores, by the planner's cost model, and its terms
// fitted to measured steps. Pure: the same points give the same terms.
//
//     step = client_ns + the plan's time, each member computing (compute_fixed_ns + bytes / bandwidth) times
//            its share of the cores
//
// client_ns stands for the way from the client over the coordinator to the root and back, which every step
// takes once. The plan is the planner's own, for the costs that the daemons have.
#ifndef RESEARCH_SIMULATE_FIT_H
#define RESEARCH_SIMULATE_FIT_H

#include <stdbool.h>
#include <stdint.h>

#define SIMULATE_TERMS 5u

enum simulate_term {
    SIMULATE_CLIENT_NS,
    SIMULATE_FRAME_CPU_NS,
    SIMULATE_LATENCY_NS,
    SIMULATE_COMPUTE_FIXED_NS,
    SIMULATE_BANDWIDTH, // bytes of K and V a second and core
};

struct reduce_plan;

struct simulate_point { // zeroed but for its sizes
    uint32_t workers, q_heads, kv_heads, dim;
    uint64_t tokens; // a worker
    double median_us;
    double predicted_us;
    struct reduce_plan *plan; // made by the first simulate_predict; simulate_point_fini frees it
};

// Microseconds of a step; INFINITY: no memory or sizes that the planner refuses.
double simulate_predict(const double terms[SIMULATE_TERMS], struct simulate_point *point, uint32_t cores);
void simulate_point_fini(struct simulate_point *point);

// The terms with the least sum of squared log ratios over the points of at most `most_workers`. Returns how
// many points that were; 0: too few (fewer than terms).
uint32_t simulate_fit(struct simulate_point *points, uint32_t n, uint32_t most_workers, uint32_t cores,
                      double terms[SIMULATE_TERMS]);

#endif
