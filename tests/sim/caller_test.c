// SPDX-License-Identifier: Apache-2.0
// The real library in a simulated world: its calls block, and the world goes on (sim_caller.h). And what a
// pin holds, from its maker's point of view.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "client/lib/core/internal.h"
#include "client/snapshot/snapshot_session.h"
#include "common/base/clock.h"
#include "coordinator/state.h"
#include "tests/sim/sim_caller.h"
#include "tests/sim/sim_cluster.h"

#define TTL_NS    (3 * COMMON_NS_PER_S)
#define TICKET_NS (5 * COMMON_NS_PER_S)

enum { WORKERS = 2, ROWS = 24, DIM = 4 }; // rows: a chunk and a half

static struct {
    struct sim_cluster *cluster;
    uint64_t session;
    banyan_client *client;
    banyan_code code;
    bool reads; // of the pin, and then it stands still
    bool stands;
    float v[ROWS][DIM];
} world;

static void choose(struct coordinator_options *options)
{
    options->ticket_ns = TICKET_NS;
}

static int setup(void **state)
{
    (void)state;
    memset(&world, 0, sizeof world);
    world.cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = WORKERS, .tune = choose});
    sim_cluster_start(world.cluster);
    struct sim_client *client = world.cluster->client;
    struct sim_call *made = sim_create(client, (struct sim_shape){0}, "a");
    assert_int_equal(sim_wait(made), COMMON_OK);
    world.session = made->session;
    assert_int_equal(sim_wait(sim_append(client, world.session, 0, 0, ROWS, 7)), COMMON_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    banyan_disconnect(world.client);
    sim_cluster_free(world.cluster);
    return 0;
}

static void connects(void *arg)
{
    (void)arg;
    world.code = banyan_connect(SIM_COORDINATOR, NULL, &world.client, NULL);
}

// Connects, pins, and reads once it may.
static void pins(void *arg)
{
    banyan_session *of, *pinned;
    banyan_session_info info;
    float k[ROWS][DIM];
    connects(arg);
    assert_int_equal(world.code, BANYAN_OK);
    assert_int_equal(banyan_session_open(world.client, world.session, NULL, &of, NULL), BANYAN_OK);
    assert_int_equal(snapshot_pin(of, TTL_NS, 1, &pinned, &info, NULL), BANYAN_OK);
    assert_int_equal(info.length, ROWS);
    banyan_session_info_free(&info);
    world.stands = true;
    while (!world.reads)
        sim_caller_sleep(100 * COMMON_NS_PER_MS);
    world.code = banyan_read_rows(pinned, 0, 0, ROWS, k, NULL, world.v, NULL, NULL);
    world.stands = true;
    sim_caller_sleep(COMMON_NS_PER_S);
    banyan_session_close(pinned);
    banyan_session_close(of);
}

static void runs_to_its_end(struct sim_caller *caller)
{
    for (int i = 0; i < 1000 && !sim_caller_over(caller); i++)
        sim_advance(100 * COMMON_NS_PER_MS);
    assert_true(sim_caller_over(caller));
    sim_caller_free(caller);
}

static uint32_t sessions(void)
{
    return world.cluster->coordinator->sessions.n;
}

static void a_call_blocks_and_the_world_goes_on(void **state)
{
    (void)state;
    sim_loop_freeze(world.cluster->loop);
    struct sim_caller *caller = sim_caller_start(connects, NULL);
    sim_advance(5 * COMMON_NS_PER_S);
    assert_false(sim_caller_over(caller));
    sim_loop_thaw(world.cluster->loop);
    runs_to_its_end(caller);
    assert_int_equal(world.code, BANYAN_OK);
}

static struct sim_caller *start_pinned(void)
{
    struct sim_caller *caller = sim_caller_start(pins, NULL);
    for (int i = 0; i < 100 && !world.stands; i++)
        sim_advance(10 * COMMON_NS_PER_MS);
    assert_true(world.stands);
    assert_int_equal(sessions(), 2);
    world.stands = false;
    return caller;
}

