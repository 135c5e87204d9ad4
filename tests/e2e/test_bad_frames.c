// SPDX-License-Identifier: Apache-2.0
// Bad frames and bad requests by raw sockets, to the coordinator and to workers: each is refused with its own
// status and sentence, or its link closed where nothing can be answered, and changes nothing. Clients that
// are slow, vanish or do not read cost nothing but their own step. Prints a table.
#include "common/base/random.h"
#include "tests/e2e/witness.h"

#include <inttypes.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "proto/rights/ticket.h"
#include "tests/e2e/wire.h"

// ---- by hand ----------------------------------------------------------------------------------------------

static uint64_t request_id = 100;

// Sends a request on an established link. Afterwards the link must be as good as before.
static struct wire_answer call(int fd, uint32_t method, const ProtobufCMessage *body,
                               const struct proto_tensor_out *tensors, size_t n_tensors)
{
    struct wire_frame frame = wire_request(method, ++request_id, body, tensors, n_tensors);
    assert_true(wire_send(fd, frame.bytes, frame.len));
    free(frame.bytes);
    struct wire_answer answer = wire_read(fd, 30000);
    assert_false(answer.closed || answer.silent);
    assert_int_equal(answer.header->request, request_id);
    return answer;
}

// Takes the answer as if the client library had.
static void judge(const char *input, struct wire_answer *answer, banyan_code want, const char *reason,
                  bool like_before)
{
    *ERR = (banyan_error){.code = (banyan_code)answer->code};
    snprintf(ERR->message, sizeof(ERR->message), "%.380s", answer->message);
    snprintf(ERR->reason, sizeof(ERR->reason), "%.31s", answer->reason);
    banyan_code code = (banyan_code)answer->code;
    wire_answer_free(answer);
    (like_before ? witness_refused_too : witness_refused)(input, code, want, reason);
}

static const char *worker_endpoint(uint32_t nth)
{
    static char endpoint[128];
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(witness_client, &info, ERR));
    assert_true(nth < info.n_workers);
    snprintf(endpoint, sizeof(endpoint), "%s", info.workers[nth].endpoint);
    banyan_cluster_info_free(&info);
    return endpoint;
}

static void requests(void **state)
{
    (void)state;
    int fd = wire_dial(harness_cluster_endpoint(witness_cluster, "tcp"));
    assert_true(wire_hello(fd));
    struct wire_answer a;

    Banyan__Pb__ClusterInfoRequest info = BANYAN__PB__CLUSTER_INFO_REQUEST__INIT;
    Banyan__Pb__SessionInfoRequest session_info = BANYAN__PB__SESSION_INFO_REQUEST__INIT;
    a = call(fd, BANYAN__PB__METHOD__METHOD_SESSION_INFO, &session_info.base, NULL, 0);
    judge("the zero handle", &a, BANYAN_INVALID_ARGUMENT, NULL, false);
    a = call(fd, 77, &info.base, NULL, 0);
    judge("a method that does not exist", &a, BANYAN_UNIMPLEMENTED, NULL, false);
    Banyan__Pb__HeartbeatRequest heartbeat = BANYAN__PB__HEARTBEAT_REQUEST__INIT;
    a = call(fd, BANYAN__PB__METHOD__METHOD_HEARTBEAT, &heartbeat.base, NULL, 0);
    judge("a client that says it is a worker", &a, BANYAN_PERMISSION_DENIED, NULL, false);

    // A body that is no message
    static const uint8_t noise[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                    0xff, 0xff, 0xff, 0x7f, 8,    8,    8};
    Banyan__Pb__Header header = BANYAN__PB__HEADER__INIT;
    header.method = BANYAN__PB__METHOD__METHOD_ATTEND;
    header.request = ++request_id;
    header.remaining_ns = 1000000000;
    header.body = (ProtobufCBinaryData){sizeof(noise), (uint8_t *)(uintptr_t)noise};
    struct wire_frame frame = wire_pack(&header, NULL, 0);
    assert_true(wire_send(fd, frame.bytes, frame.len));
    free(frame.bytes);
    a = wire_read(fd, 30000);
    judge("a body that is no message", &a, BANYAN_INVALID_ARGUMENT, NULL, false);

    // No time left
    frame = wire_encode(&(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                 .method = BANYAN__PB__METHOD__METHOD_CLUSTER_INFO,
                                                 .request = ++request_id,
                                                 .body = &info.base});
    assert_true(wire_send(fd, frame.bytes, frame.len));
    free(frame.bytes);
    a = wire_read(fd, 30000);
    judge("no time left on arrival", &a, BANYAN_DEADLINE_EXCEEDED, NULL, false);

    // A payload above the limit: answered before it comes, then skipped
    struct common_slice none = {0};
    uint64_t huge = PROTO_PAYLOAD_MAX + 64;
    uint8_t *zeros = calloc(1, huge);
    assert_non_null(zeros);
    none = (struct common_slice){zeros, huge};
    struct proto_tensor_out tensor = {
        .dtype = BANYAN__PB__DTYPE__DTYPE_U8, .n_dims = 1, .dims = {huge}, .pieces = &none, .n_pieces = 1};
    Banyan__Pb__AttendRequest attend = BANYAN__PB__ATTEND_REQUEST__INIT;
    a = call(fd, BANYAN__PB__METHOD__METHOD_ATTEND, &attend.base, &tensor, 1);
    judge("an oversize frame", &a, BANYAN_RESOURCE_EXHAUSTED, NULL, false);
    free(zeros);

    a = call(fd, BANYAN__PB__METHOD__METHOD_ATTEND, &attend.base, NULL, 0);
    judge("an attend without items", &a, BANYAN_INVALID_ARGUMENT, NULL, false);
    close(fd);
}

