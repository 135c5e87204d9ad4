// SPDX-License-Identifier: Apache-2.0
// Every operation, struck by every fault at every moment: after each event that runs between the request and its
// answer. So each message and each store write of an operation is one that a fault comes before, and one that it
// comes after. Afterwards:
//
//   what was acknowledged is there and reads right;  what was not is there as a whole, or not at all;
//   where it is not, other bytes are accepted;       the operation, asked again, works;
//   the code was one that the contract allows;       nothing is left on a worker that no session needs.
//
// A worker that lost its memory may have taken rows with it: then the error says so, and a truncate makes the session
// usable again.
#include <stdlib.h>

#include "tests/coordinator/hermetic/hermetic.h"

enum { BEFORE = 20, MOMENTS_MAX = 2000 };

struct scene {
    struct sim_cluster *cluster;
    struct sim_client *client;
    uint64_t session, before; // tokens of value 1
    struct sim_call *call, *opened;
    bool loses; // a worker's memory
};

struct operation {
    const char *name;
    uint64_t before;
    void (*prepare)(struct scene *scene); // NULL: nothing
    struct sim_call *(*start)(struct scene *scene);
    void (*check)(struct scene *scene, bool done); // done: the client was told so
};

struct fault {
    const char *name;
    void (*strike)(struct scene *scene); // and what mends it; the coordinator runs afterwards
    bool loses;
};

static char where[160]; // "" but in a test that fails

// ---- what must hold -------------------------------------------------------------------------------------

// Tokens [0, rows) sum up to this, unless a worker took some of them with it.
static void reads_right(struct scene *scene, uint64_t rows, float sum)
{
    if (!rows)
        return;
    struct sim_call *read = sim_read(scene->client, scene->session, 0, rows - 1, 1);
    enum common_code code = sim_wait(read);
    if (scene->loses && code == COMMON_DATA_LOSS) {
        assert_true(read->n_missing > 0);
        return;
    }
    if (code != COMMON_OK)
        fail_msg("a read of %u: %s: %s", (unsigned)rows, common_code_name(code), read->text);
    assert_float_equal(read->o, sum / (float)rows, 1e-4f);
}

// Whatever became of it, it can be used again.
static void is_usable(struct scene *scene)
{
    OK(sim_truncate(scene->client, scene->session, 0));
    OK(sim_append(scene->client, scene->session, 0, 0, 20, 7));
    READS(scene->cluster, scene->session, 20, 20 * 7);
    sim_run_until_idle();
    assert_int_equal(tokens_held(scene->cluster, scene->session), 20);
}

// Rows of one value were to be added: all of them are there, or none.
static void added(struct scene *scene, uint64_t rows, float value, bool done)
{
    uint64_t length = length_of(scene->cluster, scene->session), before = scene->before;
    if (scene->loses) { // rows past those that are known to be lost do not count
        reads_right(scene, length,
                    length > before ? (float)before + (float)(length - before) * value : (float)length);
        is_usable(scene);
        return;
    }
    if (length != before + rows)
        assert_int_equal(length, before);
    assert_true(!done || length == before + rows);
    reads_right(scene, before, (float)before);
    float now = length > before ? value : value + 3;
    OK(sim_append(scene->client, scene->session, 0, before, (uint32_t)rows, now));
    assert_int_equal(length_of(scene->cluster, scene->session), before + rows);
    reads_right(scene, before + rows, (float)before + (float)rows * now);
    ENDS(COMMON_FAILED_PRECONDITION,
         sim_append(scene->client, scene->session, 0, before, (uint32_t)rows, now + 1));
    is_usable(scene);
}

// ---- operations -----------------------------------------------------------------------------------------

static struct sim_call *append_one(struct scene *scene)
{
    return sim_append(scene->client, scene->session, 0, BEFORE, 1, 2);
}

static void one_added(struct scene *scene, bool done)
{
    added(scene, 1, 2, done);
}

static struct sim_call *
append_over_chunks(struct scene *scene) // the next chunk is there, the one after is not
{
    return sim_append(scene->client, scene->session, 0, BEFORE, 30, 2);
}

static void over_chunks_added(struct scene *scene, bool done)
{
    added(scene, 30, 2, done);
}

static struct sim_call *append_first(struct scene *scene) // members join
{
    return sim_append(scene->client, scene->session, 0, 0, 20, 2);
}

