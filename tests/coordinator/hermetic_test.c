// SPDX-License-Identifier: Apache-2.0
// The whole coordinator in one thread: simulated time, links and disk, real workers (tests/sim). Losses,
// retries, truncations and restarts in an order that a test chooses.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "tests/sim/sim_cluster.h"

#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name

// Waits for a call and says what it said when that is not what was wanted.
#define ENDS(want, made)                                                                                     \
    do {                                                                                                     \
        struct sim_call *ends = (made);                                                                      \
        enum common_code got = sim_wait(ends);                                                               \
        if (got != (want))                                                                                   \
            fail_msg("%s: %s: %s (%s)", #made, common_code_name(got), ends->text, ends->reason);             \
    } while (0)
#define OK(made) ENDS(COMMON_OK, made)

static struct sim_cluster *cluster_of(uint32_t workers)
{
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = workers});
    sim_cluster_start(cluster);
    return cluster;
}

// A session over all workers, with so many tokens in layer 0, 16 in each chunk.
static uint64_t session_of(struct sim_cluster *cluster, uint32_t tokens)
{
    struct sim_shape shape = {.members = cluster->options.workers};
    struct sim_call *call = sim_create(cluster->client, shape, "");
    OK(call);
    uint64_t session = call->session;
    for (uint32_t at = 0; at < tokens; at += 16)
        OK(sim_append(cluster->client, session, 0, at, tokens - at < 16 ? tokens - at : 16, 1));
    return session;
}

static uint64_t length_of(struct sim_cluster *cluster, uint64_t session)
{
    struct sim_call *call = sim_info(cluster->client, session);
    OK(call);
    return call->length;
}

// The one worker that holds the chunk at this position.
static struct sim_worker *holder_of(struct sim_cluster *cluster, uint64_t session, uint64_t position)
{
    struct sim_worker *holder = NULL;
    for (uint32_t i = 0; i < cluster->options.workers; i++) {
        if (sim_worker_holds(cluster->workers[i], session, position)) {
            assert_null(holder);
            holder = cluster->workers[i];
        }
    }
    assert_non_null(holder);
    return holder;
}

// What a read at the last of `rows` positions must answer: the mean of the values below it.
#define READS(cluster, session, rows, sum)                                                                   \
    do {                                                                                                     \
        struct sim_call *reads = sim_read((cluster)->client, session, 0, (rows)-1, 1);                       \
        OK(reads);                                                                                           \
        assert_float_equal(reads->o, (float)(sum) / (float)(rows), 1e-4f);                                   \
    } while (0)

static uint64_t tokens_held(struct sim_cluster *cluster, uint64_t session)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < cluster->options.workers; i++)
        n += sim_worker_tokens(cluster->workers[i], session, 0);
    return n;
}

// ---- the ordinary way -----------------------------------------------------------------------------------

static void two_workers_hold_a_session(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 64);
    struct sim_call *read = sim_read(cluster->client, session, 0, 63, 1);
    OK(read);
    assert_int_equal(read->length, 64);
    READS(cluster, session, 64, 64);
    assert_int_equal(length_of(cluster, session), 64);
    assert_int_equal(tokens_held(cluster, session), 64);
    for (int i = 0; i < 2; i++)
        assert_true(sim_worker_tokens(cluster->workers[i], session, 0) > 0);
    ENDS(COMMON_OUT_OF_RANGE, sim_read(cluster->client, session, 0, 64, 1));
    ENDS(COMMON_OUT_OF_RANGE, sim_append(cluster->client, session, 0, 65, 1, 1));
    OK(sim_delete(cluster->client, session));
    ENDS(COMMON_NOT_FOUND, sim_read(cluster->client, session, 0, 0, 1));
    sim_run_until_idle();
    assert_int_equal(tokens_held(cluster, session), 0);
    sim_cluster_free(cluster);
}

