// SPDX-License-Identifier: Apache-2.0
// Reconciling at size: how many messages a worker gets, and who else pays while one session is repaired.
#include "tests/coordinator/hermetic/hermetic.h"

#include <stdlib.h>

#include "worker/core/state.h"

// Calls are made in bundles, as a client that does not wait for each would make them.
enum { BUNDLE = 512 };

struct bundle {
    struct sim_call *calls[BUNDLE];
    uint32_t n;
};

static void bundle_end(struct bundle *b)
{
    for (uint32_t i = 0; i < b->n; i++)
        OK(b->calls[i]);
    b->n = 0;
}

static void bundle_add(struct bundle *b, struct sim_call *call)
{
    b->calls[b->n++] = call;
    if (b->n == BUNDLE)
        bundle_end(b);
}

static uint64_t layers_of(struct sim_cluster *cluster, uint32_t layers)
{
    struct sim_call *call = sim_create(cluster->client, (struct sim_shape){.layers = layers}, "");
    OK(call);
    return call->session;
}

// The link to the coordinator breaks and is back: the worker is asked again, and gets everything again.
static void visit_again(struct sim_cluster *cluster)
{
    sim_net_part(cluster->loop, cluster->workers[0]->loop);
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_net_mend(cluster->loop, cluster->workers[0]->loop);
}

static uint64_t seen(struct sim_cluster *cluster, uint32_t method)
{
    return sim_serve_seen(cluster->workers[0]->loop, method);
}

// ---- many ranges ----------------------------------------------------------------------------------------

// Every other token of each layer is committed by itself: no two ranges touch.
static void a_session_of_many_ranges_is_told_in_a_few_messages(void **state)
{
    (void)state;
    enum { LAYERS = 80, RANGES = 205 };
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = layers_of(cluster, LAYERS);
    struct sim_call *open = sim_open(cluster->client, session, 0, 2 * RANGES);
    OK(open);
    struct bundle b = {.n = 0};
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        bundle_add(&b, sim_put(cluster->client, open, layer, 0, 2 * RANGES, 1));
    bundle_end(&b);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < RANGES; i++)
            bundle_add(&b, sim_commit(cluster->client, session, layer, 2 * i, 1));
    bundle_end(&b);
    uint64_t told = seen(cluster, METHOD(ROWS_COMMIT));
    visit_again(cluster);
    assert_true(sim_wait_active(cluster, 1));
    assert_in_range(seen(cluster, METHOD(ROWS_COMMIT)) - told, 5, 8); // 16,400 ranges, 4,096 a message
    OK(sim_read(cluster->client, session, LAYERS - 1, 0, 1));
    sim_cluster_free(cluster);
}

static void many_sessions_of_many_layers_are_told_in_a_few_messages(void **state)
{
    (void)state;
    enum { LAYERS = 1024, SESSIONS = 17 };
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t sessions[SESSIONS];
    struct bundle b = {.n = 0};
    for (uint32_t i = 0; i < SESSIONS; i++) {
        sessions[i] = layers_of(cluster, LAYERS);
        OK(sim_append(cluster->client, sessions[i], 0, 0, 2, 1));
        for (uint32_t layer = 1; layer < LAYERS; layer++)
            bundle_add(&b, sim_append(cluster->client, sessions[i], layer, 0, 2, 1));
    }
    bundle_end(&b);
    uint64_t told = seen(cluster, METHOD(ROWS_COMMIT));
    visit_again(cluster);
    assert_true(sim_wait_active(cluster, 1));
    assert_int_equal(seen(cluster, METHOD(ROWS_COMMIT)) - told, SESSIONS);
    for (uint32_t i = 0; i < SESSIONS; i++)
        OK(sim_read(cluster->client, sessions[i], LAYERS - 1, 1, 1));
    sim_cluster_free(cluster);
}