// Items whose numbers do not fit what came with them. A bad item fails alone where it can be distinguished.
static void attend_by_hand(void **state)
{
    (void)state;
    int fd = wire_dial(harness_cluster_endpoint(witness_cluster, "unix"));
    assert_true(wire_hello(fd));
    static const uint8_t trace[26] = {[0] = 1, [16] = 1, [24] = 1}, spanless[26] = {[0] = 1, [24] = 1};
    static uint8_t bytes[8192];
    struct common_slice slice[3] = {{bytes, 512}, {bytes, 256}, {bytes, 256}};
    struct proto_tensor_out tensor[3];
    Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT, *items[1] = {&item};
    Banyan__Pb__AttendRequest attend = BANYAN__PB__ATTEND_REQUEST__INIT;
    attend.n_items = 1;
    attend.items = items;
    item.session = banyan_session_id(witness_session);
    item.rows = 1;
    static const struct {
        const char *input;
        uint32_t rows, append, layer;
        uint64_t q, k, v, first, q_bytes;
        banyan_code want;
        size_t trace_len;
        const uint8_t *trace;
    } bad[] = {
        {"q too short", 1, 0, 0, 256, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT, 0, NULL},
        {"q too long", 1, 0, 0, 1024, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT, 0, NULL},
        {"k too short", 1, 1, 0, 512, 128, 256, WITNESS_TOKENS, 0, BANYAN_INVALID_ARGUMENT, 0, NULL},
        {"v too long", 1, 1, 0, 512, 256, 512, WITNESS_TOKENS, 0, BANYAN_INVALID_ARGUMENT, 0, NULL},
        {"rows 0 by hand", 0, 0, 0, 512, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT, 0, NULL},
        {"5000 rows in an item", 5000, 0, 0, 512, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT, 0, NULL},
        {"2^32 - 1 rows", UINT32_MAX, 0, 0, 512, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT, 0, NULL},
        {"layer 2^31", 1, 0, 1u << 31, 512, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT, 0, NULL},
        {"a position of 2^64 - 1", 1, 0, 0, 512, 0, 0, UINT64_MAX, 0, BANYAN_OUT_OF_RANGE, 0, NULL},
        {"q_bytes that wrap", 1, 0, 0, 512, 0, 0, 5, UINT64_MAX - 100, BANYAN_INVALID_ARGUMENT, 0, NULL},
        {"half a trace", 1, 0, 0, 512, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT, 24, trace},
        {"more than a trace", 1, 0, 0, 512, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT, 26, trace},
        {"a trace of zeros", 1, 0, 0, 512, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT, 25, bytes},
        {"a trace without a span", 1, 0, 0, 512, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT, 25, spanless},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        item.rows = bad[i].rows;
        item.append = bad[i].append;
        item.layer = bad[i].layer;
        item.first = bad[i].first;
        item.q_bytes = bad[i].q_bytes;
        item.trace = (ProtobufCBinaryData){bad[i].trace_len, (uint8_t *)bad[i].trace};
        const uint64_t sizes[3] = {bad[i].q, bad[i].k, bad[i].v};
        for (int t = 0; t < 3; t++) {
            slice[t].len = sizes[t];
            tensor[t] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                                  .n_dims = 1,
                                                  .dims = {sizes[t]},
                                                  .pieces = &slice[t],
                                                  .n_pieces = 1};
        }
        struct wire_answer a =
            call(fd, BANYAN__PB__METHOD__METHOD_ATTEND, &attend.base, tensor, bad[i].append ? 3 : 1);
        banyan_code code = (banyan_code)a.code;
        char message[400];
        snprintf(message, sizeof(message), "%.390s", a.message);
        if (a.code == COMMON_OK) { // the call was answered: the item's own status
            Banyan__Pb__AttendReply *reply = banyan__pb__attend_reply__unpack(NULL, a.body_len, a.body);
            assert_non_null(reply);
            assert_int_equal(reply->n_items, 1);
            assert_non_null(reply->items[0]->status);
            code = (banyan_code)reply->items[0]->status->code;
            snprintf(message, sizeof(message), "%.390s", reply->items[0]->status->message);
            banyan__pb__attend_reply__free_unpacked(reply, NULL);
        }
        wire_answer_free(&a);
        witness_row(bad[i].input, banyan_code_name(code), message);
        if (code != bad[i].want)
            fail_msg("%s: %s, should be %s: %s", bad[i].input, banyan_code_name(code),
                     banyan_code_name(bad[i].want), message);
        assert_true(message[0] != '\0');
        witness_nothing_changed(bad[i].input);
    }
    close(fd);
}

