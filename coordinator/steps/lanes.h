// SPDX-License-Identifier: Apache-2.0
// Lets items out of their lanes (lane.h), and ends the lanes of sessions that are gone.
#ifndef COORDINATOR_LANES_H
#define COORDINATOR_LANES_H

#include "coordinator/steps/steps.h"

// Drains: lanes with items that may go, sessions that are open again, sessions that are gone.
void coordinator_lanes_drain(struct coordinator_steps *steps);

#endif
