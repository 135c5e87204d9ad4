// SPDX-License-Identifier: Apache-2.0
// Workers that come, go and are emptied under sessions that are stepped all the time, on real processes: no
// step fails, every answer is the reference's, and no token that was acknowledged is gone. How long the
// longest step took is printed, and not judged.
#include "tests/e2e/live.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/harness/process.h"

enum { ATTACHED = 640, CHUNK = 32, ROOM = 4000, SOON = 60 };

static void start_live(struct live *l, const struct harness_cluster *cluster, uint32_t members,
                       uint32_t replicas)
{
    const banyan_spec spec = {.layers = 1,
                              .q_heads = 4,
                              .kv_heads = 2,
                              .k_dim = 32,
                              .v_dim = 32,
                              .kv_type = BANYAN_F32,
                              .chunk_tokens = CHUNK,
                              .members = members,
                              .replicas = replicas};
    live_start(l, cluster, &spec, ATTACHED, ROOM);
}

// ---- what the cluster says ----------------------------------------------------------------------------------

static banyan_cluster_info totals(banyan_client *client)
{
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    uint32_t n = info.n_workers;
    banyan_cluster_info_free(&info);
    info.n_workers = n;
    return info;
}

static bool is_empty(banyan_client *client, const char *name)
{
    banyan_drain drain;
    OK(banyan_worker_get_drain(client, name, &drain, ERR));
    assert_true(drain.draining);
    return !drain.chunks && !drain.sessions;
}

static bool balanced(banyan_client *client)
{
    banyan_cluster_info info = totals(client);
    return !info.moves && !info.wished_chunks;
}

static void balance(banyan_client *client)
{
    OK(banyan_rebalance(client, false, NULL, ERR));
    EVENTUALLY(SOON, balanced(client));
}

// ---- tests --------------------------------------------------------------------------------------------------

static void a_drained_worker(uint32_t replicas)
{
    struct live l;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 3});
    start_live(&l, cluster, 3, replicas);
    live_goes_on(&l);
    assert_true(live_worker_info(l.client, "w1").chunks > 0);
    live_pause(&l, "before");
    OK(banyan_worker_drain(l.client, "w1", "a louder fan", NULL, ERR));
    EVENTUALLY(SOON, is_empty(l.client, "w1"));
    live_goes_on(&l);
    live_pause(&l, replicas == 1 ? "while a worker is drained, one copy"
                                 : "while a worker is drained, two copies");
    assert_int_equal(totals(l.client).thin_chunks, 0);
    assert_true(totals(l.client).moved_chunks > 0);
    harness_cluster_signal(cluster, 1, SIGTERM);
    live_goes_on(&l);
    assert_true(harness_cluster_restart(cluster, 1)); // an operator's word outlives the process
    EVENTUALLY(SOON, strcmp(live_worker_info(l.client, "w1").state, "active") == 0);
    assert_true(live_worker_info(l.client, "w1").draining);
    assert_string_equal(live_worker_info(l.client, "w1").drain_reason, "a louder fan");
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL); // and the coordinator
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    live_goes_on(&l);
    assert_true(live_worker_info(l.client, "w1").draining);
    assert_int_equal(live_worker_info(l.client, "w1").chunks, 0);
    OK(banyan_worker_resume(l.client, "w1", NULL, ERR));
    EVENTUALLY(SOON, strcmp(live_worker_info(l.client, "w1").state, "active") == 0);
    balance(l.client);
    assert_true(live_worker_info(l.client, "w1").chunks > 0);
    live_stop(&l);
    support_stop(cluster);
}

static void a_drain_of_the_only_copies(void **state)
{
    (void)state;
    a_drained_worker(1);
}

static void a_drain_of_one_of_two_copies(void **state)
{
    (void)state;
    a_drained_worker(2);
}

static bool said(const struct harness_cluster *cluster, uint32_t who, const char *text)
{
    char *log = harness_cluster_log(cluster, who);
    bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}

