// SPDX-License-Identifier: Apache-2.0
// What the coordinator has for /metrics: how it stands and what it has done, its workers as it sees them, its
// steps' times, its limits. Labels are bounded: methods, codes, reasons, states, limits, workers
// (--max-workers); never sessions.
#ifndef COORDINATOR_METRICS_H
#define COORDINATOR_METRICS_H

#include "common/metrics/metrics.h"
#include "proto/rights/access.h"

struct coordinator;

// What has a tenant's name is shown only to those who may see it: operators and admins see all, others their
// own tenant's, and access NONE sees none. False: no memory.
bool coordinator_metrics_put(const struct coordinator *c, const struct proto_identity *who,
                             struct common_metrics *table);

#endif
