// SPDX-License-Identifier: Apache-2.0
// What the serving end gives each of its callers: places, requests, bytes. A caller that takes too much is
// refused or waits, and others are served as if it were not there.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/proto/fixture.h"
#include "tests/proto/peer.h"

static const char *const flags[PROTO_LIMIT_COUNT] = {[PROTO_LIMIT_CLIENTS] = "--max-clients",
                                                     [PROTO_LIMIT_DAEMONS] = "--max-workers",
                                                     [PROTO_LIMIT_REQUESTS] = "--max-requests",
                                                     [PROTO_LIMIT_UNREAD] = "--max-bytes"};

static int setup(void **state)
{
    *state = fixture_new(TRANSPORT_UNIX);
    return 0;
}

static int teardown(void **state)
{
    fixture_free(*state);
    return 0;
}

static struct proto_server_options begin(struct fixture *f)
{
    proto_server_close(f->server);
    struct proto_server_options options = fixture_server_options(f);
    options.flags = flags;
    return options;
}

static struct proto_limit_use use_of(struct fixture *f, enum proto_limit limit)
{
    struct proto_limit_use uses[PROTO_LIMIT_COUNT];
    proto_server_limits(f->server, uses);
    return uses[limit];
}

static struct proto_channel *connect_daemon(struct fixture *f)
{
    return fixture_connect_as(f, &(struct proto_channel_options){.name = "test-worker",
                                                                 .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                                                 .secret = &f->secret});
}

static void expect_echo(struct fixture *f, struct proto_channel *channel, enum common_code code,
                        const char *text)
{
    struct outcome o;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, code);
    assert_non_null(strstr(o.text, text));
    outcome_fini(&o);
}

static bool ended(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK) == 0;
}

// ---- places ---------------------------------------------------------------------------------------------

// Many more connections than strangers may have. A client in the middle of the hello comes through.
static void test_silent_crowd(void **state)
{
    struct fixture *f = *state;
    enum { CROWD = 1100 };
    int fd[CROWD];
    struct proto_channel *daemon = connect_daemon(f);
    expect_echo(f, daemon, COMMON_OK, "");
    int greeted = peer_dial(f);
    peer_put_hello(greeted, BANYAN__PB__ROLE__ROLE_CLIENT, peer_nonce, sizeof peer_nonce, PROTO_VERSION);
    peer_expect_reply(f, greeted, 1, COMMON_OK);
    for (int i = 0; i < CROWD; i++) {
        fd[i] = peer_dial(f);
        if (i % 50 == 0)
            fixture_turn_for(f, 0);
    }
    fixture_turn_for(f, SECONDS(1) / 10);
    struct proto_limit_use strangers = use_of(f, PROTO_LIMIT_STRANGERS);
    assert_int_equal(strangers.used, PROTO_STRANGERS_MAX);
    assert_int_equal(strangers.max, PROTO_STRANGERS_MAX);
    assert_int_equal(strangers.refused, CROWD + 1 - PROTO_STRANGERS_MAX);
    assert_true(ended(fd[0]));
    assert_false(ended(fd[CROWD - 1]));
    peer_put_proof(greeted, NULL, TOKEN);
    peer_expect_reply(f, greeted, 2, COMMON_OK);
    peer_expect_still_serving(f);
    expect_echo(f, daemon, COMMON_OK, "");
    struct proto_channel *another = connect_daemon(f);
    expect_echo(f, another, COMMON_OK, "");
    for (int i = 0; i < CROWD; i++)
        close(fd[i]);
    fixture_turn_for(f, SECONDS(1) / 10);
    assert_int_equal(use_of(f, PROTO_LIMIT_STRANGERS).used, 0);
    proto_channel_close(another);
    proto_channel_close(daemon);
    close(greeted);
}

// Those who only say hello do not drive out those that are still silent.
static void test_crowd_that_greets(void **state)
{
    struct fixture *f = *state;
    enum { CROWD = 400 };
    int fd[CROWD], early = peer_dial(f);
    fixture_turn_for(f, 0);
    for (int i = 0; i < CROWD; i++) {
        fd[i] = peer_dial(f);
        peer_put_hello(fd[i], BANYAN__PB__ROLE__ROLE_CLIENT, peer_nonce, sizeof peer_nonce, PROTO_VERSION);
        peer_expect_reply(f, fd[i], 1, COMMON_OK);
    }
    assert_true(ended(fd[0]));
    assert_false(ended(early));
    peer_expect_still_serving(f);
    close(early);
    for (int i = 0; i < CROWD; i++)
        close(fd[i]);
}

