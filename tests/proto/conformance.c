// SPDX-License-Identifier: Apache-2.0
#include "tests/proto/conformance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "proto/nng_door.h"

static enum transport transport;

static int setup(void **state)
{
    *state = fixture_new(transport);
    return 0;
}

static int teardown(void **state)
{
    fixture_free(*state);
    return 0;
}

static bool is_stream(void)
{
    return transport != TRANSPORT_NNG && transport != TRANSPORT_NNG_TLS;
}

static void fill(uint8_t *at, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (uint8_t)common_mix64(seed + i);
}

// ---- calls and answers ----------------------------------------------------------------------------------

static void test_echo_of_all_sizes(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4000, 16 << 10, 65000, 65536, 70001, 1 << 20, 16 << 20};
    uint8_t *bytes = malloc(16 << 20);
    assert_non_null(bytes);
    fill(bytes, 16 << 20, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        // Two tensors: one of the size, one of float32 behind it.
        float floats[6] = {1, 2, 3, 4, 5, 6};
        struct common_slice pieces[] = {{bytes, sizes[i] / 2},
                                        {NULL, 0},
                                        {bytes + sizes[i] / 2, sizes[i] - sizes[i] / 2}};
        struct common_slice more = {floats, sizeof floats};
        struct proto_tensor_out tensors[] = {
            {BANYAN__PB__DTYPE__DTYPE_U8, 1, {sizes[i]}, pieces, 3},
            {BANYAN__PB__DTYPE__DTYPE_F32, 4, {1, 2, 3, 1}, &more, 1},
        };
        struct outcome o;
        assert_int_equal(fixture_ask(channel,
                                     &(struct ask){.service = "echo", .tensors = tensors, .n_tensors = 2}, &o,
                                     NULL),
                         COMMON_OK);
        assert_int_equal(o.done, 0); // never on the stack of the call
        fixture_turn(f, &o.done, 1);
        assert_int_equal(o.code, COMMON_OK);
        assert_int_equal(o.n_tensors, 2);
        assert_int_equal(o.bytes[0], sizes[i]);
        assert_true(sizes[i] == 0 || memcmp(o.data[0], bytes, sizes[i]) == 0);
        assert_int_equal(o.bytes[1], sizeof floats);
        assert_memory_equal(o.data[1], floats, sizeof floats);
        outcome_fini(&o);
    }
    fixture_turn(f, &f->n_sent, sizeof sizes / sizeof *sizes);
    free(bytes);
    proto_channel_close(channel);
}

static void test_failures_carry_their_details(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "fail"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_FAILED_PRECONDITION);
    assert_string_equal(o.text, "asked to fail");
    assert_string_equal(o.reason, "HOLE");
    proto_channel_close(channel);
}

static void test_unknown_method_and_role(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o;
    Banyan__Pb__ClusterInfoRequest info = BANYAN__PB__CLUSTER_INFO_REQUEST__INIT;
    assert_int_equal(fixture_ask(channel,
                                 &(struct ask){.method = BANYAN__PB__METHOD__METHOD_CLUSTER_INFO,
                                               .body = &info.base},
                                 &o, NULL),
                     COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_UNIMPLEMENTED);
    Banyan__Pb__HeartbeatRequest heartbeat = BANYAN__PB__HEARTBEAT_REQUEST__INIT;
    assert_int_equal(fixture_ask(channel,
                                 &(struct ask){.method = BANYAN__PB__METHOD__METHOD_HEARTBEAT,
                                               .body = &heartbeat.base},
                                 &o, NULL),
                     COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_PERMISSION_DENIED);
    assert_int_equal(f->n_handled, 0);
    // Methods that do not exist are refused before they are sent; so is another method's message.
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "", .method = 17}, &o, NULL),
                     COMMON_INVALID_ARGUMENT);
    assert_int_equal(fixture_ask(channel,
                                 &(struct ask){.service = "", .method = BANYAN__PB__METHOD__METHOD_ATTEND},
                                 &o, NULL),
                     COMMON_INVALID_ARGUMENT);
    proto_channel_close(channel);
}

static void test_calls_without_deadline_are_refused(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo", .deadline_ns = UINT64_MAX}, &o,
                                 NULL),
                     COMMON_INVALID_ARGUMENT);
    proto_channel_close(channel);
}