// Several moves of one session to one worker: that one ends takes nothing from the others.
static void moves_side_by_side(void **state)
{
    (void)state;
    static const char *const slow[] = {"--move-rate", "16K", NULL}; // two chunks a move
    struct live l;
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 3, .coordinator_args = slow});
    start_live(&l, cluster, 3, 1);
    live_goes_on(&l);
    OK(banyan_worker_drain(l.client, "w1", NULL, NULL, ERR));
    EVENTUALLY(SOON, is_empty(l.client, "w1"));
    assert_false(said(cluster, HARNESS_COORDINATOR, "does not belong to session"));
    live_stop(&l);
    support_stop(cluster);
}

// The session grows meanwhile, and what grew while it was moved stays: then an operator asks again.
static bool has_its_part(banyan_client *client, const char *name)
{
    balance(client);
    banyan_cluster_info info = totals(client);
    uint64_t part = live_worker_info(client, name).chunks;
    return part + 2 >= info.chunks / info.n_workers && part <= info.chunks / info.n_workers + 2;
}

static void a_worker_joins(void **state)
{
    (void)state;
    struct live l;
    banyan_balance plan;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2});
    start_live(&l, cluster, 2, 1);
    live_goes_on(&l);
    uint32_t added = harness_cluster_add_worker(cluster, NULL);
    assert_int_equal(added, 2);
    EVENTUALLY(SOON, strcmp(live_worker_info(l.client, "w2").state, "active") == 0);
    OK(banyan_rebalance(l.client, true, &plan, ERR));
    assert_true(plan.chunks >= 5 && plan.n_moves == plan.chunks);
    for (uint32_t i = 0; i < plan.n_moves; i++)
        assert_string_equal(plan.moves[i].to, "w2");
    banyan_balance_free(&plan);
    assert_int_equal(live_worker_info(l.client, "w2").chunks, 0); // nothing was to move
    EVENTUALLY(SOON, has_its_part(l.client, "w2"));
    live_pause(&l, "while a new worker gets its part");
    live_stop(&l);
    support_stop(cluster);
}

struct rebalance { // in a thread, which leaves the cluster's own struct to others
    char program[4096], endpoint[512];
    struct harness_output out;
    bool ran;
};

static void *rebalance_and_wait(void *arg)
{
    struct rebalance *r = arg;
    char *argv[] = {r->program, "rebalance", "--wait", NULL}, *env[] = {r->endpoint, NULL};
    r->ran = harness_run(argv, env, SOON * COMMON_NS_PER_S, &r->out);
    return NULL;
}

// The moves are forgotten with the coordinator: an empty list at the next one is not a success.
static void a_balance_that_is_forgotten(void **state)
{
    (void)state;
    static const char *const slowly[] = {"--move-rate", "4K", NULL}; // four seconds a chunk
    struct live l;
    pthread_t thread;
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 2, .coordinator_args = slowly});
    start_live(&l, cluster, 2, 1);
    live_goes_on(&l);
    harness_cluster_add_worker(cluster, NULL);
    EVENTUALLY(SOON, strcmp(live_worker_info(l.client, "w2").state, "active") == 0);
    struct rebalance r = {.ran = false};
    assert_true(harness_program_path("banyanctl", r.program, sizeof r.program));
    snprintf(r.endpoint, sizeof r.endpoint, "BANYAN_ENDPOINT=%s", harness_cluster_endpoint(cluster, "unix"));
    assert_int_equal(pthread_create(&thread, NULL, rebalance_and_wait, &r), 0);
    EVENTUALLY(SOON, totals(l.client).moves > 0);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    pthread_join(thread, NULL);
    assert_true(r.ran);
    if (r.out.exit_code != 9 ||
        !strstr(r.out.err, "the coordinator was restarted meanwhile: rebalance again"))
        fail_msg("exit code %d: %s%s", r.out.exit_code, r.out.out, r.out.err);
    harness_output_free(&r.out);
    live_goes_on(&l);
    live_stop(&l);
    support_stop(cluster);
}