static void first_added(struct scene *scene, bool done)
{
    added(scene, 20, 2, done);
}

static struct sim_call *open_range(struct scene *scene)
{
    return sim_open(scene->client, scene->session, BEFORE, 40);
}

static void opened(struct scene *scene, bool done)
{
    (void)done;
    if (!scene->loses) {
        assert_int_equal(length_of(scene->cluster, scene->session), BEFORE);
        reads_right(scene, BEFORE, BEFORE);
        struct sim_call *open = sim_open(scene->client, scene->session, BEFORE, 40);
        OK(open);
        OK(sim_put(scene->client, open, 0, BEFORE, 40, 3));
        OK(sim_commit(scene->client, scene->session, 0, BEFORE, 40));
        reads_right(scene, BEFORE + 40, BEFORE + 40 * 3);
    }
    is_usable(scene);
}

static void put_rows(struct scene *scene)
{
    scene->opened = sim_open(scene->client, scene->session, BEFORE, 20);
    OK(scene->opened);
    OK(sim_put(scene->client, scene->opened, 0, BEFORE, 20, 3));
}

static struct sim_call *commit_rows(struct scene *scene)
{
    return sim_commit(scene->client, scene->session, 0, BEFORE, 20);
}

static void committed(struct scene *scene, bool done)
{
    if (!scene->loses && length_of(scene->cluster, scene->session) == BEFORE) { // they are put already
        assert_false(done);
        OK(sim_commit(scene->client, scene->session, 0, BEFORE, 20));
    }
    if (!scene->loses)
        reads_right(scene, BEFORE + 20, BEFORE + 20 * 3);
    added(scene, 20, 3, done);
}

static struct sim_call *truncate_within(struct scene *scene) // what is kept of a chunk is copied
{
    return sim_truncate(scene->client, scene->session, 10);
}

static struct sim_call *truncate_between(struct scene *scene)
{
    return sim_truncate(scene->client, scene->session, 16);
}

static void truncated(struct scene *scene, uint64_t to, bool done)
{
    uint64_t length = length_of(scene->cluster, scene->session);
    if (!scene->loses) {
        assert_true(length == to || (length == scene->before && !done));
        reads_right(scene, length, (float)length);
        OK(sim_truncate(scene->client, scene->session, to));
        assert_int_equal(length_of(scene->cluster, scene->session), to);
        sim_run_until_idle();
        assert_int_equal(tokens_held(scene->cluster, scene->session), to);
        OK(sim_append(scene->client, scene->session, 0, to, 4, 9));
        reads_right(scene, to + 4, (float)to + 4 * 9);
    }
    is_usable(scene);
}

static void truncated_within(struct scene *scene, bool done)
{
    truncated(scene, 10, done);
}

static void truncated_between(struct scene *scene, bool done)
{
    truncated(scene, 16, done);
}

static struct sim_call *fork_within(struct scene *scene)
{
    return sim_fork(scene->client, scene->session, 10, "fork");
}

static void forked(struct scene *scene, bool done)
{
    uint64_t fork = scene->call->session, session = scene->session;
    reads_right(scene, BEFORE, BEFORE);
    if (!done && !scene->loses) { // as a whole or not at all: its name is taken by one that works
        struct sim_call *again = sim_fork(scene->client, session, 10, "fork");
        enum common_code code = sim_wait(again);
        if (code != COMMON_OK)
            assert_int_equal(code, COMMON_ALREADY_EXISTS);
        sim_run_until_idle();
        fork = again->session;
    }
    if (fork) {
        scene->session = fork;
        reads_right(scene, 10, 10);
        is_usable(scene);
        OK(sim_delete(scene->client, fork));
    }
    scene->session = session;
    reads_right(scene, BEFORE, BEFORE);
    is_usable(scene);
}

static struct sim_call *delete_it(struct scene *scene)
{
    return sim_delete(scene->client, scene->session);
}

static void deleted(struct scene *scene, bool done)
{
    struct sim_call *info = sim_info(scene->client, scene->session);
    enum common_code code = sim_wait(info);
    if (code != COMMON_NOT_FOUND) {
        assert_int_equal(code, COMMON_OK);
        assert_false(done);
        reads_right(scene, BEFORE, BEFORE);
        OK(sim_delete(scene->client, scene->session));
    }
    ENDS(COMMON_NOT_FOUND, sim_read(scene->client, scene->session, 0, 0, 1));
    sim_advance(COMMON_NS_PER_S);
    assert_int_equal(tokens_held(scene->cluster, scene->session), 0);
}

