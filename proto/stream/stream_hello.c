// SPDX-License-Identifier: Apache-2.0
#include "proto/stream/stream_hello.h"

#include <endian.h>
#include <string.h>

#include "common/memory/blob.h"
#include "proto/banyan.pb-c.h"
#include "proto/rpc/rpc.h"

bool proto_role_is_daemon(uint32_t role)
{
    return role == BANYAN__PB__ROLE__ROLE_WORKER || role == BANYAN__PB__ROLE__ROLE_COORDINATOR;
}

const char *proto_role_uri(uint32_t role)
{
    static const char *const uris[] = {
        [BANYAN__PB__ROLE__ROLE_CLIENT] = "banyan:client",
        [BANYAN__PB__ROLE__ROLE_WORKER] = "banyan:worker",
        [BANYAN__PB__ROLE__ROLE_COORDINATOR] = "banyan:coordinator",
    };
    return role < sizeof uris / sizeof *uris && uris[role] ? uris[role] : "";
}

// The two labels keep one side's proof from being sent back as the other's.
bool proto_hello_proof(const struct common_secret *secret, const struct proto_hello *hello, bool by_dialler,
                       uint8_t out[COMMON_MAC_BYTES])
{
    const char *label = by_dialler ? "banyan dial" : "banyan accept";
    uint32_t dial_role = htole32(hello->dial_role), accept_role = htole32(hello->accept_role);
    const struct common_slice parts[] = {
        {label, strlen(label)},
        {hello->dial_nonce, PROTO_NONCE_BYTES},
        {hello->accept_nonce, PROTO_NONCE_BYTES},
        {&dial_role, sizeof dial_role},
        {&accept_role, sizeof accept_role},
        {hello->binding, COMMON_TLS_BINDING_BYTES},
    };
    return common_mac(secret, parts, sizeof parts / sizeof *parts - !hello->bound, out);
}
