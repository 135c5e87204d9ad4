// SPDX-License-Identifier: Apache-2.0
// How many copies are restored in how much (simulated) time, and what choosing them costs: it is bounded by
// what a receiver and its rate take, never by how many sessions wait (coordinator/session/move_queue.h).
#include "coordinator/place/moves.h"
#include "coordinator/session/move_queue.h"
#include "tests/coordinator/hermetic/hermetic.h"

#include "coordinator/cluster/membership.h"

#define SECOND COMMON_NS_PER_S

enum { MANY = 400, ROWS = 20 }; // sessions; tokens of each: two chunks

static struct coordinator_worker *worker_of(struct sim_cluster *cluster, uint32_t i)
{
    return coordinator_worker_find(&cluster->coordinator->cluster, cluster->workers[i]->name);
}

static const struct coordinator_move_queue *queue_of(struct sim_cluster *cluster)
{
    return cluster->coordinator->sessions.move_queue;
}

static uint64_t thin_of(struct sim_cluster *cluster)
{
    return coordinator_sessions_thin(&cluster->coordinator->sessions);
}

// Until nothing is thin, at most so long. Returns how long it was.
static uint64_t wait_whole(struct sim_cluster *cluster, uint64_t most_ns)
{
    uint64_t from = common_clock_ns();
    while (thin_of(cluster)) {
        if (common_clock_ns() - from > most_ns)
            fail_msg("after %llu ms %llu chunks have too few copies",
                     (unsigned long long)((common_clock_ns() - from) / COMMON_NS_PER_MS),
                     (unsigned long long)thin_of(cluster));
        sim_advance(10 * COMMON_NS_PER_MS);
    }
    return common_clock_ns() - from;
}

// Kills it, and waits until its copies are removed.
static void lose(struct sim_cluster *cluster, uint32_t victim)
{
    uint64_t held = worker_of(cluster, victim)->chunks;
    sim_worker_kill(cluster->workers[victim]);
    for (int i = 0; worker_of(cluster, victim)->chunks > held / 2; i++) {
        assert_true(i < 1000);
        sim_advance(10 * COMMON_NS_PER_MS);
    }
}

static void none_was_overlooked(struct sim_cluster *cluster)
{
    assert_int_equal(queue_of(cluster)->strays, 0);
    assert_int_equal(queue_of(cluster)->behind, 0);
    assert_int_equal(queue_of(cluster)->n_ready, 0);
    assert_int_equal(cluster->coordinator->sessions.moves->n, 0);
}

// A move takes some round trips and a write; 16 are under way to a worker. A look at all sessions for each,
// or a second for all whenever a receiver is busy, is a hundred times more.
static void many_small_sessions_are_whole_soon(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t sessions[MANY];
    for (uint32_t i = 0; i < MANY; i++)
        sessions[i] = filled_of(cluster, 2, ROWS);
    sim_advance(10 * SECOND); // sealed, spread
    uint64_t looks = queue_of(cluster)->looks;
    sim_advance(60 * SECOND);
    assert_int_equal(queue_of(cluster)->looks, looks); // nothing is marked
    lose(cluster, 0);
    wait_whole(cluster, 2 * SECOND);
    uint64_t moved = cluster->coordinator->sessions.moves->chunks;
    sim_advance(10 * SECOND);
    looks = queue_of(cluster)->looks - looks;
    if (looks > 4 * moved)
        fail_msg("%llu chunks have moved, and sessions were looked at %llu times", (unsigned long long)moved,
                 (unsigned long long)looks);
    assert_true(moved >= MANY);
    none_was_overlooked(cluster);
    for (uint32_t i = 0; i < MANY; i++)
        READS(cluster, sessions[i], ROWS, ROWS);
    sim_cluster_free(cluster);
}

static void a_drain_of_small_sessions_is_short(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t sessions[100];
    for (uint32_t i = 0; i < 100; i++)
        sessions[i] = filled_of(cluster, 1 + i % 2, ROWS);
    OK(sim_drain(cluster->client, "w0", false));
    uint64_t from = common_clock_ns();
    while (worker_of(cluster, 0)->chunks || worker_of(cluster, 0)->members) {
        if (common_clock_ns() - from > 2 * SECOND)
            fail_msg("after 2 s %d chunks of %d sessions are left", (int)worker_of(cluster, 0)->chunks,
                     (int)worker_of(cluster, 0)->members);
        sim_advance(10 * COMMON_NS_PER_MS);
    }
    none_was_overlooked(cluster);
    for (uint32_t i = 0; i < 100; i++)
        READS(cluster, sessions[i], ROWS, ROWS);
    sim_cluster_free(cluster);
}

