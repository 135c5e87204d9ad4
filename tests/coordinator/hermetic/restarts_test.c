// SPDX-License-Identifier: Apache-2.0
// Restarts of the coordinator, and runs that come out the same.
#include "coordinator/place/moves.h"
#include "tests/coordinator/hermetic/hermetic.h"
#include "worker/core/state.h"

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
        if (stored) // the workers have the rows, their answer never arrives
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

// A layout that is in the store and that no worker received: the next life sends it, and no worker refuses it
// as old.
static void a_layout_is_stored_before_it_is_told(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) { // whether members join, and the epoch rises
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, first ? 0 : 20);
        uint64_t told = sim_serve_seen(cluster->workers[0]->loop, METHOD(LAYOUT_SET)) +
                        sim_serve_seen(cluster->workers[1]->loop, METHOD(LAYOUT_SET));
        sim_disk_silence(SIM_DISK_PATH, true);
        struct sim_call *open = sim_open(cluster->client, session, 0, 60);
        sim_run_until_idle();
        sim_advance(50 * COMMON_NS_PER_MS);
        assert_int_equal(sim_serve_seen(cluster->workers[0]->loop, METHOD(LAYOUT_SET)) +
                             sim_serve_seen(cluster->workers[1]->loop, METHOD(LAYOUT_SET)),
                         told);
        sim_coordinator_kill(cluster);
        ENDS(COMMON_UNAVAILABLE, open);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 2));
        OK(sim_append(cluster->client, session, 0, first ? 0 : 20, 40, 2));
        READS(cluster, session, first ? 40 : 60, first ? 40 * 2 : 20 + 40 * 2);
        sim_cluster_free(cluster);
    }
}

// Its next process lacks all, and what the other one has counts: not what both have, which is nothing.
static void a_process_that_the_store_has_not_recorded_is_not_taken_for_the_next_one(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .later = 1, .seed = 1});
    sim_cluster_start(cluster);
    sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_RESOURCE_EXHAUSTED);
    sim_worker_start(cluster->workers[1]);
    assert_true(sim_wait_active(cluster, 2));
    sim_advance(50 * COMMON_NS_PER_MS);
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK); // the process is recorded 2 s later
    uint64_t session = filled_of(cluster, 2, 40);
    sim_coordinator_kill(cluster);
    sim_worker_kill(cluster->workers[1]);
    sim_worker_start(cluster->workers[1]);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    assert_int_equal(length_of(cluster, session), 40);
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

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
    sim_net_cut(cluster->loop, cluster->workers[0]->loop);
    for (uint32_t i = 0; i < 8; i++)
        assert_true(sim_wait(calls[i]) != COMMON_IN_PROGRESS);
    uint64_t trace = sim_trace();
    sim_cluster_free(cluster);
    return trace;
}

