// SPDX-License-Identifier: Apache-2.0
// The worker's side of membership, against a server that answers as the test says: registers, beats, and
// comes back whatever happens.
#include <event2/event.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/log/log.h"
#include "proto/rpc/rpc.h"
#include "proto/rpc/status.h"
#include "worker/core/membership.h"

static bool random_fails;

bool __real_common_random(void *out, size_t len);
bool __wrap_common_random(void *out, size_t len);

bool __wrap_common_random(void *out, size_t len) // the linker's (--wrap)
{
    return !random_fails && __real_common_random(out, len);
}

struct office { // where workers register
    struct common_loop *loop;
    struct common_secret secret;
    char dir[64], endpoint[128];
    struct proto_server *server;
    struct worker_membership *membership;
    uint64_t term, worker_term;            // the office's; the worker's
    enum common_code refuse, refuse_beats; // OK: none is refused
    bool mute;                             // heartbeats are taken, and kept
    unsigned joining;                      // heartbeats whose answer is that the worker is not active yet
    struct proto_request *kept[16];
    unsigned n_kept;
    unsigned registers, beats, accepted;
    uint64_t instance, seen_term, last_used;
    char name[65], edge[128], no_device[256];
};

static void on_register(void *arg, struct proto_request *request)
{
    struct office *o = arg;
    const Banyan__Pb__RegisterRequest *body =
        (const Banyan__Pb__RegisterRequest *)proto_request_message(request)->body;
    o->registers++;
    assert_true(o->instance == 0 || o->instance == body->instance); // one process, one instance
    o->instance = body->instance;
    o->seen_term = body->seen_term;
    snprintf(o->name, sizeof o->name, "%s", body->name);
    snprintf(o->edge, sizeof o->edge, "%s", body->edge_endpoint);
    snprintf(o->no_device, sizeof o->no_device, "%s", body->no_device);
    if (o->refuse != COMMON_OK) {
        proto_request_fail(request, o->refuse, "not now", NULL, 0);
        return;
    }
    Banyan__Pb__RegisterReply reply = BANYAN__PB__REGISTER_REPLY__INIT;
    reply.worker = 42;
    reply.term = o->term;
    reply.heartbeat_ns = 10 * COMMON_NS_PER_MS;
    reply.joining = o->joining > 0;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void answer_beat(struct office *o, struct proto_request *request)
{
    Banyan__Pb__HeartbeatReply reply = BANYAN__PB__HEARTBEAT_REPLY__INIT;
    reply.term = o->term;
    reply.joining = o->joining > 0;
    o->joining -= o->joining > 0;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void on_beat(void *arg, struct proto_request *request)
{
    struct office *o = arg;
    const Banyan__Pb__HeartbeatRequest *body =
        (const Banyan__Pb__HeartbeatRequest *)proto_request_message(request)->body;
    assert_int_equal(body->worker, 42);
    o->beats++;
    o->last_used = body->used_bytes;
    if (o->refuse_beats != COMMON_OK) {
        proto_request_fail(request, o->refuse_beats, "who are you?", NULL, 0);
        return;
    }
    if (o->mute && o->n_kept < sizeof o->kept / sizeof *o->kept)
        o->kept[o->n_kept++] = request;
    else
        answer_beat(o, request);
}

static void open_office(struct office *o)
{
    static const struct proto_method methods[] = {
        {BANYAN__PB__METHOD__METHOD_REGISTER, 1u << BANYAN__PB__ROLE__ROLE_WORKER, on_register},
        {BANYAN__PB__METHOD__METHOD_HEARTBEAT, 1u << BANYAN__PB__ROLE__ROLE_WORKER, on_beat},
        {0, 0, NULL},
    };
    struct proto_server_options options = {.name = "office",
                                           .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                           .secret = &o->secret,
                                           .methods = methods,
                                           .arg = o};
    assert_int_equal(proto_server_new(o->loop, &options, &o->server, NULL), COMMON_OK);
    assert_int_equal(proto_server_listen(o->server, o->endpoint, NULL), COMMON_OK);
}

static void close_office(struct office *o)
{
    proto_server_close(o->server);
    o->server = NULL;
}

static void stats(void *arg, struct worker_membership_stats *out)
{
    (void)arg;
    out->used_bytes = 1234;
}

static void registered(void *arg)
{
    ((struct office *)arg)->accepted++;
}

static void begin(struct office *o)
{
    *o = (struct office){.dir = "/tmp/banyan-office-XXXXXX", .term = 3};
    common_log_set_level(COMMON_LOG_ERROR);
    assert_non_null(mkdtemp(o->dir));
    snprintf(o->endpoint, sizeof o->endpoint, "unix://%s/s", o->dir);
    memset(o->secret.bytes, 1, sizeof o->secret.bytes);
    assert_int_equal(common_loop_new(&o->loop), COMMON_OK);
}

static void join_at(struct office *o, const char *endpoints)
{
    struct worker_membership_options options = {.coordinator = endpoints,
                                                .name = "w",
                                                .host = "h",
                                                .endpoint = "tcp://127.0.0.1:1",
                                                .edge_endpoint = "tcp://127.0.0.1:2",
                                                .kernel = "k",
                                                .no_device = "no CUDA device: none",
                                                .secret = &o->secret,
                                                .capacity_bytes = 1,
                                                .bandwidth = 1,
                                                .threads = 1,
                                                .term = &o->worker_term,
                                                .stats = stats,
                                                .registered = registered,
                                                .arg = o};
    assert_int_equal(worker_membership_new(o->loop, &options, &o->membership, NULL), COMMON_OK);
}

static void join(struct office *o)
{
    join_at(o, o->endpoint);
}

static void end(struct office *o)
{
    worker_membership_free(o->membership);
    close_office(o);
    for (int i = 0; i < 20; i++)
        event_base_loop(common_loop_base(o->loop), EVLOOP_NONBLOCK);
    common_loop_free(o->loop);
    rmdir(o->dir);
}

// Runs the loop until *count reaches want.
static void reach(struct office *o, const unsigned *count, unsigned want)
{
    uint64_t deadline = common_clock_after(30 * COMMON_NS_PER_S);
    while (*count < want && common_clock_left(deadline) > 0) {
        struct timeval tick = {0, 20000};
        event_base_loopexit(common_loop_base(o->loop), &tick);
        event_base_loop(common_loop_base(o->loop), EVLOOP_ONCE);
    }
    assert_true(*count >= want);
}

static void it_registers_and_beats(void **state)
{
    (void)state;
    struct office o;
    begin(&o);
    open_office(&o);
    join(&o);
    reach(&o, &o.beats, 3);
    assert_int_equal(o.registers, 1);
    assert_int_equal(o.accepted, 1);
    assert_int_equal(o.worker_term, 3);
    assert_int_equal(o.last_used, 1234);
    assert_string_equal(o.name, "w");
    assert_string_equal(o.edge, "tcp://127.0.0.1:2");
    assert_string_equal(o.no_device, "no CUDA device: none");
    end(&o);
}

// Accepted, and visited for a while: it beats, and is registered once it is active.
static void it_beats_while_it_is_told(void **state)
{
    (void)state;
    struct office o;
    begin(&o);
    o.joining = 5;
    open_office(&o);
    join(&o);
    reach(&o, &o.beats, 3);
    assert_int_equal(o.accepted, 0);
    reach(&o, &o.accepted, 1);
    assert_true(o.beats >= 6);
    assert_int_equal(o.registers, 1);
    o.refuse_beats = COMMON_NOT_FOUND; // lost during the visit, as well as later
    reach(&o, &o.registers, 2);
    o.joining = 1000000;
    reach(&o, &o.registers, 3);
    o.refuse_beats = COMMON_OK;
    unsigned beats = o.beats;
    reach(&o, &o.beats, beats + 3);
    o.joining = 0;
    beats = o.accepted;
    reach(&o, &o.accepted, beats + 1);
    end(&o);
}

static void it_waits_for_a_late_coordinator(void **state)
{
    (void)state;
    struct office o;
    begin(&o);
    join(&o);
    for (int i = 0; i < 10; i++) {
        struct timeval tick = {0, 10000};
        event_base_loopexit(common_loop_base(o.loop), &tick);
        event_base_loop(common_loop_base(o.loop), 0);
    }
    assert_int_equal(o.registers, 0);
    open_office(&o);
    reach(&o, &o.accepted, 1);
    end(&o);
}

static void it_comes_back_after_a_lost_link_and_a_new_term(void **state)
{
    (void)state;
    struct office o;
    begin(&o);
    open_office(&o);
    join(&o);
    reach(&o, &o.beats, 1);
    close_office(&o);
    o.term = 4;
    open_office(&o);
    reach(&o, &o.accepted, 2);
    assert_int_equal(o.seen_term, 3);
    assert_int_equal(o.worker_term, 4);
    unsigned beats = o.beats;
    reach(&o, &o.beats, beats + 2);
    end(&o);
}

static void it_registers_again_when_it_is_forgotten(void **state)
{
    (void)state;
    struct office o;
    begin(&o);
    open_office(&o);
    join(&o);
    reach(&o, &o.beats, 1);
    o.refuse_beats = COMMON_NOT_FOUND;
    reach(&o, &o.registers, 2);
    o.refuse_beats = COMMON_OK;
    unsigned beats = o.beats;
    reach(&o, &o.beats, beats + 2);
    o.term = 5; // over the same link
    reach(&o, &o.registers, 3);
    reach(&o, &o.accepted, 3);
    assert_int_equal(o.worker_term, 5);
    end(&o);
}

// A coordinator that was stopped still has the worker: it beats on, and does not register. One that has
// forgotten it says so then.
static void a_silent_coordinator_is_not_asked_again(void **state)
{
    (void)state;
    struct office o;
    begin(&o);
    open_office(&o);
    join(&o);
    reach(&o, &o.beats, 2);
    o.mute = true;
    reach(&o, &o.n_kept, 4); // three of them had no answer for three beats
    assert_int_equal(o.registers, 1);
    o.mute = false;
    while (o.n_kept)
        answer_beat(&o, o.kept[--o.n_kept]); // too late, and of no use
    reach(&o, &o.beats, o.beats + 5);
    assert_int_equal(o.registers, 1);
    assert_int_equal(o.accepted, 1);
    o.mute = true;
    reach(&o, &o.n_kept, 2);
    while (o.n_kept)
        answer_beat(&o, o.kept[--o.n_kept]);
    o.mute = false;
    o.refuse_beats = COMMON_NOT_FOUND;
    reach(&o, &o.registers, 2);
    o.refuse_beats = COMMON_OK;
    reach(&o, &o.accepted, 2);
    end(&o);
}

static void a_refusal_is_no_end(void **state)
{
    (void)state;
    struct office o;
    begin(&o);
    open_office(&o);
    o.refuse = COMMON_ALREADY_EXISTS;
    join(&o);
    reach(&o, &o.registers, 3);
    assert_int_equal(o.accepted, 0);
    assert_int_equal(o.beats, 0);
    o.refuse = COMMON_OK;
    reach(&o, &o.accepted, 1);
    end(&o);
}

static void a_coordinator_of_the_past_is_not_followed(void **state)
{
    (void)state;
    struct office o;
    begin(&o);
    open_office(&o);
    o.worker_term = 9;
    join(&o);
    reach(&o, &o.registers, 2);
    assert_int_equal(o.seen_term, 9);
    assert_int_equal(o.accepted, 0);
    o.term = 10;
    reach(&o, &o.accepted, 1);
    assert_int_equal(o.worker_term, 10);
    end(&o);
}

// Two offices, of which one refuses: it is asked again and again, and followed once it has the higher term,
// while the first one still answers heartbeats in its own.
static void the_one_with_the_higher_term_is_followed(void **state)
{
    (void)state;
    struct office first, second;
    char both[300];
    begin(&first);
    second = first;
    snprintf(second.endpoint, sizeof second.endpoint, "unix://%s/t", first.dir);
    second.refuse = COMMON_UNAVAILABLE;
    second.term = first.term + 1;
    open_office(&first);
    open_office(&second);
    snprintf(both, sizeof both, "%s,%s", first.endpoint, second.endpoint);
    join_at(&first, both);
    reach(&first, &first.accepted, 1);
    reach(&first, &second.registers, 4);
    assert_int_equal(first.accepted, 1);
    assert_int_equal(first.worker_term, 3);
    assert_int_equal(first.instance, second.instance);
    second.refuse = COMMON_OK;
    reach(&first, &first.accepted, 2);
    assert_int_equal(first.worker_term, 4);
    reach(&first, &second.beats, 3);
    unsigned registers = first.registers;
    reach(&first, &first.registers, registers + 1); // what the first one says is over
    assert_int_equal(first.seen_term, 4);
    assert_int_equal(first.accepted, 2);
    close_office(&second);
    end(&first);
}

static void endpoints_are_checked(void **state)
{
    (void)state;
    struct office o;
    struct worker_membership_options options = {.coordinator = "tcp://127.0.0.1:1,nonsense"};
    struct worker_membership *membership = NULL;
    begin(&o);
    assert_int_equal(worker_membership_new(o.loop, &options, &membership, NULL), COMMON_INVALID_ARGUMENT);
    assert_null(membership);
    end(&o);
}

// Without an instance of its own it would be taken for another worker's earlier life.
static void without_random_bytes_there_is_no_membership(void **state)
{
    (void)state;
    struct worker_membership_options options = {.coordinator = "tcp://127.0.0.1:1",
                                                .name = "w",
                                                .host = "h",
                                                .endpoint = "tcp://127.0.0.1:1",
                                                .edge_endpoint = "tcp://127.0.0.1:2",
                                                .kernel = "k"};
    struct worker_membership *membership = NULL;
    struct common_loop *loop;
    struct common_error err;
    assert_int_equal(common_loop_new(&loop), COMMON_OK);
    random_fails = true;
    assert_int_equal(worker_membership_new(loop, &options, &membership, &err), COMMON_UNAVAILABLE);
    random_fails = false;
    assert_null(membership);
    common_loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_registers_and_beats),
        cmocka_unit_test(it_beats_while_it_is_told),
        cmocka_unit_test(it_waits_for_a_late_coordinator),
        cmocka_unit_test(it_comes_back_after_a_lost_link_and_a_new_term),
        cmocka_unit_test(it_registers_again_when_it_is_forgotten),
        cmocka_unit_test(a_silent_coordinator_is_not_asked_again),
        cmocka_unit_test(a_refusal_is_no_end),
        cmocka_unit_test(a_coordinator_of_the_past_is_not_followed),
        cmocka_unit_test(the_one_with_the_higher_term_is_followed),
        cmocka_unit_test(endpoints_are_checked),
        cmocka_unit_test(without_random_bytes_there_is_no_membership),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
