// SPDX-License-Identifier: Apache-2.0
// The simulator keeps its own contracts: order, links, faults, disks.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/store/store.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_net.h"
#include "tests/sim/sim_store.h"

static char said[256]; // what ran, a letter each

static void say(void *arg)
{
    size_t n = strlen(said);
    assert_true(n + 1 < sizeof said);
    said[n] = *(const char *)arg;
    said[n + 1] = 0;
}

static struct common_mail mails[16];
static unsigned n_mails; // of this world

static void begin(uint64_t seed)
{
    said[0] = 0;
    n_mails = 0;
    sim_begin(seed);
}

static void post(struct common_loop *loop, common_loop_fn fn, void *arg)
{
    assert_true(n_mails < 16);
    common_loop_mail(loop, &mails[n_mails++], fn, arg);
}

static struct common_loop *loop_new(const char *name)
{
    struct common_loop *loop;
    assert_int_equal(common_loop_new(&loop), COMMON_OK);
    sim_loop_name(loop, name);
    return loop;
}

// ---- the loop -------------------------------------------------------------------------------------------

static void posts_run_in_order_and_not_by_themselves(void **state)
{
    (void)state;
    begin(1);
    struct common_loop *a = loop_new("a"), *b = loop_new("b");
    post(a, say, "1");
    post(b, say, "2");
    post(a, say, "3");
    assert_string_equal(said, "");
    assert_true(sim_step());
    assert_string_equal(said, "1");
    sim_run_until_idle();
    assert_string_equal(said, "123");
    assert_false(sim_step());
    common_loop_free(a);
    common_loop_free(b);
    sim_end();
}

static void timers_fire_at_their_time(void **state)
{
    (void)state;
    begin(1);
    struct common_loop *a = loop_new("a");
    struct common_timer *once, *often;
    assert_int_equal(common_timer_new(a, say, "o", &once), COMMON_OK);
    assert_int_equal(common_timer_new(a, say, "r", &often), COMMON_OK);
    uint64_t start = sim_clock();
    common_timer_start(once, 25, false);
    common_timer_start(often, 10, true);
    sim_advance(24);
    assert_string_equal(said, "rr");
    sim_advance(1);
    assert_string_equal(said, "rro");
    common_timer_stop(often);
    sim_advance(100);
    assert_string_equal(said, "rro");
    assert_int_equal(sim_clock(), start + 125);
    assert_int_equal(common_clock_left(start + 130), 5);
    common_timer_free(once);
    common_timer_free(often);
    common_loop_free(a);
    sim_end();
}

struct marking {
    struct common_loop *loop;
    struct common_deferred *deferred;
};

static void mark(void *arg)
{
    struct marking *m = arg;
    say("m");
    post(m->loop, say, "n"); // of the next turn
    common_deferred_mark(m->deferred);
    common_deferred_mark(m->deferred);
}

static void deferred_work_runs_once_at_the_end_of_the_turn(void **state)
{
    (void)state;
    begin(1);
    struct marking m = {.loop = loop_new("a")};
    assert_int_equal(common_deferred_new(m.loop, say, "d", &m.deferred), COMMON_OK);
    post(m.loop, mark, &m);
    post(m.loop, say, "x"); // ready in the same turn
    sim_run_until_idle();
    assert_string_equal(said, "mxnd");
    common_deferred_free(m.deferred);
    common_loop_free(m.loop);
    sim_end();
}

static void a_frozen_process_runs_late_and_in_order(void **state)
{
    (void)state;
    begin(1);
    struct common_loop *a = loop_new("a"), *b = loop_new("b");
    struct common_timer *timer;
    assert_int_equal(common_timer_new(a, say, "t", &timer), COMMON_OK);
    common_timer_start(timer, 10, false);
    post(a, say, "1");
    sim_loop_freeze(a);
    post(a, say, "2");
    post(b, say, "b");
    sim_advance(100);
    assert_string_equal(said, "b");
    sim_loop_thaw(a);
    sim_run_until_idle();
    sim_advance(0);
    assert_string_equal(said, "b12t");
    common_timer_free(timer);
    common_loop_free(a);
    common_loop_free(b);
    sim_end();
}

