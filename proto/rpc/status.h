// SPDX-License-Identifier: Apache-2.0
// A failure with its machine-readable details, as plain C, and its way into and out of Banyan__Pb__Status.
#ifndef PROTO_STATUS_H
#define PROTO_STATUS_H

#include <stdint.h>

#include "common/base/status.h"
#include "proto/rpc/rpc.h"

#define PROTO_STATUS_RANGES  16
#define PROTO_STATUS_WORKERS 8

struct proto_range {
    uint64_t first, count;
};

struct proto_status {
    enum common_code code;
    char message[COMMON_ERROR_BYTES];
    char reason[32]; // "" for none; see Detail in banyan.proto
    uint64_t session, chunk;
    uint64_t retry_ns; // when it may work, from now; 0: that is not known
    uint32_t layer;
    uint32_t n_ranges, n_workers;
    struct proto_range ranges[PROTO_STATUS_RANGES]; // more ranges than fit: the last one spans the rest
    char workers[PROTO_STATUS_WORKERS][65];
};

// Sets code and message; clears the details. Returns code.
enum common_code proto_status_set(struct proto_status *status, enum common_code code, const char *reason,
                                  const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void proto_status_add_range(struct proto_status *status, uint64_t first, uint64_t count);
void proto_status_add_worker(struct proto_status *status, const char *name);

// A copy on the heap, given back by proto_status_pb_free alone. Never NULL, which would say OK: without
// memory it is UNAVAILABLE, reason UNCONFIRMED, whatever the failure was.
Banyan__Pb__Status *proto_status_to_pb(const struct proto_status *status);
void proto_status_pb_free(Banyan__Pb__Status *pb);
void proto_status_from_pb(const Banyan__Pb__Status *pb, struct proto_status *out); // NULL pb: OK

// Answers a request with this failure. The request is gone.
void proto_request_fail_status(struct proto_request *request, const struct proto_status *status);

#endif
