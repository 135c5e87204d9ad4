// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/frame.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"
#include "common/memory/block.h"
#include "proto/wire/wire.h"

static const uint8_t zeros[64];

static void put64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
}

static uint64_t get64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return le64toh(value);
}

// The checksum catches a reader that lost its place and a flipped bit in a length before anything is
// allocated.
static uint64_t checksum(const uint8_t *prefix)
{
    uint64_t sum = common_mix64(get64(prefix));
    sum = common_mix64(sum ^ get64(prefix + 8));
    return common_mix64(sum ^ get64(prefix + 16));
}

void proto_prefix_encode(const struct proto_prefix *prefix, uint8_t out[PROTO_PREFIX_BYTES])
{
    put64(out, PROTO_FRAME_MAGIC | (uint64_t)prefix->version << 32 | (uint64_t)prefix->kind << 48);
    put64(out + 8, prefix->header_len);
    put64(out + 16, prefix->payload_len);
    put64(out + 24, checksum(out));
}

enum common_code proto_prefix_decode(const uint8_t in[PROTO_PREFIX_BYTES], struct proto_prefix *out,
                                     struct common_error *err)
{
    uint64_t word = get64(in), lengths = get64(in + 8);
    if ((uint32_t)word != PROTO_FRAME_MAGIC)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "this is not a Banyan frame: wrong magic");
    struct proto_prefix prefix = {.version = (uint16_t)(word >> 32),
                                  .kind = (uint8_t)(word >> 48),
                                  .header_len = (uint32_t)lengths,
                                  .payload_len = get64(in + 16)};
    if (prefix.version != PROTO_VERSION)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "the peer uses wire version %u, this program uses %u", prefix.version,
                                PROTO_VERSION);
    if (get64(in + 24) != checksum(in))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "damaged frame: the checksum of the prefix is wrong");
    if (prefix.kind < PROTO_FRAME_REQUEST || prefix.kind > PROTO_FRAME_ONE_WAY || word >> 56 != 0 ||
        lengths >> 32 != 0)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "damaged frame: unknown kind or flags");
    *out = prefix;
    return COMMON_OK;
}

// The checksum is the header's first field, so that it is found without reading a header that may be damaged:
// no other field begins with its key. It covers what follows up to the frame's end, padding included.
enum { HEADER_SUM = 8, SUM_KEY = HEADER_SUM << 3 | PROTO_WIRE_FIXED64, SUM_BYTES = 9 };
#define SUM_END (PROTO_PREFIX_BYTES + SUM_BYTES)

enum proto_sum proto_frame_sum(const struct proto_prefix *prefix, const uint8_t *frame)
{
    if (prefix->header_len < SUM_BYTES || frame[PROTO_PREFIX_BYTES] != SUM_KEY)
        return PROTO_SUM_NONE;
    if (prefix->skipped)
        return PROTO_SUM_RIGHT;
    size_t end = proto_frame_payload_at(prefix->header_len) + common_align64((size_t)prefix->payload_len);
    struct iovec rest = {(void *)(uintptr_t)(frame + SUM_END), end - SUM_END};
    uint64_t sum = common_xxh3_gather(&rest, 1);
    return sum == get64(frame + SUM_END - 8) ? PROTO_SUM_RIGHT : PROTO_SUM_WRONG;
}

static void gather_sum(struct proto_gather *gather)
{
    struct iovec head = gather->iov[0];
    uint8_t *at = (uint8_t *)head.iov_base + SUM_END;
    gather->iov[0] = (struct iovec){at, head.iov_len - SUM_END};
    put64(at - 8, common_xxh3_gather(gather->iov, gather->n));
    gather->iov[0] = head;
}

bool proto_frame_total(const struct proto_prefix *prefix, uint32_t header_max, uint64_t payload_max,
                       size_t *out)
{
    size_t total;
    if (prefix->header_len > header_max || prefix->payload_len > payload_max ||
        prefix->payload_len > SIZE_MAX - 64)
        return false;
    if (!common_size_add(proto_frame_payload_at(prefix->header_len),
                         common_align64((size_t)prefix->payload_len), &total))
        return false;
    *out = total;
    return true;
}