// One of them is truncated after the worker got everything, and before it is ACTIVE: the others are not sent
// again.
static void a_session_that_changes_under_a_visit_is_told_again_alone(void **state)
{
    (void)state;
    enum { SESSIONS = 10 };
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_worker *w = NULL;
    uint64_t sessions[SESSIONS];
    for (int i = 0; i < SESSIONS; i++)
        sessions[i] = session_of(cluster, 64);
    sim_run_until_idle();
    w = holder_of(cluster, sessions[3], 63); // what is kept is at the other one
    uint64_t told = sim_serve_seen(w->loop, METHOD(LAYOUT_SET));
    sim_serve_rule(w->loop, METHOD(ROWS_ABORT), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    sim_net_part(cluster->loop, w->loop);
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_net_mend(cluster->loop, w->loop);
    sim_advance(50 * COMMON_NS_PER_MS);
    assert_int_equal(sim_serve_held(w->loop), 1);
    OK(sim_truncate(cluster->client, sessions[3], 16));
    sim_serve_let_go(w->loop);
    assert_true(sim_wait_active(cluster, 2));
    assert_int_equal(sim_serve_seen(w->loop, METHOD(LAYOUT_SET)) - told, SESSIONS + 1);
    assert_int_equal(tokens_held(cluster, sessions[3]), 16);
    for (int i = 0; i < SESSIONS; i++)
        READS(cluster, sessions[i], i == 3 ? 16 : 64, i == 3 ? 16 : 64);
    sim_cluster_free(cluster);
}

// ---- one session in doubt -------------------------------------------------------------------------------

// Its worker has no room for the copy of what is kept of the chunk that the truncate cuts: the truncate
// fails, and no other session is affected.
static void a_truncate_on_a_full_worker_is_nobody_elses_matter(void **state)
{
    (void)state;
    enum { LAYERS = 1024, TRIES = 50 };
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .memory_bytes = UINT64_C(8) << 20});
    sim_cluster_start(cluster);
    uint64_t innocent = layers_of(cluster, 1), victim = layers_of(cluster, LAYERS);
    OK(sim_append(cluster->client, innocent, 0, 0, 4, 3));
    enum common_code code = COMMON_OK;
    uint64_t rows = 0;
    for (; code == COMMON_OK; rows++)
        for (uint32_t layer = 0; layer < LAYERS && code == COMMON_OK; layer++)
            code = sim_wait(sim_append(cluster->client, victim, layer, rows * 16, 16, 1));
    assert_int_equal(code, COMMON_RESOURCE_EXHAUSTED);
    assert_true(rows > 1);
    sim_advance(COMMON_NS_PER_S);
    uint64_t asked = seen(cluster, METHOD(INVENTORY));
    for (uint32_t i = 0; i < TRIES; i++) {
        struct sim_call *truncate = sim_truncate(cluster->client, victim, 8);
        while (!truncate->done) {
            READS(cluster, innocent, 4, 4 * 3);
            state_is(cluster, cluster->workers[0], "active");
        }
        ENDS(COMMON_RESOURCE_EXHAUSTED, truncate);
        READS(cluster, innocent, 4, 4 * 3);
    }
    assert_in_range(seen(cluster, METHOD(INVENTORY)) - asked, 1, 2 * TRIES);
    OK(sim_truncate(cluster->client, victim, 16));
    struct sim_call *read = sim_read(cluster->client, victim, 0, 15, 1);
    OK(read);
    assert_float_equal(read->o, 1, 1e-4f);
    sim_cluster_free(cluster);
}

static const struct sim_rule hold = {.verdict = SIM_HOLD}, pass = {.verdict = SIM_DO},
                             refuse = {.verdict = SIM_FAIL, .code = COMMON_INTERNAL},
                             refuse_one = {.verdict = SIM_FAIL, .times = 1, .code = COMMON_INTERNAL};

// A session with 32 tokens whose worker has refused a layout of it, and another one.
static struct sim_cluster *doubted(uint64_t *session, uint64_t *innocent)
{
    struct sim_cluster *cluster = cluster_of(1);
    *session = session_of(cluster, 32);
    *innocent = session_of(cluster, 4);
    sim_serve_rule(cluster->workers[0]->loop, METHOD(LAYOUT_SET), refuse_one);
    return cluster;
}

// It is tried less and less often, and is its session's matter alone. Steps that came before it was given up
// have waited.
static void a_repair_that_keeps_failing_is_an_error_of_its_session(void **state)
{
    (void)state;
    uint64_t session, innocent;
    struct sim_cluster *cluster = doubted(&session, &innocent);
    struct sim_worker *w = cluster->workers[0];
    sim_serve_rule(w->loop, METHOD(INVENTORY), refuse);
    uint64_t asked = seen(cluster, METHOD(INVENTORY));
    OK(sim_truncate(cluster->client, session, 16));
    struct sim_call *read = sim_read(cluster->client, session, 0, 15, 1);
    sim_advance(20 * COMMON_NS_PER_MS);
    assert_false(read->done);
    ENDS(COMMON_UNAVAILABLE, read);
    assert_string_equal(read->reason, "WORKER_LOST");
    for (int i = 0; i < 20; i++) {
        READS(cluster, innocent, 4, 4);
        ENDS(COMMON_UNAVAILABLE, sim_read(cluster->client, session, 0, 15, 1));
        sim_advance(COMMON_NS_PER_S);
    }
    state_is(cluster, w, "active");
    assert_in_range(seen(cluster, METHOD(INVENTORY)) - asked, 8, 16);
    sim_serve_rule(w->loop, METHOD(INVENTORY), pass);
    sim_advance(6 * COMMON_NS_PER_S);
    SHOWS(repair, "running", "resting");
    SHOWS(repair, "resting", "queued");
    READS(cluster, session, 16, 16);
    sim_cluster_free(cluster);
}

