// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/rpc/endpoint.h"
#include "proto/stream/stream_hello.h"
#include "tests/e2e/support.h"

#define CALL_NS UINT64_C(20000000000)

int wire_dial(const char *endpoint)
{
    struct proto_endpoint parsed;
    struct sockaddr_storage address;
    socklen_t len;
    assert_int_equal(proto_endpoint_parse(endpoint, &parsed, NULL), COMMON_OK);
    assert_true(proto_endpoint_address(&parsed, &address, &len));
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, len), 0);
    return fd;
}

struct wire_frame wire_encode(const struct proto_outgoing *outgoing)
{
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    struct common_error err = {0};
    if (proto_frame_encode(&scratch, outgoing, UINT64_C(1) << 40, &gather, &err) != COMMON_OK)
        fail_msg("cannot encode a frame: %s", err.message);
    struct wire_frame frame = {malloc(gather.bytes), gather.bytes};
    assert_non_null(frame.bytes);
    uint8_t *at = frame.bytes;
    for (size_t i = 0; i < gather.n; i++) {
        memcpy(at, gather.iov[i].iov_base, gather.iov[i].iov_len);
        at += gather.iov[i].iov_len;
    }
    assert_int_equal(at - frame.bytes, frame.len);
    proto_scratch_fini(&scratch);
    return frame;
}

struct wire_frame wire_request(uint32_t method, uint64_t id, const ProtobufCMessage *body,
                               const struct proto_tensor_out *tensors, size_t n_tensors)
{
    return wire_encode(&(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                .method = method,
                                                .request = id,
                                                .remaining_ns = CALL_NS,
                                                .body = body,
                                                .tensors = tensors,
                                                .n_tensors = n_tensors});
}

struct wire_frame wire_pack(const Banyan__Pb__Header *header, const void *payload, size_t len)
{
    size_t header_len = banyan__pb__header__get_packed_size(header);
    size_t at = proto_frame_payload_at((uint32_t)header_len), whole = at + (len + 63) / 64 * 64;
    struct wire_frame frame = {calloc(1, whole), whole};
    assert_non_null(frame.bytes);
    banyan__pb__header__pack(header, frame.bytes + PROTO_PREFIX_BYTES);
    if (len)
        memcpy(frame.bytes + at, payload, len);
    wire_prefix(&frame, &(struct proto_prefix){.version = PROTO_VERSION,
                                               .kind = PROTO_FRAME_REQUEST,
                                               .header_len = (uint32_t)header_len,
                                               .payload_len = len});
    return frame;
}

void wire_prefix(struct wire_frame *frame, const struct proto_prefix *prefix)
{
    proto_prefix_encode(prefix, frame->bytes);
}

bool wire_send(int fd, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;
    while (len > 0) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

// 1: all read, 0: closed, -1: silent
static int read_all(int fd, void *to, size_t len, unsigned wait_ms)
{
    uint8_t *at = to;
    while (len > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, (int)wait_ms) <= 0)
            return -1;
        ssize_t n = recv(fd, at, len, 0);
        if (n <= 0)
            return 0;
        at += n;
        len -= (size_t)n;
    }
    return 1;
}

struct wire_answer wire_read(int fd, unsigned wait_ms)
{
    struct wire_answer answer = {0};
    uint8_t head[PROTO_PREFIX_BYTES];
    struct proto_prefix prefix;
    int got = read_all(fd, head, sizeof(head), wait_ms);
    if (got < 1) {
        answer.closed = got == 0;
        answer.silent = got < 0;
        return answer;
    }
    assert_int_equal(proto_prefix_decode(head, &prefix, NULL), COMMON_OK);
    assert_int_equal(prefix.kind, PROTO_FRAME_REPLY);
    assert_true(prefix.header_len <= PROTO_HEADER_MAX && prefix.payload_len <= PROTO_PAYLOAD_MAX);
    size_t rest = proto_frame_payload_at(prefix.header_len) - sizeof(head) +
                  (size_t)((prefix.payload_len + 63) / 64 * 64);
    uint8_t *bytes = malloc(rest + 1);
    assert_non_null(bytes);
    assert_int_equal(read_all(fd, bytes, rest, wait_ms), 1);
    answer.header = banyan__pb__header__unpack(NULL, prefix.header_len, bytes);
    free(bytes);
    assert_non_null(answer.header);
    const Banyan__Pb__Status *status = answer.header->status;
    if (status) {
        answer.code = status->code;
        snprintf(answer.message, sizeof(answer.message), "%s", status->message);
        if (status->n_details)
            snprintf(answer.reason, sizeof(answer.reason), "%s", status->details[0]->reason);
    }
    answer.body = answer.header->body.data;
    answer.body_len = answer.header->body.len;
    return answer;
}

void wire_answer_free(struct wire_answer *answer)
{
    if (answer->header)
        banyan__pb__header__free_unpacked(answer->header, NULL);
    answer->header = NULL;
}

static struct wire_answer exchange(int fd, uint32_t method, const ProtobufCMessage *body)
{
    struct wire_frame frame = wire_request(method, method, body, NULL, 0);
    bool sent = wire_send(fd, frame.bytes, frame.len);
    free(frame.bytes);
    return sent ? wire_read(fd, 20000) : (struct wire_answer){.closed = true};
}

static bool is_good(const struct wire_answer *answer)
{
    return !answer->closed && !answer->silent && answer->code == COMMON_OK;
}

bool wire_hello_as(int fd, uint32_t role, const struct common_secret *secret)
{
    struct proto_hello known = {.dial_nonce = {1, 2, 3}, .dial_role = role};
    Banyan__Pb__LinkHelloRequest hello = BANYAN__PB__LINK_HELLO_REQUEST__INIT;
    hello.version = PROTO_VERSION;
    hello.role = (Banyan__Pb__Role)role;
    hello.nonce = (ProtobufCBinaryData){sizeof(known.dial_nonce), known.dial_nonce};
    hello.name = (char *)"by hand";
    struct wire_answer answer = exchange(fd, BANYAN__PB__METHOD__METHOD_LINK_HELLO, &hello.base);
    bool ok = is_good(&answer);
    Banyan__Pb__LinkProofRequest proof = BANYAN__PB__LINK_PROOF_REQUEST__INIT;
    uint8_t mac[COMMON_MAC_BYTES];
    if (ok && secret) {
        Banyan__Pb__LinkHelloReply *reply =
            banyan__pb__link_hello_reply__unpack(NULL, answer.body_len, answer.body);
        assert_non_null(reply);
        assert_int_equal(reply->nonce.len, sizeof(known.accept_nonce));
        memcpy(known.accept_nonce, reply->nonce.data, sizeof(known.accept_nonce));
        known.accept_role = (uint32_t)reply->role;
        banyan__pb__link_hello_reply__free_unpacked(reply, NULL);
        proto_hello_proof(secret, &known, true, mac);
        proof.proof = (ProtobufCBinaryData){sizeof(mac), mac};
    }
    wire_answer_free(&answer);
    if (!ok)
        return false;
    answer = exchange(fd, BANYAN__PB__METHOD__METHOD_LINK_PROOF, &proof.base);
    ok = is_good(&answer);
    wire_answer_free(&answer);
    return ok;
}

bool wire_hello(int fd)
{
    return wire_hello_as(fd, BANYAN__PB__ROLE__ROLE_CLIENT, NULL);
}