// Places of clients and of daemons are apart. The refusal names the limit and what raises it.
static void test_places(void **state)
{
    struct fixture *f = *state;
    struct proto_server_options options = begin(f);
    options.links_max = options.daemons_max = 2;
    fixture_serve(f, &options);
    struct proto_channel *clients[3], *daemons[3];
    for (int i = 0; i < 3; i++) {
        clients[i] = fixture_connect(f);
        expect_echo(f, clients[i], i < 2 ? COMMON_OK : COMMON_RESOURCE_EXHAUSTED,
                    i < 2 ? "" : "the limit of 2 connections of clients is reached: raise --max-clients");
    }
    for (int i = 0; i < 3; i++) {
        daemons[i] = connect_daemon(f);
        expect_echo(f, daemons[i], i < 2 ? COMMON_OK : COMMON_RESOURCE_EXHAUSTED,
                    i < 2 ? "" : "the limit of 2 links of daemons is reached: raise --max-workers");
    }
    struct proto_limit_use of_clients = use_of(f, PROTO_LIMIT_CLIENTS);
    assert_int_equal(of_clients.used, 2);
    assert_int_equal(of_clients.max, 2);
    assert_true(of_clients.refused >= 1);
    assert_string_equal(of_clients.flag, "--max-clients");
    proto_channel_close(clients[0]); // a place is free: the third one comes by itself
    fixture_turn_for(f, SECONDS(2));
    expect_echo(f, clients[2], COMMON_OK, "");
    for (int i = 0; i < 3; i++) {
        if (i > 0)
            proto_channel_close(clients[i]);
        proto_channel_close(daemons[i]);
    }
    fixture_turn(f, &f->n_links_closed, 5);
    assert_int_equal(use_of(f, PROTO_LIMIT_CLIENTS).used, 0);
    assert_int_equal(use_of(f, PROTO_LIMIT_DAEMONS).used, 0);
}

// An endpoint without a method for clients takes none: they would have its places for nothing.
static void test_no_methods_for_clients(void **state)
{
    struct fixture *f = *state;
    static const struct proto_method none[] = {{0, 0, NULL}};
    struct proto_server_options options = begin(f);
    options.methods = none;
    fixture_serve(f, &options);
    struct proto_channel *client = fixture_connect(f);
    expect_echo(f, client, COMMON_PERMISSION_DENIED, "for the cluster's daemons");
    proto_channel_close(client);
}

// ---- requests and bytes ---------------------------------------------------------------------------------

// A client that has all that it may have is not read; another one is served.
static void test_requests_of_one_client(void **state)
{
    struct fixture *f = *state;
    struct proto_server_options options = begin(f);
    options.requests_max = 8; // half of them for each
    fixture_serve(f, &options);
    struct proto_channel *greedy = fixture_connect(f), *other = fixture_connect(f),
                         *daemon = connect_daemon(f);
    struct outcome o[20];
    for (int i = 0; i < 20; i++)
        assert_int_equal(fixture_ask(greedy, &(struct ask){.service = "later"}, &o[i], NULL), COMMON_OK);
    fixture_turn(f, &f->n_held, 4);
    fixture_turn_for(f, SECONDS(1) / 10);
    assert_int_equal(f->n_held, 4);
    expect_echo(f, other, COMMON_OK, "");
    expect_echo(f, daemon, COMMON_OK, "");
    struct proto_limit_use use = use_of(f, PROTO_LIMIT_CALLER_REQUESTS);
    assert_int_equal(use.used, 4);
    assert_int_equal(use.max, 4);
    assert_int_equal(use.refused, 1);
    for (int i = 0; i < 20; i++) { // it is read on as it gets its answers
        for (uint64_t since = common_clock_ns(); !o[i].done && common_clock_ns() - since < SECONDS(10);) {
            fixture_answer_held(f);
            fixture_turn_for(f, SECONDS(1) / 100);
        }
        assert_int_equal(o[i].code, COMMON_OK);
        outcome_fini(&o[i]);
    }
    proto_channel_close(greedy);
    proto_channel_close(other);
    proto_channel_close(daemon);
}

// A client at its limits is not read: that it has gone is seen all the same, and what it asked for is
// cancelled.
static void test_a_greedy_client_that_goes(void **state)
{
    struct fixture *f = *state;
    struct proto_server_options options = begin(f);
    options.requests_max = 8;
    fixture_serve(f, &options);
    int greedy = peer_dial_as_client(f);
    for (unsigned i = 0; i < 8; i++)
        peer_put_health(greedy, 10 + i, "never");
    fixture_turn(f, &f->n_held, 4);
    fixture_turn_for(f, SECONDS(1) / 10);
    close(greedy);
    fixture_turn(f, &f->n_links_closed, 1);
    fixture_answer_held(f);
    assert_int_equal(f->n_cancelled, 4);
}

