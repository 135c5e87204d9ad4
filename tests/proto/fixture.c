// SPDX-License-Identifier: Apache-2.0
#include "tests/proto/fixture.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <event2/event.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "proto/nng_door.h"
#include "tests/common/test_pki.h"

struct echo { // keeps the request's bytes until the answer is out
    struct fixture *f;
    struct common_blob *blob;
    uint8_t *big;
};

static void on_sent(void *arg)
{
    struct echo *echo = arg;
    echo->f->n_sent++;
    common_blob_unref(echo->blob);
    free(echo->big);
    free(echo);
}

static void answer(struct fixture *f, struct proto_request *request)
{
    const struct proto_message *message = proto_request_message(request);
    const Banyan__Pb__HealthCheckRequest *body = (const Banyan__Pb__HealthCheckRequest *)message->body;
    Banyan__Pb__HealthCheckReply reply = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    reply.serving = true;
    reply.version = "test";
    struct echo *echo = calloc(1, sizeof *echo);
    assert_non_null(echo);
    echo->f = f;
    echo->blob = common_blob_ref(message->blob);
    struct common_slice slices[PROTO_TENSORS_MAX][2];
    struct proto_tensor_out tensors[PROTO_TENSORS_MAX];
    size_t n = message->n_tensors;
    for (size_t i = 0; i < n; i++) { // in two pieces
        size_t half = message->tensors[i].bytes / 3;
        slices[i][0] = (struct common_slice){message->tensors[i].data, half};
        slices[i][1] = (struct common_slice){(const uint8_t *)message->tensors[i].data + half,
                                             message->tensors[i].bytes - half};
        tensors[i] = (struct proto_tensor_out){.dtype = message->tensors[i].dtype,
                                               .n_dims = message->tensors[i].n_dims,
                                               .pieces = slices[i],
                                               .n_pieces = 2};
        memcpy(tensors[i].dims, message->tensors[i].dims, sizeof tensors[i].dims);
    }
    unsigned long big = 0;
    if (sscanf(body->service, "big:%lu", &big) == 1) {
        echo->big = calloc(1, big);
        assert_non_null(echo->big);
        slices[0][0] = (struct common_slice){echo->big, big};
        tensors[0] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                               .n_dims = 1,
                                               .dims = {big},
                                               .pieces = slices[0],
                                               .n_pieces = 1};
        n = 1;
    }
    proto_request_reply(request, &reply.base, tensors, n, on_sent, echo);
}

static void on_cancel(void *arg)
{
    struct held *held = arg;
    assert_false(held->cancelled);
    held->cancelled = true;
}

static void handle(void *arg, struct proto_request *request)
{
    struct fixture *f = arg;
    const Banyan__Pb__HealthCheckRequest *body =
        (const Banyan__Pb__HealthCheckRequest *)proto_request_message(request)->body;
    f->n_handled++;
    assert_true(proto_request_deadline(request) > proto_request_arrived(request));
    assert_true(proto_request_peer(request)[0] != 0);
    if (strcmp(body->service, "fail") == 0) {
        Banyan__Pb__Detail detail = BANYAN__PB__DETAIL__INIT, *details[] = {&detail};
        detail.reason = "HOLE";
        proto_request_fail(request, COMMON_FAILED_PRECONDITION, "asked to fail", details, 1);
    } else if (strcmp(body->service, "later") == 0 || strcmp(body->service, "never") == 0) {
        struct held *held = calloc(1, sizeof *held);
        assert_non_null(held);
        held->request = request;
        held->next = f->held;
        f->held = held;
        f->n_held++;
        proto_request_on_cancel(request, on_cancel, held);
    } else {
        answer(f, request);
    }
}

void fixture_answer_one(struct fixture *f)
{
    struct held *held = f->held;
    if (!held)
        return;
    f->held = held->next;
    f->n_held--;
    f->n_cancelled += held->cancelled;
    answer(f, held->request);
    free(held);
}

void fixture_answer_held(struct fixture *f)
{
    while (f->held)
        fixture_answer_one(f);
}

