// SPDX-License-Identifier: Apache-2.0
// What is bounded, and what a refusal says; what is dropped when it is not used; numbers that are kept.
#include "coordinator/cluster/worker_limits.h"
#include "tests/coordinator/hermetic/hermetic.h"
#include "worker/core/state.h"

static uint64_t used(const struct sim_cluster *cluster)
{
    return worker_store_used(cluster->workers[0]->worker->store);
}

// Rows that a client has attached and does not commit go after a time without another put, and their memory.
static void attached_rows_that_nobody_commits_go(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .attach_ttl_ns = 10 * COMMON_NS_PER_S});
    sim_cluster_start(cluster);
    uint64_t session = session_of(cluster, 32 + 8);
    struct sim_call *open = sim_open(cluster->client, session, 40, 600);
    OK(open);
    uint64_t before = used(cluster);
    OK(sim_put(cluster->client, open, 0, 40, 600, 1));
    uint64_t full = used(cluster);
    assert_true(full > before);
    sim_advance(8 * COMMON_NS_PER_S);
    OK(sim_put(cluster->client, open, 0, 48, 4, 1)); // a client is still at it
    sim_advance(8 * COMMON_NS_PER_S);
    assert_int_equal(used(cluster), full);
    sim_advance(4 * COMMON_NS_PER_S);
    assert_true(used(cluster) <= before);
    struct sim_call *commit = sim_commit(cluster->client, session, 0, 40, 600);
    ENDS(COMMON_FAILED_PRECONDITION, commit);
    assert_string_equal(commit->reason, "HOLE");
    assert_int_equal(commit->first_missing, 40);
    READS(cluster, session, 40, 40); // also of the chunk that they began in
    open = sim_open(cluster->client, session, 40, 600);
    OK(open);
    OK(sim_put(cluster->client, open, 0, 40, 600, 2));
    OK(sim_commit(cluster->client, session, 0, 40, 600));
    sim_advance(20 * COMMON_NS_PER_S); // what is committed stays
    READS(cluster, session, 640, 40 + 600 * 2);
    sim_cluster_free(cluster);
}

// While the coordinator is away no client can commit: that time does not count.
static void rows_wait_for_a_coordinator_that_is_away(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .attach_ttl_ns = 10 * COMMON_NS_PER_S});
    sim_cluster_start(cluster);
    uint64_t session = session_of(cluster, 16);
    struct sim_call *open = sim_open(cluster->client, session, 16, 32);
    OK(open);
    OK(sim_put(cluster->client, open, 0, 16, 32, 3));
    sim_coordinator_kill(cluster);
    sim_advance(60 * COMMON_NS_PER_S);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 1));
    sim_advance(COMMON_NS_PER_S);
    OK(sim_commit(cluster->client, session, 0, 16, 32));
    READS(cluster, session, 48, 16 + 32 * 3);
    sim_cluster_free(cluster);
}

// Rows that a commit has frozen are its own until it is over.
static void rows_of_a_commit_under_way_stay(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .attach_ttl_ns = 2 * COMMON_NS_PER_S});
    sim_cluster_start(cluster);
    uint64_t session = session_of(cluster, 16);
    struct sim_call *open = sim_open(cluster->client, session, 16, 32);
    OK(open);
    OK(sim_put(cluster->client, open, 0, 16, 32, 3));
    rule_all(cluster, METHOD(ROWS_COMMIT), (struct sim_rule){.verdict = SIM_HOLD});
    struct sim_call *commit = sim_commit(cluster->client, session, 0, 16, 32);
    sim_advance(5 * COMMON_NS_PER_S);
    assert_false(commit->done);
    rule_all(cluster, METHOD(ROWS_COMMIT), (struct sim_rule){.verdict = SIM_DO});
    let_go_all(cluster);
    OK(commit);
    READS(cluster, session, 48, 16 + 32 * 3);
    sim_cluster_free(cluster);
}