static void test_wrong_tensors_are_refused_here(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o;
    struct common_slice piece = {"12345678", 8};
    struct proto_tensor_out bad[] = {
        {BANYAN__PB__DTYPE__DTYPE_U8, 1, {9}, &piece, 1},                        // not its bytes
        {BANYAN__PB__DTYPE__DTYPE_U8, 0, {8}, &piece, 1},                        // no dimensions
        {99, 1, {8}, &piece, 1},                                                 // no such type
        {BANYAN__PB__DTYPE__DTYPE_F32, 3, {UINT64_C(1) << 62, 4, 2}, &piece, 1}, // wraps
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(fixture_ask(channel,
                                     &(struct ask){.service = "echo", .tensors = &bad[i], .n_tensors = 1}, &o,
                                     NULL),
                         COMMON_INVALID_ARGUMENT);
    proto_channel_close(channel);
}

// ---- many calls -----------------------------------------------------------------------------------------

enum { MANY = 3000 };

static void test_thousands_in_flight(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome *o = calloc(MANY, sizeof *o);
    uint8_t *bytes = malloc(MANY * 100);
    assert_non_null(o);
    assert_non_null(bytes);
    fill(bytes, MANY * 100, 2);
    for (size_t i = 0; i < MANY; i++) {
        struct common_slice piece = {bytes + i * 100, i % 101};
        struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {piece.len}, &piece, 1};
        assert_int_equal(fixture_ask(channel,
                                     &(struct ask){.service = i % 3 == 0 && is_stream() ? "later" : "echo",
                                                   .tensors = &tensor,
                                                   .n_tensors = 1,
                                                   .deadline_ns = SECONDS(100)},
                                     &o[i], NULL),
                         COMMON_OK);
    }
    if (is_stream()) {
        fixture_turn(f, &f->n_handled, MANY); // all of them at the server at once
        assert_int_equal(f->n_held, MANY / 3);
        fixture_answer_held(f);
    }
    for (size_t i = 0; i < MANY; i++) {
        fixture_turn(f, &o[i].done, 1);
        assert_int_equal(o[i].code, COMMON_OK);
        assert_int_equal(o[i].bytes[0], i % 101);
        assert_true(i % 101 == 0 || memcmp(o[i].data[0], bytes + i * 100, i % 101) == 0);
        outcome_fini(&o[i]);
    }
    free(o);
    free(bytes);
    proto_channel_close(channel);
}

static void test_more_calls_than_allowed(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel =
        fixture_connect_as(f, &(struct proto_channel_options){
                                  .role = BANYAN__PB__ROLE__ROLE_CLIENT, .token = TOKEN, .calls_max = 2});
    struct outcome o[3];
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o[0], NULL), COMMON_OK);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o[1], NULL), COMMON_OK);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o[2], NULL),
                     COMMON_RESOURCE_EXHAUSTED);
    fixture_turn(f, &o[0].done, 1);
    fixture_turn(f, &o[1].done, 1);
    assert_int_equal(o[2].done, 0);
    outcome_fini(&o[0]);
    outcome_fini(&o[1]);
    proto_channel_close(channel);
}

static void test_request_limit(void **state)
{
    struct fixture *f = *state;
    proto_server_close(f->server);
    struct proto_server_options options = fixture_server_options(f);
    options.requests_max = 4;
    options.caller_requests_max = 100;
    fixture_serve(f, &options);
    struct proto_channel *channel = fixture_connect(f);
    struct outcome held[4], o;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(fixture_ask(channel, &(struct ask){.service = "later"}, &held[i], NULL), COMMON_OK);
    fixture_turn(f, &f->n_held, 4);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_RESOURCE_EXHAUSTED);
    fixture_answer_held(f);
    for (unsigned i = 0; i < 4; i++) {
        fixture_turn(f, &held[i].done, 1);
        assert_int_equal(held[i].code, COMMON_OK);
        outcome_fini(&held[i]);
    }
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    outcome_fini(&o);
    struct proto_server_stats stats;
    proto_server_stats(f->server, &stats);
    assert_int_equal(stats.requests, 0);
    assert_int_equal(stats.bytes, 0);
    proto_channel_close(channel);
}

// Answers one of those that are held, and waits until it has been written: a link whose answers are not read
// has a limit of its own, and how much a socket takes at once is the system's affair.
static void answer_and_write_one(struct fixture *f)
{
    unsigned sent = f->n_sent;
    if (!f->held)
        return;
    fixture_answer_one(f);
    fixture_turn(f, &f->n_sent, sent + 1);
}

