// SPDX-License-Identifier: Apache-2.0
// Peers over nng that do not keep to the protocol, and connections that are lost.
#include <arpa/inet.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "proto/frame.h"
#include "proto/nng_door.h"
#include "tests/proto/fixture.h"

static int setup(void **state)
{
    *state = fixture_new(TRANSPORT_NNG);
    return 0;
}

static int teardown(void **state)
{
    fixture_free(*state);
    return 0;
}

static void expect_still_serving(struct fixture *f)
{
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    outcome_fini(&o);
    proto_channel_close(channel);
}

static nng_socket dial(struct fixture *f)
{
    nng_socket s;
    assert_int_equal(nng_req0_open(&s), 0);
    assert_int_equal(nng_dial(s, f->endpoint + strlen("nng+"), NULL, NNG_FLAG_NONBLOCK), 0);
    return s;
}

// Sends and turns the loop until the answer is there. Returns its length; its beginning goes to `out`.
static size_t exchange(struct fixture *f, nng_socket s, const void *data, size_t len, void *out,
                       size_t out_len)
{
    assert_int_equal(nng_send(s, (void *)data, len, 0), 0);
    for (uint64_t since = common_clock_ns(); common_clock_ns() - since < SECONDS(30);) {
        nng_msg *msg;
        if (nng_recvmsg(s, &msg, NNG_FLAG_NONBLOCK) == 0) {
            size_t n = nng_msg_len(msg);
            memcpy(out, nng_msg_body(msg), n < out_len ? n : out_len);
            nng_msg_free(msg);
            return n;
        }
        fixture_turn_for(f, SECONDS(1) / 100);
    }
    fail_msg("no answer over nng");
    return 0;
}

static void test_messages_that_are_no_frames(void **state)
{
    struct fixture *f = *state;
    nng_socket s = dial(f);
    uint8_t bytes[256] = {0}, answer[256];
    assert_int_equal(exchange(f, s, "", 0, answer, sizeof answer), 0);
    assert_int_equal(exchange(f, s, "short", 5, answer, sizeof answer), 0);
    memset(bytes, 0xa5, sizeof bytes);
    assert_int_equal(exchange(f, s, bytes, sizeof bytes, answer, sizeof answer), 0);
    // A right prefix with other lengths than the message's, a reply, another version.
    proto_prefix_encode(&(struct proto_prefix){PROTO_VERSION, PROTO_FRAME_REQUEST, 10, 1000}, bytes);
    assert_int_equal(exchange(f, s, bytes, sizeof bytes, answer, sizeof answer), 0);
    proto_prefix_encode(&(struct proto_prefix){PROTO_VERSION, PROTO_FRAME_REQUEST, UINT32_MAX, UINT64_MAX},
                        bytes);
    assert_int_equal(exchange(f, s, bytes, sizeof bytes, answer, sizeof answer), 0);
    proto_prefix_encode(&(struct proto_prefix){PROTO_VERSION, PROTO_FRAME_REPLY, 10, 0}, bytes);
    assert_int_equal(exchange(f, s, bytes, 64, answer, sizeof answer), 0);
    proto_prefix_encode(&(struct proto_prefix){PROTO_VERSION + 1, PROTO_FRAME_REQUEST, 10, 0}, bytes);
    assert_int_equal(exchange(f, s, bytes, 64, answer, sizeof answer), 0);
    // An empty header is a frame, from nobody: the answer is one, too.
    memset(bytes, 0, sizeof bytes);
    proto_prefix_encode(&(struct proto_prefix){PROTO_VERSION, PROTO_FRAME_REQUEST, 0, 0}, bytes);
    assert_true(exchange(f, s, bytes, 64, answer, sizeof answer) >= 64);
    struct proto_prefix prefix;
    assert_int_equal(proto_prefix_decode(answer, &prefix, NULL), COMMON_OK);
    assert_int_equal(prefix.kind, PROTO_FRAME_REPLY);
    nng_close(s);
    struct proto_server_stats stats;
    proto_server_stats(f->server, &stats);
    assert_int_equal(stats.refused, 8);
    assert_int_equal(stats.requests, 0);
    assert_int_equal(f->n_handled, 0);
    expect_still_serving(f);
}

