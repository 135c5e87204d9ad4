// SPDX-License-Identifier: Apache-2.0
// Sessions that are born with a floor (coordinator/place/forget.h), as a restored one is: what lies below
// counts, takes no memory and is never seen; what is attached past it is all there is.
#include "tests/coordinator/hermetic/hermetic.h"

enum { WINDOW = 20, MARGIN = 10, CHUNK = 16, FLOOR = 100, FROM = FLOOR - WINDOW + 1, END = 130 };
static const struct sim_mask windows[2] = {{.window = WINDOW}, {.window = WINDOW}},
                             one_keeps[2] = {{.window = WINDOW}, {0}}, alone[1] = {{.window = 1}};

static struct sim_shape shape_of(uint32_t layers, const struct sim_mask *masks, uint64_t floor)
{
    return (struct sim_shape){.layers = layers, .masks = masks, .forget = MARGIN, .floor = floor};
}

static uint64_t born(struct sim_cluster *cluster, struct sim_shape shape)
{
    shape.members = cluster->options.workers;
    struct sim_call *call = sim_create(cluster->client, shape, "");
    OK(call);
    return call->session;
}

// As one client: a ticket, the rows, their commit.
static void attach(struct sim_cluster *cluster, uint64_t session, uint32_t layer, uint64_t first,
                   uint64_t end, float value)
{
    struct sim_call *open = sim_open(cluster->client, session, first, end - first);
    OK(open);
    OK(sim_put(cluster->client, open, layer, first, end - first, value));
    OK(sim_commit(cluster->client, session, layer, first, end - first));
}

// What a client does whose session is to have these rows: zeros up to FROM in the chunk that it lies in, then
// its own.
static void fill(struct sim_cluster *cluster, uint64_t session, uint32_t layer)
{
    attach(cluster, session, layer, FROM / CHUNK * CHUNK, FROM, 0);
    attach(cluster, session, layer, FROM, END, 3);
}

static void refused(const char *reason, struct sim_call *call)
{
    ENDS(COMMON_FAILED_PRECONDITION, call);
    assert_string_equal(call->reason, reason);
}

// Every row that may be asked sees threes alone: a zero that one saw would show.
static void answers_threes(struct sim_cluster *cluster, uint64_t session, uint32_t layer, uint64_t end)
{
    for (uint64_t at = FLOOR; at < end; at++) {
        struct sim_call *call = sim_read(cluster->client, session, layer, at, 1);
        OK(call);
        assert_float_equal(call->o, 3, 1e-5f);
    }
    refused("FORGOTTEN", sim_read(cluster->client, session, layer, FLOOR - 1, 1));
    refused("FORGOTTEN", sim_read(cluster->client, session, layer, FROM, 1));
    refused("FORGOTTEN", sim_read(cluster->client, session, layer, 0, 1));
}

