// SPDX-License-Identifier: Apache-2.0
// proto/rights/ticket.c. Input: u8 what, then a ticket without its MAC, or (bit 0) as it travels. With the
// right MAC the form is read.
#include <string.h>

#include "common/memory/blob.h"
#include "proto/rights/ticket.h"
#include "tests/fuzz/fuzz.h"

static const struct common_secret secret = {{1, 2, 3}};

static void check(enum proto_ticket_permit permit, const uint8_t *bytes, size_t len)
{
    struct proto_ticket ticket, again;
    struct common_error err;
    uint8_t out[PROTO_TICKET_MAX];
    enum common_code code = proto_ticket_check(&secret, permit, bytes, len, 1, &ticket, &err);
    FUZZ_CHECK(code == COMMON_OK || err.message[0]);
    if (code != COMMON_OK)
        return;
    ticket.permit = permit;
    size_t n = proto_ticket_make(&secret, &ticket, out);
    FUZZ_CHECK(n > 0 && proto_ticket_check(&secret, permit, out, n, 1, &again, &err) == COMMON_OK);
    FUZZ_CHECK(again.session == ticket.session && again.incarnation == ticket.incarnation &&
               again.term == ticket.term && again.first == ticket.first && again.count == ticket.count &&
               again.expires_wall_ns == ticket.expires_wall_ns);
    // It permits nothing else, and nothing once a bit of it is another.
    enum proto_ticket_permit other = permit == PROTO_TICKET_PUT ? PROTO_TICKET_READ : PROTO_TICKET_PUT;
    FUZZ_CHECK(proto_ticket_check(&secret, other, out, n, 1, &again, &err) == COMMON_PERMISSION_DENIED);
    out[n / 2] ^= 1;
    FUZZ_CHECK(proto_ticket_check(&secret, permit, out, n, 1, &again, &err) == COMMON_PERMISSION_DENIED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    uint8_t what = fuzz_u8(&in);
    enum proto_ticket_permit permit = what & 2 ? PROTO_TICKET_READ : PROTO_TICKET_PUT;
    if (what & 1) {
        check(permit, in.at, in.left);
        return 0;
    }
    uint8_t *bytes = malloc(in.left + COMMON_MAC_BYTES);
    const struct common_slice parts[] = {{"read", 4}, {in.at, in.left}};
    FUZZ_CHECK(bytes);
    if (in.left > 0)
        memcpy(bytes, in.at, in.left);
    bool of_read = permit == PROTO_TICKET_READ;
    FUZZ_CHECK(common_mac(&secret, of_read ? parts : parts + 1, of_read ? 2 : 1, bytes + in.left));
    check(permit, bytes, in.left + COMMON_MAC_BYTES);
    free(bytes);
    return 0;
}
