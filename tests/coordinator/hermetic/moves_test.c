// SPDX-License-Identifier: Apache-2.0
// Chunks that go from worker to worker while their sessions are used: copies that are restored, workers that
// are drained, loads that are balanced.
#include "coordinator/place/moves.h"
#include "coordinator/place/wishes.h"
#include "tests/coordinator/hermetic/hermetic.h"

#include "coordinator/cluster/membership.h"
#include "coordinator/sync/moving.h"
#include "coordinator/sync/repair.h"
#include "worker/core/state.h"

#define SECOND COMMON_NS_PER_S

static struct coordinator_worker *worker_of(struct sim_cluster *cluster, uint32_t i)
{
    return coordinator_worker_find(&cluster->coordinator->cluster, cluster->workers[i]->name);
}

static uint32_t number_of(const struct sim_worker *worker)
{
    return (uint32_t)(worker->name[1] - '0');
}

// Every chunk is at as many workers as it should be, each has its rows, and nothing is under way.
static bool is_settled(struct sim_cluster *cluster, uint64_t session)
{
    struct coordinator_session *s = kept_of(cluster, session);
    if (coordinator_session_has_missing(s) || s->thin || s->thick || s->awaited || s->moves)
        return false;
    for (uint32_t i = 0; i < s->layout.n; i++)
        for (uint32_t copy = 0; copy < coordinator_chunk_copies(&s->layout.chunks[i]); copy++) {
            const struct coordinator_worker *w = coordinator_chunk_holder(&s->layout.chunks[i], copy);
            if (w->draining || !sim_worker_holds(cluster->workers[w->name[1] - '0'], session,
                                                 s->layout.chunks[i].index * 16))
                return false;
        }
    return tokens_held(cluster, session) == length_of(cluster, session) * s->spec->replicas;
}

static void wait_settled(struct sim_cluster *cluster, uint64_t session)
{
    for (int i = 0; !is_settled(cluster, session); i++) {
        if (i == 500)
            fail_msg("the copies do not settle");
        sim_advance(100 * COMMON_NS_PER_MS);
    }
}

// A session of two members has two after each loss, though the lost one comes back each time: more members
// are more messages a step.
static void a_lost_member_is_none_any_more(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(4);
    struct sim_call *call = sim_create(cluster->client, (struct sim_shape){.replicas = 2, .members = 2}, "");
    OK(call);
    uint64_t session = call->session, length = 0;
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < 6; i++, length += 10)
            OK(sim_append(cluster->client, session, 0, length, 10, 1));
        assert_int_equal(kept_of(cluster, session)->n_members, 2);
        struct sim_worker *victim = copy_of(cluster, session, round, round % 2);
        sim_worker_kill(victim);
        wait_settled(cluster, session);
        for (int i = 0;
             coordinator_session_has_member(kept_of(cluster, session), worker_of(cluster, number_of(victim)));
             i++) {
            assert_true(i < 100);
            sim_advance(100 * COMMON_NS_PER_MS);
        }
        sim_worker_start(victim);
        assert_true(sim_wait_active(cluster, 4));
        READS(cluster, session, length, length);
    }
    sim_coordinator_kill(cluster); // and so it is in the store
    restart(cluster);
    assert_true(sim_wait_active(cluster, 4));
    READS(cluster, session, length, length);
    assert_int_equal(kept_of(cluster, session)->n_members, 2);
    sim_cluster_free(cluster);
}