// Rows that steps have appended, of which one holder's machine loses power before its files were synced, and
// then the coordinator is killed: in no store, and the holder that has fewer must not decide. `back`: which
// of the two is there first; but for DARK_BEFORE the other comes later than a coordinator waits for holders.
static void power_and_the_coordinator_are_lost_at_once(void **state)
{
    (void)state;
    enum { DARK_FIRST, DARK_LAST, DARK_BEFORE, TOGETHER, WAYS };
    for (uint32_t way = 0; way < 2 * 4 * WAYS; way++) {
        uint32_t back = way / 8;
        struct sim_cluster *cluster =
            sim_cluster_new(&(struct sim_cluster_options){.workers = 3, .store = true});
        sim_cluster_start(cluster);
        uint64_t session = filled_of(cluster, 2, 20);
        sim_advance(3 * COMMON_NS_PER_S); // these are synced
        OK(sim_append(cluster->client, session, 0, 20, 4, 3));
        OK(sim_append(cluster->client, session, 0, 24, 2, 5));
        struct sim_worker *dark = copy_of(cluster, session, 1, way % 2),
                          *other = copy_of(cluster, session, 1, 1 - way % 2);
        sim_worker_kill(dark);
        for (size_t i = 0; i < dark->files.n && way % 8 < 4; i++) // all of it; else a part
            dark->files.files[i].len = dark->files.files[i].synced;
        sim_files_power(&dark->files, way);
        sim_coordinator_kill(cluster);
        if (back == DARK_FIRST || back == DARK_BEFORE)
            sim_worker_kill(other);
        if (back != DARK_LAST)
            sim_worker_start(dark);
        restart(cluster);
        if (back == DARK_FIRST) { // whose rows are in doubt: rather none than too few
            sim_advance(8 * COMMON_NS_PER_S);
            struct sim_call *read = sim_read(cluster->client, session, 0, 21, 1);
            ENDS(COMMON_UNAVAILABLE, read);
        }
        if (back == DARK_BEFORE) // the other is still waited for
            sim_advance(COMMON_NS_PER_S);
        if (!other->loop)
            sim_worker_start(other);
        assert_true(sim_wait_active(cluster, back == DARK_LAST ? 2 : 3));
        READS(cluster, session, 26, 20 + 4 * 3 + 2 * 5);
        assert_int_equal(length_of(cluster, session), 26);
        sim_advance(COMMON_NS_PER_S);
        if (back == DARK_BEFORE || back == TOGETHER) // the full chunk stays
            assert_true(cluster->coordinator->sessions.struck_copies < 3);
        if (back == DARK_LAST)
            sim_worker_start(dark);
        assert_true(sim_wait_active(cluster, 3));
        sim_advance(150 * COMMON_NS_PER_S); // no ticket of before the restart is left: another copy is made
        assert_int_equal(
            coordinator_chunk_copies(coordinator_layout_find(&kept_of(cluster, session)->layout, 1)), 2);
        OK(sim_append(cluster->client, session, 0, 26, 1, 7));
        sim_worker_kill(other); // a worker with the copy has all of it
        READS(cluster, session, 27, 20 + 4 * 3 + 2 * 5 + 7);
        sim_cluster_free(cluster);
    }
}

// Two appends at position 4: the first is refused, and a holder's disk does not take that its rows are taken
// back; of the second only the other holder has its part when the coordinator is killed. Then the first
// holder's machine loses its power.
static struct sim_cluster *taken_back(uint32_t first, uint32_t second, uint32_t copy, uint64_t *session,
                                      struct sim_worker **dark, struct sim_worker **other)
{
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 3, .store = true});
    sim_cluster_start(cluster);
    *session = filled_of(cluster, 2, 4);
    *dark = copy_of(cluster, *session, 0, copy);
    *other = copy_of(cluster, *session, 0, 1 - copy);
    sim_advance(3 * COMMON_NS_PER_S);
    (*other)->files.fail_at = (*other)->files.writes + 1;
    sim_serve_rule((*dark)->loop, METHOD(ROWS_ABORT), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct sim_call *append = sim_append(cluster->client, *session, 0, 4, first, 2);
    sim_advance(100 * COMMON_NS_PER_MS);
    assert_int_equal(sim_worker_tokens(*dark, *session, 0), 4 + first);
    (*dark)->files.fail_at = (*dark)->files.writes + 1;
    (*other)->files.fail_at = 0;
    assert_int_equal(sim_serve_let_go((*dark)->loop), 1);
    ENDS(COMMON_RESOURCE_EXHAUSTED, append);
    assert_true(sim_append_refused(append));
    sim_advance(3 * COMMON_NS_PER_S); // what the disks have taken is synced
    sim_net_hold((*dark)->loop, cluster->loop);
    sim_net_hold((*other)->loop, cluster->loop);
    append = sim_append(cluster->client, *session, 0, 4, second, 5);
    sim_advance(100 * COMMON_NS_PER_MS);
    assert_int_equal(sim_worker_tokens(*dark, *session, 0), 4);
    assert_int_equal(sim_worker_tokens(*other, *session, 0), 4 + second);
    sim_coordinator_kill(cluster);
    sim_net_heal();
    assert_true(sim_wait(append) != COMMON_OK);
    sim_worker_kill(*dark);
    sim_files_power(&(*dark)->files, 0);
    (*dark)->files.fail_at = 0;
    return cluster;
}

