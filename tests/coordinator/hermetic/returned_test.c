// SPDX-License-Identifier: Apache-2.0
// Workers that come back after their copies were removed, with sealed chunks that they still have
// (coordinator/sync/returned.h).
#include "coordinator/check/seals.h"
#include "coordinator/place/moves.h"
#include "tests/coordinator/hermetic/hermetic.h"
#include "tests/coordinator/hermetic/sealed.h"

#include "coordinator/cluster/membership.h"
#include "coordinator/sync/returned.h"
#include "worker/core/state.h"

#define SECOND COMMON_NS_PER_S

enum { FULL = 4, TOKENS = FULL * 16 + 6 }; // of each session: sealed chunks, and a begun one

static struct coordinator_worker *worker_of(struct sim_cluster *cluster, const struct sim_worker *worker)
{
    return coordinator_worker_find(&cluster->coordinator->cluster, worker->name);
}

static uint64_t returned(struct sim_cluster *cluster)
{
    return cluster->coordinator->sessions.returned_chunks;
}

static uint64_t copied_bytes(struct sim_cluster *cluster)
{
    return cluster->coordinator->sessions.moves->bytes;
}

static uint64_t sealed_of(struct sim_cluster *cluster, uint32_t replicas)
{
    uint64_t session = filled_of(cluster, replicas, TOKENS);
    for (int i = 0;; i++) {
        const struct coordinator_layout *layout = &kept_of(cluster, session)->layout;
        uint32_t n = 0;
        for (uint32_t k = 0; k < layout->n; k++)
            n += layout->chunks[k].seal != 0;
        if (n == FULL)
            return session;
        assert_true(i < 200);
        sim_advance(100 * COMMON_NS_PER_MS);
    }
}

static bool is_whole(struct sim_cluster *cluster, uint64_t session)
{
    struct coordinator_session *s = kept_of(cluster, session);
    return !coordinator_session_has_missing(s) && !s->thin && !s->thick && !s->awaited && !s->moves &&
           !s->returned;
}

static void wait_whole(struct sim_cluster *cluster, uint64_t session)
{
    for (int i = 0; !is_whole(cluster, session); i++) {
        if (i == 500)
            fail_msg("the copies do not come back");
        sim_advance(100 * COMMON_NS_PER_MS);
    }
}

static void all_are_right(struct sim_cluster *cluster, uint64_t session, uint64_t length)
{
    uint64_t before = cluster->coordinator->sessions.seals->corrupt;
    struct sim_call *call = sealed_scrub(cluster, session);
    assert_int_equal(call->lost, 0);
    assert_int_equal(call->corrupt, before);
    for (uint64_t at = 1; at <= length; at++)
        READS(cluster, session, at, at);
}

// The coordinator does not see it until its copies are removed.
static void away(struct sim_cluster *cluster, struct sim_worker *worker, uint64_t session)
{
    sim_net_part(cluster->loop, worker->loop);
    for (int i = 0;
         worker_of(cluster, worker)->state != COORDINATOR_WORKER_LOST || kept_of(cluster, session)->awaited;
         i++) {
        assert_true(i < 200);
        sim_advance(100 * COMMON_NS_PER_MS);
    }
    sim_advance(SECOND);
    for (uint32_t k = 0; k < kept_of(cluster, session)->layout.n; k++)
        assert_int_equal(coordinator_chunk_copy_at(&kept_of(cluster, session)->layout.chunks[k],
                                                   worker_of(cluster, worker)),
                         COORDINATOR_COPIES_MAX);
}

static void back(struct sim_cluster *cluster, struct sim_worker *worker)
{
    sim_net_mend(cluster->loop, worker->loop);
    assert_true(sim_wait_active(cluster, cluster->options.workers));
}

static struct sim_worker *not_of(struct sim_cluster *cluster, const struct sim_worker *worker)
{
    return cluster->workers[worker == cluster->workers[0]];
}

// Its memory has what was sealed: that does not travel. What was not sealed does, from the other one, which
// has more by now.
static void a_copy_that_comes_back_counts(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 2; which++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = sealed_of(cluster, 2);
        struct sim_worker *victim = cluster->workers[which];
        away(cluster, victim, session);
        OK(sim_append(cluster->client, session, 0, TOKENS, 4, 1));
        back(cluster, victim);
        wait_whole(cluster, session);
        assert_int_equal(returned(cluster), FULL);
        // 10 rows of the begun chunk
        assert_int_equal(copied_bytes(cluster), 10 * kept_of(cluster, session)->token_bytes);
        all_are_right(cluster, session, TOKENS + 4);
        sim_worker_kill(not_of(cluster, victim));
        READS(cluster, session, TOKENS + 4, TOKENS + 4);
        sim_cluster_free(cluster);
    }
}

