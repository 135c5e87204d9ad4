// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/codec.h"

#include <endian.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash/hash.h"
#include "proto/model/limits.h"

static struct proto_pool pool;
static uint64_t seed = 20261120;

static uint64_t rnd(void)
{
    return common_mix64(seed++);
}

// A frame in a blob, as a transport would have it.
static struct common_blob *blob_of(const struct proto_gather *gather)
{
    struct common_blob *blob = common_blob_new(gather->bytes);
    assert_non_null(blob);
    size_t at = 0;
    for (size_t i = 0; i < gather->n; i++) {
        memcpy(blob->data + at, gather->iov[i].iov_base, gather->iov[i].iov_len);
        at += gather->iov[i].iov_len;
    }
    assert_int_equal(at, gather->bytes);
    return blob;
}

// The same from a header that the generated code packs: what another implementation would send.
static struct common_blob *blob_of_header(const Banyan__Pb__Header *header, size_t payload)
{
    struct proto_prefix prefix = {.version = PROTO_VERSION,
                                  .kind = PROTO_FRAME_REQUEST,
                                  .header_len = (uint32_t)banyan__pb__header__get_packed_size(header),
                                  .payload_len = payload};
    size_t total, at = proto_frame_payload_at(prefix.header_len);
    assert_true(proto_frame_total(&prefix, PROTO_HEADER_MAX, UINT64_MAX / 4, &total));
    struct common_blob *blob = common_blob_new(total);
    assert_non_null(blob);
    memset(blob->data, 0, total);
    proto_prefix_encode(&prefix, blob->data);
    banyan__pb__header__pack(header, blob->data + PROTO_PREFIX_BYTES);
    for (size_t i = 0; i < payload; i++)
        blob->data[at + i] = (uint8_t)i;
    return blob;
}

static enum common_code open_blob(struct common_blob *blob, struct proto_message **out,
                                  struct common_error *err)
{
    struct proto_prefix prefix;
    enum common_code code = proto_prefix_decode(blob->data, &prefix, err);
    bool sums = false;
    return code == COMMON_OK ? proto_message_open(&pool, &prefix, blob, 0, &sums, out, err) : code;
}

// Opens and fills; the message is released again.
static enum common_code check(struct common_blob *blob, const ProtobufCMessageDescriptor *descriptor)
{
    struct proto_message *message;
    struct common_error err;
    enum common_code code = open_blob(blob, &message, &err);
    if (code != COMMON_OK)
        return code;
    code = proto_message_fill(message, descriptor, &err);
    if (code != COMMON_OK)
        assert_true(err.message[0] != 0);
    proto_message_release(&pool, message);
    return code;
}

static void test_types_are_sound(void **state)
{
    (void)state;
    char why[160] = "";
    if (!proto_codec_sound(why, sizeof why))
        fail_msg("%s", why);
    for (uint32_t i = 0; i < PROTO_METHOD_LIMIT; i++) {
        const struct proto_method_info *info = proto_codec_method(i);
        assert_true(!info || (info->method == i && info->name && info->request && info->reply));
    }
    assert_null(proto_codec_method(PROTO_METHOD_LIMIT));
    assert_null(proto_codec_method(UINT32_MAX));
    // Every number of the enum but "unspecified" and the one-way CANCEL has its entry.
    const ProtobufCEnumDescriptor *methods = &banyan__pb__method__descriptor;
    for (unsigned i = 0; i < methods->n_values; i++) {
        int value = methods->values[i].value;
        bool has = proto_codec_method((uint32_t)value) != NULL;
        assert_int_equal(has, value != 0 && value != BANYAN__PB__METHOD__METHOD_CANCEL);
    }
}

static void put_checksum(uint8_t bytes[PROTO_PREFIX_BYTES])
{
    uint64_t sum = 0, word;
    for (size_t i = 0; i < 3; i++) {
        memcpy(&word, bytes + 8 * i, sizeof word);
        sum = common_mix64(sum ^ le64toh(word));
    }
    sum = htole64(sum);
    memcpy(bytes + 24, &sum, sizeof sum);
}

