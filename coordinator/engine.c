// SPDX-License-Identifier: Apache-2.0
#include "coordinator/engine.h"

#include <string.h>

#include "common/log.h"
#include "coordinator/membership.h"
#include "coordinator/plans.h"

static bool of_group(const struct coordinator_worker *w, const char *group)
{
    return w && w->life && group[0] && strcmp(w->group, group) == 0;
}

bool coordinator_group_whole(const struct coordinator_worker *w)
{
    const struct coordinator *c = w->c;
    uint32_t active = 0;
    if (!w->group[0])
        return false;
    for (uint32_t i = 0; i < c->n_workers; i++) {
        const struct coordinator_worker *other = c->workers[i];
        if (!of_group(other, w->group))
            continue;
        if (other->engine_lost)
            return false;
        active += coordinator_worker_active(other);
    }
    return w->group_size == 0 || active == w->group_size;
}

const struct coordinator_worker *coordinator_engine_choose(struct coordinator_worker *const *workers,
                                                           uint32_t n)
{
    const struct coordinator_worker *first = workers[0];
    if (n < 2 || !first->group[0])
        return NULL; // one worker has nobody to merge with
    for (uint32_t i = 1; i < n; i++)
        if (strcmp(workers[i]->group, first->group) != 0 || strcmp(workers[i]->engine, first->engine) != 0)
            return NULL;
    return coordinator_group_whole(first) ? first : NULL;
}

bool coordinator_engine_fits(const struct coordinator_plan *plan)
{
    const struct coordinator_worker *of = coordinator_engine_choose(plan->workers, plan->n);
    return strcmp(plan->engine, of ? of->engine : COORDINATOR_ENGINE_STREAM) == 0 &&
           strcmp(plan->group, of ? of->group : "") == 0;
}

void coordinator_group_lose(struct coordinator *c, const char *group, const char *why)
{
    struct coordinator_worker *any = NULL;
    bool told = false;
    for (uint32_t i = 0; i < c->n_workers; i++) {
        struct coordinator_worker *w = c->workers[i];
        if (!of_group(w, group))
            continue;
        told |= w->engine_lost;
        w->engine_lost = true;
        any = w;
    }
    if (!any)
        return;
    if (!told)
        common_log_warn("a group's engine works no more, its plans go by stream: %s group=%s engine=%s", why,
                        group, any->engine);
    coordinator_plans_engine_changed(c, group);
}
