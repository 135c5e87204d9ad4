// SPDX-License-Identifier: Apache-2.0
// Attend calls come, are checked, and are taken apart into items; they end at their deadline, with their
// callers, or with the coordinator. With their last item: answer.h.
#ifndef COORDINATOR_ATTEND_H
#define COORDINATOR_ATTEND_H

#include "coordinator/steps/steps.h"

struct proto_request;

// Handler (proto_method.handle).
void coordinator_handle_attend(struct coordinator_steps *steps, struct proto_request *request);

enum common_code coordinator_calls_init(struct coordinator_steps *steps); // the timer of deadlines
void coordinator_calls_stop(struct coordinator_steps *steps);             // ends all with UNAVAILABLE

#endif