static void test_prefix(void **state)
{
    (void)state;
    struct proto_prefix prefix = {.version = PROTO_VERSION,
                                  .kind = PROTO_FRAME_REPLY,
                                  .header_len = 12345,
                                  .payload_len = UINT64_C(1) << 40},
                        back;
    uint8_t bytes[PROTO_PREFIX_BYTES];
    proto_prefix_encode(&prefix, bytes);
    assert_memory_equal(bytes, "BNYN", 4);
    assert_int_equal(proto_prefix_decode(bytes, &back, NULL), COMMON_OK);
    assert_int_equal(back.kind, prefix.kind);
    assert_int_equal(back.header_len, prefix.header_len);
    assert_int_equal(back.payload_len, prefix.payload_len);
    for (unsigned bit = 0; bit < PROTO_PREFIX_BYTES * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(proto_prefix_decode(bytes, &back, NULL), COMMON_OK);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    prefix.version = PROTO_VERSION + 1;
    proto_prefix_encode(&prefix, bytes);
    assert_int_equal(proto_prefix_decode(bytes, &back, NULL), COMMON_FAILED_PRECONDITION);
    prefix.version = PROTO_VERSION;
    prefix.kind = 4;
    proto_prefix_encode(&prefix, bytes);
    assert_int_equal(proto_prefix_decode(bytes, &back, NULL), COMMON_INVALID_ARGUMENT);
    // Flags and lengths that only a later version could mean, with a checksum that is right.
    for (int at = 7; at <= 12; at += 5) {
        prefix.kind = PROTO_FRAME_REPLY;
        proto_prefix_encode(&prefix, bytes);
        bytes[at] = 1;
        put_checksum(bytes);
        assert_int_equal(proto_prefix_decode(bytes, &back, NULL), COMMON_INVALID_ARGUMENT);
        bytes[at] = 0;
        put_checksum(bytes);
        assert_int_equal(proto_prefix_decode(bytes, &back, NULL), COMMON_OK);
    }
}

static void test_lengths_cannot_wrap(void **state)
{
    (void)state;
    static const uint64_t payloads[] = {UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 63, UINT64_MAX - 64,
                                        UINT64_MAX - 128};
    size_t total;
    for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
        struct proto_prefix prefix = {.version = PROTO_VERSION,
                                      .kind = PROTO_FRAME_REQUEST,
                                      .header_len = 100,
                                      .payload_len = payloads[i]};
        assert_false(proto_frame_total(&prefix, PROTO_HEADER_MAX, PROTO_PAYLOAD_MAX, &total));
        assert_true(!proto_frame_total(&prefix, PROTO_HEADER_MAX, UINT64_MAX, &total) ||
                    total >= payloads[i]);
    }
    struct proto_prefix prefix = {.version = PROTO_VERSION,
                                  .kind = PROTO_FRAME_REQUEST,
                                  .header_len = PROTO_HEADER_MAX + 1,
                                  .payload_len = 0};
    assert_false(proto_frame_total(&prefix, PROTO_HEADER_MAX, PROTO_PAYLOAD_MAX, &total));
    // A limit is the last length that is taken.
    prefix.header_len = PROTO_HEADER_MAX;
    prefix.payload_len = PROTO_PAYLOAD_MAX;
    assert_true(proto_frame_total(&prefix, PROTO_HEADER_MAX, PROTO_PAYLOAD_MAX, &total));
    prefix.payload_len++;
    assert_false(proto_frame_total(&prefix, PROTO_HEADER_MAX, PROTO_PAYLOAD_MAX, &total));
    prefix.payload_len = 0;
    prefix.header_len = UINT32_MAX;
    assert_false(proto_frame_total(&prefix, PROTO_HEADER_MAX, PROTO_PAYLOAD_MAX, &total));
}