// Stream links are not read while the server holds its share of bytes; nng's requests are refused.
static void test_byte_limit(void **state)
{
    struct fixture *f = *state;
    proto_server_close(f->server);
    struct proto_server_options options = fixture_server_options(f);
    options.bytes_max = 300000;
    options.caller_bytes_max = UINT64_MAX;
    fixture_serve(f, &options);
    struct proto_channel *channel = fixture_connect(f);
    uint8_t *bytes = calloc(1, 100000);
    assert_non_null(bytes);
    struct common_slice piece = {bytes, 100000};
    struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {100000}, &piece, 1};
    struct outcome o[8];
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(fixture_ask(channel,
                                     &(struct ask){.service = "later", .tensors = &tensor, .n_tensors = 1},
                                     &o[i], NULL),
                         COMMON_OK);
    unsigned answered = 0, refused = 0, rounds = 0;
    while (answered + refused < 8) {
        assert_true(++rounds < 200); // else the reader has stopped
        fixture_turn_for(f, SECONDS(1) / 10);
        struct proto_server_stats stats;
        proto_server_stats(f->server, &stats);
        assert_true(stats.bytes <= options.bytes_max + 210000); // one frame above, and one not looked at yet
        answer_and_write_one(f);
        answered = refused = 0;
        for (unsigned i = 0; i < 8; i++) {
            answered += o[i].done && o[i].code == COMMON_OK;
            refused += o[i].done && o[i].code == COMMON_RESOURCE_EXHAUSTED;
            assert_true(!o[i].done || o[i].code == COMMON_OK ||
                        (!is_stream() && o[i].code == COMMON_RESOURCE_EXHAUSTED));
        }
    }
    assert_true(answered >= 2);
    for (unsigned i = 0; i < 8; i++)
        outcome_fini(&o[i]);
    free(bytes);
    proto_channel_close(channel);
}

// What clients have under way fills their share, not that of daemons.
static void test_daemons_have_a_share_of_their_own(void **state)
{
    struct fixture *f = *state;
    if (!is_stream())
        return; // daemons have stream links alone
    proto_server_close(f->server);
    struct proto_server_options options = fixture_server_options(f);
    options.bytes_max = 300000;
    options.caller_bytes_max = UINT64_MAX;
    options.requests_max = 8;
    options.caller_requests_max = 100;
    fixture_serve(f, &options);
    struct proto_channel *client = fixture_connect(f);
    struct proto_channel *daemon =
        fixture_connect_as(f, &(struct proto_channel_options){.name = "test-worker",
                                                              .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                                              .secret = &f->secret});
    uint8_t *bytes = calloc(1, 100000);
    assert_non_null(bytes);
    struct common_slice piece = {bytes, 100000};
    struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {100000}, &piece, 1};
    struct outcome o[8], beat;
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(fixture_ask(client,
                                     &(struct ask){.service = "later", .tensors = &tensor, .n_tensors = 1},
                                     &o[i], NULL),
                         COMMON_OK);
    fixture_turn(f, &f->n_held, 3);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(fixture_ask(daemon, &(struct ask){.service = "echo"}, &beat, NULL), COMMON_OK);
        fixture_turn(f, &beat.done, 1);
        assert_int_equal(beat.code, COMMON_OK);
        outcome_fini(&beat);
    }
    assert_int_equal(f->n_held, 3); // the rest of the clients' waits
    for (unsigned i = 0; i < 8; i++) {
        while (!o[i].done) {
            answer_and_write_one(f);
            fixture_turn_for(f, 0);
        }
        assert_int_equal(o[i].code, COMMON_OK);
        outcome_fini(&o[i]);
    }
    free(bytes);
    proto_channel_close(daemon);
    proto_channel_close(client);
}

// ---- time -----------------------------------------------------------------------------------------------

static void test_deadlines(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o[3], far;
    uint64_t start = common_clock_ns();
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "never", .deadline_ns = SECONDS(15)}, &far,
                                 NULL),
                     COMMON_OK); // the first deadline is not the next one
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "never", .deadline_ns = SECONDS(1) / 2},
                                 &o[0], NULL),
                     COMMON_OK);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "never", .deadline_ns = SECONDS(1) / 4},
                                 &o[1], NULL),
                     COMMON_OK);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "never", .deadline_ns = 0 + 1}, &o[2],
                                 NULL),
                     COMMON_OK);
    fixture_turn(f, &o[0].done, 1);
    assert_true(common_clock_ns() - start >= SECONDS(1) / 2);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(o[i].done, 1);
        assert_int_equal(o[i].code, COMMON_DEADLINE_EXCEEDED);
    }
    assert_int_equal(far.done, 0);
    // The answers come late, are dropped, and the channel goes on.
    fixture_answer_held(f);
    fixture_turn(f, &far.done, 1);
    assert_int_equal(far.code, COMMON_OK);
    outcome_fini(&far);
    struct outcome after;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &after, NULL), COMMON_OK);
    fixture_turn(f, &after.done, 1);
    assert_int_equal(after.code, COMMON_OK);
    outcome_fini(&after);
    assert_int_equal(o[0].done, 1);
    proto_channel_close(channel);
}

