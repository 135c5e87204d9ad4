// SPDX-License-Identifier: Apache-2.0
#include "coordinator/limits.h"

#include <string.h>

#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/cluster/worker_limits.h"
#include "coordinator/events_service.h"
#include "coordinator/state.h"

const char *const coordinator_limit_flags[PROTO_LIMIT_COUNT] = {
    [PROTO_LIMIT_CLIENTS] = "--max-clients",
    [PROTO_LIMIT_NNG_CLIENTS] = "--max-clients",
    [PROTO_LIMIT_DAEMONS] = "--max-workers",
    [PROTO_LIMIT_REQUESTS] = "--max-requests",
    [PROTO_LIMIT_DAEMON_REQUESTS] = "--max-requests",
    [PROTO_LIMIT_BYTES] = "--max-bytes",
    [PROTO_LIMIT_DAEMON_BYTES] = "--max-bytes",
    [PROTO_LIMIT_CALLER_REQUESTS] = "--max-client-requests",
    [PROTO_LIMIT_CALLER_BYTES] = "--max-client-bytes",
    [PROTO_LIMIT_UNREAD] = "--max-bytes",
};

// The record of the limit with this name; a new one where there is room. Workers of one build tell theirs in one order,
// so `hint` finds it. NULL: there is no room.
static struct coordinator_limit_use *record_of(struct coordinator_limit_use *uses, uint32_t *n, uint32_t hint,
                                               const char *name)
{
    if (hint < *n && !strcmp(uses[hint].name, name))
        return &uses[hint];
    for (uint32_t i = 0; i < *n; i++)
        if (!strcmp(uses[i].name, name))
            return &uses[i];
    if (*n == PROTO_WORKER_LIMITS_MAX)
        return NULL;
    uses[*n] = (struct coordinator_limit_use){.name = name};
    return &uses[(*n)++];
}

static void add_worker(const struct coordinator_worker *w, struct coordinator_limit_use *uses, uint32_t *n)
{
    for (uint32_t i = 0; i < w->n_limits; i++) {
        const struct coordinator_worker_limit *limit = &w->limits[i];
        struct coordinator_limit_use *use = record_of(uses, n, i, limit->name);
        if (!use)
            continue;
        use->refused += limit->refused;
        if (use->max && (double)limit->used / (double)limit->max <= (double)use->used / (double)use->max)
            continue;
        use->flag = limit->flag;
        use->worker = w->name;
        use->used = limit->used;
        use->max = limit->max;
    }
}

uint32_t coordinator_limits(const struct coordinator *c,
                            struct coordinator_limit_use out[COORDINATOR_LIMIT_USES])
{
    const struct coordinator_options *options = &c->core.options;
    const struct coordinator_limit_use rooms[COORDINATOR_LIMITS] = {
        [COORDINATOR_LIMIT_WORKERS] = {"workers", "--max-workers", "", c->cluster.n_workers,
                                       options->max_workers, 0},
        [COORDINATOR_LIMIT_SESSIONS] = {"sessions", "--max-sessions", "", c->sessions.n,
                                        options->max_sessions, 0},
        [COORDINATOR_LIMIT_STEPS] = {"steps", "--max-steps", "", c->steps.items, options->max_steps, 0},
        [COORDINATOR_LIMIT_ANSWERS] = {"answer_bytes", "--max-bytes", "", c->steps.bytes, options->max_bytes,
                                       0},
        [COORDINATOR_LIMIT_PLANS] = {"plans", "", "", c->cluster.n_plans, COORDINATOR_PLANS_MAX, 0},
        [COORDINATOR_LIMIT_EVENT_READERS] = {"event_readers", "", "", coordinator_event_readers_waiting(c),
                                             COORDINATOR_EVENT_READERS_MAX, 0},
    };
    struct proto_limit_use uses[PROTO_LIMIT_COUNT];
    uint32_t n = 0;
    proto_server_limits(c->server, uses);
    for (int i = 0; i < PROTO_LIMIT_COUNT; i++)
        out[i] = (struct coordinator_limit_use){uses[i].name, uses[i].flag ? uses[i].flag : "",
                                                "",           uses[i].used,
                                                uses[i].max,  uses[i].refused};
    for (int i = 0; i < COORDINATOR_LIMITS; i++) {
        out[PROTO_LIMIT_COUNT + i] = rooms[i];
        out[PROTO_LIMIT_COUNT + i].refused = c->core.reached[i];
    }
    for (uint32_t i = 0; i < c->cluster.n_workers; i++)
        if (c->cluster.workers[i])
            add_worker(c->cluster.workers[i], out + COORDINATOR_OWN_LIMITS, &n);
    return COORDINATOR_OWN_LIMITS + n;
}
