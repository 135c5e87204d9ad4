// SPDX-License-Identifier: Apache-2.0
#include "tests/proto/peer.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "proto/wire/codec.h"

int peer_dial(struct fixture *f)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", f->endpoint + strlen("unix://"));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

void peer_put(int fd, const void *data, size_t len)
{
    assert_int_equal(send(fd, data, len, MSG_NOSIGNAL), (ssize_t)len);
}

void peer_put_frame(int fd, const struct proto_outgoing *outgoing)
{
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    assert_int_equal(proto_frame_encode(&scratch, outgoing, PROTO_PAYLOAD_MAX, &gather, NULL), COMMON_OK);
    for (size_t i = 0; i < gather.n; i++)
        peer_put(fd, gather.iov[i].iov_base, gather.iov[i].iov_len);
    proto_scratch_fini(&scratch);
}

void peer_put_health(int fd, uint64_t id, const char *service)
{
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    body.service = (char *)service;
    peer_put_frame(fd, &(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                .method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                .request = id,
                                                .remaining_ns = SECONDS(20),
                                                .body = &body.base});
}

// Turns the loop until there is something to read; false: the end.
bool peer_readable(struct fixture *f, int fd)
{
    for (uint64_t since = common_clock_ns(); common_clock_ns() - since < SECONDS(30);) {
        char byte;
        ssize_t n = recv(fd, &byte, 1, MSG_PEEK);
        if (n != -1 || errno != EAGAIN)
            return n == 1;
        usleep(100);
        fixture_turn_for(f, 0);
    }
    fail_msg("the server says nothing");
    return false;
}

// The next frame; NULL at the end of the stream. The caller frees header and blob.
Banyan__Pb__Header *peer_get_frame(struct fixture *f, int fd)
{
    uint8_t prefix_bytes[PROTO_PREFIX_BYTES];
    struct proto_prefix prefix;
    size_t total, have = 0;
    while (have < sizeof prefix_bytes) {
        if (!peer_readable(f, fd))
            return NULL;
        have += (size_t)recv(fd, prefix_bytes + have, sizeof prefix_bytes - have, 0);
    }
    assert_int_equal(proto_prefix_decode(prefix_bytes, &prefix, NULL), COMMON_OK);
    assert_int_equal(prefix.kind, PROTO_FRAME_REPLY);
    assert_true(proto_frame_total(&prefix, PROTO_HEADER_MAX, PROTO_PAYLOAD_MAX, &total));
    uint8_t *frame = malloc(total);
    assert_non_null(frame);
    while (have < total) {
        assert_true(peer_readable(f, fd));
        have += (size_t)recv(fd, frame + have, total - have, 0);
    }
    Banyan__Pb__Header *header =
        banyan__pb__header__unpack(NULL, prefix.header_len, frame + PROTO_PREFIX_BYTES);
    assert_non_null(header);
    free(frame);
    return header;
}

void peer_expect_reply(struct fixture *f, int fd, uint64_t id, enum common_code code)
{
    Banyan__Pb__Header *header = peer_get_frame(f, fd);
    assert_non_null(header);
    assert_int_equal(header->request, id);
    assert_int_equal(header->status ? header->status->code : 0, code);
    banyan__pb__header__free_unpacked(header, NULL);
}

void peer_expect_end(struct fixture *f, int fd)
{
    assert_false(peer_readable(f, fd));
    close(fd);
}

void peer_put_hello(int fd, uint32_t role, const uint8_t nonce[32], size_t nonce_len, uint32_t version)
{
    Banyan__Pb__LinkHelloRequest hello = BANYAN__PB__LINK_HELLO_REQUEST__INIT;
    hello.version = version;
    hello.role = (Banyan__Pb__Role)role;
    hello.nonce = (ProtobufCBinaryData){nonce_len, (uint8_t *)nonce};
    hello.name = "by\nhand";
    peer_put_frame(fd, &(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                .method = BANYAN__PB__METHOD__METHOD_LINK_HELLO,
                                                .request = 1,
                                                .remaining_ns = 1,
                                                .body = &hello.base});
}

void peer_put_proof(int fd, const uint8_t *proof, const char *token)
{
    Banyan__Pb__LinkProofRequest body = BANYAN__PB__LINK_PROOF_REQUEST__INIT;
    if (proof)
        body.proof = (ProtobufCBinaryData){32, (uint8_t *)proof};
    peer_put_frame(fd, &(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                .method = BANYAN__PB__METHOD__METHOD_LINK_PROOF,
                                                .request = 2,
                                                .remaining_ns = 1,
                                                .credentials = token,
                                                .body = &body.base});
}

const uint8_t peer_nonce[32] = {1, 2, 3};

int peer_dial_as_client(struct fixture *f)
{
    int fd = peer_dial(f);
    peer_put_hello(fd, BANYAN__PB__ROLE__ROLE_CLIENT, peer_nonce, sizeof peer_nonce, PROTO_VERSION);
    peer_expect_reply(f, fd, 1, COMMON_OK);
    peer_put_proof(fd, NULL, TOKEN);
    peer_expect_reply(f, fd, 2, COMMON_OK);
    return fd;
}

void peer_expect_still_serving(struct fixture *f)
{
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    outcome_fini(&o);
    proto_channel_close(channel);
}
