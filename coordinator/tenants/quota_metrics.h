// SPDX-License-Identifier: Apache-2.0
// What tenants have of their quotas, for /metrics.
#ifndef COORDINATOR_QUOTA_METRICS_H
#define COORDINATOR_QUOTA_METRICS_H

#include <stdbool.h>

#include "coordinator/tenants/quota.h"

#define COORDINATOR_QUOTA_LABELS                                                                             \
    64 // tenants that have a label of their own, the first ones; the rest is "other"

struct common_metrics;

// To whom: operators and admins are told of all tenants, others of their own, access NONE of none. False: out
// of memory.
bool coordinator_quota_metrics_put(const struct coordinator_quotas *quotas, const struct proto_identity *who,
                                   struct common_metrics *table);

#endif
