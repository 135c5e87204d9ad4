// SPDX-License-Identifier: Apache-2.0
// Workers' memory: what the coordinator promises of it, and what becomes of an append that a worker has no
// memory for though the coordinator's books say that it has. Appends fail when no worker has room, and not
// before.
#include "tests/coordinator/hermetic/hermetic.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"

// All but so much of what the worker has left is taken, and no heartbeat has said so.
static uint64_t fill_but(const struct sim_worker *worker, uint64_t spare)
{
    struct worker_store *store = worker->worker->store;
    uint64_t left = worker_store_limit(store) - worker_store_used(store);
    assert_true(left >= spare && worker_store_take(store, left - spare));
    return left - spare;
}

static uint64_t fill(const struct sim_worker *worker)
{
    return fill_but(worker, 0);
}

static bool holds_of(struct sim_cluster *cluster, uint64_t session, uint32_t index,
                     const struct sim_worker *worker)
{
    const struct coordinator_chunk *chunk =
        coordinator_layout_find(&kept_of(cluster, session)->layout, index);
    for (uint32_t copy = 0; copy < coordinator_chunk_copies(chunk); copy++)
        if (!strcmp(coordinator_chunk_holder(chunk, copy)->name, worker->name))
            return true;
    return false;
}

// The next chunk is placed, and its holder, or one of two, is full: its rows go elsewhere, once, in as many
// copies.
static void an_append_goes_where_there_is_room(void **state)
{
    (void)state;
    for (uint32_t way = 0; way < 16; way++) {
        uint32_t replicas = way & 1 ? 2 : 1, rows = way & 2 ? 40 : 1, copy = way & 4 ? replicas - 1 : 0;
        struct sim_cluster *cluster = cluster_of(replicas + 1);
        uint64_t session = filled_of(cluster, replicas, 32);
        sim_run_until_idle();
        struct sim_worker *full = copy_of(cluster, session, 2, copy);
        const uint64_t taken = fill(full);
        OK(sim_append(cluster->client, session, 0, 32, rows, 7));
        SHOWS(item, "flying", "undoing");
        SHOWS(item, "undoing", "retrying");
        for (uint32_t index = 2; index <= (32 + rows - 1) / 16; index++) {
            assert_false(holds_of(cluster, session, index, full));
            assert_int_equal(coordinator_chunk_copies(
                                 coordinator_layout_find(&kept_of(cluster, session)->layout, index)),
                             replicas);
        }
        READS(cluster, session, 32 + rows, 32 + rows * 7);
        sim_run_until_idle();
        assert_int_equal(tokens_held(cluster, session), (32 + rows) * replicas);
        if (way & 8) {
            sim_coordinator_kill(cluster);
            restart(cluster);
            assert_true(sim_wait_active(cluster, cluster->options.workers));
        }
        assert_int_equal(length_of(cluster, session), 32 + rows);
        READS(cluster, session, 32 + rows, 32 + rows * 7);
        worker_store_give(full->worker->store, taken);
        OK(sim_append(cluster->client, session, 0, 32 + rows, 30, 3));
        READS(cluster, session, 62 + rows, 32 + rows * 7 + 30 * 3);
        assert_true(sim_quotas_counted(cluster) && sim_tokens_counted(cluster));
        sim_cluster_free(cluster);
    }
}

