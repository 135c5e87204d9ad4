// SPDX-License-Identifier: Apache-2.0
// proto/wire/frame.c, codec.c and step.c: one whole frame, as frames.h makes it of the input. A message that
// is taken is encoded and taken again, and is the same then.
#include <string.h>

#include "proto/rpc/step.h"
#include "proto/wire/codec.h"
#include "tests/fuzz/frames.h"

static struct proto_pool pool;

static struct proto_message *take(const uint8_t *frame, size_t len, uint8_t *kind)
{
    struct proto_prefix prefix;
    struct proto_message *message;
    struct common_error err;
    size_t total;
    bool sums = false;
    if (len < PROTO_PREFIX_BYTES || proto_prefix_decode(frame, &prefix, &err) != COMMON_OK ||
        !proto_frame_total(&prefix, PROTO_HEADER_MAX, PROTO_PAYLOAD_MAX, &total) || total > len)
        return NULL;
    FUZZ_CHECK(total % 64 == 0 && total >= PROTO_PREFIX_BYTES + prefix.header_len + prefix.payload_len);
    struct common_blob *blob = common_blob_new(total);
    FUZZ_CHECK(blob);
    memcpy(blob->data, frame, total);
    enum common_code code = proto_message_open(&pool, &prefix, blob, 0, &sums, &message, &err);
    if (code == COMMON_OK && message->summed)
        FUZZ_CHECK(proto_frame_sum(&prefix, frame) == PROTO_SUM_RIGHT);
    common_blob_unref(blob);
    *kind = prefix.kind;
    return code == COMMON_OK ? message : NULL;
}

static bool fill(struct proto_message *message, uint8_t kind)
{
    const struct proto_method_info *info = proto_codec_method(message->header->method);
    struct common_error err;
    if (!info)
        return false;
    const ProtobufCMessageDescriptor *type = kind == PROTO_FRAME_REPLY ? info->reply : info->request;
    if (proto_message_fill(message, type, &err) != COMMON_OK)
        return false;
    for (size_t i = 0; i < message->n_tensors; i++) {
        const uint8_t *data = message->tensors[i].data;
        FUZZ_CHECK(message->tensors[i].bytes == 0 || (uintptr_t)data % 64 == 0);
        FUZZ_CHECK(message->tensors[i].bytes == 0 ||
                   (data >= message->blob->data &&
                    data + message->tensors[i].bytes <= message->blob->data + message->blob->len));
    }
    return true;
}

static void decode_step(const struct proto_message *message, uint8_t kind)
{
    struct common_error err;
    struct proto_step *step;
    struct proto_step_result *result;
    if (kind == PROTO_FRAME_REQUEST && proto_step_decode(message, 1, &step, &err) == COMMON_OK) {
        size_t q = 0, k = 0, v = 0;
        for (uint32_t i = 0; i < step->n_items; i++) { // the items' bytes fill the tensors
            q += step->items[i].q_bytes;
            k += step->items[i].k_bytes;
            v += step->items[i].v_bytes;
            FUZZ_CHECK(step->items[i].append_first + step->items[i].n_append <= step->n_appends);
        }
        FUZZ_CHECK(q == step->q_bytes && k == step->k_bytes && v == step->v_bytes);
        proto_step_free(step);
    }
    if (kind == PROTO_FRAME_REPLY)
        for (uint32_t n = 1; n < 3; n++)
            if (proto_step_result_decode(message, n, &result, &err) == COMMON_OK) {
                FUZZ_CHECK(result->n_items == n && result->n_tensors <= 2);
                proto_step_result_free(result);
            }
}

static size_t pack(const ProtobufCMessage *body, uint8_t **out)
{
    size_t len = protobuf_c_message_get_packed_size(body);
    *out = malloc(len + 1);
    FUZZ_CHECK(*out && protobuf_c_message_pack(body, *out) == len);
    return len;
}

