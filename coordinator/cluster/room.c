// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/room.h"

#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/planning.h"

static void drain_plans(void *arg)
{
    coordinator_plans_drain(arg);
}

void coordinator_cluster_init(struct coordinator_cluster *cluster, struct coordinator_core *core)
{
    cluster->core = core;
    common_list_init(&cluster->plans_dirty);
    common_list_init(&cluster->plans_changed);
    coordinator_turn_set(&core->turn, COORDINATOR_PHASE_PLANS, drain_plans, cluster);
    coordinator_workers_init(cluster);
}

void coordinator_cluster_fini(struct coordinator_cluster *cluster)
{
    coordinator_plans_free(cluster);
    coordinator_workers_free(cluster);
}