// Rows of codes and scales: what has another size is refused by the item's name for it, and nothing is kept.
static void quantised_rows_by_hand(void **state)
{
    (void)state;
    enum { Q = 4 * 32 * 4, ROW = 2 * (32 + 4), CODES = 2 * 32 };
    banyan_spec spec = witness_spec;
    spec.kv_type = BANYAN_INT8;
    banyan_session *mine;
    OK(banyan_session_create(witness_client, &spec, NULL, &mine, ERR));
    witness_remember(); // with the second session
    int fd = wire_dial(harness_cluster_endpoint(witness_cluster, "unix"));
    assert_true(wire_hello(fd));
    static uint8_t bytes[4096];
    static const struct {
        uint64_t k, v;
        const char *says; // NULL: it is right
    } cases[] = {{CODES, ROW, "k has 64 bytes, the session's shape needs 72"},
                 {ROW, CODES, "v has 64 bytes, the session's shape needs 72"},
                 {ROW, ROW + 4, "v has 76 bytes"},
                 {4 * CODES, 4 * CODES, "k has 256 bytes"},
                 {ROW, ROW, NULL}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT, *items[1] = {&item};
        Banyan__Pb__AttendRequest attend = BANYAN__PB__ATTEND_REQUEST__INIT;
        attend.n_items = 1;
        attend.items = items;
        item.session = banyan_session_id(mine);
        item.rows = 1;
        item.append = true;
        item.k_bytes = cases[i].k;
        item.v_bytes = cases[i].v;
        struct common_slice slice[3] = {{bytes, Q}, {bytes, cases[i].k}, {bytes, cases[i].v}};
        struct proto_tensor_out tensor[3];
        for (int t = 0; t < 3; t++)
            tensor[t] =
                (struct proto_tensor_out){BANYAN__PB__DTYPE__DTYPE_U8, 1, {slice[t].len}, &slice[t], 1};
        struct wire_answer a = call(fd, BANYAN__PB__METHOD__METHOD_ATTEND, &attend.base, tensor, 3);
        assert_int_equal(a.code, COMMON_OK);
        Banyan__Pb__AttendReply *reply = banyan__pb__attend_reply__unpack(NULL, a.body_len, a.body);
        assert_non_null(reply);
        assert_int_equal(reply->n_items, 1);
        const Banyan__Pb__Status *status = reply->items[0]->status;
        if (cases[i].says) {
            assert_non_null(status);
            assert_int_equal(status->code, BANYAN_INVALID_ARGUMENT);
            if (!strstr(status->message, cases[i].says))
                fail_msg("'%s' does not say '%s'", status->message, cases[i].says);
            witness_row("int8 rows of a wrong size", "INVALID_ARGUMENT", status->message);
            witness_nothing_changed("int8 rows of a wrong size");
        } else {
            assert_true(!status || status->code == BANYAN_OK);
            assert_int_equal(reply->items[0]->length, 1);
        }
        banyan__pb__attend_reply__free_unpacked(reply, NULL);
        wire_answer_free(&a);
    }
    close(fd);
    OK(banyan_session_delete(mine, ERR));
    banyan_session_close(mine);
    witness_remember();
}

