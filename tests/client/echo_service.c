// SPDX-License-Identifier: Apache-2.0
#include "tests/client/echo_service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/nng/nng_door.h"

struct service service;
const char *service_transport;
char service_dir[] = "/tmp/banyan-client-XXXXXX";

struct held {
    struct held *next;
    struct proto_request *request;
};

// ---- the service -----------------------------------------------------------------------------------------

struct echo {
    struct common_blob *blob;
    float *lse;
};

static void echo_sent(void *arg)
{
    struct echo *echo = arg;
    common_blob_unref(echo->blob);
    free(echo->lse);
    free(echo);
}

static void answer(struct proto_request *request)
{
    const struct proto_message *message = proto_request_message(request);
    const Banyan__Pb__AttendRequest *in = (const Banyan__Pb__AttendRequest *)message->body;
    Banyan__Pb__AttendReply reply = BANYAN__PB__ATTEND_REPLY__INIT;
    Banyan__Pb__AttendItemResult *results = calloc(in->n_items, sizeof *results);
    Banyan__Pb__AttendItemResult **ptrs = calloc(in->n_items, sizeof(Banyan__Pb__AttendItemResult *));
    Banyan__Pb__Status bad = BANYAN__PB__STATUS__INIT;
    struct echo *echo = calloc(1, sizeof *echo);
    bad.code = COMMON_OUT_OF_RANGE;
    bad.message = (char *)"this layer is bad";
    echo->blob = common_blob_ref(message->blob);
    echo->lse = calloc(message->tensors[0].bytes / sizeof(float) + 1, sizeof(float));
    size_t n_lse = 0;
    for (size_t i = 0; i < in->n_items; i++) {
        banyan__pb__attend_item_result__init(&results[i]);
        results[i].length = in->items[i]->first + in->items[i]->rows;
        results[i].plan_digest = 77;
        if (in->items[i]->layer == BAD_LAYER)
            results[i].status = &bad;
        if (in->items[i]->append && in->items[i]->visible > results[i].length)
            results[i].status = &bad; // as a coordinator: rows that no piece has brought yet
        for (uint32_t row = 0; row < in->items[i]->rows; row++)
            for (int h = 0; h < HEADS; h++)
                echo->lse[n_lse++] = (float)(in->items[i]->first + row);
        ptrs[i] = &results[i];
    }
    reply.n_items = in->n_items;
    reply.items = ptrs;
    reply.coordinator_ns = 5;
    reply.tree_ns = 6;
    size_t o_bytes = message->tensors[0].bytes - (service.mode == WRONG_SHAPE ? sizeof(float) : 0);
    struct common_slice slices[2] = {{message->tensors[0].data, o_bytes}, {echo->lse, n_lse * sizeof(float)}};
    struct proto_tensor_out tensors[2];
    for (int i = 0; i < 2; i++)
        tensors[i] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_F32,
                                               .n_dims = 1,
                                               .dims = {slices[i].len / sizeof(float)},
                                               .pieces = &slices[i],
                                               .n_pieces = 1};
    proto_request_reply(request, &reply.base, tensors, in->want_lse ? 2 : 1, echo_sent, echo);
    free(results);
    free(ptrs);
}

void release_held(void *arg)
{
    (void)arg;
    struct held *held = service.held;
    service.held = NULL;
    service.n_held = 0;
    while (held) {
        struct held *next = held->next;
        answer(held->request);
        free(held);
        held = next;
    }
}