static void what_lies_below_counts_and_is_refused(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = born(cluster, shape_of(2, windows, FLOOR));
    const struct coordinator_session *s = kept_of(cluster, session);
    assert_int_equal(s->floor, FLOOR);
    assert_int_equal(length_of(cluster, session), FROM / CHUNK * CHUNK);
    // Before anything is there: an error, whatever is asked.
    refused("FORGOTTEN", sim_read(cluster->client, session, 0, 40, 1));
    refused("FORGOTTEN", sim_append(cluster->client, session, 0, FROM / CHUNK * CHUNK, 1, 1));
    ENDS(COMMON_OUT_OF_RANGE, sim_read(cluster->client, session, 0, FLOOR, 1));
    ENDS(COMMON_OUT_OF_RANGE, sim_append(cluster->client, session, 0, FLOOR, 1, 1));
    refused("FORGOTTEN", sim_truncate(cluster->client, session, 40));
    refused("FORGOTTEN", sim_fork(cluster->client, session, 40, ""));
    ENDS(COMMON_OUT_OF_RANGE, sim_fork(cluster->client, session, FLOOR, ""));
    assert_int_equal(s->layout.n, 0);
    // What is forgotten as a whole takes no rows, and no memory.
    struct sim_call *open = sim_open(cluster->client, session, 64, 32);
    OK(open);
    refused("FORGOTTEN", sim_put(cluster->client, open, 0, 64, 16, 1));
    for (uint32_t layer = 0; layer < 2; layer++)
        fill(cluster, session, layer);
    assert_int_equal(length_of(cluster, session), END);
    assert_int_equal(s->layout.n, (END + CHUNK - 1) / CHUNK);
    assert_int_equal(coordinator_session_held(s, 0), END - FROM / CHUNK * CHUNK);
    for (uint32_t layer = 0; layer < 2; layer++)
        answers_threes(cluster, session, layer, END);
    OK(sim_commit(cluster->client, session, 0, 0, END)); // again, with all that was never there
    // Other bytes below do not come in, and no step reads those that are there.
    OK((open = sim_open(cluster->client, session, FROM - 1, 1)));
    refused("FORGOTTEN", sim_put(cluster->client, open, 0, FROM - 1, 1, 7));
    OK((open = sim_read_open(cluster->client, session, FROM - 1, 2)));
    refused("FORGOTTEN", sim_read_rows(cluster->client, open, 0, FROM - 1, 2, 0));
    OK(sim_read_rows(cluster->client, open, 0, FROM, 1, 0));
    // It goes on as any other: the floor rises once each layer was written to.
    for (uint32_t at = END; at < END + 80; at += 4)
        for (uint32_t layer = 0; layer < 2; layer++)
            OK(sim_append(cluster->client, session, layer, at, 4, 3));
    sim_advance(10 * COMMON_NS_PER_MS);
    assert_in_range(s->floor, END, END + 76 - MARGIN);
    OK(sim_truncate(cluster->client, session, 0));
    assert_int_equal(s->floor, 0);
    OK(sim_append(cluster->client, session, 0, 0, 4, 5));
    OK(sim_delete(cluster->client, session));
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(cluster->coordinator->cluster.workers[i]->load_bytes, 0);
    sim_cluster_free(cluster);
}

