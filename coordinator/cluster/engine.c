// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/engine.h"

#include <string.h>

#include "common/log/log.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/worker.h"

static bool of_group(const struct coordinator_worker *w, const char *group)
{
    return w && w->life && group[0] && strcmp(w->group, group) == 0;
}

bool coordinator_group_whole(const struct coordinator_worker *w)
{
    const struct coordinator_cluster *cluster = w->cluster;
    uint32_t active = 0;
    if (!w->group[0])
        return false;
    if (w->group_size == 0)
        return !w->engine_lost; // any of its workers may make a plan
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        const struct coordinator_worker *other = cluster->workers[i];
        if (!of_group(other, w->group))
            continue;
        if (other->engine_lost)
            return false;
        active += coordinator_worker_active(other);
    }
    return active == w->group_size;
}

const struct coordinator_worker *coordinator_engine_choose(struct coordinator_worker *const *workers,
                                                           uint32_t n)
{
    const struct coordinator_worker *first = workers[0];
    if (n < 2 || !first->group[0])
        return NULL; // one worker has none to merge with
    for (uint32_t i = 1; i < n; i++)
        if (strcmp(workers[i]->group, first->group) != 0 || strcmp(workers[i]->engine, first->engine) != 0 ||
            (first->group_size == 0 && workers[i]->engine_lost))
            return NULL;
    return coordinator_group_whole(first) ? first : NULL;
}

bool coordinator_engine_fits(const struct coordinator_plan *plan)
{
    const struct coordinator_worker *of = coordinator_engine_choose(plan->workers, plan->n);
    return strcmp(plan->engine, of ? of->engine : COORDINATOR_ENGINE_STREAM) == 0 &&
           strcmp(plan->group, of ? of->group : "") == 0;
}

// Whether a plan has to do with a group: uses it, or could.
static bool concerns(const struct coordinator_plan *plan, const char *group)
{
    return strcmp(plan->group, group) == 0 || strcmp(plan->workers[0]->group, group) == 0;
}

void coordinator_plans_engine_changed(struct coordinator_cluster *cluster, const char *group)
{
    for (struct coordinator_plan *plan = group[0] ? cluster->plans : NULL; plan; plan = plan->next)
        if (plan->state != COORDINATOR_PLAN_RETIRED && concerns(plan, group) &&
            !coordinator_engine_fits(plan))
            coordinator_plan_retire(plan);
}

void coordinator_engine_lose(struct coordinator_worker *w, const char *why)
{
    struct coordinator_cluster *cluster = w->cluster;
    char group[sizeof(w->group)];
    if (w->engine_lost || !w->group[0])
        return;
    memcpy(group, w->group, sizeof(group)); // the worker may be forgotten below
    w->engine_lost = true;
    for (uint32_t i = 0; w->group_size > 0 && i < cluster->n_workers; i++)
        if (of_group(cluster->workers[i], group))
            cluster->workers[i]->engine_lost = true;
    coordinator_worker_tell(w, WORKER_ENGINE, WARN,
                            "an engine has failed; its plans use stream: %s worker=%s group=%s engine=%s",
                            why, w->name, group, w->engine);
    coordinator_plans_engine_changed(cluster, group);
}