// Tensor descriptors that point elsewhere than into the payload.
static void descriptors(void **state)
{
    (void)state;
    static const struct {
        const char *input;
        uint64_t dims[2], offset, bytes;
        uint32_t dtype;
    } bad[] = {
        {"a tensor outside the payload", {1, 512}, 64, 512, BANYAN__PB__DTYPE__DTYPE_U8},
        {"a tensor that begins off a multiple of 64", {1, 448}, 4, 448, BANYAN__PB__DTYPE__DTYPE_U8},
        {"a tensor whose end wraps", {1, UINT64_MAX - 63}, 64, UINT64_MAX - 63, BANYAN__PB__DTYPE__DTYPE_U8},
        {"a shape whose product wraps",
         {UINT64_C(1) << 33, UINT64_C(1) << 33},
         0,
         512,
         BANYAN__PB__DTYPE__DTYPE_U8},
        {"a shape that is not the bytes", {3, 100}, 0, 512, BANYAN__PB__DTYPE__DTYPE_U8},
        {"an unknown type of tensor", {1, 512}, 0, 512, 99},
    };
    uint8_t payload[512] = {0};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        int fd = wire_dial(harness_cluster_endpoint(witness_cluster, "tcp"));
        assert_true(wire_hello(fd));
        Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT, *items[1] = {&item};
        Banyan__Pb__AttendRequest attend = BANYAN__PB__ATTEND_REQUEST__INIT;
        attend.n_items = 1;
        attend.items = items;
        item.session = banyan_session_id(witness_session);
        item.rows = 1;
        uint8_t packed[256];
        size_t packed_len = banyan__pb__attend_request__pack(&attend, packed);
        uint64_t dims[2] = {bad[i].dims[0], bad[i].dims[1]};
        Banyan__Pb__Tensor tensor = BANYAN__PB__TENSOR__INIT, *tensors[1] = {&tensor};
        tensor.dtype = (Banyan__Pb__Dtype)bad[i].dtype;
        tensor.n_dims = 2;
        tensor.dims = dims;
        tensor.offset = bad[i].offset;
        tensor.bytes = bad[i].bytes;
        Banyan__Pb__Header header = BANYAN__PB__HEADER__INIT;
        header.method = BANYAN__PB__METHOD__METHOD_ATTEND;
        header.request = ++request_id;
        header.remaining_ns = 5000000000u;
        header.n_tensors = 1;
        header.tensors = tensors;
        header.body = (ProtobufCBinaryData){packed_len, packed};
        struct wire_frame frame = wire_pack(&header, payload, sizeof(payload));
        assert_true(wire_send(fd, frame.bytes, frame.len));
        free(frame.bytes);
        struct wire_answer a = wire_read(fd, 30000);
        assert_false(a.closed || a.silent);
        judge(bad[i].input, &a, BANYAN_INVALID_ARGUMENT, NULL, i > 0);
        close(fd);
    }
}

// ---- what is no frame -------------------------------------------------------------------------------------

// The edge endpoint of a worker takes daemons alone.
static bool greet(int fd, const char *endpoint)
{
    struct common_secret secret;
    if (!strstr(endpoint, "w0.sock"))
        return wire_hello(fd);
    assert_int_equal(common_secret_load(harness_cluster_secret_file(witness_cluster), &secret, NULL),
                     COMMON_OK);
    return wire_hello_as(fd, BANYAN__PB__ROLE__ROLE_WORKER, &secret);
}

// Bytes that cannot be answered: the link is closed, no other link is affected.
static void expect_closed(const char *input, const char *endpoint, bool greeted, const void *bytes,
                          size_t len)
{
    int fd = wire_dial(endpoint);
    if (greeted)
        assert_true(greet(fd, endpoint));
    wire_send(fd, bytes, len);
    struct wire_answer a = wire_read(fd, 30000);
    witness_row(input, a.closed ? "closed" : banyan_code_name((banyan_code)a.code), a.message);
    if (!a.closed && a.code == COMMON_OK)
        fail_msg("%s: %s", input, a.silent ? "nothing happens" : "taken as good");
    if (!a.closed) { // it said why; the link itself is of no use any more
        wire_answer_free(&a);
        shutdown(fd, SHUT_WR);
        a = wire_read(fd, 30000);
        assert_true(a.closed);
    }
    wire_answer_free(&a);
    close(fd);
    witness_nothing_changed(input);
}