static void test_cancel(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o, other;
    uint64_t id, other_id;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "never"}, &o, &id), COMMON_OK);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "later"}, &other, &other_id), COMMON_OK);
    fixture_turn(f, &f->n_held, 2);
    proto_channel_cancel(channel, id);
    assert_int_equal(o.done, 1); // on this stack
    assert_int_equal(o.code, COMMON_CANCELLED);
    proto_channel_cancel(channel, id); // unknown by now
    proto_channel_cancel(channel, 12345);
    if (is_stream()) {
        // nng's REQ cannot tell its server.
        struct held *held = f->held->next;
        while (!held->cancelled)
            fixture_turn_for(f, SECONDS(1) / 100);
    }
    fixture_answer_held(f);
    assert_int_equal(f->n_cancelled, is_stream() ? 1 : 0);
    fixture_turn(f, &other.done, 1);
    assert_int_equal(other.code, COMMON_OK);
    outcome_fini(&other);
    assert_int_equal(o.done, 1);
    proto_channel_close(channel);
}

// Cancelling while a big frame is half written: the borrowed bytes may go, the link must stay whole.
static void test_cancel_of_a_half_sent_call(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    fixture_turn_while_connected(f, channel, false);
    size_t n = 8 << 20;
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    memset(bytes, 3, n);
    struct common_slice piece = {bytes, n};
    struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {n}, &piece, 1};
    struct outcome big, small, unsent;
    uint64_t id, unsent_id;
    assert_int_equal(
        fixture_ask(channel, &(struct ask){.service = "echo", .tensors = &tensor, .n_tensors = 1}, &big, &id),
        COMMON_OK);
    assert_int_equal(fixture_ask(channel,
                                 &(struct ask){.service = "echo", .tensors = &tensor, .n_tensors = 1},
                                 &unsent, &unsent_id),
                     COMMON_OK);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &small, NULL), COMMON_OK);
    proto_channel_cancel(channel, id);
    proto_channel_cancel(channel, unsent_id);
    assert_int_equal(big.code, COMMON_CANCELLED);
    assert_int_equal(unsent.code, COMMON_CANCELLED);
    free(bytes);
    fixture_turn(f, &small.done, 1);
    assert_int_equal(small.code, COMMON_OK);
    outcome_fini(&small);
    proto_channel_close(channel);
}

// ---- losses ---------------------------------------------------------------------------------------------

static void test_server_that_is_not_there(void **state)
{
    struct fixture *f = *state;
    proto_server_close(f->server);
    f->server = NULL;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o, patient;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo", .deadline_ns = SECONDS(1) / 10},
                                 &o, NULL),
                     COMMON_OK);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &patient, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_DEADLINE_EXCEEDED);
    assert_false(proto_channel_connected(channel));
    struct proto_server_options options = fixture_server_options(f);
    fixture_serve(f, &options);
    fixture_turn(f, &patient.done, 1); // it waited for the server
    assert_int_equal(patient.code, COMMON_OK);
    outcome_fini(&patient);
    proto_channel_close(channel);
}

static void test_server_goes_and_comes_back(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome before, during, after;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &before, NULL), COMMON_OK);
    fixture_turn(f, &before.done, 1);
    outcome_fini(&before);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "later"}, &during, NULL), COMMON_OK);
    fixture_turn(f, &f->n_held, 1);
    proto_server_close(f->server);
    if (is_stream()) {
        fixture_turn(f, &during.done, 1);
        assert_int_equal(during.code, COMMON_UNAVAILABLE);
    }
    fixture_answer_held(f); // the answer goes nowhere
    struct proto_server_options options = fixture_server_options(f);
    fixture_serve(f, &options);
    if (!is_stream()) { // nng asks again
        fixture_turn(f, &f->n_held, 1);
        fixture_answer_held(f);
        fixture_turn(f, &during.done, 1);
        assert_int_equal(during.code, COMMON_OK);
        outcome_fini(&during);
    }
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &after, NULL), COMMON_OK);
    fixture_turn(f, &after.done, 1);
    assert_int_equal(after.code, COMMON_OK);
    outcome_fini(&after);
    assert_int_equal(during.done, 1);
    proto_channel_close(channel);
}

