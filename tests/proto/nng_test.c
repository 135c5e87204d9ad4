// SPDX-License-Identifier: Apache-2.0
// Peers over nng that do not keep to the protocol, and connections that are lost.
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
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "proto/nng_door.h"
#include "proto/wire/frame.h"
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

// The server shakes hands on the loop that is turned here.
static void send_turning(struct fixture *f, nng_socket s, const void *data, size_t len)
{
    int rv = NNG_EAGAIN;
    for (uint64_t since = common_clock_ns(); rv == NNG_EAGAIN && common_clock_ns() - since < SECONDS(30);) {
        rv = nng_send(s, (void *)(uintptr_t)data, len, NNG_FLAG_NONBLOCK);
        if (rv == NNG_EAGAIN)
            fixture_turn_for(f, SECONDS(1) / 100);
    }
    assert_int_equal(rv, 0);
}

// Sends and turns the loop until the answer is there. Returns its length; its beginning goes to `out`.
static size_t exchange(struct fixture *f, nng_socket s, const void *data, size_t len, void *out,
                       size_t out_len)
{
    send_turning(f, s, data, len);
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
    proto_prefix_encode(&(struct proto_prefix){.version = PROTO_VERSION,
                                               .kind = PROTO_FRAME_REQUEST,
                                               .header_len = 10,
                                               .payload_len = 1000},
                        bytes);
    assert_int_equal(exchange(f, s, bytes, sizeof bytes, answer, sizeof answer), 0);
    proto_prefix_encode(&(struct proto_prefix){.version = PROTO_VERSION,
                                               .kind = PROTO_FRAME_REQUEST,
                                               .header_len = UINT32_MAX,
                                               .payload_len = UINT64_MAX},
                        bytes);
    assert_int_equal(exchange(f, s, bytes, sizeof bytes, answer, sizeof answer), 0);
    proto_prefix_encode(&(struct proto_prefix){.version = PROTO_VERSION,
                                               .kind = PROTO_FRAME_REPLY,
                                               .header_len = 10,
                                               .payload_len = 0},
                        bytes);
    assert_int_equal(exchange(f, s, bytes, 64, answer, sizeof answer), 0);
    proto_prefix_encode(&(struct proto_prefix){.version = PROTO_VERSION + 1,
                                               .kind = PROTO_FRAME_REQUEST,
                                               .header_len = 10,
                                               .payload_len = 0},
                        bytes);
    assert_int_equal(exchange(f, s, bytes, 64, answer, sizeof answer), 0);
    // An empty header is a frame, without a sender: the answer is one, too.
    memset(bytes, 0, sizeof bytes);
    proto_prefix_encode(&(struct proto_prefix){.version = PROTO_VERSION,
                                               .kind = PROTO_FRAME_REQUEST,
                                               .header_len = 0,
                                               .payload_len = 0},
                        bytes);
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

// A request without an answer.
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
    send_turning(f, s, gather.iov[0].iov_base, gather.iov[0].iov_len);
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

// ---- any program of nng's -------------------------------------------------------------------------------

enum { CONTEXTS = 24, ROUNDS = 6 };

struct asker { // a context of a plain REQ socket
    nng_ctx ctx;
    nng_aio *aio;
    atomic_uint *done;
    bool sent;
    int rv;
    uint32_t number;
    size_t bytes;
    nng_msg *answer;
};

static void on_aio(void *arg)
{
    struct asker *asker = arg;
    asker->rv = nng_aio_result(asker->aio);
    if (asker->rv == 0 && !asker->sent) {
        asker->sent = true;
        nng_ctx_recv(asker->ctx, asker->aio);
        return;
    }
    if (asker->rv == 0)
        asker->answer = nng_aio_get_msg(asker->aio);
    atomic_fetch_add(asker->done, 1);
}

static uint8_t byte_of(const struct asker *asker, size_t at)
{
    return (uint8_t)(asker->number * 31 + at * 7 + at / 251);
}

static void ask_echo(struct asker *asker)
{
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    body.service = asker->number % 3 == 0 ? "later" : "echo";
    uint8_t *bytes = malloc(asker->bytes + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < asker->bytes; i++)
        bytes[i] = byte_of(asker, i);
    struct common_slice piece = {bytes, asker->bytes};
    struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {asker->bytes}, &piece, 1};
    struct proto_outgoing outgoing = {.kind = PROTO_FRAME_REQUEST,
                                      .method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                      .request = 1000 + asker->number,
                                      .remaining_ns = SECONDS(60),
                                      .credentials = TOKEN,
                                      .body = &body.base,
                                      .tensors = &tensor,
                                      .n_tensors = 1};
    nng_msg *msg;
    assert_int_equal(proto_frame_encode(&scratch, &outgoing, SIZE_MAX / 4, &gather, NULL), COMMON_OK);
    assert_int_equal(nng_msg_alloc(&msg, 0), 0);
    for (size_t i = 0; i < gather.n; i++)
        assert_int_equal(nng_msg_append(msg, gather.iov[i].iov_base, gather.iov[i].iov_len), 0);
    asker->sent = false;
    nng_aio_set_msg(asker->aio, msg);
    nng_ctx_send(asker->ctx, asker->aio);
    proto_scratch_fini(&scratch);
    free(bytes);
}