// Below nng: connections that say nothing, garbage, or a length of 8 GB.
static void test_stray_connections(void **state)
{
    struct fixture *f = *state;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)atoi(strrchr(f->endpoint, ':') + 1))};
    static const uint8_t hello[] = {0, 'S', 'P', 0, 0, 0x30, 0, 0}; // REQ
    static const uint8_t huge[] = {0, 0, 0, 2, 0, 0, 0, 0};
    for (int i = 0; i < 40; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
        if (i % 4 == 1) {
            assert_int_equal(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
        } else if (i % 4 >= 2) {
            char theirs[8];
            assert_int_equal(send(fd, hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
            assert_int_equal(recv(fd, theirs, sizeof theirs, MSG_WAITALL), sizeof theirs);
            if (i % 4 == 3)
                assert_int_equal(send(fd, huge, sizeof huge, MSG_NOSIGNAL), sizeof huge);
        }
        close(fd);
        fixture_turn_for(f, 0);
    }
    expect_still_serving(f);
}

// A request that nobody answers.
static void ask_never(struct proto_scratch *scratch, struct proto_gather *gather)
{
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    body.service = "never";
    assert_int_equal(proto_frame_encode(scratch,
                                        &(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                                 .method =
                                                                     BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                                 .request = 1,
                                                                 .remaining_ns = SECONDS(60),
                                                                 .credentials = TOKEN,
                                                                 .body = &body.base},
                                        0, gather, NULL),
                     COMMON_OK);
}

static void test_a_caller_vanishes(void **state)
{
    struct fixture *f = *state;
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    ask_never(&scratch, &gather);
    nng_socket s = dial(f);
    assert_int_equal(nng_send(s, gather.iov[0].iov_base, gather.iov[0].iov_len, 0), 0);
    proto_scratch_fini(&scratch);
    fixture_turn(f, &f->n_held, 1);
    assert_false(f->held->cancelled);
    nng_close(s);
    for (uint64_t since = common_clock_ns(); !f->held->cancelled && common_clock_ns() - since < SECONDS(30);)
        fixture_turn_for(f, SECONDS(1) / 100);
    assert_true(f->held->cancelled);
    fixture_answer_held(f);
    expect_still_serving(f);
}

static void test_daemons_do_not_link_over_nng(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel;
    struct common_error err;
    assert_int_equal(proto_channel_open(f->loop, f->endpoint,
                                        &(struct proto_channel_options){.role = BANYAN__PB__ROLE__ROLE_WORKER,
                                                                        .secret = &f->secret},
                                        &channel, &err),
                     COMMON_INVALID_ARGUMENT);
}

// ---- nng's reaper ---------------------------------------------------------------------------------------

// nng's one reaper thread, held as a lost operation holds it (proto/nng_door.h), but not for ever.
struct reaper {
    nng_socket served, dialled;
    _Atomic uint32_t pipe;
    sem_t connected, held, release;
};

static void on_reaper_pipe(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    struct reaper *r = arg;
    uint32_t id = (uint32_t)nng_pipe_id(pipe), none = 0;
    if (event == NNG_PIPE_EV_ADD_POST) {
        if (atomic_compare_exchange_strong(&r->pipe, &none, id))
            sem_post(&r->connected);
    } else if (atomic_load(&r->pipe) == id) { // the first; the dialler comes again once it is gone
        sem_post(&r->held);
        sem_wait(&r->release);
    }
}

static void hold_reaper(struct reaper *r)
{
    atomic_init(&r->pipe, 0);
    sem_init(&r->connected, 0, 0);
    sem_init(&r->held, 0, 0);
    sem_init(&r->release, 0, 0);
    assert_int_equal(nng_rep0_open(&r->served), 0);
    assert_int_equal(nng_pipe_notify(r->served, NNG_PIPE_EV_ADD_POST, on_reaper_pipe, r), 0);
    assert_int_equal(nng_pipe_notify(r->served, NNG_PIPE_EV_REM_POST, on_reaper_pipe, r), 0);
    assert_int_equal(nng_listen(r->served, "inproc://reaper", NULL, 0), 0);
    assert_int_equal(nng_req0_open(&r->dialled), 0);
    assert_int_equal(nng_dial(r->dialled, "inproc://reaper", NULL, 0), 0);
    sem_wait(&r->connected);
    nng_pipe_close((nng_pipe){.id = atomic_load(&r->pipe)});
    sem_wait(&r->held);
}

static void release_reaper(struct reaper *r)
{
    sem_post(&r->release);
    nng_close(r->dialled); // both wait for the reaper
    nng_close(r->served);
    sem_destroy(&r->connected);
    sem_destroy(&r->held);
    sem_destroy(&r->release);
}

// Sends all of it over a connection of its own, below nng, whose close waits for nobody.
static int send_below(struct fixture *f, const void *frame, size_t len)
{
    static const uint8_t hello[] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)atoi(strrchr(f->endpoint, ':') + 1))};
    uint8_t theirs[8],
        start[12] = {0, 0, 0, 0, 0, 0, (uint8_t)((len + 4) >> 8), (uint8_t)(len + 4), 0x80, 0, 0, 1};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(send(fd, hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    assert_int_equal(recv(fd, theirs, sizeof theirs, MSG_WAITALL), sizeof theirs);
    assert_int_equal(send(fd, start, sizeof start, MSG_NOSIGNAL), sizeof start);
    assert_int_equal(send(fd, frame, len, MSG_NOSIGNAL), len);
    return fd;
}

// nng does not say that the caller is gone.
static void test_a_caller_vanishes_while_the_reaper_is_stuck(void **state)
{
    struct fixture *f = *state;
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    struct reaper reaper;
    ask_never(&scratch, &gather);
    hold_reaper(&reaper);
    int fd = send_below(f, gather.iov[0].iov_base, gather.iov[0].iov_len);
    proto_scratch_fini(&scratch);
    fixture_turn(f, &f->n_held, 1);
    close(fd);
    for (uint64_t since = common_clock_ns(); !f->held->cancelled && common_clock_ns() - since < SECONDS(30);)
        fixture_turn_for(f, SECONDS(1) / 100);
    assert_true(f->held->cancelled);
    fixture_answer_held(f);
    expect_still_serving(f);
    release_reaper(&reaper);
}

static void serve_again(struct fixture *f)
{
    struct proto_server_options options = fixture_server_options(f);
    fixture_serve(f, &options);
}

// nng does not connect again then, and does not say that the connection is gone.
static void test_server_comes_back_while_the_reaper_is_stuck(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome lost, again;
    struct reaper reaper;
    hold_reaper(&reaper);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "never"}, &lost, NULL), COMMON_OK);
    fixture_turn(f, &f->n_held, 1);
    proto_server_close(f->server);
    serve_again(f);
    fixture_turn(f, &lost.done, 1);
    assert_int_equal(lost.code, COMMON_UNAVAILABLE);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &again, NULL), COMMON_OK);
    fixture_turn(f, &again.done, 1);
    assert_int_equal(again.code, COMMON_OK);
    fixture_turn_while_connected(f, channel, false); // nng may tell after the answer
    outcome_fini(&again);
    proto_channel_close(channel);
    release_reaper(&reaper);
    fixture_answer_held(f);
}

