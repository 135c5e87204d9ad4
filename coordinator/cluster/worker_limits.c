// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/worker_limits.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/cluster/worker.h"
#include "coordinator/core.h"
#include "proto/model/limits.h"

static bool is_plain(const char *text, size_t max)
{
    for (size_t i = 0; text[i]; i++)
        if (i == max || text[i] < ' ' || text[i] > '~')
            return false;
    return true;
}

void coordinator_worker_set_limits(struct coordinator_worker *w, Banyan__Pb__Limit *const *limits, size_t n)
{
    if (n && !w->limits)
        w->limits = coordinator_alloc(PROTO_WORKER_LIMITS_MAX * sizeof(*w->limits));
    w->n_limits = 0;
    for (size_t i = 0; i < n && w->n_limits < PROTO_WORKER_LIMITS_MAX; i++) {
        struct coordinator_worker_limit *limit = &w->limits[w->n_limits];
        if (!limits[i]->name[0] || !limits[i]->max || !is_plain(limits[i]->name, sizeof(limit->name) - 1) ||
            !is_plain(limits[i]->flag, sizeof(limit->flag) - 1))
            continue;
        strcpy(limit->name, limits[i]->name);
        strcpy(limit->flag, limits[i]->flag);
        limit->used = limits[i]->used;
        limit->max = limits[i]->max;
        limit->refused = limits[i]->refused;
        w->n_limits++;
    }
}
