// SPDX-License-Identifier: Apache-2.0
// A coordinator whose loop stood still, on the test's own loop: no worker is judged by the silence meanwhile,
// and every worker is judged again afterwards. The test plays the worker.
#include <event2/event.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/coordinator.h"
#include "coordinator/state.h"
#include "proto/rpc/rpc.h"

#define HEARTBEAT_NS (200 * COMMON_NS_PER_MS)

struct play {
    struct common_loop *loop;
    struct common_secret secret;
    char dir[64], endpoint[128], edge[128];
    struct coordinator *c;
    struct proto_channel *channel; // the worker's, to the coordinator
    struct proto_server *server;   // the worker's edges
    bool registered;
    enum common_code code;
    unsigned inventories;
    const char *no_device; // that it registers with; NULL: ""
};

static void on_inventory(void *arg, struct proto_request *request)
{
    ((struct play *)arg)->inventories++;
    Banyan__Pb__InventoryReply reply = BANYAN__PB__INVENTORY_REPLY__INIT;
    reply.instance = 1; // as it has registered
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void on_abort(void *arg, struct proto_request *request)
{
    (void)arg;
    Banyan__Pb__RowsAbortReply reply = BANYAN__PB__ROWS_ABORT_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void open_edges(struct play *p)
{
    static const struct proto_method methods[] = {
        {BANYAN__PB__METHOD__METHOD_INVENTORY, 1u << BANYAN__PB__ROLE__ROLE_COORDINATOR, on_inventory},
        {BANYAN__PB__METHOD__METHOD_ROWS_ABORT, 1u << BANYAN__PB__ROLE__ROLE_COORDINATOR, on_abort},
        {0, 0, NULL},
    };
    struct proto_server_options options = {.name = "w",
                                           .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                           .secret = &p->secret,
                                           .methods = methods,
                                           .arg = p};
    assert_int_equal(proto_server_new(p->loop, &options, &p->server, NULL), COMMON_OK);
    assert_int_equal(proto_server_listen(p->server, p->edge, NULL), COMMON_OK);
}

static void close_edges(struct play *p)
{
    if (p->server)
        proto_server_close(p->server);
    p->server = NULL;
}

static void turn(struct play *p, uint64_t ns)
{
    uint64_t until = common_clock_after(ns);
    do {
        struct timeval tick = {0, 1000};
        event_base_loopexit(common_loop_base(p->loop), &tick);
        event_base_loop(common_loop_base(p->loop), EVLOOP_ONCE);
    } while (common_clock_left(until) > 0);
}

static enum coordinator_worker_state state_of(const struct play *p)
{
    return p->c->cluster.workers[0] ? p->c->cluster.workers[0]->state : COORDINATOR_WORKER_ABSENT;
}

static void reach(struct play *p, enum coordinator_worker_state state)
{
    uint64_t until = common_clock_after(30 * COMMON_NS_PER_S);
    while (state_of(p) != state) {
        if (!common_clock_left(until))
            fail_msg("the worker is in state %d, and not in %d", state_of(p), state);
        turn(p, 0);
    }
}

static void begin(struct play *p)
{
    *p = (struct play){.dir = "/tmp/banyan-absence-XXXXXX"};
    common_log_set_level(COMMON_LOG_ERROR);
    assert_non_null(mkdtemp(p->dir));
    snprintf(p->endpoint, sizeof p->endpoint, "unix://%s/c", p->dir);
    snprintf(p->edge, sizeof p->edge, "unix://%s/e", p->dir);
    memset(p->secret.bytes, 1, sizeof p->secret.bytes);
    assert_int_equal(common_loop_new(&p->loop), COMMON_OK);
    struct coordinator_options options;
    coordinator_options_default(&options);
    options.endpoints = (const char *const[]){p->endpoint, NULL};
    options.secret = &p->secret;
    options.heartbeat_ns = HEARTBEAT_NS;
    struct common_error err;
    if (coordinator_new(p->loop, &options, &p->c, &err) != COMMON_OK)
        fail_msg("%s", err.message);
}

static void finish(struct play *p)
{
    proto_channel_close(p->channel);
    coordinator_stop(p->c);
    close_edges(p);
    turn(p, 50 * COMMON_NS_PER_MS);
    coordinator_free(p->c);
    common_loop_free(p->loop);
    rmdir(p->dir);
}

static void registered(void *arg, const struct proto_reply *reply)
{
    struct play *p = arg;
    p->registered = true;
    p->code = reply->code;
}

static void open_channel(struct play *p)
{
    struct proto_channel_options options = {.name = "w",
                                            .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                            .secret = &p->secret};
    assert_int_equal(proto_channel_open(p->loop, p->endpoint, &options, &p->channel, NULL), COMMON_OK);
}

static void join_seeing(struct play *p, uint64_t term)
{
    Banyan__Pb__RegisterRequest body = BANYAN__PB__REGISTER_REQUEST__INIT;
    body.name = "w";
    body.host = "h";
    body.kernel = "k";
    body.endpoint = "tcp://127.0.0.1:1";
    body.edge_endpoint = p->edge;
    body.instance = body.capacity_bytes = body.bandwidth = 1;
    body.control = PROTO_CONTROL_VERSION;
    body.seen_term = term;
    if (p->no_device)
        body.no_device = (char *)p->no_device;
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_REGISTER,
                              .body = &body.base,
                              .deadline_ns = common_clock_after(30 * COMMON_NS_PER_S),
                              .done = registered,
                              .arg = p};
    p->registered = false;
    assert_int_equal(proto_channel_call(p->channel, &call, NULL, NULL), COMMON_OK);
}

static void join(struct play *p)
{
    open_channel(p);
    join_seeing(p, 0);
}

static void ignore(void *arg, const struct proto_reply *reply)
{
    (void)arg, (void)reply;
}

static void beat(struct play *p)
{
    Banyan__Pb__HeartbeatRequest body = BANYAN__PB__HEARTBEAT_REQUEST__INIT;
    body.worker = (uint64_t)p->c->cluster.workers[0]->life << 32 | 1;
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_HEARTBEAT,
                              .body = &body.base,
                              .deadline_ns = common_clock_after(30 * COMMON_NS_PER_S),
                              .done = ignore};
    assert_int_equal(proto_channel_call(p->channel, &call, NULL, NULL), COMMON_OK);
}