size_t proto_dtype_size(uint32_t dtype)
{
    switch (dtype) {
    case BANYAN__PB__DTYPE__DTYPE_F32:
        return 4;
    case BANYAN__PB__DTYPE__DTYPE_F16:
    case BANYAN__PB__DTYPE__DTYPE_BF16:
        return 2;
    case BANYAN__PB__DTYPE__DTYPE_U8:
        return 1;
    default:
        return 0;
    }
}

void proto_scratch_fini(struct proto_scratch *scratch)
{
    free(scratch->head);
    free(scratch->iov);
    *scratch = (struct proto_scratch){0};
}

static bool reserve_head(struct proto_scratch *scratch, size_t len)
{
    if (len <= scratch->head_cap)
        return true;
    size_t cap = len < 4096 ? 4096 : common_align64(len + len / 2);
    free(scratch->head); // nothing in it is needed any more
    scratch->head = malloc(cap);
    scratch->head_cap = scratch->head ? cap : 0;
    return scratch->head != NULL;
}

static bool reserve_iov(struct proto_scratch *scratch, size_t n)
{
    if (n <= scratch->iov_cap)
        return true;
    if (n > SIZE_MAX / sizeof(struct iovec) / 2)
        return false;
    size_t cap = n < 16 ? 16 : n + n / 2;
    free(scratch->iov);
    scratch->iov = malloc(cap * sizeof *scratch->iov);
    scratch->iov_cap = scratch->iov ? cap : 0;
    return scratch->iov != NULL;
}

// Bytes of a tensor by its pieces, which must agree with its shape.
static enum common_code measure(const struct proto_tensor_out *tensor, size_t *out, struct common_error *err)
{
    size_t shape = proto_dtype_size(tensor->dtype), bytes = 0;
    if (shape == 0 || tensor->n_dims < 1 || tensor->n_dims > 4)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "a tensor to send has an unknown type or %u dimensions", tensor->n_dims);
    for (uint32_t i = 0; i < tensor->n_dims; i++)
        if (!common_size_mul(shape, (size_t)tensor->dims[i], &shape))
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "the shape of a tensor to send wraps");
    for (size_t i = 0; i < tensor->n_pieces; i++)
        if (!common_size_add(bytes, tensor->pieces[i].len, &bytes))
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "the pieces of a tensor to send wrap");
    if (bytes != shape)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "a tensor to send has %zu bytes where its shape says %zu", bytes, shape);
    *out = bytes;
    return COMMON_OK;
}

// ---- the header, written by hand (the generated code costs as much again as everything else here) -------

enum { // fields of Header and Tensor in banyan.proto
    HEADER_METHOD = 1,
    HEADER_REQUEST = 2,
    HEADER_REMAINING = 3,
    HEADER_CREDENTIALS = 4,
    HEADER_STATUS = 5,
    HEADER_TENSORS = 6,
    HEADER_BODY = 7,
    TENSOR_DTYPE = 1,
    TENSOR_DIMS = 2,
    TENSOR_OFFSET = 3,
    TENSOR_BYTES = 4,
};

struct layout { // of one frame to be
    size_t tensor_offset[PROTO_TENSORS_MAX], tensor_bytes[PROTO_TENSORS_MAX];
    uint32_t tensor_len[PROTO_TENSORS_MAX]; // packed Tensor
    uint32_t dims_len[PROTO_TENSORS_MAX];
    size_t credentials_len, status_len, body_len, header_len;
};

static size_t field_len(size_t bytes) // key, length, bytes
{
    return 1 + proto_wire_varint_len(bytes) + bytes;
}

static uint8_t *put_bytes_key(uint8_t *at, uint32_t number, size_t len)
{
    return proto_wire_put_varint(proto_wire_put_key(at, number, PROTO_WIRE_BYTES), len);
}

static void measure_tensor(struct layout *layout, size_t i, const struct proto_tensor_out *tensor)
{
    size_t dims = 0;
    for (uint32_t k = 0; k < tensor->n_dims; k++)
        dims += proto_wire_varint_len(tensor->dims[k]);
    layout->dims_len[i] = (uint32_t)dims;
    layout->tensor_len[i] = (uint32_t)(1 + proto_wire_varint_len(tensor->dtype) + field_len(dims) + 1 +
                                       proto_wire_varint_len(layout->tensor_offset[i]) + 1 +
                                       proto_wire_varint_len(layout->tensor_bytes[i]));
}