static void copies_are_restored(void **state)
{
    (void)state;
    struct live l;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 3});
    start_live(&l, cluster, 3, 2);
    live_goes_on(&l);
    live_pause(&l, "before");
    harness_cluster_signal(cluster, 0, SIGKILL);
    EVENTUALLY(SOON, totals(l.client).thin_chunks > 0 || totals(l.client).moved_chunks > 0);
    EVENTUALLY(SOON, totals(l.client).thin_chunks == 0 && !totals(l.client).moves);
    assert_true(totals(l.client).moved_chunks > 0);
    live_goes_on(&l);
    live_pause(&l, "while a worker is killed and copies are restored");
    harness_cluster_signal(cluster, 1, SIGKILL); // each chunk is at the one that is left, too
    live_goes_on(&l);
    live_pause(&l, "while another one is killed");
    live_stop(&l);
    support_stop(cluster);
}

static bool ended_with(struct harness_cluster *cluster, uint32_t who, int want)
{
    int code;
    if (!harness_cluster_ended(cluster, who, &code))
        return false;
    assert_int_equal(code, want);
    return true;
}

static void a_worker_that_empties_itself(void **state)
{
    (void)state;
    static const char *const drains[] = {"--drain", NULL};
    struct live l;
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 3, .worker_args = drains});
    start_live(&l, cluster, 3, 1);
    live_goes_on(&l);
    kill(harness_cluster_pid(cluster, 1), SIGTERM);
    EVENTUALLY(SOON, ended_with(cluster, 1, 0));
    assert_true(said(cluster, 1, "this worker is drained"));
    live_goes_on(&l);
    live_pause(&l, "while a worker empties itself");
    assert_true(live_worker_info(l.client, "w1").draining);
    assert_true(harness_cluster_restart(cluster, 1)); // what it said was of that process
    EVENTUALLY(SOON, strcmp(live_worker_info(l.client, "w1").state, "active") == 0);
    assert_false(live_worker_info(l.client, "w1").draining);
    balance(l.client);
    assert_true(live_worker_info(l.client, "w1").chunks > 0);
    live_stop(&l);
    support_stop(cluster);
}

// The last worker has nowhere to put its chunks.
static void a_worker_that_cannot_empty_itself(void **state)
{
    (void)state;
    static const char *const drains[] = {"--drain", NULL}, *const soon[] = {"--drain", "--drain-timeout",
                                                                            "300ms", NULL};
    for (int second = 0; second < 2; second++) {
        struct live l;
        struct harness_cluster *cluster =
            support_start(&(struct harness_options){.workers = 1, .worker_args = second ? drains : soon});
        start_live(&l, cluster, 1, 1);
        live_goes_on(&l);
        atomic_store(&l.over, true);
        pthread_join(l.thread, NULL);
        kill(harness_cluster_pid(cluster, 0), SIGTERM);
        EVENTUALLY(SOON, said(cluster, 0, "chunks move to other workers"));
        if (second) {
            EVENTUALLY(SOON, said(cluster, 0, "no other worker is active")); // it waits, and answers
            assert_true(live_step(&l, true));
            kill(harness_cluster_pid(cluster, 0), SIGTERM);
        }
        EVENTUALLY(SOON, ended_with(cluster, 0, 5));
        assert_true(said(cluster, 0, second ? "before it is drained" : "--drain-timeout has passed"));
        banyan_session_close(l.session);
        context_free(&l.context);
        banyan_disconnect(l.client);
        support_stop(cluster);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drain_of_the_only_copies),   cmocka_unit_test(a_drain_of_one_of_two_copies),
        cmocka_unit_test(moves_side_by_side),           cmocka_unit_test(a_worker_joins),
        cmocka_unit_test(a_balance_that_is_forgotten),  cmocka_unit_test(copies_are_restored),
        cmocka_unit_test(a_worker_that_empties_itself), cmocka_unit_test(a_worker_that_cannot_empty_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