// One after the other says that it is full; then the client's error says what helps. Nothing of the append is
// there, or comes back, and once there is room it succeeds.
static void when_all_are_full_the_append_fails(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = filled_of(cluster, 1, 32), taken[3];
    sim_run_until_idle();
    for (uint32_t i = 0; i < 3; i++)
        taken[i] = fill(cluster->workers[i]);
    for (int round = 0; round < 3; round++) {
        struct sim_call *append = sim_append(cluster->client, session, 0, 32, 20, 7);
        ENDS(COMMON_RESOURCE_EXHAUSTED, append);
        assert_true(sim_append_refused(append));
        assert_string_equal(append->reason, "FULL");
        assert_non_null(strstr(append->text, "--memory"));
        assert_int_equal(length_of(cluster, session), 32);
        READS(cluster, session, 32, 32);
        sim_advance(COMMON_NS_PER_S);
    }
    assert_int_equal(tokens_held(cluster, session), 32);
    worker_store_give(cluster->workers[1]->worker->store, taken[1]);
    sim_advance(COMMON_NS_PER_S);
    OK(sim_append(cluster->client, session, 0, 32, 20, 3));
    READS(cluster, session, 52, 32 + 20 * 3);
    worker_store_give(cluster->workers[0]->worker->store, taken[0]);
    worker_store_give(cluster->workers[2]->worker->store, taken[2]);
    sim_cluster_free(cluster);
}

// A chunk with rows stays where they are: the append is refused, and says by whom and why.
static void a_chunk_with_rows_stays(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_call *created = sim_create(cluster->client, (struct sim_shape){.layers = 2, .members = 1}, "");
    OK(created);
    uint64_t session = created->session;
    OK(sim_append(cluster->client, session, 0, 0, 8, 1));
    struct sim_worker *full = holder_of(cluster, session, 0);
    uint64_t taken = fill(full);
    struct sim_call *append = sim_append(cluster->client, session, 1, 0, 8, 7);
    ENDS(COMMON_RESOURCE_EXHAUSTED, append);
    assert_true(sim_append_refused(append));
    assert_string_equal(append->reason, "FULL");
    assert_non_null(strstr(append->text, "--memory"));
    assert_ptr_equal(holder_of(cluster, session, 0), full);
    worker_store_give(full->worker->store, taken);
    OK(sim_append(cluster->client, session, 1, 0, 8, 3));
    READS(cluster, session, 8, 8);
    sim_cluster_free(cluster);
}

// Nor does one that a client may be putting rows into, which would go with it.
static void a_chunk_that_is_attached_to_stays(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_call *created = sim_create(cluster->client, (struct sim_shape){.layers = 2, .members = 1}, "");
    OK(created);
    uint64_t session = created->session;
    struct sim_call *opened = sim_open(cluster->client, session, 0, 16);
    OK(opened);
    OK(sim_put(cluster->client, opened, 1, 0, 16, 5));
    struct sim_worker *full = copy_of(cluster, session, 0, 0);
    uint64_t taken = fill(full);
    struct sim_call *append = sim_append(cluster->client, session, 0, 0, 1, 7);
    ENDS(COMMON_RESOURCE_EXHAUSTED, append);
    assert_true(sim_append_refused(append));
    worker_store_give(full->worker->store, taken);
    OK(sim_commit(cluster->client, session, 1, 0, 16));
    OK(sim_append(cluster->client, session, 0, 0, 16, 3));
    READS(cluster, session, 16, 16 * 3);
    sim_cluster_free(cluster);
}

// A worker that has no memory for the tables of an empty chunk is passed over.
static void who_takes_no_layout_is_passed_over(void **state)
{
    (void)state;
    for (uint32_t refuse = 1; refuse <= 3; refuse++) {
        struct sim_cluster *cluster = cluster_of(3);
        struct sim_call *created = sim_create(cluster->client, (struct sim_shape){.members = 1}, "");
        OK(created);
        for (uint32_t i = 0; i < refuse; i++)
            sim_serve_rule(
                cluster->workers[i]->loop, METHOD(LAYOUT_SET),
                (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_RESOURCE_EXHAUSTED});
        struct sim_call *append = sim_append(cluster->client, created->session, 0, 0, 20, 2);
        if (refuse == 3) {
            ENDS(COMMON_RESOURCE_EXHAUSTED, append);
            assert_string_equal(append->reason, "FULL");
            sim_advance(COMMON_NS_PER_S);
            append = sim_append(cluster->client, created->session, 0, 0, 20, 2);
        }
        OK(append);
        READS(cluster, created->session, 20, 20 * 2);
        sim_cluster_free(cluster);
    }
}

