// SPDX-License-Identifier: Apache-2.0
// Every limit of the coordinator that calls can reach, and how near it is: for ClusterInfo and /metrics.
#ifndef COORDINATOR_LIMITS_H
#define COORDINATOR_LIMITS_H

#include <stdint.h>

#include "coordinator/core.h"
#include "proto/model/limits.h"
#include "proto/rpc/rpc.h"

struct coordinator;

struct coordinator_limit_use {
    const char *name; // a word, for programs and people
    const char *flag; // that raises it; "": none does
    const char
        *worker; // of a limit that each worker has: the one that is nearest to it; "": the coordinator's own
    uint64_t used, max, refused;
};

#define COORDINATOR_OWN_LIMITS (PROTO_LIMIT_COUNT + COORDINATOR_LIMITS)
#define COORDINATOR_LIMIT_USES (COORDINATOR_OWN_LIMITS + PROTO_WORKER_LIMITS_MAX)

// Those of the serving end first, by enum proto_limit; those of workers last. Returns how many. Strings are those of the
// workers' records: until the end of the turn.
uint32_t coordinator_limits(const struct coordinator *c,
                            struct coordinator_limit_use out[COORDINATOR_LIMIT_USES]);

// What raises those of the serving end.
extern const char *const coordinator_limit_flags[PROTO_LIMIT_COUNT];

#endif
