// SPDX-License-Identifier: Apache-2.0
// What only stream links have: the hello, and peers that do not keep to the protocol, played by plain
// sockets.
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "proto/stream/stream_hello.h"
#include "proto/stream/stream_link.h"
#include "proto/wire/codec.h"
#include "proto/wire/frame.h"
#include "tests/common/named.h"
#include "tests/proto/fixture.h"
#include "tests/proto/peer.h"

static int setup(void **state)
{
    *state = fixture_new(TRANSPORT_UNIX);
    return 0;
}

static int teardown(void **state)
{
    named_cases_report(state);
    fixture_free(*state);
    return 0;
}

// ---- before the hello -----------------------------------------------------------------------------------

static void test_garbage_is_refused(void **state)
{
    struct fixture *f = *state;
    struct proto_server_stats before, after;
    uint8_t frame[PROTO_PREFIX_BYTES];
    proto_server_stats(f->server, &before);
    int fd = peer_dial(f);
    peer_put(fd, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 35);
    peer_expect_end(f, fd);
    fd = peer_dial(f); // another version
    proto_prefix_encode(&(struct proto_prefix){.version = PROTO_VERSION + 1,
                                               .kind = PROTO_FRAME_REQUEST,
                                               .header_len = 10,
                                               .payload_len = 0},
                        frame);
    peer_put(fd, frame, sizeof frame);
    peer_expect_end(f, fd);
    fd = peer_dial(f); // a reply to nothing
    peer_put_frame(fd, &(struct proto_outgoing){.kind = PROTO_FRAME_REPLY, .method = 1, .request = 1});
    peer_expect_end(f, fd);
    fd = peer_dial(f); // an announced payload, and a header above what strangers may send
    proto_prefix_encode(&(struct proto_prefix){.version = PROTO_VERSION,
                                               .kind = PROTO_FRAME_REQUEST,
                                               .header_len = 10,
                                               .payload_len = 1},
                        frame);
    peer_put(fd, frame, sizeof frame);
    uint8_t rest[96] = {0};
    peer_put(fd, rest, sizeof rest);
    peer_expect_end(f, fd);
    fd = peer_dial(f);
    proto_prefix_encode(&(struct proto_prefix){.version = PROTO_VERSION,
                                               .kind = PROTO_FRAME_REQUEST,
                                               .header_len = 3000,
                                               .payload_len = 0},
                        frame);
    peer_put(fd, frame, sizeof frame);
    peer_expect_end(f, fd);
    fd = peer_dial(f); // lengths that wrap
    proto_prefix_encode(&(struct proto_prefix){.version = PROTO_VERSION,
                                               .kind = PROTO_FRAME_REQUEST,
                                               .header_len = UINT32_MAX,
                                               .payload_len = UINT64_MAX},
                        frame);
    peer_put(fd, frame, sizeof frame);
    peer_expect_end(f, fd);
    proto_server_stats(f->server, &after);
    assert_int_equal(after.refused - before.refused, 6);
    assert_int_equal(f->n_handled, 0);
    assert_int_equal(f->n_links_closed, 0); // none of them was a link
    peer_expect_still_serving(f);
}

static void test_calls_before_the_hello(void **state)
{
    struct fixture *f = *state;
    int fd = peer_dial(f);
    peer_put_health(fd, 7, "echo");
    peer_expect_reply(f, fd, 7, COMMON_UNAUTHENTICATED);
    peer_expect_end(f, fd); // closed a moment later
    fd = peer_dial(f);
    peer_put_proof(fd, NULL, TOKEN); // the second message first
    peer_expect_reply(f, fd, 2, COMMON_UNAUTHENTICATED);
    peer_expect_end(f, fd);
    fd = peer_dial(f);
    peer_put_hello(fd, BANYAN__PB__ROLE__ROLE_CLIENT, peer_nonce, sizeof peer_nonce, PROTO_VERSION);
    peer_expect_reply(f, fd, 1, COMMON_OK);
    peer_put_health(fd, 7, "echo");
    peer_expect_reply(f, fd, 7, COMMON_UNAUTHENTICATED);
    peer_expect_end(f, fd);
    assert_int_equal(f->n_handled, 0);
}

