// SPDX-License-Identifier: Apache-2.0
// The limits that workers have, as their heartbeats say: for people (coordinator/limits.h).
#ifndef COORDINATOR_WORKER_LIMITS_H
#define COORDINATOR_WORKER_LIMITS_H

#include "proto/banyan.pb-c.h"

struct coordinator_worker;

struct coordinator_worker_limit {
    char name[65], flag[65];
    uint64_t used, max, refused; // max is not 0
};

// What a heartbeat says takes the place of what the last one said. What makes no sense is left out.
void coordinator_worker_set_limits(struct coordinator_worker *w, Banyan__Pb__Limit *const *limits, size_t n);

#endif
