// SPDX-License-Identifier: Apache-2.0
// Workers that compute far slower than planned are flagged (pace.h judges), and counted with at the speed
// that was seen (coordinator_worker_speed): by placement, by who serves, by trees, from the next epoch on.
// What becomes of chunks that they have is decided above (place/spread.h, rebalance.h). In memory alone: a
// coordinator that starts again measures again.
#ifndef COORDINATOR_SLOW_H
#define COORDINATOR_SLOW_H

#include <stdint.h>

struct coordinator_cluster;
struct coordinator_worker;

// With each tick: twice in --slow-after it judges all that are ACTIVE. cluster.speeds rises when a verdict counts.
void coordinator_slow_tick(struct coordinator_cluster *cluster, uint64_t now_ns);
// Bytes a second at which it has computed of late; 0: not known.
uint64_t coordinator_worker_seen_speed(const struct coordinator_worker *w);

#endif
