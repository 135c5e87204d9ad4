// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/limits.h"

#include "worker/core/state.h"
#include "worker/session/session.h"
#include "worker/store/cold.h"
#include "worker/store/store.h"

// What raises the limits of both servers; the others are fixed.
const char *const worker_limit_flags[PROTO_LIMIT_COUNT] = {
    [PROTO_LIMIT_CLIENTS] = "the worker's --max-clients",
    [PROTO_LIMIT_NNG_CLIENTS] = "the worker's --max-clients",
    [PROTO_LIMIT_BYTES] = "the worker's --memory",
    [PROTO_LIMIT_DAEMON_BYTES] = "the worker's --memory",
    [PROTO_LIMIT_CALLER_BYTES] = "the worker's --memory",
    [PROTO_LIMIT_UNREAD] = "the worker's --memory",
};

// What both servers have together, or the one that it is for: clients speak to the public one, daemons to the other.
static struct proto_limit_use of_servers(const struct proto_limit_use *clients,
                                         const struct proto_limit_use *daemons)
{
    struct proto_limit_use use = clients->max ? *clients : *daemons;
    if (clients->max && daemons->max) { // the nearer one
        if ((double)daemons->used / (double)daemons->max > (double)clients->used / (double)clients->max)
            use = *daemons;
        use.refused = clients->refused + daemons->refused;
    }
    return use;
}

uint32_t worker_limits(const struct worker *worker, struct proto_limit_use out[PROTO_WORKER_LIMITS_MAX])
{
    static const char memory[] = "the worker's --memory";
    const struct proto_limit_use own[] = {
        {"kv_bytes", memory, worker_store_total(worker->store), worker_store_capacity(worker->store),
         worker_store_refused(worker->store)},
        {"flight_bytes", memory, worker->flight_bytes, worker->flight_limit, worker->flight_refused},
        {"steps", NULL, worker->n_steps, WORKER_STEPS_MAX, worker->steps_refused},
    };
    enum { OWN = sizeof own / sizeof *own };
    _Static_assert(PROTO_LIMIT_COUNT + OWN <= PROTO_WORKER_LIMITS_MAX, "a heartbeat has room for all");
    struct proto_limit_use clients[PROTO_LIMIT_COUNT], daemons[PROTO_LIMIT_COUNT];
    uint32_t n = 0;
    proto_server_limits(worker->public_server, clients);
    proto_server_limits(worker->edge_server, daemons);
    for (int i = 0; i < PROTO_LIMIT_COUNT; i++) {
        struct proto_limit_use use = of_servers(&clients[i], &daemons[i]);
        if (use.max)
            out[n++] = use;
    }
    for (int i = 0; i < OWN; i++)
        out[n++] = own[i];
    return n;
}