// One holder after the other ends, each at another moment of a stream of steps, and what it held is copied
// again: so the last of them that lives has everything.
static void copies_come_back(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 12; moment++) {
        struct sim_cluster *cluster = cluster_of(4);
        uint64_t session = filled_of(cluster, 2, 90), length = 90;
        for (uint32_t round = 0; round < 4; round++) {
            struct sim_call *calls[6];
            struct sim_worker *victim = copy_of(cluster, session, round, moment % 2);
            for (uint32_t i = 0; i < 6; i++) {
                calls[i] = sim_append(cluster->client, session, 0, length++, 1, 1);
                if (i == moment / 2)
                    sim_worker_kill(victim);
                sim_advance(50 * COMMON_NS_PER_US);
            }
            for (uint32_t i = 0; i < 6; i++)
                OK(calls[i]);
            wait_settled(cluster, session);
            READS(cluster, session, length, length);
            sim_worker_start(victim);
            assert_true(sim_wait_active(cluster, 4));
        }
        SHOWS(move, "copying", "waiting");
        SHOWS(move, "waiting", "closing");
        SHOWS(move, "closing", "storing");
        SHOWS(move, "storing", "telling");
        SHOWS(move, "telling", "over");
        sim_coordinator_kill(cluster); // and so it is in the store
        restart(cluster);
        assert_true(sim_wait_active(cluster, 4));
        sim_worker_kill(copy_of(cluster, session, 0, 0));
        READS(cluster, session, length, length);
        sim_cluster_free(cluster);
    }
}

// While it is stepped and read; what is drained holds nothing in the end, has no part in a step, and may go.
static void a_worker_is_drained(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 3; replicas++) {
        struct sim_cluster *cluster = cluster_of(4);
        uint64_t session = filled_of(cluster, replicas, 120), length = 120;
        uint32_t w = number_of(copy_of(cluster, session, 2, 0));
        OK(sim_drain(cluster->client, cluster->workers[w]->name, false));
        for (uint32_t i = 0; i < 200; i++) {
            OK(sim_append(cluster->client, session, 0, length++, 1, 1));
            READS(cluster, session, length, length);
            sim_advance(5 * COMMON_NS_PER_MS);
        }
        wait_settled(cluster, session);
        const struct coordinator_worker *drained = worker_of(cluster, w);
        for (int i = 0; drained->members && i < 100; i++)
            sim_advance(100 * COMMON_NS_PER_MS);
        assert_true(!drained->chunks && !drained->members && !drained->load_bytes && !drained->tokens);
        assert_false(coordinator_session_has_member(kept_of(cluster, session), drained));
        assert_int_equal(cluster->workers[w]->worker->sessions.count, 0);
        struct sim_call *read = sim_read(cluster->client, session, 0, length - 1, 1);
        sim_worker_kill(cluster->workers[w]);
        OK(read);
        assert_true(read->o == 1);
        OK(sim_append(cluster->client, session, 0, length, 1, 1));
        sim_cluster_free(cluster);
    }
}

// It is in the store: a restarted coordinator goes on with it. Used again, a worker gets chunks again.
static void a_drain_outlives_the_coordinator(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 240; moment++) {
        struct sim_cluster *cluster = cluster_of(3);
        uint32_t replicas = 1 + moment % 2;
        uint64_t session = filled_of(cluster, replicas, 80);
        uint32_t w = number_of(copy_of(cluster, session, 1, 0));
        OK(sim_drain(cluster->client, cluster->workers[w]->name, false));
        sim_advance(moment * 7 * COMMON_NS_PER_US);
        struct sim_call *append = sim_append(cluster->client, session, 0, 80, 3, 1);
        sim_advance(moment % 5 * 30 * COMMON_NS_PER_US);
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 3));
        assert_true(worker_of(cluster, w)->draining);
        assert_string_equal(worker_of(cluster, w)->order.reason, "the test says so");
        sim_wait(append); // its link is closed
        OK(sim_append(cluster->client, session, 0, 80, 3, 1));
        wait_settled(cluster, session);
        READS(cluster, session, 83, 83);
        uint64_t other = filled_of(cluster, 1, 80);
        assert_int_equal(worker_of(cluster, w)->chunks, 0);
        OK(sim_drain(cluster->client, cluster->workers[w]->name, true));
        uint64_t third = filled_of(cluster, 1, 80);
        assert_true(worker_of(cluster, w)->chunks > 0);
        assert_true(other != third);
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 3) && !worker_of(cluster, w)->draining);
        sim_cluster_free(cluster);
    }
}