static struct sim_call *create_named(struct scene *scene)
{
    return sim_create(scene->client, (struct sim_shape){.members = 2}, "name");
}

static void created(struct scene *scene, bool done)
{
    struct sim_call *again = sim_create(scene->client, (struct sim_shape){.members = 2}, "name");
    enum common_code code = sim_wait(again);
    if (code != COMMON_ALREADY_EXISTS)
        assert_true(code == COMMON_OK && !done);
    if (done || code == COMMON_OK) {
        scene->session = done ? scene->call->session : again->session;
        is_usable(scene);
    }
}

static const struct operation operations[] = {
    {"append of a row", BEFORE, NULL, append_one, one_added},
    {"append over chunks", BEFORE, NULL, append_over_chunks, over_chunks_added},
    {"first append", 0, NULL, append_first, first_added},
    {"open", BEFORE, NULL, open_range, opened},
    {"commit", BEFORE, put_rows, commit_rows, committed},
    {"truncate within a chunk", BEFORE, NULL, truncate_within, truncated_within},
    {"truncate between chunks", BEFORE, NULL, truncate_between, truncated_between},
    {"fork", BEFORE, NULL, fork_within, forked},
    {"delete", BEFORE, NULL, delete_it, deleted},
    {"create", 0, NULL, create_named, created},
};

// ---- faults ---------------------------------------------------------------------------------------------

static void kill_coordinator(struct scene *scene)
{
    sim_coordinator_kill(scene->cluster);
    restart(scene->cluster);
}

static void kill_once_durable(struct scene *scene) // and before the coordinator hears of it
{
    sim_disk_silence(SIM_DISK_PATH, true);
    sim_run_until_idle();
    kill_coordinator(scene);
}

static void kill_before_durable(struct scene *scene)
{
    sim_disk_stall(SIM_DISK_PATH, true);
    sim_run_until_idle();
    kill_coordinator(scene);
}

static void stop_coordinator(struct scene *scene)
{
    sim_coordinator_stop(scene->cluster);
    restart(scene->cluster);
}

static void stop_on_full_disk(struct scene *scene)
{
    sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_RESOURCE_EXHAUSTED);
    sim_coordinator_stop(scene->cluster);
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
    restart(scene->cluster);
}

static void freeze_coordinator(struct scene *scene)
{
    sim_loop_freeze(scene->cluster->loop);
    sim_advance(2 * COMMON_NS_PER_S);
    sim_loop_thaw(scene->cluster->loop);
}

static void fill_disk(struct scene *scene)
{
    sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_RESOURCE_EXHAUSTED);
    sim_wait(scene->call);
    sim_run_until_idle();
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
}

static void fail_disk_once(struct scene *scene)
{
    sim_disk_fail(SIM_DISK_PATH, 1, COMMON_UNAVAILABLE);
    sim_wait(scene->call);
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
}

static void cut_first(struct scene *scene)
{
    sim_net_cut(scene->cluster->loop, scene->cluster->workers[0]->loop);
}

static void cut_second(struct scene *scene)
{
    sim_net_cut(scene->cluster->loop, scene->cluster->workers[1]->loop);
}

static void cut_edge(struct scene *scene)
{
    sim_net_cut(scene->cluster->workers[0]->loop, scene->cluster->workers[1]->loop);
}

static void part_for_a_while(struct scene *scene, const struct sim_worker *worker)
{
    sim_net_part(NULL, worker->loop);
    sim_advance(2 * COMMON_NS_PER_S); // its grace is over
    sim_net_mend(NULL, worker->loop);
    (void)scene;
}

static void part_first(struct scene *scene)
{
    part_for_a_while(scene, scene->cluster->workers[0]);
}

static void part_second(struct scene *scene)
{
    part_for_a_while(scene, scene->cluster->workers[1]);
}

static void freeze_first(struct scene *scene)
{
    sim_loop_freeze(scene->cluster->workers[0]->loop);
    sim_advance(2 * COMMON_NS_PER_S);
    sim_loop_thaw(scene->cluster->workers[0]->loop);
}

static void lose_answers(struct scene *scene) // of the second worker, until they come all at once
{
    sim_net_hold(scene->cluster->workers[1]->loop, scene->cluster->loop);
    sim_advance(2 * COMMON_NS_PER_S);
    sim_net_heal();
}