static void on_link_closed(void *arg, uint64_t link)
{
    struct fixture *f = arg;
    assert_true(link > 0);
    f->n_links_closed++;
}

static const struct proto_method methods[] = {
    {BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
     1u << BANYAN__PB__ROLE__ROLE_CLIENT | 1u << BANYAN__PB__ROLE__ROLE_WORKER |
         1u << BANYAN__PB__ROLE__ROLE_COORDINATOR,
     handle},
    {BANYAN__PB__METHOD__METHOD_HEARTBEAT, 1u << BANYAN__PB__ROLE__ROLE_WORKER, handle},
    {0, 0, NULL},
};

struct proto_server_options fixture_server_options(struct fixture *f)
{
    return (struct proto_server_options){
        .name = "test-server",
        .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
        .secret = &f->secret,
        .token = TOKEN,
        .tls = f->tls,
        .methods = methods,
        .arg = f,
        .link_closed = on_link_closed,
    };
}

void fixture_serve(struct fixture *f, const struct proto_server_options *options)
{
    struct common_error err;
    assert_int_equal(proto_server_new(f->loop, options, &f->server, &err), COMMON_OK);
    enum common_code code = COMMON_ALREADY_EXISTS;
    for (int i = 0; i < 100 && code == COMMON_ALREADY_EXISTS; i++) { // nng frees a port in its own time
        code = proto_server_listen(f->server, f->listen, &err);
        if (code == COMMON_ALREADY_EXISTS)
            usleep(20000);
    }
    if (code != COMMON_OK)
        fail_msg("%s", err.message);
    snprintf(f->endpoint, sizeof f->endpoint, "%s", proto_server_endpoint(f->server, 0));
    snprintf(f->listen, sizeof f->listen, "%s", f->endpoint);
}

static bool is_tls(enum transport transport)
{
    return transport == TRANSPORT_TLS || transport == TRANSPORT_NNG_TLS;
}

static struct common_tls *make_tls(struct fixture *f)
{
    struct test_pki *pki = test_pki_new(f->dir, "fixture");
    struct common_tls *tls =
        test_pki_tls(pki, &(struct test_pki_ask){.name = "both",
                                                 .uris = "banyan:coordinator,banyan:worker,banyan:client",
                                                 .hosts = "localhost,127.0.0.1"});
    test_pki_free(pki);
    return tls;
}