// What we write by hand is what the generated code reads, and the other way round.
static void test_headers_agree_with_the_generated_code(void **state)
{
    (void)state;
    struct proto_scratch scratch = {0};
    for (int round = 0; round < 3000; round++) {
        static uint8_t bytes[4096];
        struct common_slice slices[8];
        struct proto_tensor_out tensors[8];
        size_t n = rnd() % 9, payload = 0;
        for (size_t i = 0; i < n; i++) {
            static const uint32_t types[] = {BANYAN__PB__DTYPE__DTYPE_F32, BANYAN__PB__DTYPE__DTYPE_F16,
                                             BANYAN__PB__DTYPE__DTYPE_U8};
            tensors[i] = (struct proto_tensor_out){
                .dtype = types[rnd() % 3], .n_dims = 1 + rnd() % 4, .pieces = &slices[i], .n_pieces = 1};
            size_t len = proto_dtype_size(tensors[i].dtype);
            for (uint32_t k = 0; k < tensors[i].n_dims; k++) {
                tensors[i].dims[k] = rnd() % 5;
                len *= tensors[i].dims[k];
            }
            slices[i] = (struct common_slice){bytes, len};
        }
        Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
        body.service = rnd() % 2 ? "some service" : "";
        Banyan__Pb__Status status = BANYAN__PB__STATUS__INIT;
        status.code = 9;
        status.message = "no";
        struct proto_outgoing outgoing = {
            .kind = PROTO_FRAME_REQUEST,
            .method = (uint32_t)(rnd() % 200),
            .request = rnd() % 3 ? rnd() : 0,
            .remaining_ns = rnd() % 3 ? rnd() : 0,
            .credentials = rnd() % 2 ? "token" : NULL,
            .status = rnd() % 2 ? &status : NULL,
            .body = rnd() % 2 ? &body.base : NULL,
            .tensors = tensors,
            .n_tensors = n,
        };
        struct proto_gather gather;
        assert_int_equal(proto_frame_encode(&scratch, &outgoing, PROTO_PAYLOAD_MAX, &gather, NULL),
                         COMMON_OK);
        struct common_blob *blob = blob_of(&gather);
        struct proto_prefix prefix;
        assert_int_equal(proto_prefix_decode(blob->data, &prefix, NULL), COMMON_OK);
        Banyan__Pb__Header *theirs =
            banyan__pb__header__unpack(NULL, prefix.header_len, blob->data + PROTO_PREFIX_BYTES);
        assert_non_null(theirs);
        assert_int_equal(theirs->method, outgoing.method);
        assert_int_equal(theirs->request, outgoing.request);
        assert_int_equal(theirs->remaining_ns, outgoing.remaining_ns);
        assert_int_equal(theirs->credentials.len, outgoing.credentials ? 5 : 0);
        assert_int_equal(theirs->status != NULL, outgoing.status != NULL);
        assert_int_equal(theirs->n_tensors, n);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(theirs->tensors[i]->offset, (payload + 63) / 64 * 64);
            assert_int_equal(theirs->tensors[i]->bytes, slices[i].len);
            assert_int_equal(theirs->tensors[i]->n_dims, tensors[i].n_dims);
            payload = theirs->tensors[i]->offset + theirs->tensors[i]->bytes;
        }
        assert_int_equal(prefix.payload_len, payload);
        struct common_blob *again = blob_of_header(theirs, payload);
        struct proto_message *message;
        assert_int_equal(open_blob(again, &message, NULL), COMMON_OK);
        assert_int_equal(message->header->request, outgoing.request);
        assert_int_equal(message->header->status != NULL, outgoing.status != NULL);
        assert_int_equal(proto_message_fill(message, &banyan__pb__health_check_request__descriptor, NULL),
                         COMMON_OK);
        assert_int_equal(message->n_tensors, n);
        for (size_t i = 0; i < n; i++)
            assert_memory_equal(message->tensors[i].dims, tensors[i].dims,
                                tensors[i].n_dims * sizeof(uint64_t));
        assert_string_equal(((Banyan__Pb__HealthCheckRequest *)(void *)message->body)->service,
                            outgoing.body ? body.service : "");
        proto_message_release(&pool, message);
        common_blob_unref(again);
        common_blob_unref(blob);
        if (outgoing.remaining_ns) { // a frame that waited has another time
            proto_gather_set_remaining(&gather, 12345);
            blob = blob_of(&gather);
            assert_int_equal(open_blob(blob, &message, NULL), COMMON_OK);
            assert_int_equal(message->header->remaining_ns, 12345);
            assert_int_equal(message->header->request, outgoing.request);
            proto_message_release(&pool, message);
            common_blob_unref(blob);
        }
        banyan__pb__header__free_unpacked(theirs, NULL);
    }
    proto_scratch_fini(&scratch);
}