// Each worker with a copy at last has the second append, which is there or accepted again.
static void has_the_second(struct sim_cluster *cluster, uint64_t session, struct sim_worker *other,
                           uint32_t second)
{
    uint64_t length = length_of(cluster, session);
    assert_true(length == 4 || length == 4 + second);
    OK(sim_append(cluster->client, session, 0, 4, second, 5));
    READS(cluster, session, 4 + second, 4 + second * 5);
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 3));
    READS(cluster, session, 4 + second, 4 + second * 5);
    sim_advance(150 * COMMON_NS_PER_S); // another copy is made, where one was removed
    assert_int_equal(coordinator_chunk_copies(coordinator_layout_find(&kept_of(cluster, session)->layout, 0)),
                     2);
    sim_worker_kill(other);
    READS(cluster, session, 4 + second, 4 + second * 5);
    sim_cluster_free(cluster);
}

// The holder in doubt has at least as many rows as count: but they are the first append's (seed
// 23052369501264 of chaos_test).
static void rows_that_were_taken_back_pass_for_no_others(void **state)
{
    (void)state;
    enum { DARK_FIRST, OTHER_FIRST, TOGETHER, ORDERS };
    static const uint32_t firsts[] = {3, 8, 11, 12, 20}, seconds[] = {3, 8, 11, 12};
    for (uint32_t way = 0; way < 5 * 4 * 2 * ORDERS; way++) {
        uint32_t second = seconds[way / 5 % 4], order = way / 40;
        struct sim_worker *dark, *other;
        uint64_t session;
        struct sim_cluster *cluster =
            taken_back(firsts[way % 5], second, way / 20 % 2, &session, &dark, &other);
        if (order == DARK_FIRST)
            sim_net_part(NULL, other->loop);
        if (order != OTHER_FIRST)
            sim_worker_start(dark);
        restart(cluster);
        sim_advance(COMMON_NS_PER_S);
        sim_net_mend(NULL, other->loop);
        if (order == OTHER_FIRST)
            sim_worker_start(dark);
        assert_true(sim_wait_active(cluster, 3));
        has_the_second(cluster, session, other, second);
    }
}

// The coordinator ends once more at any time of the visit: a holder that received which rows count is in
// doubt no longer.
static void rows_that_were_taken_back_pass_for_no_others_later(void **state)
{
    (void)state;
    for (uint32_t at = 0; at < 80; at++) {
        struct sim_worker *dark, *other;
        uint64_t session;
        struct sim_cluster *cluster = taken_back(8, 8, at % 2, &session, &dark, &other);
        restart(cluster);
        sim_advance(COMMON_NS_PER_S);
        sim_worker_start(dark);
        sim_advance(at * 20 * COMMON_NS_PER_MS);
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 3));
        has_the_second(cluster, session, other, 8);
    }
}

