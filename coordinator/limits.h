// SPDX-License-Identifier: Apache-2.0
// Every limit of the coordinator that calls can reach, and how near it is: for ClusterInfo and /metrics.
#ifndef COORDINATOR_LIMITS_H
#define COORDINATOR_LIMITS_H

#include <stdint.h>

#include "coordinator/core.h"
#include "proto/rpc.h"

struct coordinator;

struct coordinator_limit_use {
    const char *name; // a word, for programs and people
    const char *flag; // that raises it; "": none does
    uint64_t used, max, refused;
};

#define COORDINATOR_LIMIT_USES (PROTO_LIMIT_COUNT + COORDINATOR_LIMITS)

// Those of the serving end first, by enum proto_limit.
void coordinator_limits(const struct coordinator *c,
                        struct coordinator_limit_use out[COORDINATOR_LIMIT_USES]);

// What raises those of the serving end.
extern const char *const coordinator_limit_flags[PROTO_LIMIT_COUNT];

#endif