// Two loops and two timers at one instant: the order is the seed's, and a loop's own posts stay in order.
static uint64_t shuffled(uint64_t seed, char out[8])
{
    begin(seed);
    sim_shuffle(true);
    struct common_loop *a = loop_new("a"), *b = loop_new("b");
    post(a, say, "1");
    post(b, say, "5");
    post(a, say, "2");
    post(b, say, "6");
    sim_run_until_idle();
    snprintf(out, 8, "%s", said);
    uint64_t trace = sim_trace();
    common_loop_free(a);
    common_loop_free(b);
    sim_end();
    return trace;
}

static void the_seed_decides_the_order_of_one_instant(void **state)
{
    (void)state;
    char first[8], other[8];
    bool differs = false;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t trace = shuffled(seed, first);
        assert_true(shuffled(seed, other) == trace);
        assert_string_equal(first, other);
        assert_true(strchr(first, '1') < strchr(first, '2') && strchr(first, '5') < strchr(first, '6'));
        shuffled(1, other);
        differs = differs || strcmp(first, other) != 0;
    }
    assert_true(differs);
}

// ---- links ----------------------------------------------------------------------------------------------

static struct proto_request *kept; // a request that the server has not answered
static int n_cancelled, n_links_closed, n_requests;

static void count_cancel(void *arg)
{
    (void)arg;
    n_cancelled++;
}

