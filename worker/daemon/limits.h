// SPDX-License-Identifier: Apache-2.0
// Every limit of a worker that calls can reach, and how near it is: for heartbeats. Loop thread.
#ifndef WORKER_LIMITS_H
#define WORKER_LIMITS_H

#include "proto/model/limits.h"
#include "proto/rpc/rpc.h"

struct worker;

// What raises those of both servers.
extern const char *const worker_limit_flags[PROTO_LIMIT_COUNT];

// Returns how many; those that cannot be reached, for want of an endpoint, are left out.
uint32_t worker_limits(const struct worker *worker, struct proto_limit_use out[PROTO_WORKER_LIMITS_MAX]);

#endif