// Of a session with two copies a worker ends while its chunks move: it that gives, it that receives, or
// another holder.
static void a_move_ends_with_its_worker(void **state)
{
    (void)state;
    uint32_t broken_off = 0; // in any of these worlds
    for (uint32_t moment = 0; moment < 120; moment++) {
        struct sim_cluster *cluster = cluster_of(4);
        uint64_t session = filled_of(cluster, 2, 90);
        uint32_t w = number_of(copy_of(cluster, session, 1, 0));
        OK(sim_drain(cluster->client, cluster->workers[w]->name, false));
        sim_advance(moment / 4 * 60 * COMMON_NS_PER_US);
        struct sim_call *append = sim_append(cluster->client, session, 0, 90, 2, 1);
        sim_worker_kill(cluster->workers[(w + moment) % 4]);
        sim_advance(moment % 3 * 100 * COMMON_NS_PER_US);
        if (moment % 8 >= 4)
            sim_worker_start(cluster->workers[(w + moment) % 4]);
        OK(append);
        wait_settled(cluster, session);
        READS(cluster, session, 92, 92);
        sim_worker_kill(copy_of(cluster, session, 0, 0));
        READS(cluster, session, 92, 92);
        broken_off += sim_edge_taken(&coordinator_move_machine, "copying", "over");
        sim_cluster_free(cluster);
    }
    assert_true(broken_off > 0);
}

// Its last pulls fail, once it has the session for itself: it is tried again.
static void a_move_that_cannot_close_is_made_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = filled_of(cluster, 1, 40);
    struct sim_worker *holder = copy_of(cluster, session, 1, 0);
    sim_serve_rule(holder->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct sim_call *read = sim_read(cluster->client, session, 0, 39, 1); // the move waits for it
    sim_advance(COMMON_NS_PER_MS);
    OK(sim_drain(cluster->client, holder->name, false));
    sim_advance(SECOND);
    assert_true(kept_of(cluster, session)->moves != NULL);
    rule_all(cluster, METHOD(CHUNK_PULL),
             (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_RESOURCE_EXHAUSTED});
    sim_serve_let_go(holder->loop);
    OK(read);
    wait_settled(cluster, session);
    SHOWS(move, "closing", "over");
    assert_int_equal(worker_of(cluster, number_of(holder))->chunks, 0);
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

static void a_store_that_refuses_leaves_all_as_it_was(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = filled_of(cluster, 1, 40);
    struct sim_worker *holder = copy_of(cluster, session, 1, 0);
    rule_all(cluster, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_HOLD});
    OK(sim_drain(cluster->client, holder->name, false));
    sim_advance(SECOND);
    sim_disk_fail(SIM_DISK_PATH, 100, COMMON_RESOURCE_EXHAUSTED);
    rule_all(cluster, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_DO});
    let_go_all(cluster);
    sim_advance(SECOND);
    SHOWS(move, "storing", "over");
    assert_ptr_equal(copy_of(cluster, session, 1, 0), holder);
    READS(cluster, session, 40, 40);
    sim_coordinator_kill(cluster);
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 3));
    READS(cluster, session, 40, 40);
    wait_settled(cluster, session);
    assert_int_equal(worker_of(cluster, number_of(holder))->chunks, 0);
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

// A commit asks nothing of a worker that rows are on their way to.
static void a_commit_while_its_chunk_moves(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_call *created = sim_create(cluster->client, (struct sim_shape){.members = 2}, "");
    OK(created);
    uint64_t session = created->session;
    OK(sim_append(cluster->client, session, 0, 0, 40, 1)); // of three chunks each worker has one at least
    uint32_t w = number_of(copy_of(cluster, session, 0, 0));
    rule_all(cluster, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_HOLD});
    OK(sim_drain(cluster->client, cluster->workers[w]->name, false));
    sim_advance(SECOND);
    assert_true(held_all(cluster) > 0);
    struct sim_call *open = sim_open(cluster->client, session, 0, 32);
    OK(open);
    OK(sim_put(cluster->client, open, 0, 0, 32, 1)); // once more what is there
    OK(sim_commit(cluster->client, session, 0, 0, 32));
    rule_all(cluster, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_DO});
    let_go_all(cluster);
    wait_settled(cluster, session);
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

