// SPDX-License-Identifier: Apache-2.0
// Passes: how a worker, which has no tokens, recognises a client that the coordinator has admitted. The
// coordinator makes one with the cluster secret and gives it beside each ticket; the client presents it at
// workers in the place of a token. It opens the link and nothing else: what is put or read still needs a
// ticket. Any thread.
#ifndef PROTO_PASS_H
#define PROTO_PASS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/secure/secret.h"
#include "proto/rights/access.h"

// "bp_", then in hex: tenant (4 bytes), token (8), access (1), expiry (8), all big endian, and their
// HMAC-SHA256 (32). The fields are hidden with the secret: who holds a pass cannot read what number the
// cluster has for the tenant or the token.
#define PROTO_PASS_BYTES  21
#define PROTO_PASS_CHARS  (3 + 2 * (PROTO_PASS_BYTES + COMMON_MAC_BYTES))
#define PROTO_PASS_LIFE_S 600 // beyond that of the ticket that it comes with

// Good until expires_s by the coordinator's count (docs/reference/wire.md, "Lives"). False: out of memory.
bool proto_pass_make(const struct common_secret *secret, const struct proto_identity *who, uint64_t expires_s,
                     char out[PROTO_PASS_CHARS + 1]);

// Whether these credentials are a pass of this cluster that is still good, and whose: *out without a name.
// The proof is compared in constant time.
bool proto_pass_check(const struct common_secret *secret, const void *credentials, size_t len, uint64_t now_s,
                      struct proto_identity *out);

#endif
