// SPDX-License-Identifier: Apache-2.0
// The room of the cluster as a whole: its start and its end. Nothing in the room calls it.
#ifndef COORDINATOR_CLUSTER_ROOM_H
#define COORDINATOR_CLUSTER_ROOM_H

#include "coordinator/cluster/cluster.h"

void coordinator_cluster_init(struct coordinator_cluster *cluster, struct coordinator_core *core);
void coordinator_cluster_fini(struct coordinator_cluster *cluster); // no session and no queue is left

#endif