static void answered(void *arg, const struct proto_reply *reply)
{
    *(int *)arg = reply->code;
}

// What a heartbeat that says another worker's number, over this channel, is answered with.
static int beat_as(struct play *p, struct proto_channel *channel)
{
    int code = -1;
    Banyan__Pb__HeartbeatRequest body = BANYAN__PB__HEARTBEAT_REQUEST__INIT;
    body.worker = (uint64_t)p->c->cluster.workers[0]->life << 32 | 1;
    body.used_bytes = 77;
    body.engine_lost = true;
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_HEARTBEAT,
                              .body = &body.base,
                              .deadline_ns = common_clock_after(30 * COMMON_NS_PER_S),
                              .done = answered,
                              .arg = &code};
    assert_int_equal(proto_channel_call(channel, &call, NULL, NULL), COMMON_OK);
    for (int i = 0; code < 0 && i < 1000; i++)
        turn(p, 10 * COMMON_NS_PER_MS);
    return code;
}

// A worker beats over the link over which it has registered; another one's link does not count for it.
static void heartbeats_of_others(void **state)
{
    (void)state;
    struct play p;
    struct proto_channel *other;
    begin(&p);
    open_edges(&p);
    join(&p);
    reach(&p, COORDINATOR_WORKER_ACTIVE);
    const struct coordinator_worker *w = p.c->cluster.workers[0];
    struct proto_channel_options options = {.name = "w",
                                            .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                            .secret = &p.secret};
    assert_int_equal(proto_channel_open(p.loop, p.endpoint, &options, &other, NULL), COMMON_OK);
    assert_int_equal(beat_as(&p, other), COMMON_PERMISSION_DENIED);
    assert_int_equal(w->used_bytes, 0);
    assert_int_equal(beat_as(&p, p.channel), COMMON_OK);
    assert_int_equal(w->used_bytes, 77);
    proto_channel_close(other);
    finish(&p);
}

// A worker that says again and again that it has seen a term so far above ours drives ours up, but not to
// where the numbers of writes, which begin at a multiple of it, have no room: not to 2^24.
static void forged_terms_have_an_end(void **state)
{
    (void)state;
    struct play p;
    begin(&p);
    open_edges(&p);
    open_channel(&p);
    int tries = 0;
    do {
        join_seeing(&p, p.c->core.term + (UINT64_C(1) << 20));
        while (!p.registered)
            turn(&p, COMMON_NS_PER_MS);
    } while (p.code == COMMON_OK && ++tries < 20);
    assert_int_equal(p.code, COMMON_FAILED_PRECONDITION);
    assert_true(tries > 1 && p.c->core.term <= UINT64_C(1) << 23);
    join_seeing(&p, p.c->core.term); // an honest one joins
    while (!p.registered)
        turn(&p, COMMON_NS_PER_MS);
    assert_int_equal(p.code, COMMON_OK);
    finish(&p);
}

// Why a worker computes on its processor is a line for people, whatever the worker is.
static void why_there_is_no_device(void **state)
{
    (void)state;
    struct play p;
    char longest[PROTO_NO_DEVICE_MAX + 1], longer[PROTO_NO_DEVICE_MAX + 2];
    memset(longest, 'y', sizeof longest - 1);
    memset(longer, 'y', sizeof longer - 1);
    longest[sizeof longest - 1] = longer[sizeof longer - 1] = '\0';
    const char *const wrong[] = {"a\nb", "\033[31mred", "\x7f", "caf\xc3\xa9", longer};
    const char *const right[] = {longest, "no CUDA device: the driver supports CUDA 12.4", ""};
    begin(&p);
    open_edges(&p);
    open_channel(&p);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        p.no_device = wrong[i];
        join_seeing(&p, 0);
        while (!p.registered)
            turn(&p, COMMON_NS_PER_MS);
        assert_int_equal(p.code, COMMON_INVALID_ARGUMENT);
    }
    assert_null(p.c->cluster.workers[0]);
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        p.no_device = right[i];
        proto_channel_close(p.channel); // as one that was restarted
        open_channel(&p);
        join_seeing(&p, 0);
        while (!p.registered)
            turn(&p, COMMON_NS_PER_MS);
        assert_int_equal(p.code, COMMON_OK);
        reach(&p, COORDINATOR_WORKER_ACTIVE);
        assert_string_equal(p.c->cluster.workers[0]->no_device, right[i]);
        close_edges(&p);
        reach(&p, COORDINATOR_WORKER_LOST);
        open_edges(&p);
    }
    finish(&p);
}

