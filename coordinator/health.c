// SPDX-License-Identifier: Apache-2.0
#include "coordinator/health.h"

#include "coordinator/cluster/worker.h"

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

static const char *workers_fail(void *arg)
{
    const struct coordinator *c = arg;
    for (uint32_t i = 0; i < c->cluster.n_workers; i++)
        if (c->cluster.workers[i] && coordinator_worker_active(c->cluster.workers[i]))
            return NULL;
    return "no worker is active: 'banyanctl workers' lists them";
}

static const struct common_health_check live_checks[] = {{"shutdown", shutdown_fails}, {NULL, NULL}};
static const struct common_health_check ready_checks[] = {
    {"shutdown", shutdown_fails}, {"store", store_fails}, {"workers", workers_fail}, {NULL, NULL}};

const struct common_health_check *const coordinator_health_live = live_checks;
const struct common_health_check *const coordinator_health_ready = ready_checks;

bool coordinator_health_is_ready(const struct coordinator *c)
{
    char text[COMMON_HEALTH_TEXT];
    return common_health_run(ready_checks, (void *)c, false, NULL, text);
}
