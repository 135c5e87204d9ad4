// SPDX-License-Identifier: Apache-2.0
#include "proto/ticket.h"

#include <assert.h>

#include "common/blob.h"
#include "proto/banyan.pb-c.h"

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
    size_t len = banyan__pb__ticket__pack(&pb, out); // six numbers of at most 11 bytes
    assert(len + COMMON_MAC_BYTES <= PROTO_TICKET_MAX);
    struct common_slice part = {out, len};
    return common_mac(secret, &part, 1, out + len) ? len + COMMON_MAC_BYTES : 0;
}

enum common_code proto_ticket_check(const struct common_secret *secret, const void *data, size_t len,
                                    uint64_t now_wall_ns, struct proto_ticket *out, struct common_error *err)
{
    static const char denied[] = "the ticket was not made by this cluster's coordinator";
    if (len <= COMMON_MAC_BYTES || len > PROTO_TICKET_MAX)
        return common_error_set(err, COMMON_PERMISSION_DENIED, "%s", denied);
    uint8_t mac[COMMON_MAC_BYTES];
    struct common_slice part = {data, len - COMMON_MAC_BYTES};
    if (!common_mac(secret, &part, 1, mac))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a ticket's proof");
    if (!common_bytes_equal(mac, (const uint8_t *)data + part.len, sizeof mac))
        return common_error_set(err, COMMON_PERMISSION_DENIED, "%s", denied);
    Banyan__Pb__Ticket *pb = banyan__pb__ticket__unpack(NULL, part.len, data);
    if (!pb)
        return common_error_set(err, COMMON_PERMISSION_DENIED, "%s", denied);
    struct proto_ticket ticket = {.session = pb->session,
                                  .incarnation = pb->incarnation,
                                  .term = pb->term,
                                  .first = pb->first,
                                  .count = pb->count,
                                  .expires_wall_ns = pb->expires_wall_ns};
    banyan__pb__ticket__free_unpacked(pb, NULL);
    if (now_wall_ns >= ticket.expires_wall_ns)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "the ticket has expired: open the attach again");
    *out = ticket;
    return COMMON_OK;
}