static void no_frames(const char *endpoint)
{
    uint8_t noise[4096], bytes[64] = {0};
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < sizeof(noise); i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        noise[i] = (uint8_t)x;
    }
    struct wire_frame frame = {bytes, sizeof(bytes)};
    const struct proto_prefix good = {.version = PROTO_VERSION,
                                      .kind = PROTO_FRAME_REQUEST,
                                      .header_len = 20};
    for (int greeted = 0; greeted < 2; greeted++) {
        struct proto_prefix bad = good;
        expect_closed("garbage", endpoint, greeted, noise, sizeof(noise));
        expect_closed("HTTP", endpoint, greeted, "GET / HTTP/1.1\r\nHost: banyan\r\n\r\n12345", 37);
        wire_prefix(&frame, &good);
        bytes[0] ^= 1;
        expect_closed("wrong magic", endpoint, greeted, bytes, sizeof(bytes));
        bad.version = PROTO_VERSION + 1;
        wire_prefix(&frame, &bad);
        expect_closed("wrong version", endpoint, greeted, bytes, sizeof(bytes));
        wire_prefix(&frame, &good);
        bytes[8] ^= 1;
        expect_closed("a flipped bit in a length", endpoint, greeted, bytes, sizeof(bytes));
        bad = good;
        bad.kind = 200;
        wire_prefix(&frame, &bad);
        expect_closed("an unknown kind of frame", endpoint, greeted, bytes, sizeof(bytes));
        bad = good;
        bad.header_len = UINT32_MAX - 8;
        wire_prefix(&frame, &bad);
        expect_closed("a header of 4 GiB", endpoint, greeted, bytes, sizeof(bytes));
        bad = good;
        bad.payload_len = UINT64_MAX - 8;
        bad.header_len = UINT32_MAX;
        wire_prefix(&frame, &bad);
        expect_closed("lengths that wrap", endpoint, greeted, bytes, sizeof(bytes));
        bad = good;
        bad.header_len = 0;
        wire_prefix(&frame, &bad);
        expect_closed("an empty header", endpoint, greeted, bytes, sizeof(bytes));
        memset(bytes + PROTO_PREFIX_BYTES, 0xff, sizeof(bytes) - PROTO_PREFIX_BYTES);
        wire_prefix(&frame, &good);
        expect_closed("a header that is no message", endpoint, greeted, bytes, sizeof(bytes));
    }
    // A call before the hello
    Banyan__Pb__ClusterInfoRequest info = BANYAN__PB__CLUSTER_INFO_REQUEST__INIT;
    struct wire_frame early = wire_request(BANYAN__PB__METHOD__METHOD_CLUSTER_INFO, 1, &info.base, NULL, 0);
    expect_closed("a call without a hello", endpoint, false, early.bytes, early.len);
    free(early.bytes);
    // A daemon's hello without the secret
    static uint8_t nonce[32] = {9};
    Banyan__Pb__LinkHelloRequest hello = BANYAN__PB__LINK_HELLO_REQUEST__INIT;
    hello.version = PROTO_VERSION;
    hello.role = BANYAN__PB__ROLE__ROLE_WORKER;
    hello.nonce = (ProtobufCBinaryData){sizeof(nonce), nonce};
    hello.name = (char *)"w0";
    int fd = wire_dial(endpoint);
    struct wire_answer a = call(fd, BANYAN__PB__METHOD__METHOD_LINK_HELLO, &hello.base, NULL, 0);
    if (a.code == COMMON_OK) {
        wire_answer_free(&a);
        uint8_t wrong[32] = {0};
        Banyan__Pb__LinkProofRequest proof = BANYAN__PB__LINK_PROOF_REQUEST__INIT;
        proof.proof = (ProtobufCBinaryData){sizeof(wrong), wrong};
        a = call(fd, BANYAN__PB__METHOD__METHOD_LINK_PROOF, &proof.base, NULL, 0);
    }
    witness_row("a daemon without the secret", banyan_code_name((banyan_code)a.code), a.message);
    assert_int_equal(a.code, COMMON_UNAUTHENTICATED);
    wire_answer_free(&a);
    close(fd);
    witness_nothing_changed("a daemon without the secret");
}

static void no_frames_to_the_coordinator(void **state)
{
    (void)state;
    no_frames(harness_cluster_endpoint(witness_cluster, "tcp"));
    no_frames(harness_cluster_endpoint(witness_cluster, "unix"));
}

static void no_frames_to_a_worker(void **state)
{
    (void)state;
    char edge[300];
    no_frames(worker_endpoint(0));
    snprintf(edge, sizeof(edge), "unix://%s/w0.sock", harness_cluster_dir(witness_cluster));
    no_frames(edge);
}

