// SPDX-License-Identifier: Apache-2.0
// The second half of frame.h: a frame comes back and is taken apart.
#ifndef COORDINATOR_LANDING_H
#define COORDINATOR_LANDING_H

#include "common/base/status.h"

struct proto_step_result;

// A proto_step_done_fn, arg: the frame.
void coordinator_frame_landed(void *arg, enum common_code code, const char *text,
                              struct proto_step_result *result);

#endif
