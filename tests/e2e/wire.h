// SPDX-License-Identifier: Apache-2.0
// Frames by hand, for tests of what a peer may send that our own client never would. Blocking sockets with a
// time limit.
#ifndef TESTS_E2E_WIRE_H
#define TESTS_E2E_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/secure/secret.h"
#include "proto/wire/frame.h"

struct wire_frame {
    uint8_t *bytes;
    size_t len;
};

// One answer, or the news that the peer has closed.
struct wire_answer {
    bool closed; // end of file or reset
    bool silent; // nothing for the time limit
    uint32_t code;
    char message[512], reason[64];
    Banyan__Pb__Header *header; // NULL when closed or silent
    uint8_t *body;              // packed reply message, inside header
    size_t body_len;
};

int wire_dial(const char *endpoint); // tcp:// or unix://; fails the test when it cannot
bool wire_hello(int fd);             // as a client without a token; false: refused

bool wire_hello_as(int fd, uint32_t role, const struct common_secret *secret); // as a daemon

// A request frame, flat. Free its bytes.
struct wire_frame wire_request(uint32_t method, uint64_t id, const ProtobufCMessage *body,
                               const struct proto_tensor_out *tensors, size_t n_tensors);
struct wire_frame wire_encode(const struct proto_outgoing *outgoing);
struct wire_frame wire_pack(const Banyan__Pb__Header *header, const void *payload,
                            size_t len);                                       // as it is, unchecked
void wire_prefix(struct wire_frame *frame, const struct proto_prefix *prefix); // replaces its prefix

bool wire_send(int fd, const void *bytes, size_t len); // false: the peer has closed
struct wire_answer wire_read(int fd, unsigned wait_ms);
void wire_answer_free(struct wire_answer *answer);

#endif