static void test_wrong_tensors(void **state)
{
    (void)state;
    struct wrong {
        Banyan__Pb__Dtype dtype;
        size_t n_dims;
        uint64_t dims[5], offset, bytes, payload;
        bool opens;
    };
    static const struct wrong wrongs[] = {
        {BANYAN__PB__DTYPE__DTYPE_U8, 1, {64}, 0, 64, 63, true},               // beyond the payload
        {BANYAN__PB__DTYPE__DTYPE_U8, 1, {64}, 0, 64, 65, true},               // payload without an owner
        {BANYAN__PB__DTYPE__DTYPE_U8, 1, {64}, 0, 63, 64, true},               // shape and bytes differ
        {BANYAN__PB__DTYPE__DTYPE_U8, 1, {64}, 64, 64, 128, true},             // a gap before it
        {BANYAN__PB__DTYPE__DTYPE_U8, 1, {1}, 1, 1, 2, true},                  // not aligned
        {BANYAN__PB__DTYPE__DTYPE_U8, 1, {64}, UINT64_MAX - 63, 64, 64, true}, // offset + bytes wraps
        {BANYAN__PB__DTYPE__DTYPE_U8, 2, {UINT64_C(1) << 32, UINT64_C(1) << 32}, 0, 0, 0, true}, // product
                                                                                                 // wraps to 0
        {BANYAN__PB__DTYPE__DTYPE_F32, 1, {UINT64_C(1) << 62}, 0, 0, 0, true}, // × size wraps to 0
        {BANYAN__PB__DTYPE__DTYPE_F32,
         4,
         {UINT64_C(1) << 20, UINT64_C(1) << 20, UINT64_C(1) << 20, 4},
         0,
         0,
         0,
         true},
        {BANYAN__PB__DTYPE__DTYPE_U8, 0, {0}, 0, 1, 1, true},              // no dimensions
        {BANYAN__PB__DTYPE__DTYPE_U8, 5, {1, 1, 1, 1, 1}, 0, 1, 1, false}, // five
        {BANYAN__PB__DTYPE__DTYPE_UNSPECIFIED, 1, {1}, 0, 1, 1, true},
        {BANYAN__PB__DTYPE__DTYPE_INT8, 1, {1}, 0, 1, 1, true}, // reserved
        {(Banyan__Pb__Dtype)77, 1, {1}, 0, 1, 1, true},
        {(Banyan__Pb__Dtype)-1, 1, {1}, 0, 1, 1, true},
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        Banyan__Pb__Tensor tensor = BANYAN__PB__TENSOR__INIT, *list[] = {&tensor};
        Banyan__Pb__Header header = BANYAN__PB__HEADER__INIT;
        tensor.dtype = wrongs[i].dtype;
        tensor.n_dims = wrongs[i].n_dims;
        tensor.dims = (uint64_t *)wrongs[i].dims;
        tensor.offset = wrongs[i].offset;
        tensor.bytes = wrongs[i].bytes;
        header.n_tensors = 1;
        header.tensors = list;
        struct common_blob *blob = blob_of_header(&header, wrongs[i].payload);
        struct proto_message *message = NULL;
        struct common_error err;
        assert_int_equal(open_blob(blob, &message, &err) == COMMON_OK, wrongs[i].opens);
        if (message) {
            assert_int_equal(proto_message_fill(message, &banyan__pb__health_check_request__descriptor, &err),
                             COMMON_INVALID_ARGUMENT);
            assert_int_equal(message->n_tensors, 0);
            proto_message_release(&pool, message);
        }
        common_blob_unref(blob);
    }
    // Two tensors that overlap, and 65 of them.
    Banyan__Pb__Tensor two[2] = {BANYAN__PB__TENSOR__INIT, BANYAN__PB__TENSOR__INIT}, *list[65];
    uint64_t dims[] = {64};
    for (int i = 0; i < 2; i++) {
        two[i].dtype = BANYAN__PB__DTYPE__DTYPE_U8;
        two[i].n_dims = 1;
        two[i].dims = dims;
        two[i].bytes = 64;
        list[i] = &two[i];
    }
    Banyan__Pb__Header header = BANYAN__PB__HEADER__INIT;
    header.n_tensors = 2;
    header.tensors = list;
    struct common_blob *blob = blob_of_header(&header, 64);
    assert_int_equal(check(blob, &banyan__pb__health_check_request__descriptor), COMMON_INVALID_ARGUMENT);
    common_blob_unref(blob);
    dims[0] = 0;
    two[0].bytes = 0;
    for (int i = 0; i < 65; i++)
        list[i] = &two[0];
    for (header.n_tensors = 64; header.n_tensors <= 65; header.n_tensors++) {
        blob = blob_of_header(&header, 0);
        assert_int_equal(check(blob, &banyan__pb__health_check_request__descriptor) == COMMON_OK,
                         header.n_tensors == 64);
        common_blob_unref(blob);
    }
}