// What is left is found to be wrong once there is another one, and not before.
static void what_is_left_is_wrong(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 40; moment++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = sealed_of(cluster, 2);
        struct sim_worker *victim = cluster->workers[moment % 2], *left = not_of(cluster, victim);
        away(cluster, victim, session);
        assert_true(sim_worker_flip_chunk(left, kept_of(cluster, session)->layout.chunks[1].id, 0, 5, 22));
        back(cluster, victim);
        sim_advance(moment * 20 * COMMON_NS_PER_US);
        struct sim_call *call = sealed_scrub(cluster, session);
        assert_int_equal(call->lost, 0);
        assert_int_equal(call->corrupt, 1);
        wait_whole(cluster, session);
        all_are_right(cluster, session, TOKENS);
        sim_cluster_free(cluster);
    }
}

// It does not count, and another copy is made.
static void what_comes_back_is_wrong(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = sealed_of(cluster, 2);
    struct sim_worker *victim = cluster->workers[1];
    away(cluster, victim, session);
    assert_true(sim_worker_flip_chunk(victim, kept_of(cluster, session)->layout.chunks[1].id, 0, 5, 22));
    back(cluster, victim);
    wait_whole(cluster, session);
    assert_true(returned(cluster) < FULL);
    assert_true(copied_bytes(cluster) >= 16 * kept_of(cluster, session)->token_bytes);
    all_are_right(cluster, session, TOKENS);
    sim_worker_kill(cluster->workers[0]);
    READS(cluster, session, TOKENS, TOKENS);
    sim_cluster_free(cluster);
}

// It is away with a row of an append that failed, in the place of which another one has come since: 7 and 3.
// False: it was not given the row.
static bool away_with_another_row(struct sim_cluster *cluster, struct sim_worker *victim, uint64_t session,
                                  uint64_t at)
{
    struct sim_worker *left = not_of(cluster, victim);
    sim_serve_rule(left->loop, METHOD(STEP),
                   (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_UNAVAILABLE});
    struct sim_call *append = sim_append(cluster->client, session, 0, at, 1, 7);
    sim_run_until_idle();
    bool given = sim_worker_tokens(victim, session, 0) == at + 1;
    sim_net_part(cluster->loop, victim->loop);
    sim_cancel(append);
    sim_serve_rule(left->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    away(cluster, victim, session);
    OK(sim_append(cluster->client, session, 0, at, 1, 3));
    return given;
}

// A full chunk without a seal may end with rows of an append that failed.
static void what_is_not_sealed_is_not_kept(void **state)
{
    (void)state;
    uint32_t differ = 0;
    for (uint32_t which = 0; which < 2; which++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = filled_of(cluster, 2, 63);
        struct sim_worker *victim = cluster->workers[which];
        rule_all(cluster, METHOD(CHUNK_SUM),
                 (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_UNAVAILABLE});
        differ += away_with_another_row(cluster, victim, session, 63);
        back(cluster, victim);
        rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_DO});
        wait_whole(cluster, session);
        all_are_right(cluster, session, 63);
        READS(cluster, session, 64, 66);
        sim_worker_kill(not_of(cluster, victim));
        READS(cluster, session, 64, 66);
        sim_cluster_free(cluster);
    }
    assert_true(differ > 0);
}

// A worker of an older build cannot say what its copy is: it is made again.
static void an_older_worker_keeps_nothing(void **state)
{
    (void)state;
    uint32_t differ = 0;
    for (uint32_t which = 0; which < 2; which++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = filled_of(cluster, 2, 63);
        struct sim_worker *victim = cluster->workers[which];
        differ += away_with_another_row(cluster, victim, session, 63);
        sim_advance(10 * SECOND);
        assert_int_not_equal(kept_of(cluster, session)->layout.chunks[3].seal, 0);
        sim_serve_rule(victim->loop, METHOD(CHUNK_SUM),
                       (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_UNIMPLEMENTED});
        back(cluster, victim);
        wait_whole(cluster, session);
        assert_int_equal(returned(cluster), 0);
        sim_worker_kill(not_of(cluster, victim));
        READS(cluster, session, 64, 66);
        sim_cluster_free(cluster);
    }
    assert_true(differ > 0);
}