static void test_wrong_hellos(void **state)
{
    struct fixture *f = *state;
    static const struct {
        uint32_t role;
        size_t nonce_len;
        uint32_t version;
        enum common_code code;
    } cases[] = {
        {BANYAN__PB__ROLE__ROLE_CLIENT, 32, PROTO_VERSION + 1, COMMON_FAILED_PRECONDITION},
        {BANYAN__PB__ROLE__ROLE_CLIENT, 31, PROTO_VERSION, COMMON_INVALID_ARGUMENT},
        {BANYAN__PB__ROLE__ROLE_CLIENT, 0, PROTO_VERSION, COMMON_INVALID_ARGUMENT},
        {BANYAN__PB__ROLE__ROLE_UNSPECIFIED, 32, PROTO_VERSION, COMMON_INVALID_ARGUMENT},
        {99, 32, PROTO_VERSION, COMMON_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd = peer_dial(f);
        peer_put_hello(fd, cases[i].role, peer_nonce, cases[i].nonce_len, cases[i].version);
        peer_expect_reply(f, fd, 1, cases[i].code);
        peer_expect_end(f, fd);
    }
}

static void test_silence_is_not_waited_for(void **state)
{
    struct fixture *f = *state;
    int silent = peer_dial(f), half = peer_dial(f);
    peer_put(half, "BNYN", 4);
    peer_expect_end(f, silent); // within the time for hellos
    peer_expect_end(f, half);
    struct proto_server_stats stats;
    proto_server_stats(f->server, &stats);
    assert_int_equal(stats.links, 0);
}

static void test_too_many_links(void **state)
{
    struct fixture *f = *state;
    proto_server_close(f->server);
    struct proto_server_options options = fixture_server_options(f);
    options.links_max = 2;
    fixture_serve(f, &options);
    int first = peer_dial_as_client(f), second = peer_dial_as_client(f), third = peer_dial(f);
    peer_put_hello(third, BANYAN__PB__ROLE__ROLE_CLIENT, peer_nonce, sizeof peer_nonce, PROTO_VERSION);
    peer_expect_reply(f, third, 1, COMMON_OK);
    peer_put_proof(third, NULL, TOKEN);
    peer_expect_reply(f, third, 2, COMMON_RESOURCE_EXHAUSTED);
    peer_expect_end(f, third);
    peer_put_health(first, 5, "echo");
    peer_expect_reply(f, first, 5, COMMON_OK);
    close(second);
    fixture_turn(f, &f->n_links_closed, 1);
    int again = peer_dial_as_client(f);
    close(again);
    close(first);
    fixture_turn(f, &f->n_links_closed, 3);
}

// ---- the cluster secret ---------------------------------------------------------------------------------

static struct proto_channel *link_as_daemon(struct fixture *f, const struct common_secret *secret,
                                            uint32_t role)
{
    return fixture_connect_as(
        f, &(struct proto_channel_options){.name = "daemon", .role = role, .secret = secret});
}

static void test_daemons(void **state)
{
    struct fixture *f = *state;
    struct outcome o;
    Banyan__Pb__HeartbeatRequest heartbeat = BANYAN__PB__HEARTBEAT_REQUEST__INIT;
    const struct ask ask = {.method = BANYAN__PB__METHOD__METHOD_HEARTBEAT, .body = &heartbeat.base};
    // The right secret: an echo; a coordinator may not do what a worker may.
    struct proto_channel *worker = link_as_daemon(f, &f->secret, BANYAN__PB__ROLE__ROLE_WORKER);
    assert_int_equal(fixture_ask(worker, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    outcome_fini(&o);
    struct proto_channel *coordinator = link_as_daemon(f, &f->secret, BANYAN__PB__ROLE__ROLE_COORDINATOR);
    assert_int_equal(fixture_ask(coordinator, &ask, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_PERMISSION_DENIED);
    proto_channel_close(worker);
    proto_channel_close(coordinator);
    // Another secret: the dialler sees that the server has a different one, and sends nothing more.
    struct common_secret other = f->secret;
    other.bytes[31] ^= 1;
    worker = link_as_daemon(f, &other, BANYAN__PB__ROLE__ROLE_WORKER);
    assert_int_equal(fixture_ask(worker, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_UNAUTHENTICATED);
    assert_non_null(strstr(o.text, "secret"));
    proto_channel_close(worker);
    // A daemon without a secret is a mistake of its own.
    struct proto_channel *channel;
    struct common_error err;
    assert_int_equal(proto_channel_open(f->loop, f->endpoint,
                                        &(struct proto_channel_options){.role =
                                                                            BANYAN__PB__ROLE__ROLE_WORKER},
                                        &channel, &err),
                     COMMON_INVALID_ARGUMENT);
}

static void get_accept(struct fixture *f, int fd, struct proto_hello *hello, uint8_t proof[32])
{
    Banyan__Pb__Header *header = peer_get_frame(f, fd);
    assert_non_null(header);
    Banyan__Pb__LinkHelloReply *reply =
        banyan__pb__link_hello_reply__unpack(NULL, header->body.len, header->body.data);
    assert_non_null(reply);
    assert_int_equal(reply->nonce.len, 32);
    assert_int_equal(reply->proof.len, 32);
    memcpy(hello->accept_nonce, reply->nonce.data, 32);
    hello->accept_role = (uint32_t)reply->role;
    memcpy(proof, reply->proof.data, 32);
    banyan__pb__link_hello_reply__free_unpacked(reply, NULL);
    banyan__pb__header__free_unpacked(header, NULL);
}

// What a dialler may send as its proof; all but the first are refused.
static const struct {
    const char *name;
    enum { PROOF_RIGHT, PROOF_OTHER_SECRET, PROOF_REFLECTED, PROOF_OLD, PROOF_OTHER_ROLE, PROOF_NONE } kind;
} proofs[] = {
    {"the right one", PROOF_RIGHT},
    {"by another secret", PROOF_OTHER_SECRET},
    {"the server's own, reflected", PROOF_REFLECTED},
    {"that of an earlier link", PROOF_OLD},
    {"that of another role", PROOF_OTHER_ROLE},
    {"none, but a client's token", PROOF_NONE},
};

// The accepting side demands the proof, and takes neither its own back nor an old one.
static void test_proofs_of_diallers(void **state)
{
    struct fixture *f = *state;
    struct proto_hello hello = {.dial_role = BANYAN__PB__ROLE__ROLE_WORKER};
    memcpy(hello.dial_nonce, peer_nonce, sizeof peer_nonce);
    uint8_t accept[32], proof[32], want[32], old[32];
    struct common_secret other = f->secret;
    other.bytes[0] ^= 1;
    for (size_t i = 0; i < sizeof proofs / sizeof *proofs; i++) {
        named_case_begin(proofs[i].name);
        int fd = peer_dial(f);
        peer_put_hello(fd, hello.dial_role, peer_nonce, sizeof peer_nonce, PROTO_VERSION);
        get_accept(f, fd, &hello, accept);
        proto_hello_proof(&f->secret, &hello, false, want);
        assert_memory_equal(accept, want, 32); // the server's own proof is right
        proto_hello_proof(proofs[i].kind == PROOF_OTHER_SECRET ? &other : &f->secret, &hello, true, proof);
        if (proofs[i].kind == PROOF_RIGHT)
            memcpy(old, proof, 32);
        struct proto_hello lied = hello;
        lied.dial_role = BANYAN__PB__ROLE__ROLE_COORDINATOR;
        switch (proofs[i].kind) {
        case PROOF_RIGHT:
        case PROOF_OTHER_SECRET:
            peer_put_proof(fd, proof, NULL);
            break;
        case PROOF_REFLECTED:
            peer_put_proof(fd, accept, NULL);
            break;
        case PROOF_OLD:
            peer_put_proof(fd, old, NULL);
            break;
        case PROOF_OTHER_ROLE:
            proto_hello_proof(&f->secret, &lied, true, proof);
            peer_put_proof(fd, proof, NULL);
            break;
        case PROOF_NONE:
            peer_put_proof(fd, NULL, TOKEN);
            break;
        }
        peer_expect_reply(f, fd, 2, proofs[i].kind == PROOF_RIGHT ? COMMON_OK : COMMON_UNAUTHENTICATED);
        if (proofs[i].kind == PROOF_RIGHT)
            close(fd);
        else
            peer_expect_end(f, fd);
    }
    named_cases_end();
    // Without a secret a server takes no daemon at all.
    proto_server_close(f->server);
    struct proto_server_options options = fixture_server_options(f);
    options.secret = NULL;
    fixture_serve(f, &options);
    int fd = peer_dial(f);
    peer_put_hello(fd, hello.dial_role, peer_nonce, sizeof peer_nonce, PROTO_VERSION);
    peer_expect_reply(f, fd, 1, COMMON_UNAUTHENTICATED);
    peer_expect_end(f, fd);
}

// ---- behind the hello -----------------------------------------------------------------------------------

static void test_bad_frames_on_a_link(void **state)
{
    struct fixture *f = *state;
    // The same id twice.
    int fd = peer_dial_as_client(f);
    peer_put_health(fd, 9, "never");
    fixture_turn(f, &f->n_held, 1);
    peer_put_health(fd, 9, "echo");
    peer_expect_reply(f, fd, 9, COMMON_INVALID_ARGUMENT);
    peer_expect_end(f, fd);
    assert_true(f->held->cancelled);
    // A one-way frame that is not a cancellation.
    fd = peer_dial_as_client(f);
    peer_put_frame(fd, &(struct proto_outgoing){.kind = PROTO_FRAME_ONE_WAY,
                                                .method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                .request = 1});
    peer_expect_end(f, fd);
    // Garbage between frames.
    fd = peer_dial_as_client(f);
    peer_put_health(fd, 3, "echo");
    uint8_t junk[64];
    memset(junk, 0xa5, sizeof junk);
    peer_put(fd, junk, sizeof junk);
    peer_expect_reply(f, fd, 3, COMMON_OK);
    peer_expect_end(f, fd);
    // A body that is none, and a deadline that has passed, cost only their call.
    fd = peer_dial_as_client(f);
    Banyan__Pb__Tensor tensor = BANYAN__PB__TENSOR__INIT;
    tensor.bytes = 1; // its first field, an enum, where a string is due
    tensor.dtype = BANYAN__PB__DTYPE__DTYPE_F32;
    peer_put_frame(fd, &(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                .method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                .request = 4,
                                                .remaining_ns = 1000,
                                                .body = &tensor.base});
    peer_expect_reply(f, fd, 4, COMMON_INVALID_ARGUMENT);
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    peer_put_frame(fd, &(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                .method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                .request = 5,
                                                .body = &body.base});
    peer_expect_reply(f, fd, 5, COMMON_DEADLINE_EXCEEDED);
    peer_put_health(fd, 6, "echo");
    peer_expect_reply(f, fd, 6, COMMON_OK);
    close(fd);
}

// However often it is said, and when the link goes besides.
static void test_a_cancellation_is_told_once(void **state)
{
    struct fixture *f = *state;
    const struct proto_outgoing cancel = {.kind = PROTO_FRAME_ONE_WAY,
                                          .method = BANYAN__PB__METHOD__METHOD_CANCEL,
                                          .request = 9};
    int fd = peer_dial_as_client(f);
    peer_put_health(fd, 9, "never");
    fixture_turn(f, &f->n_held, 1);
    peer_put_frame(fd, &cancel);
    peer_put_frame(fd, &cancel);
    peer_put_health(fd, 10, "echo");
    peer_expect_reply(f, fd, 10, COMMON_OK);
    assert_true(f->held->cancelled);
    close(fd);
    fixture_turn(f, &f->n_links_closed, 1);
}

// A call whose time is over is no longer worked on.
static void test_a_late_call_is_taken_back(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o;
    fixture_turn_while_connected(f, channel, false);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "never", .deadline_ns = SECONDS(1) / 20},
                                 &o, NULL),
                     COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_DEADLINE_EXCEEDED);
    fixture_turn(f, &f->n_held, 1);
    for (int i = 0; i < 1000 && !f->held->cancelled; i++)
        fixture_turn_for(f, SECONDS(1) / 100);
    assert_true(f->held->cancelled);
    outcome_fini(&o);
    proto_channel_close(channel);
}

// Frames in every kind of pieces.
static void test_bytes_one_by_one(void **state)
{
    struct fixture *f = *state;
    int fd = peer_dial_as_client(f);
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    body.service = "echo";
    struct common_slice slice = {"0123456789", 10};
    struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {10}, &slice, 1};
    assert_int_equal(proto_frame_encode(&scratch,
                                        &(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                                 .method =
                                                                     BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                                 .request = 8,
                                                                 .remaining_ns = SECONDS(10),
                                                                 .body = &body.base,
                                                                 .tensors = &tensor,
                                                                 .n_tensors = 1},
                                        1000, &gather, NULL),
                     COMMON_OK);
    for (size_t i = 0; i < gather.n; i++)
        for (size_t k = 0; k < gather.iov[i].iov_len; k++) {
            peer_put(fd, (const uint8_t *)gather.iov[i].iov_base + k, 1);
            fixture_turn_for(f, 0);
        }
    peer_expect_reply(f, fd, 8, COMMON_OK);
    proto_scratch_fini(&scratch);
    close(fd);
}

// A reader that takes nothing: its answers pile up to a bound, its further requests are not read, everybody
// else is served.
static void test_slow_reader(void **state)
{
    struct fixture *f = *state;
    int slow = peer_dial_as_client(f);
    unsigned sent = 0;
    for (int round = 0; round < 200; round++) {
        Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
        body.service = "big:1000000";
        struct proto_scratch scratch = {0};
        struct proto_gather gather;
        assert_int_equal(
            proto_frame_encode(&scratch,
                               &(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                        .method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                        .request = 100 + sent,
                                                        .remaining_ns = SECONDS(60),
                                                        .body = &body.base},
                               0, &gather, NULL),
            COMMON_OK);
        if (send(slow, gather.iov[0].iov_base, gather.iov[0].iov_len, MSG_NOSIGNAL) ==
            (ssize_t)gather.iov[0].iov_len)
            sent++;
        proto_scratch_fini(&scratch);
        fixture_turn_for(f, 0);
    }
    assert_true(f->n_handled < 20); // some MB of answers, not 200
    peer_expect_still_serving(f);
    // When it reads at last, it gets all.
    for (unsigned i = 0; i < sent; i++)
        peer_expect_reply(f, slow, 100 + i, COMMON_OK);
    close(slow);
    fixture_turn(f, &f->n_sent, sent);
}

static bool never(void *arg)
{
    (void)arg;
    return false;
}

// A link stalls that has begun a frame and waits for the rest, on either way. One that is idle does not, nor
// one that is not read because this end has enough.
static void test_what_stalls(void **state)
{
    struct fixture *f = *state;
    static const struct proto_link_ops reads = {.frame = NULL}, waits = {.frame = NULL, .may_read = never};
    uint8_t prefix[PROTO_PREFIX_BYTES];
    proto_prefix_encode(&(struct proto_prefix){.version = PROTO_VERSION,
                                               .kind = PROTO_FRAME_REPLY,
                                               .header_len = 10,
                                               .payload_len = 0},
                        prefix);
    for (int paused = 0; paused < 2; paused++) {
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
        struct proto_link *link = proto_link_new(f->loop, fds[0], paused ? &waits : &reads, NULL);
        assert_non_null(link);
        assert_false(proto_link_stalls(link, UINT64_MAX)); // idle
        peer_put(fds[1], prefix, sizeof prefix);
        for (int i = 0; i < 1000 && link->in_end == link->in_start; i++)
            fixture_turn_for(f, SECONDS(1) / 100);
        assert_int_equal(link->state, paused ? PROTO_LINK_PAUSED : PROTO_LINK_OPEN);
        assert_int_equal(proto_link_stalls(link, UINT64_MAX), !paused);
        assert_false(proto_link_stalls(link, 0)); // something has moved since then
        proto_link_close(link);
        close(fds[1]);
    }
}

// A server that holds as many bytes as it may reads on once it holds less, also where no answer waits for its
// socket.
static void test_a_full_server_reads_on(void **state)
{
    struct fixture *f = *state;
    proto_server_close(f->server);
    struct proto_server_options options = fixture_server_options(f);
    options.bytes_max = 150000; // the second request is the last that is read
    options.caller_bytes_max = UINT64_MAX;
    fixture_serve(f, &options);
    struct proto_channel *channel = fixture_connect(f);
    uint8_t *bytes = calloc(1, 100000);
    assert_non_null(bytes);
    struct common_slice piece = {bytes, 100000};
    struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {100000}, &piece, 1};
    struct outcome o[3];
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(fixture_ask(channel,
                                     &(struct ask){.service = "later", .tensors = &tensor, .n_tensors = 1},
                                     &o[i], NULL),
                         COMMON_OK);
    fixture_turn(f, &f->n_held, 2);
    for (int i = 0; i < 10; i++)
        fixture_turn_for(f, SECONDS(1) / 100);
    assert_int_equal(f->n_held, 2);
    for (struct held *held = f->held, *next; held; held = next) {
        next = held->next;
        proto_request_fail(held->request, COMMON_ABORTED, "a short answer", NULL, 0);
        free(held);
    }
    f->held = NULL;
    f->n_held = 0;
    fixture_turn(f, &f->n_held, 1);
    fixture_answer_held(f);
    for (unsigned i = 0; i < 3; i++) {
        fixture_turn(f, &o[i].done, 1);
        assert_int_equal(o[i].code, i < 2 ? COMMON_ABORTED : COMMON_OK);
        outcome_fini(&o[i]);
    }
    free(bytes);
    proto_channel_close(channel);
}