// It holds what it was asked for, and takes no more: copies go to the third one meanwhile.
static void a_busy_receiver_delays_who_needs_it(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(4);
    for (uint32_t i = 0; i < MANY; i++)
        filled_of(cluster, 2, ROWS);
    const struct coordinator_session *first = cluster->coordinator->sessions.slots[0];
    uint32_t busy = 1; // who may receive what worker 0 had of the first session
    while (coordinator_chunk_held_by(&first->layout.chunks[0], worker_of(cluster, busy)))
        busy++;
    sim_serve_rule(cluster->workers[busy]->loop, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_HOLD});
    lose(cluster, 0);
    sim_advance(SECOND);
    uint64_t left = 0, wait = 0;
    for (uint32_t i = 0; i < cluster->coordinator->sessions.n_slots; i++) {
        const struct coordinator_session *s = cluster->coordinator->sessions.slots[i];
        left += s->thin > 0;
        wait += s->move_ticket.behind == worker_of(cluster, busy) || s->moves;
    }
    assert_int_equal(left, wait); // for that one, all of them
    if (left < COORDINATOR_SMALL_MOVES || left >= MANY / 8)
        fail_msg("%d sessions wait for the one that is busy", (int)left);
    sim_serve_rule(cluster->workers[busy]->loop, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_DO});
    sim_serve_let_go(cluster->workers[busy]->loop);
    wait_whole(cluster, 3 * SECOND);
    none_was_overlooked(cluster);
    sim_cluster_free(cluster);
}

// A receiver that fails all that it is asked for is left alone, ever longer, and others get the copies.
static void a_failing_receiver_is_left_alone(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(4);
    for (uint32_t i = 0; i < 100; i++)
        filled_of(cluster, 2, ROWS);
    sim_serve_rule(cluster->workers[2]->loop, METHOD(CHUNK_PULL),
                   (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_RESOURCE_EXHAUSTED});
    lose(cluster, 0);
    wait_whole(cluster, 20 * SECOND);
    sim_serve_rule(cluster->workers[2]->loop, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_DO});
    sim_advance(2 * SECOND);
    none_was_overlooked(cluster);
    sim_cluster_free(cluster);
}

static void slow_links(struct coordinator_options *options)
{
    options->move_bytes_per_s = 4096; // of the large session: four seconds a move, or more
}

// Its rows travel for half a minute, at a rate that is nothing to the small ones.
static void a_large_session_holds_up_no_small_ones(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .tune = slow_links});
    sim_cluster_start(cluster);
    uint64_t large = filled_of(cluster, 2, 3000), small[30];
    for (uint32_t i = 0; i < 30; i++)
        small[i] = filled_of(cluster, 2, 1);
    lose(cluster, 0);
    sim_worker_start(cluster->workers[0]);
    assert_true(sim_wait_active(cluster, 2));
    sim_advance(8 * SECOND);
    for (uint32_t i = 0; i < 30; i++)
        assert_int_equal(kept_of(cluster, small[i])->thin, 0);
    assert_true(kept_of(cluster, large)->thin > 0);
    wait_whole(cluster, 600 * SECOND);
    READS(cluster, large, 3000, 3000);
    none_was_overlooked(cluster);
    sim_cluster_free(cluster);
}

enum { SOME = 150 };

static uint32_t waiting_of(struct sim_cluster *cluster, const uint64_t *sessions)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < SOME; i++) {
        const struct coordinator_session *s = kept_of(cluster, sessions[i]);
        n += s->thin && !s->moves;
    }
    return n;
}

// Of some sessions one copy is left, and of others, which were there before and wait before them, two.
static void the_last_copies_come_first(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(5);
    uint64_t three[SOME], two[SOME];
    for (uint32_t i = 0; i < SOME; i++)
        three[i] = filled_of(cluster, 3, ROWS);
    for (uint32_t i = 0; i < SOME; i++)
        two[i] = filled_of(cluster, 2, ROWS);
    rule_all(cluster, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_HOLD});
    lose(cluster, 0);
    sim_advance(SECOND);
    uint32_t last = waiting_of(cluster, two), others = waiting_of(cluster, three);
    assert_true(last > 10 && others > 10);
    for (uint32_t i = 1; i < 5; i++) {
        sim_serve_rule(cluster->workers[i]->loop, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_DO});
        sim_serve_let_go(cluster->workers[i]->loop);
    }
    for (uint32_t round = 0; waiting_of(cluster, two); round++) {
        assert_true(round < 50000);
        sim_advance(100 * COMMON_NS_PER_US);
    }
    if (2 * waiting_of(cluster, three) < others) // some begin where no worker with one copy may receive
        fail_msg("%u with one copy have begun, and of %u others %u", last, others,
                 others - waiting_of(cluster, three));
    wait_whole(cluster, 5 * SECOND);
    sim_advance(2 * SECOND);
    none_was_overlooked(cluster);
    sim_cluster_free(cluster);
}

int hermetic_restoring(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_small_sessions_are_whole_soon),
        cmocka_unit_test(a_drain_of_small_sessions_is_short),
        cmocka_unit_test(a_busy_receiver_delays_who_needs_it),
        cmocka_unit_test(a_failing_receiver_is_left_alone),
        cmocka_unit_test(a_large_session_holds_up_no_small_ones),
        cmocka_unit_test(the_last_copies_come_first),
    };
    return cmocka_run_group_tests_name("restoring", tests, NULL, NULL);
}