// An operator drains the worker, and changes his mind, while what it has come back with is being taken up.
static void it_is_drained_meanwhile(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 150; moment++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = sealed_of(cluster, 2);
        struct sim_worker *victim = cluster->workers[moment % 2];
        away(cluster, victim, session);
        sim_net_mend(cluster->loop, victim->loop);
        sim_advance(moment * 15 * COMMON_NS_PER_US);
        OK(sim_drain(cluster->client, victim->name, false));
        sim_advance((moment % 3) * SECOND);
        OK(sim_drain(cluster->client, victim->name, true));
        assert_true(sim_wait_active(cluster, 2));
        wait_whole(cluster, session);
        sim_worker_kill(not_of(cluster, victim));
        READS(cluster, session, TOKENS, TOKENS);
        sim_cluster_free(cluster);
    }
}

// The store takes that it is a holder again later than it keeps what is not taken up.
static void the_store_is_slow_meanwhile(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 2; which++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = sealed_of(cluster, 2);
        struct sim_worker *victim = cluster->workers[which];
        away(cluster, victim, session);
        sim_disk_stall(SIM_DISK_PATH, true);
        back(cluster, victim);
        sim_advance(45 * SECOND);
        sim_disk_stall(SIM_DISK_PATH, false);
        wait_whole(cluster, session);
        assert_int_equal(tokens_held(cluster, session), 2 * TOKENS);
        sim_worker_kill(not_of(cluster, victim));
        READS(cluster, session, TOKENS, TOKENS);
        sim_cluster_free(cluster);
    }
}

// A process that was killed brings what its files have.
static void files_come_back(void **state)
{
    (void)state;
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .store = true});
    sim_cluster_start(cluster);
    uint64_t session = sealed_of(cluster, 2);
    struct sim_worker *victim = cluster->workers[1];
    sim_worker_kill(victim);
    for (int i = 0; kept_of(cluster, session)->thin < FULL; i++) {
        assert_true(i < 200);
        sim_advance(100 * COMMON_NS_PER_MS);
    }
    OK(sim_append(cluster->client, session, 0, TOKENS, 4, 1));
    sim_worker_start(victim);
    assert_true(sim_wait_active(cluster, 2));
    wait_whole(cluster, session);
    assert_int_equal(returned(cluster), FULL);
    all_are_right(cluster, session, TOKENS + 4);
    sim_worker_kill(cluster->workers[0]);
    READS(cluster, session, TOKENS + 4, TOKENS + 4);
    sim_cluster_free(cluster);
}

// The session has another history by then: only chunks of this one count.
static void a_session_was_cut_meanwhile(void **state)
{
    (void)state;
    for (uint64_t cut = 0; cut <= TOKENS; cut += 5)
        for (uint32_t when = 0; when < 12; when++) { // before it is back, or ever later
            struct sim_cluster *cluster = cluster_of(2);
            uint64_t session = sealed_of(cluster, 2);
            struct sim_worker *victim = cluster->workers[cut % 2];
            away(cluster, victim, session);
            if (when > 0) {
                sim_net_mend(cluster->loop, victim->loop);
                while (!kept_of(cluster, session)->returned)
                    sim_advance(5 * COMMON_NS_PER_US);
                sim_advance((when - 1) * 10 * COMMON_NS_PER_US);
            }
            OK(sim_truncate(cluster->client, session, cut));
            OK(sim_append(cluster->client, session, 0, cut, 20, 3));
            back(cluster, victim);
            wait_whole(cluster, session);
            // What it has heard to be acknowledged is of this history
            const struct worker_session *held = worker_map_get(&victim->worker->sessions, session);
            if (held->appended[0].length > cut + 20)
                fail_msg("cut %d when %d: %d", (int)cut, (int)when, (int)held->appended[0].length);
            READS(cluster, session, cut + 20, cut + 60);
            all_are_right(cluster, session, 0);
            sim_worker_kill(not_of(cluster, victim));
            READS(cluster, session, cut + 20, cut + 60);
            sim_cluster_free(cluster);
        }
}

// Nothing of a session that is no more stays at a worker that was no member of it any more.
static void a_session_was_deleted_meanwhile(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 40; moment++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = sealed_of(cluster, 2);
        struct sim_worker *victim = cluster->workers[moment % 2];
        away(cluster, victim, session);
        sim_net_mend(cluster->loop, victim->loop);
        sim_advance(moment * 50 * COMMON_NS_PER_US);
        OK(sim_delete(cluster->client, session));
        assert_true(sim_wait_active(cluster, 2));
        sim_advance(2 * SECOND);
        assert_int_equal(tokens_held(cluster, session), 0);
        assert_int_equal(worker_store_chunks(victim->worker->store), 0);
        sim_cluster_free(cluster);
    }
}

