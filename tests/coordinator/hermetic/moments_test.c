// SPDX-License-Identifier: Apache-2.0
// Every operation, struck by every fault at every moment: after each event that runs between the request and its
// answer. So each message and each store write of an operation is one that a fault comes before, and one that it
// comes after. Afterwards:
//
//   what was acknowledged is there and reads right;  what was not is there as a whole, or not at all;
//   where it is not, other bytes are accepted;       the operation, asked again, works;
//   the code was one that the contract allows;       nothing is left that no session needs, and every count is 0;
//   another restart alters none of this.
//
// Once with events in their order, once with those of an instant and the delays of links as a seed draws them.
//
// BANYAN_MOMENTS_ALL: shuffled ones after every event, too, not every fifth.
//
// A worker that lost its memory may have taken rows with it: then the error says so, and a truncate makes the session
// usable again.
#include <stdlib.h>

#include "tests/coordinator/hermetic/moments.h"
#include "worker/state.h"

enum { BEFORE = 20, MOMENTS_MAX = 2000 };

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

// What was acknowledged is there after a restart, too.
static void survives(struct scene *scene, uint64_t rows, float sum)
{
    sim_coordinator_kill(scene->cluster);
    restart(scene->cluster);
    assert_true(sim_wait_active(scene->cluster, 2));
    assert_int_equal(length_of(scene->cluster, scene->session), rows);
    reads_right(scene, rows, sum);
}

// No chunk is at a worker that the layouts do not know, and none is missing that is not lost.
static void workers_hold_what_they_should(struct scene *scene)
{
    const struct coordinator *c = scene->cluster->coordinator;
    for (uint32_t i = 0; i < c->sessions.n_slots; i++) {
        const struct coordinator_session *s = c->sessions.slots[i];
        uint32_t chunks = 0, held = 0;
        for (uint32_t k = 0; s && k < s->layout.n; k++)
            chunks += !s->layout.chunks[k].lost;
        for (uint32_t w = 0; s && w < 2; w++) {
            const struct worker_session *at =
                worker_map_get(&scene->cluster->workers[w]->worker->sessions, s->id);
            held += at ? at->n_chunks : 0;
        }
        assert_int_equal(held, chunks);
    }
}

