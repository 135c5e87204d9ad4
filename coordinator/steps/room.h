// SPDX-License-Identifier: Apache-2.0
// The room of steps as a whole: its start, its end, and what its drains do, in their order. Nothing in the
// room calls it.
#ifndef COORDINATOR_STEPS_ROOM_H
#define COORDINATOR_STEPS_ROOM_H

#include "coordinator/steps/steps.h"

// Timers and drains. RESOURCE_EXHAUSTED.
enum common_code coordinator_steps_init(struct coordinator_steps *steps, struct coordinator_core *core,
                                        struct coordinator_cluster *cluster,
                                        struct coordinator_sessions *sessions);
// Ends all calls with UNAVAILABLE; frames are still to come back. Harmless before init has succeeded.
void coordinator_steps_stop(struct coordinator_steps *steps);
void coordinator_steps_fini(struct coordinator_steps *steps);

#endif
