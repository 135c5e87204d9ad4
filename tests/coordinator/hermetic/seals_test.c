// SPDX-License-Identifier: Apache-2.0
// Full chunks are sealed, and a copy whose memory is not what was sealed serves no step.
#include "coordinator/check/seals.h"
#include "tests/coordinator/hermetic/hermetic.h"
#include "tests/coordinator/hermetic/sealed.h"

#include "coordinator/cluster/membership.h"
#include "proto/rpc/rpc.h"
#include "worker/core/state.h"

#define SECOND COMMON_NS_PER_S

static bool is_whole(struct sim_cluster *cluster, uint64_t session)
{
    struct coordinator_session *s = kept_of(cluster, session);
    return !coordinator_session_has_missing(s) && !s->thin && !s->thick && !s->awaited && !s->moves;
}

static void wait_whole(struct sim_cluster *cluster, uint64_t session)
{
    for (int i = 0; !is_whole(cluster, session); i++) {
        if (i == 500)
            fail_msg("the copies do not come back");
        sim_advance(100 * COMMON_NS_PER_MS);
    }
}

static void start_the_dead(struct sim_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->options.workers; i++)
        if (!cluster->workers[i]->loop)
            sim_worker_start(cluster->workers[i]);
    assert_true(sim_wait_active(cluster, cluster->options.workers));
}

// As the coordinator, and every read, has it.
static void every_copy_is_right(struct sim_cluster *cluster, uint64_t session, uint32_t tokens)
{
    uint64_t before = cluster->coordinator->sessions.seals->corrupt;
    struct sim_call *call = sealed_scrub(cluster, session);
    assert_true(call->lost == 0 && call->corrupt == before);
    for (uint32_t at = 1; at <= tokens; at++)
        READS(cluster, session, at, at);
}

static void full_chunks_are_sealed(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(4);
    uint64_t sessions[4];
    for (uint32_t r = 1; r <= 3; r++) {
        sessions[r] = sealed_new(cluster, r, 40);
        sim_advance(5 * SECOND);
        assert_int_equal(sealed_seal(cluster, sessions[r], 2), 0); // it is not full
        // Of the same rows at the same positions, however many have them.
        assert_true(sealed_seal(cluster, sessions[r], 0) == sealed_seal(cluster, sessions[1], 0));
        assert_true(sealed_seal(cluster, sessions[r], 0) != sealed_seal(cluster, sessions[r], 1));
    }
    SHOWS(check, "asking", "storing");
    SHOWS(check, "storing", "over");
    uint64_t seals[2] = {sealed_seal(cluster, sessions[2], 0), sealed_seal(cluster, sessions[2], 1)};
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sealed_seal(cluster, sessions[2], 0) == seals[0] &&
                sealed_seal(cluster, sessions[2], 1) == seals[1]);
    assert_true(sim_wait_active(cluster, 4));
    OK(sim_append(cluster->client, sessions[2], 0, 40, 8, 1));
    sealed_wait(cluster, sessions[2], 3);
    sim_cluster_free(cluster);
}

// What is sealed without the word of one holder may be what the others have wrongly.
static void a_seal_needs_all_holders(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    for (int what = 0; what < 2; what++) { // one does not answer; one says that it cannot
        uint64_t session = filled_of(cluster, 2, 15);
        struct sim_worker *holder = copy_of(cluster, session, 0, 1);
        sim_serve_rule(holder->loop, METHOD(CHUNK_SUM),
                       (struct sim_rule){.verdict = what ? SIM_FAIL : SIM_HOLD,
                                         .code = COMMON_RESOURCE_EXHAUSTED});
        OK(sim_append(cluster->client, session, 0, 15, 1, 1));
        sim_advance(5 * SECOND);
        assert_int_equal(sealed_seal(cluster, session, 0), 0);
        sim_serve_rule(holder->loop, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_DO});
        sim_serve_let_go(holder->loop);
        sealed_wait(cluster, session, 1);
    }
    SHOWS(check, "asking", "over");
    sim_cluster_free(cluster);
}