static void test_client_closes_with_calls_in_flight(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f), *other = fixture_connect(f);
    struct outcome o[20], mine;
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(fixture_ask(channel, &(struct ask){.service = i % 2 ? "never" : "later"}, &o[i],
                                     NULL),
                         COMMON_OK);
    assert_int_equal(fixture_ask(other, &(struct ask){.service = "later"}, &mine, NULL), COMMON_OK);
    fixture_turn(f, &f->n_held, 21);
    proto_channel_close(channel);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(o[i].done, 1);
        assert_int_equal(o[i].code, COMMON_CANCELLED);
    }
    // The server learns that the callers are gone, and only they. (nng's connection lingers until the answers
    // have come.)
    unsigned cancelled = is_stream() ? 0 : 20;
    for (uint64_t since = common_clock_ns(); cancelled < 20 && common_clock_ns() - since < SECONDS(20);) {
        fixture_turn_for(f, SECONDS(1) / 100);
        cancelled = 0;
        for (struct held *held = f->held; held; held = held->next)
            cancelled += held->cancelled;
    }
    assert_int_equal(cancelled, 20);
    if (is_stream())
        fixture_turn(f, &f->n_links_closed, 1);
    fixture_answer_held(f);
    fixture_turn(f, &mine.done, 1);
    assert_int_equal(mine.code, COMMON_OK);
    outcome_fini(&mine);
    proto_channel_close(other);
}

struct closer {
    struct proto_channel *channel;
    unsigned done;
};

static void close_in_callback(void *arg, const struct proto_reply *reply)
{
    struct closer *closer = arg;
    (void)reply;
    closer->done++;
    struct proto_channel *channel = closer->channel;
    closer->channel = NULL; // the others' callbacks come inside the close
    proto_channel_close(channel);
}

static void test_close_inside_a_callback(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct closer closer = {channel, 0};
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    for (int i = 0; i < 5; i++)
        assert_int_equal(
            proto_channel_call(channel,
                               &(struct proto_call){.method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                    .body = &body.base,
                                                    .deadline_ns = common_clock_after(SECONDS(10)),
                                                    .done = close_in_callback,
                                                    .arg = &closer},
                               NULL, NULL),
            COMMON_OK);
    fixture_turn(f, &closer.done, 5);
    assert_null(closer.channel);
}

static void test_server_closes_with_requests_held(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "later"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &f->n_held, 1);
    proto_channel_close(channel);
    proto_server_close(f->server);
    f->server = NULL;
    fixture_turn_for(f, SECONDS(1) / 20);
    fixture_answer_held(f); // frees what the server kept for it
}

static void close_in_handler(void *arg, struct proto_request *request)
{
    struct fixture *f = arg;
    Banyan__Pb__HealthCheckReply reply = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    f->n_handled++;
    if (f->server)
        proto_server_close(f->server);
    f->server = NULL;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL); // goes nowhere
}

static void test_server_closes_inside_a_handler(void **state)
{
    struct fixture *f = *state;
    static const struct proto_method methods[] = {{BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                   1u << BANYAN__PB__ROLE__ROLE_CLIENT, close_in_handler},
                                                  {0, 0, NULL}};
    proto_server_close(f->server);
    struct proto_server_options options = fixture_server_options(f);
    options.methods = methods;
    fixture_serve(f, &options);
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o[3];
    int n = is_stream() ? 3 : 1; // nng cannot be closed while more is coming in (proto/nng_door.h)
    for (int i = 0; i < n; i++)
        assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo", .deadline_ns = SECONDS(1)},
                                     &o[i], NULL),
                         COMMON_OK);
    for (int i = 0; i < n; i++) {
        fixture_turn(f, &o[i].done, 1);
        assert_true(o[i].code == COMMON_UNAVAILABLE || o[i].code == COMMON_DEADLINE_EXCEEDED);
    }
    assert_true(f->n_handled >= 1);
    proto_channel_close(channel);
}

// ---- limits and trust -----------------------------------------------------------------------------------