// A connection that is lost and stays so ends its calls; those that come later wait for the server.
static void test_server_stays_away(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome lost, patient;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "never"}, &lost, NULL), COMMON_OK);
    fixture_turn(f, &f->n_held, 1);
    proto_server_close(f->server);
    f->server = NULL;
    fixture_turn(f, &lost.done, 1);
    assert_int_equal(lost.code, COMMON_UNAVAILABLE);
    assert_false(proto_channel_connected(channel));
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &patient, NULL), COMMON_OK);
    fixture_turn_for(f, SECONDS(4));
    assert_int_equal(patient.done, 0);
    serve_again(f);
    fixture_turn(f, &patient.done, 1);
    assert_int_equal(patient.code, COMMON_OK);
    outcome_fini(&patient);
    proto_channel_close(channel);
    fixture_answer_held(f);
}

// A callback that closes the channel while its calls are being ended.
static void close_in_callback(void *arg, const struct proto_reply *reply)
{
    struct proto_channel **channel = arg;
    if (*channel && reply->code == COMMON_UNAVAILABLE) {
        struct proto_channel *closed = *channel;
        *channel = NULL;
        proto_channel_close(closed);
    }
}

static void test_closed_by_the_news_of_its_loss(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome lost;
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    body.service = (char *)"never";
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                              .body = &body.base,
                              .deadline_ns = common_clock_after(SECONDS(20)),
                              .done = close_in_callback,
                              .arg = &channel};
    assert_int_equal(proto_channel_call(channel, &call, NULL, NULL), COMMON_OK);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "never"}, &lost, NULL), COMMON_OK);
    fixture_turn(f, &f->n_held, 2);
    proto_server_close(f->server);
    f->server = NULL;
    fixture_turn(f, &lost.done, 1);
    assert_null(channel);
    assert_int_equal(lost.code, COMMON_CANCELLED);
    serve_again(f);
    fixture_answer_held(f);
    expect_still_serving(f);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_messages_that_are_no_frames),
        TEST(test_stray_connections),
        TEST(test_a_caller_vanishes),
        TEST(test_daemons_do_not_link_over_nng),
        TEST(test_a_caller_vanishes_while_the_reaper_is_stuck),
        TEST(test_server_comes_back_while_the_reaper_is_stuck),
        TEST(test_server_stays_away),
        TEST(test_closed_by_the_news_of_its_loss),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < 1000 && proto_nng_closing() > 0; i++)
        usleep(10000);
    return failed;
}