enum { CHUNK = 1024, STEP = 64, CHUNKS = 3 }; // of 1 MiB; a worker of 8 MiB has room for three of them

static struct sim_cluster *small_cluster(uint32_t workers)
{
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = workers, .memory_bytes = UINT64_C(8) << 20});
    sim_cluster_start(cluster);
    sim_client_dim(cluster->client, 128);
    return cluster;
}

// Reads every row, by steps whose window is one step long.
static void reads_by_steps(struct sim_cluster *cluster, uint64_t session, uint64_t rows)
{
    for (uint64_t at = STEP; at <= rows; at += STEP) {
        struct sim_call *reads = sim_read(cluster->client, session, 0, at - 1, 1);
        OK(reads);
        assert_float_equal(reads->o, 2, 1e-4f);
    }
    assert_int_equal(tokens_held(cluster, session), rows);
}

// What is promised to chunks that appends fill counts: no worker gets one more than it has room for while
// another has room. Each row sees one step of keys: attention over all of them took 9/10 of this room's time.
static void appends_fill_every_worker(void **state)
{
    (void)state;
    for (uint32_t sessions = 1; sessions <= 6; sessions++) {
        struct sim_cluster *cluster = small_cluster(2);
        uint64_t session[6], all = 2 * CHUNKS * CHUNK / sessions / CHUNK * CHUNK;
        for (uint32_t i = 0; i < sessions; i++) {
            const struct sim_mask mask = {.window = STEP};
            struct sim_call *created = sim_create(
                cluster->client,
                (struct sim_shape){.layers = 1, .chunk_tokens = CHUNK, .members = 1, .masks = &mask}, "");
            OK(created);
            session[i] = created->session;
        }
        for (uint64_t at = 0; at < all; at += STEP)
            for (uint32_t i = 0; i < sessions; i++)
                OK(sim_append(cluster->client, session[i], 0, at, STEP, 2));
        for (uint32_t i = 0; i < sessions; i++)
            reads_by_steps(cluster, session[i], all);
        struct sim_call *past;
        do // what is left over for less than a chunk may be used, too
            past = sim_append(cluster->client, session[0], 0, all, STEP, 2);
        while (sim_wait(past) == COMMON_OK && (all += STEP) < 2 * 4 * CHUNK);
        ENDS(COMMON_RESOURCE_EXHAUSTED, past);
        assert_true(sim_append_refused(past));
        assert_non_null(strstr(past->text, "--memory"));
        reads_by_steps(cluster, session[0], all);
        sim_cluster_free(cluster);
    }
}

// Sessions of a few tokens are not kept away by what they might become.
static void short_sessions_share_a_worker(void **state)
{
    (void)state;
    struct sim_cluster *cluster = small_cluster(1);
    for (int i = 0; i < 4 * CHUNKS; i++) {
        struct sim_call *created =
            sim_create(cluster->client, (struct sim_shape){.chunk_tokens = CHUNK, .members = 1}, "");
        OK(created);
        OK(sim_append(cluster->client, created->session, 0, 0, STEP, 2));
        READS(cluster, created->session, STEP, STEP * 2);
    }
    sim_cluster_free(cluster);
}

// One whose rows all see each other: an append of it is cut, and its first slab brings all rows.
static uint64_t dense_session(struct sim_cluster *cluster)
{
    static const struct sim_mask dense = {.not_causal = true};
    struct sim_call *created =
        sim_create(cluster->client,
                   (struct sim_shape){.layers = 1, .chunk_tokens = CHUNK, .members = 1, .masks = &dense}, "");
    OK(created);
    return created->session;
}

