// SPDX-License-Identifier: Apache-2.0
// Every handler of the coordinator: clients' requests, and those of a worker that is none of the real ones
// (FUZZ_MEMBERS: only registration and heartbeats, and what makes the coordinator ask that worker).
#include "tests/fuzz/cluster.h"

#include "proto/banyan.pb-c.h"
#include "tests/sim/sim_cluster.h"

#define M(name) BANYAN__PB__METHOD__METHOD_##name

static const uint32_t of_clients[] = {M(SESSION_CREATE),
                                      M(ATTEND),
                                      M(SESSION_INFO),
                                      M(SESSION_FORK),
                                      M(SESSION_TRUNCATE),
                                      M(ATTACH_OPEN),
                                      M(ATTACH_COMMIT),
                                      M(READ_OPEN),
                                      M(SESSION_DELETE),
                                      M(SESSION_PLAN),
                                      M(SESSION_LIST),
                                      M(SESSION_WATCH),
                                      M(SESSION_STEP),
                                      M(QUARANTINE_LIST),
                                      M(QUARANTINE_DROP),
                                      M(WORKER_DRAIN),
                                      M(REBALANCE),
                                      M(WORKER_FORGET),
                                      M(BACKUP),
                                      M(BACKUP_READ),
                                      M(SCRUB),
                                      M(EVENTS),
                                      M(CLUSTER_INFO),
                                      M(SESSION_OPEN),
                                      M(SESSION_CLOSE),
                                      M(HEALTH_CHECK),
                                      M(TOKEN_CREATE),
                                      M(TOKEN_LIST),
                                      M(TOKEN_REVOKE),
                                      M(QUOTA_SET),
                                      M(QUOTA_SHOW),
                                      0};
static const uint32_t of_workers[] = {M(REGISTER), M(HEARTBEAT), M(WORKER_DRAIN), M(HEALTH_CHECK), 0};
static const struct fuzz_server servers[] = {{SIM_COORDINATOR, BANYAN__PB__ROLE__ROLE_CLIENT, of_clients},
                                             {SIM_COORDINATOR, BANYAN__PB__ROLE__ROLE_WORKER, of_workers},
                                             {SIM_COORDINATOR, BANYAN__PB__ROLE__ROLE_CLIENT,
                                              of_clients}, // another client
                                             {0}};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
#ifdef FUZZ_MEMBERS
    const struct fuzz_cluster_options options = {.servers = servers};
#else
    const struct fuzz_cluster_options options = {.workers = 2, .servers = servers};
#endif
    fuzz_cluster_run(&options, data, size);
    return 0;
}
