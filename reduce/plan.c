// SPDX-License-Identifier: Apache-2.0
// The choice: every pair of fan-outs is played over the members (cost.c), the cheapest tree is kept.
#include "reduce/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"
#include "reduce/cost.h"
#include "reduce/detour.h"
#include "reduce/roster.h"
#include "reduce/topology.h"

// Raised whenever the same members and cost may give another tree, or a tree another order of merging.
#define PLAN_VERSION UINT64_C(0x62616e79616e0001)

#define FANS_MAX 32

// ---- candidates ---------------------------------------------------------------------------------

#define FINE_MEMBERS 512 // up to here all fan-outs are tried: 4096 members then plan in a tenth of a second

// Fan-outs worth a try where a rank has at most `most` children, ascending: each up to 8, then two an octave
// (coarse: powers of two), then all at once, then the binomial tree. A level without children has the one
// candidate 1. Returns how many.
static uint32_t list_fans(uint32_t most, bool coarse, uint32_t fans[FANS_MAX])
{
    uint32_t n = 0;
    for (uint32_t fan = 1, step; fan < most; fan += step) {
        bool power = (fan & (fan - 1)) == 0;
        step = coarse ? fan : fan < 8 ? 1 : power ? fan / 2 : fan / 3;
        fans[n++] = fan;
    }
    fans[n++] = most > 0 ? most : 1;
    if (most >= 5) // up to 5 ranks the binomial tree is one of the above
        fans[n++] = REDUCE_FAN_BINOMIAL;
    return n;
}

struct choice {
    double ns;
    uint32_t fan_in, fan_out;
    uint32_t tried;
};

static bool better(double ns, uint32_t fan_in, uint32_t fan_out, const struct choice *than)
{
    if (ns != than->ns)
        return ns < than->ns;
    if (fan_out != than->fan_out)
        return fan_out < than->fan_out;
    return fan_in < than->fan_in;
}

// Leaves the best tree in nodes.
static void choose(const struct reduce_roster *roster, struct reduce_sim *sim, struct reduce_node *nodes,
                   uint32_t *scratch, struct choice *best)
{
    uint32_t largest = 0, ins[FANS_MAX], outs[FANS_MAX];
    for (uint32_t h = 0; h < roster->n_hosts; h++)
        largest = roster->sizes[h] > largest ? roster->sizes[h] : largest;
    bool coarse = roster->n > FINE_MEMBERS;
    uint32_t n_ins = list_fans(largest - 1, coarse, ins);
    uint32_t n_outs = list_fans(roster->n_hosts - 1, coarse, outs);

    *best = (struct choice){.ns = INFINITY, .fan_in = UINT32_MAX, .fan_out = UINT32_MAX};
    // From the last to the first: chains, which take longest to play, are soon given up.
    for (uint32_t o = n_outs; o-- > 0;) {
        for (uint32_t i = n_ins; i-- > 0;) {
            reduce_topology_join(roster->n_hosts, roster->sizes, ins[i], outs[o], nodes, scratch);
            double ns = reduce_sim_run(sim, nodes, NULL, best->ns);
            best->tried++;
            if (better(ns, ins[i], outs[o], best)) {
                best->ns = ns;
                best->fan_in = ins[i];
                best->fan_out = outs[o];
            }
        }
    }
    reduce_topology_join(roster->n_hosts, roster->sizes, best->fan_in, best->fan_out, nodes, scratch);
    if (largest == 1)
        best->fan_in = 0;
    if (roster->n_hosts == 1)
        best->fan_out = 0;
}

// ---- the plan -----------------------------------------------------------------------------------

static uint64_t digest_of(const struct reduce_node *nodes, uint32_t n, const struct reduce_member *members)
{
    uint64_t digest = common_mix64(PLAN_VERSION ^ n);
    for (uint32_t r = 0; r < n; r++) {
        const struct reduce_member *m = &members[nodes[r].member];
        // Texts with their terminators: ("ab", "c") is not ("a", "bc").
        digest = common_xxh3(m->name, strlen(m->name) + 1, digest);
        digest = common_xxh3(m->kernel, strlen(m->kernel) + 1, digest);
        digest = common_mix64(digest ^ (uint32_t)nodes[r].parent);
    }
    return digest;
}

static const char *fan_text(uint32_t fan, uint32_t most, char *buf, size_t len)
{
    if (fan == REDUCE_FAN_BINOMIAL)
        snprintf(buf, len, "a binomial tree");
    else if (fan >= most)
        snprintf(buf, len, "a star");
    else if (fan == 1)
        snprintf(buf, len, "a chain");
    else
        snprintf(buf, len, "a tree of fan-out %u", fan);
    return buf;
}