static void test_stale_socket_file(void **state)
{
    struct fixture *f = *state;
    struct stat st;
    char path[128];
    snprintf(path, sizeof path, "%s", f->endpoint + strlen("unix://"));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    proto_server_close(f->server);
    assert_int_not_equal(stat(path, &st), 0); // removed
    // What a killed process leaves.
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    struct proto_server_options options = fixture_server_options(f);
    fixture_serve(f, &options);
    peer_expect_still_serving(f);
    // A file that is not a socket is not removed.
    proto_server_close(f->server);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    struct common_error err;
    assert_int_equal(proto_server_new(f->loop, &options, &f->server, &err), COMMON_OK);
    assert_int_equal(proto_server_listen(f->server, f->endpoint, &err), COMMON_ALREADY_EXISTS);
    assert_int_equal(stat(path, &st), 0);
    unlink(path);
}

// A server that goes leaves the socket file of the one that has taken its place.
static void test_a_successors_socket_file_stays(void **state)
{
    struct fixture *f = *state;
    struct stat st;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", f->endpoint + strlen("unix://"));
    assert_int_equal(unlink(address.sun_path), 0);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    proto_server_close(f->server);
    assert_int_equal(stat(address.sun_path, &st), 0);
    close(fd);
    struct proto_server_options options = fixture_server_options(f);
    fixture_serve(f, &options);
}

