// SPDX-License-Identifier: Apache-2.0
// Sessions that forget (coordinator/place/forget.h): what goes, when, and what is refused from then on.
#include "tests/coordinator/hermetic/hermetic.h"

#include "worker/core/state.h"

enum { WINDOW = 20, MARGIN = 10, CHUNK = 16 };
static const struct sim_mask windows[2] = {{.window = WINDOW}, {.window = WINDOW}};

static struct coordinator_session *state_of(struct sim_cluster *cluster, uint64_t session)
{
    struct coordinator_session *s = coordinator_session_find(&cluster->coordinator->sessions, session);
    assert_non_null(s);
    return s;
}

// Chunks of the layer that a worker has no memory for any more.
static uint32_t forgotten_of(struct sim_cluster *cluster, uint64_t session, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < cluster->options.workers; w++) {
        const struct worker_session *held =
            cluster->workers[w]->worker ? worker_map_get(&cluster->workers[w]->worker->sessions, session)
                                        : NULL;
        for (uint32_t i = 0; held && i < held->n_chunks; i++)
            n += worker_chunk_forgotten(held->chunks[i].chunk, layer);
    }
    return n;
}

static uint64_t forgetful(struct sim_cluster *cluster, uint32_t layers)
{
    struct sim_shape shape = {.layers = layers, .members = cluster->options.workers, .forget = MARGIN};
    shape.masks = windows;
    struct sim_call *call = sim_create(cluster->client, shape, "");
    OK(call);
    return call->session;
}

static void append(struct sim_cluster *cluster, uint64_t session, uint32_t layer, uint32_t from, uint32_t to)
{
    for (uint32_t at = from; at < to; at += 4)
        OK(sim_append(cluster->client, session, layer, at, 4, (float)at));
}

static void refused(struct sim_call *call)
{
    ENDS(COMMON_FAILED_PRECONDITION, call);
    assert_string_equal(call->reason, "FORGOTTEN");
}

// Of values that are those of sim_append above, in fours.
static void reads(struct sim_cluster *cluster, uint64_t session, uint32_t layer, uint32_t at)
{
    double sum = 0;
    uint32_t from = at >= WINDOW ? at - WINDOW + 1 : 0;
    for (uint32_t i = from; i <= at; i++)
        sum += i / 4 * 4;
    struct sim_call *call = sim_read(cluster->client, session, layer, at, 1);
    OK(call);
    assert_float_equal(call->o, (float)(sum / (at + 1 - from)), 1e-3f);
}

static void memory_stays_that_of_the_window(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = forgetful(cluster, 2), most = 0;
    for (uint32_t at = 0; at < 800; at += 4) {
        for (uint32_t layer = 0; layer < 2; layer++)
            append(cluster, session, layer, at, at + 4);
        sim_advance(COMMON_NS_PER_MS);
        uint64_t held = coordinator_session_held(state_of(cluster, session), 0);
        most = held > most ? held : most;
    }
    const struct coordinator_session *s = state_of(cluster, session);
    // It rises by a chunk at a time, and never past what the newest append may need.
    assert_true(s->floor <= 796 - MARGIN && s->floor + CHUNK > 796 - MARGIN);
    assert_true(most <= WINDOW + MARGIN + 4 + 3 * CHUNK);
    for (uint32_t layer = 0; layer < 2; layer++) {
        assert_int_equal(forgotten_of(cluster, session, layer), (s->floor - WINDOW + 1) / CHUNK);
        reads(cluster, session, layer, 799);
        reads(cluster, session, layer, (uint32_t)s->floor);
        refused(sim_read(cluster->client, session, layer, s->floor - 1, 1));
    }
    assert_int_equal(length_of(cluster, session), 800);
    OK(sim_delete(cluster->client, session));
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(cluster->coordinator->cluster.workers[i]->load_bytes, 0);
    sim_cluster_free(cluster);
}

// Nothing is given back before the store has it; and what the store refuses is not forgotten.
static void the_store_comes_first(void **state)
{
    (void)state;
    for (int fails = 0; fails < 2; fails++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = forgetful(cluster, 1);
        append(cluster, session, 0, 0, 24);
        sim_run_until_idle();
        if (fails)
            sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_RESOURCE_EXHAUSTED);
        else
            sim_disk_stall(SIM_DISK_PATH, true);
        append(cluster, session, 0, 24, 32); // one chunk and half: the next one is placed
        const struct coordinator_session *s = state_of(cluster, session);
        sim_advance(10 * COMMON_NS_PER_MS);
        assert_true(fails ? s->forget_again_ns > 0 : s->floor_next > 0); // it was tried
        assert_int_equal(s->floor, 0);
        assert_int_equal(forgotten_of(cluster, session, 0), 0);
        reads(cluster, session, 0, 0);
        if (fails)
            sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
        else
            sim_disk_stall(SIM_DISK_PATH, false);
        append(cluster, session, 0, 32, 64);
        sim_advance(2 * COMMON_NS_PER_S);
        append(cluster, session, 0, 64, 68);
        sim_advance(10 * COMMON_NS_PER_MS);
        assert_true(s->floor > 32 && forgotten_of(cluster, session, 0) > 0);
        sim_cluster_free(cluster);
    }
}

