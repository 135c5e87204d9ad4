// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/planning.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "common/log/log.h"
#include "coordinator/cluster/edges.h"
#include "coordinator/cluster/engine.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"

#define NO_TREE_NS (60 * COMMON_NS_PER_S) // between two lines of the log that no tree avoids all edges

// ---- installing and dropping --------------------------------------------------------------------

static void plan_refused(struct coordinator_plan *plan, enum common_code code, const char *text)
{
    common_log_warn("a plan could not be installed: %s plan=%016" PRIx64 " members=%u", text, plan->id,
                    plan->n);
    // A member that is there refuses the engine: it would do so again.
    for (uint32_t r = 0; r < plan->n && plan->group[0] && code == COMMON_FAILED_PRECONDITION; r++)
        if (strcmp(plan->workers[r]->group, plan->group) == 0)
            coordinator_engine_lose(plan->workers[r], text);
}

static void plan_installed(void *arg, enum common_code code, const char *text)
{
    struct coordinator_plan *plan = arg;
    if (plan->state == COORDINATOR_PLAN_INSTALLING && code == COMMON_OK) {
        coordinator_plan_set_state(plan, COORDINATOR_PLAN_READY);
        coordinator_plan_changed(plan);
    } else if (plan->state == COORDINATOR_PLAN_INSTALLING) {
        if (!plan->cluster->core->stopping)
            plan_refused(plan, code, text);
        coordinator_plan_retire(plan);
    }
    coordinator_plan_landed(plan);
}

static void plan_install(struct coordinator_plan *plan)
{
    Banyan__Pb__PlanMember *members = coordinator_alloc(plan->n * sizeof(*members));
    Banyan__Pb__PlanMember **pointers = coordinator_alloc(plan->n * sizeof(*pointers));
    for (uint32_t r = 0; r < plan->n; r++) {
        struct coordinator_worker *w = plan->workers[r];
        members[r] = (Banyan__Pb__PlanMember)BANYAN__PB__PLAN_MEMBER__INIT;
        members[r].rank = r;
        members[r].parent = plan->tree->nodes[r].parent;
        members[r].name = w->name;
        members[r].host = w->host;
        members[r].edge_endpoint = w->edge_endpoint;
        members[r].kernel = w->kernel;
        pointers[r] = &members[r];
    }
    plan->in_flight++;
    struct coordinator_gather *gather =
        coordinator_gather_new(&plan->cluster->core->turn, plan_installed, plan);
    for (uint32_t r = 0; r < plan->n; r++) {
        Banyan__Pb__PlanInstallRequest m = BANYAN__PB__PLAN_INSTALL_REQUEST__INIT;
        m.term = plan->cluster->core->term;
        m.plan = plan->id;
        m.epoch = plan->epoch;
        m.self_rank = r;
        m.engine = plan->engine;
        m.n_members = plan->n;
        m.members = pointers;
        m.digest = plan->digest;
        coordinator_worker_call_gather(plan->workers[r], BANYAN__PB__METHOD__METHOD_PLAN_INSTALL, &m.base,
                                       gather);
    }
    coordinator_gather_seal(gather);
    free(members);
    free(pointers);
}

static void plan_dropped(void *arg, const struct proto_reply *reply)
{
    (void)arg,
        (void)reply; // a worker that is gone has no plans, one that forgets to drop it loses a little memory
}

static void send_drops(const struct coordinator_plan *plan)
{
    for (uint32_t r = 0; r < plan->n && !plan->cluster->core->stopping; r++) {
        if (!plan->workers[r]->channel)
            continue; // a new process has no plans; one that comes back drops those of an earlier term
        Banyan__Pb__PlanDropRequest m = BANYAN__PB__PLAN_DROP_REQUEST__INIT;
        m.term = plan->cluster->core->term;
        m.plan = plan->id;
        coordinator_worker_call(plan->workers[r], BANYAN__PB__METHOD__METHOD_PLAN_DROP, &m.base, plan_dropped,
                                NULL);
    }
}

static void plan_settle(struct coordinator_plan *plan)
{
    if (!plan->told && plan->state == COORDINATOR_PLAN_INSTALLING)
        plan_install(plan);
    else if (!plan->told && plan->state == COORDINATOR_PLAN_RETIRED)
        send_drops(plan);
    plan->told = true;
    if (plan->state == COORDINATOR_PLAN_RETIRED && !plan->refs && !plan->in_flight && !plan->queue &&
        common_list_empty(&plan->changed))
        coordinator_plan_free(plan);
}

void coordinator_plans_drain(struct coordinator_cluster *cluster)
{
    while (!common_list_empty(&cluster->plans_dirty)) {
        struct coordinator_plan *plan =
            common_list_entry(cluster->plans_dirty.next, struct coordinator_plan, dirty);
        common_list_remove(&plan->dirty);
        plan_settle(plan);
    }
}

void coordinator_plans_worker_changed(struct coordinator_worker *w)
{
    coordinator_plans_engine_changed(w->cluster, w->group);
    if (coordinator_worker_active(w))
        return; // plans without it stay as they are; sessions ask for new ones
    for (struct coordinator_plan *plan = w->cluster->plans; plan; plan = plan->next)
        if (plan->state != COORDINATOR_PLAN_RETIRED && coordinator_plan_rank(plan, w) != UINT32_MAX)
            coordinator_plan_retire(plan);
}

