// SPDX-License-Identifier: Apache-2.0
// Pages of an inventory, and layouts that change between them: what a worker has said is judged by what it
// had been given when it was asked.
#include "coordinator/place/moves.h"
#include "tests/coordinator/hermetic/hermetic.h"

#include "coordinator/cluster/membership.h"

enum { SESSIONS = 3, ROWS = 40, CUT = 21 }; // of chunks of 16 tokens: the second one is cut

static const struct sim_rule hold = {.verdict = SIM_HOLD}, pass = {.verdict = SIM_DO};

static struct coordinator_worker *kept_worker(struct sim_cluster *cluster, uint32_t i)
{
    return coordinator_worker_find(&cluster->coordinator->cluster, cluster->workers[i]->name);
}

// Workers that name one chunk a page.
static struct sim_cluster *paged(uint32_t workers, bool store)
{
    struct sim_cluster *cluster = sim_cluster_new(
        &(struct sim_cluster_options){.workers = workers, .store = store, .inventory_bytes = 1});
    sim_cluster_start(cluster);
    return cluster;
}

// Of some sessions that the worker has the one that its inventory names first.
static uint64_t first_session(struct sim_cluster *cluster, uint32_t replicas)
{
    uint64_t first = UINT64_MAX;
    for (uint32_t i = 0; i < SESSIONS; i++) {
        uint64_t session = filled_of(cluster, replicas, ROWS);
        first = session < first ? session : first;
    }
    sim_advance(2 * COMMON_NS_PER_S); // sealed, and in the files where there are any
    return first;
}

// A truncate whose copy is made, and whose store does not answer.
static struct sim_call *truncate_stalled(struct sim_cluster *cluster, uint64_t session)
{
    sim_disk_stall(SIM_DISK_PATH, true);
    struct sim_call *truncate = sim_truncate(cluster->client, session, CUT);
    sim_advance(100 * COMMON_NS_PER_MS);
    assert_non_null(kept_of(cluster, session)->copy);
    return truncate;
}

static void break_link(struct sim_cluster *cluster, struct sim_worker *w)
{
    sim_net_part(cluster->loop, w->loop);
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_net_mend(cluster->loop, w->loop);
}

// Page by page, until those of this session are behind and the next one is asked for.
static void pages_past(struct sim_cluster *cluster, uint32_t worker, uint64_t session)
{
    for (int i = 0; kept_worker(cluster, worker)->listed <= session; i++) {
        assert_true(i < 100);
        sim_serve_let_go(cluster->workers[worker]->loop);
        sim_advance(10 * COMMON_NS_PER_MS);
    }
    assert_int_equal(sim_serve_held(cluster->workers[worker]->loop), 1);
}

static void end_visit(struct sim_cluster *cluster, uint32_t workers)
{
    for (uint32_t i = 0; i < workers; i++) {
        sim_serve_rule(cluster->workers[i]->loop, METHOD(INVENTORY), pass);
        sim_serve_let_go(cluster->workers[i]->loop);
    }
    assert_true(sim_wait_active(cluster, workers));
}

static void reads_for_good(struct sim_cluster *cluster, uint64_t session, uint32_t workers)
{
    READS(cluster, session, CUT, CUT);
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sim_wait_active(cluster, workers));
    READS(cluster, session, CUT, CUT);
}

// The worker comes back, the same process, and has named all that it has of the session, the copy included.
// Then the store answers, and the copy is in the layout.
static void what_is_cut_between_two_pages_is_not_lost(void **state)
{
    (void)state;
    struct sim_cluster *cluster = paged(1, false);
    struct sim_worker *w = cluster->workers[0];
    uint64_t session = first_session(cluster, 1);
    struct sim_call *truncate = truncate_stalled(cluster, session);
    sim_serve_rule(w->loop, METHOD(INVENTORY), hold);
    break_link(cluster, w);
    sim_advance(10 * COMMON_NS_PER_MS);
    pages_past(cluster, 0, session);
    sim_disk_stall(SIM_DISK_PATH, false);
    OK(truncate);
    assert_int_equal(kept_of(cluster, session)->lost, 0);
    end_visit(cluster, 1);
    reads_for_good(cluster, session, 1);
    sim_cluster_free(cluster);
}