// All of a chunk's holders have lost power: no copy is better than what all of them have. The doubt ends with
// that: a second loss at one of them loses nothing more.
static void power_is_lost_at_all_holders(void **state)
{
    (void)state;
    for (uint32_t way = 0; way < 8; way++) {
        struct sim_cluster *cluster =
            sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .store = true});
        sim_cluster_start(cluster);
        uint64_t session = filled_of(cluster, 2, 20);
        sim_advance(3 * COMMON_NS_PER_S);
        OK(sim_append(cluster->client, session, 0, 20, 4, 3));
        for (uint32_t w = 0; w < 2; w++) {
            sim_worker_kill(cluster->workers[w]);
            sim_files_power(&cluster->workers[w]->files, way + w * 77);
        }
        sim_coordinator_kill(cluster);
        restart(cluster);
        for (uint32_t w = 0; w < 2; w++)
            sim_worker_start(cluster->workers[(way + w) % 2]);
        assert_true(sim_wait_active(cluster, 2));
        uint64_t length = length_of(cluster, session), sum = 20 + (length - 20) * 3;
        assert_true(length == 20 || length == 24);
        READS(cluster, session, length, sum);
        sim_advance(3 * COMMON_NS_PER_S);
        OK(sim_append(cluster->client, session, 0, length, 2, 9));
        sim_worker_kill(cluster->workers[way % 2]);
        sim_files_power(&cluster->workers[way % 2]->files, way);
        sim_coordinator_kill(cluster);
        restart(cluster);
        sim_worker_start(cluster->workers[way % 2]);
        assert_true(sim_wait_active(cluster, 2));
        READS(cluster, session, length + 2, sum + 18);
        sim_cluster_free(cluster);
    }
}

// Rows that steps have appended are durable with a commit beside them; the only holder's machine loses power
// before its files were synced. The coordinator is killed at any time of the visit of its next process: the
// next life finds out as well what is lost (seed 930053651 of chaos_test).
static void power_is_lost_and_the_coordinator_ends_in_the_visit(void **state)
{
    (void)state;
    for (uint32_t at = 0; at < 60; at++) {
        struct sim_cluster *cluster =
            sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .store = true});
        sim_cluster_start(cluster);
        uint64_t session = filled_of(cluster, 1, 20);
        sim_advance(3 * COMMON_NS_PER_S); // these are synced
        OK(sim_append(cluster->client, session, 0, 20, 4, 3));
        struct sim_call *opened = sim_open(cluster->client, session, 24, 2);
        OK(opened);
        OK(sim_put(cluster->client, opened, 0, 24, 2, 5));
        OK(sim_commit(cluster->client, session, 0, 24, 2));
        struct sim_worker *dark = copy_of(cluster, session, 1, 0);
        sim_worker_kill(dark);
        for (size_t i = 0; i < dark->files.n; i++)
            dark->files.files[i].len = dark->files.files[i].synced;
        sim_files_power(&dark->files, 0);
        sim_worker_start(dark);
        sim_advance(at * 50 * COMMON_NS_PER_US);
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 2));
        sim_advance(COMMON_NS_PER_S);
        struct sim_call *read = sim_read(cluster->client, session, 0, 25, 1);
        ENDS(COMMON_DATA_LOSS, read);
        assert_int_equal(read->first_missing, 16);
        assert_int_equal(read->count_missing, 10); // as far as it looks
        READS(cluster, session, 16, 16);
        OK(sim_truncate(cluster->client, session, 16));
        OK(sim_append(cluster->client, session, 0, 16, 10, 1));
        READS(cluster, session, 26, 26);
        sim_cluster_free(cluster);
    }
}

// What waits for a holder after a restart has its turn in the order in which it came, however often it was
// looked at meanwhile.
static void calls_that_wait_for_a_holder_keep_their_order(void **state)
{
    (void)state;
    for (uint64_t ms = 20; ms <= 400; ms += 20) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 80);
        const struct sim_worker *holder = holder_of(cluster, session, 0);
        sim_coordinator_kill(cluster);
        sim_net_part(NULL, holder->loop);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 1));
        struct sim_call *first = sim_truncate(cluster->client, session, 64),
                        *second = sim_truncate(cluster->client, session, 32);
        sim_advance(ms * COMMON_NS_PER_MS);
        assert_false(first->done || second->done);
        sim_net_mend(NULL, holder->loop);
        OK(first);
        OK(second);
        READS(cluster, session, 32, 32);
        sim_cluster_free(cluster);
    }
}

