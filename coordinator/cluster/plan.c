// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/plan.h"

#include <assert.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "coordinator/cluster/worker.h"

#define IDLE_NS (10 * COMMON_NS_PER_S) // a plan that no session uses is kept this long

#define TO(state) (1u << COORDINATOR_PLAN_##state)
const struct common_machine coordinator_plan_machine = {
    .name = "plan",
    .n = COORDINATOR_PLAN_STATES,
    .states = {"installing", "ready", "retired"},
    .next =
        {
            [COORDINATOR_PLAN_INSTALLING] = TO(READY) | TO(RETIRED),
            [COORDINATOR_PLAN_READY] = TO(RETIRED),
            [COORDINATOR_PLAN_RETIRED] = 0,
        },
};

void coordinator_plan_set_state(struct coordinator_plan *plan, enum coordinator_plan_state state)
{
    common_machine_move(&coordinator_plan_machine, plan->state, state);
    plan->state = state;
}

void coordinator_plan_free(struct coordinator_plan *plan)
{
    struct coordinator_plan **at = &plan->cluster->plans;
    while (*at != plan)
        at = &(*at)->next;
    *at = plan->next;
    plan->cluster->n_plans--;
    common_list_remove(&plan->dirty);
    common_list_remove(&plan->changed);
    reduce_plan_free(plan->tree);
    free(plan->workers);
    free(plan->members);
    free(plan);
}

uint32_t coordinator_plan_rank(const struct coordinator_plan *plan, const struct coordinator_worker *w)
{
    for (uint32_t r = 0; r < plan->n; r++)
        if (plan->workers[r] == w)
            return r;
    return UINT32_MAX;
}

// Its members are to be told, or it may be freed: looked at in the phase of plans.
void coordinator_plan_mark(struct coordinator_plan *plan)
{
    if (common_list_empty(&plan->dirty))
        common_list_push(&plan->cluster->plans_dirty, &plan->dirty);
    coordinator_turn_mark(&plan->cluster->core->turn, COORDINATOR_PHASE_PLANS);
}

// READY or RETIRED: whoever has work for it finds out in the phase of steps.
void coordinator_plan_changed(struct coordinator_plan *plan)
{
    if (common_list_empty(&plan->changed))
        common_list_push(&plan->cluster->plans_changed, &plan->changed);
    coordinator_turn_mark(&plan->cluster->core->turn, COORDINATOR_PHASE_STEPS);
    coordinator_plan_mark(plan);
}

struct coordinator_plan *coordinator_plans_take_changed(struct coordinator_cluster *cluster)
{
    if (common_list_empty(&cluster->plans_changed))
        return NULL;
    struct coordinator_plan *plan =
        common_list_entry(cluster->plans_changed.next, struct coordinator_plan, changed);
    common_list_remove(&plan->changed);
    coordinator_plan_mark(plan);
    return plan;
}

void coordinator_plan_release(struct coordinator_plan *plan)
{
    assert(plan->refs > 0);
    plan->refs--;
    plan->idle_since_ns = common_clock_ns();
    if (plan->state == COORDINATOR_PLAN_RETIRED)
        coordinator_plan_mark(plan);
}

void coordinator_plan_landed(struct coordinator_plan *plan)
{
    assert(plan->in_flight > 0);
    plan->in_flight--;
    if (plan->state == COORDINATOR_PLAN_RETIRED)
        coordinator_plan_mark(plan);
}

void coordinator_plan_queue_gone(struct coordinator_plan *plan)
{
    plan->queue = NULL;
    coordinator_plan_mark(plan);
}

// ---- retiring -----------------------------------------------------------------------------------

void coordinator_plan_retire(struct coordinator_plan *plan)
{
    if (plan->state == COORDINATOR_PLAN_RETIRED)
        return;
    coordinator_plan_set_state(plan, COORDINATOR_PLAN_RETIRED);
    plan->told = false;
    coordinator_plan_changed(plan);
}

void coordinator_plans_edge_down(struct coordinator_cluster *cluster, const struct coordinator_worker *from,
                                 const struct coordinator_worker *to, uint64_t until_ns)
{
    for (struct coordinator_plan *plan = cluster->plans; plan; plan = plan->next) {
        uint32_t child = coordinator_plan_rank(plan, to), parent = coordinator_plan_rank(plan, from);
        if (plan->made_ns <= until_ns && child != UINT32_MAX && parent != UINT32_MAX &&
            plan->tree->nodes[child].parent == (int32_t)parent)
            coordinator_plan_retire(plan);
    }
}

void coordinator_plans_worker_slow(const struct coordinator_worker *w)
{
    for (struct coordinator_plan *plan = w->cluster->plans; plan; plan = plan->next)
        if (plan->n > 1 && coordinator_plan_rank(plan, w) != UINT32_MAX)
            coordinator_plan_retire(plan);
}

void coordinator_plans_term_raised(struct coordinator_cluster *cluster)
{
    for (struct coordinator_plan *plan = cluster->plans; plan; plan = plan->next)
        coordinator_plan_retire(plan);
}

void coordinator_plans_tick(struct coordinator_cluster *cluster, uint64_t now_ns)
{
    for (struct coordinator_plan *plan = cluster->plans; plan; plan = plan->next)
        if (!plan->refs && plan->state == COORDINATOR_PLAN_READY && !plan->in_flight &&
            now_ns > plan->idle_since_ns && now_ns - plan->idle_since_ns > IDLE_NS)
            coordinator_plan_retire(plan);
}

void coordinator_plans_free(struct coordinator_cluster *cluster)
{
    while (cluster->plans)
        coordinator_plan_free(cluster->plans);
}
