// SPDX-License-Identifier: Apache-2.0
// What a hello asks of the connection that it goes over, where that is TLS.
#include <stdio.h>

#include "proto/banyan.pb-c.h"
#include "proto/rpc/rpc.h"
#include "proto/rpc/transport.h"
#include "proto/stream/stream_hello.h"

#define BINDING_LABEL "EXPORTER-Channel-Binding" // RFC 9266
#define WORKER_NAMED  "banyan:worker:"

enum { NAME_MAX_BYTES = 64 }; // of a worker

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
        !common_tls_link_shows(tls)             ? "the peer shows no certificate, and one must name its role"
        : role == BANYAN__PB__ROLE__ROLE_CLIENT ? "the peer's certificate does not contain banyan:client"
        : role == BANYAN__PB__ROLE__ROLE_WORKER ? "the peer's certificate does not contain banyan:worker"
        : role                                  ? "the peer's certificate does not contain banyan:coordinator"
               : "the peer's certificate names no daemon's role (banyan:coordinator, banyan:worker)");
    return false;
}

bool proto_hello_names_worker(const struct common_tls_link *tls, const char *name)
{
    char uri[sizeof WORKER_NAMED + NAME_MAX_BYTES];
    if (!tls || !common_tls_link_says_some(tls, WORKER_NAMED))
        return true;
    int len = snprintf(uri, sizeof uri, "%s%s", WORKER_NAMED, name);
    return len < (int)sizeof uri && common_tls_link_says(tls, uri);
}

bool proto_hello_client_shown(const struct proto_server *server, const struct common_tls_link *tls,
                              struct common_error *err)
{
    return !server->tls_client_cert || proto_hello_role_shown(tls, 0, err) ||
           proto_hello_role_shown(tls, BANYAN__PB__ROLE__ROLE_CLIENT, err);
}
