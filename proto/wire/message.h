// SPDX-License-Identifier: Apache-2.0
// A message as both ends have it: what was received, and what is to be sent.
#ifndef PROTO_MESSAGE_H
#define PROTO_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/memory/blob.h"
#include "proto/banyan.pb-c.h"
#include "proto/model/limits.h"

#define PROTO_VERSION 1
// Of the coordinator's calls to workers. It rises where an older worker would do something else.
#define PROTO_CONTROL_VERSION 5u
#define PROTO_PAYLOAD_MAX     (UINT64_C(64) * 1024 * 1024) // default bytes of a payload

// A received message, checked: header unpacked, tensors inside the payload, aligned, sizes right.
struct proto_message {
    Banyan__Pb__Header *header; // owned; without the tensors (below); its bytes fields point into the frame
    ProtobufCMessage *body;   // unpacked as the method says, repeated counts checked; NULL in a failed reply
    struct common_blob *blob; // what the tensors point into; take a reference to keep them
    bool summed;              // it carried a checksum, which was right: an answer to it carries one, too
    size_t n_tensors;
    struct {
        const void *data; // 64-byte aligned
        size_t bytes;
        uint32_t dtype, n_dims;
        uint64_t dims[4];
    } tensors[PROTO_TENSORS_MAX];
};

// A tensor to send. `pieces` are gathered in order; what they point to is borrowed until `sent` runs (see
// below).
struct proto_tensor_out {
    uint32_t dtype; // Banyan__Pb__Dtype
    uint32_t n_dims;
    uint64_t dims[4];
    const struct common_slice *pieces; // the array itself is copied
    size_t n_pieces;
};

typedef void (*proto_done_fn)(void *arg);

// Frames that came with a wrong checksum, or without one from a peer that sends them; of this process, so
// far. Any thread.
uint64_t proto_frames_damaged(void);

#endif
