// SPDX-License-Identifier: Apache-2.0
// One message as bytes, a wire frame (docs/reference/wire.md): 32 bytes of prefix, a packed Header, padding,
// the payload, padding. It is a multiple of 64 bytes long, so that in a buffer that starts aligned every
// payload is aligned where it was read. (The frames that carry slabs between daemons are step.h's.)
#ifndef PROTO_FRAME_H
#define PROTO_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/base/status.h"
#include "proto/banyan.pb-c.h"
#include "proto/wire/message.h"

#define PROTO_PREFIX_BYTES 32
#define PROTO_FRAME_MAGIC  UINT32_C(0x4e594e42) // "BNYN" as little-endian bytes

enum proto_frame_kind { PROTO_FRAME_REQUEST = 1, PROTO_FRAME_REPLY = 2, PROTO_FRAME_ONE_WAY = 3 };

struct proto_prefix {
    uint16_t version;
    uint8_t kind; // enum proto_frame_kind
    uint32_t header_len;
    uint64_t payload_len;
    bool skipped; // not on the wire: the payload is above a limit and not here, payload_len is 0
};

void proto_prefix_encode(const struct proto_prefix *prefix, uint8_t out[PROTO_PREFIX_BYTES]);

// INVALID_ARGUMENT: not a frame (magic, checksum, kind, reserved fields). FAILED_PRECONDITION: a frame of
// another version. Lengths are returned as they are: compare them with limits before allocating.
enum common_code proto_prefix_decode(const uint8_t in[PROTO_PREFIX_BYTES], struct proto_prefix *out,
                                     struct common_error *err);

// Where the payload starts. The caller has checked header_len against a limit.
static inline size_t proto_frame_payload_at(uint32_t header_len)
{
    return common_align64(PROTO_PREFIX_BYTES + (size_t)header_len);
}

// What the checksum of a whole frame says of it (docs/reference/wire.md, "Checksum"). Nothing of it has been
// read yet.
enum proto_sum {
    PROTO_SUM_NONE,  // the frame carries none
    PROTO_SUM_RIGHT, // or cannot be judged: the payload has been skipped and is not used
    PROTO_SUM_WRONG,
};
enum proto_sum proto_frame_sum(const struct proto_prefix *prefix, const uint8_t *frame);

// Bytes of the whole frame; false when the lengths are above the limits.
bool proto_frame_total(const struct proto_prefix *prefix, uint32_t header_max, uint64_t payload_max,
                       size_t *out);

// Bytes of one element; 0 for a type that has no plain elements or does not exist.
size_t proto_dtype_size(uint32_t dtype);

// ---- encoding -------------------------------------------------------------------------------------------

struct proto_outgoing {
    uint8_t kind;
    uint32_t method;
    uint64_t request;
    uint64_t remaining_ns;
    const char *credentials;          // NULL: none
    const Banyan__Pb__Status *status; // NULL: none
    const ProtobufCMessage *body;     // NULL: none
    const struct proto_tensor_out *tensors;
    size_t n_tensors;
    bool summed; // carries a checksum, taken of the tensors as they are when it is encoded
};

// Memory that encoding reuses; zero-initialised. One a channel or server.
struct proto_scratch {
    uint8_t *head;
    size_t head_cap;
    struct iovec *iov;
    size_t iov_cap;
};
void proto_scratch_fini(struct proto_scratch *scratch);

// A frame as a gather list: iov[0] is the head (in the scratch), then borrowed pieces of tensors and padding.
struct proto_gather {
    struct iovec *iov; // in the scratch: valid until its next use; the reader may alter it
    size_t n;
    size_t bytes; // of the whole frame
    bool summed;
    size_t remaining_at; // where in the head Header.remaining_ns lies (8 bytes, little endian); 0: it is not
                         // there
};

// A copy that outlives the scratch: head copied, the rest still borrowed. NULL: out of memory.
struct proto_gather *proto_gather_keep(const struct proto_gather *gather);
void proto_gather_free(struct proto_gather *kept); // NULL is allowed

// Writes another remaining time (> 0), and a new checksum into a frame that waited.
void proto_gather_set_remaining(struct proto_gather *gather, uint64_t remaining_ns);

// No tensor is copied. RESOURCE_EXHAUSTED: above PROTO_HEADER_MAX or payload_max, or no memory.
// INVALID_ARGUMENT: a tensor whose pieces do not add up to its shape.
enum common_code proto_frame_encode(struct proto_scratch *scratch, const struct proto_outgoing *outgoing,
                                    uint64_t payload_max, struct proto_gather *out, struct common_error *err);

#endif