static void check_same(const struct proto_message *a, const struct proto_message *b)
{
    uint8_t *pa, *pb;
    FUZZ_CHECK(a->header->method == b->header->method && a->header->request == b->header->request &&
               a->header->remaining_ns == b->header->remaining_ns);
    size_t na = pack(a->body, &pa), nb = pack(b->body, &pb);
    FUZZ_CHECK(na == nb && memcmp(pa, pb, na) == 0);
    free(pa);
    free(pb);
    FUZZ_CHECK(a->n_tensors == b->n_tensors);
    for (size_t i = 0; i < a->n_tensors; i++)
        FUZZ_CHECK(a->tensors[i].bytes == b->tensors[i].bytes && a->tensors[i].dtype == b->tensors[i].dtype &&
                   a->tensors[i].n_dims == b->tensors[i].n_dims &&
                   memcmp(a->tensors[i].dims, b->tensors[i].dims, sizeof a->tensors[i].dims) == 0 &&
                   (a->tensors[i].bytes == 0 ||
                    memcmp(a->tensors[i].data, b->tensors[i].data, a->tensors[i].bytes) == 0));
}

static void encode_again(const struct proto_message *message, uint8_t kind)
{
    struct proto_tensor_out tensors[PROTO_TENSORS_MAX];
    struct common_slice slices[PROTO_TENSORS_MAX];
    char credentials[COMMON_TOKEN_MAX + 1] = "";
    const ProtobufCBinaryData *given = &message->header->credentials;
    if (given->len > COMMON_TOKEN_MAX || (given->len > 0 && memchr(given->data, 0, given->len)))
        return; // encoding takes them as a string
    if (given->len > 0)
        memcpy(credentials, given->data, given->len);
    for (size_t i = 0; i < message->n_tensors; i++) {
        slices[i] = (struct common_slice){message->tensors[i].data, message->tensors[i].bytes};
        tensors[i] = (struct proto_tensor_out){.dtype = message->tensors[i].dtype,
                                               .n_dims = message->tensors[i].n_dims,
                                               .pieces = &slices[i],
                                               .n_pieces = 1};
        memcpy(tensors[i].dims, message->tensors[i].dims, sizeof tensors[i].dims);
    }
    struct proto_outgoing outgoing = {.kind = kind,
                                      .method = message->header->method,
                                      .request = message->header->request,
                                      .remaining_ns = message->header->remaining_ns,
                                      .credentials = given->len > 0 ? credentials : NULL,
                                      .status = message->header->status,
                                      .body = message->body,
                                      .tensors = tensors,
                                      .n_tensors = message->n_tensors,
                                      .summed = message->summed};
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    struct common_error err;
    enum common_code code = proto_frame_encode(&scratch, &outgoing, PROTO_PAYLOAD_MAX, &gather, &err);
    // The same said in more bytes may be above the limit: unknown fields are kept, lengths may have been
    // shorter.
    FUZZ_CHECK(code == COMMON_OK || code == COMMON_RESOURCE_EXHAUSTED);
    if (code == COMMON_OK) {
        void *bytes;
        size_t at = 0;
        FUZZ_CHECK(gather.bytes % 64 == 0 && posix_memalign(&bytes, 64, gather.bytes) == 0);
        for (size_t i = 0; i < gather.n; i++) {
            memcpy((uint8_t *)bytes + at, gather.iov[i].iov_base, gather.iov[i].iov_len);
            at += gather.iov[i].iov_len;
        }
        FUZZ_CHECK(at == gather.bytes);
        uint8_t kind_again;
        struct proto_message *again = take(bytes, at, &kind_again);
        FUZZ_CHECK(again && kind_again == kind);
        if (fill(again, kind)) // a message may take 32 times its bytes: of fewer bytes less
            check_same(message, again);
        else
            FUZZ_CHECK(again->header->body.len < message->header->body.len);
        proto_message_release(&pool, again);
        free(bytes);
    }
    proto_scratch_fini(&scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    size_t len;
    uint8_t kind, *frame = fuzz_frame(&in, &len);
    if (!frame)
        return 0;
    struct proto_message *message = take(frame, len, &kind);
    free(frame);
    if (!message)
        return 0;
    if (fill(message, kind)) {
        if (message->header->method == BANYAN__PB__METHOD__METHOD_STEP)
            decode_step(message, kind);
        encode_again(message, kind);
    }
    proto_message_release(&pool, message);
    return 0;
}