static void a_wrong_copy_is_struck_off(void **state)
{
    (void)state;
    for (uint32_t replicas = 2; replicas <= 3; replicas++)
        for (uint32_t copy = 0; copy < replicas; copy++) {
            struct sim_cluster *cluster = cluster_of(4);
            uint64_t session = sealed_new(cluster, replicas, 70);
            sealed_flip(cluster, session, 1, copy);
            struct sim_call *call = sealed_scrub(cluster, session);
            assert_int_equal(call->corrupt, 1);
            assert_int_equal(call->lost, 0);
            READS(cluster, session, 70, 70); // at once
            wait_whole(cluster, session);
            every_copy_is_right(cluster, session, 70);
            sim_worker_kill(copy_of(cluster, session, 1, 0)); // so another one serves
            READS(cluster, session, 70, 70);
            wait_whole(cluster, session);
            every_copy_is_right(cluster, session, 70);
            SHOWS(check, "asking", "twice");
            SHOWS(check, "twice", "over");
            sim_cluster_free(cluster);
        }
}

// It is in the store before the next answer: a restarted coordinator does not count it either.
static void a_struck_copy_stays_struck(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 60; moment++) {
        struct sim_cluster *cluster = cluster_of(3);
        uint64_t session = sealed_new(cluster, 2, 32);
        sealed_flip(cluster, session, 0, 0);
        OK(sim_scrub(cluster->client, session, false));
        sim_advance(moment * 50 * COMMON_NS_PER_US);
        bool answered_right = false;
        struct sim_call *read = sim_read(cluster->client, session, 0, 31, 1);
        sim_advance(100 * COMMON_NS_PER_US);
        answered_right = read->done && read->code == COMMON_OK && read->o == 1;
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 3));
        if (answered_right) // the wrong copy served before
            READS(cluster, session, 32, 32);
        sealed_scrub(cluster, session);
        wait_whole(cluster, session);
        every_copy_is_right(cluster, session, 32);
        sim_cluster_free(cluster);
    }
}

// No worker has it any more: steps over it say so, others do not.
static void the_last_copy_is_lost(void **state)
{
    (void)state;
    for (uint32_t again = 0; again < 2; again++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = sealed_new(cluster, 1, 40);
        sealed_flip(cluster, session, 1, 0);
        struct sim_call *call = sealed_scrub(cluster, session);
        assert_int_equal(call->lost, 1);
        if (again) { // it is in the store
            sim_coordinator_kill(cluster);
            restart(cluster);
            assert_true(sim_wait_active(cluster, 2));
        }
        struct sim_call *read = sim_read(cluster->client, session, 0, 39, 1);
        ENDS(COMMON_DATA_LOSS, read);
        assert_string_equal(read->reason, "MISSING_RANGE");
        assert_int_equal(read->first_missing, 16);
        assert_int_equal(read->count_missing, 16);
        READS(cluster, session, 16, 16);
        OK(sim_truncate(cluster->client, session, 16));
        OK(sim_append(cluster->client, session, 0, 16, 16, 1));
        READS(cluster, session, 32, 32);
        sealed_wait(cluster, session, 2);
        sim_cluster_free(cluster);
    }
}