static void a_session_that_cannot_be_repaired_can_be_deleted(void **state)
{
    (void)state;
    uint64_t session, innocent;
    struct sim_cluster *cluster = doubted(&session, &innocent);
    sim_serve_rule(cluster->workers[0]->loop, METHOD(INVENTORY), refuse);
    OK(sim_truncate(cluster->client, session, 16));
    OK(sim_delete(cluster->client, session));
    SHOWS(repair, "resting", "over");
    sim_serve_rule(cluster->workers[0]->loop, METHOD(INVENTORY), pass);
    READS(cluster, innocent, 4, 4);
    sim_advance(COMMON_NS_PER_S);
    assert_int_equal(sim_worker_tokens(cluster->workers[0], session, 0), 0);
    sim_cluster_free(cluster);
}

// To the worker it is still of the coordinator's life before, whose layout it had: nothing but a claim ends
// it.
static void a_session_whose_layout_was_never_taken_can_be_deleted(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    struct sim_worker *w = cluster->workers[0];
    uint64_t session = session_of(cluster, 32);
    sim_coordinator_kill(cluster);
    sim_serve_rule(w->loop, METHOD(LAYOUT_SET),
                   (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_RESOURCE_EXHAUSTED});
    restart(cluster);
    assert_true(sim_wait_active(cluster, 1));
    assert_int_equal(sim_worker_tokens(w, session, 0), 32);
    OK(sim_delete(cluster->client, session));
    sim_serve_rule(w->loop, METHOD(LAYOUT_SET), pass);
    sim_advance(COMMON_NS_PER_S);
    assert_int_equal(w->worker->sessions.count, 0);
    sim_cluster_free(cluster);
}

// So many sessions are asked for at a time, the others wait. A worker that registers gets everything anyway.
static void repairs_end_with_the_link_of_their_worker(void **state)
{
    (void)state;
    enum { SESSIONS = 40 };
    struct sim_cluster *cluster = cluster_of(1);
    struct sim_worker *w = cluster->workers[0];
    uint64_t sessions[SESSIONS];
    for (int i = 0; i < SESSIONS; i++)
        sessions[i] = session_of(cluster, 32);
    sim_run_until_idle();
    sim_serve_rule(w->loop, METHOD(INVENTORY), hold);
    sim_serve_rule(w->loop, METHOD(LAYOUT_SET),
                   (struct sim_rule){.verdict = SIM_FAIL, .times = SESSIONS, .code = COMMON_INTERNAL});
    for (int i = 0; i < SESSIONS; i++)
        OK(sim_truncate(cluster->client, sessions[i], 16));
    assert_int_equal(sim_serve_held(w->loop), 32);
    sim_serve_rule(w->loop, METHOD(INVENTORY), pass);
    sim_net_part(cluster->loop, w->loop);
    sim_advance(50 * COMMON_NS_PER_MS);
    SHOWS(repair, "queued", "over");
    sim_serve_let_go(w->loop);
    sim_net_mend(cluster->loop, w->loop);
    assert_true(sim_wait_active(cluster, 1));
    for (int i = 0; i < SESSIONS; i++)
        READS(cluster, sessions[i], 16, 16);
    assert_int_equal(tokens_held(cluster, sessions[0]), 16);
    sim_cluster_free(cluster);
}

// What a worker lost of one session, without having been away: it is said, and lasts.
static void what_a_repair_finds_missing_is_lost(void **state)
{
    (void)state;
    uint64_t session, innocent;
    struct sim_cluster *cluster = doubted(&session, &innocent);
    struct worker *w = cluster->workers[0]->worker;
    worker_session_drop(&w->sessions, w->store, session);
    OK(sim_truncate(cluster->client, session, 16));
    for (int restarts = 0; restarts < 2; restarts++) {
        struct sim_call *read = sim_read(cluster->client, session, 0, 15, 1);
        ENDS(COMMON_DATA_LOSS, read);
        assert_int_equal(read->count_missing, 16);
        READS(cluster, innocent, 4, 4);
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 1));
    }
    sim_cluster_free(cluster);
}

