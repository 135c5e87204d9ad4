// SPDX-License-Identifier: Apache-2.0
#include "proto/frame.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

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

// The checksum catches a reader that lost its place and a flipped bit in a length before anything is allocated.
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
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "the peer speaks wire version %u, this program speaks %u",
                                prefix.version, PROTO_VERSION);
    if (get64(in + 24) != checksum(in))
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "damaged frame: the checksum of the prefix is wrong");
    if (prefix.kind < PROTO_FRAME_REQUEST || prefix.kind > PROTO_FRAME_ONE_WAY || word >> 56 != 0 || lengths >> 32 != 0)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "damaged frame: unknown kind or flags");
    *out = prefix;
    return COMMON_OK;
}

bool proto_frame_total(const struct proto_prefix *prefix, uint32_t header_max, uint64_t payload_max, size_t *out)
{
    size_t total;
    if (prefix->header_len > header_max || prefix->payload_len > payload_max || prefix->payload_len > SIZE_MAX - 64)
        return false;
    if (!common_size_add(proto_frame_payload_at(prefix->header_len), common_align64((size_t)prefix->payload_len), &total))
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
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "a tensor to send has an unknown type or %u dimensions",
                                tensor->n_dims);
    for (uint32_t i = 0; i < tensor->n_dims; i++)
        if (!common_size_mul(shape, (size_t)tensor->dims[i], &shape))
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "the shape of a tensor to send wraps");
    for (size_t i = 0; i < tensor->n_pieces; i++)
        if (!common_size_add(bytes, tensor->pieces[i].len, &bytes))
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "the pieces of a tensor to send wrap");
    if (bytes != shape)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "a tensor to send has %zu bytes where its shape says %zu", bytes,
                                shape);
    *out = bytes;
    return COMMON_OK;
}

static size_t varint_len(uint64_t value)
{
    size_t n = 1;
    while (value >= 0x80) {
        value >>= 7;
        n++;
    }
    return n;
}

static uint8_t *put_varint(uint8_t *at, uint64_t value)
{
    while (value >= 0x80) {
        *at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

enum { HEADER_BODY_TAG = 7 << 3 | 2 }; // Header.body, length-delimited

enum common_code proto_frame_encode(struct proto_scratch *scratch, const struct proto_outgoing *outgoing, uint64_t payload_max,
                                    struct proto_gather *out, struct common_error *err)
{
    Banyan__Pb__Tensor tensors[PROTO_TENSORS_MAX], *tensor_list[PROTO_TENSORS_MAX];
    if (outgoing->n_tensors > PROTO_TENSORS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "%zu tensors in a frame: at most %d", outgoing->n_tensors,
                                PROTO_TENSORS_MAX);
    size_t payload = 0, n_iov = 1;
    for (size_t i = 0; i < outgoing->n_tensors; i++) {
        const struct proto_tensor_out *from = &outgoing->tensors[i];
        size_t bytes = 0;
        enum common_code code = measure(from, &bytes, err);
        if (code != COMMON_OK)
            return code;
        size_t offset = common_align64(payload);
        if (bytes > payload_max || offset > payload_max - bytes)
            return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the tensors are above the limit of %llu bytes a frame",
                                    (unsigned long long)payload_max);
        payload = offset + bytes;
        banyan__pb__tensor__init(&tensors[i]);
        tensors[i].dtype = (Banyan__Pb__Dtype)from->dtype;
        tensors[i].n_dims = from->n_dims;
        tensors[i].dims = (uint64_t *)from->dims; // only read by packing
        tensors[i].offset = offset;
        tensors[i].bytes = bytes;
        tensor_list[i] = &tensors[i];
        n_iov += from->n_pieces + 1;
    }
    // The body is packed straight into the head, behind the other fields (any order is valid), so that it is not copied.
    Banyan__Pb__Header header = BANYAN__PB__HEADER__INIT;
    header.method = outgoing->method;
    header.request = outgoing->request;
    header.remaining_ns = outgoing->remaining_ns;
    if (outgoing->credentials)
        header.credentials = (ProtobufCBinaryData){strlen(outgoing->credentials), (uint8_t *)outgoing->credentials};
    header.status = (Banyan__Pb__Status *)outgoing->status;
    header.n_tensors = outgoing->n_tensors;
    header.tensors = tensor_list;
    size_t fields = banyan__pb__header__get_packed_size(&header);
    size_t body = outgoing->body ? protobuf_c_message_get_packed_size(outgoing->body) : outgoing->packed_len;
    size_t header_len = fields;
    if (fields > PROTO_HEADER_MAX || body > PROTO_HEADER_MAX)
        header_len = SIZE_MAX;
    else if (body > 0)
        header_len += 1 + varint_len(body) + body;
    if (header_len > PROTO_HEADER_MAX)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the message is above the limit of %d bytes a header",
                                PROTO_HEADER_MAX);
    size_t head = proto_frame_payload_at((uint32_t)header_len);
    if (!reserve_head(scratch, head) || !reserve_iov(scratch, n_iov))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a frame");

    struct proto_prefix prefix = {PROTO_VERSION, outgoing->kind, (uint32_t)header_len, payload};
    proto_prefix_encode(&prefix, scratch->head);
    uint8_t *at = scratch->head + PROTO_PREFIX_BYTES;
    at += banyan__pb__header__pack(&header, at);
    if (body > 0) {
        *at++ = HEADER_BODY_TAG;
        at = put_varint(at, body);
        if (outgoing->body)
            at += protobuf_c_message_pack(outgoing->body, at);
        else
            at = (uint8_t *)memcpy(at, outgoing->packed, body) + body;
    }
    memset(at, 0, (size_t)(scratch->head + head - at));

    size_t n = 0;
    scratch->iov[n++] = (struct iovec){scratch->head, head};
    for (size_t i = 0; i < outgoing->n_tensors; i++) {
        const struct proto_tensor_out *from = &outgoing->tensors[i];
        for (size_t k = 0; k < from->n_pieces; k++)
            if (from->pieces[k].len > 0)
                scratch->iov[n++] = (struct iovec){(void *)from->pieces[k].data, from->pieces[k].len};
        size_t bytes = (size_t)tensors[i].bytes, pad = common_align64(bytes) - bytes;
        if (pad > 0)
            scratch->iov[n++] = (struct iovec){(void *)zeros, pad};
    }
    // Fields come in the order of their numbers: method (1) and request (2) before it.
    size_t remaining_at = 0;
    if (header.remaining_ns)
        remaining_at = PROTO_PREFIX_BYTES + (header.method ? 1 + varint_len(header.method) : 0) + (header.request ? 9 : 0) + 1;
    *out = (struct proto_gather){scratch->iov, n, head + common_align64(payload), remaining_at};
    return COMMON_OK;
}

struct proto_gather *proto_gather_keep(const struct proto_gather *gather)
{
    size_t head = gather->iov[0].iov_len;
    struct proto_gather *kept = malloc(sizeof *kept + gather->n * sizeof *gather->iov + head);
    if (!kept)
        return NULL;
    struct iovec *iov = (struct iovec *)(void *)(kept + 1);
    memcpy(iov, gather->iov, gather->n * sizeof *iov);
    iov[0].iov_base = memcpy(iov + gather->n, gather->iov[0].iov_base, head);
    *kept = (struct proto_gather){iov, gather->n, gather->bytes, gather->remaining_at};
    return kept;
}

void proto_gather_set_remaining(struct proto_gather *gather, uint64_t remaining_ns)
{
    put64((uint8_t *)gather->iov[0].iov_base + gather->remaining_at, remaining_ns);
}