// Bytes of requests and of answers that are being made, of one client.
static void test_bytes_of_one_client(void **state)
{
    struct fixture *f = *state;
    struct proto_server_options options = begin(f);
    options.bytes_max = 1600000; // 200 kB for each
    fixture_serve(f, &options);
    struct proto_channel *greedy = fixture_connect(f), *other = fixture_connect(f);
    uint8_t *bytes = calloc(1, 100000);
    assert_non_null(bytes);
    struct common_slice piece = {bytes, 100000};
    struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {100000}, &piece, 1};
    struct outcome o[6];
    for (int i = 0; i < 6; i++)
        assert_int_equal(fixture_ask(greedy,
                                     &(struct ask){.service = "later", .tensors = &tensor, .n_tensors = 1},
                                     &o[i], NULL),
                         COMMON_OK);
    fixture_turn(f, &f->n_held, 2);
    fixture_turn_for(f, SECONDS(1) / 10);
    assert_int_equal(f->n_held, 2);
    expect_echo(f, other, COMMON_OK, "");
    assert_int_equal(use_of(f, PROTO_LIMIT_CALLER_BYTES).refused, 1);
    for (int i = 0; i < 6; i++) {
        for (uint64_t since = common_clock_ns(); !o[i].done && common_clock_ns() - since < SECONDS(10);) {
            fixture_answer_held(f);
            fixture_turn_for(f, SECONDS(1) / 100);
        }
        assert_int_equal(o[i].code, COMMON_OK);
        outcome_fini(&o[i]);
    }
    // One request alone, whose answer will be large.
    assert_int_equal(fixture_ask(greedy, &(struct ask){.service = "later"}, &o[0], NULL), COMMON_OK);
    fixture_turn(f, &f->n_held, 1);
    proto_request_charge(f->held->request, 300000);
    assert_true(use_of(f, PROTO_LIMIT_CALLER_BYTES).used >= 300000);
    assert_int_equal(fixture_ask(greedy, &(struct ask){.service = "echo"}, &o[1], NULL), COMMON_OK);
    expect_echo(f, other, COMMON_OK, "");
    fixture_turn_for(f, SECONDS(1) / 10);
    assert_int_equal(o[1].done, 0);
    fixture_answer_held(f);
    for (int i = 0; i < 2; i++) {
        fixture_turn(f, &o[i].done, 1);
        assert_int_equal(o[i].code, COMMON_OK);
        outcome_fini(&o[i]);
    }
    assert_int_equal(use_of(f, PROTO_LIMIT_CALLER_BYTES).used, 0);
    free(bytes);
    proto_channel_close(greedy);
    proto_channel_close(other);
}

// Clients that do not take their answers: those that have most of them lose their links, others go on.
static void test_slow_readers(void **state)
{
    struct fixture *f = *state;
    enum { SLOW = 4, EACH = 4, BYTES = 3000000 };
    struct proto_server_options options = begin(f);
    options.bytes_max = 16 << 20; // half of it for answers that are not read
    fixture_serve(f, &options);
    int fd[SLOW];
    for (int i = 0; i < SLOW; i++)
        fd[i] = peer_dial_as_client(f);
    struct proto_channel *good = fixture_connect(f);
    for (int i = 0; i < SLOW; i++)
        for (int k = 0; k < EACH; k++)
            peer_put_health(fd[i], 10 + (unsigned)k, "big:3000000");
    fixture_turn_for(f, SECONDS(1) / 10);
    struct proto_limit_use unread = use_of(f, PROTO_LIMIT_UNREAD);
    assert_true(unread.refused >= 1);
    assert_int_equal(unread.max, 8 << 20);
    assert_true(unread.used <= unread.max);
    assert_string_equal(unread.flag, "--max-bytes");
    struct outcome o;
    assert_int_equal(fixture_ask(good, &(struct ask){.service = "big:6000000"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    outcome_fini(&o);
    for (int i = 0; i < SLOW; i++)
        close(fd[i]);
    fixture_turn(f, &f->n_links_closed, SLOW);
    assert_int_equal(use_of(f, PROTO_LIMIT_UNREAD).used, 0);
    proto_channel_close(good);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_silent_crowd),
        TEST(test_crowd_that_greets),
        TEST(test_places),
        TEST(test_no_methods_for_clients),
        TEST(test_requests_of_one_client),
        TEST(test_a_greedy_client_that_goes),
        TEST(test_bytes_of_one_client),
        TEST(test_slow_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
