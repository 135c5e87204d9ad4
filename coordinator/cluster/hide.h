// SPDX-License-Identifier: Apache-2.0
// Tenants do not see which workers a cluster has: texts for them without the workers' names.
#ifndef COORDINATOR_HIDE_H
#define COORDINATOR_HIDE_H

#include <stddef.h>

#include "proto/rights/access.h"
#include "proto/rpc/status.h"

struct coordinator_cluster;

// Whether the caller may see workers: operators and admins may.
static inline bool coordinator_shows_workers(const struct proto_identity *who)
{
    return who->access >= PROTO_ACCESS_OPERATOR;
}

// Puts "a worker" in the place of each name of one, as a word by itself; what does not fit in `bytes` any more is cut.
void coordinator_hide_workers(const struct coordinator_cluster *cluster, char *text, size_t bytes);

// The same in a failure, which then names none either.
void coordinator_hide_in_status(const struct coordinator_cluster *cluster, struct proto_status *status);

#endif