static void test_names_are_looked_up(void **state)
{
    (void)state;
    struct fixture *f = fixture_new(TRANSPORT_TCP);
    char endpoint[300];
    snprintf(endpoint, sizeof endpoint, "tcp://localhost:%s", strrchr(f->endpoint, ':') + 1);
    struct proto_channel *channel;
    struct common_error err;
    struct outcome o;
    const struct proto_channel_options options = {.role = BANYAN__PB__ROLE__ROLE_CLIENT, .token = TOKEN};
    assert_int_equal(proto_channel_open(f->loop, endpoint, &options, &channel, &err), COMMON_OK);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    outcome_fini(&o);
    proto_channel_close(channel);
    fixture_free(f);
}

// "[::]:0" is all addresses of both families: what workers listen at by default.
static void test_all_addresses_are_of_both_families(void **state)
{
    (void)state;
    static const char *const hosts[] = {"127.0.0.1", "[::1]"};
    const struct proto_channel_options options = {.role = BANYAN__PB__ROLE__ROLE_CLIENT, .token = TOKEN};
    struct fixture *f = fixture_new(TRANSPORT_TCP);
    struct common_error err;
    if (proto_server_listen(f->server, "tcp://[::]:0", &err) != COMMON_OK) {
        fixture_free(f);
        skip(); // there is no IPv6 here
    }
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        char endpoint[300];
        struct proto_channel *channel;
        struct outcome o;
        snprintf(endpoint, sizeof endpoint, "tcp://%s%s", hosts[i],
                 strrchr(proto_server_endpoint(f->server, 1), ':'));
        assert_int_equal(proto_channel_open(f->loop, endpoint, &options, &channel, &err), COMMON_OK);
        assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
        fixture_turn(f, &o.done, 1);
        assert_int_equal(o.code, COMMON_OK);
        outcome_fini(&o);
        proto_channel_close(channel);
    }
    fixture_free(f);
}

