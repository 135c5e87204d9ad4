// SPDX-License-Identifier: Apache-2.0
// Answers that wait for their records to be in the audit log (docs/operating/audit.md). Each one leaves once,
// whatever becomes of the disk: with its record, at its time, or at the stop.
#ifndef COORDINATOR_TRAIL_KEPT_H
#define COORDINATOR_TRAIL_KEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/loop/loop.h"
#include "proto/rpc/rpc.h"

struct coordinator_trail_kept; // opaque

enum common_code coordinator_trail_kept_new(struct common_loop *loop, struct coordinator_trail_kept **out);

// Keeps an answer until record `number` is written, at most until due_ns. `must`: without its record it
// fails, also where `number` is 0: that record is lost already. `trouble` is for its error, and copied.
void coordinator_trail_kept_add(struct coordinator_trail_kept *kept, struct proto_request *request,
                                uint64_t number, uint64_t due_ns, bool must, const char *trouble);

// Record `number` is in the file, or lost for this reason. Numbers come in order.
void coordinator_trail_kept_done(struct coordinator_trail_kept *kept, uint64_t number, bool written,
                                 const char *trouble);

// All of them leave now: those that must have a record, and have none, as failures.
void coordinator_trail_kept_release(struct coordinator_trail_kept *kept);
void coordinator_trail_kept_free(
    struct coordinator_trail_kept *kept); // there is none any more; NULL is allowed

#endif
