// SPDX-License-Identifier: Apache-2.0
// Which calls the audit log records, and what it says of each: one table (calls.c). Keys and values, tokens
// and tickets are never in it. Pure.
#ifndef COORDINATOR_TRAIL_CALLS_H
#define COORDINATOR_TRAIL_CALLS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/trail/trail_form.h"
#include "proto/banyan.pb-c.h"

enum coordinator_trail_kind {
    COORDINATOR_TRAIL_NOT = 1, // not recorded
    COORDINATOR_TRAIL_READS, // changes nothing, and takes much out: recorded as far as there is room (flood.h)
    COORDINATOR_TRAIL_CHANGES // recorded; refused with --audit-required while nothing can be
};

struct coordinator_trail_call {
    enum coordinator_trail_kind kind;
    const char *what; // "session.create"; NULL where kind is NOT
    uint64_t session; // 0: none, or it is not known yet
};

// `asked` is the call's body, as its method says; `reply` its answer's, NULL: it has failed, or is not
// answered yet.
struct coordinator_trail_call coordinator_trail_call(uint32_t method, const ProtobufCMessage *asked,
                                                     const ProtobufCMessage *reply);
// The few arguments that are recorded.
void coordinator_trail_call_args(uint32_t method, const ProtobufCMessage *asked,
                                 struct common_trail_body *out);

// Whether the table has a line for this method.
bool coordinator_trail_knows(uint32_t method);

// Whether a call with this answer may have changed something; other failures are of tries that have not.
bool coordinator_trail_may_have_changed(enum common_code code);

#endif