static uint8_t *put_tensor(uint8_t *at, const struct layout *layout, size_t i,
                           const struct proto_tensor_out *tensor)
{
    at = put_bytes_key(at, HEADER_TENSORS, layout->tensor_len[i]);
    at = proto_wire_put_varint(proto_wire_put_key(at, TENSOR_DTYPE, PROTO_WIRE_VARINT), tensor->dtype);
    at = put_bytes_key(at, TENSOR_DIMS, layout->dims_len[i]);
    for (uint32_t k = 0; k < tensor->n_dims; k++)
        at = proto_wire_put_varint(at, tensor->dims[k]);
    at = proto_wire_put_varint(proto_wire_put_key(at, TENSOR_OFFSET, PROTO_WIRE_VARINT),
                               layout->tensor_offset[i]);
    return proto_wire_put_varint(proto_wire_put_key(at, TENSOR_BYTES, PROTO_WIRE_VARINT),
                                 layout->tensor_bytes[i]);
}

// False: above PROTO_HEADER_MAX.
static bool measure_header(struct layout *layout, const struct proto_outgoing *outgoing)
{
    layout->credentials_len = outgoing->credentials ? strlen(outgoing->credentials) : 0;
    layout->status_len = outgoing->status ? banyan__pb__status__get_packed_size(outgoing->status) : 0;
    layout->body_len = outgoing->body ? protobuf_c_message_get_packed_size(outgoing->body) : 0;
    if (layout->credentials_len > PROTO_HEADER_MAX || layout->status_len > PROTO_HEADER_MAX ||
        layout->body_len > PROTO_HEADER_MAX)
        return false;
    size_t len = outgoing->summed ? SUM_BYTES : 0;
    if (outgoing->method)
        len += 1 + proto_wire_varint_len(outgoing->method);
    len += outgoing->request ? 9 : 0;
    len += outgoing->remaining_ns ? 9 : 0;
    len += layout->credentials_len ? field_len(layout->credentials_len) : 0;
    len += outgoing->status ? field_len(layout->status_len) : 0;
    for (size_t i = 0; i < outgoing->n_tensors; i++)
        len += field_len(layout->tensor_len[i]);
    len += layout->body_len ? field_len(layout->body_len) : 0;
    layout->header_len = len;
    return len <= PROTO_HEADER_MAX;
}

// Returns the end; *remaining_at: see proto_gather.
static uint8_t *put_header(uint8_t *start, const struct layout *layout, const struct proto_outgoing *outgoing,
                           size_t *remaining_at)
{
    uint8_t *at = start + PROTO_PREFIX_BYTES;
    *remaining_at = 0;
    if (outgoing->summed) // gather_sum writes its value
        at = proto_wire_put_fixed64(proto_wire_put_key(at, HEADER_SUM, PROTO_WIRE_FIXED64), 0);
    if (outgoing->method)
        at =
            proto_wire_put_varint(proto_wire_put_key(at, HEADER_METHOD, PROTO_WIRE_VARINT), outgoing->method);
    if (outgoing->request)
        at = proto_wire_put_fixed64(proto_wire_put_key(at, HEADER_REQUEST, PROTO_WIRE_FIXED64),
                                    outgoing->request);
    if (outgoing->remaining_ns) {
        at = proto_wire_put_key(at, HEADER_REMAINING, PROTO_WIRE_FIXED64);
        *remaining_at = (size_t)(at - start);
        at = proto_wire_put_fixed64(at, outgoing->remaining_ns);
    }
    if (layout->credentials_len) {
        at = put_bytes_key(at, HEADER_CREDENTIALS, layout->credentials_len);
        at = (uint8_t *)memcpy(at, outgoing->credentials, layout->credentials_len) + layout->credentials_len;
    }
    if (outgoing->status) {
        at = put_bytes_key(at, HEADER_STATUS, layout->status_len);
        at += banyan__pb__status__pack(outgoing->status, at);
    }
    for (size_t i = 0; i < outgoing->n_tensors; i++)
        at = put_tensor(at, layout, i, &outgoing->tensors[i]);
    if (layout->body_len) {
        at = put_bytes_key(at, HEADER_BODY, layout->body_len);
        at += protobuf_c_message_pack(outgoing->body, at);
    }
    return at;
}

