// SPDX-License-Identifier: Apache-2.0
// A peer of a stream server by hand: a socket that says what our own channels never would. On the fixture's
// loop, over a unix socket.
#ifndef TESTS_PROTO_PEER_H
#define TESTS_PROTO_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "proto/wire/frame.h"
#include "tests/proto/fixture.h"

extern const uint8_t peer_nonce[32];

int peer_dial(struct fixture *f);
int peer_dial_as_client(struct fixture *f); // through the hello, with the right token

void peer_put(int fd, const void *data, size_t len);
void peer_put_frame(int fd, const struct proto_outgoing *outgoing);
void peer_put_health(int fd, uint64_t id, const char *service);
void peer_put_hello(int fd, uint32_t role, const uint8_t nonce[32], size_t nonce_len, uint32_t version);
void peer_put_proof(int fd, const uint8_t *proof, const char *token);

// Turns the loop until there is something to read; false: the end.
bool peer_readable(struct fixture *f, int fd);
// The next frame's header, to be freed; NULL at the end of the stream.
Banyan__Pb__Header *peer_get_frame(struct fixture *f, int fd);
void peer_expect_reply(struct fixture *f, int fd, uint64_t id, enum common_code code);
void peer_expect_end(struct fixture *f, int fd); // and closes it
void peer_expect_still_serving(struct fixture *f);

#endif
