// SPDX-License-Identifier: Apache-2.0
// Members and costs for planner tests.
#ifndef TESTS_REDUCE_MEMBERS_H
#define TESTS_REDUCE_MEMBERS_H

#include <stdio.h>
#include <string.h>

#include "reduce/plan.h"

// Costs of the golden plans: fixed here, so that a new measurement of the defaults moves no golden plan.
static const struct reduce_cost GOLDEN_COST = {
    .local_latency_ns = 4000,
    .remote_latency_ns = 20000,
    .local_bandwidth = 3e9,
    .remote_bandwidth = 1.2e9,
    .frame_cpu_ns = 4000,
    .merge_bandwidth = 8e9,
    .compute_fixed_ns = 3000,
    .partial_bytes = 16640, // 32 heads x (128 + 2) float32
    .query_bytes = 16384,
};

// The i-th member of host h ('a' ...): a0, a1, ... af, a10
static inline void member_set(struct reduce_member *m, unsigned h, unsigned i, uint64_t bandwidth,
                              uint32_t cores)
{
    memset(m, 0, sizeof *m);
    if (h < 26)
        snprintf(m->name, sizeof m->name, "%c%x", (int)('a' + h), i);
    else
        snprintf(m->name, sizeof m->name, "z%04u.%04u", h, i);
    if (h < 26)
        snprintf(m->host, sizeof m->host, "%c", (int)('a' + h));
    else
        snprintf(m->host, sizeof m->host, "z%04u", h);
    snprintf(m->kernel, sizeof m->kernel, "portable");
    m->bandwidth = bandwidth;
    m->cores = cores;
}

static inline uint32_t members_fill(struct reduce_member *members, unsigned hosts, unsigned each,
                                    uint32_t cores)
{
    for (unsigned h = 0; h < hosts; h++) {
        for (unsigned i = 0; i < each; i++)
            member_set(&members[h * each + i], h, i, UINT64_C(20000000000), cores);
    }
    return hosts * each;
}

#endif