static void a_pin_holds_its_rows(void **state)
{
    (void)state;
    struct sim_client *client = world.cluster->client;
    struct sim_caller *caller = start_pinned();
    assert_int_equal(sim_wait(sim_truncate(client, world.session, 3)), COMMON_OK);
    assert_int_equal(sim_wait(sim_append(client, world.session, 0, 3, ROWS, 9)), COMMON_OK);
    assert_int_equal(sim_wait(sim_delete(client, world.session)), COMMON_OK);
    world.reads = true;
    runs_to_its_end(caller);
    assert_int_equal(world.code, BANYAN_OK);
    for (int i = 0; i < ROWS * DIM; i++)
        assert_true(world.v[i / DIM][i % DIM] == 7);
}

// Who reads does not come to the coordinator: as long as his ticket is good the pin counts as used.
static void a_pin_goes_when_its_client_is_dead(void **state)
{
    (void)state;
    struct sim_caller *caller = start_pinned();
    world.reads = true;
    for (int i = 0; i < 100 && !world.stands; i++)
        sim_advance(10 * COMMON_NS_PER_MS);
    assert_int_equal(world.code, BANYAN_OK);
    sim_loop_mute(world.client->loop);
    banyan_shutdown(world.client);
    sim_advance(TTL_NS + TICKET_NS / 2);
    assert_int_equal(sessions(), 2);
    sim_advance(TICKET_NS / 2 + COMMON_NS_PER_S);
    assert_int_equal(sessions(), 1);
    runs_to_its_end(caller);
}

static void refuse_rows(uint32_t method, uint32_t times)
{
    for (uint32_t i = 0; i < WORKERS; i++)
        sim_serve_rule(
            world.cluster->workers[i]->loop, method,
            (struct sim_rule){.verdict = SIM_FAIL, .times = times, .code = COMMON_NOT_FOUND, .reason = ""});
}

// Connects, and reads the session's rows, or puts the same once more.
static void moves_rows(void *arg)
{
    banyan_session *session;
    float k[ROWS][DIM];
    bool puts = *(bool *)arg;
    for (int i = 0; i < ROWS * DIM; i++)
        k[i / DIM][i % DIM] = 1;
    for (int i = 0; i < ROWS * DIM; i++)
        world.v[i / DIM][i % DIM] = puts ? 7 : 0;
    banyan_options options = {.timeout_ns = 2 * COMMON_NS_PER_S};
    assert_int_equal(banyan_connect(SIM_COORDINATOR, &options, &world.client, NULL), BANYAN_OK);
    assert_int_equal(banyan_session_open(world.client, world.session, NULL, &session, NULL), BANYAN_OK);
    world.code = puts ? banyan_attach(session, 0, 0, ROWS, k, world.v, NULL)
                      : banyan_read_rows(session, 0, 0, ROWS, k, NULL, world.v, NULL, NULL);
    banyan_session_close(session);
    banyan_disconnect(world.client);
    world.client = NULL;
}

// A worker that has come back, and has not received its layout yet, has no session: whether there is one is
// not for it to say.
static void a_worker_does_not_say_that_a_session_is_gone(void **state)
{
    (void)state;
    for (int puts = 0; puts < 2; puts++) {
        uint32_t method = puts ? BANYAN__PB__METHOD__METHOD_CHUNK_PUT : BANYAN__PB__METHOD__METHOD_CHUNK_READ;
        bool arg = puts;
        refuse_rows(method, 2);
        runs_to_its_end(sim_caller_start(moves_rows, &arg));
        assert_int_equal(world.code, BANYAN_OK);
        assert_true(world.v[ROWS - 1][0] == 7);
        refuse_rows(method, 0);
        runs_to_its_end(sim_caller_start(moves_rows, &arg));
        assert_true(world.code == BANYAN_UNAVAILABLE || world.code == BANYAN_DEADLINE_EXCEEDED);
    }
    assert_int_equal(sim_wait(sim_delete(world.cluster->client, world.session)), COMMON_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_call_blocks_and_the_world_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(a_pin_holds_its_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(a_pin_goes_when_its_client_is_dead, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_does_not_say_that_a_session_is_gone, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