struct fixture *fixture_new(enum transport transport)
{
    static const char *const schemes[] = {[TRANSPORT_TCP] = "tcp",
                                          [TRANSPORT_NNG] = "nng+tcp",
                                          [TRANSPORT_TLS] = "tls",
                                          [TRANSPORT_NNG_TLS] = "nng+tls"};
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    common_log_set_level(COMMON_LOG_ERROR); // refusals are the point here
    f->transport = transport;
    memset(f->secret.bytes, 7, sizeof f->secret.bytes);
    snprintf(f->dir, sizeof f->dir, "/tmp/banyan-proto-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    if (transport == TRANSPORT_UNIX)
        snprintf(f->listen, sizeof f->listen, "unix://%s/socket", f->dir);
    else
        snprintf(f->listen, sizeof f->listen, "%s://%s:0", schemes[transport],
                 transport == TRANSPORT_NNG_TLS ? "localhost" : "127.0.0.1");
    if (is_tls(transport))
        f->tls = make_tls(f);
    assert_int_equal(common_loop_new(&f->loop), COMMON_OK);
    struct proto_server_options options = fixture_server_options(f);
    fixture_serve(f, &options);
    return f;
}

static void turn(struct fixture *f, uint64_t since)
{
    struct timeval soon = {0, 20000};
    event_base_loopexit(common_loop_base(f->loop), &soon);
    event_base_loop(common_loop_base(f->loop), EVLOOP_ONCE);
    if (common_clock_ns() - since > SECONDS(30))
        fail_msg("nothing has happened for 30 s");
}

static void remove_dir(const char *dir)
{
    DIR *open = opendir(dir);
    for (struct dirent *e; open && (e = readdir(open));)
        if (e->d_name[0] != '.')
            unlinkat(dirfd(open), e->d_name, 0);
    if (open)
        closedir(open);
    rmdir(dir);
}

void fixture_free(struct fixture *f)
{
    fixture_answer_held(f);
    // Channels over nng linger until their answers have come; a server that is closed in the middle of one
    // can trip nng up (proto/nng_door.h) for all tests that follow.
    for (int i = 0; i < 150 && proto_nng_closing() > 0; i++)
        turn(f, common_clock_ns());
    proto_server_close(f->server);
    event_base_loop(common_loop_base(f->loop), EVLOOP_NONBLOCK);
    for (int i = 0; i < 3; i++) // a link over nng ends when its last answer has gone
        turn(f, common_clock_ns());
    common_loop_free(f->loop);
    common_tls_unref(f->tls);
    remove_dir(f->dir);
    free(f);
}

struct proto_channel *fixture_connect_as(struct fixture *f, const struct proto_channel_options *options)
{
    struct proto_channel *channel;
    struct common_error err;
    struct proto_channel_options with = *options;
    if (!with.tls)
        with.tls = f->tls;
    if (proto_channel_open(f->loop, f->endpoint, &with, &channel, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    return channel;
}

struct proto_channel *fixture_connect(struct fixture *f)
{
    return fixture_connect_as(f, &(struct proto_channel_options){.name = "test-client",
                                                                 .role = BANYAN__PB__ROLE__ROLE_CLIENT,
                                                                 .token = TOKEN});
}

void fixture_turn(struct fixture *f, const unsigned *flag, unsigned want)
{
    uint64_t since = common_clock_ns();
    unsigned last = *flag;
    while (*flag < want) {
        turn(f, since);
        if (*flag != last)
            since = common_clock_ns();
        last = *flag;
    }
}

void fixture_turn_while_connected(struct fixture *f, const struct proto_channel *channel, bool connected)
{
    uint64_t since = common_clock_ns();
    while (proto_channel_connected(channel) == connected)
        turn(f, since);
}

void fixture_turn_for(struct fixture *f, uint64_t ns)
{
    uint64_t since = common_clock_ns();
    if (ns == 0)
        event_base_loop(common_loop_base(f->loop), EVLOOP_NONBLOCK);
    while (common_clock_ns() - since < ns)
        turn(f, since);
}

static void on_done(void *arg, const struct proto_reply *reply)
{
    struct outcome *o = arg;
    assert_non_null(reply->text);
    o->done++;
    o->code = reply->code;
    snprintf(o->text, sizeof o->text, "%s", reply->text);
    if (reply->status && reply->status->n_details > 0)
        snprintf(o->reason, sizeof o->reason, "%s", reply->status->details[0]->reason);
    if (reply->code == COMMON_OK) {
        const struct proto_message *message = reply->message;
        assert_non_null(message->body);
        o->blob = common_blob_ref(message->blob);
        o->n_tensors = message->n_tensors;
        for (size_t i = 0; i < message->n_tensors && i < 4; i++) {
            assert_int_equal((uintptr_t)message->tensors[i].data % 64, 0);
            o->data[i] = message->tensors[i].data;
            o->bytes[i] = message->tensors[i].bytes;
        }
    }
}

void outcome_fini(struct outcome *o)
{
    common_blob_unref(o->blob);
    o->blob = NULL;
}

enum common_code fixture_ask(struct proto_channel *channel, const struct ask *ask, struct outcome *o,
                             uint64_t *id)
{
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    body.service = (char *)ask->service;
    struct common_error err;
    *o = (struct outcome){0};
    return proto_channel_call(
        channel,
        &(struct proto_call){
            .method = ask->method ? ask->method : (uint32_t)BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
            .body = ask->body ? ask->body : &body.base,
            .tensors = ask->tensors,
            .n_tensors = ask->n_tensors,
            .deadline_ns = common_clock_after(ask->deadline_ns ? ask->deadline_ns : SECONDS(20)),
            .done = on_done,
            .arg = o},
        id, &err);
}