static void test_payload_limits(void **state)
{
    struct fixture *f = *state;
    proto_server_close(f->server);
    struct proto_server_options options = fixture_server_options(f);
    options.payload_max = 100000;
    fixture_serve(f, &options);
    struct proto_channel *channel =
        fixture_connect_as(f, &(struct proto_channel_options){.role = BANYAN__PB__ROLE__ROLE_CLIENT,
                                                              .token = TOKEN,
                                                              .payload_max = 50000,
                                                              .send_max = 300000});
    uint8_t *bytes = calloc(1, 400000);
    assert_non_null(bytes);
    struct outcome o;
    static const struct {
        size_t send, answer;
        enum common_code here, there;
    } cases[] = {
        {50000, 50000, COMMON_OK, COMMON_OK},
        {0, 50001, COMMON_OK, COMMON_RESOURCE_EXHAUSTED},  // the answer is above our limit
        {100001, 0, COMMON_OK, COMMON_RESOURCE_EXHAUSTED}, // the server's limit
        {300000, 0, COMMON_OK, COMMON_RESOURCE_EXHAUSTED},
        {300001, 0, COMMON_RESOURCE_EXHAUSTED, COMMON_OK}, // refused here
        {100, 100, COMMON_OK, COMMON_OK},                  // and the link goes on
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char service[32];
        snprintf(service, sizeof service, cases[i].answer ? "big:%zu" : "echo", cases[i].answer);
        struct common_slice piece = {bytes, cases[i].send};
        struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {piece.len}, &piece, 1};
        assert_int_equal(fixture_ask(channel,
                                     &(struct ask){.service = service, .tensors = &tensor, .n_tensors = 1},
                                     &o, NULL),
                         cases[i].here);
        if (cases[i].here != COMMON_OK)
            continue;
        fixture_turn(f, &o.done, 1);
        assert_int_equal(o.code, cases[i].there);
        outcome_fini(&o);
    }
    free(bytes);
    proto_channel_close(channel);
}

static void test_tokens(void **state)
{
    struct fixture *f = *state;
    static const char *const wrong[] = {NULL, "", "another token", "a token of the test",
                                        "a token of the tests "};
    struct outcome o;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct proto_channel *channel = fixture_connect_as(
            f, &(struct proto_channel_options){.role = BANYAN__PB__ROLE__ROLE_CLIENT, .token = wrong[i]});
        assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
        fixture_turn(f, &o.done, 1);
        assert_int_equal(o.code, COMMON_UNAUTHENTICATED);
        proto_channel_close(channel);
    }
    assert_int_equal(f->n_handled, 0);
    struct proto_server_stats stats;
    proto_server_stats(f->server, &stats);
    assert_true(stats.refused >= 5);
}

static void test_taken_address(void **state)
{
    struct fixture *f = *state;
    struct proto_server *second;
    struct common_error err;
    struct proto_server_options options = fixture_server_options(f);
    assert_int_equal(proto_server_new(f->loop, &options, &second, &err), COMMON_OK);
    assert_int_equal(proto_server_listen(second, f->endpoint, &err), COMMON_ALREADY_EXISTS);
    assert_null(proto_server_endpoint(second, 0));
    proto_server_close(second);
    // The first has not detected it.
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    outcome_fini(&o);
    proto_channel_close(channel);
}

int conformance_run(enum transport which)
{
    transport = which;
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_echo_of_all_sizes),
        TEST(test_failures_carry_their_details),
        TEST(test_unknown_method_and_role),
        TEST(test_calls_without_deadline_are_refused),
        TEST(test_wrong_tensors_are_refused_here),
        TEST(test_thousands_in_flight),
        TEST(test_more_calls_than_allowed),
        TEST(test_request_limit),
        TEST(test_byte_limit),
        TEST(test_daemons_have_a_share_of_their_own),
        TEST(test_deadlines),
        TEST(test_cancel),
        TEST(test_cancel_of_a_half_sent_call),
        TEST(test_server_that_is_not_there),
        TEST(test_server_goes_and_comes_back),
        TEST(test_client_closes_with_calls_in_flight),
        TEST(test_close_inside_a_callback),
        TEST(test_server_closes_with_requests_held),
        TEST(test_server_closes_inside_a_handler),
        TEST(test_payload_limits),
        TEST(test_tokens),
        TEST(test_taken_address),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    // Sockets of nng are closed aside; the leak checker should not find them half closed.
    for (int i = 0; i < 1000 && proto_nng_closing() > 0; i++)
        usleep(10000);
    if (proto_nng_closing() > 0)
        fprintf(stderr, "%u sockets of nng are still being closed\n", proto_nng_closing());
    return failed;
}