static void rows_are_attached_and_committed(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 0);
    struct sim_call *opened = sim_open(cluster->client, session, 0, 40);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 0, 30, 6));
    struct sim_call *commit = sim_commit(cluster->client, session, 0, 0, 40);
    ENDS(COMMON_FAILED_PRECONDITION, commit);
    assert_string_equal(commit->reason, "HOLE");
    assert_int_equal(commit->first_missing, 30);
    assert_int_equal(commit->count_missing, 10);
    OK(sim_put(cluster->client, opened, 0, 30, 10, 2));
    commit = sim_commit(cluster->client, session, 0, 0, 40);
    OK(commit);
    assert_int_equal(commit->length, 40);
    READS(cluster, session, 40, 30 * 6 + 10 * 2);
    OK(sim_append(cluster->client, session, 0, 40, 1, 1));
    READS(cluster, session, 41, 30 * 6 + 10 * 2 + 1);
    sim_cluster_free(cluster);
}

static void a_fork_shares_what_was_there(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_call *fork = sim_fork(cluster->client, session, 20, "");
    OK(fork);
    OK(sim_read(cluster->client, fork->session, 0, 19, 1));
    ENDS(COMMON_OUT_OF_RANGE, sim_read(cluster->client, fork->session, 0, 20, 1));
    OK(sim_append(cluster->client, fork->session, 0, 20, 4, 9));
    READS(cluster, session, 40, 40);
    READS(cluster, fork->session, 24, 20 + 4 * 9);
    assert_int_equal(length_of(cluster, fork->session), 24);
    assert_int_equal(length_of(cluster, session), 40);
    OK(sim_delete(cluster->client, session));
    READS(cluster, fork->session, 24, 20 + 4 * 9);
    sim_cluster_free(cluster);
}

// ---- losses ---------------------------------------------------------------------------------------------

static void cut(struct sim_cluster *cluster, const struct sim_worker *worker)
{
    sim_net_cut(cluster->loop, worker->loop);
}

