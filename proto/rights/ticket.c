// SPDX-License-Identifier: Apache-2.0
#include "proto/rights/ticket.h"

#include <assert.h>

#include "common/memory/blob.h"
#include "proto/banyan.pb-c.h"

static bool ticket_mac(const struct common_secret *secret, enum proto_ticket_permit permit, const void *data,
                       size_t len, uint8_t out[COMMON_MAC_BYTES])
{
    const struct common_slice parts[2] = {{"read", 4}, {data, len}};
    return permit == PROTO_TICKET_READ ? common_mac(secret, parts, 2, out)
                                       : common_mac(secret, &parts[1], 1, out);
}

size_t proto_ticket_make(const struct common_secret *secret, const struct proto_ticket *ticket,
                         uint8_t out[PROTO_TICKET_MAX])
{
    Banyan__Pb__Ticket pb = BANYAN__PB__TICKET__INIT;
    pb.session = ticket->session;
    pb.incarnation = ticket->incarnation;
    pb.term = ticket->term;
    pb.first = ticket->first;
    pb.count = ticket->count;
    pb.expires_wall_ns = ticket->expires_wall_ns;
    pb.number = ticket->number;
    size_t len = banyan__pb__ticket__pack(&pb, out); // seven numbers of at most 11 bytes
    assert(len + COMMON_MAC_BYTES <= PROTO_TICKET_MAX);
    return ticket_mac(secret, ticket->permit, out, len, out + len) ? len + COMMON_MAC_BYTES : 0;
}

enum common_code proto_ticket_check(const struct common_secret *secret, enum proto_ticket_permit permit,
                                    const void *data, size_t len, uint64_t now_ns, struct proto_ticket *out,
                                    struct common_error *err)
{
    static const char denied[] =
        "the ticket does not come from this cluster's coordinator, or is not for this";
    if (len <= COMMON_MAC_BYTES || len > PROTO_TICKET_MAX)
        return common_error_set(err, COMMON_PERMISSION_DENIED, "%s", denied);
    uint8_t mac[COMMON_MAC_BYTES];
    size_t packed = len - COMMON_MAC_BYTES;
    if (!ticket_mac(secret, permit, data, packed, mac))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a ticket's proof");
    if (!common_bytes_equal(mac, (const uint8_t *)data + packed, sizeof mac))
        return common_error_set(err, COMMON_PERMISSION_DENIED, "%s", denied);
    Banyan__Pb__Ticket *pb = banyan__pb__ticket__unpack(NULL, packed, data);
    if (!pb)
        return common_error_set(err, COMMON_PERMISSION_DENIED, "%s", denied);
    struct proto_ticket ticket = {.session = pb->session,
                                  .incarnation = pb->incarnation,
                                  .term = pb->term,
                                  .first = pb->first,
                                  .count = pb->count,
                                  .expires_wall_ns = pb->expires_wall_ns,
                                  .permit = permit,
                                  .number = pb->number};
    banyan__pb__ticket__free_unpacked(pb, NULL);
    if (now_ns >= ticket.expires_wall_ns)
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "%s",
                                permit == PROTO_TICKET_READ
                                    ? "the ticket has expired: open the read again"
                                    : "the ticket has expired: open the attach again");
    *out = ticket;
    return COMMON_OK;
}