// While the store writes it no step goes back behind it any more, and none does afterwards.
static void nobody_goes_behind_what_is_being_stored(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = forgetful(cluster, 1);
    append(cluster, session, 0, 0, 96); // chunks ahead are placed
    sim_advance(10 * COMMON_NS_PER_MS);
    struct coordinator_session *s = state_of(cluster, session);
    uint64_t floor = s->floor;
    OK(sim_open(cluster->client, session, 96, 64));
    sim_disk_stall(SIM_DISK_PATH, true);
    append(cluster, session, 0, 96, 116);
    assert_true(s->floor_next > floor && s->floor == floor);
    reads(cluster, session, 0, (uint32_t)s->floor_next);
    refused(sim_read(cluster->client, session, 0, s->floor_next - 1, 1));
    struct sim_call *cut = sim_truncate(cluster->client, session, floor); // it waits for the store
    sim_advance(10 * COMMON_NS_PER_MS);
    assert_false(cut->done);
    sim_disk_stall(SIM_DISK_PATH, false);
    refused(cut);
    assert_int_equal(length_of(cluster, session), 116);
    sim_cluster_free(cluster);
}

static void a_block_may_be_sent_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = forgetful(cluster, 1);
    for (uint32_t at = 0; at < 400; at += 100) {
        OK(sim_append(cluster->client, session, 0, at, 100, 1));
        sim_advance(10 * COMMON_NS_PER_MS);
        OK(sim_append(cluster->client, session, 0, at, 100, 1)); // its answer was lost
    }
    assert_int_equal(state_of(cluster, session)->floor, 300 - MARGIN);
    refused(sim_append(cluster->client, session, 0, 200, 100, 1));
    sim_cluster_free(cluster);
}

// Until the slowest layer has caught up, nothing that it leads up to goes. A hole is the slowest of all.
static void layers_wait_for_each_other(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = forgetful(cluster, 2);
    append(cluster, session, 0, 0, 128);
    sim_advance(10 * COMMON_NS_PER_MS);
    assert_int_equal(state_of(cluster, session)->floor, 0);
    struct sim_call *open = sim_open(cluster->client, session, 64, 64);
    OK(open);
    OK(sim_put(cluster->client, open, 1, 64, 64, 1));
    OK(sim_commit(cluster->client, session, 1, 64, 64));
    sim_advance(10 * COMMON_NS_PER_MS);
    assert_int_equal(state_of(cluster, session)->floor, 0);
    append(cluster, session, 1, 0, 64); // the hole is filled from its start
    sim_advance(10 * COMMON_NS_PER_MS);
    assert_int_equal(length_of(cluster, session), 128);
    uint64_t floor = state_of(cluster, session)->floor;
    assert_true(floor > 0 && floor <= 60 - MARGIN);
    sim_cluster_free(cluster);
}

static void truncates_and_forks_go_back_to_the_floor(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = forgetful(cluster, 1);
    append(cluster, session, 0, 0, 200);
    sim_advance(10 * COMMON_NS_PER_MS);
    uint32_t floor = (uint32_t)state_of(cluster, session)->floor;
    assert_true(floor >= 200 - 4 - MARGIN - CHUNK);
    refused(sim_truncate(cluster->client, session, floor - 1));
    refused(sim_fork(cluster->client, session, floor - 1, ""));
    assert_int_equal(length_of(cluster, session), 200);
    struct sim_call *fork = sim_fork(cluster->client, session, floor, "");
    OK(fork);
    OK(sim_append(cluster->client, fork->session, 0, floor, 4, 7));
    refused(sim_read(cluster->client, fork->session, 0, floor - 1, 1));
    refused(sim_truncate(cluster->client, fork->session, floor - 1));
    sim_coordinator_kill(cluster); // the fork's floor is in the store, too
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    refused(sim_truncate(cluster->client, fork->session, floor - 1));
    refused(sim_truncate(cluster->client, session, floor - 1));
    OK(sim_truncate(cluster->client, session, floor));
    floor -= floor % 4; // as append counts
    OK(sim_truncate(cluster->client, session, state_of(cluster, session)->floor));
    OK(sim_append(cluster->client, session, 0, state_of(cluster, session)->floor, 1, 1));
    // From the start it may begin again, and forget again.
    OK(sim_truncate(cluster->client, session, 0));
    assert_int_equal(state_of(cluster, session)->floor, 0);
    append(cluster, session, 0, 0, 40);
    reads(cluster, session, 0, 0);
    append(cluster, session, 0, 40, 100);
    sim_advance(10 * COMMON_NS_PER_MS);
    assert_true(state_of(cluster, session)->floor > 60);
    assert_true(forgotten_of(cluster, session, 0) > 0);
    struct sim_call *empty = sim_fork(cluster->client, session, 0, "");
    OK(empty);
    OK(sim_append(cluster->client, empty->session, 0, 0, 4, 1));
    sim_cluster_free(cluster);
}