// The only holder comes back with nothing while the store takes note of the new copy, which has every row.
static void the_source_is_lost_while_the_copy_is_stored(void **state)
{
    (void)state;
    for (uint32_t again = 0; again < 2; again++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = filled_of(cluster, 1, 16);
        struct sim_worker *source = copy_of(cluster, session, 0, 0);
        rule_all(cluster, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
        OK(sim_drain(cluster->client, source->name, false));
        sim_advance(SECOND);
        sim_disk_stall(SIM_DISK_PATH, true);
        assert_int_equal(held_all(cluster), 1);
        let_go_all(cluster);
        sim_advance(SECOND);
        assert_int_equal(coordinator_chunk_copies(&kept_of(cluster, session)->layout.chunks[0]), 1);
        sim_worker_kill(source);
        sim_worker_start(source);
        sim_advance(SECOND);
        assert_true(kept_of(cluster, session)->layout.chunks[0].lost);
        sim_disk_stall(SIM_DISK_PATH, false);
        assert_true(sim_wait_active(cluster, 2));
        if (again) { // it is in the store
            sim_coordinator_kill(cluster);
            restart(cluster);
            assert_true(sim_wait_active(cluster, 2));
        }
        READS(cluster, session, 16, 16);
        wait_settled(cluster, session);
        READS(cluster, session, 16, 16);
        sim_cluster_free(cluster);
    }
}

// The coordinator dies at every moment of a move, and no message since has said how far the last append is
// acknowledged.
static void what_was_acknowledged_before_a_move_stays(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 400; moment++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = filled_of(cluster, 1, 20);
        uint32_t w = number_of(copy_of(cluster, session, 1, 0));
        sim_net_delay(100 * COMMON_NS_PER_US, 100 * COMMON_NS_PER_US);
        OK(sim_drain(cluster->client, cluster->workers[w]->name, false));
        sim_advance(moment * 10 * COMMON_NS_PER_US);
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 2));
        assert_int_equal(length_of(cluster, session), 20);
        READS(cluster, session, 20, 20);
        sim_cluster_free(cluster);
    }
}

// The receiving worker restarts after it has fetched the rows, and before the store has written that it has
// them.
static void a_copy_that_died_meanwhile_does_not_count(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 1, 20);
    uint32_t w = number_of(copy_of(cluster, session, 0, 0));
    OK(sim_truncate(cluster->client, session, 16)); // one chunk
    for (uint32_t i = 0; i < 2; i++)
        rule_all(cluster, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    OK(sim_drain(cluster->client, cluster->workers[w]->name, false));
    sim_advance(SECOND);
    sim_disk_stall(SIM_DISK_PATH, true);
    let_go_all(cluster);
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_worker_kill(cluster->workers[1 - w]);
    sim_worker_start(cluster->workers[1 - w]);
    sim_advance(SECOND);
    sim_disk_stall(SIM_DISK_PATH, false);
    sim_advance(SECOND);
    READS(cluster, session, 16, 16);
    wait_settled(cluster, session);
    READS(cluster, session, 16, 16);
    sim_cluster_free(cluster);
}