// A worker with a store has no memory for the rows of a cut append before a chunk is sealed: its first slab
// waits for that, and so do the others, which look at these rows.
static void a_cut_append_waits_for_memory_as_a_whole(void **state)
{
    (void)state;
    for (uint32_t dense = 0; dense < 2; dense++) {
        struct sim_cluster *cluster = sim_cluster_new(
            &(struct sim_cluster_options){.workers = 1, .memory_bytes = UINT64_C(8) << 20, .store = true});
        sim_cluster_start(cluster);
        sim_client_dim(cluster->client, 128);
        struct sim_call *created =
            sim_create(cluster->client, (struct sim_shape){.chunk_tokens = CHUNK, .members = 1}, "");
        OK(created);
        uint64_t session = created->session;
        OK(sim_append(cluster->client, session, 0, 0, CHUNK / 2, 2));
        OK(sim_append(cluster->client, session, 0, CHUNK / 2, CHUNK / 2, 2));
        if (dense)
            session = dense_session(cluster);
        uint64_t first = dense ? 0 : CHUNK, before = sim_serve_seen(cluster->workers[0]->loop, METHOD(STEP));
        uint64_t taken = fill_but(cluster->workers[0], 64 << 10); // enough for the tables of a chunk
        struct sim_call *append = sim_append(cluster->client, session, 0, first, CHUNK / 2, 3);
        sim_advance(COMMON_NS_PER_MS);
        assert_false(append->done);
        assert_true(sim_serve_seen(cluster->workers[0]->loop, METHOD(STEP)) > before + 1); // it is cut
        worker_store_give(cluster->workers[0]->worker->store, taken); // as when chunks leave it
        worker_warm_sealed(cluster->workers[0]->worker->warm);
        OK(append);
        READS(cluster, session, first + CHUNK / 2, first * 2 + CHUNK / 2 * 3);
        sim_cluster_free(cluster);
    }
}

// The slab that brings the rows comes last to its worker, which has no memory for them: why they are not
// there decides, and not that the other slabs have not found them.
static void a_cut_append_says_why_its_rows_are_not_there(void **state)
{
    (void)state;
    for (uint32_t workers = 1; workers <= 2; workers++) {
        struct sim_cluster *cluster = small_cluster(workers);
        uint64_t session = dense_session(cluster);
        OK(sim_open(cluster->client, session, 0, 1)); // its chunk is placed
        struct sim_worker *holder = holder_of(cluster, session, 0);
        uint64_t taken = fill(holder);
        sim_advance(200 * COMMON_NS_PER_S); // and its ticket is over
        for (uint32_t i = 0; i < workers; i++)
            sim_serve_rule(cluster->workers[i]->loop, METHOD(STEP),
                           (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
        struct sim_call *append = sim_append(cluster->client, session, 0, 0, CHUNK / 2, 3);
        sim_advance(COMMON_NS_PER_MS);
        assert_false(append->done);
        sim_serve_rule(holder->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
        assert_int_equal(sim_serve_let_go(holder->loop), 1);
        for (uint32_t i = 0; i < workers; i++)
            sim_serve_rule(cluster->workers[i]->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
        if (workers == 2) { // another one has room
            OK(append);
            READS(cluster, session, CHUNK / 2, CHUNK / 2 * 3);
        } else {
            ENDS(COMMON_RESOURCE_EXHAUSTED, append);
            assert_true(sim_append_refused(append));
        }
        worker_store_give(holder->worker->store, taken);
        sim_cluster_free(cluster);
    }
}

int hermetic_room(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_append_goes_where_there_is_room),
        cmocka_unit_test(when_all_are_full_the_append_fails),
        cmocka_unit_test(a_chunk_with_rows_stays),
        cmocka_unit_test(a_chunk_that_is_attached_to_stays),
        cmocka_unit_test(who_takes_no_layout_is_passed_over),
        cmocka_unit_test(appends_fill_every_worker),
        cmocka_unit_test(short_sessions_share_a_worker),
        cmocka_unit_test(a_cut_append_waits_for_memory_as_a_whole),
        cmocka_unit_test(a_cut_append_says_why_its_rows_are_not_there),
    };
    return cmocka_run_group_tests_name("room", tests, NULL, NULL);
}