static void answer_health(struct proto_request *request)
{
    Banyan__Pb__HealthCheckReply reply = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    reply.version = "sim";
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void on_health(void *arg, struct proto_request *request)
{
    (void)arg;
    n_requests++;
    say("h");
    answer_health(request);
}

static void on_info(void *arg, struct proto_request *request)
{
    (void)arg;
    kept = request;
    proto_request_on_cancel(request, count_cancel, NULL);
}

static void on_link_closed(void *arg, uint64_t link)
{
    (void)arg, (void)link;
    n_links_closed++;
}

struct pair { // a server and a channel to it
    struct common_loop *at, *from;
    struct proto_server *server;
    struct proto_channel *channel;
};

static const struct proto_method methods[] = {
    {BANYAN__PB__METHOD__METHOD_HEALTH_CHECK, 1u << BANYAN__PB__ROLE__ROLE_CLIENT, on_health},
    {BANYAN__PB__METHOD__METHOD_CLUSTER_INFO, 1u << BANYAN__PB__ROLE__ROLE_CLIENT, on_info},
    {BANYAN__PB__METHOD__METHOD_REGISTER, 1u << BANYAN__PB__ROLE__ROLE_WORKER, on_info},
    {0, 0, NULL},
};

static void pair_begin(struct pair *pair, const char *endpoint, const char *server_token,
                       const char *client_token)
{
    struct common_error err;
    kept = NULL;
    n_cancelled = n_links_closed = n_requests = 0;
    begin(1);
    pair->at = loop_new("server");
    pair->from = loop_new("caller");
    struct proto_server_options server = {.name = "server",
                                          .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                          .token = server_token,
                                          .methods = methods,
                                          .link_closed = on_link_closed};
    assert_int_equal(proto_server_new(pair->at, &server, &pair->server, &err), COMMON_OK);
    assert_int_equal(proto_server_listen(pair->server, endpoint, &err), COMMON_OK);
    struct proto_channel_options channel = {.name = "caller", .token = client_token};
    assert_int_equal(proto_channel_open(pair->from, proto_server_endpoint(pair->server, 0), &channel,
                                        &pair->channel, &err),
                     COMMON_OK);
}

static void pair_end(struct pair *pair)
{
    proto_channel_close(pair->channel);
    proto_server_close(pair->server);
    sim_run_until_idle();
    common_loop_free(pair->at);
    common_loop_free(pair->from);
    assert_int_equal(sim_net_links(), 0);
    sim_end();
}

struct outcome {
    bool done;
    int times;
    enum common_code code;
    uint64_t at_ns;
};

static void on_reply(void *arg, const struct proto_reply *reply)
{
    struct outcome *outcome = arg;
    outcome->done = true;
    outcome->times++;
    outcome->code = reply->code;
    outcome->at_ns = sim_clock();
}

static void call(struct pair *pair, uint32_t method, uint64_t deadline_ns, struct outcome *outcome,
                 uint64_t *id)
{
    static Banyan__Pb__HealthCheckRequest health = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    static Banyan__Pb__ClusterInfoRequest info = BANYAN__PB__CLUSTER_INFO_REQUEST__INIT;
    static Banyan__Pb__RegisterRequest reg = BANYAN__PB__REGISTER_REQUEST__INIT;
    struct common_error err;
    struct proto_call made = {.method = method,
                              .body = method == BANYAN__PB__METHOD__METHOD_HEALTH_CHECK   ? &health.base
                                      : method == BANYAN__PB__METHOD__METHOD_CLUSTER_INFO ? &info.base
                                                                                          : &reg.base,
                              .deadline_ns = common_clock_after(deadline_ns),
                              .done = on_reply,
                              .arg = outcome};
    *outcome = (struct outcome){0};
    assert_int_equal(proto_channel_call(pair->channel, &made, id, &err), COMMON_OK);
    assert_false(outcome->done);
}

#define HEALTH BANYAN__PB__METHOD__METHOD_HEALTH_CHECK
#define INFO   BANYAN__PB__METHOD__METHOD_CLUSTER_INFO

static void a_call_is_answered_over_a_link(void **state)
{
    (void)state;
    struct pair pair;
    struct outcome outcome;
    pair_begin(&pair, "tcp://127.0.0.1:0", NULL, NULL);
    call(&pair, HEALTH, COMMON_NS_PER_S, &outcome, NULL);
    assert_true(sim_run_until(&outcome.done, COMMON_NS_PER_S));
    assert_int_equal(outcome.code, COMMON_OK);
    assert_int_equal(sim_net_frames(), 2);
    call(&pair, BANYAN__PB__METHOD__METHOD_REGISTER, COMMON_NS_PER_S, &outcome, NULL);
    assert_true(sim_run_until(&outcome.done, COMMON_NS_PER_S));
    assert_int_equal(outcome.code, COMMON_PERMISSION_DENIED); // not for clients
    pair_end(&pair);
    assert_int_equal(outcome.times, 1);
}

static void a_wrong_token_is_refused(void **state)
{
    (void)state;
    struct pair pair;
    struct outcome outcome;
    pair_begin(&pair, "tcp://127.0.0.1:0", "right", "wrong");
    call(&pair, HEALTH, COMMON_NS_PER_S, &outcome, NULL);
    assert_true(sim_run_until(&outcome.done, COMMON_NS_PER_S));
    assert_int_equal(outcome.code, COMMON_UNAUTHENTICATED);
    assert_int_equal(n_requests, 0);
    pair_end(&pair);
    pair_begin(&pair, "nng+tcp://127.0.0.1:0", "right", "wrong");
    call(&pair, HEALTH, COMMON_NS_PER_S, &outcome, NULL);
    assert_true(sim_run_until(&outcome.done, COMMON_NS_PER_S));
    assert_int_equal(outcome.code, COMMON_UNAUTHENTICATED);
    assert_int_equal(n_requests, 0);
    pair_end(&pair);
    pair_begin(&pair, "nng+tcp://127.0.0.1:0", "right", "right");
    call(&pair, HEALTH, COMMON_NS_PER_S, &outcome, NULL);
    assert_true(sim_run_until(&outcome.done, COMMON_NS_PER_S));
    assert_int_equal(outcome.code, COMMON_OK);
    pair_end(&pair);
}

static void a_held_way_is_a_black_hole_until_it_is_released(void **state)
{
    (void)state;
    struct pair pair;
    struct outcome first, second;
    pair_begin(&pair, "tcp://127.0.0.1:0", NULL, NULL);
    sim_advance(COMMON_NS_PER_S); // linked
    sim_net_hold(pair.from, pair.at);
    uint64_t deadline = sim_clock() + COMMON_NS_PER_S;
    call(&pair, HEALTH, COMMON_NS_PER_S, &first, NULL);
    call(&pair, HEALTH, 10 * COMMON_NS_PER_S, &second, NULL);
    assert_true(sim_run_until(&first.done, 5 * COMMON_NS_PER_S));
    assert_int_equal(first.code, COMMON_DEADLINE_EXCEEDED);
    assert_int_equal(first.at_ns, deadline);
    assert_true(proto_channel_connected(pair.channel));
    assert_int_equal(n_requests, 0);
    sim_net_release(pair.from, pair.at);
    assert_true(sim_run_until(&second.done, COMMON_NS_PER_S));
    assert_int_equal(second.code, COMMON_OK);
    assert_int_equal(n_requests, 2); // the frame of the first arrived late
    pair_end(&pair);
}

static void a_cut_ends_calls_and_the_channel_dials_again(void **state)
{
    (void)state;
    struct pair pair;
    struct outcome outcome;
    pair_begin(&pair, "tcp://127.0.0.1:0", NULL, NULL);
    call(&pair, INFO, 10 * COMMON_NS_PER_S, &outcome, NULL);
    sim_advance(COMMON_NS_PER_S);
    assert_non_null(kept);
    sim_net_cut(pair.from, pair.at);
    assert_false(outcome.done);
    sim_run_until_idle();
    assert_int_equal(outcome.code, COMMON_UNAVAILABLE);
    assert_int_equal(n_cancelled, 1);
    assert_int_equal(n_links_closed, 1);
    assert_false(proto_channel_connected(pair.channel));
    sim_advance(COMMON_NS_PER_S);
    assert_true(proto_channel_connected(pair.channel));
    proto_request_fail(kept, COMMON_INTERNAL, "goes nowhere", NULL, 0);
    sim_net_part(pair.from, pair.at);
    sim_advance(10 * COMMON_NS_PER_S);
    assert_false(proto_channel_connected(pair.channel));
    sim_net_mend(pair.from, pair.at);
    sim_advance(2 * COMMON_NS_PER_S);
    assert_true(proto_channel_connected(pair.channel));
    pair_end(&pair);
    assert_int_equal(outcome.times, 1);
}

static void a_cancellation_travels(void **state)
{
    (void)state;
    struct pair pair;
    struct outcome outcome;
    uint64_t id;
    pair_begin(&pair, "tcp://127.0.0.1:0", NULL, NULL);
    call(&pair, INFO, 10 * COMMON_NS_PER_S, &outcome, &id);
    sim_advance(COMMON_NS_PER_S);
    proto_channel_cancel(pair.channel, id);
    assert_int_equal(outcome.code, COMMON_CANCELLED);
    assert_int_equal(n_cancelled, 0);
    sim_run_until_idle();
    assert_int_equal(n_cancelled, 1);
    proto_request_fail(kept, COMMON_CANCELLED, "as asked", NULL, 0);
    pair_end(&pair);
    assert_int_equal(outcome.times, 1);
}

static void frames_of_one_way_stay_in_order(void **state)
{
    (void)state;
    struct pair pair;
    struct outcome outcomes[20];
    pair_begin(&pair, "tcp://127.0.0.1:0", NULL, NULL);
    sim_advance(COMMON_NS_PER_S);
    sim_shuffle(true);
    sim_net_delay(1000, 1000000);
    for (int i = 0; i < 20; i++)
        call(&pair, HEALTH, 10 * COMMON_NS_PER_S, &outcomes[i], NULL);
    sim_run_until_idle();
    for (int i = 0; i < 20; i++) {
        assert_int_equal(outcomes[i].code, COMMON_OK);
        assert_true(i == 0 || outcomes[i].at_ns >= outcomes[i - 1].at_ns);
    }
    pair_end(&pair);
}

// ---- disks ----------------------------------------------------------------------------------------------

static bool no_worker(void *arg, const char *name, uint64_t instance)
{
    (void)instance;
    strcat(arg, name);
    return true;
}

static bool read_range(void *arg, uint64_t session, uint32_t layer, uint64_t first, uint64_t count)
{
    char text[64];
    snprintf(text, sizeof text, "[%llu.%u %llu+%llu]", (unsigned long long)session, layer,
             (unsigned long long)first, (unsigned long long)count);
    strcat(arg, text);
    return true;
}

static struct coordinator_store *store_open(struct common_loop *loop, char *text)
{
    struct coordinator_store_reader reader = {.arg = text, .worker = no_worker, .range = read_range};
    struct coordinator_store *store;
    struct common_error err;
    text[0] = 0;
    assert_int_equal(coordinator_store_open("d", false, loop, &reader, &store, &err), COMMON_OK);
    return store;
}

struct stored {
    int times;
    enum common_code code;
};

static void on_stored(void *arg, enum common_code code, const char *text)
{
    struct stored *stored = arg;
    (void)text;
    stored->times++;
    stored->code = code;
}

static void store_worker(struct coordinator_store *store, const char *name, struct stored *stored)
{
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_worker(batch, name, 1);
    *stored = (struct stored){0};
    coordinator_store_submit(store, batch, on_stored, stored);
    assert_int_equal(stored->times, 0);
}

static void a_disk_keeps_what_was_durable_at_a_crash(void **state)
{
    (void)state;
    char text[256];
    struct stored a, b, c, d;
    begin(1);
    struct common_loop *loop = loop_new("a");
    struct coordinator_store *store = store_open(loop, text);
    uint64_t term = coordinator_store_term(store), id, later;
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_CHUNK, &id));
    store_worker(store, "A", &a);
    sim_run_until_idle();
    assert_int_equal(a.times, 1);
    assert_int_equal(a.code, COMMON_OK);
    sim_disk_fail("d", 1, COMMON_RESOURCE_EXHAUSTED);
    store_worker(store, "B", &b);
    sim_run_until_idle();
    assert_int_equal(b.code, COMMON_RESOURCE_EXHAUSTED);
    sim_disk_silence("d", true); // durable, and no answer
    store_worker(store, "C", &c);
    sim_run_until_idle();
    assert_int_equal(c.times, 0);
    sim_disk_stall("d", true); // not durable
    store_worker(store, "D", &d);
    sim_run_until_idle();
    assert_int_equal(sim_disk_waiting("d"), 1);
    sim_disk_crash("d");
    sim_loop_drain(loop);
    assert_int_equal(c.times, 1);
    assert_int_equal(d.times, 1);
    assert_int_equal(d.code, COMMON_UNAVAILABLE);
    coordinator_store_free(store);
    store = store_open(loop, text);
    assert_string_equal(text, "AC");
    assert_int_equal(coordinator_store_term(store), term + 1);
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_CHUNK, &later));
    assert_true(later > id);
    coordinator_store_free(store);
    sim_disks_free();
    common_loop_free(loop);
    sim_end();
}