// The tree's edge breaks under a step: the workers stay ACTIVE, and the step goes again.
static void an_append_outlives_a_broken_edge(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_worker *w = cluster->workers[0], *other = cluster->workers[1];
    uint64_t seen = sim_serve_seen(w->loop, METHOD(STEP)) + sim_serve_seen(other->loop, METHOD(STEP));
    sim_serve_rule(w->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    sim_serve_rule(other->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct sim_call *append = sim_append(cluster->client, session, 0, 40, 1, 2);
    sim_run_until_idle();
    assert_int_equal(sim_serve_held(w->loop) + sim_serve_held(other->loop), 1); // the root's
    struct sim_worker *root = sim_serve_held(w->loop) ? w : other,
                      *child = sim_serve_held(w->loop) ? other : w;
    sim_serve_let_go(root->loop);
    sim_run_until_idle();
    assert_int_equal(sim_serve_held(child->loop), 1);
    sim_net_cut(root->loop, child->loop);
    OK(append);
    assert_int_equal(append->length, 41);
    assert_true(sim_serve_seen(w->loop, METHOD(STEP)) + sim_serve_seen(other->loop, METHOD(STEP)) >=
                seen + 4);
    sim_serve_let_go(child->loop); // late, and of an attempt that is over
    sim_run_until_idle();
    READS(cluster, session, 41, 40 + 2);
    assert_int_equal(tokens_held(cluster, session), 41);
    sim_cluster_free(cluster);
}

// The coordinator's own link to the holder breaks: until it is back nobody can say what was stored.
static void an_append_on_a_broken_link_fails_and_may_come_again(void **state)
{
    (void)state;
    for (int did = 0; did < 2; did++) { // whether the holder stores the rows after all
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 20);
        struct sim_worker *holder = holder_of(cluster, session, 20);
        sim_serve_rule(holder->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
        struct sim_call *append = sim_append(cluster->client, session, 0, 20, 1, 2);
        sim_run_until_idle();
        assert_int_equal(sim_serve_held(holder->loop), 1);
        sim_net_cut(NULL, holder->loop);
        if (did)
            sim_serve_let_go(holder->loop);
        ENDS(COMMON_UNAVAILABLE, append);
        assert_string_equal(append->reason, "MISSING_RANGE");
        sim_advance(COMMON_NS_PER_S);
        assert_int_equal(length_of(cluster, session), 20);
        OK(sim_append(cluster->client, session, 0, 20, 1,
                      3));              // other bytes: the first never were acknowledged
        sim_serve_let_go(holder->loop); // overtaken
        sim_run_until_idle();
        OK(sim_append(cluster->client, session, 0, 20, 1, 3)); // the same bytes again change nothing
        ENDS(COMMON_FAILED_PRECONDITION, sim_append(cluster->client, session, 0, 20, 1, 2));
        assert_int_equal(length_of(cluster, session), 21);
        READS(cluster, session, 21, 20 + 3);
        sim_cluster_free(cluster);
    }
}

static void an_append_fails_while_its_holder_is_away(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    struct sim_worker *holder = holder_of(cluster, session, 20);
    sim_net_part(NULL, holder->loop);
    sim_advance(COMMON_NS_PER_S); // the grace is over
    struct sim_call *append = sim_append(cluster->client, session, 0, 20, 1, 2);
    ENDS(COMMON_UNAVAILABLE, append);
    assert_string_equal(append->reason, "MISSING_RANGE");
    ENDS(COMMON_UNAVAILABLE, sim_read(cluster->client, session, 0, 19, 1));
    assert_int_equal(length_of(cluster, session), 20);
    sim_net_mend(NULL, holder->loop);
    assert_true(sim_wait_active(cluster, 2));
    OK(sim_append(cluster->client, session, 0, 20, 1, 3)); // other bytes: the first ones never were
    READS(cluster, session, 21, 20 + 3);
    sim_cluster_free(cluster);
}

static void what_a_dead_worker_held_is_lost_and_said_so(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 64);
    sim_worker_kill(cluster->workers[1]);
    sim_advance(COMMON_NS_PER_S);
    struct sim_call *read = sim_read(cluster->client, session, 0, 63, 1);
    ENDS(COMMON_UNAVAILABLE, read);
    sim_worker_start(cluster->workers[1]);
    assert_true(sim_wait_active(cluster, 2));
    read = sim_read(cluster->client, session, 0, 63, 1);
    ENDS(COMMON_DATA_LOSS, read);
    assert_true(read->count_missing > 0);
    sim_cluster_free(cluster);
}

// New chunks of the range find a place, an old one's holder has not come back: the client must not be sent to it.
static void an_attach_beside_a_holder_that_is_away_is_refused(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 16);
    struct sim_worker *holder = holder_of(cluster, session, 0);
    struct common_error err;
    sim_net_part(NULL, holder->loop);
    sim_coordinator_kill(cluster); // its next life knows the holder by name alone
    sim_run_until_idle();
    assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
    assert_true(sim_wait_active(cluster, 1));
    struct sim_call *opened = sim_open(cluster->client, session, 0, 40);
    ENDS(COMMON_UNAVAILABLE, opened);
    assert_string_equal(opened->reason, "MISSING_RANGE");
    assert_int_equal(opened->first_missing, 0);
    assert_int_equal(opened->count_missing, 16);
    sim_net_mend(NULL, holder->loop);
    assert_true(sim_wait_active(cluster, 2));
    OK(sim_open(cluster->client, session, 0, 40));
    sim_cluster_free(cluster);
}

// ---- retries --------------------------------------------------------------------------------------------

static void a_step_is_tried_again(void **state)
{
    static const struct {
        const char *what;
        enum common_code code;
        const char *reason;
    } cases[] = {
        {"the worker is leaving", COMMON_UNAVAILABLE, ""},
        {"the plan is old", COMMON_ABORTED, "OLD_EPOCH"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 20);
        uint64_t seen = sim_serve_seen(cluster->workers[0]->loop, METHOD(STEP)) +
                        sim_serve_seen(cluster->workers[1]->loop, METHOD(STEP));
        for (int w = 0; w < 2; w++)
            sim_serve_rule(cluster->workers[w]->loop, METHOD(STEP),
                           (struct sim_rule){.verdict = SIM_FAIL,
                                             .times = 1,
                                             .code = cases[i].code,
                                             .reason = cases[i].reason});
        struct sim_call *append = sim_append(cluster->client, session, 0, 20, 1, 2);
        if (sim_wait(append) != COMMON_OK)
            fail_msg("%s: %s", cases[i].what, append->text);
        assert_int_equal(append->length, 21);
        READS(cluster, session, 21, 20 + 2);
        assert_true(sim_serve_seen(cluster->workers[0]->loop, METHOD(STEP)) +
                        sim_serve_seen(cluster->workers[1]->loop, METHOD(STEP)) >
                    seen + 2);
        sim_cluster_free(cluster);
    }
}