// A body for a scan, wrapped in nothing.
static enum common_code unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data, size_t len,
                               size_t *used)
{
    struct proto_arena *arena = malloc(sizeof *arena);
    assert_non_null(arena);
    ProtobufCMessage *message;
    struct common_error err;
    proto_arena_init(arena);
    enum common_code code = proto_codec_unpack(arena, descriptor, data, len, &message, &err);
    *used = arena->used;
    assert_true(arena->used <= 32 * len + 4096);
    proto_arena_fini(arena);
    free(arena);
    return code;
}

static void test_counts_are_limited(void **state)
{
    (void)state;
    size_t used, max = 1 << 20;
    uint8_t *bytes = malloc(max);
    assert_non_null(bytes);
    // Empty sub-messages: two bytes each unpack to a hundred.
    static const struct {
        const ProtobufCMessageDescriptor *type;
        uint8_t field;
        unsigned limit;
    } cases[] = {
        {&banyan__pb__attend_request__descriptor, 1, 4096},
        {&banyan__pb__session_list_reply__descriptor, 1, 256},
        {&banyan__pb__layout_set_request__descriptor, 7, 1024},
        {&banyan__pb__step_request__descriptor, 7, 4096},
        {&banyan__pb__layer_info__descriptor, 2, 64},
        {&banyan__pb__status__descriptor, 3, 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; k < max; k += 2) {
            bytes[k] = (uint8_t)(cases[i].field << 3 | 2);
            bytes[k + 1] = 0;
        }
        assert_int_equal(unpack(cases[i].type, bytes, max, &used), COMMON_INVALID_ARGUMENT);
        assert_int_equal(used, 0); // refused before anything was allocated
        assert_int_equal(unpack(cases[i].type, bytes, 2 * (cases[i].limit + 1), &used),
                         COMMON_INVALID_ARGUMENT);
        assert_int_equal(used, 0);
    }
    // Within the counts but far above its size when unpacked: the arena's budget ends it.
    assert_int_equal(unpack(&banyan__pb__session_list_reply__descriptor, bytes, 0, &used), COMMON_OK);
    for (size_t k = 0; k < 512; k += 2)
        bytes[k] = 1 << 3 | 2;
    enum common_code code = unpack(&banyan__pb__session_list_reply__descriptor, bytes, 512, &used);
    assert_true(code == COMMON_OK || code == COMMON_INVALID_ARGUMENT); // used is checked above
    // Strings and bytes.
    Banyan__Pb__Status status = BANYAN__PB__STATUS__INIT;
    char text[1026];
    memset(text, 'x', sizeof text);
    for (size_t len = 1024; len <= 1025; len++) {
        text[len] = 0;
        status.message = text;
        size_t n = banyan__pb__status__pack(&status, bytes);
        assert_int_equal(unpack(&banyan__pb__status__descriptor, bytes, n, &used) == COMMON_OK, len == 1024);
        text[len] = 'x';
    }
    // Packed and loose scalars count alike: holders [16].
    for (unsigned n = 16; n <= 17; n++) {
        bytes[0] = 4 << 3 | 2;
        bytes[1] = (uint8_t)n;
        memset(bytes + 2, 1, n);
        assert_int_equal(unpack(&banyan__pb__append_run__descriptor, bytes, n + 2, &used) == COMMON_OK,
                         n == 16);
        for (unsigned k = 0; k < n; k++) {
            bytes[2 * k] = 4 << 3;
            bytes[2 * k + 1] = 1;
        }
        assert_int_equal(unpack(&banyan__pb__append_run__descriptor, bytes, 2 * n, &used) == COMMON_OK,
                         n == 16);
    }
    free(bytes);
}

