// SPDX-License-Identifier: Apache-2.0
// The proofs of a link's hello (docs/reference/wire.md, "Link hello (stream)"): who dials and who accepts, bound to both nonces and
// both roles, and to the connection of TLS that they go over.
#ifndef PROTO_STREAM_HELLO_H
#define PROTO_STREAM_HELLO_H

#include <stdbool.h>
#include <stdint.h>

#include "common/secure/secret.h"
#include "common/secure/tls_link.h"

#define PROTO_NONCE_BYTES 32
#define PROTO_HELLO_NS    (UINT64_C(5) * 1000 * 1000 * 1000)

struct proto_hello {
    uint8_t dial_nonce[PROTO_NONCE_BYTES], accept_nonce[PROTO_NONCE_BYTES];
    uint32_t dial_role, accept_role;
    bool bound; // under TLS: `binding` is the connection's
    uint8_t binding[COMMON_TLS_BINDING_BYTES];
};

bool proto_role_is_daemon(uint32_t role);
bool proto_hello_bind(struct proto_hello *hello,
                      const struct common_tls_link *tls); // NULL: plain. false: no memory
// Whether the peer's certificate says this role (0: any daemon's); plain: always. Else a sentence in err,
// PERMISSION_DENIED.
bool proto_hello_role_shown(const struct common_tls_link *tls, uint32_t role, struct common_error *err);
// Whether the peer's certificate is good for a worker of this name: it names this one, or none; plain: always.
bool proto_hello_names_worker(const struct common_tls_link *tls, const char *name);
// Whether a client has shown the certificate that this server demands of clients, if any: its own role's, or a daemon's.
struct proto_server;
bool proto_hello_client_shown(const struct proto_server *server, const struct common_tls_link *tls,
                              struct common_error *err);
bool proto_hello_proof(const struct common_secret *secret, const struct proto_hello *hello, bool by_dialler,
                       uint8_t out[COMMON_MAC_BYTES]); // false: out of memory

#endif
