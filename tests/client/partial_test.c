// SPDX-License-Identifier: Apache-2.0
// Partial answers at the client: what is declared reaches a caller that asked for it, and one that did not,
// or whose answer makes no sense, gets an error instead of an answer.
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/banyan.h"
#include "common/loop/loop.h"
#include "proto/rpc/rpc.h"

enum { ITEMS = 3, RANGES = 4 };

static struct { // answers what the test says, and writes down what it is asked
    struct common_loop *loop;
    struct proto_server *server;
    char endpoint[256], dir[64];
    uint32_t missing[ITEMS], failing; // ranges that items declare; an item that fails, + 1
    uint64_t seen, words[2 * RANGES]; // of the tensor `missing`
    size_t tensor_bytes;              // 0: there is none
    bool asked[ITEMS];
} service;

static float o[64], lse[16];

static void on_attend(void *arg, struct proto_request *request)
{
    (void)arg;
    const Banyan__Pb__AttendRequest *in = (const void *)proto_request_message(request)->body;
    Banyan__Pb__AttendReply reply = BANYAN__PB__ATTEND_REPLY__INIT;
    Banyan__Pb__AttendItemResult results[ITEMS], *list[ITEMS];
    Banyan__Pb__Status bad = BANYAN__PB__STATUS__INIT;
    bad.code = COMMON_DATA_LOSS;
    for (size_t i = 0; i < in->n_items; i++) {
        service.asked[i] = in->items[i]->allow_partial;
        results[i] = (Banyan__Pb__AttendItemResult)BANYAN__PB__ATTEND_ITEM_RESULT__INIT;
        results[i].length = 300;
        results[i].missing = service.missing[i];
        results[i].seen = service.seen;
        results[i].status = service.failing == i + 1 ? &bad : NULL;
        list[i] = &results[i];
    }
    reply.n_items = in->n_items;
    reply.items = list;
    // What is sent is this thread's own: it may still be on its way when the test says what the next answer
    // declares.
    static uint64_t words[2 * RANGES];
    memcpy(words, service.words, sizeof words);
    struct common_slice slices[3] = {{o, in->n_items * 4 * sizeof(float)},
                                     {lse, in->n_items * 2 * sizeof(float)},
                                     {words, service.tensor_bytes}};
    struct proto_tensor_out tensors[3];
    for (int i = 0; i < 3; i++)
        tensors[i] = (struct proto_tensor_out){.dtype = i < 2 ? BANYAN__PB__DTYPE__DTYPE_F32
                                                              : BANYAN__PB__DTYPE__DTYPE_U8,
                                               .n_dims = 1,
                                               .dims = {slices[i].len / (i < 2 ? sizeof(float) : 1)},
                                               .pieces = &slices[i],
                                               .n_pieces = 1};
    proto_request_reply(request, &reply.base, tensors, service.tensor_bytes ? 3 : 2, NULL, NULL);
}

