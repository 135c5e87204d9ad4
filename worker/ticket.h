// SPDX-License-Identifier: Apache-2.0
// What a client's ticket permits at this worker.
#ifndef WORKER_TICKET_H
#define WORKER_TICKET_H

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>

#include "proto/ticket.h"

struct worker;

struct worker_wanted { // rows of a session
    enum proto_ticket_permit permit;
    uint64_t session, first, count; // positions
};

// The loop's thread. As proto_ticket_check, and FAILED_PRECONDITION: of a term that is over, a new one is
// needed; PERMISSION_DENIED: for another session or other positions. Its incarnation is the caller's to compare.
enum common_code worker_ticket_check(const struct worker *worker, const ProtobufCBinaryData *data,
                                     const struct worker_wanted *wanted, struct proto_ticket *out,
                                     struct common_error *err);

#endif
