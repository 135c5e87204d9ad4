// SPDX-License-Identifier: Apache-2.0
// What becomes of one copy of a chunk when two things happen to it at once (coordinator/session/copy.h).
#include "tests/coordinator/hermetic/hermetic.h"
#include "tests/coordinator/hermetic/sealed.h"

#define SECOND COMMON_NS_PER_S

struct moved { // a chunk on its way from one worker to the other
    struct sim_cluster *cluster;
    uint64_t session;
    struct sim_worker *from, *to;
};

// Its rows have come, and the store does not answer yet. old: the worker it goes to cannot compute
// sums. The first sum that its source is asked for is held.
static struct moved storing(bool old)
{
    struct moved m = {.cluster = cluster_of(2)};
    m.session = sealed_new(m.cluster, 1, 16);
    m.from = copy_of(m.cluster, m.session, 0, 0);
    m.to = m.cluster->workers[m.from == m.cluster->workers[0]];
    sim_serve_rule(m.to->loop, METHOD(CHUNK_PULL), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    if (old)
        sim_serve_rule(m.to->loop, METHOD(CHUNK_SUM),
                       (struct sim_rule){.verdict = SIM_FAIL, .code = COMMON_UNIMPLEMENTED});
    sim_serve_rule(m.from->loop, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    OK(sim_drain(m.cluster->client, m.from->name, false));
    OK(sim_scrub(m.cluster->client, m.session, false));
    sim_advance(SECOND);
    sim_disk_stall(SIM_DISK_PATH, true);
    assert_int_equal(sim_serve_held(m.from->loop), 1);
    assert_int_equal(sim_serve_let_go(m.to->loop), 1);
    sim_advance(SECOND);
    assert_int_equal(coordinator_chunk_copies(sealed_chunk(m.cluster, m.session, 0)), 1);
    assert_non_null(coordinator_chunk_coming(sealed_chunk(m.cluster, m.session, 0)));
    return m;
}

// It is stored, and the worker that it went to has not acknowledged its layout: the other one's copy
// is leaving.
static struct moved leaving(void)
{
    struct moved m = storing(false);
    sim_serve_rule(m.to->loop, METHOD(LAYOUT_SET), (struct sim_rule){.verdict = SIM_HOLD});
    sim_disk_stall(SIM_DISK_PATH, false);
    sim_advance(10 * COMMON_NS_PER_MS);
    const struct coordinator_chunk *chunk = sealed_chunk(m.cluster, m.session, 0);
    assert_int_equal(coordinator_chunk_copies(chunk), 2);
    assert_int_equal(coordinator_chunk_where(chunk, COORDINATOR_IN(LEAVING)), 1);
    SHOWS(copy, "coming", "sync");
    SHOWS(copy, "sync", "leaving");
    return m;
}

static void goes_on(struct moved *m)
{
    sim_serve_rule(m->to->loop, METHOD(LAYOUT_SET), (struct sim_rule){.verdict = SIM_DO});
    sim_serve_let_go(m->to->loop);
    sim_serve_let_go(m->from->loop);
    assert_true(sim_wait_active(m->cluster, 2));
    for (int i = 0; coordinator_chunk_copies(sealed_chunk(m->cluster, m->session, 0)) != 1; i++) {
        assert_true(i < 100);
        sim_advance(100 * COMMON_NS_PER_MS);
    }
    assert_ptr_equal(copy_of(m->cluster, m->session, 0, 0), m->to);
    READS(m->cluster, m->session, 16, 16);
    sim_cluster_free(m->cluster);
}

static void a_copy_that_is_leaving_goes(void **state)
{
    (void)state;
    struct moved m = leaving();
    sim_worker_kill(m.from);
    sim_worker_start(m.from);
    sim_advance(SECOND);
    SHOWS(copy, "leaving", "gone");
    goes_on(&m);
}

static void a_copy_that_is_leaving_is_wrong(void **state)
{
    (void)state;
    struct moved m = leaving();
    sealed_flip(m.cluster, m.session, 0, 0);
    assert_int_equal(sim_serve_let_go(m.from->loop), 1);
    sim_advance(SECOND);
    SHOWS(copy, "leaving", "wrong");
    goes_on(&m);
}

// The other one died before it could take its place.
static void a_copy_that_was_leaving_stays(void **state)
{
    (void)state;
    struct moved m = leaving();
    sim_worker_kill(m.to);
    for (int i = 0; !sim_edge_taken(&coordinator_copy_machine, "leaving", "sync"); i++) {
        assert_true(i < 200);
        sim_advance(100 * COMMON_NS_PER_MS);
    }
    SHOWS(copy, "leaving", "sync");
    sim_serve_let_go(m.from->loop);
    READS(m.cluster, m.session, 16, 16);
    sim_worker_start(m.to);
    goes_on(&m);
}

// The worker cannot compute sums, and the source of its copy is found to be wrong while the store writes
// that there is a copy: no worker has the chunk.
static void a_copy_comes_from_a_wrong_one(void **state)
{
    (void)state;
    struct moved m = storing(true);
    sealed_flip(m.cluster, m.session, 0, 0);
    assert_int_equal(sim_serve_let_go(m.from->loop), 1);
    for (int i = 0; !sealed_chunk(m.cluster, m.session, 0)->losing; i++) {
        assert_true(i < 100);
        sim_advance(100 * COMMON_NS_PER_MS);
    }
    sim_disk_stall(SIM_DISK_PATH, false);
    sim_advance(SECOND);
    SHOWS(copy, "coming", "wrong");
    SHOWS(copy, "sync", "wrong");
    ENDS(COMMON_DATA_LOSS, sim_read(m.cluster->client, m.session, 0, 15, 1));
    sim_cluster_free(m.cluster);
}

// The worker that rows come to ends before the store has taken them, and is back without them.
static void a_copy_is_gone_before_it_has_come(void **state)
{
    (void)state;
    struct moved m = storing(false);
    sim_worker_kill(m.to);
    sim_worker_start(m.to);
    sim_advance(SECOND);
    sim_disk_stall(SIM_DISK_PATH, false);
    sim_advance(SECOND);
    SHOWS(copy, "coming", "gone");
    READS(m.cluster, m.session, 16, 16);
    goes_on(&m);
}

// The store does not write that a wrong copy is removed, and its worker ends meanwhile.
static void a_wrong_copy_goes(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = sealed_new(cluster, 2, 16);
    struct sim_worker *wrong = copy_of(cluster, session, 0, 1);
    sealed_flip(cluster, session, 0, 1);
    sim_disk_stall(SIM_DISK_PATH, true);
    OK(sim_scrub(cluster->client, session, false));
    sim_advance(SECOND);
    assert_int_equal(coordinator_chunk_where(sealed_chunk(cluster, session, 0), COORDINATOR_IN(WRONG)), 2);
    sim_worker_kill(wrong);
    sim_worker_start(wrong);
    sim_advance(SECOND);
    SHOWS(copy, "wrong", "gone");
    sim_disk_stall(SIM_DISK_PATH, false);
    assert_true(sim_wait_active(cluster, 3));
    READS(cluster, session, 16, 16);
    sim_cluster_free(cluster);
}

// All holders of an empty chunk, to which a client may be putting rows, come back without it: all of them
// start it again.
static void an_empty_chunk_starts_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_call *made = sim_create(cluster->client, (struct sim_shape){.replicas = 2}, "");
    OK(made);
    struct sim_call *opened = sim_open(cluster->client, made->session, 0, 16);
    OK(opened);
    for (uint32_t i = 0; i < 2; i++) {
        sim_worker_kill(cluster->workers[i]);
        sim_worker_start(cluster->workers[i]);
    }
    assert_true(sim_wait_active(cluster, 2));
    SHOWS(copy, "sync", "gone");
    SHOWS(copy, "gone", "sync");
    OK(sim_append(cluster->client, made->session, 0, 0, 16, 1));
    READS(cluster, made->session, 16, 16);
    sim_cluster_free(cluster);
}

// What its disk had not synced is gone.
static void lose_power(struct sim_worker *worker)
{
    sim_worker_kill(worker);
    for (size_t i = 0; i < worker->files.n; i++)
        worker->files.files[i].len = worker->files.files[i].synced;
    sim_files_power(&worker->files, 0);
}

// The coordinator has started again, and one of two holders has reported its rows, when the power of that
// one goes: its next report is less certain than that of the other one.
static void a_holder_that_was_heard_loses_power(void **state)
{
    (void)state;
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .store = true});
    sim_cluster_start(cluster);
    uint64_t session = filled_of(cluster, 2, 4);
    sim_advance(3 * SECOND); // these are synced
    OK(sim_append(cluster->client, session, 0, 4, 4, 3));
    sim_coordinator_kill(cluster);
    sim_worker_kill(cluster->workers[1]);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 1));
    SHOWS(report, "silent", "heard");
    lose_power(cluster->workers[0]);
    sim_worker_start(cluster->workers[0]);
    assert_true(sim_wait_active(cluster, 1));
    SHOWS(report, "heard", "doubtful");
    sim_worker_start(cluster->workers[1]);
    assert_true(sim_wait_active(cluster, 2));
    READS(cluster, session, 8, 4 + 4 * 3);
    SHOWS(report, "doubtful", "heard");
    sim_cluster_free(cluster);
}