static void test_malformed_bodies(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
    } cases[] = {
        {"\x08", 1},                                              // a key without its value
        {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11},     // a varint above 64 bits
        {"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 12}, // eleven bytes of varint
        {"\x0a\x05"
         "ab",
         4},                                                  // a string beyond the end
        {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11}, // a length of 2^64 − 1
        {"\x0b\x0c", 2},                                      // a group
        {"\x00\x01", 2},                                      // field 0
        {"\x08\x01", 2},                                      // a string as a varint
        {"\x09\x01\x02", 3},                                  // a short fixed64
        {"\x0d\x01\x02", 3},                                  // a short fixed32
    };
    size_t used;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(unpack(&banyan__pb__health_check_request__descriptor,
                                (const uint8_t *)cases[i].bytes, cases[i].len, &used),
                         COMMON_INVALID_ARGUMENT);
    // Unknown fields of a newer peer are skipped, a flood of them is not.
    uint8_t unknown[34];
    for (size_t k = 0; k < sizeof unknown; k += 2) {
        unknown[k] = 15 << 3;
        unknown[k + 1] = 1;
    }
    assert_int_equal(unpack(&banyan__pb__health_check_request__descriptor, unknown, 32, &used), COMMON_OK);
    assert_int_equal(unpack(&banyan__pb__health_check_request__descriptor, unknown, 34, &used),
                     COMMON_INVALID_ARGUMENT);
}

// A rich valid frame: status, credentials, tensors and a body with nested lists.
static struct common_blob *rich_frame(void)
{
    static uint8_t bytes[300];
    Banyan__Pb__AppendRun run = BANYAN__PB__APPEND_RUN__INIT, *runs[] = {&run, &run};
    uint32_t holders[] = {0, 1, 2};
    run.chunk = 77;
    run.rows = 3;
    run.n_holders = 3;
    run.holders = holders;
    Banyan__Pb__StepItem item = BANYAN__PB__STEP_ITEM__INIT, *items[] = {&item, &item, &item};
    item.session = 1234567;
    item.rows = 6;
    item.n_append = 2;
    item.append = runs;
    Banyan__Pb__StepRequest body = BANYAN__PB__STEP_REQUEST__INIT;
    body.n_items = 3;
    body.items = items;
    Banyan__Pb__Detail detail = BANYAN__PB__DETAIL__INIT, *details[] = {&detail};
    Banyan__Pb__Range range = BANYAN__PB__RANGE__INIT, *ranges[] = {&range, &range};
    char *workers[] = {"w0", "w1"};
    detail.reason = "HOLE";
    detail.n_ranges = detail.n_workers = 2;
    detail.ranges = ranges;
    detail.workers = workers;
    Banyan__Pb__Status status = BANYAN__PB__STATUS__INIT;
    status.message = "a message";
    status.n_details = 1;
    status.details = details;
    struct common_slice slice = {bytes, 300};
    struct proto_tensor_out tensors[] = {{BANYAN__PB__DTYPE__DTYPE_F32, 3, {3, 5, 5}, &slice, 1},
                                         {BANYAN__PB__DTYPE__DTYPE_U8, 1, {300}, &slice, 1}};
    struct proto_outgoing outgoing = {.kind = PROTO_FRAME_REQUEST,
                                      .method = BANYAN__PB__METHOD__METHOD_STEP,
                                      .request = 99,
                                      .remaining_ns = 1000000,
                                      .credentials = "a token",
                                      .status = &status,
                                      .body = &body.base,
                                      .tensors = tensors,
                                      .n_tensors = 2};
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    assert_int_equal(proto_frame_encode(&scratch, &outgoing, PROTO_PAYLOAD_MAX, &gather, NULL), COMMON_OK);
    struct common_blob *blob = blob_of(&gather);
    proto_scratch_fini(&scratch);
    return blob;
}

// Whatever is accepted lies inside the frame.
static void check_invariants(const struct proto_message *message, const struct common_blob *blob)
{
    for (size_t i = 0; i < message->n_tensors; i++) {
        const uint8_t *data = message->tensors[i].data;
        assert_true(data >= blob->data && data <= blob->data + blob->len);
        assert_true(message->tensors[i].bytes <= (size_t)(blob->data + blob->len - data));
        assert_int_equal((uintptr_t)data % 64, 0);
        uint64_t product = proto_dtype_size(message->tensors[i].dtype);
        for (uint32_t k = 0; k < message->tensors[i].n_dims; k++)
            product *= message->tensors[i].dims[k];
        assert_int_equal(product, message->tensors[i].bytes);
    }
}

enum { MUTATIONS = 200000 };