// The same where another worker has a copy, too: neither is removed.
static void what_is_cut_between_two_pages_keeps_its_copies(void **state)
{
    (void)state;
    struct sim_cluster *cluster = paged(2, false);
    uint64_t session = first_session(cluster, 2);
    struct sim_call *truncate = truncate_stalled(cluster, session);
    sim_serve_rule(cluster->workers[0]->loop, METHOD(INVENTORY), hold);
    break_link(cluster, cluster->workers[0]);
    sim_advance(10 * COMMON_NS_PER_MS);
    pages_past(cluster, 0, session);
    sim_disk_stall(SIM_DISK_PATH, false);
    OK(truncate);
    end_visit(cluster, 2);
    assert_int_equal(cluster->coordinator->sessions.struck_copies, 0);
    reads_for_good(cluster, session, 2);
    sim_cluster_free(cluster);
}

// Another process comes, without anything: it has been asked before the store answers, says so after it, and
// what was copied is lost.
static void what_a_process_took_with_it_is_lost_whenever_it_was_asked(void **state)
{
    (void)state;
    for (uint32_t before = 0; before < 2;
         before++) { // what it says comes before the store's answer, or after it
        struct sim_cluster *cluster = paged(1, false);
        struct sim_worker *w = cluster->workers[0];
        uint64_t session = first_session(cluster, 1);
        struct sim_call *truncate = truncate_stalled(cluster, session);
        sim_worker_kill(w);
        sim_worker_start(w);
        sim_serve_rule(w->loop, METHOD(INVENTORY), hold);
        sim_advance(100 * COMMON_NS_PER_MS);
        assert_int_equal(sim_serve_held(w->loop), 1);
        if (before) {
            sim_serve_let_go(w->loop);
            sim_advance(10 * COMMON_NS_PER_MS);
        }
        sim_disk_stall(SIM_DISK_PATH, false);
        sim_advance(10 * COMMON_NS_PER_MS);
        sim_wait(truncate);
        end_visit(cluster, 1);
        for (int restarts = 0; restarts < 2; restarts++) {
            ENDS(COMMON_DATA_LOSS, sim_read(cluster->client, session, 0, CUT - 1, 1));
            sim_coordinator_kill(cluster);
            restart(cluster);
            assert_true(sim_wait_active(cluster, 1));
        }
        sim_cluster_free(cluster);
    }
}

// Another process comes, with the copy in its files: it has named it before the store answers.
static void what_a_process_has_in_its_files_is_not_lost(void **state)
{
    (void)state;
    struct sim_cluster *cluster = paged(1, true);
    struct sim_worker *w = cluster->workers[0];
    uint64_t session = first_session(cluster, 1);
    struct sim_call *truncate = truncate_stalled(cluster, session);
    sim_advance(2 * COMMON_NS_PER_S); // it is in the files
    sim_worker_kill(w);
    sim_worker_start(w);
    sim_serve_rule(w->loop, METHOD(INVENTORY), hold);
    sim_advance(100 * COMMON_NS_PER_MS);
    pages_past(cluster, 0, session);
    sim_disk_stall(SIM_DISK_PATH, false);
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_wait(truncate);
    end_visit(cluster, 1);
    reads_for_good(cluster, session, 1);
    sim_cluster_free(cluster);
}

int hermetic_visits(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_cut_between_two_pages_is_not_lost),
        cmocka_unit_test(what_is_cut_between_two_pages_keeps_its_copies),
        cmocka_unit_test(what_a_process_took_with_it_is_lost_whenever_it_was_asked),
        cmocka_unit_test(what_a_process_has_in_its_files_is_not_lost),
    };
    return cmocka_run_group_tests_name("visits", tests, NULL, NULL);
}
