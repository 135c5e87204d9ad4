// SPDX-License-Identifier: Apache-2.0
#include "proto/stream_hello.h"

#include <endian.h>
#include <string.h>

#include "common/blob.h"
#include "proto/banyan.pb-c.h"
#include "proto/rpc.h"
#include "proto/transport.h"

#define BINDING_LABEL "EXPORTER-Channel-Binding" // RFC 9266

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

bool proto_hello_bind(struct proto_hello *hello, const struct common_tls_link *tls)
{
    hello->bound = tls != NULL;
    return !tls || common_tls_link_binding(tls, BINDING_LABEL, hello->binding);
}

bool proto_hello_role_shown(const struct common_tls_link *tls, uint32_t role, struct common_error *err)
{
    if (!tls)
        return true;
    if (role ? common_tls_link_says(tls, proto_role_uri(role))
             : common_tls_link_says(tls, proto_role_uri(BANYAN__PB__ROLE__ROLE_WORKER)) ||
                   common_tls_link_says(tls, proto_role_uri(BANYAN__PB__ROLE__ROLE_COORDINATOR)))
        return true;
    common_error_set(
        err, COMMON_PERMISSION_DENIED,
        "%s: issue one for this role (banyanctl pki issue --role), and give it with --tls-cert",
        !common_tls_link_shows(tls)             ? "the peer shows no certificate, and one must say its role"
        : role == BANYAN__PB__ROLE__ROLE_CLIENT ? "the peer's certificate does not say banyan:client"
        : role == BANYAN__PB__ROLE__ROLE_WORKER ? "the peer's certificate does not say banyan:worker"
        : role                                  ? "the peer's certificate does not say banyan:coordinator"
               : "the peer's certificate says no daemon's role (banyan:coordinator, banyan:worker)");
    return false;
}

bool proto_hello_client_shown(const struct proto_server *server, const struct common_tls_link *tls,
                              struct common_error *err)
{
    return !server->tls_client_cert || proto_hello_role_shown(tls, 0, err) ||
           proto_hello_role_shown(tls, BANYAN__PB__ROLE__ROLE_CLIENT, err);
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