// Its memory is found to be wrong while the store takes note of a copy of it, which was compared with the
// seal.
static void the_source_is_wrong_while_the_copy_is_stored(void **state)
{
    (void)state;
    for (uint32_t again = 0; again < 2; again++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = sealed_new(cluster, 1, 16);
        struct sim_worker *source = copy_of(cluster, session, 0, 0);
        struct sim_worker *to = cluster->workers[source == cluster->workers[0]];
        sim_serve_rule(to->loop, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
        sim_serve_rule(source->loop, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
        OK(sim_drain(cluster->client, source->name, false));
        OK(sim_scrub(cluster->client, session, false)); // it has begun when the move closes the session
        sim_advance(SECOND);
        sim_disk_stall(SIM_DISK_PATH, true);
        assert_int_equal(sim_serve_held(source->loop), 1);
        assert_int_equal(sim_serve_let_go(to->loop), 1);
        sim_advance(SECOND);
        assert_int_equal(coordinator_chunk_copies(sealed_chunk(cluster, session, 0)), 1);
        sealed_flip(cluster, session, 0, 0);
        assert_int_equal(sim_serve_let_go(source->loop), 1);
        for (int i = 0; !sealed_chunk(cluster, session, 0)->losing; i++) {
            assert_true(i < 100);
            sim_advance(100 * COMMON_NS_PER_MS);
        }
        sim_disk_stall(SIM_DISK_PATH, false);
        sim_advance(SECOND);
        if (again) { // it is in the store
            sim_coordinator_kill(cluster);
            restart(cluster);
            assert_true(sim_wait_active(cluster, 2));
        }
        READS(cluster, session, 16, 16);
        assert_int_equal(sealed_scrub(cluster, session)->lost, 0);
        sim_cluster_free(cluster);
    }
}

// A copy that is made of a wrong one does not count.
static void a_copy_of_a_wrong_copy_does_not_count(void **state)
{
    (void)state;
    for (uint32_t copy = 0; copy < 2; copy++) {
        struct sim_cluster *cluster = cluster_of(4);
        uint64_t session = sealed_new(cluster, 3, 32);
        sealed_flip(cluster, session, 0, 0); // from which others copy
        sim_worker_kill(copy_of(cluster, session, 0, 1 + copy));
        for (int i = 0; !cluster->coordinator->sessions.seals->corrupt && i < 200; i++)
            sim_advance(100 * COMMON_NS_PER_MS);
        assert_int_equal(cluster->coordinator->sessions.seals->corrupt, 1);
        assert_true(cluster->coordinator->sessions.seals->refused > 0);
        READS(cluster, session, 32, 32);
        start_the_dead(cluster);
        wait_whole(cluster, session);
        every_copy_is_right(cluster, session, 32);
        sim_cluster_free(cluster);
    }
    // With two holders the other one has died: no worker has it.
    struct sim_cluster *cluster = cluster_of(4);
    uint64_t session = sealed_new(cluster, 2, 32);
    sealed_flip(cluster, session, 0, 0);
    sim_worker_kill(copy_of(cluster, session, 0, 1));
    for (int i = 0; !sealed_chunk(cluster, session, 0)->lost && i < 200; i++)
        sim_advance(100 * COMMON_NS_PER_MS);
    ENDS(COMMON_DATA_LOSS, sim_read(cluster->client, session, 0, 31, 1));
    OK(sim_truncate(cluster->client, session, 0));
    sim_cluster_free(cluster);
}

// Without a seal two against one are right, and of two neither is.
static void holders_disagree(void **state)
{
    (void)state;
    for (uint32_t replicas = 2; replicas <= 3; replicas++) {
        struct sim_cluster *cluster = cluster_of(4);
        uint64_t session = filled_of(cluster, replicas, 20);
        rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_HOLD});
        OK(sim_append(cluster->client, session, 0, 20, 12, 1));
        for (int i = 0; held_all(cluster) < replicas && i < 100; i++)
            sim_advance(50 * COMMON_NS_PER_MS);
        sealed_flip(cluster, session, 1, 1);
        rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_DO});
        let_go_all(cluster);
        sim_advance(10 * SECOND);
        const struct coordinator_seals *seals = cluster->coordinator->sessions.seals;
        if (replicas == 2) {
            assert_int_equal(sealed_seal(cluster, session, 1), 0);
            assert_int_equal(seals->disputed, 1); // once: not again and again
            assert_int_equal(seals->corrupt, 0);
            OK(sim_read(cluster->client, session, 0, 31, 1));
        } else {
            sealed_wait(cluster, session, 2);
            assert_int_equal(seals->corrupt, 1);
            wait_whole(cluster, session);
            every_copy_is_right(cluster, session, 32);
            SHOWS(check, "twice", "storing");
        }
        sim_cluster_free(cluster);
    }
}