static void a_step_ends_at_its_deadline(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    for (int w = 0; w < 2; w++)
        sim_serve_rule(cluster->workers[w]->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    sim_client_deadline(cluster->client, COMMON_NS_PER_S);
    uint64_t start = sim_clock();
    struct sim_call *read = sim_read(cluster->client, session, 0, 19, 1);
    ENDS(COMMON_DEADLINE_EXCEEDED, read);
    assert_int_equal(read->done_ns, start + COMMON_NS_PER_S);
    for (int w = 0; w < 2; w++)
        sim_serve_rule(cluster->workers[w]->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    OK(sim_read(cluster->client, session, 0, 19, 1));
    sim_cluster_free(cluster);
}

// ---- truncation -----------------------------------------------------------------------------------------

static void a_truncate_waits_for_steps_and_steps_for_it(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    for (int w = 0; w < 2; w++)
        sim_serve_rule(cluster->workers[w]->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    struct sim_call *before = sim_read(cluster->client, session, 0, 39, 1);
    sim_run_until_idle();
    struct sim_call *truncate = sim_truncate(cluster->client, session, 20);
    struct sim_call *past = sim_read(cluster->client, session, 0, 39, 1);
    struct sim_call *within = sim_read(cluster->client, session, 0, 19, 1);
    struct sim_call *append = sim_append(cluster->client, session, 0, 20, 2, 7);
    sim_run_until_idle();
    assert_false(before->done || truncate->done || past->done || within->done || append->done);
    for (int w = 0; w < 2; w++) {
        sim_serve_rule(cluster->workers[w]->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
        sim_serve_let_go(cluster->workers[w]->loop);
    }
    OK(before);
    OK(truncate);
    assert_int_equal(truncate->incarnation, 2);
    ENDS(COMMON_OUT_OF_RANGE, past);
    OK(within);
    OK(append);
    assert_int_equal(append->length, 22);
    READS(cluster, session, 22, 20 + 2 * 7);
    assert_int_equal(length_of(cluster, session), 22);
    sim_cluster_free(cluster);
}

// ---- the store and restarts -----------------------------------------------------------------------------

static void a_restarted_coordinator_learns_from_its_workers(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct common_error err;
    sim_coordinator_kill(cluster);
    sim_advance(COMMON_NS_PER_S);
    struct sim_call *read = sim_read(cluster->client, session, 0, 39, 1); // waits for it
    assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
    OK(read);
    assert_int_equal(length_of(cluster, session), 40); // appended rows are in no store
    OK(sim_append(cluster->client, session, 0, 40, 1, 1));
    assert_int_equal(tokens_held(cluster, session), 41);
    READS(cluster, session, 41, 41);
    sim_cluster_free(cluster);
}

static void an_append_under_way_at_a_kill_is_there_or_not(void **state)
{
    (void)state;
    for (int stored = 0; stored < 2; stored++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 20);
        struct common_error err;
        if (stored) // the workers have the rows, their answer is on its way for ever
            for (int w = 0; w < 2; w++)
                sim_net_hold(cluster->workers[w]->loop, cluster->loop);
        else
            for (int w = 0; w < 2; w++)
                sim_net_hold(cluster->loop, cluster->workers[w]->loop);
        struct sim_call *append = sim_append(cluster->client, session, 0, 20, 1, 2);
        sim_run_until_idle();
        sim_advance(10 * COMMON_NS_PER_MS);
        assert_false(append->done);
        sim_coordinator_kill(cluster);
        sim_net_heal();
        ENDS(COMMON_UNAVAILABLE, append);
        assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
        OK(sim_append(cluster->client, session, 0, 20, 1, 2)); // again, with the same bytes
        assert_int_equal(length_of(cluster, session), 21);
        READS(cluster, session, 21, 20 + 2);
        sim_cluster_free(cluster);
    }
}

static void a_create_that_the_store_refuses_leaves_no_name(void **state)
{
    static const enum common_code codes[] = {COMMON_RESOURCE_EXHAUSTED, COMMON_UNAVAILABLE};
    (void)state;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        struct sim_cluster *cluster = cluster_of(1);
        struct common_error err;
        sim_disk_fail(SIM_DISK_PATH, 1, codes[i]);
        struct sim_call *refused = sim_create(cluster->client, (struct sim_shape){0}, "name");
        struct sim_call *taken = sim_create(cluster->client, (struct sim_shape){0}, "name");
        ENDS(codes[i], refused);
        ENDS(COMMON_ALREADY_EXISTS, taken); // it was taken while the first was being written
        struct sim_call *created = sim_create(cluster->client, (struct sim_shape){0}, "name");
        OK(created);
        sim_coordinator_kill(cluster);
        sim_run_until_idle();
        assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
        OK(sim_info(cluster->client, created->session));
        sim_cluster_free(cluster);
    }
}

static void a_create_that_was_durable_and_unanswered_is_there_after_a_restart(void **state)
{
    (void)state;
    for (int durable = 0; durable < 2; durable++) {
        struct sim_cluster *cluster = cluster_of(1);
        struct common_error err;
        if (durable)
            sim_disk_silence(SIM_DISK_PATH, true);
        else
            sim_disk_stall(SIM_DISK_PATH, true);
        struct sim_call *create = sim_create(cluster->client, (struct sim_shape){0}, "name");
        sim_run_until_idle();
        assert_false(create->done);
        sim_coordinator_kill(cluster);
        ENDS(COMMON_UNAVAILABLE, create);
        assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
        ENDS(durable ? COMMON_ALREADY_EXISTS : COMMON_OK,
             sim_create(cluster->client, (struct sim_shape){0}, "name"));
        sim_cluster_free(cluster);
    }
}

// ---- the same again -------------------------------------------------------------------------------------

static uint64_t trace_of(uint64_t seed)
{
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 3, .seed = seed, .team = true});
    sim_shuffle(true);
    sim_net_delay(10 * COMMON_NS_PER_US, 500 * COMMON_NS_PER_US);
    sim_cluster_start(cluster);
    uint64_t session = session_of(cluster, 48);
    struct sim_call *calls[8];
    for (uint32_t i = 0; i < 8; i++)
        calls[i] = i % 2 ? sim_read(cluster->client, session, 0, 40 + i, 1)
                         : sim_append(cluster->client, session, 0, 48 + i / 2, 1, 3);
    cut(cluster, cluster->workers[0]);
    for (uint32_t i = 0; i < 8; i++)
        assert_true(sim_wait(calls[i]) != COMMON_IN_PROGRESS);
    uint64_t trace = sim_trace();
    sim_cluster_free(cluster);
    return trace;
}