// On a machine whose /etc/resolv.conf names no server: /etc/hosts counts, as it is when the name is looked
// up.
static void test_names_of_hosts(void **state)
{
    (void)state;
    char hosts[] = "/tmp/banyan-hosts-XXXXXX", endpoint[300];
    int fd = mkstemp(hosts);
    assert_true(fd >= 0);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("/dev/null", "/etc/resolv.conf", NULL, MS_BIND, NULL) != 0 ||
        mount(hosts, "/etc/hosts", NULL, MS_BIND, NULL) != 0) {
        close(fd);
        unlink(hosts);
        skip(); // not root
    }
    struct fixture *f = fixture_new(TRANSPORT_TCP);
    snprintf(endpoint, sizeof endpoint, "tcp://a-host-of-this-test:%s", strrchr(f->endpoint, ':') + 1);
    const struct proto_channel_options options = {.role = BANYAN__PB__ROLE__ROLE_CLIENT, .token = TOKEN};
    struct proto_channel *channel;
    struct common_error err;
    assert_int_equal(proto_channel_open(f->loop, endpoint, &options, &channel, &err), COMMON_OK);
    enum common_code code = COMMON_OK;
    for (int i = 0; i == 0 || (code == COMMON_DEADLINE_EXCEEDED && i < 300); i++) {
        struct outcome o;
        const struct ask ask = {.service = "echo", .deadline_ns = 200 * COMMON_NS_PER_MS};
        assert_int_equal(fixture_ask(channel, &ask, &o, NULL), COMMON_OK);
        fixture_turn(f, &o.done, 1);
        code = o.code;
        if (i == 0) {
            assert_int_equal(code, COMMON_DEADLINE_EXCEEDED); // there is no such name
            assert_true(dprintf(fd, "127.0.0.1 a-host-of-this-test\n") > 0);
        }
        outcome_fini(&o);
    }
    assert_int_equal(code, COMMON_OK);
    proto_channel_close(channel);
    fixture_free(f);
    close(fd);
    assert_int_equal(umount2("/etc/hosts", MNT_DETACH), 0);
    assert_int_equal(umount2("/etc/resolv.conf", MNT_DETACH), 0);
    unlink(hosts);
}