// A truncate that its client has given up while it waited does not happen after all: the client has gone on
// to other things (seed 5000018785 of chaos_test).
static void a_truncate_that_was_given_up_does_not_come_later(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 80);
    const struct sim_worker *holder = holder_of(cluster, session, 0);
    sim_coordinator_kill(cluster);
    sim_net_part(NULL, holder->loop);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 1));
    struct sim_call *truncate = sim_truncate(cluster->client, session, 32);
    sim_advance(100 * COMMON_NS_PER_MS);
    assert_false(truncate->done);
    sim_cancel(truncate);
    ENDS(COMMON_CANCELLED, truncate);
    sim_net_mend(NULL, holder->loop);
    assert_true(sim_wait_active(cluster, 2));
    sim_advance(COMMON_NS_PER_S);
    READS(cluster, session, 80, 80);
    sim_cluster_free(cluster);
}

// A holder does not come back after a restart. The answer to how long the session is has, at whatever moment,
// all that was acknowledged: an earlier report of the others does not count before they have sent it again
// without that one.
static void a_length_is_never_short(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 120; moment++) {
        struct sim_cluster *cluster = cluster_of(2);
        struct common_error err;
        uint64_t session = filled_of(cluster, 2, 40);
        sim_worker_kill(cluster->workers[moment % 2]);
        sim_coordinator_kill(cluster);
        assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
        sim_advance(4990 * COMMON_NS_PER_MS + moment * 5 * COMMON_NS_PER_MS);
        for (uint32_t i = 0; i < 60; i++) {
            struct sim_call *info = sim_info(cluster->client, session);
            OK(info);
            assert_int_equal(info->length, 40);
            sim_advance(50 * COMMON_NS_PER_US);
        }
        sim_cluster_free(cluster);
    }
}

// A client sends its appends one behind the other and waits for none. After a restart the holders come late:
// each append waits, and none takes its turn before the one before it.
static void appends_that_wait_for_workers_keep_their_order(void **state)
{
    enum { APPENDS = 6 };
    (void)state;
    for (uint64_t apart = 1; apart <= 12; apart++) {
        struct sim_cluster *cluster = cluster_of(2);
        struct common_error err;
        uint64_t session = session_of(cluster, 40);
        sim_coordinator_kill(cluster);
        for (int w = 0; w < 2; w++)
            sim_net_part(NULL, cluster->workers[w]->loop);
        assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
        assert_true(sim_wait_active(cluster, 0)); // the client has its channel again
        struct sim_call *appends[APPENDS], *read;
        for (uint32_t i = 0; i < APPENDS; i++) {
            appends[i] = sim_append(cluster->client, session, 0, 40 + i, 1, 2);
            sim_advance(apart * COMMON_NS_PER_MS);
            assert_false(appends[i]->done);
        }
        read = sim_read(cluster->client, session, 0, 40 + APPENDS - 1, 1);
        sim_advance(200 * COMMON_NS_PER_MS);
        for (int w = 0; w < 2; w++)
            sim_net_mend(NULL, cluster->workers[w]->loop);
        for (uint32_t i = 0; i < APPENDS; i++)
            OK(appends[i]);
        OK(read);
        assert_int_equal(length_of(cluster, session), 40 + APPENDS);
        READS(cluster, session, 40 + APPENDS, 40 + APPENDS * 2);
        sim_cluster_free(cluster);
    }
}

