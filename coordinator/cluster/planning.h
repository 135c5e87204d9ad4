// SPDX-License-Identifier: Apache-2.0
// Plans are found and made (plan.h): a tree over the members, which avoids edges that are down (edges.h), the
// engine that carries partials up (engine.h), and its installation at each member.
#ifndef COORDINATOR_PLANNING_H
#define COORDINATOR_PLANNING_H

#include "coordinator/cluster/plan.h"

// The plan over exactly these workers, all of them ACTIVE: an existing one or a new one, which is being
// installed. Takes a reference. NULL with the reason: too many plans, or no tree.
struct coordinator_plan *coordinator_plan_get(struct coordinator_cluster *cluster,
                                              struct coordinator_worker *const *workers, uint32_t n,
                                              struct proto_status *status);

void coordinator_plans_worker_changed(struct coordinator_worker *w);
void coordinator_plans_drain(struct coordinator_cluster *cluster);

#endif