// The third worker has made the copies: the one that comes back gives its own back.
static void there_are_copies_enough(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = sealed_of(cluster, 2);
    struct sim_worker *victim = copy_of(cluster, session, 0, 1);
    sim_net_part(cluster->loop, victim->loop);
    sim_advance(20 * SECOND);
    wait_whole(cluster, session);
    back(cluster, victim);
    sim_advance(2 * SECOND);
    assert_null(kept_of(cluster, session)->returned);
    assert_int_equal(returned(cluster), 0);
    assert_int_equal(worker_store_chunks(victim->worker->store), 0);
    all_are_right(cluster, session, TOKENS);
    sim_cluster_free(cluster);
}

// They stay unused for long: memory is not held forever.
static void they_stay_unused(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = sealed_of(cluster, 2);
    struct sim_worker *victim = cluster->workers[1];
    away(cluster, victim, session);
    rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_UNAVAILABLE});
    back(cluster, victim);
    sim_advance(60 * SECOND);
    assert_null(kept_of(cluster, session)->returned);
    rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_DO});
    wait_whole(cluster, session);
    all_are_right(cluster, session, TOKENS);
    sim_cluster_free(cluster);
}

// A worker that does not take the layout, or a move, has what it had: rows that are no sealed chunk's among
// them. None of them counts.
static void its_layout_is_refused(void **state)
{
    (void)state;
    static const uint32_t methods[] = {METHOD(LAYOUT_SET), METHOD(CHUNK_PULL), METHOD(CHUNK_SUM),
                                       METHOD(ROWS_ABORT)};
    uint32_t differ = 0;
    for (uint32_t way = 0; way < 32; way++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = sealed_of(cluster, 2);
        struct sim_worker *victim = cluster->workers[way % 2];
        differ += away_with_another_row(cluster, victim, session, TOKENS);
        sim_serve_rule(
            victim->loop, methods[way / 2 % 4],
            (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_RESOURCE_EXHAUSTED, .times = 1 + way / 8});
        back(cluster, victim);
        wait_whole(cluster, session);
        all_are_right(cluster, session, TOKENS);
        sim_worker_kill(not_of(cluster, victim));
        READS(cluster, session, TOKENS + 1, TOKENS + 3);
        sim_cluster_free(cluster);
    }
    assert_true(differ > 0);
}

// The coordinator restarts while copies come back.
static void the_coordinator_ends_meanwhile(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 60; moment++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = sealed_of(cluster, 2);
        struct sim_worker *victim = cluster->workers[moment % 2];
        (void)away_with_another_row(cluster, victim, session, TOKENS);
        sim_net_mend(cluster->loop, victim->loop);
        sim_advance(moment * 60 * COMMON_NS_PER_US);
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 2));
        wait_whole(cluster, session);
        all_are_right(cluster, session, TOKENS);
        READS(cluster, session, TOKENS + 1, TOKENS + 3);
        sim_cluster_free(cluster);
    }
}

// ---- lost chunks (coordinator/check/regain.h) ------------------------------------------------------------

// The victim is away, its copies are removed, and of chunk 1 the other one is wrong.
static void lose(struct sim_cluster *cluster, struct sim_worker *victim, uint64_t session)
{
    away(cluster, victim, session);
    assert_true(sim_worker_flip_chunk(not_of(cluster, victim), kept_of(cluster, session)->layout.chunks[1].id,
                                      0, 5, 22));
    struct sim_call *call = sealed_scrub(cluster, session);
    assert_int_equal(call->lost, 1);
    ENDS(COMMON_DATA_LOSS, sim_read(cluster->client, session, 0, TOKENS - 1, 1));
    READS(cluster, session, 16, 16);
}

static void what_was_lost_comes_back(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 2; which++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = sealed_of(cluster, 2);
        struct sim_worker *victim = cluster->workers[which];
        lose(cluster, victim, session);
        back(cluster, victim);
        wait_whole(cluster, session);
        all_are_right(cluster, session, TOKENS);
        SHOWS(regain, "comparing", "waiting");
        SHOWS(regain, "waiting", "storing");
        SHOWS(regain, "storing", "telling");
        SHOWS(regain, "telling", "over");
        sim_worker_kill(not_of(cluster, victim));
        READS(cluster, session, TOKENS, TOKENS);
        sim_cluster_free(cluster);
    }
}

