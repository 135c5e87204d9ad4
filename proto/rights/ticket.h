// SPDX-License-Identifier: Apache-2.0
// Tickets: how the coordinator lets a client put K and V into workers, or read them there, that share nothing
// with the client but the cluster's secret behind its back. On the wire a ticket is the packed Ticket
// followed by HMAC-SHA256 (common_mac) with the cluster secret: over it alone where it permits putting, over
// "read" and it where it permits reading. So neither passes for the other, also at a worker that only
// supports puts. Any thread.
#ifndef PROTO_TICKET_H
#define PROTO_TICKET_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/secure/secret.h"

#define PROTO_TICKET_MAX 128 // bytes of a ticket on the wire

enum proto_ticket_permit { PROTO_TICKET_PUT, PROTO_TICKET_READ };

struct proto_ticket {
    uint64_t session, incarnation, term;
    uint64_t first, count;    // tokens that may be put, or read
    uint64_t expires_wall_ns; // by the coordinator's count (docs/reference/wire.md, "Lives")
    enum proto_ticket_permit permit;
    uint64_t number; // of one to put (banyan.proto, Ticket)
};

// Fills out and returns the bytes used; 0: out of memory.
size_t proto_ticket_make(const struct common_secret *secret, const struct proto_ticket *ticket,
                         uint8_t out[PROTO_TICKET_MAX]);

// Checks the MAC in constant time, then the form, then the expiry. PERMISSION_DENIED: not made with this
// secret, or for something else than `permit`; FAILED_PRECONDITION: expired, a new one is needed;
// RESOURCE_EXHAUSTED: no memory to check it. Session, incarnation, term and positions are the caller's to
// compare.
enum common_code proto_ticket_check(const struct common_secret *secret, enum proto_ticket_permit permit,
                                    const void *data, size_t len, uint64_t now_ns, struct proto_ticket *out,
                                    struct common_error *err);

#endif
