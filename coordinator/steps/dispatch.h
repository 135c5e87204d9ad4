// SPDX-License-Identifier: Apache-2.0
// Queues (queue.h) whose plans can take frames send them; those of a plan that has retired are emptied.
#ifndef COORDINATOR_DISPATCH_H
#define COORDINATOR_DISPATCH_H

#include "coordinator/steps/steps.h"

#define COORDINATOR_BIG_FRAMES 4 // frames of cut items that may be in flight on a plan

// Drains: plans that are ready or retired; queues that are dirty.
void coordinator_queues_take_plans(struct coordinator_steps *steps);
void coordinator_queues_drain(struct coordinator_steps *steps);
void coordinator_queues_free(struct coordinator_steps *steps);

#endif