// While the store takes note of the new copy, a repair sends its holder the layout as it was, without the
// chunk, and is over before the store is. What has gone there is no copy.
static void a_repair_meanwhile_has_taken_the_rows_away(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_call *call = sim_create(cluster->client, (struct sim_shape){.replicas = 1, .members = 2}, "");
    OK(call);
    uint64_t session = call->session;
    for (uint32_t i = 0; i < 4; i++)
        OK(sim_append(cluster->client, session, 0, i * 16, 16, 1));
    uint32_t from = number_of(copy_of(cluster, session, 0, 0)), to = 1 - from;
    struct coordinator_session *s = kept_of(cluster, session);
    assert_true(coordinator_session_has_member(s, worker_of(cluster, to)));
    rule_all(cluster, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    OK(sim_drain(cluster->client, cluster->workers[from]->name, false));
    sim_advance(SECOND);
    sim_disk_stall(SIM_DISK_PATH, true);
    let_go_all(cluster);
    sim_advance(100 * COMMON_NS_PER_MS);
    assert_true(coordinator_moves_store(s, worker_of(cluster, to)));
    coordinator_session_doubt(s, worker_of(cluster, to));
    sim_advance(100 * COMMON_NS_PER_MS);
    assert_true(coordinator_moves_store(s, worker_of(cluster, to)));
    assert_false(coordinator_session_in_doubt(s, worker_of(cluster, to)));
    sim_disk_stall(SIM_DISK_PATH, false);
    sim_advance(100 * COMMON_NS_PER_MS);
    READS(cluster, session, 64, 64);
    wait_settled(cluster, session);
    READS(cluster, session, 64, 64);
    sim_cluster_free(cluster);
}

// Who receives dies at every moment: as long as the one that gives is a holder it has everything.
static void who_gives_keeps_it_until_it_is_taken(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 150; moment++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = filled_of(cluster, 1, 40);
        uint32_t w = number_of(copy_of(cluster, session, 0, 0));
        OK(sim_drain(cluster->client, cluster->workers[w]->name, false));
        sim_advance(moment * 7 * COMMON_NS_PER_US);
        sim_worker_kill(cluster->workers[1 - w]);
        sim_advance(SECOND);
        const struct coordinator_chunk *chunk =
            coordinator_layout_find(&kept_of(cluster, session)->layout, 0);
        if (coordinator_chunk_copy_at(chunk, worker_of(cluster, w)) < COORDINATOR_COPIES_MAX) {
            struct sim_call *read = sim_read(cluster->client, session, 0, 15, 1);
            OK(read);
            assert_true(read->o == 1);
        }
        sim_cluster_free(cluster);
    }
}

// A worker that would not drop a session, and has chunks of it again.
static void what_has_come_back_is_not_dropped(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 1, 40);
    sim_serve_rule(cluster->workers[0]->loop, METHOD(SESSION_DROP),
                   (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_RESOURCE_EXHAUSTED});
    OK(sim_drain(cluster->client, "w0", false));
    wait_settled(cluster, session);
    sim_advance(SECOND);
    OK(sim_drain(cluster->client, "w0", true));
    OK(sim_drain(cluster->client, "w1", false));
    sim_advance(2 * SECOND);
    assert_int_equal(worker_of(cluster, 1)->chunks, 0);
    sim_serve_rule(cluster->workers[0]->loop, METHOD(SESSION_DROP), (struct sim_rule){.verdict = SIM_DO});
    sim_advance(2 * SECOND);
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

// A deletion does not wait for a move, a truncate alters what moves, and a store that refuses leaves all as
// it was.
static void moves_give_way(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 60; moment++) {
        struct sim_cluster *cluster = cluster_of(3);
        uint64_t session = filled_of(cluster, 1, 90);
        uint32_t w = number_of(copy_of(cluster, session, 1, 0));
        OK(sim_drain(cluster->client, cluster->workers[w]->name, false));
        sim_advance(moment / 3 * 60 * COMMON_NS_PER_US);
        if (moment % 3 == 0) {
            OK(sim_delete(cluster->client, session));
            sim_advance(2 * SECOND);
            for (uint32_t i = 0; i < 3; i++)
                assert_int_equal(cluster->workers[i]->worker->sessions.count, 0);
            for (uint32_t i = 0; i < 3; i++)
                assert_true(!worker_of(cluster, i)->chunks && !worker_of(cluster, i)->moves);
        } else if (moment % 3 == 1) {
            OK(sim_truncate(cluster->client, session, 20));
            OK(sim_append(cluster->client, session, 0, 20, 2, 4));
            wait_settled(cluster, session);
            READS(cluster, session, 22, 28);
        } else {
            sim_disk_fail(SIM_DISK_PATH, 3, COMMON_RESOURCE_EXHAUSTED);
            sim_advance(2 * SECOND);
            sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
            wait_settled(cluster, session);
            READS(cluster, session, 90, 90);
        }
        sim_cluster_free(cluster);
    }
}