// Without a seal, too, a worker whose files have what another holder has takes that: none is removed, and
// nothing is in dispute.
static void files_decide_where_holders_disagree(void **state)
{
    (void)state;
    static const struct {
        uint32_t replicas, wrong;
    } cases[] = {{2, 1}, {2, 2}, {3, 1}, {3, 4}, {3, 3}, {3, 5}, {3, 6}};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sim_cluster *cluster =
            sim_cluster_new(&(struct sim_cluster_options){.workers = 4, .store = true});
        sim_cluster_start(cluster);
        uint64_t session = sealed_wrongly(cluster, cases[i].replicas, cases[i].wrong);
        sealed_wait(cluster, session, 2);
        const struct coordinator_seals *seals = cluster->coordinator->sessions.seals;
        bool two_of_three = cases[i].replicas == 3 && (cases[i].wrong & (cases[i].wrong - 1));
        assert_int_equal(seals->healed, 1);
        assert_int_equal(seals->disputed, 0);
        assert_int_equal(seals->corrupt, two_of_three); // the other one, which two are against then
        wait_whole(cluster, session);
        assert_int_equal(sealed_scrub(cluster, session)->corrupt, two_of_three);
        for (uint32_t copy = 0; copy < cases[i].replicas; copy++) { // each that serves
            READS(cluster, session, 32, 32);
            if (copy + 1 < cases[i].replicas)
                sim_worker_kill(copy_of(cluster, session, 1, 0));
        }
        sim_cluster_free(cluster);
    }
}

// A fork shares sealed chunks: what is removed for one is removed for the other, at once.
static void forks_share_them(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 2; replicas++) {
        struct sim_cluster *cluster = cluster_of(3);
        uint64_t session = sealed_new(cluster, replicas, 40);
        struct sim_call *forked = sim_fork(cluster->client, session, 40, "fork");
        OK(forked);
        uint64_t fork = forked->session;
        assert_true(sealed_seal(cluster, fork, 0) == sealed_seal(cluster, session, 0));
        assert_int_equal(sealed_seal(cluster, fork, 2), 0);
        sealed_flip(cluster, session, 0, 0);
        struct sim_call *call = sealed_scrub(cluster, session); // of this one alone
        assert_int_equal(call->corrupt, 1);
        if (replicas == 1) {
            ENDS(COMMON_DATA_LOSS, sim_read(cluster->client, fork, 0, 39, 1));
            ENDS(COMMON_DATA_LOSS, sim_read(cluster->client, session, 0, 39, 1));
        } else {
            READS(cluster, fork, 40, 40);
            READS(cluster, session, 40, 40);
            wait_whole(cluster, fork);
            wait_whole(cluster, session);
            every_copy_is_right(cluster, fork, 40);
            OK(sim_delete(cluster->client, session));
            sim_coordinator_kill(cluster); // the fork has its own in the store
            restart(cluster);
            assert_true(sealed_seal(cluster, fork, 0) != 0 && sealed_seal(cluster, fork, 1) != 0);
        }
        sim_cluster_free(cluster);
    }
}