// The store has that it is lost, and the next coordinator finds both.
static void what_was_lost_comes_back_to_another_coordinator(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 60; moment++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = sealed_of(cluster, 2);
        struct sim_worker *victim = cluster->workers[moment % 2];
        lose(cluster, victim, session);
        sim_net_mend(cluster->loop, victim->loop);
        sim_advance(moment * 10 * COMMON_NS_PER_MS);
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 2));
        wait_whole(cluster, session);
        all_are_right(cluster, session, TOKENS);
        sim_cluster_free(cluster);
    }
}

static void what_was_lost_comes_back_wrong(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = sealed_of(cluster, 2);
    struct sim_worker *victim = cluster->workers[1];
    lose(cluster, victim, session);
    assert_true(sim_worker_flip_chunk(victim, kept_of(cluster, session)->layout.chunks[1].id, 0, 5, 22));
    back(cluster, victim);
    sim_advance(5 * SECOND);
    SHOWS(regain, "comparing", "over");
    ENDS(COMMON_DATA_LOSS, sim_read(cluster->client, session, 0, TOKENS - 1, 1));
    READS(cluster, session, 16, 16);
    OK(sim_truncate(cluster->client, session, 16));
    wait_whole(cluster, session);
    sim_cluster_free(cluster);
}

static void the_store_refuses_what_was_lost(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = sealed_of(cluster, 2);
    struct sim_worker *victim = cluster->workers[1];
    lose(cluster, victim, session);
    sim_serve_rule(victim->loop, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_HOLD});
    back(cluster, victim);
    sim_advance(SECOND);
    sim_disk_fail(SIM_DISK_PATH, 100, COMMON_RESOURCE_EXHAUSTED);
    sim_serve_rule(victim->loop, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_DO});
    sim_serve_let_go(victim->loop);
    sim_advance(SECOND);
    SHOWS(regain, "storing", "over");
    // it is not lost, as long as it may be regained
    ENDS(COMMON_UNAVAILABLE, sim_read(cluster->client, session, 0, TOKENS - 1, 1));
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
    wait_whole(cluster, session);
    all_are_right(cluster, session, TOKENS);
    sim_cluster_free(cluster);
}

// The session is deleted while its lost chunk waits for it.
static void what_was_lost_is_deleted(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = sealed_of(cluster, 2);
    struct sim_worker *victim = cluster->workers[1], *left = cluster->workers[0];
    lose(cluster, victim, session);
    sim_serve_rule(left->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    struct sim_call *read = sim_read(cluster->client, session, 0, 15, 1);
    sim_advance(COMMON_NS_PER_MS);
    struct sim_call *gone = sim_delete(cluster->client, session); // goes first
    back(cluster, victim);
    sim_advance(SECOND);
    sim_serve_rule(left->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    sim_serve_let_go(left->loop);
    OK(gone);
    sim_wait(read);
    sim_advance(2 * SECOND);
    SHOWS(regain, "waiting", "over");
    assert_int_equal(worker_store_chunks(victim->worker->store), 0);
    sim_cluster_free(cluster);
}

int hermetic_returned(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_that_comes_back_counts),
        cmocka_unit_test(what_is_left_is_wrong),
        cmocka_unit_test(what_comes_back_is_wrong),
        cmocka_unit_test(what_is_not_sealed_is_not_kept),
        cmocka_unit_test(an_older_worker_keeps_nothing),
        cmocka_unit_test(it_is_drained_meanwhile),
        cmocka_unit_test(the_store_is_slow_meanwhile),
        cmocka_unit_test(files_come_back),
        cmocka_unit_test(a_session_was_cut_meanwhile),
        cmocka_unit_test(a_session_was_deleted_meanwhile),
        cmocka_unit_test(there_are_copies_enough),
        cmocka_unit_test(they_stay_unused),
        cmocka_unit_test(its_layout_is_refused),
        cmocka_unit_test(the_coordinator_ends_meanwhile),
        cmocka_unit_test(what_was_lost_comes_back),
        cmocka_unit_test(what_was_lost_comes_back_to_another_coordinator),
        cmocka_unit_test(what_was_lost_comes_back_wrong),
        cmocka_unit_test(the_store_refuses_what_was_lost),
        cmocka_unit_test(what_was_lost_is_deleted),
    };
    return cmocka_run_group_tests_name("returned", tests, NULL, NULL);
}
