// SPDX-License-Identifier: Apache-2.0
// What a client's ticket permits at this worker.
#ifndef WORKER_TICKET_H
#define WORKER_TICKET_H

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>

#include "proto/rights/ticket.h"

struct worker;

struct worker_wanted { // rows of a session
    enum proto_ticket_permit permit;
    uint64_t session, first, count; // positions
};

// What the lives of tickets and passes are compared with: the coordinator's own count, as its last heartbeat said it, and this
// process's monotonic clock since. No two wall clocks need to agree. Before the first answer of a coordinator, and with
// one of an older build, it is this machine's wall clock.
uint64_t worker_ticket_clock_ns(const struct worker *worker);

// The loop's thread. As proto_ticket_check, and FAILED_PRECONDITION: of a term that is over, a new one is
// needed; PERMISSION_DENIED: for another session or other positions. Its incarnation is the caller's to compare.
enum common_code worker_ticket_check(const struct worker *worker, const ProtobufCBinaryData *data,
                                     const struct worker_wanted *wanted, struct proto_ticket *out,
                                     struct common_error *err);

#endif