// What a fork cuts is compared first. A holder of another chunk that is lost meanwhile is not a holder of the
// fork's yet, so it must not be in the fork's layout.
static void a_holder_is_lost_before_a_fork(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 2; replicas++) {
        struct sim_cluster *cluster = cluster_of(4);
        struct sim_call *call =
            sim_create(cluster->client, (struct sim_shape){.members = 4, .replicas = replicas}, "");
        OK(call);
        uint64_t session = call->session;
        for (uint32_t at = 0; at < 128; at += 16)
            OK(sim_append(cluster->client, session, 0, at, 16, 1));
        sealed_wait(cluster, session, 8);
        struct sim_worker *away = NULL; // has a chunk before the one that is cut, and not that one
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t has = 0;
            for (uint32_t k = 0; k < 8; k++)
                for (uint32_t c = 0; c < replicas; c++)
                    has |= (copy_of(cluster, session, k, c) == cluster->workers[i]) << (k == 7);
            away = has == 1 ? cluster->workers[i] : away;
        }
        assert_non_null(away);
        rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_HOLD});
        call = sim_fork(cluster->client, session, 116, "fork");
        for (int i = 0; held_all(cluster) < replicas && i < 100; i++)
            sim_advance(10 * COMMON_NS_PER_MS);
        assert_int_equal(held_all(cluster), replicas);
        sim_net_part(NULL, away->loop);
        sim_advance(2 * SECOND);
        assert_int_equal(sim_wait_active(cluster, 3), true);
        rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_DO});
        let_go_all(cluster);
        if (replicas == 1) { // the fork says at once that the rows are away
            ENDS(COMMON_UNAVAILABLE, call);
            sim_net_mend(NULL, away->loop);
            assert_true(sim_wait_active(cluster, 4));
            call = sim_fork(cluster->client, session, 116, "fork");
        }
        OK(call);
        uint64_t fork = call->session;
        READS(cluster, fork, 116, 116);
        sim_net_mend(NULL, away->loop);
        assert_true(sim_wait_active(cluster, 4));
        wait_whole(cluster, fork);
        wait_whole(cluster, session);
        every_copy_is_right(cluster, fork, 116);
        every_copy_is_right(cluster, session, 128);
        sim_cluster_free(cluster);
    }
}

// Forks share the memory of a chunk, so it is summed once for all of them, and while another one is being
// made.
static void forks_have_it_summed_once(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_HOLD});
    uint64_t session = filled_of(cluster, 2, 48), forks[3] = {session};
    for (int i = 1; i < 3; i++) { // of the one before
        struct sim_call *call = sim_fork(cluster->client, forks[i - 1], 48, "");
        OK(call);
        forks[i] = call->session;
    }
    sim_advance(SECOND);
    assert_int_equal(held_all(cluster), 2 * 2); // as many as may be
    rule_all(cluster, METHOD(LAYOUT_SET), (struct sim_rule){.verdict = SIM_HOLD});
    struct sim_call *last = sim_fork(cluster->client, session, 48, "");
    for (int i = 0; held_all(cluster) < 2 * 3 && i < 100; i++)
        sim_advance(COMMON_NS_PER_MS);
    assert_int_equal(kept_of(cluster, session)->state, COORDINATOR_SESSION_FORKING);
    rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_DO});
    rule_all(cluster, METHOD(LAYOUT_SET), (struct sim_rule){.verdict = SIM_DO});
    let_go_all(cluster);
    OK(last);
    sim_advance(2 * SECOND); // a check that came to nothing is begun again after 5 s
    assert_true(sealed_seal(cluster, session, 0) && sealed_seal(cluster, session, 1));
    for (int i = 0; i < 3; i++)
        sealed_wait(cluster, forks[i], 3);
    sealed_wait(cluster, last->session, 3);
    uint64_t seen = 0;
    for (uint32_t i = 0; i < 2; i++)
        seen += sim_serve_seen(cluster->workers[i]->loop, METHOD(CHUNK_SUM));
    assert_int_equal(seen, 3 * 2);
    sim_cluster_free(cluster);
}

static void idle_soon(struct coordinator_options *options)
{
    options->session_ttl_ns = 60 * SECOND;
}