// The chunks below are placed with the first ones past them, which a worker does not take: they come with the
// next ones, also where these had been asked for before.
static void what_lies_below_comes_with_whatever_is_placed_first(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = born(cluster, shape_of(2, windows, FLOOR));
    const struct coordinator_session *s = kept_of(cluster, session);
    rule_all(cluster, METHOD(LAYOUT_SET), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct sim_call *first = sim_open(cluster->client, session, FROM / CHUNK * CHUNK, CHUNK);
    sim_advance(10 * COMMON_NS_PER_MS);
    struct sim_call *second = sim_open(cluster->client, session, FROM / CHUNK * CHUNK, 2 * CHUNK);
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_serve_fail_held(cluster->workers[0]->loop, COMMON_INTERNAL, "it cannot");
    ENDS(COMMON_INTERNAL, first);
    OK(second);
    assert_int_equal(s->layout.n, FROM / CHUNK + 2);
    for (uint32_t layer = 0; layer < 2; layer++)
        fill(cluster, session, layer);
    answers_threes(cluster, session, 0, END);
    sim_cluster_free(cluster);
}

// The floor does not rise while the rest of it is attached, if the first rows of one layer come last.
static void the_floor_rests_meanwhile(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = born(cluster, shape_of(2, windows, FLOOR));
    for (uint32_t layer = 0; layer < 2; layer++)
        attach(cluster, session, layer, FROM / CHUNK * CHUNK, FROM, 0);
    attach(cluster, session, 0, FROM, 200, 3);
    attach(cluster, session, 0, 200, 300, 3);
    attach(cluster, session, 1, 200, 300, 3);
    attach(cluster, session, 1, FROM, 200, 3);
    sim_advance(10 * COMMON_NS_PER_MS);
    assert_int_equal(length_of(cluster, session), 300);
    assert_int_equal(kept_of(cluster, session)->floor, FLOOR);
    answers_threes(cluster, session, 1, 300);
    sim_cluster_free(cluster);
}

static void a_layer_that_keeps_all_has_nothing(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = born(cluster, shape_of(2, one_keeps, FLOOR));
    assert_int_equal(length_of(cluster, session), 0);
    ENDS(COMMON_OUT_OF_RANGE, sim_read(cluster->client, session, 1, 0, 1));
    fill(cluster, session, 0);
    assert_int_equal(length_of(cluster, session), 0);
    answers_threes(cluster, session, 0, END); // its chunks are all there, with nothing of the other layer
    attach(cluster, session, 1, 64, END, 3);
    refused("HOLE", sim_read(cluster->client, session, 1, FLOOR, 1));
    attach(cluster, session, 1, 0, 64, 3);
    assert_int_equal(length_of(cluster, session), END);
    struct sim_call *call = sim_read(cluster->client, session, 1, 5, 1);
    OK(call);
    assert_float_equal(call->o, 3, 1e-5f);
    sim_cluster_free(cluster);
}

// Rows that see themselves alone: such a session has a length, and nothing that was attached.
static void nothing_but_a_floor(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = born(cluster, shape_of(1, alone, 96));
    assert_int_equal(length_of(cluster, session), 96);
    refused("FORGOTTEN", sim_read(cluster->client, session, 0, 95, 1));
    refused("HOLE", sim_read_below(cluster->client, session, 0, 97, 1,
                                   90)); // it sees none, of chunks without a holder
    refused("HOLE", sim_read_open(cluster->client, session, 80, 16));
    OK(sim_truncate(cluster->client, session, 96));
    struct sim_call *fork = sim_fork(cluster->client, session, 96, "");
    OK(fork);
    uint64_t both[2] = {session, fork->session};
    for (int i = 0; i < 2; i++) {
        OK(sim_append(cluster->client, both[i], 0, 96, 1, 8));
        struct sim_call *call = sim_read(cluster->client, both[i], 0, 96, 1);
        OK(call);
        assert_float_equal(call->o, 8, 1e-5f);
        refused("FORGOTTEN", sim_read(cluster->client, both[i], 0, 95, 1));
        OK(sim_read_below(cluster->client, both[i], 0, 97, 1, 90));
        assert_int_equal(length_of(cluster, both[i]), 97);
    }
    sim_cluster_free(cluster);
}

static void it_outlives_restarts(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 2; replicas++) {
        struct sim_cluster *cluster =
            sim_cluster_new(&(struct sim_cluster_options){.workers = 3, .store = true});
        sim_cluster_start(cluster);
        struct sim_shape shape = shape_of(2, windows, FLOOR);
        shape.replicas = replicas;
        uint64_t session = born(cluster, shape);
        sim_coordinator_kill(cluster); // with nothing attached
        restart(cluster);
        assert_true(sim_wait_active(cluster, 3));
        assert_int_equal(kept_of(cluster, session)->floor, FLOOR);
        assert_int_equal(length_of(cluster, session), FROM / CHUNK * CHUNK);
        refused("FORGOTTEN", sim_truncate(cluster->client, session, 40));
        fill(cluster, session, 0);
        sim_coordinator_kill(cluster); // with half of it
        restart(cluster);
        assert_true(sim_wait_active(cluster, 3));
        answers_threes(cluster, session, 0, END);
        fill(cluster, session, 1);
        for (uint32_t w = 0; w < 3; w++) {
            sim_worker_kill(cluster->workers[w]);
            sim_run_until_idle();
            sim_worker_start(cluster->workers[w]);
            assert_true(sim_wait_active(cluster, 3));
        }
        for (uint32_t layer = 0; layer < 2; layer++)
            answers_threes(cluster, session, layer, END);
        sim_coordinator_kill(cluster); // and all workers at once
        for (uint32_t w = 0; w < 3; w++)
            sim_worker_kill(cluster->workers[w]);
        for (uint32_t w = 0; w < 3; w++)
            sim_worker_start(cluster->workers[w]);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 3));
        for (uint32_t layer = 0; layer < 2; layer++)
            answers_threes(cluster, session, layer, END);
        assert_int_equal(length_of(cluster, session), END);
        struct sim_call *fork = sim_fork(cluster->client, session, FLOOR + 5, "");
        OK(fork);
        OK(sim_delete(cluster->client, session));
        answers_threes(cluster, fork->session, 1, FLOOR + 5);
        OK(sim_append(cluster->client, fork->session, 0, FLOOR + 5, 1, 3));
        answers_threes(cluster, fork->session, 0, FLOOR + 6);
        OK(sim_truncate(cluster->client, fork->session, FLOOR));
        refused("FORGOTTEN", sim_truncate(cluster->client, fork->session, FLOOR - 1));
        sim_cluster_free(cluster);
    }
}

