// SPDX-License-Identifier: Apache-2.0
// What the calling end of a stream link takes from a server, played here by a plain socket: proofs, versions,
// answers.
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
#include "common/base/random.h"
#include "proto/stream/stream_hello.h"
#include "proto/wire/codec.h"
#include "proto/wire/frame.h"
#include "tests/common/named.h"
#include "tests/proto/fixture.h"

static struct sockaddr_un address = {.sun_family = AF_UNIX};
static char endpoint[160];
static int listener;

static int setup(void **state)
{
    struct fixture *f = fixture_new(TRANSPORT_UNIX);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/hand", f->dir);
    snprintf(endpoint, sizeof endpoint, "unix://%s", address.sun_path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    *state = f;
    return listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof address) == 0
               ? listen(listener, 16)
               : -1;
}

static int teardown(void **state)
{
    named_cases_report(state);
    close(listener);
    unlink(address.sun_path);
    fixture_free(*state);
    return 0;
}

// ---- a server by hand -----------------------------------------------------------------------------------

static int take_link(struct fixture *f)
{
    for (uint64_t since = common_clock_ns(); common_clock_ns() - since < SECONDS(30);) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd >= 0)
            return fd;
        usleep(100);
        fixture_turn_for(f, 0);
    }
    fail_msg("nobody dials");
    return -1;
}

// Turns the loop until there is something to read; false: the end.
static bool wait_readable(struct fixture *f, int fd)
{
    for (uint64_t since = common_clock_ns(); common_clock_ns() - since < SECONDS(30);) {
        char byte;
        ssize_t n = recv(fd, &byte, 1, MSG_PEEK);
        if (n != -1 || errno != EAGAIN)
            return n == 1;
        usleep(100);
        fixture_turn_for(f, 0);
    }
    fail_msg("the dialler says nothing");
    return false;
}

static void get(struct fixture *f, int fd, uint8_t *to, size_t len)
{
    for (size_t have = 0; have < len;) {
        assert_true(wait_readable(f, fd));
        have += (size_t)recv(fd, to + have, len - have, 0);
    }
}

// The next request, which must be of this method. The caller frees it.
static Banyan__Pb__Header *get_request(struct fixture *f, int fd, uint32_t method)
{
    uint8_t bytes[PROTO_PREFIX_BYTES];
    struct proto_prefix prefix;
    size_t total;
    get(f, fd, bytes, sizeof bytes);
    assert_int_equal(proto_prefix_decode(bytes, &prefix, NULL), COMMON_OK);
    assert_int_equal(prefix.kind, PROTO_FRAME_REQUEST);
    assert_true(proto_frame_total(&prefix, PROTO_HEADER_MAX, PROTO_PAYLOAD_MAX, &total));
    uint8_t *frame = malloc(total);
    assert_non_null(frame);
    get(f, fd, frame + PROTO_PREFIX_BYTES, total - PROTO_PREFIX_BYTES);
    Banyan__Pb__Header *header =
        banyan__pb__header__unpack(NULL, prefix.header_len, frame + PROTO_PREFIX_BYTES);
    free(frame);
    assert_non_null(header);
    assert_int_equal(header->method, method);
    return header;
}

static void put_reply(int fd, uint32_t method, uint64_t request, const ProtobufCMessage *body)
{
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    struct proto_outgoing reply = {
        .kind = PROTO_FRAME_REPLY, .method = method, .request = request, .body = body};
    assert_int_equal(proto_frame_encode(&scratch, &reply, 0, &gather, NULL), COMMON_OK);
    assert_int_equal(send(fd, gather.iov[0].iov_base, gather.bytes, MSG_NOSIGNAL), (ssize_t)gather.bytes);
    proto_scratch_fini(&scratch);
}

// Takes the hello of a worker; *hello has what proofs are made of.
static uint64_t get_hello(struct fixture *f, int fd, struct proto_hello *hello)
{
    Banyan__Pb__Header *header = get_request(f, fd, BANYAN__PB__METHOD__METHOD_LINK_HELLO);
    Banyan__Pb__LinkHelloRequest *body =
        banyan__pb__link_hello_request__unpack(NULL, header->body.len, header->body.data);
    assert_non_null(body);
    assert_int_equal(body->nonce.len, PROTO_NONCE_BYTES);
    uint64_t request = header->request;
    *hello = (struct proto_hello){.dial_role = (uint32_t)body->role,
                                  .accept_role = BANYAN__PB__ROLE__ROLE_COORDINATOR};
    memcpy(hello->dial_nonce, body->nonce.data, PROTO_NONCE_BYTES);
    memset(hello->accept_nonce, 9, PROTO_NONCE_BYTES);
    banyan__pb__link_hello_request__free_unpacked(body, NULL);
    banyan__pb__header__free_unpacked(header, NULL);
    return request;
}

static struct proto_channel *dial_as_worker(struct fixture *f, struct outcome *o)
{
    struct proto_channel *channel;
    const struct proto_channel_options options = {.name = "worker",
                                                  .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                                  .secret = &f->secret};
    assert_int_equal(proto_channel_open(f->loop, endpoint, &options, &channel, NULL), COMMON_OK);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, o, NULL), COMMON_OK);
    return channel;
}

// ---- tests ----------------------------------------------------------------------------------------------

