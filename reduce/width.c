// SPDX-License-Identifier: Apache-2.0
// How many members a session deserves. With w members a step of B bytes takes
//
//     T(w, B) = tree(w) + B / speed(w)        + compute_fixed, which is the same for every w
//
//     tree(w)    predicted_ns of the plan over the w fastest
//     speed(w)   sum over hosts of (sum of bandwidths) / share;  share = max(1, members / cores)
//
// Where tree or speed would fall with w, the value before is kept. So the costs rise and the compute falls
// with w, and whatever w gains on w' < w only grows with B: the best w never falls when B rises.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reduce/cost.h"
#include "reduce/plan.h"
#include "reduce/roster.h"

struct seat {
    uint32_t member, rank, host;
    uint32_t row; // 0: one of the fastest members of its host, as many as it has cores; 1: of the next as
                  // many; ...
    uint64_t bandwidth;
};

static int by_speed(const void *a, const void *b)
{
    const struct seat *x = a, *y = b;
    if (x->bandwidth != y->bandwidth)
        return x->bandwidth > y->bandwidth ? -1 : 1;
    return x->rank < y->rank ? -1 : 1;
}

static int by_row_then_speed(const void *a, const void *b)
{
    const struct seat *x = a, *y = b;
    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    return by_speed(a, b);
}

enum common_code reduce_plan_fastest(const struct reduce_member *members, uint32_t n, uint32_t *order,
                                     struct common_error *err)
{
    struct reduce_roster roster;
    enum common_code code = reduce_roster_init(&roster, members, n, err);
    if (code != COMMON_OK)
        return code;
    struct seat *seats = calloc(n, sizeof *seats);
    uint32_t *taken = calloc(roster.n_hosts, sizeof *taken);
    if (!seats || !taken) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for %u members", n);
        goto out;
    }
    for (uint32_t r = 0; r < n; r++)
        seats[r] = (struct seat){roster.order[r], r, roster.hosts[r], 0, members[roster.order[r]].bandwidth};
    qsort(seats, n, sizeof *seats, by_speed);
    for (uint32_t i = 0; i < n; i++)
        seats[i].row = taken[seats[i].host]++ / roster.cores[seats[i].host];
    qsort(seats, n, sizeof *seats, by_row_then_speed);
    for (uint32_t i = 0; i < n; i++)
        order[i] = seats[i].member;

out:
    free(taken);
    free(seats);
    reduce_roster_fini(&roster);
    return code;
}

// Bytes per nanosecond of all together; 0: no memory.
static double compute_speed(const struct reduce_member *members, uint32_t n)
{
    struct reduce_roster roster;
    if (reduce_roster_init(&roster, members, n, NULL) != COMMON_OK)
        return 0;
    double speed = 0;
    for (uint32_t r = 0; r < n; r++) {
        uint32_t host = roster.hosts[r];
        double share = reduce_cost_share(roster.sizes[host], roster.cores[host]);
        speed += (double)members[roster.order[r]].bandwidth / 1e9 / share;
    }
    reduce_roster_fini(&roster);
    return speed;
}

struct width {
    uint32_t members;
    double tree;  // nanoseconds
    double speed; // bytes per nanosecond
};

#define WIDTHS_MAX 64 // 16, then 8 an octave to 64, then 2 an octave to 4096, and n

struct reduce_widths {
    uint32_t n;
    struct width at[WIDTHS_MAX];
};

static uint32_t next_width(uint32_t width, uint32_t n)
{
    uint32_t step = width < 16                   ? 1
                    : width < 64                 ? width / 8
                    : (width & (width - 1)) == 0 ? width / 2
                                                 : width / 3;
    return width + step < n || width == n ? width + step : n;
}

enum common_code reduce_widths_make(const struct reduce_member *members, uint32_t n,
                                    const struct reduce_cost *cost, struct reduce_widths **out,
                                    struct common_error *err)
{
    if (n == 0 || n > REDUCE_PLAN_MEMBERS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "a plan has 1 to %d members, not %u",
                                REDUCE_PLAN_MEMBERS_MAX, n);
    enum common_code code = COMMON_OK;
    uint32_t *order = calloc(n, sizeof *order);
    struct reduce_member *sorted = calloc(n, sizeof *sorted);
    struct reduce_widths *widths = calloc(1, sizeof *widths);
    if (!order || !sorted || !widths) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for %u members", n);
        goto out;
    }
    code = reduce_plan_fastest(members, n, order, err);
    if (code != COMMON_OK)
        goto out;
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = members[order[i]];

    double tree = 0, speed = 0;
    for (uint32_t width = 1; width <= n; width = next_width(width, n)) {
        struct reduce_plan *plan;
        code = reduce_plan_make(sorted, width, cost, &plan, err);
        if (code != COMMON_OK)
            goto out;
        double ns = plan->predicted_ns, computes = compute_speed(sorted, width);
        reduce_plan_free(plan);
        if (computes == 0) {
            code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for %u members", n);
            goto out;
        }
        tree = ns > tree ? ns : tree;
        speed = computes > speed ? computes : speed;
        widths->at[widths->n++] = (struct width){.members = width, .tree = tree, .speed = speed};
    }
    *out = widths;
    widths = NULL;

out:
    free(widths);
    free(sorted);
    free(order);
    return code;
}

uint32_t reduce_widths_best(const struct reduce_widths *widths, uint64_t kv_bytes)
{
    uint32_t best = 1;
    double best_ns = INFINITY;
    for (uint32_t i = 0; i < widths->n; i++) {
        double ns = widths->at[i].tree + (double)kv_bytes / widths->at[i].speed;
        if (ns < best_ns) {
            best_ns = ns;
            best = widths->at[i].members;
        }
    }
    return best;
}

void reduce_widths_free(struct reduce_widths *widths)
{
    free(widths);
}

uint32_t reduce_plan_width(const struct reduce_member *members, uint32_t n, const struct reduce_cost *cost,
                           uint64_t kv_bytes)
{
    struct reduce_widths *widths;
    if (reduce_widths_make(members, n, cost, &widths, NULL) != COMMON_OK)
        return n;
    uint32_t best = reduce_widths_best(widths, kv_bytes);
    reduce_widths_free(widths);
    return best;
}