static void explain(struct reduce_plan *plan, const struct reduce_roster *roster, uint32_t tried)
{
    char in[40], out[40];
    uint32_t largest = 0;
    for (uint32_t h = 0; h < roster->n_hosts; h++)
        largest = roster->sizes[h] > largest ? roster->sizes[h] : largest;
    fan_text(plan->fan_in_host, largest - 1, in, sizeof in);
    fan_text(plan->fan_out_hosts, roster->n_hosts - 1, out, sizeof out);
    double us = plan->predicted_ns / 1e3;
    if (plan->n == 1)
        snprintf(plan->why, sizeof plan->why, "one member: no tree");
    else if (roster->n_hosts == 1)
        snprintf(plan->why, sizeof plan->why, "%s on one host, the cheapest of %u trees: %.1f us", in, tried,
                 us);
    else if (largest == 1)
        snprintf(plan->why, sizeof plan->why, "%s over %u hosts, the cheapest of %u trees: %.1f us", out,
                 roster->n_hosts, tried, us);
    else
        snprintf(plan->why, sizeof plan->why,
                 "%s over %u hosts, %s in each, the cheapest of %u trees: %.1f us", out, roster->n_hosts, in,
                 tried, us);
}

static enum common_code check_cost(const struct reduce_cost *cost, struct common_error *err)
{
    const double times[] = {cost->local_latency_ns, cost->remote_latency_ns, cost->frame_cpu_ns,
                            cost->compute_fixed_ns};
    const double rates[] = {cost->local_bandwidth, cost->remote_bandwidth, cost->merge_bandwidth};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        if (!isfinite(times[i]) || times[i] < 0)
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "a time of the cost model is negative or not finite");
    }
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        if (!isfinite(rates[i]) || rates[i] <= 0)
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "a rate of the cost model is not above zero");
    }
    return COMMON_OK;
}

enum common_code reduce_plan_make(const struct reduce_member *members, uint32_t n,
                                  const struct reduce_cost *cost, struct reduce_plan **out,
                                  struct common_error *err)
{
    struct reduce_roster roster;
    struct choice best;
    enum common_code code = check_cost(cost, err);
    if (code != COMMON_OK)
        return code;
    code = reduce_roster_init(&roster, members, n, err);
    if (code != COMMON_OK)
        return code;

    struct reduce_plan *plan = calloc(1, sizeof *plan);
    uint32_t *scratch = calloc(n, 2 * sizeof *scratch);
    struct reduce_sim *sim = reduce_sim_new(n, roster.hosts, roster.n_hosts, roster.cores, cost);
    if (plan)
        plan->nodes = calloc(n, sizeof *plan->nodes);
    if (!plan || !plan->nodes || !scratch || !sim) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a plan of %u members", n);
        goto out;
    }
    choose(&roster, sim, plan->nodes, scratch, &best);
    for (uint32_t r = 0; r < n; r++)
        plan->nodes[r].member = roster.order[r];
    plan->n = n;
    plan->fan_in_host = best.fan_in;
    plan->fan_out_hosts = best.fan_out;
    plan->predicted_ns = best.ns;
    plan->digest = digest_of(plan->nodes, n, members);
    explain(plan, &roster, best.tried);
    *out = plan;
    plan = NULL;

out:
    reduce_plan_free(plan);
    reduce_sim_free(sim);
    free(scratch);
    reduce_roster_fini(&roster);
    return code;
}

void reduce_plan_free(struct reduce_plan *plan)
{
    if (!plan)
        return;
    free(plan->nodes);
    free(plan);
}

// ---- edges to avoid -----------------------------------------------------------------------------

static uint64_t avoid_cost(const struct reduce_plan *plan, const uint32_t *rank_of,
                           const struct reduce_avoid *avoid, uint32_t n)
{
    uint64_t cost = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = rank_of[avoid[i].from], to = rank_of[avoid[i].to];
        if (plan->nodes[to].parent == (int32_t)from)
            cost += REDUCE_AVOID_COST;
        else if (plan->nodes[from].parent == (int32_t)to)
            cost++;
    }
    return cost;
}

static void swap_ranks(struct reduce_plan *plan, uint32_t *rank_of, uint32_t a, uint32_t b)
{
    uint32_t member = plan->nodes[a].member;
    plan->nodes[a].member = plan->nodes[b].member;
    plan->nodes[b].member = member;
    rank_of[plan->nodes[a].member] = a;
    rank_of[plan->nodes[b].member] = b;
}