static const struct {
    const char *name;
    enum { NOISE, DIALLERS, OTHER_ROLE, OTHER_SECRET, SHORT, NONE, NEWER, OLDER, NO_NONCE } kind;
    enum common_code code;
} impostors[] = {
    {"32 random bytes", NOISE, COMMON_UNAUTHENTICATED},
    {"a dialler's proof", DIALLERS, COMMON_UNAUTHENTICATED},
    {"the proof of another role", OTHER_ROLE, COMMON_UNAUTHENTICATED},
    {"by another secret", OTHER_SECRET, COMMON_UNAUTHENTICATED},
    {"a proof without its last byte", SHORT, COMMON_UNAUTHENTICATED},
    {"no proof", NONE, COMMON_UNAUTHENTICATED},
    {"a newer version", NEWER, COMMON_FAILED_PRECONDITION},
    {"an older version", OLDER, COMMON_FAILED_PRECONDITION},
    {"no nonce", NO_NONCE, COMMON_INVALID_ARGUMENT},
};

// A server that cannot prove itself hears nothing more than the hello: no proof, no call.
static void test_impostors_hear_nothing(void **state)
{
    struct fixture *f = *state;
    struct common_secret other = f->secret;
    other.bytes[7] ^= 1;
    for (size_t i = 0; i < sizeof impostors / sizeof *impostors; i++) {
        named_case_begin(impostors[i].name);
        struct outcome o;
        struct proto_hello hello, lied;
        uint8_t proof[COMMON_MAC_BYTES];
        struct proto_channel *channel = dial_as_worker(f, &o);
        int fd = take_link(f);
        uint64_t request = get_hello(f, fd, &hello);
        lied = hello;
        lied.accept_role =
            impostors[i].kind == OTHER_ROLE ? BANYAN__PB__ROLE__ROLE_WORKER : hello.accept_role;
        assert_true(proto_hello_proof(impostors[i].kind == OTHER_SECRET ? &other : &f->secret, &lied,
                                      impostors[i].kind == DIALLERS, proof));
        if (impostors[i].kind == NOISE)
            assert_true(common_random(proof, sizeof proof));
        Banyan__Pb__LinkHelloReply reply = BANYAN__PB__LINK_HELLO_REPLY__INIT;
        reply.version = PROTO_VERSION + (impostors[i].kind == NEWER) - (impostors[i].kind == OLDER);
        reply.role = (Banyan__Pb__Role)hello.accept_role;
        reply.nonce.len = PROTO_NONCE_BYTES - (impostors[i].kind == NO_NONCE);
        reply.nonce.data = hello.accept_nonce;
        reply.proof.len = impostors[i].kind == NONE ? 0 : sizeof proof - (impostors[i].kind == SHORT);
        reply.proof.data = proof;
        put_reply(fd, BANYAN__PB__METHOD__METHOD_LINK_HELLO, request, &reply.base);
        assert_false(wait_readable(f, fd)); // the end, and not a byte before it
        close(fd);
        fixture_turn(f, &o.done, 1);
        assert_int_equal(o.code, impostors[i].code);
        outcome_fini(&o);
        proto_channel_close(channel);
    }
    named_cases_end();
}

// Who proves itself hears the dialler's proof, and then calls. An answer to another method is none.
static void test_answers_belong_to_their_calls(void **state)
{
    struct fixture *f = *state;
    struct outcome o[2];
    struct proto_hello hello;
    uint8_t proof[COMMON_MAC_BYTES];
    struct proto_channel *channel = dial_as_worker(f, &o[0]);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o[1], NULL), COMMON_OK);
    int fd = take_link(f);
    uint64_t request = get_hello(f, fd, &hello);
    assert_true(proto_hello_proof(&f->secret, &hello, false, proof));
    Banyan__Pb__LinkHelloReply reply = BANYAN__PB__LINK_HELLO_REPLY__INIT;
    reply.version = PROTO_VERSION;
    reply.role = (Banyan__Pb__Role)hello.accept_role;
    reply.nonce = (ProtobufCBinaryData){PROTO_NONCE_BYTES, hello.accept_nonce};
    reply.proof = (ProtobufCBinaryData){sizeof proof, proof};
    put_reply(fd, BANYAN__PB__METHOD__METHOD_LINK_HELLO, request, &reply.base);
    Banyan__Pb__Header *header = get_request(f, fd, BANYAN__PB__METHOD__METHOD_LINK_PROOF);
    Banyan__Pb__LinkProofReply accepted = BANYAN__PB__LINK_PROOF_REPLY__INIT;
    put_reply(fd, BANYAN__PB__METHOD__METHOD_LINK_PROOF, header->request, &accepted.base);
    banyan__pb__header__free_unpacked(header, NULL);
    static const uint32_t methods[] = {BANYAN__PB__METHOD__METHOD_SESSION_CLOSE,
                                       BANYAN__PB__METHOD__METHOD_HEALTH_CHECK};
    Banyan__Pb__HealthCheckReply healthy = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    healthy.serving = true;
    for (int i = 0; i < 2; i++) {
        header = get_request(f, fd, BANYAN__PB__METHOD__METHOD_HEALTH_CHECK);
        put_reply(fd, methods[i], header->request, &healthy.base);
        banyan__pb__header__free_unpacked(header, NULL);
        fixture_turn(f, &o[i].done, 1);
    }
    assert_int_equal(o[0].code, COMMON_INTERNAL);
    assert_non_null(strstr(o[0].text, "another method"));
    assert_int_equal(o[1].code, COMMON_OK);
    outcome_fini(&o[0]);
    outcome_fini(&o[1]);
    proto_channel_close(channel);
    close(fd);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_impostors_hear_nothing),
        TEST(test_answers_belong_to_their_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
