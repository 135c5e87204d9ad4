// SPDX-License-Identifier: Apache-2.0
// The coordinator's audit log (docs/operating/audit.md; --audit-log): who has changed what, when, from where,
// and with which result. "trail" in the code: "audit" is the name of steps that are computed again
// (steps/audit.h).
//
//   server: answered, refusing ──▶ calls.h: what is recorded ──▶ flood.h: tries that were refused ──▶ trail_writer.h
//   events.h: workers, the coordinator's own acts ──────────────────────────────────────────────────▶       │
//                            answer ◀── kept.h: answers that wait for their records ◀── written ────────────┘
//
// A record is in the file before the answer leaves, as long as the disk answers. The loop never waits for it.
// All functions take NULL for a trail: nothing is recorded then. Everything is for the loop thread.
#ifndef COORDINATOR_TRAIL_TRAIL_H
#define COORDINATOR_TRAIL_TRAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/trail/trail.h"
#include "coordinator/core.h"
#include "coordinator/tenants/tenants.h"
#include "proto/rpc/rpc.h"

struct coordinator_trail;

// Opens the file of core->options.audit_log, and hears of the events of `core` from now on. NULL is no
// failure: there is to be none. Codes of common_trail_open.
enum common_code coordinator_trail_new(struct coordinator_core *core,
                                       const struct coordinator_tenants *tenants,
                                       struct coordinator_trail **out, struct common_error *err);
// At a stop: waits for what is to be written, two seconds at most in all, and lets answers that wait leave.
// From now on none waits any more.
void coordinator_trail_flush(struct coordinator_trail *trail);
void coordinator_trail_stop(
    struct coordinator_trail *trail); // the last record: that the coordinator has stopped
void coordinator_trail_free(struct coordinator_trail *trail);

// As proto_server_options has them, but for the argument.
bool coordinator_trail_answered(struct coordinator_trail *trail, struct proto_request *request,
                                enum common_code code, const ProtobufCMessage *reply);
void coordinator_trail_refusing(struct coordinator_trail *trail, enum proto_refusal refusal, const char *peer,
                                const char *why);

// With --audit-required, where nothing can be recorded: answers a call that would change something, and says
// true.
bool coordinator_trail_refuses(struct coordinator_trail *trail, struct proto_request *request);

// Several times a second: what was counted of a flood; another try where nothing could be written; now and
// then the head of the chain, for the log.
void coordinator_trail_tick(struct coordinator_trail *trail, uint64_t now_ns);

// SIGHUP: the file was moved away.
void coordinator_trail_reopen(struct coordinator_trail *trail);

struct coordinator_trail_counts {
    uint64_t written, lost;
    uint64_t left_out; // of floods
    uint64_t waiting;  // for the disk
    bool works;
};
// False: there is no audit log.
bool coordinator_trail_count(const struct coordinator_trail *trail, struct coordinator_trail_counts *out);

#endif
