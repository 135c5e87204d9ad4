// SPDX-License-Identifier: Apache-2.0
// Every handler of a worker, by each peer that may call it: a client with tickets, another worker, and one
// that has proved that it is a coordinator. Sessions are made by the real one.
#include "tests/fuzz/cluster.h"

#include "proto/banyan.pb-c.h"
#include "tests/sim/sim_cluster.h"

#define M(name) BANYAN__PB__METHOD__METHOD_##name

static const uint32_t of_coordinators[] = {M(LAYOUT_SET), M(ROWS_PREPARE), M(ROWS_COMMIT),  M(ROWS_ABORT),
                                           M(STEP),       M(PLAN_INSTALL), M(PLAN_DROP),    M(SESSION_DROP),
                                           M(CHUNK_COPY), M(CHUNK_PULL),   M(CHUNK_SUM),    M(INVENTORY),
                                           M(MASS),       M(AUDIT),        M(HEALTH_CHECK), 0};
static const uint32_t of_workers[] = {M(STEP), M(CHUNK_READ), M(HEALTH_CHECK), 0};
static const uint32_t of_clients[] = {M(CHUNK_PUT), M(CHUNK_READ), M(HEALTH_CHECK), 0};
static const uint32_t of_sessions[] = {M(SESSION_CREATE), M(ATTACH_OPEN), M(READ_OPEN),
                                       M(ATTACH_COMMIT),  M(ATTEND),      0};
static const struct fuzz_server servers[] = {
    {"tcp://127.0.0.1:7101", BANYAN__PB__ROLE__ROLE_COORDINATOR, of_coordinators},
    {"tcp://127.0.0.1:7100", BANYAN__PB__ROLE__ROLE_CLIENT, of_clients},
    {SIM_COORDINATOR, BANYAN__PB__ROLE__ROLE_CLIENT, of_sessions},
    {"tcp://127.0.0.1:7101", BANYAN__PB__ROLE__ROLE_WORKER, of_workers},
    {0}};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct fuzz_cluster_options options = {.workers = 1, .store = true, .servers = servers};
    fuzz_cluster_run(&options, data, size);
    return 0;
}
