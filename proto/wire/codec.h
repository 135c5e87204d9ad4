// SPDX-License-Identifier: Apache-2.0
// From bytes to checked messages: the table of methods, the scan that checks a packed message before it is
// unpacked, and the bounded memory that it is unpacked into. Not thread-safe except where said.
#ifndef PROTO_CODEC_H
#define PROTO_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/blob.h"
#include "proto/wire/frame.h"
#include "proto/wire/message.h"

struct proto_method_info {
    uint32_t method;
    const char *name; // "Coordinator.Attend"
    const ProtobufCMessageDescriptor *request, *reply;
    bool idempotent; // may be sent again after a failure of the transport
};

// NULL for a method that does not exist. Any thread.
const struct proto_method_info *proto_codec_method(uint32_t method);

#define PROTO_METHOD_LIMIT 128 // methods are below it

// Checks packed bytes against their descriptor: well-formed, repeated counts and lengths of strings and bytes
// within the limits of banyan.proto, nothing nested deeper than the types allow, few unknown fields.
// Allocates nothing. Any thread.
enum common_code proto_codec_scan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                                  size_t len, struct common_error *err);

// Whether no message type reachable from the methods contains itself, every repeated field has a limit, and
// no type has more fields than the scan can count. A rule for banyan.proto: tested, and asserted at the first
// use.
bool proto_codec_sound(char *why, size_t why_len);

// What proto/model/limits.h says of a field; 0: nothing. For tests; any thread.
uint32_t proto_codec_limit(const ProtobufCMessageDescriptor *type, const char *field);

// Bump memory for unpacking: a message of n packed bytes may take at most 32·n + 4096 bytes.
struct proto_arena_block;
struct proto_arena {
    ProtobufCAllocator allocator;
    struct proto_arena_block *blocks;
    uint8_t *at, *end;
    size_t used, budget;
    bool out_of_memory; // the system gave none: what failed was not the message's fault
    _Alignas(16) uint8_t inline_bytes[3072];
};
void proto_arena_init(struct proto_arena *arena);
void proto_arena_allow(struct proto_arena *arena,
                       size_t packed_len); // raises the budget for a further message
void proto_arena_fini(struct proto_arena *arena);

// Scan, then unpack. INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
enum common_code proto_codec_unpack(struct proto_arena *arena, const ProtobufCMessageDescriptor *descriptor,
                                    const uint8_t *data, size_t len, ProtobufCMessage **out,
                                    struct common_error *err);

// ---- received messages ----------------------------------------------------------------------------------

// Keeps some released messages for the next ones. Zero-initialised.
struct proto_pool {
    struct proto_box *idle;
    unsigned n_idle;
};
void proto_pool_fini(struct proto_pool *pool);

// Unpacks the header of the frame at blob->data + offset (the whole frame is there). On success the message
// holds a reference to the blob; body and tensors are still missing. A failure here means that the stream
// cannot be trusted: there is no request id to answer. *sums: whether this peer has sent a checksum; from
// then on one that is missing is as bad as one that is wrong: DATA_LOSS.
enum common_code proto_message_open(struct proto_pool *pool, const struct proto_prefix *prefix,
                                    struct common_blob *blob, size_t offset, bool *sums,
                                    struct proto_message **out, struct common_error *err);

// Adds body (as `descriptor` says) and tensors.
enum common_code proto_message_fill(struct proto_message *message,
                                    const ProtobufCMessageDescriptor *descriptor, struct common_error *err);
// What it keeps from others: frame and unpacked message.
size_t proto_message_bytes(const struct proto_message *message);
void proto_message_release(struct proto_pool *pool, struct proto_message *message); // NULL is allowed

#endif