static void a_seed_gives_the_same_run(void **state)
{
    (void)state;
    uint64_t first = trace_of(1);
    assert_true(trace_of(1) == first);
    assert_true(trace_of(2) != first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_workers_hold_a_session),
        cmocka_unit_test(rows_are_attached_and_committed),
        cmocka_unit_test(a_fork_shares_what_was_there),
        cmocka_unit_test(an_append_outlives_a_broken_edge),
        cmocka_unit_test(an_append_on_a_broken_link_fails_and_may_come_again),
        cmocka_unit_test(an_append_fails_while_its_holder_is_away),
        cmocka_unit_test(what_a_dead_worker_held_is_lost_and_said_so),
        cmocka_unit_test(an_attach_beside_a_holder_that_is_away_is_refused),
        cmocka_unit_test(a_step_is_tried_again),
        cmocka_unit_test(a_step_ends_at_its_deadline),
        cmocka_unit_test(a_truncate_waits_for_steps_and_steps_for_it),
        cmocka_unit_test(a_restarted_coordinator_learns_from_its_workers),
        cmocka_unit_test(an_append_under_way_at_a_kill_is_there_or_not),
        cmocka_unit_test(a_create_that_the_store_refuses_leaves_no_name),
        cmocka_unit_test(a_create_that_was_durable_and_unanswered_is_there_after_a_restart),
        cmocka_unit_test(a_seed_gives_the_same_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