// With two copies of each chunk, at all three workers.
static uint64_t spread_of(struct sim_cluster *cluster, uint32_t tokens)
{
    struct sim_call *made = sim_create(cluster->client, (struct sim_shape){.members = 3, .replicas = 2}, "");
    OK(made);
    uint64_t session = made->session;
    for (uint32_t at = 0; at < tokens; at += 16)
        OK(sim_append(cluster->client, session, 0, at, tokens - at < 16 ? tokens - at : 16, 1));
    return session;
}

// A full chunk of which these two have the copies.
static bool shared(struct sim_cluster *cluster, uint64_t session, uint32_t one, uint32_t other)
{
    for (uint32_t i = 0; i < 4; i++) {
        const struct sim_worker *a = copy_of(cluster, session, i, 0), *b = copy_of(cluster, session, i, 1);
        const struct sim_worker *x = cluster->workers[one], *y = cluster->workers[other];
        if ((a == x && b == y) || (a == y && b == x))
            return true;
    }
    return false;
}

// With its power a holder has forgotten a truncate, and the coordinator starts again: whether its chunks
// are as the truncate left them is unknown. It has received the truncate's layout when a third worker's
// holder is removed, and all report again: now its full chunks are certain.
static void a_truncate_is_forgotten_with_the_power(void **state)
{
    (void)state;
    uint32_t ways = 0;
    for (uint32_t dark = 0; dark < 3; dark++)
        for (uint32_t away = 0; away < 3; away++) {
            struct sim_cluster *cluster =
                sim_cluster_new(&(struct sim_cluster_options){.workers = 3, .store = true});
            sim_cluster_start(cluster);
            uint64_t session = spread_of(cluster, 76);
            sim_advance(3 * SECOND); // these are synced
            if (away != dark && shared(cluster, session, dark, away) &&
                shared(cluster, session, away, 3 - dark - away)) {
                ways++;
                OK(sim_truncate(cluster->client, session, 64));
                lose_power(cluster->workers[dark]);
                sim_coordinator_kill(cluster);
                sim_worker_kill(cluster->workers[away]);
                sim_worker_start(cluster->workers[dark]);
                restart(cluster);
                assert_true(sim_wait_active(cluster, 2));
                SHOWS(report, "silent", "doubting");
                SHOWS(report, "doubting", "doubtful");
                sim_advance(8 * SECOND); // the one that is away is given up
                SHOWS(report, "heard", "silent");
                SHOWS(report, "doubtful", "doubting");
                SHOWS(report, "doubting", "silent");
                sim_worker_start(cluster->workers[away]);
                assert_true(sim_wait_active(cluster, 3));
                READS(cluster, session, 64, 64);
            }
            sim_cluster_free(cluster);
        }
    assert_true(ways > 0);
}

int hermetic_copies(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_copy_that_is_leaving_goes),
                                       cmocka_unit_test(a_copy_that_is_leaving_is_wrong),
                                       cmocka_unit_test(a_copy_that_was_leaving_stays),
                                       cmocka_unit_test(a_copy_comes_from_a_wrong_one),
                                       cmocka_unit_test(a_copy_is_gone_before_it_has_come),
                                       cmocka_unit_test(a_wrong_copy_goes),
                                       cmocka_unit_test(an_empty_chunk_starts_again),
                                       cmocka_unit_test(a_holder_that_was_heard_loses_power),
                                       cmocka_unit_test(a_truncate_is_forgotten_with_the_power)};
    return cmocka_run_group_tests_name("copies", tests, NULL, NULL);
}
