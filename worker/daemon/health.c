// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/health.h"

#include <stddef.h>

#include "worker/core/membership.h"
#include "worker/core/state.h"

static const char *shutdown_fails(void *arg)
{
    const struct worker *worker = arg;
    return worker->draining ? "leaving" : NULL;
}

static const char *coordinator_fails(void *arg)
{
    const struct worker *worker = arg;
    return worker_membership_lacks(worker->membership);
}

static const struct common_health_check live_checks[] = {{.name = "shutdown", .fails = shutdown_fails}, {0}};
static const struct common_health_check ready_checks[] = {{.name = "shutdown", .fails = shutdown_fails},
                                                          {.name = "coordinator", .fails = coordinator_fails},
                                                          {0}};

const struct common_health_check *const worker_health_live = live_checks;
const struct common_health_check *const worker_health_ready = ready_checks;

bool worker_health_is_ready(const struct worker *worker)
{
    char text[COMMON_HEALTH_TEXT];
    return common_health_run(ready_checks, (void *)worker, false, NULL, text);
}