// What ClusterInfo says of workers' tokens is kept as they change: the same as counting them.
static void tokens_are_counted_as_they_change(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = session_of(cluster, 100);
    assert_true(sim_tokens_counted(cluster));
    struct sim_call *open = sim_open(cluster->client, session, 100, 100);
    OK(open);
    OK(sim_put(cluster->client, open, 0, 100, 100, 1));
    OK(sim_commit(cluster->client, session, 0, 150, 50)); // behind a hole
    assert_true(sim_tokens_counted(cluster));
    OK(sim_commit(cluster->client, session, 0, 100, 50));
    assert_true(sim_tokens_counted(cluster));
    struct sim_call *fork = sim_fork(cluster->client, session, 77, "");
    OK(fork);
    assert_true(sim_tokens_counted(cluster));
    OK(sim_truncate(cluster->client, session, 55));
    assert_true(sim_tokens_counted(cluster));
    uint64_t all = 0;
    for (int i = 0; i < 3; i++)
        all += cluster->coordinator->cluster.workers[i]->tokens;
    assert_int_equal(all, 77 + 55);
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 3));
    assert_true(sim_tokens_counted(cluster));
    READS(cluster, session, 55, 55);
    OK(sim_delete(cluster->client, session));
    OK(sim_delete(cluster->client, fork->session));
    for (int i = 0; i < 3; i++)
        assert_int_equal(cluster->coordinator->cluster.workers[i]->tokens, 0);
    sim_cluster_free(cluster);
}

static void short_lived(struct coordinator_options *options)
{
    options->session_ttl_ns = 5 * COMMON_NS_PER_S;
}

static void sessions_have_the_coordinators_time_to_live(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .tune = short_lived});
    sim_cluster_start(cluster);
    uint64_t session = session_of(cluster, 16);
    for (int i = 0; i < 4; i++) {
        sim_advance(3 * COMMON_NS_PER_S);
        OK(sim_read(cluster->client, session, 0, 15, 1));
    }
    sim_advance(8 * COMMON_NS_PER_S);
    ENDS(COMMON_NOT_FOUND, sim_read(cluster->client, session, 0, 15, 1));
    sim_cluster_free(cluster);
}

static void few(struct coordinator_options *options)
{
    options->max_steps = 12;
    options->max_client_requests = 8;
    options->max_sessions = 1;
    options->max_workers = 1;
}

// The coordinator's own one with this name, or that of the worker that is nearest to it. `worker` is NULL:
// there is none.
static struct coordinator_limit_use limit_of(const struct sim_cluster *cluster, bool workers,
                                             const char *name)
{
    struct coordinator_limit_use limits[COORDINATOR_LIMIT_USES];
    uint32_t n = coordinator_limits(cluster->coordinator, limits);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(limits[i].used <= limits[i].max);
        if (strcmp(limits[i].name, name) == 0 && workers == (limits[i].worker[0] != 0))
            return limits[i];
    }
    return (struct coordinator_limit_use){0};
}

static uint64_t refused(const struct sim_cluster *cluster, const char *name)
{
    struct coordinator_limit_use limit = limit_of(cluster, false, name);
    assert_non_null(limit.worker);
    return limit.refused;
}

// A client that has all that it may have is not read; another one is. What is refused says what helps.
static void one_client_leaves_room_for_others(void **state)
{
    (void)state;
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .tune = few});
    sim_cluster_start(cluster);
    uint64_t session = session_of(cluster, 16);
    struct sim_client *other = sim_client_new(SIM_COORDINATOR, NULL);
    struct sim_call *mine[20], *theirs[5];
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    for (int i = 0; i < 20; i++)
        mine[i] = sim_read(cluster->client, session, 0, 15, 1);
    sim_advance(COMMON_NS_PER_S);
    assert_int_equal(cluster->coordinator->steps.items, 8);
    assert_int_equal(refused(cluster, "requests_of_a_client"), 1);
    for (int i = 0; i < 5; i++)
        theirs[i] = sim_read(other, session, 0, 15, 1);
    ENDS(COMMON_RESOURCE_EXHAUSTED, theirs[4]);
    assert_non_null(strstr(theirs[4]->text, "the limit of 12 steps"));
    assert_non_null(strstr(theirs[4]->text, "--max-steps"));
    assert_int_equal(refused(cluster, "steps"), 1);
    struct sim_call *create = sim_create(other, (struct sim_shape){0}, "");
    ENDS(COMMON_RESOURCE_EXHAUSTED, create);
    assert_non_null(strstr(create->text, "--max-sessions"));
    assert_int_equal(refused(cluster, "sessions"), 1);
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    let_go_all(cluster);
    for (int i = 0; i < 20; i++)
        OK(mine[i]);
    for (int i = 0; i < 4; i++)
        OK(theirs[i]);
    sim_client_free(other);
    sim_cluster_free(cluster);
}

