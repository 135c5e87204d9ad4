// SPDX-License-Identifier: Apache-2.0
#include "coordinator/limits.h"

#include "coordinator/cluster/plan.h"
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

static const char *const names[PROTO_LIMIT_COUNT] = {
    [PROTO_LIMIT_STRANGERS] = "strangers",
    [PROTO_LIMIT_CLIENTS] = "clients",
    [PROTO_LIMIT_NNG_CLIENTS] = "nng_clients",
    [PROTO_LIMIT_DAEMONS] = "daemons",
    [PROTO_LIMIT_REQUESTS] = "requests",
    [PROTO_LIMIT_DAEMON_REQUESTS] = "daemon_requests",
    [PROTO_LIMIT_BYTES] = "request_bytes",
    [PROTO_LIMIT_DAEMON_BYTES] = "daemon_request_bytes",
    [PROTO_LIMIT_CALLER_REQUESTS] = "requests_of_a_client",
    [PROTO_LIMIT_CALLER_BYTES] = "bytes_of_a_client",
    [PROTO_LIMIT_UNREAD] = "unread_bytes",
};

void coordinator_limits(const struct coordinator *c, struct coordinator_limit_use out[COORDINATOR_LIMIT_USES])
{
    const struct coordinator_options *options = &c->core.options;
    const struct coordinator_limit_use rooms[COORDINATOR_LIMITS] = {
        [COORDINATOR_LIMIT_WORKERS] = {"workers", "--max-workers", c->cluster.n_workers, options->max_workers,
                                       0},
        [COORDINATOR_LIMIT_SESSIONS] = {"sessions", "--max-sessions", c->sessions.n, options->max_sessions,
                                        0},
        [COORDINATOR_LIMIT_STEPS] = {"steps", "--max-steps", c->steps.items, options->max_steps, 0},
        [COORDINATOR_LIMIT_ANSWERS] = {"answer_bytes", "--max-bytes", c->steps.bytes, options->max_bytes, 0},
        [COORDINATOR_LIMIT_PLANS] = {"plans", "", c->cluster.n_plans, COORDINATOR_PLANS_MAX, 0},
    };
    struct proto_limit_use uses[PROTO_LIMIT_COUNT];
    proto_server_limits(c->server, uses);
    for (int i = 0; i < PROTO_LIMIT_COUNT; i++)
        out[i] = (struct coordinator_limit_use){names[i], uses[i].flag ? uses[i].flag : "", uses[i].used,
                                                uses[i].max, uses[i].refused};
    for (int i = 0; i < COORDINATOR_LIMITS; i++) {
        out[PROTO_LIMIT_COUNT + i] = rooms[i];
        out[PROTO_LIMIT_COUNT + i].refused = c->core.reached[i];
    }
}