static void on_health(void *arg, struct proto_request *request)
{
    (void)arg;
    Banyan__Pb__HealthCheckReply reply = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    reply.serving = true;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void on_create(void *arg, struct proto_request *request)
{
    (void)arg;
    Banyan__Pb__SessionCreateReply reply = BANYAN__PB__SESSION_CREATE_REPLY__INIT;
    reply.session = 42;
    reply.incarnation = 1;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void on_close(void *arg, struct proto_request *request)
{
    (void)arg;
    Banyan__Pb__SessionCloseReply reply = BANYAN__PB__SESSION_CLOSE_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

#define CLIENTS (1U << BANYAN__PB__ROLE__ROLE_CLIENT)
static const struct proto_method methods[] = {
    {BANYAN__PB__METHOD__METHOD_HEALTH_CHECK, CLIENTS, on_health},
    {BANYAN__PB__METHOD__METHOD_SESSION_CREATE, CLIENTS, on_create},
    {BANYAN__PB__METHOD__METHOD_SESSION_CLOSE, CLIENTS, on_close},
    {BANYAN__PB__METHOD__METHOD_ATTEND, CLIENTS, on_attend},
    {0},
};

static void open_server(void *arg)
{
    (void)arg;
    char endpoint[128];
    struct common_error err;
    struct proto_server_options options = {.name = "service",
                                           .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                           .methods = methods,
                                           .requests_max = 100};
    snprintf(endpoint, sizeof endpoint, "unix://%s/s", service.dir);
    if (proto_server_new(service.loop, &options, &service.server, &err) != COMMON_OK ||
        proto_server_listen(service.server, endpoint, &err) != COMMON_OK)
        abort();
    snprintf(service.endpoint, sizeof service.endpoint, "%s", endpoint);
}

static void close_server(void *arg)
{
    (void)arg;
    proto_server_close(service.server);
}

static banyan_client *client;
static banyan_session *session;

static int start(void **state)
{
    (void)state;
    const banyan_spec spec = {
        .layers = 1, .q_heads = 2, .kv_heads = 1, .k_dim = 2, .v_dim = 2, .kv_type = BANYAN_F32};
    memset(&service, 0, sizeof service);
    snprintf(service.dir, sizeof service.dir, "/tmp/banyan-partial-XXXXXX");
    if (!mkdtemp(service.dir) || common_loop_new(&service.loop) != COMMON_OK ||
        common_loop_start_thread(service.loop, "service") != COMMON_OK)
        return -1;
    common_loop_call(service.loop, open_server, NULL);
    return banyan_connect(service.endpoint, NULL, &client, NULL) ||
           banyan_session_create(client, &spec, NULL, &session, NULL);
}

static int stop(void **state)
{
    (void)state;
    banyan_session_close(session);
    banyan_disconnect(client);
    common_loop_call(service.loop, close_server, NULL);
    common_loop_stop(service.loop);
    common_loop_join(service.loop);
    common_loop_free(service.loop);
    return rmdir(service.dir);
}

struct work {
    banyan_item items[ITEMS];
    banyan_partial partial[ITEMS];
    banyan_error error;
    float q[4], o[ITEMS][4], lse[ITEMS][2];
};

// The first `asking` items take partial answers.
static banyan_code attend(struct work *w, uint32_t asking)
{
    for (uint32_t i = 0; i < ITEMS; i++)
        w->items[i] = (banyan_item){.session = session,
                                    .first = 299,
                                    .rows = 1,
                                    .q = w->q,
                                    .o = w->o[i],
                                    .lse = w->lse[i],
                                    .partial = i < asking ? &w->partial[i] : NULL};
    return banyan_attend(client, w->items, ITEMS, 0, NULL, &w->error);
}

static void free_all(struct work *w)
{
    for (uint32_t i = 0; i < ITEMS; i++)
        banyan_partial_free(&w->partial[i]);
}

static void declares(uint32_t item, uint32_t at, uint64_t first, uint64_t count)
{
    service.missing[item]++;
    service.words[2 * (size_t)at] = first;
    service.words[2 * (size_t)at + 1] = count;
    service.tensor_bytes = (at + 1) * 2 * sizeof(uint64_t);
}

static void what_is_declared_arrives(void **state)
{
    (void)state;
    struct work w = {.q = {0}};
    w.partial[1] = (banyan_partial){.n = 99, .seen = 99}; // what a call begins with counts for nothing
    service.seen = 250;
    declares(0, 0, 0, 16);
    declares(0, 1, 32, 16);
    declares(2, 2, 16, 34);
    assert_int_equal(attend(&w, 3), BANYAN_OK);
    assert_true(service.asked[0] && service.asked[1] && service.asked[2]);
    assert_true(w.partial[0].n == 2 && w.partial[1].n == 0 && w.partial[2].n == 1);
    assert_true(w.partial[0].missing[1].first == 32 && w.partial[0].missing[1].count == 16);
    assert_true(w.partial[2].missing[0].first == 16 && w.partial[2].missing[0].count == 34);
    assert_true(w.partial[0].seen == 250 && w.partial[1].seen == 250 && !w.partial[1].missing);
    free_all(&w);
    assert_true(!w.partial[0].missing && !w.partial[0].n && !w.partial[0].seen);
}

static void an_item_that_fails_declares_nothing(void **state)
{
    (void)state;
    struct work w = {.q = {0}};
    service.failing = 1;
    declares(1, 0, 5, 6);
    assert_int_equal(attend(&w, 2), BANYAN_OK);
    assert_int_equal(w.items[0].code, BANYAN_DATA_LOSS);
    assert_true(!w.partial[0].n && w.partial[1].n == 1 && w.partial[1].missing[0].first == 5);
    assert_true(service.asked[0] && service.asked[1] && !service.asked[2]);
    free_all(&w);
}

static void refused(uint32_t asking)
{
    struct work w = {.q = {0}};
    assert_int_equal(attend(&w, asking), BANYAN_INTERNAL);
    for (uint32_t i = 0; i < ITEMS; i++) {
        assert_int_equal(w.items[i].code, BANYAN_INTERNAL);
        assert_true(!w.partial[i].missing && !w.partial[i].n);
    }
}

static void nobody_gets_a_partial_answer_who_did_not_ask(void **state)
{
    (void)state;
    declares(0, 0, 5, 6);
    declares(2, 1, 5, 6);
    refused(2);
    refused(0);
    refused(1);
}

static void senseless_ranges_are_refused(void **state)
{
    (void)state;
    static const uint64_t bad[][4] = {{16, 0, 32, 16},       {32, 16, 0, 16}, {0, 16, 16, 16},
                                      {0, 16, 15, 16},       {16, 16, 40, 0}, {UINT64_MAX - 3, 8, 0, 1},
                                      {0, 16, UINT64_MAX, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        service.missing[0] = 0;
        declares(0, 0, bad[i][0], bad[i][1]);
        declares(0, 1, bad[i][2], bad[i][3]);
        refused(3);
    }
    service.missing[0] = 3; // more than the tensor has
    refused(3);
    service.missing[0] = UINT32_MAX;
    refused(3);
    service.missing[0] = 1; // less
    refused(3);
    service.words[0] = 0, service.words[1] = 16;
    service.tensor_bytes = 17;
    refused(3);
    service.tensor_bytes = 0; // none
    refused(3);
    service.missing[0] = 0; // a tensor without an owner: taken for masses, which were not asked for
    service.tensor_bytes = 16;
    struct work w = {.q = {0}};
    assert_int_equal(attend(&w, 3), BANYAN_OK);
    free_all(&w);
}

static void an_item_that_is_cut_is_refused(void **state)
{
    (void)state;
    float *q = calloc(5000, 4 * sizeof *q), *out = calloc(5000, 4 * sizeof *out);
    banyan_partial partial;
    banyan_error error;
    banyan_item item = {
        .session = session, .rows = 5000, .q = q, .o = out, .partial = &partial, .error = &error};
    assert_int_equal(banyan_attend(client, &item, 1, 0, NULL, NULL), BANYAN_OK);
    assert_int_equal(item.code, BANYAN_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "fewer rows"));
    assert_true(!partial.n && !partial.missing);
    free(q);
    free(out);
    banyan_partial_free(NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(what_is_declared_arrives),
        TEST(an_item_that_fails_declares_nothing),
        TEST(nobody_gets_a_partial_answer_who_did_not_ask),
        TEST(senseless_ranges_are_refused),
        TEST(an_item_that_is_cut_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