// Heartbeats say how near workers are to their limits: the nearest one is shown, and what all of them have
// refused.
static void workers_limits_are_shown(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .memory_bytes = 1 << 20});
    sim_cluster_start(cluster);
    struct sim_call *create = sim_create(cluster->client, (struct sim_shape){.members = 1}, "");
    OK(create);
    OK(sim_append(cluster->client, create->session, 0, 0, 16, 1));
    sim_advance(COMMON_NS_PER_S);
    const struct sim_worker *holder = holder_of(cluster, create->session, 0);
    struct coordinator_limit_use kv = limit_of(cluster, true, "kv_bytes");
    assert_string_equal(kv.worker, holder->name);
    assert_string_equal(kv.flag, "the worker's --memory");
    assert_true(kv.used > 0 && kv.max > kv.used && kv.max <= 1 << 20);
    assert_int_equal(kv.refused, 0);
    assert_string_equal(limit_of(cluster, true, "requests_of_a_client").flag, "");
    assert_string_equal(limit_of(cluster, true, "clients").flag, "the worker's --max-clients");
    struct sim_call *append;
    uint64_t at = 16;
    while (sim_wait(append = sim_append(cluster->client, create->session, 0, at, 64, 1)) == COMMON_OK)
        at += 64;
    assert_int_equal(append->code, COMMON_RESOURCE_EXHAUSTED);
    sim_advance(COMMON_NS_PER_S);
    kv = limit_of(cluster, true, "kv_bytes");
    assert_true(kv.used > kv.max / 2);
    for (int i = 0; i < 2; i++)
        sim_worker_kill(cluster->workers[i]);
    sim_advance(10 * COMMON_NS_PER_S);
    assert_null(limit_of(cluster, true, "kv_bytes").worker);
    sim_cluster_free(cluster);
}

// What a worker says is shown to people and programs: only what they can read.
static void limits_that_make_no_sense_are_left_out(void **state)
{
    (void)state;
    char longest[66], name[] = "good", flag[] = "--flag", bad[] = "a\"b\n", none[] = "";
    memset(longest, 'x', 65);
    longest[65] = 0;
    Banyan__Pb__Limit limits[PROTO_WORKER_LIMITS_MAX + 8], *pointers[PROTO_WORKER_LIMITS_MAX + 8];
    for (size_t i = 0; i < PROTO_WORKER_LIMITS_MAX + 8; i++) {
        pointers[i] = &limits[i];
        limits[i] = (Banyan__Pb__Limit)BANYAN__PB__LIMIT__INIT;
        limits[i].name = name, limits[i].flag = flag, limits[i].max = 1 + i;
    }
    limits[0].name = longest, limits[1].name = bad, limits[2].name = none, limits[3].flag = longest;
    limits[4].max = 0;
    struct coordinator_worker w = {.name = "w"};
    coordinator_worker_set_limits(&w, pointers, 6);
    assert_int_equal(w.n_limits, 1);
    assert_int_equal(w.limits[0].max, 6);
    coordinator_worker_set_limits(&w, pointers, PROTO_WORKER_LIMITS_MAX + 8);
    assert_int_equal(w.n_limits, PROTO_WORKER_LIMITS_MAX);
    coordinator_worker_set_limits(&w, pointers, 0);
    assert_int_equal(w.n_limits, 0);
    free(w.limits);
}

int hermetic_limits(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attached_rows_that_nobody_commits_go),
        cmocka_unit_test(rows_wait_for_a_coordinator_that_is_away),
        cmocka_unit_test(rows_of_a_commit_under_way_stay),
        cmocka_unit_test(tokens_are_counted_as_they_change),
        cmocka_unit_test(sessions_have_the_coordinators_time_to_live),
        cmocka_unit_test(one_client_leaves_room_for_others),
        cmocka_unit_test(workers_limits_are_shown),
        cmocka_unit_test(limits_that_make_no_sense_are_left_out),
    };
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