static void heartbeats(void **state)
{
    (void)state;
    struct play p;
    begin(&p);
    open_edges(&p);
    join(&p);
    reach(&p, COORDINATOR_WORKER_ACTIVE);
    for (int i = 0; i < 3; i++) {
        usleep(5 * HEARTBEAT_NS / 1000);
        turn(&p, 0);
        turn(&p, 0); // the tick has come
        assert_int_equal(state_of(&p), COORDINATOR_WORKER_ACTIVE);
        beat(&p);
        turn(&p, HEARTBEAT_NS);
        assert_int_equal(state_of(&p), COORDINATOR_WORKER_ACTIVE);
    }
    assert_int_equal(p.inventories, 1); // and was not lost and taken again
    reach(&p, COORDINATOR_WORKER_LOST); // silence while we are here is silence
    finish(&p);
}

// The link breaks, and comes back as soon as there is a worker to dial.
static void a_broken_link(void **state)
{
    (void)state;
    struct play p;
    begin(&p);
    open_edges(&p);
    join(&p);
    reach(&p, COORDINATOR_WORKER_ACTIVE);
    close_edges(&p);
    reach(&p, COORDINATOR_WORKER_SUSPECT);
    usleep(5 * HEARTBEAT_NS / 1000);
    open_edges(&p);
    turn(&p, 0);
    turn(&p, 0);
    assert_int_not_equal(state_of(&p), COORDINATOR_WORKER_LOST);
    reach(&p, COORDINATOR_WORKER_ACTIVE);
    close_edges(&p);
    reach(&p, COORDINATOR_WORKER_LOST);
    finish(&p);
}

// The coordinator could not dial a worker that registered just before.
static void a_worker_that_registers(void **state)
{
    (void)state;
    struct play p;
    begin(&p);
    join(&p);
    reach(&p, COORDINATOR_WORKER_JOINING);
    usleep(4500 * 1000); // it has 4 s to be reached
    open_edges(&p);
    reach(&p, COORDINATOR_WORKER_ACTIVE);
    uint64_t until = common_clock_after(30 * COMMON_NS_PER_S);
    while (!p.registered && common_clock_left(until) > 0)
        turn(&p, 0);
    assert_true(p.registered);
    assert_int_equal(p.code, COMMON_OK);
    finish(&p);
}

static void created(void *arg, const struct proto_reply *reply)
{
    *(enum common_code *)arg = reply->code;
}

// What its clients wanted of it comes in after our return: until then it is not idle.
static void an_idle_session(void **state)
{
    (void)state;
    struct play p;
    begin(&p);
    struct proto_channel_options options = {.name = "client", .role = BANYAN__PB__ROLE__ROLE_CLIENT};
    assert_int_equal(proto_channel_open(p.loop, p.endpoint, &options, &p.channel, NULL), COMMON_OK);
    Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
    spec.layers = spec.q_heads = spec.kv_heads = 1;
    spec.k_dim = spec.v_dim = 16;
    spec.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    spec.idle_ttl_ns = 3 * HEARTBEAT_NS;
    Banyan__Pb__SessionCreateRequest body = BANYAN__PB__SESSION_CREATE_REQUEST__INIT;
    body.spec = &spec;
    enum common_code code = COMMON_UNAVAILABLE;
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_SESSION_CREATE,
                              .body = &body.base,
                              .deadline_ns = common_clock_after(30 * COMMON_NS_PER_S),
                              .done = created,
                              .arg = &code};
    assert_int_equal(proto_channel_call(p.channel, &call, NULL, NULL), COMMON_OK);
    uint64_t until = common_clock_after(30 * COMMON_NS_PER_S);
    while (code != COMMON_OK && common_clock_left(until) > 0)
        turn(&p, 0);
    assert_int_equal(code, COMMON_OK);
    usleep(5 * HEARTBEAT_NS / 1000);
    turn(&p, HEARTBEAT_NS);
    assert_int_equal(p.c->sessions.n, 1);
    while (p.c->sessions.n && common_clock_left(until) > 0)
        turn(&p, 0);
    assert_int_equal(p.c->sessions.n, 0); // no client came
    finish(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heartbeats),
        cmocka_unit_test(heartbeats_of_others),
        cmocka_unit_test(forged_terms_have_an_end),
        cmocka_unit_test(why_there_is_no_device),
        cmocka_unit_test(a_broken_link),
        cmocka_unit_test(a_worker_that_registers),
        cmocka_unit_test(an_idle_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