// ---- finding and making -------------------------------------------------------------------------

static bool same_members(const struct coordinator_plan *plan, struct coordinator_worker *const *workers,
                         uint32_t n)
{
    if (plan->n != n || plan->state == COORDINATOR_PLAN_RETIRED)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (coordinator_plan_rank(plan, workers[i]) == UINT32_MAX)
            return false;
    return true;
}

// Engine, digest and what both are called.
static void take_engine(struct coordinator_plan *plan)
{
    const struct coordinator_worker *of = coordinator_engine_choose(plan->workers, plan->n);
    plan->digest = plan->tree->digest;
    snprintf(plan->engine, sizeof(plan->engine), "%s", of ? of->engine : COORDINATOR_ENGINE_STREAM);
    if (!of) {
        snprintf(plan->why, sizeof(plan->why), "%s", plan->tree->why);
        return;
    }
    char text[64];
    int len = snprintf(text, sizeof(text), "%s/%s", of->engine, of->algorithm);
    plan->digest = common_mix64(plan->digest ^ common_xxh3(text, (size_t)len, 0));
    snprintf(plan->group, sizeof(plan->group), "%s", of->group);
    snprintf(plan->why, sizeof(plan->why), "%s; %s by %s in its group of %u", plan->tree->why, of->algorithm,
             of->engine, of->group_size);
}

// Plans are then remade every few seconds.
static void log_no_tree(struct coordinator_cluster *cluster, uint32_t workers, uint32_t edges)
{
    uint64_t now = common_clock_ns();
    if (cluster->no_tree_ns && now - cluster->no_tree_ns < NO_TREE_NS)
        return;
    cluster->no_tree_ns = now;
    common_log_warn("no tree over %u workers avoids the %u edges that are down", workers, edges);
}

// Where no tree avoids them all, those that were reported longest ago are used: they may be back. Where that is not so the
// plan's steps fail with the edge's name.
static enum common_code avoid_edges(struct coordinator_cluster *cluster,
                                    struct coordinator_worker *const *workers, uint32_t n,
                                    struct coordinator_plan *plan)
{
    struct reduce_avoid avoid[COORDINATOR_EDGES_MAX];
    uint32_t left = 0, found = coordinator_edges_between(cluster, workers, n, avoid);
    enum common_code code = COMMON_OK;
    for (uint32_t most = found; most > 0 && code == COMMON_OK; most--) {
        code = reduce_plan_avoid(plan->tree, plan->members, avoid, most, &left);
        if (most == found && left)
            log_no_tree(cluster, n, found);
        if (!left)
            break;
    }
    return code;
}

static struct coordinator_plan *plan_make(struct coordinator_cluster *cluster,
                                          struct coordinator_worker *const *workers, uint32_t n,
                                          struct proto_status *status)
{
    struct coordinator_plan *plan = coordinator_alloc(sizeof(*plan));
    struct common_error err = {0};
    struct reduce_cost cost;
    plan->members = coordinator_alloc(n * sizeof(*plan->members));
    for (uint32_t i = 0; i < n; i++)
        coordinator_worker_member(workers[i], &plan->members[i]);
    // Plans are shared by sessions of any shape, so the shape that the tree is made for is a fixed one: a
    // 70B-class layer, one row.
    reduce_cost_default(&cost, 32, 128, 128, 1);
    enum common_code code = reduce_plan_make(plan->members, n, &cost, &plan->tree, &err);
    if (code == COMMON_OK)
        code = avoid_edges(cluster, workers, n, plan);
    if (code != COMMON_OK) {
        proto_status_set(status, code, "", "no tree could be built: %s", err.message);
        reduce_plan_free(plan->tree);
        free(plan->members);
        free(plan);
        return NULL;
    }
    plan->cluster = cluster;
    common_list_init(&plan->dirty);
    common_list_init(&plan->changed);
    plan->n = n;
    plan->made_ns = common_clock_ns();
    plan->epoch = ++cluster->plans_made;
    plan->id = (cluster->core->term & 0xffffff) << 40 | plan->epoch;
    plan->workers = coordinator_alloc(n * sizeof(*plan->workers));
    for (uint32_t r = 0; r < n; r++)
        plan->workers[r] = workers[plan->tree->nodes[r].member];
    take_engine(plan);
    plan->next = cluster->plans;
    cluster->plans = plan;
    cluster->n_plans++;
    return plan;
}

struct coordinator_plan *coordinator_plan_get(struct coordinator_cluster *cluster,
                                              struct coordinator_worker *const *workers, uint32_t n,
                                              struct proto_status *status)
{
    struct coordinator_plan *plan = cluster->plans;
    while (plan && !same_members(plan, workers, n))
        plan = plan->next;
    if (!plan && cluster->n_plans >= COORDINATOR_PLANS_MAX) {
        cluster->core->reached[COORDINATOR_LIMIT_PLANS]++;
        proto_status_set(status, COMMON_RESOURCE_EXHAUSTED, "LIMIT",
                         "the limit of %u plans is reached: try again when one is no longer used",
                         cluster->n_plans);
        return NULL;
    }
    if (!plan) {
        plan = plan_make(cluster, workers, n, status);
        if (plan)
            coordinator_plan_mark(plan);
    }
    if (plan)
        plan->refs++;
    return plan;
}