// The commit is durable, and its holder says that it is busy: the client gets OK, and steps over the rows
// wait until the holder has the commit.
static void a_commit_that_its_holder_did_not_hear_is_told_again(void **state)
{
    (void)state;
    uint64_t session, innocent;
    struct sim_cluster *cluster = doubted(&session, &innocent);
    struct sim_worker *w = cluster->workers[0];
    sim_serve_rule(w->loop, METHOD(LAYOUT_SET), pass);
    struct sim_call *open = sim_open(cluster->client, session, 32, 16);
    OK(open);
    OK(sim_put(cluster->client, open, 0, 32, 16, 3));
    sim_serve_rule(w->loop, METHOD(ROWS_COMMIT),
                   (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_RESOURCE_EXHAUSTED});
    sim_serve_rule(w->loop, METHOD(INVENTORY), hold);
    OK(sim_commit(cluster->client, session, 0, 32, 16));
    struct sim_call *read = sim_read(cluster->client, session, 0, 39, 1),
                    *truncate = sim_truncate(cluster->client, session, 40);
    sim_advance(100 * COMMON_NS_PER_MS);
    assert_false(read->done || truncate->done);
    assert_int_equal(sim_worker_tokens(w, session, 0), 32);
    READS(cluster, innocent, 4, 4);
    state_is(cluster, w, "active");
    sim_serve_rule(w->loop, METHOD(INVENTORY), pass);
    sim_serve_let_go(w->loop);
    OK(read);
    assert_float_equal(read->o, (32 + 8 * 3) / 40.f, 1e-4f);
    OK(truncate); // which would have made the holder forget rows that it had not heard to be committed
    READS(cluster, session, 40, 32 + 8 * 3);
    sim_cluster_free(cluster);
}

// A commit is durable and its holder does not have it. After the restart the holder refuses it at first: that
// other commits are over is no reason to release the rows (seed 179538998001429 of chaos_test).
static void what_a_worker_refuses_at_its_return_stays_frozen(void **state)
{
    (void)state;
    uint64_t session, innocent;
    struct sim_cluster *cluster = doubted(&session, &innocent);
    struct sim_worker *w = cluster->workers[0];
    sim_serve_rule(w->loop, METHOD(LAYOUT_SET), pass);
    struct sim_call *open = sim_open(cluster->client, session, 32, 16);
    OK(open);
    OK(sim_put(cluster->client, open, 0, 32, 16, 3));
    sim_disk_silence(SIM_DISK_PATH, true);
    struct sim_call *commit = sim_commit(cluster->client, session, 0, 32, 16);
    sim_advance(20 * COMMON_NS_PER_MS);
    assert_false(commit->done);
    sim_coordinator_kill(cluster);
    sim_disk_silence(SIM_DISK_PATH, false);
    sim_serve_rule(w->loop, METHOD(ROWS_COMMIT),
                   (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_RESOURCE_EXHAUSTED});
    restart(cluster);
    assert_true(sim_wait_active(cluster, 1));
    sim_advance(COMMON_NS_PER_S);
    READS(cluster, session, 48, 32 + 16 * 3);
    sim_cluster_free(cluster);
}

