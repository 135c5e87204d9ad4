// SPDX-License-Identifier: Apache-2.0
#include "coordinator/health.h"

#include "coordinator/cluster/worker.h"
#include "coordinator/store/store.h"

static const char *shutdown_fails(void *arg)
{
    const struct coordinator *c = arg;
    return c->core.stopping ? "stopping" : NULL;
}

static const char *store_fails(void *arg)
{
    const struct coordinator *c = arg;
    return c->store ? NULL : "the store is not open";
}

// Sessions are served as they are, and what must be durable is refused: no other coordinator would do better.
static const char *store_warns(void *arg)
{
    const struct coordinator *c = arg;
    return c->store ? coordinator_store_trouble(c->store) : NULL;
}

static const char *workers_fail(void *arg)
{
    const struct coordinator *c = arg;
    for (uint32_t i = 0; i < c->cluster.n_workers; i++)
        if (c->cluster.workers[i] && coordinator_worker_active(c->cluster.workers[i]))
            return NULL;
    return "no worker is active: 'banyanctl workers' lists them";
}

static const struct common_health_check live_checks[] = {{.name = "shutdown", .fails = shutdown_fails}, {0}};
static const struct common_health_check ready_checks[] = {
    {.name = "shutdown", .fails = shutdown_fails},
    {.name = "store", .fails = store_fails},
    {.name = "writes", .fails = store_warns, .warns = true},
    {.name = "workers", .fails = workers_fail},
    {0},
};

const struct common_health_check *const coordinator_health_live = live_checks;
const struct common_health_check *const coordinator_health_ready = ready_checks;

const char *coordinator_health_readiness(const struct coordinator *c)
{
    const char *why = NULL;
    for (const struct common_health_check *check = ready_checks; check->name && !why; check++)
        why = check->warns ? NULL : check->fails((void *)c);
    return why ? why : "ready";
}

bool coordinator_health_is_ready(const struct coordinator *c)
{
    char text[COMMON_HEALTH_TEXT];
    return common_health_run(ready_checks, (void *)c, false, NULL, text);
}