enum common_code proto_frame_encode(struct proto_scratch *scratch, const struct proto_outgoing *outgoing,
                                    uint64_t payload_max, struct proto_gather *out, struct common_error *err)
{
    struct layout layout;
    if (outgoing->n_tensors > PROTO_TENSORS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "%zu tensors in a frame: at most %d",
                                outgoing->n_tensors, PROTO_TENSORS_MAX);
    size_t payload = 0, n_iov = 1;
    for (size_t i = 0; i < outgoing->n_tensors; i++) {
        const struct proto_tensor_out *from = &outgoing->tensors[i];
        size_t bytes = 0;
        enum common_code code = measure(from, &bytes, err);
        if (code != COMMON_OK)
            return code;
        size_t offset = common_align64(payload);
        if (bytes > payload_max || offset > payload_max - bytes)
            return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                    "the tensors are above the limit of %llu bytes a frame",
                                    (unsigned long long)payload_max);
        payload = offset + bytes;
        layout.tensor_offset[i] = offset;
        layout.tensor_bytes[i] = bytes;
        measure_tensor(&layout, i, from);
        n_iov += from->n_pieces + 1;
    }
    if (!measure_header(&layout, outgoing))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "the message is above the limit of %d bytes a header", PROTO_HEADER_MAX);
    size_t header_len = layout.header_len;
    size_t head = proto_frame_payload_at((uint32_t)header_len);
    if (!reserve_head(scratch, head) || !reserve_iov(scratch, n_iov))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a frame");

    struct proto_prefix prefix = {.version = PROTO_VERSION,
                                  .kind = outgoing->kind,
                                  .header_len = (uint32_t)header_len,
                                  .payload_len = payload};
    proto_prefix_encode(&prefix, scratch->head);
    size_t remaining_at;
    uint8_t *at = put_header(scratch->head, &layout, outgoing, &remaining_at);
    assert((size_t)(at - scratch->head) == PROTO_PREFIX_BYTES + header_len);
    memset(at, 0, (size_t)(scratch->head + head - at));

    size_t n = 0;
    scratch->iov[n++] = (struct iovec){scratch->head, head};
    for (size_t i = 0; i < outgoing->n_tensors; i++) {
        const struct proto_tensor_out *from = &outgoing->tensors[i];
        for (size_t k = 0; k < from->n_pieces; k++)
            if (from->pieces[k].len > 0)
                scratch->iov[n++] = (struct iovec){(void *)from->pieces[k].data, from->pieces[k].len};
        size_t bytes = layout.tensor_bytes[i], pad = common_align64(bytes) - bytes;
        if (pad > 0)
            scratch->iov[n++] = (struct iovec){(void *)zeros, pad};
    }
    *out = (struct proto_gather){.iov = scratch->iov,
                                 .n = n,
                                 .bytes = head + common_align64(payload),
                                 .summed = outgoing->summed,
                                 .remaining_at = remaining_at};
    if (out->summed)
        gather_sum(out);
    return COMMON_OK;
}

struct proto_gather *proto_gather_keep(const struct proto_gather *gather)
{
    size_t head = gather->iov[0].iov_len;
    struct proto_gather *kept =
        common_block_take(sizeof *kept + gather->n * sizeof *gather->iov + head, COMMON_BLOCK_DAEMONS);
    if (!kept)
        return NULL;
    struct iovec *iov = (struct iovec *)(void *)(kept + 1);
    memcpy(iov, gather->iov, gather->n * sizeof *iov);
    iov[0].iov_base = memcpy(iov + gather->n, gather->iov[0].iov_base, head);
    *kept = *gather;
    kept->iov = iov;
    return kept;
}

void proto_gather_free(struct proto_gather *kept)
{
    common_block_give(kept);
}

void proto_gather_set_remaining(struct proto_gather *gather, uint64_t remaining_ns)
{
    put64((uint8_t *)gather->iov[0].iov_base + gather->remaining_at, remaining_ns);
    if (gather->summed)
        gather_sum(gather);
}