static void test_mutations(void **state)
{
    (void)state;
    struct common_blob *valid = rich_frame();
    struct proto_prefix prefix;
    assert_int_equal(proto_prefix_decode(valid->data, &prefix, NULL), COMMON_OK);
    assert_int_equal(check(valid, &banyan__pb__step_request__descriptor), COMMON_OK);
    unsigned accepted = 0, refused = 0;
    for (unsigned round = 0; round < MUTATIONS; round++) {
        // Exactly as long as it is, so that the address sanitizer sees a byte beyond.
        struct common_blob *blob = common_blob_new(valid->len);
        assert_non_null(blob);
        memcpy(blob->data, valid->data, valid->len);
        struct proto_prefix said = prefix;
        for (unsigned n = 1 + rnd() % 4; n > 0; n--) {
            size_t at = PROTO_PREFIX_BYTES + rnd() % prefix.header_len;
            switch (rnd() % 4) {
            case 0:
                blob->data[at] ^= (uint8_t)(1 << rnd() % 8);
                break;
            case 1:
                blob->data[at] = (uint8_t)rnd();
                break;
            case 2:
                blob->data[at] = rnd() % 2 ? 0xff : 0;
                break;
            default: { // a run of the header moves
                size_t from = PROTO_PREFIX_BYTES + rnd() % prefix.header_len, len = rnd() % 16;
                size_t end = PROTO_PREFIX_BYTES + prefix.header_len;
                if (from + len <= end && at + len <= end)
                    memmove(blob->data + at, blob->data + from, len);
            }
            }
        }
        if (rnd() % 8 == 0)
            said.header_len = (uint32_t)(rnd() % (prefix.header_len + 1)); // truncated
        if (rnd() % 8 == 0)
            said.payload_len = rnd() % (prefix.payload_len + 1);
        struct proto_message *message;
        struct common_error err;
        bool sums = false;
        enum common_code code = proto_message_open(&pool, &said, blob, 0, &sums, &message, &err);
        if (code == COMMON_OK) {
            code = proto_message_fill(message, &banyan__pb__step_request__descriptor, &err);
            if (code == COMMON_OK)
                check_invariants(message, blob);
            proto_message_release(&pool, message);
        }
        accepted += code == COMMON_OK;
        refused += code != COMMON_OK;
        common_blob_unref(blob);
    }
    assert_true(refused > MUTATIONS / 2);
    assert_true(accepted > 100); // the loop does reach the end of the checks
    common_blob_unref(valid);
}

static void test_truncations_and_garbage(void **state)
{
    (void)state;
    struct common_blob *valid = rich_frame();
    struct proto_prefix prefix;
    struct proto_message *message;
    assert_int_equal(proto_prefix_decode(valid->data, &prefix, NULL), COMMON_OK);
    for (size_t len = 0; len < valid->len; len += 64) { // a frame that is not all there
        struct common_blob *part = common_blob_new(len);
        assert_non_null(part);
        memcpy(part->data, valid->data, len);
        bool sums = false;
        assert_int_equal(proto_message_open(&pool, &prefix, part, 0, &sums, &message, NULL),
                         COMMON_INVALID_ARGUMENT);
        common_blob_unref(part);
    }
    for (int round = 0; round < 20000; round++) {
        uint8_t bytes[PROTO_PREFIX_BYTES];
        for (size_t i = 0; i < sizeof bytes; i += 8)
            memcpy(bytes + i, &(uint64_t){rnd()}, 8);
        if (round % 2)
            memcpy(bytes, valid->data, 8); // with the right magic and version
        assert_int_not_equal(proto_prefix_decode(bytes, &(struct proto_prefix){0}, NULL), COMMON_OK);
    }
    common_blob_unref(valid);
}

