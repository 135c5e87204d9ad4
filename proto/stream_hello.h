// SPDX-License-Identifier: Apache-2.0
// The proofs of a link's hello (docs/WIRE.md, "hello"): who dials and who accepts, bound to both nonces and
// both roles.
#ifndef PROTO_STREAM_HELLO_H
#define PROTO_STREAM_HELLO_H

#include <stdbool.h>
#include <stdint.h>

#include "common/secret.h"

#define PROTO_NONCE_BYTES 32
#define PROTO_HELLO_NS    (UINT64_C(5) * 1000 * 1000 * 1000)

struct proto_hello {
    uint8_t dial_nonce[PROTO_NONCE_BYTES], accept_nonce[PROTO_NONCE_BYTES];
    uint32_t dial_role, accept_role;
};

bool proto_role_is_daemon(uint32_t role);
bool proto_hello_proof(const struct common_secret *secret, const struct proto_hello *hello, bool by_dialler,
                       uint8_t out[COMMON_MAC_BYTES]); // false: out of memory

#endif