// Its chunks go to other holders as those of any session, also the ones that are forgotten.
static void it_moves(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = born(cluster, shape_of(2, windows, FLOOR));
    for (uint32_t layer = 0; layer < 2; layer++)
        fill(cluster, session, layer);
    OK(sim_drain(cluster->client, "w0", false));
    for (int i = 0; i < 100 && cluster->coordinator->cluster.workers[0]->chunks; i++)
        sim_advance(COMMON_NS_PER_S);
    assert_int_equal(cluster->coordinator->cluster.workers[0]->chunks, 0);
    sim_worker_kill(cluster->workers[0]);
    sim_advance(COMMON_NS_PER_S);
    for (uint32_t layer = 0; layer < 2; layer++)
        answers_threes(cluster, session, layer, END);
    sim_cluster_free(cluster);
}

// It is placed where the whole would have no room.
static void memory_is_asked_for_what_is_held(void **state)
{
    (void)state;
    enum { TALL = 100000, WIDE = 1024, START = (TALL - WINDOW + 1) / WIDE * WIDE };
    struct sim_cluster *cluster = cluster_of(2);
    sim_client_dim(cluster->client, 128);
    struct sim_shape shape = shape_of(2, windows, TALL);
    shape.chunk_tokens = WIDE;
    uint64_t session = born(cluster, shape), row = UINT64_C(2) * 128 * sizeof(float);
    assert_true(2 * TALL * row > 2 * cluster->coordinator->cluster.workers[0]->capacity_bytes);
    for (uint32_t layer = 0; layer < 2; layer++) {
        attach(cluster, session, layer, START, TALL - WINDOW + 1, 0);
        attach(cluster, session, layer, TALL - WINDOW + 1, TALL + 4, 3);
        struct sim_call *call = sim_read(cluster->client, session, layer, TALL, 1);
        OK(call);
        assert_float_equal(call->o, 3, 1e-5f);
    }
    OK(sim_delete(cluster->client, session));
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(cluster->coordinator->cluster.workers[i]->load_bytes, 0);
    sim_cluster_free(cluster);
}

static void what_makes_no_sense_is_refused(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    struct sim_shape shape = shape_of(1, windows, FLOOR);
    shape.forget = 0;
    ENDS(COMMON_INVALID_ARGUMENT, sim_create(cluster->client, shape, "x"));
    shape.forget = MARGIN;
    shape.floor = (UINT64_C(1) << 26) + 1;
    ENDS(COMMON_OUT_OF_RANGE, sim_create(cluster->client, shape, "x"));
    shape.floor = UINT64_MAX;
    ENDS(COMMON_OUT_OF_RANGE, sim_create(cluster->client, shape, "x"));
    shape.floor = UINT64_C(1) << 25; // of chunks of 16 too many
    ENDS(COMMON_OUT_OF_RANGE, sim_create(cluster->client, shape, "x"));
    shape.floor = FLOOR;
    struct sim_call *call = sim_create_as(cluster->client, shape, "x", 77),
                    *again = sim_create_as(cluster->client, shape, "x", 77);
    OK(call);
    OK(again);
    assert_int_equal(call->session, again->session);
    assert_int_equal(kept_of(cluster, call->session)->floor, FLOOR);
    // The store refuses: nothing is left of it.
    sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_RESOURCE_EXHAUSTED);
    ENDS(COMMON_RESOURCE_EXHAUSTED, sim_create(cluster->client, shape, "y"));
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
    OK(sim_create(cluster->client, shape, "y"));
    sim_cluster_free(cluster);
}

int hermetic_born(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_lies_below_counts_and_is_refused),
        cmocka_unit_test(what_lies_below_comes_with_whatever_is_placed_first),
        cmocka_unit_test(the_floor_rests_meanwhile),
        cmocka_unit_test(a_layer_that_keeps_all_has_nothing),
        cmocka_unit_test(nothing_but_a_floor),
        cmocka_unit_test(it_outlives_restarts),
        cmocka_unit_test(it_moves),
        cmocka_unit_test(memory_is_asked_for_what_is_held),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests_name("born", tests, NULL, NULL);
}