static void check_echo(struct asker *asker)
{
    struct proto_prefix prefix;
    assert_int_equal(asker->rv, 0);
    const uint8_t *frame = nng_msg_body(asker->answer);
    assert_true(nng_msg_len(asker->answer) >= PROTO_PREFIX_BYTES);
    assert_int_equal(proto_prefix_decode(frame, &prefix, NULL), COMMON_OK);
    assert_int_equal(prefix.kind, PROTO_FRAME_REPLY);
    assert_int_equal(prefix.payload_len, asker->bytes);
    size_t at = proto_frame_payload_at(prefix.header_len);
    assert_int_equal(nng_msg_len(asker->answer), at + common_align64(asker->bytes));
    for (size_t i = 0; i < asker->bytes; i++)
        if (frame[at + i] != byte_of(asker, i))
            fail_msg("byte %zu of the answer to %u is another's", i, asker->number);
    nng_msg_free(asker->answer);
    asker->answer = NULL;
}

// The library alone, as another language's binding has it: contexts side by side on one connection, small and
// large, answered in another order than asked.
static void test_contexts_of_one_connection(void **state)
{
    struct fixture *f = *state;
    struct asker askers[CONTEXTS];
    atomic_uint done = 0;
    nng_socket s = dial(f);
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        askers[i] = (struct asker){.number = i, .done = &done};
        assert_int_equal(nng_ctx_open(&askers[i].ctx, s), 0);
        assert_int_equal(nng_aio_alloc(&askers[i].aio, on_aio, &askers[i]), 0);
        nng_aio_set_timeout(askers[i].aio, 30000);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        atomic_store(&done, 0);
        for (uint32_t i = 0; i < CONTEXTS; i++) {
            askers[i].number = round * CONTEXTS + i;
            askers[i].bytes = (size_t)1 << (askers[i].number * 5 % 23); // up to 4 MiB
            ask_echo(&askers[i]);
        }
        while (atomic_load(&done) < CONTEXTS) {
            fixture_turn_for(f, SECONDS(1) / 100);
            if (atomic_load(&done) + f->n_held >= CONTEXTS)
                fixture_answer_held(f);
        }
        for (uint32_t i = 0; i < CONTEXTS; i++)
            check_echo(&askers[i]);
    }
    assert_int_equal(f->n_handled, ROUNDS * CONTEXTS);
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        nng_ctx_close(askers[i].ctx);
        nng_aio_free(askers[i].aio);
    }
    nng_close(s);
}

// ---- nng's reaper ---------------------------------------------------------------------------------------

// nng's one reaper thread, held as a lost operation holds it (proto/nng_door.h), but not forever.
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
    } else if (atomic_load(&r->pipe) == id) { // the first; the dialler reconnects once it is gone
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
        TEST(test_a_caller_vanishes),
        TEST(test_daemons_do_not_link_over_nng),
        TEST(test_contexts_of_one_connection),
        TEST(test_server_comes_back_while_the_reaper_is_stuck),
        TEST(test_server_stays_away),
        TEST(test_closed_by_the_news_of_its_loss),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < 1000 && proto_nng_closing() > 0; i++)
        usleep(10000);
    return failed;
}
