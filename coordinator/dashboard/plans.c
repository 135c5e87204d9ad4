// SPDX-License-Identifier: Apache-2.0
// The trees.
#include <inttypes.h>

#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/dashboard/ask.h"

static json_t *plan_json(const struct coordinator_plan *plan)
{
    static const char *const states[COORDINATOR_PLAN_STATES] = {[COORDINATOR_PLAN_INSTALLING] = "installing",
                                                                [COORDINATOR_PLAN_READY] = "ready",
                                                                [COORDINATOR_PLAN_RETIRED] = "retired"};
    return json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "id",
                     coordinator_dashboard_id(plan->id), "state", states[plan->state], "engine",
                     coordinator_dashboard_text(plan->engine), "root",
                     coordinator_dashboard_text(plan->n ? plan->workers[0]->name : ""), "members",
                     coordinator_dashboard_u64(plan->n), "sessions", coordinator_dashboard_u64(plan->refs),
                     "in_flight", coordinator_dashboard_u64(plan->in_flight), "digest",
                     coordinator_dashboard_id(plan->digest), "why", coordinator_dashboard_text(plan->why));
}

COORDINATOR_DASHBOARD_ASK(plans)
{
    (void)query, (void)id, (void)err;
    json_t *rows = json_array();
    for (const struct coordinator_plan *plan = d->c->cluster.plans; plan;
         plan = plan->next) // COORDINATOR_PLANS_MAX
        json_array_append_new(rows, plan_json(plan));
    *out = json_pack("{s:o}", "plans", rows);
    return COMMON_OK;
}

// Nodes by rank: [worker, host, parent's rank], the root's parent is -1.
COORDINATOR_DASHBOARD_ASK(plan)
{
    (void)query;
    const struct coordinator_plan *plan = d->c->cluster.plans;
    while (plan && plan->id != id)
        plan = plan->next;
    if (!plan)
        return common_error_set(err, COMMON_NOT_FOUND, "there is no plan %016" PRIx64, id);
    json_t *nodes = json_array();
    for (uint32_t r = 0; r < plan->n && plan->tree; r++)
        json_array_append_new(nodes,
                              json_pack("[o, o, i]", coordinator_dashboard_text(plan->workers[r]->name),
                                        coordinator_dashboard_text(plan->workers[r]->host),
                                        (int)plan->tree->nodes[r].parent));
    *out = plan_json(plan);
    json_object_set_new(*out, "nodes", nodes);
    return COMMON_OK;
}
