// SPDX-License-Identifier: Apache-2.0
// What every daemon says of itself in /metrics: banyan_build_info, and of its process what Prometheus' own
// clients say, under the same names: process_cpu_seconds_total, process_resident_memory_bytes,
// process_virtual_memory_bytes, process_open_fds, process_max_fds, process_start_time_seconds. From /proc:
// what cannot be read is left out.
#ifndef COMMON_PROCESS_H
#define COMMON_PROCESS_H

#include <stdbool.h>

#include "common/metrics/metrics.h"

bool common_process_put(struct common_metrics *table); // false: no memory

#endif