static void nothing_is_left(struct scene *scene)
{
    const struct coordinator *c = scene->cluster->coordinator;
    for (uint32_t i = 0; i < c->sessions.n_slots; i++)
        if (c->sessions.slots[i]) {
            scene->session = c->sessions.slots[i]->id;
            OK(sim_delete(scene->client, scene->session));
        }
    sim_advance(20 * COMMON_NS_PER_MS); // deadlines are looked at every 10 ms
    assert_int_equal(c->sessions.n, 0);
    assert_int_equal(c->steps.items, 0);
    assert_int_equal(c->steps.bytes, 0);
    assert_null(c->sessions.commits.head);
    assert_true(proto_list_empty(&c->steps.calls) && proto_list_empty(&c->steps.retries));
    for (uint32_t i = 0; i < 2; i++) {
        const struct coordinator_worker *w = c->cluster.workers[i];
        assert_true(!w->chunks && !w->members && !w->load_bytes && !w->visitors && !w->quarantine.n);
        assert_int_equal(scene->cluster->workers[i]->worker->sessions.count, 0);
    }
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
    assert_true(!sim_append_refused(scene->call) || length == before);
    reads_right(scene, before, (float)before);
    float now = length > before ? value : value + 3;
    OK(sim_append(scene->client, scene->session, 0, before, (uint32_t)rows, now));
    assert_int_equal(length_of(scene->cluster, scene->session), before + rows);
    reads_right(scene, before + rows, (float)before + (float)rows * now);
    ENDS(COMMON_FAILED_PRECONDITION,
         sim_append(scene->client, scene->session, 0, before, (uint32_t)rows, now + 1));
    survives(scene, before + rows, (float)before + (float)rows * now);
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

// Another client's range reaches past the rows that are there: it gets HOLE, and takes nothing from this one.
static struct sim_call *commit_beside_a_hole(struct scene *scene)
{
    scene->beside = sim_commit(scene->client, scene->session, 0, BEFORE, 25);
    return commit_rows(scene);
}

static struct sim_call *commit_before_a_hole(struct scene *scene)
{
    struct sim_call *call = commit_rows(scene);
    scene->beside = sim_commit(scene->client, scene->session, 0, BEFORE, 25);
    return call;
}

static void commit_ones(struct scene *scene)
{
    scene->opened = sim_open(scene->client, scene->session, BEFORE, 20);
    OK(scene->opened);
    OK(sim_put(scene->client, scene->opened, 0, BEFORE, 20, 1));
    OK(commit_rows(scene));
    scene->before = BEFORE + 20;
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
        survives(scene, to + 4, (float)to + 4 * 9);
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

static struct sim_call *truncate_and_append(struct scene *scene)
{
    struct sim_call *call = sim_truncate(scene->client, scene->session, 10);
    scene->beside = sim_append(scene->client, scene->session, 0, 10, 1, 1);
    return call;
}

static void truncated_and_appended(struct scene *scene, bool done)
{
    uint64_t length = length_of(scene->cluster, scene->session);
    if (!scene->loses) {
        assert_true(length == 10 || length == 11 || (length == scene->before && !done));
        assert_true(!done || scene->beside->code != COMMON_OK || length == 11);
        reads_right(scene, length, (float)length);
    }
    is_usable(scene);
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
    {"append of a row", BEFORE, NULL, append_one, one_added, false},
    {"append over chunks", BEFORE, NULL, append_over_chunks, over_chunks_added, false},
    {"first append", 0, NULL, append_first, first_added, true},
    {"open", BEFORE, NULL, open_range, opened, true},
    {"commit", BEFORE, put_rows, commit_rows, committed, true},
    {"commit beside a hole", BEFORE, put_rows, commit_beside_a_hole, committed, true},
    {"commit before a hole", BEFORE, put_rows, commit_before_a_hole, committed, true},
    {"truncate and append", BEFORE, NULL, truncate_and_append, truncated_and_appended, true},
    {"truncate within a chunk", BEFORE, NULL, truncate_within, truncated_within, true},
    {"truncate of committed rows", BEFORE, commit_ones, truncate_within, truncated_within, true},
    {"truncate between chunks", BEFORE, NULL, truncate_between, truncated_between, true},
    {"fork", BEFORE, NULL, fork_within, forked, true},
    {"delete", BEFORE, NULL, delete_it, deleted, true},
    {"create", 0, NULL, create_named, created, true},
};

// ---- moments --------------------------------------------------------------------------------------------

// False: the operation was over before this moment.
static bool strike_at(const struct operation *operation, const struct fault *fault, uint32_t moment,
                      bool shuffled)
{
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .seed = moment + 1});
    if (shuffled) {
        sim_shuffle(true);
        sim_net_delay(10 * COMMON_NS_PER_US, 300 * COMMON_NS_PER_US);
    }
    sim_cluster_start(cluster);
    struct scene scene = {.cluster = cluster,
                          .client = cluster->client,
                          .before = operation->before,
                          .loses = fault->effect == LOSES,
                          .restarts = fault->effect == RESTARTS};
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
    if (!moment_allows(fault, code))
        fail_msg("%s: %s", common_code_name(code), scene.call->text);
    if (operation->writes && !moment && moment_fills_disk(fault))
        assert_int_equal(code, COMMON_RESOURCE_EXHAUSTED);
    if (scene.beside)
        assert_true(sim_wait(scene.beside) != COMMON_IN_PROGRESS);
    sim_advance(500 * COMMON_NS_PER_MS);
    assert_true(sim_wait_active(cluster, 2));
    workers_hold_what_they_should(&scene);
    operation->check(&scene, code == COMMON_OK);
    nothing_is_left(&scene);
    sim_cluster_free(cluster);
    return !over;
}

static void strike_always(const struct operation *operation)
{
    const uint32_t strides[2] = {1,
                                 getenv("BANYAN_MOMENTS_ALL") ? 1 : 16}; // the second is the shuffled one's
    for (size_t f = 0; f < MOMENT_FAULTS; f++)
        for (int shuffled = 0; shuffled < 2; shuffled++)
            for (uint32_t moment = 0; moment < MOMENTS_MAX; moment += strides[shuffled]) {
                snprintf(where, sizeof where, "%s: %s after %u events%s", operation->name,
                         moment_faults[f].name, moment, shuffled ? ", shuffled" : "");
                if (!strike_at(operation, &moment_faults[f], moment, shuffled))
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