// The commit becomes durable while its session is repaired, after the holder got what was committed by then,
// and the holder is too busy to receive it.
static void what_becomes_durable_under_a_repair_stays_frozen(void **state)
{
    (void)state;
    uint64_t session, innocent;
    struct sim_cluster *cluster = doubted(&session, &innocent);
    struct sim_worker *w = cluster->workers[0];
    sim_serve_rule(w->loop, METHOD(LAYOUT_SET), pass);
    struct sim_call *open = sim_open(cluster->client, session, 32, 16);
    OK(open);
    OK(sim_put(cluster->client, open, 0, 32, 16, 3));
    sim_disk_stall(SIM_DISK_PATH, true);
    struct sim_call *commit = sim_commit(cluster->client, session, 0, 32, 16);
    sim_run_until_idle();
    sim_serve_rule(w->loop, METHOD(ROWS_COMMIT), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct coordinator_sessions *sessions = &cluster->coordinator->sessions;
    coordinator_session_doubt(coordinator_session_find(sessions, session), sessions->cluster->workers[0]);
    sim_run_until_idle();
    assert_int_equal(sim_serve_held(w->loop), 1); // the word of the repair
    sim_serve_rule(w->loop, METHOD(ROWS_COMMIT),
                   (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_RESOURCE_EXHAUSTED});
    sim_disk_stall(SIM_DISK_PATH, false);
    OK(commit);
    sim_serve_let_go(w->loop);
    sim_advance(COMMON_NS_PER_S);
    READS(cluster, session, 48, 32 + 16 * 3);
    sim_cluster_free(cluster);
}

// The rows that it has frozen are free again, for this session; another one's commit under way keeps its own.
static void an_abort_that_its_holder_did_not_hear_is_told_again(void **state)
{
    (void)state;
    uint64_t session, innocent;
    struct sim_cluster *cluster = doubted(&session, &innocent);
    struct sim_worker *w = cluster->workers[0];
    sim_serve_rule(w->loop, METHOD(LAYOUT_SET), pass);
    struct sim_call *open = sim_open(cluster->client, session, 32, 16),
                    *beside = sim_open(cluster->client, innocent, 16, 16);
    OK(open);
    OK(beside);
    OK(sim_put(cluster->client, open, 0, 32, 8, 3));
    OK(sim_put(cluster->client, beside, 0, 16, 16, 2));
    sim_disk_stall(SIM_DISK_PATH, true);
    struct sim_call *commit = sim_commit(cluster->client, innocent, 0, 16, 16); // its number is the lower one
    sim_run_until_idle();
    sim_serve_rule(w->loop, METHOD(ROWS_ABORT),
                   (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_RESOURCE_EXHAUSTED});
    ENDS(COMMON_FAILED_PRECONDITION, sim_commit(cluster->client, session, 0, 32, 16)); // a hole
    sim_run_until_idle();
    OK(sim_put(cluster->client, open, 0, 32, 8, 5)); // other bytes
    ENDS(COMMON_FAILED_PRECONDITION, sim_put(cluster->client, beside, 0, 16, 16, 4));
    sim_disk_stall(SIM_DISK_PATH, false);
    OK(commit);
    state_is(cluster, w, "active");
    sim_cluster_free(cluster);
}

// ---- Register -------------------------------------------------------------------------------------------

// A visit that takes longer than a Register may: the worker sends heartbeats meanwhile. When it registers
// once more (here because a heartbeat was refused), the visit goes on.
static void a_visit_outlasts_a_register(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    struct sim_worker *w = cluster->workers[0];
    uint64_t session = session_of(cluster, 20);
    struct common_error err;
    sim_coordinator_kill(cluster);
    sim_run_until_idle();
    sim_serve_rule(w->loop, METHOD(INVENTORY), hold);
    assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
    sim_advance(7 * COMMON_NS_PER_S);
    uint64_t registered = sim_serve_seen(cluster->loop, METHOD(REGISTER));
    state_is(cluster, w, "joining");
    assert_int_equal(sim_serve_held(w->loop), 1);
    sim_serve_rule(cluster->loop, METHOD(HEARTBEAT),
                   (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_NOT_FOUND});
    sim_advance(500 * COMMON_NS_PER_MS);
    assert_int_equal(sim_serve_seen(cluster->loop, METHOD(REGISTER)), registered + 1);
    assert_int_equal(sim_serve_held(w->loop), 1); // not asked again
    state_is(cluster, w, "joining");
    sim_serve_rule(w->loop, METHOD(INVENTORY), pass);
    sim_serve_let_go(w->loop);
    sim_run_until_idle();
    state_is(cluster, w, "active");
    assert_int_equal(sim_edge_taken(&coordinator_worker_machine, "joining", "lost"), 0);
    READS(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

int hermetic_reconcile(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_repair_that_keeps_failing_is_an_error_of_its_session),
        cmocka_unit_test(a_session_that_cannot_be_repaired_can_be_deleted),
        cmocka_unit_test(a_session_whose_layout_was_never_taken_can_be_deleted),
        cmocka_unit_test(repairs_end_with_the_link_of_their_worker),
        cmocka_unit_test(what_a_repair_finds_missing_is_lost),
        cmocka_unit_test(a_commit_that_its_holder_did_not_hear_is_told_again),
        cmocka_unit_test(what_a_worker_refuses_at_its_return_stays_frozen),
        cmocka_unit_test(what_becomes_durable_under_a_repair_stays_frozen),
        cmocka_unit_test(an_abort_that_its_holder_did_not_hear_is_told_again),
        cmocka_unit_test(a_visit_outlasts_a_register),
        cmocka_unit_test(a_session_of_many_ranges_is_told_in_a_few_messages),
        cmocka_unit_test(many_sessions_of_many_layers_are_told_in_a_few_messages),
        cmocka_unit_test(a_session_that_changes_under_a_visit_is_told_again_alone),
        cmocka_unit_test(a_truncate_on_a_full_worker_is_nobody_elses_matter),
    };
    return cmocka_run_group_tests_name("reconcile", tests, NULL, NULL);
}