// A repeated commit is answered, though its rows are gone; one that goes on past them looks at the rest.
static void a_commit_that_comes_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = forgetful(cluster, 1);
    append(cluster, session, 0, 0, 160);
    sim_advance(10 * COMMON_NS_PER_MS);
    assert_true(forgotten_of(cluster, session, 0) > 4);
    OK(sim_commit(cluster->client, session, 0, 0, 64));
    OK(sim_commit(cluster->client, session, 0, 32, 128));
    ENDS(COMMON_FAILED_PRECONDITION, sim_commit(cluster->client, session, 0, 32, 160));
    struct sim_call *open = sim_open(cluster->client, session, 0, 160);
    OK(open);
    refused(sim_put(cluster->client, open, 0, 0, 16, 1));
    reads(cluster, session, 0, 159);
    sim_cluster_free(cluster);
}

// A holder that did not receive the floor gets it again; so does one when the coordinator died in between.
static void holders_hear_of_it_in_the_end(void **state)
{
    (void)state;
    for (int killed = 0; killed < 2; killed++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = forgetful(cluster, 1);
        append(cluster, session, 0, 0, 24);
        sim_advance(COMMON_NS_PER_S);
        struct sim_rule rule = {.verdict = killed ? SIM_HOLD : SIM_FAIL,
                                .times = killed ? 0 : 1,
                                .code = COMMON_UNAVAILABLE};
        OK(sim_open(cluster->client, session, 24, 72));
        rule_all(cluster, METHOD(LAYOUT_SET), rule);
        append(cluster, session, 0, 24, 96);
        sim_advance(10 * COMMON_NS_PER_MS);
        assert_true(state_of(cluster, session)->floor > 0);
        if (killed) {
            assert_int_equal(forgotten_of(cluster, session, 0), 0);
            sim_coordinator_kill(cluster);
            rule_all(cluster, METHOD(LAYOUT_SET), (struct sim_rule){.verdict = SIM_DO});
            restart(cluster);
        }
        assert_true(sim_wait_active(cluster, 2));
        sim_advance(COMMON_NS_PER_S);
        uint64_t floor = state_of(cluster, session)->floor;
        assert_true(floor > WINDOW + CHUNK);
        assert_int_equal(forgotten_of(cluster, session, 0), (floor - WINDOW + 1) / CHUNK);
        assert_int_equal(length_of(cluster, session), 96);
        reads(cluster, session, 0, 95);
        append(cluster, session, 0, 96, 140);
        reads(cluster, session, 0, 139);
        sim_cluster_free(cluster);
    }
}

// A holder shares a chunk with a session that has not forgotten its rows, and waits for these (pull.h): it
// says that none is there. What this session has forgotten was acknowledged all the same, and so is what
// comes after it.
static void forgotten_rows_that_others_wait_for_count_after_a_restart(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = forgetful(cluster, 1);
    append(cluster, session, 0, 0, 96);
    sim_advance(COMMON_NS_PER_S);
    struct worker *worker = cluster->workers[0]->worker;
    struct worker_chunk *chunk =
        ((struct worker_session *)worker_map_get(&worker->sessions, session))->chunks[1].chunk;
    assert_true(worker_chunk_forgotten(chunk, 0));
    worker_store_recall(chunk, 0); // as the layout of the other session does
    assert_int_equal(worker_chunk_ready(chunk, 0), 0);
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 1));
    sim_advance(COMMON_NS_PER_S);
    assert_int_equal(length_of(cluster, session), 96);
    worker_store_forgo(worker->store, chunk, 0);
    sim_cluster_free(cluster);
}

int hermetic_forget(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_stays_that_of_the_window),
        cmocka_unit_test(the_store_comes_first),
        cmocka_unit_test(nobody_goes_behind_what_is_being_stored),
        cmocka_unit_test(a_block_may_be_sent_again),
        cmocka_unit_test(layers_wait_for_each_other),
        cmocka_unit_test(truncates_and_forks_go_back_to_the_floor),
        cmocka_unit_test(a_commit_that_comes_again),
        cmocka_unit_test(holders_hear_of_it_in_the_end),
        cmocka_unit_test(forgotten_rows_that_others_wait_for_count_after_a_restart),
    };
    return cmocka_run_group_tests_name("forget", tests, NULL, NULL);
}