// The best change of places of one member; false: none is better than none.
static bool swap_best(struct reduce_plan *plan, uint32_t *rank_of, const struct reduce_member *members,
                      const struct reduce_avoid *avoid, uint32_t n, uint32_t rank, uint64_t *cost)
{
    uint32_t best = UINT32_MAX;
    bool best_near = false;
    for (uint32_t r = 0; r < plan->n; r++) {
        bool near = strcmp(members[plan->nodes[r].member].host, members[plan->nodes[rank].member].host) == 0;
        swap_ranks(plan, rank_of, rank, r);
        uint64_t now = avoid_cost(plan, rank_of, avoid, n);
        swap_ranks(plan, rank_of, rank, r);
        if (now < *cost || (now == *cost && best != UINT32_MAX && near && !best_near)) {
            best = r;
            best_near = near;
            *cost = now;
        }
    }
    if (best != UINT32_MAX)
        swap_ranks(plan, rank_of, rank, best);
    return best != UINT32_MAX;
}

enum common_code reduce_plan_avoid(struct reduce_plan *plan, const struct reduce_member *members,
                                   const struct reduce_avoid *avoid, uint32_t n, uint32_t *left)
{
    uint32_t *rank_of = calloc(plan->n, sizeof *rank_of);
    if (!rank_of)
        return COMMON_RESOURCE_EXHAUSTED;
    for (uint32_t r = 0; r < plan->n; r++)
        rank_of[plan->nodes[r].member] = r;
    uint64_t cost = avoid_cost(plan, rank_of, avoid, n);
    for (bool better = cost > 0; better && cost > 0;) { // each round costs less than the one before
        better = false;
        for (uint32_t i = 0; i < n && !better; i++) {
            uint32_t from = rank_of[avoid[i].from], to = rank_of[avoid[i].to];
            if (plan->nodes[to].parent == (int32_t)from || plan->nodes[from].parent == (int32_t)to)
                better = swap_best(plan, rank_of, members, avoid, n, to, &cost) ||
                         swap_best(plan, rank_of, members, avoid, n, from, &cost);
        }
    }
    free(rank_of);
    *left = (uint32_t)(cost / REDUCE_AVOID_COST);
    bool found = false;
    enum common_code code = *left ? reduce_detour(plan->nodes, plan->n, avoid, n, &found) : COMMON_OK;
    if (found) {
        *left = 0;
        snprintf(plan->why, sizeof plan->why, "a tree around %u edges that are down, whatever it costs", n);
    }
    plan->digest = digest_of(plan->nodes, plan->n, members);
    return code;
}

// ---- prediction of a given tree -----------------------------------------------------------------

double reduce_plan_predict(const struct reduce_plan *plan, const struct reduce_member *members,
                           const struct reduce_cost *cost, const uint64_t *bytes)
{
    double ns = INFINITY;
    struct reduce_roster roster;
    if (check_cost(cost, NULL) != COMMON_OK ||
        reduce_roster_init(&roster, members, plan->n, NULL) != COMMON_OK)
        return ns;
    struct reduce_sim *sim = NULL;
    uint32_t *host_of = calloc(plan->n, sizeof *host_of); // by member
    uint32_t *hosts = calloc(plan->n, sizeof *hosts);     // by rank of this tree, whatever made it
    double *compute = calloc(plan->n, sizeof *compute);
    if (!host_of || !hosts || !compute)
        goto out;
    for (uint32_t i = 0; i < plan->n; i++)
        host_of[roster.order[i]] = roster.hosts[i];
    for (uint32_t r = 0; r < plan->n; r++) {
        uint32_t m = plan->nodes[r].member, h = host_of[m];
        hosts[r] = h;
        if (bytes)
            compute[r] = (cost->compute_fixed_ns + (double)bytes[r] * 1e9 / (double)members[m].bandwidth) *
                         reduce_cost_share(roster.sizes[h], roster.cores[h]);
    }
    sim = reduce_sim_new(plan->n, hosts, roster.n_hosts, roster.cores, cost);
    if (sim)
        ns = reduce_sim_run(sim, plan->nodes, bytes ? compute : NULL, INFINITY);

out:
    reduce_sim_free(sim);
    free(compute);
    free(hosts);
    free(host_of);
    reduce_roster_fini(&roster);
    return ns;
}