static void test_limits_of_sending(void **state)
{
    (void)state;
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    struct common_slice slice = {"", 0};
    struct proto_tensor_out tensors[65];
    for (int i = 0; i < 65; i++)
        tensors[i] = (struct proto_tensor_out){BANYAN__PB__DTYPE__DTYPE_U8, 1, {0}, &slice, 1};
    struct proto_outgoing outgoing = {.kind = PROTO_FRAME_REQUEST, .tensors = tensors, .n_tensors = 65};
    assert_int_equal(proto_frame_encode(&scratch, &outgoing, 100, &gather, NULL), COMMON_INVALID_ARGUMENT);
    uint8_t bytes[128] = {0};
    struct common_slice big = {bytes, 101};
    tensors[0] = (struct proto_tensor_out){BANYAN__PB__DTYPE__DTYPE_U8, 1, {101}, &big, 1};
    outgoing.n_tensors = 1;
    assert_int_equal(proto_frame_encode(&scratch, &outgoing, 100, &gather, NULL), COMMON_RESOURCE_EXHAUSTED);
    assert_int_equal(proto_frame_encode(&scratch, &outgoing, 101, &gather, NULL), COMMON_OK);
    // A body above the header's limit.
    char *text = malloc(PROTO_HEADER_MAX + 1);
    assert_non_null(text);
    memset(text, 'x', PROTO_HEADER_MAX);
    text[PROTO_HEADER_MAX] = 0;
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    body.service = text;
    outgoing = (struct proto_outgoing){.kind = PROTO_FRAME_REQUEST, .body = &body.base};
    assert_int_equal(proto_frame_encode(&scratch, &outgoing, 100, &gather, NULL), COMMON_RESOURCE_EXHAUSTED);
    text[PROTO_HEADER_MAX - 8] = 0;
    assert_int_equal(proto_frame_encode(&scratch, &outgoing, 100, &gather, NULL), COMMON_OK);
    free(text);
    proto_scratch_fini(&scratch);
}

static int teardown(void **state)
{
    (void)state;
    proto_pool_fini(&pool);
    return 0;
}

// ---- the numbers in brackets in banyan.proto are those of proto/model/limits.h
// ------------------------------------

static const ProtobufCMessageDescriptor *type_named(const char *name, size_t len)
{
    static const ProtobufCMessageDescriptor *const types[] = {
#define TYPE(message, field, most) &banyan__pb__##message##__descriptor,
        PROTO_LIMITS(TYPE)
#undef TYPE
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strlen(types[i]->short_name) == len && memcmp(types[i]->short_name, name, len) == 0)
            return types[i];
    return NULL;
}

// The number in the brackets that a field's comment has: behind "field: " where the line has several fields,
// else the first one. 0: there is none.
static unsigned written_limit(const char *line, const char *field)
{
    const char *comment = strstr(line, "//");
    char label[80];
    snprintf(label, sizeof label, "%s: ", field);
    const char *from = comment ? strstr(comment, label) : NULL;
    unsigned n = 0;
    int end = 0;
    for (const char *at = from ? from : comment; at && (at = strchr(at, '[')); at++)
        if ((sscanf(at, "[%u]%n", &n, &end) == 1 && end > 0) ||
            (sscanf(at, "[%u bytes]%n", &n, &end) == 1 && end > 0))
            return n;
    return 0;
}

static void test_limits_are_as_written(void **state)
{
    (void)state;
    char path[4096], line[1024];
    snprintf(path, sizeof path, "%s/proto/banyan.proto", getenv("BANYAN_SOURCE_DIR"));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    const ProtobufCMessageDescriptor *type = NULL;
    unsigned n_seen = 0, n_limits = 0;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "message ", 8) == 0)
            type = type_named(line + 8, strcspn(line + 8, " {"));
        for (unsigned i = 0; type && i < type->n_fields; i++) {
            const ProtobufCFieldDescriptor *field = &type->fields[i];
            char declared[100];
            snprintf(declared, sizeof declared, " %s = %u;", field->name, field->id);
            if (!strstr(line, declared))
                continue;
            unsigned limit = proto_codec_limit(type, field->name), written = written_limit(line, field->name);
            n_seen += limit > 0;
            if (limit == PROTO_HEADER_MAX && written == 0)
                continue; // of the whole header
            bool alone = strstr(line, "message ") == NULL;
            if (limit != written && (limit > 0 || alone))
                fail_msg("%s.%s: %u in proto/model/limits.h, %u in banyan.proto: %s", type->short_name,
                         field->name, limit, written, line);
        }
    }
    fclose(file);
#define ONE(message, field, most) n_limits++;
    PROTO_LIMITS(ONE)
#undef ONE
    assert_int_equal(n_seen, n_limits); // each was found
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_are_sound),
        cmocka_unit_test(test_limits_are_as_written),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_lengths_cannot_wrap),
        cmocka_unit_test(test_headers_agree_with_the_generated_code),
        cmocka_unit_test(test_wrong_tensors),
        cmocka_unit_test(test_counts_are_limited),
        cmocka_unit_test(test_malformed_bodies),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_truncations_and_garbage),
        cmocka_unit_test(test_limits_of_sending),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
