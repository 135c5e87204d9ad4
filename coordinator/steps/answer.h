// SPDX-License-Identifier: Apache-2.0
// The answer of an Attend call: results of items, o and lse, masses, traces.
#ifndef COORDINATOR_ANSWER_H
#define COORDINATOR_ANSWER_H

#include "coordinator/steps/call.h"

// Answers the request. The call must live until the answer has been sent: it drops one of its references then.
void coordinator_answer_send(struct coordinator_call *call, struct proto_request *request,
                             enum common_code unfinished, const char *text);

// An item of it is done. It may be gone afterwards.
void coordinator_call_item_done(struct coordinator_call *call);

void coordinator_trace_message(const struct proto_trace *trace,
                               Banyan__Pb__WorkerTrace *out); // strings are borrowed

#endif
