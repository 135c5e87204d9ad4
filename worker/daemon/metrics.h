// SPDX-License-Identifier: Apache-2.0
// What a worker has for /metrics. The coordinator shows what workers tell it as banyan_worker_*{worker}; a worker's own
// families have other names, so that no sum over all targets counts anything twice. Labels are bounded: methods, codes,
// reasons, limits.
#ifndef WORKER_METRICS_H
#define WORKER_METRICS_H

#include "common/metrics/metrics.h"

struct worker;

bool worker_metrics_put(const struct worker *worker, struct common_metrics *table); // false: no memory

#endif