static void kill_first(struct scene *scene)
{
    sim_worker_kill(scene->cluster->workers[0]);
    sim_worker_start(scene->cluster->workers[0]);
}

static void kill_second(struct scene *scene)
{
    sim_worker_kill(scene->cluster->workers[1]);
    sim_worker_start(scene->cluster->workers[1]);
}

static void cancel_call(struct scene *scene)
{
    sim_cancel(scene->call);
}

static const struct fault faults[] = {
    {"the coordinator is killed", kill_coordinator, false},
    {"the coordinator is killed once all is durable", kill_once_durable, false},
    {"the coordinator is killed before more is durable", kill_before_durable, false},
    {"the coordinator is stopped", stop_coordinator, false},
    {"the coordinator is stopped on a full disk", stop_on_full_disk, false},
    {"the coordinator is frozen", freeze_coordinator, false},
    {"the disk is full", fill_disk, false},
    {"the disk fails once", fail_disk_once, false},
    {"the first worker's link breaks", cut_first, false},
    {"the second worker's link breaks", cut_second, false},
    {"the edge between the workers breaks", cut_edge, false},
    {"the first worker is away", part_first, false},
    {"the second worker is away", part_second, false},
    {"the first worker is frozen", freeze_first, false},
    {"the second worker's answers are late", lose_answers, false},
    {"the first worker is killed", kill_first, true},
    {"the second worker is killed", kill_second, true},
    {"the client gives up", cancel_call, false},
};

// ---- moments --------------------------------------------------------------------------------------------

static bool is_allowed(enum common_code code, const struct fault *fault)
{
    return code == COMMON_OK || code == COMMON_UNAVAILABLE || code == COMMON_DEADLINE_EXCEEDED ||
           (code == COMMON_RESOURCE_EXHAUSTED &&
            (fault->strike == fill_disk || fault->strike == stop_on_full_disk)) ||
           (code == COMMON_CANCELLED && fault->strike == cancel_call) ||
           (code == COMMON_DATA_LOSS && fault->loses);
}

// False: the operation was over before this moment.
static bool strike_at(const struct operation *operation, const struct fault *fault, uint32_t moment)
{
    struct sim_cluster *cluster = cluster_of(2);
    struct scene scene = {
        .cluster = cluster, .client = cluster->client, .before = operation->before, .loses = fault->loses};
    scene.session = session_of(cluster, (uint32_t)operation->before);
    if (operation->prepare)
        operation->prepare(&scene);
    sim_run_until_idle();
    scene.call = operation->start(&scene);
    for (uint32_t i = 0; i < moment && !scene.call->done; i++)
        sim_step();
    bool over = scene.call->done;
    fault->strike(&scene);
    enum common_code code = sim_wait(scene.call);
    if (!is_allowed(code, fault))
        fail_msg("%s: %s", common_code_name(code), scene.call->text);
    sim_advance(500 * COMMON_NS_PER_MS);
    assert_true(sim_wait_active(cluster, 2));
    operation->check(&scene, code == COMMON_OK);
    sim_cluster_free(cluster);
    return !over;
}

static void strike_always(const struct operation *operation)
{
    const char *stride_text = getenv("BANYAN_MOMENTS_STRIDE");
    uint32_t stride = stride_text ? (uint32_t)strtoul(stride_text, NULL, 10) : 1;
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++)
        for (uint32_t moment = 0; moment < MOMENTS_MAX; moment += stride) {
            snprintf(where, sizeof where, "%s: %s after %u events", operation->name, faults[f].name, moment);
            if (!strike_at(operation, &faults[f], moment))
                break;
        }
    where[0] = 0;
}

static int say_where(void **state)
{
    (void)state;
    if (where[0])
        print_error("%s\n", where);
    where[0] = 0;
    return 0;
}

static void run_operation(void **state)
{
    strike_always(*state);
}

int hermetic_moments(void)
{
    enum { N = sizeof operations / sizeof *operations };
    struct CMUnitTest tests[N];
    for (size_t i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){.name = operations[i].name,
                                       .test_func = run_operation,
                                       .teardown_func = say_where,
                                       .initial_state = (void *)&operations[i]};
    return cmocka_run_group_tests_name("moments", tests, NULL, NULL);
}
