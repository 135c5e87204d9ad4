// SPDX-License-Identifier: Apache-2.0
#include "research/simulate_fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "reduce/cost.h"
#include "reduce/plan.h"

static uint64_t kv_bytes(const struct simulate_point *p)
{
    return p->tokens * p->kv_heads * p->dim * 2 * 2;
}

double simulate_predict(const double terms[SIMULATE_TERMS], struct simulate_point *point, uint32_t cores)
{
    struct reduce_cost cost;
    uint32_t n = point->workers;
    double us = INFINITY;
    struct reduce_member *members = calloc(n, sizeof *members);
    uint64_t *bytes = calloc(n, sizeof *bytes);
    if (!members || !bytes)
        goto out;
    for (uint32_t i = 0; i < n; i++) {
        snprintf(members[i].name, sizeof members[i].name, "w%05u", i);
        snprintf(members[i].host, sizeof members[i].host, "host");
        snprintf(members[i].kernel, sizeof members[i].kernel, "any");
        members[i].bandwidth = (uint64_t)terms[SIMULATE_BANDWIDTH] + 1;
        members[i].cores = cores;
        bytes[i] = kv_bytes(point);
    }
    reduce_cost_default(&cost, point->q_heads, point->dim, point->dim, 1);
    if (!point->plan && reduce_plan_make(members, n, &cost, &point->plan, NULL) != COMMON_OK)
        goto out;
    cost.frame_cpu_ns = terms[SIMULATE_FRAME_CPU_NS];
    cost.local_latency_ns = terms[SIMULATE_LATENCY_NS];
    cost.compute_fixed_ns = terms[SIMULATE_COMPUTE_FIXED_NS];
    us = (terms[SIMULATE_CLIENT_NS] + reduce_plan_predict(point->plan, members, &cost, bytes)) / 1e3;

out:
    free(members);
    free(bytes);
    return us;
}

void simulate_point_fini(struct simulate_point *point)
{
    reduce_plan_free(point->plan);
    point->plan = NULL;
}

static double badness(const double terms[SIMULATE_TERMS], struct simulate_point *points, uint32_t n,
                      uint32_t most_workers, uint32_t cores)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (points[i].workers > most_workers)
            continue;
        double off = log(simulate_predict(terms, &points[i], cores) / points[i].median_us);
        sum += off * off;
    }
    return sum;
}

// Goes along one term at a time, by a factor that shrinks when no term helps any more.
uint32_t simulate_fit(struct simulate_point *points, uint32_t n, uint32_t most_workers, uint32_t cores,
                      double terms[SIMULATE_TERMS])
{
    const double start[SIMULATE_TERMS] = {50e3, 5e3, 5e3, 5e3, 8e9};
    uint32_t used = 0;
    for (uint32_t i = 0; i < n; i++)
        used += points[i].workers <= most_workers;
    if (used < SIMULATE_TERMS)
        return 0;
    for (uint32_t t = 0; t < SIMULATE_TERMS; t++)
        terms[t] = start[t];
    double best = badness(terms, points, n, most_workers, cores);
    for (double factor = 2; factor > 1.0005; factor = sqrt(factor)) {
        for (bool better = true; better;) {
            better = false;
            for (uint32_t t = 0; t < 2 * SIMULATE_TERMS; t++) {
                double kept = terms[t / 2];
                terms[t / 2] *= t % 2 ? factor : 1 / factor;
                double now = badness(terms, points, n, most_workers, cores);
                if (now < best * (1 - 1e-9) && terms[t / 2] > 1) {
                    best = now;
                    better = true;
                } else {
                    terms[t / 2] = kept;
                }
            }
        }
    }
    return used;
}
