// SPDX-License-Identifier: Apache-2.0
// What the coordinator has for /metrics: how it stands and what it has done, its workers as it knows them, its steps'
// times, its limits. Labels are bounded: methods, codes, reasons, states, limits, workers (--max-workers); never sessions.
#ifndef COORDINATOR_METRICS_H
#define COORDINATOR_METRICS_H

#include "common/metrics.h"
#include "coordinator/coordinator.h"

bool coordinator_metrics_put(const struct coordinator *c, struct common_metrics *table); // false: no memory

#endif