static void no_frames_over_nng(void **state)
{
    (void)state;
    const char *endpoint = strchr(harness_cluster_endpoint(witness_cluster, "nng+tcp"), '+') + 1;
    static uint8_t junk[70000];
    memset(junk, 0x5a, sizeof(junk));
    struct proto_prefix prefix = {.version = PROTO_VERSION,
                                  .kind = PROTO_FRAME_REQUEST,
                                  .header_len = 20,
                                  .payload_len = UINT64_MAX - 100};
    uint8_t wraps[64] = {0};
    proto_prefix_encode(&prefix, wraps);
    prefix.payload_len = UINT64_C(1) << 30; // promised, and not there
    uint8_t short_of[64] = {0};
    proto_prefix_encode(&prefix, short_of);
    const struct {
        const char *input;
        const void *bytes;
        size_t len;
    } bad[] = {{"nng: nothing", junk, 0},
               {"nng: one byte", junk, 1},
               {"nng: garbage", junk, sizeof(junk)},
               {"nng: lengths that wrap", wraps, sizeof(wraps)},
               {"nng: a truncated frame", short_of, sizeof(short_of)}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        nng_socket socket;
        assert_int_equal(nng_req0_open(&socket), 0);
        nng_socket_set_ms(socket, NNG_OPT_RECVTIMEO, 20000);
        nng_socket_set_ms(socket, NNG_OPT_SENDTIMEO, 20000);
        assert_int_equal(nng_dial(socket, endpoint, NULL, 0), 0);
        assert_int_equal(nng_send(socket, (void *)(uintptr_t)bad[i].bytes, bad[i].len, 0), 0);
        char *answer;
        size_t len;
        int rv = nng_recv(socket, &answer, &len, NNG_FLAG_ALLOC);
        witness_row(bad[i].input, rv ? nng_strerror(rv) : "empty answer", "");
        assert_int_equal(rv, 0);
        assert_int_equal(len, 0); // the caller cannot take it for a frame
        nng_free(answer, len);
        nng_close(socket);
        witness_nothing_changed(bad[i].input);
    }
    // The nng protocol itself, over a plain socket
    char plain[128];
    snprintf(plain, sizeof(plain), "%s", endpoint);
    int fd = wire_dial(plain);
    wire_send(fd, junk, sizeof(junk));
    close(fd);
    witness_nothing_changed("nng: no nng");
}

// ---- slow and vanished ------------------------------------------------------------------------------------

static void slow_clients_cost_nothing(void **state)
{
    (void)state;
    char edge[300];
    snprintf(edge, sizeof(edge), "unix://%s/w0.sock", harness_cluster_dir(witness_cluster));
    const char *endpoints[] = {harness_cluster_endpoint(witness_cluster, "tcp"),
                               harness_cluster_endpoint(witness_cluster, "unix"),
                               strchr(harness_cluster_endpoint(witness_cluster, "nng+tcp"), '+') + 1,
                               worker_endpoint(1), edge};
    int fds[5 * 20];
    size_t n = 0;
    for (int e = 0; e < 5; e++)
        for (int i = 0; i < 20; i++) {
            fds[n] = wire_dial(endpoints[e]);
            if (i % 2 == 0) // the other half sends nothing at all
                assert_true(wire_send(fds[n], "B", 1));
            n++;
        }
    for (int i = 0; i < 20; i++)
        witness_nothing_changed("slow clients");
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
    witness_nothing_changed("slow clients left");
}