// A session that is deleted while a move waits for it.
static void a_move_waits_for_a_session_that_goes(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = filled_of(cluster, 1, 40);
    struct sim_worker *holder = copy_of(cluster, session, 1, 0);
    sim_serve_rule(holder->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    struct sim_call *read =
        sim_read(cluster->client, session, 0, 39, 1); // the session is shared as long as it lasts
    sim_advance(COMMON_NS_PER_MS);
    struct sim_call *gone = sim_delete(cluster->client, session); // goes first
    OK(sim_drain(cluster->client, holder->name, false));
    sim_advance(SECOND);
    sim_serve_rule(holder->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    sim_serve_let_go(holder->loop);
    OK(gone);
    sim_wait(read);
    sim_advance(SECOND);
    assert_int_equal(cluster->coordinator->sessions.moves->n, 0);
    SHOWS(move, "waiting", "over");
    sim_cluster_free(cluster);
}

// Rows that are put and not committed are where their ticket said: such a chunk stays until they are, or the
// ticket ends.
static void what_is_being_attached_stays(void **state)
{
    (void)state;
    for (uint32_t commits = 0; commits < 2; commits++) {
        struct sim_cluster *cluster = cluster_of(3);
        struct sim_call *created = sim_create(cluster->client, (struct sim_shape){.replicas = 1}, "");
        OK(created);
        uint64_t session = created->session;
        struct sim_call *open = sim_open(cluster->client, session, 0, 40);
        OK(open);
        OK(sim_put(cluster->client, open, 0, 0, 40, 3));
        uint32_t w = number_of(copy_of(cluster, session, 1, 0));
        OK(sim_drain(cluster->client, cluster->workers[w]->name, false));
        sim_advance(5 * SECOND);
        assert_true(worker_of(cluster, w)->chunks > 0);
        if (commits) {
            OK(sim_commit(cluster->client, session, 0, 0, 40));
            wait_settled(cluster, session);
            READS(cluster, session, 40, 120);
        } else {
            sim_advance(601 * SECOND);
        }
        assert_int_equal(worker_of(cluster, w)->chunks, 0);
        sim_cluster_free(cluster);
    }
}

// A ticket names whole chunks, and lives for two minutes. What is committed does not wait for its end.
static void what_is_committed_does_not_wait_for_the_ticket(void **state)
{
    (void)state;
    for (uint32_t drains = 0; drains < 2; drains++) {
        struct sim_cluster *cluster = cluster_of(3);
        struct sim_call *created =
            sim_create(cluster->client, (struct sim_shape){.replicas = 2 - drains}, "");
        OK(created);
        uint64_t session = created->session;
        struct sim_call *open = sim_open(cluster->client, session, 0, 48);
        OK(open);
        OK(sim_put(cluster->client, open, 0, 0, 40, 3));
        OK(sim_commit(cluster->client, session, 0, 0, 40));
        struct sim_worker *holder = copy_of(cluster, session, 2, 0);
        if (drains)
            OK(sim_drain(cluster->client, holder->name, false));
        else
            sim_worker_kill(holder);
        sim_advance(10 * SECOND);
        assert_true(is_settled(cluster, session));
        assert_int_equal(worker_of(cluster, number_of(holder))->chunks, 0);
        READS(cluster, session, 40, 120);
        sim_cluster_free(cluster);
    }
}

// It names another holder than those of now, or not all of them: it is refused there, and with a fresh one
// the rows get to all. A put that every worker of a ticket has taken is never missed by the commit, at no
// moment of the move.
static void an_old_ticket_loses_no_row(void **state)
{
    (void)state;
    uint32_t refused = 0, stayed = 0, moved = 0;
    for (uint32_t moment = 0; moment < 240; moment++) {
        struct sim_cluster *cluster = cluster_of(3);
        struct sim_call *created =
            sim_create(cluster->client, (struct sim_shape){.replicas = 1 + moment % 2}, "");
        OK(created);
        uint64_t session = created->session;
        struct sim_call *open = sim_open(cluster->client, session, 0, 16);
        OK(open);
        OK(sim_put(cluster->client, open, 0, 0, 10, 3));
        OK(sim_commit(cluster->client, session, 0, 0, 10));
        sim_advance(3 * SECOND);
        struct sim_worker *holder = copy_of(cluster, session, 0, 0);
        struct coordinator_chunk *chunk = &kept_of(cluster, session)->layout.chunks[0];
        OK(sim_drain(cluster->client, holder->name, false));
        sim_advance(moment * 10 * COMMON_NS_PER_US);
        struct sim_call *put = sim_put(cluster->client, open, 0, 10, 6, 5);
        enum common_code code = sim_wait(put);
        if (code != COMMON_OK) {
            assert_true(code == COMMON_NOT_FOUND || !strcmp(put->reason, "OLD_TICKET")); // both ask again
            refused++;
            OK(open = sim_open(cluster->client, session, 0, 16));
            OK(sim_put(cluster->client, open, 0, 10, 6, 5));
        } else if (coordinator_chunk_held_by(chunk, worker_of(cluster, number_of(holder)))) {
            sim_advance(10 * COMMON_NS_PER_MS);
            stayed += coordinator_chunk_held_by(chunk, worker_of(cluster, number_of(holder)));
        }
        OK(sim_commit(cluster->client, session, 0, 10, 6));
        READS(cluster, session, 16, 60);
        wait_settled(cluster, session);
        moved += !worker_of(cluster, number_of(holder))->chunks;
        READS(cluster, session, 16, 60);
        sim_cluster_free(cluster);
    }
    assert_true(refused > 0 && stayed > 0);
    assert_int_equal(moved, 240);
}

// A worker that comes late has its share after a balance, and before it only what a dry run says.
static void a_late_worker_gets_its_share(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(4);
    sim_worker_kill(cluster->workers[3]);
    sim_advance(SECOND);
    uint64_t sessions[4];
    for (uint32_t i = 0; i < 4; i++)
        sessions[i] = filled_of(cluster, 1 + i % 2, 160);
    sim_worker_start(cluster->workers[3]);
    assert_true(sim_wait_active(cluster, 4));
    OK(sim_rebalance(cluster->client, true));
    sim_advance(5 * SECOND);
    assert_int_equal(worker_of(cluster, 3)->chunks, 0);
    OK(sim_rebalance(cluster->client, false));
    for (uint32_t i = 0; i < 40; i++) {
        OK(sim_append(cluster->client, sessions[i % 4], 0, 160 + i / 4, 1, 1));
        sim_advance(100 * COMMON_NS_PER_MS);
    }
    for (int i = 0; cluster->coordinator->sessions.wishes->n && i < 100; i++)
        sim_advance(100 * COMMON_NS_PER_MS);
    for (uint32_t i = 0; i < 4; i++)
        wait_settled(cluster, sessions[i]);
    uint64_t all = 0;
    for (uint32_t i = 0; i < 4; i++)
        all += worker_of(cluster, i)->chunks;
    for (uint32_t i = 0; i < 4; i++)
        assert_in_range(worker_of(cluster, i)->chunks, all / 4 - 3,
                        all / 4 + 3); // a few were placed meanwhile
    for (uint32_t i = 0; i < 4; i++)
        READS(cluster, sessions[i], 170, 170);
    OK(sim_rebalance(cluster->client, false)); // nothing is left to be done
    sim_advance(COMMON_NS_PER_MS);
    assert_int_equal(cluster->coordinator->sessions.wishes->n, 0);
    sim_cluster_free(cluster);
}

// It is said why nothing moves; nothing is lost meanwhile.
static void a_drain_without_room_elsewhere_waits(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 1, 40);
    OK(sim_drain(cluster->client, "w0", false));
    sim_advance(3 * SECOND);
    assert_int_equal(worker_of(cluster, 0)->chunks, 0);
    OK(sim_drain(cluster->client, "w1", false));
    sim_advance(3 * SECOND);
    assert_true(worker_of(cluster, 1)->chunks > 0);
    READS(cluster, session, 40, 40);
    OK(sim_append(cluster->client, session, 0, 40, 1, 1));
    ENDS(COMMON_UNAVAILABLE,
         sim_append(cluster->client, filled_of(cluster, 1, 0), 0, 0, 1, 1)); // for what is new, too
    OK(sim_drain(cluster->client, "w0", true));
    wait_settled(cluster, session);
    assert_int_equal(worker_of(cluster, 1)->chunks, 0);
    READS(cluster, session, 41, 41);
    ENDS(COMMON_NOT_FOUND, sim_drain(cluster->client, "w7", false));
    sim_cluster_free(cluster);
}

static void tell_one_copy(struct coordinator_options *options)
{
    options->replicas = 1;
}

static void sessions_have_two_copies_where_there_are_two_hosts(void **state)
{
    (void)state;
    for (uint32_t workers = 1; workers <= 3; workers++) {
        for (uint32_t told = 0; told < 2; told++) {
            struct sim_cluster *cluster = sim_cluster_new(
                &(struct sim_cluster_options){.workers = workers, .tune = told ? tell_one_copy : NULL});
            sim_cluster_start(cluster);
            uint64_t session = filled_of(cluster, 9, 20);
            assert_int_equal(kept_of(cluster, session)->spec->replicas, told || workers == 1 ? 1 : 2);
            sim_cluster_free(cluster);
        }
    }
}

int hermetic_moves(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_come_back),
        cmocka_unit_test(a_lost_member_is_none_any_more),
        cmocka_unit_test(a_worker_is_drained),
        cmocka_unit_test(a_drain_outlives_the_coordinator),
        cmocka_unit_test(a_move_ends_with_its_worker),
        cmocka_unit_test(a_move_that_cannot_close_is_made_again),
        cmocka_unit_test(a_store_that_refuses_leaves_all_as_it_was),
        cmocka_unit_test(a_commit_while_its_chunk_moves),
        cmocka_unit_test(the_source_is_lost_while_the_copy_is_stored),
        cmocka_unit_test(what_was_acknowledged_before_a_move_stays),
        cmocka_unit_test(a_copy_that_died_meanwhile_does_not_count),
        cmocka_unit_test(a_repair_meanwhile_has_taken_the_rows_away),
        cmocka_unit_test(who_gives_keeps_it_until_it_is_taken),
        cmocka_unit_test(what_has_come_back_is_not_dropped),
        cmocka_unit_test(moves_give_way),
        cmocka_unit_test(a_move_waits_for_a_session_that_goes),
        cmocka_unit_test(what_is_being_attached_stays),
        cmocka_unit_test(what_is_committed_does_not_wait_for_the_ticket),
        cmocka_unit_test(an_old_ticket_loses_no_row),
        cmocka_unit_test(a_late_worker_gets_its_share),
        cmocka_unit_test(a_drain_without_room_elsewhere_waits),
        cmocka_unit_test(sessions_have_two_copies_where_there_are_two_hosts),
    };
    return cmocka_run_group_tests_name("moves", tests, NULL, NULL);
}