// A chunk that a fork shares is lost while the fork is being made: its rows must be released there, too,
// before the fork is used.
static void a_fork_that_is_born_without_a_chunk(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .tune = idle_soon});
    sim_cluster_start(cluster);
    uint64_t session = sealed_new(cluster, 1, 32);
    struct sim_call *other = sim_fork(cluster->client, session, 32, "");
    OK(other);
    rule_all(cluster, METHOD(LAYOUT_SET), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct sim_call *call = sim_fork(cluster->client, session, 32, "");
    for (int i = 0; !held_all(cluster) && i < 100; i++)
        sim_advance(COMMON_NS_PER_MS);
    assert_true(held_all(cluster) > 0);
    sealed_flip(cluster, other->session, 0, 0);
    struct sim_call *found = sim_scrub(cluster->client, other->session, false);
    OK(found);
    for (int i = 0; !sealed_chunk(cluster, other->session, 0)->lost && i < 30; i++)
        sim_advance(100 * COMMON_NS_PER_MS);
    assert_true(sealed_chunk(cluster, other->session, 0)->lost);
    let_go_all(cluster);
    OK(call);
    sim_advance(SECOND);
    assert_int_equal(kept_of(cluster, call->session)->n_exclusive, 0);
    sim_advance(120 * SECOND);
    assert_null(coordinator_session_any(&cluster->coordinator->sessions, call->session)); // it is not in use
    sim_cluster_free(cluster);
}

// What is cut out of a sealed chunk has no seal: so nothing is cut out of a wrong copy.
static void nothing_is_copied_from_a_wrong_copy(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 2; replicas++)
        for (uint32_t forks = 0; forks < 2; forks++) {
            struct sim_cluster *cluster = cluster_of(3);
            uint64_t session = sealed_new(cluster, replicas, 40);
            sealed_flip(cluster, session, 1, 0);
            struct sim_call *call = forks ? sim_fork(cluster->client, session, 20, "f")
                                          : sim_truncate(cluster->client, session, 20);
            ENDS(COMMON_UNAVAILABLE, call);
            if (replicas == 1) { // once the store has that it is lost
                sim_advance(SECOND);
                ENDS(COMMON_DATA_LOSS, forks ? sim_fork(cluster->client, session, 20, "g")
                                             : sim_truncate(cluster->client, session, 20));
            }
            if (replicas == 2) {
                OK(call = forks ? sim_fork(cluster->client, session, 20, "g")
                                : sim_truncate(cluster->client, session, 20));
                uint64_t cut = forks ? call->session : session;
                READS(cluster, cut, 20, 20);
                wait_whole(cluster, cut);
                sim_worker_kill(copy_of(cluster, cut, 1, 0));
                READS(cluster, cut, 20, 20);
            }
            sim_cluster_free(cluster);
        }
}

// A worker of an older build: nothing is sealed, no copy is removed, moves go on.
static void older_workers_are_left_alone(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    rule_all(cluster, METHOD(CHUNK_SUM),
             (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_UNIMPLEMENTED});
    uint64_t session = filled_of(cluster, 2, 48);
    sim_advance(60 * SECOND);
    assert_int_equal(sealed_seal(cluster, session, 0), 0);
    uint64_t seen = 0;
    for (uint32_t i = 0; i < 3; i++)
        seen += sim_serve_seen(cluster->workers[i]->loop, METHOD(CHUNK_SUM));
    assert_true(seen <= 3 * 4); // and not asked again and again
    sim_worker_kill(copy_of(cluster, session, 0, 0));
    wait_whole(cluster, session);
    READS(cluster, session, 48, 48);
    sim_cluster_free(cluster);
}

// What the store has not taken is not sealed.
static void the_store_refuses_a_seal(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 2, 20);
    sim_advance(3 * SECOND);
    OK(sim_append(cluster->client, session, 0, 20, 12, 1));
    sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_UNAVAILABLE);
    sim_advance(8 * SECOND);
    assert_true(sealed_seal(cluster, session, 0) && !sealed_seal(cluster, session, 1));
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
    sealed_wait(cluster, session, 2);
    sim_cluster_free(cluster);
}