// In the middle of a frame, of an answer, of an attach.
static void clients_that_vanish(void **state)
{
    (void)state;
    Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT, *items[200];
    Banyan__Pb__AttendRequest attend = BANYAN__PB__ATTEND_REQUEST__INIT;
    static uint8_t q[200 * 512];
    struct common_slice slice = {q, sizeof(q)};
    struct proto_tensor_out tensor = {.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                      .n_dims = 1,
                                      .dims = {sizeof(q)},
                                      .pieces = &slice,
                                      .n_pieces = 1};
    attend.n_items = 200;
    attend.items = items;
    item.session = banyan_session_id(witness_session);
    item.first = WITNESS_TOKENS - 1;
    item.rows = 1;
    for (int i = 0; i < 200; i++)
        items[i] = &item;
    struct wire_frame frame = wire_request(BANYAN__PB__METHOD__METHOD_ATTEND, 1, &attend.base, &tensor, 1);
    static const char *const transports[] = {"tcp", "unix"};
    for (int i = 0; i < 60; i++) {
        int fd = wire_dial(harness_cluster_endpoint(witness_cluster, transports[i % 2]));
        assert_true(wire_hello(fd));
        size_t len = i % 3 == 0 ? frame.len : i % 3 == 1 ? frame.len / 2 : PROTO_PREFIX_BYTES + 3;
        assert_true(wire_send(fd, frame.bytes, len));
        if (i % 4 == 0) // the answer meets a reset
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
        close(fd);
    }
    free(frame.bytes);
    witness_nothing_changed("clients that vanish");
    // Many sends, and never a look at the answers
    int fd = wire_dial(harness_cluster_endpoint(witness_cluster, "unix"));
    assert_true(wire_hello(fd));
    for (uint64_t i = 0; i < 200; i++) {
        struct wire_frame more =
            wire_request(BANYAN__PB__METHOD__METHOD_ATTEND, 10 + i, &attend.base, &tensor, 1);
        ssize_t sent = send(fd, more.bytes, more.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        free(more.bytes);
        if (sent != (ssize_t)more.len)
            break; // it is not read any more: that is the point
    }
    witness_nothing_changed("a client that does not read");
    close(fd);
    witness_nothing_changed("a client that did not read is gone");
}

// ---- tickets ----------------------------------------------------------------------------------------------

static void tickets(void **state)
{
    (void)state;
    struct wire_answer a;
    struct common_secret secret, other;
    assert_int_equal(common_secret_load(harness_cluster_secret_file(witness_cluster), &secret, NULL),
                     COMMON_OK);
    assert_true(common_random(&other, sizeof(other)));
    banyan_session *mine;
    OK(banyan_session_create(witness_client, &witness_spec, NULL, &mine, ERR));
    OK(banyan_attach(mine, 0, 0, 32, context_k(&witness_context, 0, 0), context_v(&witness_context, 0, 0),
                     ERR));
    witness_remember(); // with the second session

    // Where its first chunk lies, and a ticket for it
    int coordinator = wire_dial(harness_cluster_endpoint(witness_cluster, "tcp"));
    assert_true(wire_hello(coordinator));
    Banyan__Pb__AttachOpenRequest open = BANYAN__PB__ATTACH_OPEN_REQUEST__INIT;
    open.session = banyan_session_id(mine);
    open.count = 32;
    a = call(coordinator, BANYAN__PB__METHOD__METHOD_ATTACH_OPEN, &open.base, NULL, 0);
    assert_int_equal(a.code, COMMON_OK);
    Banyan__Pb__AttachOpenReply *reply = banyan__pb__attach_open_reply__unpack(NULL, a.body_len, a.body);
    wire_answer_free(&a);
    assert_non_null(reply);
    assert_true(reply->n_chunks >= 1 && reply->n_workers >= 1);
    struct proto_ticket good;
    uint64_t now = common_clock_wall_ns();
    assert_int_equal(proto_ticket_check(&secret, PROTO_TICKET_PUT, reply->ticket.data, reply->ticket.len, now,
                                        &good, NULL),
                     COMMON_OK);
    int fd = wire_dial(reply->workers[reply->chunks[0]->holders[0]]->endpoint);
    banyan__pb__attach_open_reply__free_unpacked(reply, NULL);
    assert_true(wire_hello(fd));

    static uint8_t rows[8 * 256];
    struct common_slice slice = {rows, sizeof(rows)};
    struct proto_tensor_out tensor[2];
    for (int t = 0; t < 2; t++)
        tensor[t] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_F32,
                                              .n_dims = 3,
                                              .dims = {8, 2, 32},
                                              .pieces = &slice,
                                              .n_pieces = 1};
    Banyan__Pb__ChunkPutRequest put = BANYAN__PB__CHUNK_PUT_REQUEST__INIT;
    put.session = banyan_session_id(mine);
    put.count = 8;
    uint8_t bytes[PROTO_TICKET_MAX];
#define PUT(what, key, change_ticket, change_put, want, why, like_before)                                    \
    do {                                                                                                     \
        struct proto_ticket ticket = good;                                                                   \
        Banyan__Pb__ChunkPutRequest bad = put;                                                               \
        change_ticket;                                                                                       \
        bad.ticket = (ProtobufCBinaryData){proto_ticket_make(&key, &ticket, bytes), bytes};                  \
        change_put;                                                                                          \
        a = call(fd, BANYAN__PB__METHOD__METHOD_CHUNK_PUT, &bad.base, tensor, 2);                            \
        judge(what, &a, want, why, like_before);                                                             \
    } while (0)
    PUT("an expired ticket", secret, ticket.expires_wall_ns = now - 60 * COMMON_NS_PER_S, (void)0,
        BANYAN_FAILED_PRECONDITION, "OLD_TICKET", false);
    PUT("another session's ticket", secret, ticket.session = banyan_session_id(witness_session), (void)0,
        BANYAN_PERMISSION_DENIED, "", false);
    PUT("a ticket for other positions", secret, ticket.first = 64, (void)0, BANYAN_PERMISSION_DENIED, "",
        false);
    PUT("a ticket that nobody signed", other, (void)0, (void)0, BANYAN_PERMISSION_DENIED, "", false);
    PUT("a ticket from before a truncate", secret, ticket.incarnation = 77, (void)0, BANYAN_ABORTED,
        "OLD_INCARNATION", false);
    PUT("a ticket cut short", secret, (void)0, bad.ticket.len -= 7, BANYAN_PERMISSION_DENIED, "", true);
    PUT("a put of more rows than came", secret, (void)0, bad.count = 9, BANYAN_INVALID_ARGUMENT, "", false);
    PUT("a put into layer 9", secret, (void)0, bad.layer = 9, BANYAN_INVALID_ARGUMENT, "", false);
    PUT("a put whose end wraps", secret, (void)0, (bad.first = UINT64_MAX - 2, bad.count = 8),
        BANYAN_INVALID_ARGUMENT, "", false);
#undef PUT
    // A session that the worker does not know
    struct proto_ticket ticket = good;
    ticket.session = put.session = UINT64_C(0x600000006);
    put.ticket = (ProtobufCBinaryData){proto_ticket_make(&secret, &ticket, bytes), bytes};
    a = call(fd, BANYAN__PB__METHOD__METHOD_CHUNK_PUT, &put.base, tensor, 2);
    judge("a put into an unknown session", &a, BANYAN_NOT_FOUND, NULL, false);
    // What clients may not ask of a worker
    Banyan__Pb__InventoryRequest inventory = BANYAN__PB__INVENTORY_REQUEST__INIT;
    a = call(fd, BANYAN__PB__METHOD__METHOD_INVENTORY, &inventory.base, NULL, 0);
    assert_true(a.code == COMMON_UNIMPLEMENTED || a.code == COMMON_PERMISSION_DENIED);
    witness_row("a client that asks for the inventory", banyan_code_name((banyan_code)a.code), a.message);
    wire_answer_free(&a);
    close(fd);
    close(coordinator);
    // None of the puts wrote anything: what was attached first is what is committed
    OK(banyan_commit(mine, 0, 0, 32, ERR));
    support_check_step(witness_client, mine, &witness_context, 0, 31, 1, 0, NULL, "after bad puts");
    OK(banyan_session_delete(mine, ERR));
    banyan_session_close(mine);
    witness_remember();
}