static void on_attend(void *arg, struct proto_request *request)
{
    (void)arg;
    atomic_fetch_add(&service.calls, 1);
    if (service.mode == UNAVAILABLE_STATUS) {
        proto_request_fail(request, COMMON_UNAVAILABLE, "w3 is lost", NULL, 0);
        return;
    }
    if (service.mode == ECHO || service.mode == WRONG_SHAPE) {
        answer(request);
        return;
    }
    struct held *held = malloc(sizeof *held);
    held->request = request;
    held->next = service.held;
    service.held = held;
    service.n_held++;
    if (service.mode == HOLD && service.n_held >= service.hold_until)
        release_held(NULL);
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

void open_server(void *arg)
{
    const char *endpoint = arg;
    struct proto_server_options options = {
        .name = "service",
        .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
        .methods = methods,
        .requests_max = 20000,
    };
    struct common_error err;
    if (proto_server_new(service.loop, &options, &service.server, &err) != COMMON_OK ||
        proto_server_listen(service.server, endpoint, &err) != COMMON_OK) {
        fprintf(stderr, "cannot listen on %s: %s\n", endpoint, err.message);
        abort();
    }
    snprintf(service.endpoint, sizeof service.endpoint, "%s", proto_server_endpoint(service.server, 0));
}

void close_server(void *arg)
{
    (void)arg;
    proto_server_close(service.server);
    release_held(NULL); // requests must be answered; the answers go nowhere
}

int start_service(void **state)
{
    (void)state;
    char endpoint[128];
    if (strcmp(service_transport, "unix") == 0)
        snprintf(endpoint, sizeof endpoint, "unix://%s/s", service_dir);
    else
        snprintf(endpoint, sizeof endpoint, "%s://127.0.0.1:0", service_transport);
    memset(&service, 0, sizeof service);
    if (common_loop_new(&service.loop) != COMMON_OK ||
        common_loop_start_thread(service.loop, "service") != COMMON_OK)
        return -1;
    common_loop_call(service.loop, open_server, endpoint);
    return 0;
}

int stop_service(void **state)
{
    (void)state;
    // Clients over nng linger until what is under way has come to rest. A server that is closed before can
    // trip nng up (proto/nng/nng_door.h), here for both ends and for all tests that follow.
    for (int i = 0; i < 300 && proto_nng_closing() > 0; i++)
        usleep(10000);
    common_loop_call(service.loop, close_server, NULL);
    common_loop_stop(service.loop);
    common_loop_join(service.loop);
    common_loop_free(service.loop);
    return 0;
}

bool service_begin(void)
{
    return mkdtemp(service_dir) != NULL;
}

void service_end(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s/s", service_dir);
    unlink(path);
    rmdir(service_dir);
}

// ---- calls to it ---------------------------------------------------------------------------------------------

const banyan_spec spec = {
    .layers = 4, .q_heads = HEADS, .kv_heads = 1, .k_dim = DIM, .v_dim = DIM, .kv_type = BANYAN_F16};

banyan_client *connect_client(const banyan_options *options)
{
    banyan_client *client = NULL;
    banyan_error error = {0};
    if (banyan_connect(service.endpoint, options, &client, &error) != BANYAN_OK)
        fail_msg("%s: %s", service.endpoint, error.message);
    return client;
}

banyan_session *create_session(banyan_client *client)
{
    banyan_session *session = NULL;
    assert_int_equal(banyan_session_create(client, &spec, NULL, &session, NULL), BANYAN_OK);
    return session;
}

void make_work(struct work *w, banyan_session *session, uint32_t rows, float start)
{
    size_t n = (size_t)rows * HEADS * DIM;
    w->q = malloc(n * sizeof(float));
    w->o = calloc(n, sizeof(float));
    w->lse = calloc((size_t)rows * HEADS, sizeof(float));
    for (size_t i = 0; i < n; i++)
        w->q[i] = start + (float)i;
    w->item = (banyan_item){.session = session,
                            .first = 10,
                            .rows = rows,
                            .q = w->q,
                            .o = w->o,
                            .lse = w->lse,
                            .error = &w->error};
}

void check_work(const struct work *w)
{
    assert_int_equal(w->item.code, BANYAN_OK);
    assert_memory_equal(w->q, w->o, (size_t)w->item.rows * HEADS * DIM * sizeof(float));
    for (uint32_t i = 0; i < w->item.rows * HEADS; i++)
        assert_true(w->lse[i] == (float)(w->item.first + i / HEADS));
    assert_int_equal(w->item.length, w->item.first + w->item.rows);
}

void free_work(struct work *w)
{
    free(w->q);
    free(w->o);
    free(w->lse);
}