// A session has no chunk yet, so no worker of it is missing. The coordinator has just started: no worker is
// back, or the only one that is back is full. An append and an attach wait for the others; they fail when
// these do not come in time.
static void what_finds_no_place_waits_for_workers_after_a_restart(void **state)
{
    (void)state;
    for (uint32_t way = 0; way < 4; way++) {
        bool full = way & 1, come = way & 2;
        struct sim_cluster *cluster = cluster_of(2);
        struct worker_store *store = cluster->workers[0]->worker->store;
        (void)session_of(cluster, 40); // its workers are in the store
        struct sim_call *appends = sim_create(cluster->client, (struct sim_shape){0}, "appends"),
                        *attaches = sim_create(cluster->client, (struct sim_shape){0}, "attaches");
        OK(appends);
        OK(attaches);
        if (full)
            assert_true(worker_store_take(store, worker_store_limit(store) - worker_store_used(store)));
        sim_coordinator_kill(cluster);
        for (int w = full; w < 2; w++)
            sim_net_part(NULL, cluster->workers[w]->loop);
        restart(cluster);
        assert_true(sim_wait_active(cluster, full));
        struct sim_call *append = sim_append(cluster->client, appends->session, 0, 0, 1, 2),
                        *open = sim_open(cluster->client, attaches->session, 0, 16);
        sim_advance(COMMON_NS_PER_S);
        assert_false(append->done || open->done);
        for (int w = full; w < 2 && come; w++)
            sim_net_mend(NULL, cluster->workers[w]->loop);
        enum common_code none = full ? COMMON_RESOURCE_EXHAUSTED : COMMON_UNAVAILABLE;
        uint64_t from = common_clock_ns();
        ENDS(come ? COMMON_OK : none, append);
        ENDS(come ? COMMON_OK : none, open);
        assert_true(common_clock_ns() - from < 6 * COMMON_NS_PER_S);
        assert_int_equal(length_of(cluster, appends->session), come);
        sim_cluster_free(cluster);
    }
}

static void a_seed_gives_the_same_run(void **state)
{
    (void)state;
    uint64_t first = trace_of(1);
    assert_true(trace_of(1) == first);
    assert_true(trace_of(2) != first);
}

// The last answer of the store lets in who waited for the session, and the loop has ended by then: that ends,
// too.
static void a_stop_ends_what_its_last_answers_begin(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    sim_run_until_idle();
    sim_disk_delay(SIM_DISK_PATH, COMMON_NS_PER_S);
    for (uint64_t length = 30; length > 20; length -= 2)
        (void)sim_truncate(cluster->client, session, length);
    sim_advance(100 * COMMON_NS_PER_MS); // the first one is in the store, the others wait
    sim_coordinator_stop(cluster);
    sim_disk_delay(SIM_DISK_PATH, 100 * COMMON_NS_PER_US);
    restart(cluster);
    sim_run_until_idle();
    assert_in_range(length_of(cluster, session), 22, 30);
    sim_cluster_free(cluster);
}

int hermetic_restarts(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restarted_coordinator_learns_from_its_workers),
        cmocka_unit_test(an_append_under_way_at_a_kill_is_there_or_not),
        cmocka_unit_test(a_create_that_was_durable_and_unanswered_is_there_after_a_restart),
        cmocka_unit_test(a_layout_is_stored_before_it_is_told),
        cmocka_unit_test(power_and_the_coordinator_are_lost_at_once),
        cmocka_unit_test(rows_that_were_taken_back_pass_for_no_others),
        cmocka_unit_test(rows_that_were_taken_back_pass_for_no_others_later),
        cmocka_unit_test(power_is_lost_at_all_holders),
        cmocka_unit_test(power_is_lost_and_the_coordinator_ends_in_the_visit),
        cmocka_unit_test(calls_that_wait_for_a_holder_keep_their_order),
        cmocka_unit_test(a_truncate_that_was_given_up_does_not_come_later),
        cmocka_unit_test(a_length_is_never_short),
        cmocka_unit_test(appends_that_wait_for_workers_keep_their_order),
        cmocka_unit_test(what_finds_no_place_waits_for_workers_after_a_restart),
        cmocka_unit_test(a_process_that_the_store_has_not_recorded_is_not_taken_for_the_next_one),
        cmocka_unit_test(a_seed_gives_the_same_run),
        cmocka_unit_test(a_stop_ends_what_its_last_answers_begin),
    };
    return cmocka_run_group_tests_name("restarts", tests, NULL, NULL);
}