// ---- memory ----------------------------------------------------------------------------------------------

static void memory_does_not_grow(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const uint64_t allowed = UINT64_C(600) << 20; // freed memory is kept in quarantine
#else
    const uint64_t allowed = UINT64_C(48) << 20;
#endif
    uint64_t start[3];
    static uint8_t noise[30000];
    memset(noise, 0x77, sizeof(noise));
    struct proto_prefix prefix = {.version = PROTO_VERSION,
                                  .kind = PROTO_FRAME_REQUEST,
                                  .header_len = 64,
                                  .payload_len = UINT64_C(60) << 20};
    uint8_t promise[96] = {0};
    proto_prefix_encode(&prefix, promise);
    for (int round = 0; round < 2; round++) {
        const char *endpoints[] = {harness_cluster_endpoint(witness_cluster, "tcp"), worker_endpoint(0),
                                   worker_endpoint(1)};
        if (round == 1) // the first round warmed up
            for (uint32_t i = 0; i < 3; i++)
                start[i] = support_resident_bytes(
                    harness_cluster_pid(witness_cluster, i < 2 ? i : HARNESS_COORDINATOR));
        for (int i = 0; i < 200; i++) {
            char endpoint[128];
            snprintf(endpoint, sizeof(endpoint), "%s", endpoints[i % 3 ? i % 3 : 0]);
            int fd = wire_dial(endpoint);
            if (i % 2) {
                wire_send(fd, noise, sizeof(noise));
            } else if (wire_hello(fd)) {
                wire_send(fd, promise, sizeof(promise)); // 60 MiB that never come
            }
            close(fd);
        }
    }
    witness_nothing_changed("400 bad links");
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t now =
            support_resident_bytes(harness_cluster_pid(witness_cluster, i < 2 ? i : HARNESS_COORDINATOR));
        if (now > start[i] + allowed)
            fail_msg("a daemon grew from %" PRIu64 " to %" PRIu64 " bytes", start[i], now);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests),
        cmocka_unit_test(attend_by_hand),
        cmocka_unit_test(quantised_rows_by_hand),
        cmocka_unit_test(descriptors),
        cmocka_unit_test(no_frames_to_the_coordinator),
        cmocka_unit_test(no_frames_to_a_worker),
        cmocka_unit_test(no_frames_over_nng),
        cmocka_unit_test(slow_clients_cost_nothing),
        cmocka_unit_test(clients_that_vanish),
        cmocka_unit_test(tickets),
        cmocka_unit_test(memory_does_not_grow),
    };
    return cmocka_run_group_tests_name("bad frames", tests, witness_start, witness_stop);
}
