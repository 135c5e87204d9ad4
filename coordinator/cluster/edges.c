// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/edges.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/worker.h"

#define SETTLED_NS (2 * COMMON_NS_PER_S)  // a parent may not have dialled a child that is new
#define RECENT_NS  (5 * COMMON_NS_PER_S)  // some heartbeats: it is so now
#define FORGET_NS  (60 * COMMON_NS_PER_S) // after the last report
#define TRIED_NS   (2 * COMMON_NS_PER_S)  // until a plan has dialled its edges, and a report is of these

static bool is(const struct coordinator_edge_end *end, const struct coordinator_worker *w)
{
    return end->slot == w->slot && end->life == w->life;
}

static bool over(const struct coordinator_cluster *cluster, const struct coordinator_edge *edge, uint64_t now)
{
    for (int i = 0; i < 2; i++) {
        const struct coordinator_worker *w = cluster->workers[edge->ends[i].slot];
        if (!w || w->life != edge->ends[i].life)
            return true;
    }
    return now - edge->reported_ns > FORGET_NS;
}

static void forget_old(struct coordinator_cluster *cluster, uint64_t now)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < cluster->n_edges; i++)
        if (!over(cluster, &cluster->edges[i], now))
            cluster->edges[kept++] = cluster->edges[i];
    cluster->n_edges = kept;
}

static bool settled(const struct coordinator_worker *w, uint64_t now)
{
    return coordinator_worker_active(w) && now - w->active_ns >= SETTLED_NS;
}

// Its own heartbeats are late: its process may be stopped, which missed beats decide, and no edge.
static bool is_late(const struct coordinator_worker *w, uint64_t now)
{
    const struct coordinator_core *core = w->cluster->core;
    uint64_t beat_ns = core->options.heartbeat_ns;
    return !coordinator_presence_patience(&core->presence, w->last_beat_ns, beat_ns + beat_ns / 2, now);
}

static void report(struct coordinator_worker *from, const struct coordinator_worker *to, uint64_t now)
{
    struct coordinator_cluster *cluster = from->cluster;
    uint32_t at = 0;
    while (at < cluster->n_edges &&
           !(is(&cluster->edges[at].ends[0], from) && is(&cluster->edges[at].ends[1], to)))
        at++;
    if (at == COORDINATOR_EDGES_MAX)
        return; // so many are no fault of an edge
    bool known = at < cluster->n_edges;
    cluster->n_edges += !known;
    cluster->edges[at] = (struct coordinator_edge){.ends = {{from->slot, from->life}, {to->slot, to->life}},
                                                   .reported_ns = now};
    // Where no tree avoids all edges, a plan was made with one that was known. It has been tried by now: the next plan has another
    // one of them.
    coordinator_plans_edge_down(cluster, from, to, known ? now - TRIED_NS : now);
    if (known)
        return;
    coordinator_worker_tell(from, WORKER_EDGE, WARN,
                            "a worker cannot reach another: plans avoid this edge from=%s to=%s edge=%s",
                            from->name, to->name, to->edge_endpoint);
}

void coordinator_edges_report(struct coordinator_worker *from, char *const *endpoints, size_t n)
{
    const struct coordinator_cluster *cluster = from->cluster;
    uint64_t now = common_clock_ns();
    if (!n || !settled(from, now))
        return;
    forget_old(from->cluster, now);
    for (size_t e = 0; e < n; e++)
        for (uint32_t i = 0; i < cluster->n_workers; i++) {
            const struct coordinator_worker *to = cluster->workers[i];
            if (to && to != from && settled(to, now) && !is_late(to, now) &&
                strcmp(to->edge_endpoint, endpoints[e]) == 0)
                report(from, to, now);
        }
}

uint32_t coordinator_edges_names(const struct coordinator_cluster *cluster,
                                 char texts[COORDINATOR_EDGES_MAX][COORDINATOR_EDGE_TEXT])
{
    uint64_t now = common_clock_ns();
    uint32_t n = 0;
    for (uint32_t i = 0; i < cluster->n_edges; i++) {
        const struct coordinator_edge *edge = &cluster->edges[i];
        const struct coordinator_worker *from = cluster->workers[edge->ends[0].slot],
                                        *to = cluster->workers[edge->ends[1].slot];
        if (from && to && is(&edge->ends[0], from) && is(&edge->ends[1], to) &&
            now - edge->reported_ns <= RECENT_NS)
            snprintf(texts[n++], COORDINATOR_EDGE_TEXT, "%s %s", from->name, to->name);
    }
    return n;
}

bool coordinator_edges_cut(const struct coordinator_plan *plan, const struct coordinator_worker *child)
{
    const struct coordinator_cluster *cluster = plan->cluster;
    uint32_t rank = coordinator_plan_rank(plan, child);
    if (plan->state == COORDINATOR_PLAN_RETIRED || rank == 0 || rank == UINT32_MAX)
        return false;
    const struct coordinator_worker *parent = plan->workers[plan->tree->nodes[rank].parent];
    for (uint32_t i = 0; i < cluster->n_edges; i++) {
        const struct coordinator_edge *edge = &cluster->edges[i];
        if (is(&edge->ends[0], parent) && is(&edge->ends[1], child))
            return common_clock_ns() - edge->reported_ns <= FORGET_NS;
    }
    return false;
}

bool coordinator_edges_apart(const struct coordinator_cluster *cluster, const struct coordinator_worker *a,
                             const struct coordinator_worker *b)
{
    uint64_t now = cluster->n_edges ? common_clock_ns() : 0;
    for (uint32_t i = 0; i < cluster->n_edges; i++) {
        const struct coordinator_edge *edge = &cluster->edges[i];
        bool between = (is(&edge->ends[0], a) && is(&edge->ends[1], b)) ||
                       (is(&edge->ends[0], b) && is(&edge->ends[1], a));
        if (between && now - edge->reported_ns <= FORGET_NS)
            return true;
    }
    return false;
}

static uint32_t index_of(const struct coordinator_edge_end *end, struct coordinator_worker *const *workers,
                         uint32_t n)
{
    uint32_t i = 0;
    while (i < n && !is(end, workers[i]))
        i++;
    return i;
}

uint32_t coordinator_edges_between(const struct coordinator_cluster *cluster,
                                   struct coordinator_worker *const *workers, uint32_t n,
                                   struct reduce_avoid *avoid)
{
    uint64_t now = common_clock_ns(), reported[COORDINATOR_EDGES_MAX];
    uint32_t found = 0;
    for (uint32_t i = 0; i < cluster->n_edges; i++) {
        const struct coordinator_edge *edge = &cluster->edges[i];
        struct reduce_avoid pair = {index_of(&edge->ends[0], workers, n),
                                    index_of(&edge->ends[1], workers, n)};
        if (pair.from >= n || pair.to >= n || now - edge->reported_ns > FORGET_NS)
            continue;
        uint32_t at = found++;
        for (; at > 0 && reported[at - 1] < edge->reported_ns; at--) {
            reported[at] = reported[at - 1];
            avoid[at] = avoid[at - 1];
        }
        reported[at] = edge->reported_ns;
        avoid[at] = pair;
    }
    return found;
}