struct told {
    unsigned up, down, refused;
};

static void on_state(void *arg, bool connected)
{
    struct told *told = arg;
    *(connected ? &told->up : &told->down) += 1;
}

static void on_refused(void *arg)
{
    struct told *told = arg;
    told->refused++;
}

// Both over a unix socket, whose file goes with its server, and over TCP.
static void state_is_told(struct fixture *f)
{
    struct told told = {0};
    struct proto_channel *channel =
        fixture_connect_as(f, &(struct proto_channel_options){.role = BANYAN__PB__ROLE__ROLE_CLIENT,
                                                              .token = TOKEN,
                                                              .state = on_state,
                                                              .refused = on_refused,
                                                              .state_arg = &told});
    fixture_turn(f, &told.up, 1);
    assert_true(proto_channel_connected(channel));
    proto_server_close(f->server);
    fixture_turn(f, &told.down, 1);
    assert_false(proto_channel_connected(channel));
    assert_int_equal(told.refused, 0); // no one has dialled yet
    fixture_turn(f, &told.refused, 1);
    struct proto_server_options options = fixture_server_options(f);
    fixture_serve(f, &options);
    fixture_turn(f, &told.up, 2);
    proto_channel_close(channel);
    assert_int_equal(told.down, 1); // one's own close is no news
}

static void test_state_is_told(void **state)
{
    state_is_told(*state);
    struct fixture *f = fixture_new(TRANSPORT_TCP);
    state_is_told(f);
    fixture_free(f);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_garbage_is_refused),
        TEST(test_calls_before_the_hello),
        TEST(test_wrong_hellos),
        TEST(test_silence_is_not_waited_for),
        TEST(test_too_many_links),
        TEST(test_daemons),
        TEST(test_proofs_of_diallers),
        TEST(test_bad_frames_on_a_link),
        TEST(test_bytes_one_by_one),
        TEST(test_slow_reader),
        TEST(test_stale_socket_file),
        cmocka_unit_test(test_names_are_looked_up),
        cmocka_unit_test(test_all_addresses_are_of_both_families),
        cmocka_unit_test(test_names_of_hosts),
        TEST(test_state_is_told),
        TEST(test_a_cancellation_is_told_once),
        TEST(test_a_late_call_is_taken_back),
        TEST(test_a_successors_socket_file_stays),
        TEST(test_what_stalls),
        TEST(test_a_full_server_reads_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