// Of a session that forgets, what is sealed are the layers that it keeps. A seal says of a chunk that is
// away that it is full: not what became of an append that ended in the next one.
static void a_seal_decides_about_no_append(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = session_of(cluster, 0);
    OK(sim_append(cluster->client, session, 0, 0, 14, 1));
    OK(sim_append(cluster->client, session, 0, 14, 13,
                  2)); // its holders have not heard that it was acknowledged
    sealed_wait(cluster, session, 1);
    const struct sim_worker *away = holder_of(cluster, session, 0);
    assert_ptr_not_equal(away, holder_of(cluster, session, 16));
    sim_coordinator_kill(cluster);
    sim_net_part(NULL, away->loop);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    sim_advance(10 * COMMON_NS_PER_S);
    ENDS(COMMON_UNAVAILABLE, sim_append(cluster->client, session, 0, 27, 1, 3));
    ENDS(COMMON_UNAVAILABLE, sim_append(cluster->client, session, 0, 16, 1, 3)); // it would take rows away
    ENDS(COMMON_UNAVAILABLE, sim_read(cluster->client, session, 0, 26, 1));
    ENDS(COMMON_UNAVAILABLE, sim_fork(cluster->client, session, 27, ""));
    sim_net_mend(NULL, away->loop);
    assert_true(sim_wait_active(cluster, 3));
    assert_int_equal(length_of(cluster, session), 27);
    READS(cluster, session, 27, 14 + 13 * 2);
    sim_cluster_free(cluster);
}

static void layers_that_are_kept_are_sealed(void **state)
{
    (void)state;
    static const struct sim_mask masks[2] = {{.window = 8}, {0}};
    struct sim_cluster *cluster = cluster_of(3);
    for (uint32_t windows = 0; windows < 2; windows++) {
        struct sim_mask own[2] = {masks[0], masks[windows ? 0 : 1]};
        struct sim_call *call =
            sim_create(cluster->client,
                       (struct sim_shape){.replicas = 2, .layers = 2, .forget = 4, .masks = own}, "");
        OK(call);
        uint64_t session = call->session;
        for (uint32_t at = 0; at < 96; at += 16)
            for (uint32_t l = 0; l < 2; l++)
                OK(sim_append(cluster->client, session, l, at, 16, 1));
        if (windows) { // all of it is given back sooner or later
            sim_advance(10 * SECOND);
            assert_int_equal(sealed_seal(cluster, session, 5), 0);
            continue;
        }
        sealed_wait(cluster, session, 6);
        assert_int_equal(sealed_scrub(cluster, session)->corrupt, 0); // also where the other layer is gone
        sim_worker_kill(copy_of(cluster, session, 0, 0));
        wait_whole(cluster, session);
        assert_int_equal(sealed_scrub(cluster, session)->corrupt, 0);
        start_the_dead(cluster);
    }
    sim_cluster_free(cluster);
}

int hermetic_seals(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_chunks_are_sealed),
        cmocka_unit_test(a_seal_needs_all_holders),
        cmocka_unit_test(a_wrong_copy_is_struck_off),
        cmocka_unit_test(a_struck_copy_stays_struck),
        cmocka_unit_test(the_last_copy_is_lost),
        cmocka_unit_test(the_source_is_wrong_while_the_copy_is_stored),
        cmocka_unit_test(a_copy_of_a_wrong_copy_does_not_count),
        cmocka_unit_test(holders_disagree),
        cmocka_unit_test(files_decide_where_holders_disagree),
        cmocka_unit_test(forks_share_them),
        cmocka_unit_test(a_holder_is_lost_before_a_fork),
        cmocka_unit_test(forks_have_it_summed_once),
        cmocka_unit_test(a_fork_that_is_born_without_a_chunk),
        cmocka_unit_test(nothing_is_copied_from_a_wrong_copy),
        cmocka_unit_test(older_workers_are_left_alone),
        cmocka_unit_test(the_store_refuses_a_seal),
        cmocka_unit_test(a_seal_decides_about_no_append),
        cmocka_unit_test(layers_that_are_kept_are_sealed),
    };
    return cmocka_run_group_tests_name("seals", tests, NULL, NULL);
}