static void a_disk_keeps_the_union_of_ranges(void **state)
{
    (void)state;
    char text[256];
    begin(1);
    struct common_loop *loop = loop_new("a");
    struct coordinator_store *store = store_open(loop, text);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_range(batch, 1, 0, 0, 10);
    coordinator_batch_range(batch, 1, 0, 20, 10);
    coordinator_batch_range(batch, 1, 0, 10, 10);
    coordinator_batch_range(batch, 1, 1, 40, 10);
    coordinator_batch_range(batch, 2, 0, 0, 5);
    coordinator_batch_clip(batch, 1, 25);
    coordinator_store_submit(store, batch, NULL, NULL);
    coordinator_store_stop(store); // an orderly one writes it
    sim_run_until_idle();
    coordinator_store_free(store);
    store = store_open(loop, text);
    assert_string_equal(text, "[1.0 0+25][2.0 0+5]");
    coordinator_store_free(store);
    sim_disks_free();
    common_loop_free(loop);
    sim_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(posts_run_in_order_and_not_by_themselves),
        cmocka_unit_test(timers_fire_at_their_time),
        cmocka_unit_test(deferred_work_runs_once_at_the_end_of_the_turn),
        cmocka_unit_test(a_frozen_process_runs_late_and_in_order),
        cmocka_unit_test(the_seed_decides_the_order_of_one_instant),
        cmocka_unit_test(a_call_is_answered_over_a_link),
        cmocka_unit_test(a_wrong_token_is_refused),
        cmocka_unit_test(a_held_way_is_a_black_hole_until_it_is_released),
        cmocka_unit_test(a_cut_ends_calls_and_the_channel_dials_again),
        cmocka_unit_test(a_cancellation_travels),
        cmocka_unit_test(frames_of_one_way_stay_in_order),
        cmocka_unit_test(a_disk_keeps_what_was_durable_at_a_crash),
        cmocka_unit_test(a_disk_keeps_the_union_of_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
