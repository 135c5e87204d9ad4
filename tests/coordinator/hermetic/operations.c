// SPDX-License-Identifier: Apache-2.0
// The operations that faults strike (moments_test.c), each with what must be true afterwards.
#include "coordinator/session/layout.h"
#include "tests/coordinator/hermetic/moments.h"

enum { BEFORE = 20 };

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
    assert_true(sim_wait_active(scene->cluster, scene->cluster->options.workers));
    assert_int_equal(length_of(scene->cluster, scene->session), rows);
    reads_right(scene, rows, sum);
}

// Whether each chunk of each session has as many copies as it should have.
static bool is_whole(const struct scene *scene)
{
    const struct coordinator *c = scene->cluster->coordinator;
    for (uint32_t i = 0; i < c->sessions.n_slots; i++) {
        const struct coordinator_session *s = c->sessions.slots[i];
        for (uint32_t k = 0; s && k < s->layout.n; k++)
            if (!s->layout.chunks[k].lost &&
                coordinator_chunk_copies(&s->layout.chunks[k]) != scene->replicas)
                return false;
    }
    return true;
}

void moment_wait_whole(const struct scene *scene)
{
    for (int i = 0; !is_whole(scene); i++) {
        assert_true(i < 4000);
        sim_advance(50 * COMMON_NS_PER_MS);
    }
    sim_run_until_idle();
}

// Whatever became of it, it can be used again.
static void is_usable(struct scene *scene)
{
    OK(sim_truncate(scene->client, scene->session, 0));
    OK(sim_append(scene->client, scene->session, 0, 0, 20, 7));
    READS(scene->cluster, scene->session, 20, 20 * 7);
    sim_run_until_idle();
    moment_wait_whole(scene);
    assert_int_equal(tokens_held(scene->cluster, scene->session), 20 * scene->replicas);
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

static struct sim_call *read_one(struct scene *scene)
{
    return sim_read(scene->client, scene->session, 0, BEFORE - 1, 1);
}

static void one_read(struct scene *scene, bool done)
{
    if (done)
        assert_float_equal(scene->call->o, 1, 1e-4f);
    reads_right(scene, BEFORE, BEFORE);
    is_usable(scene);
}

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
        moment_wait_whole(scene);
        assert_int_equal(tokens_held(scene->cluster, scene->session), to * scene->replicas);
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

struct sim_shape moment_shape(const struct scene *scene)
{
    return (struct sim_shape){.members = scene->cluster->options.workers, .replicas = scene->replicas};
}

static struct sim_call *create_named(struct scene *scene)
{
    return sim_create(scene->client, moment_shape(scene), "name");
}

static void created(struct scene *scene, bool done)
{
    struct sim_call *again = sim_create(scene->client, moment_shape(scene), "name");
    enum common_code code = sim_wait(again);
    if (code != COMMON_ALREADY_EXISTS)
        assert_true(code == COMMON_OK && !done);
    if (done || code == COMMON_OK) {
        scene->session = done ? scene->call->session : again->session;
        is_usable(scene);
    }
}

const struct operation moment_operations[MOMENT_OPERATIONS] = {
    {"read", BEFORE, NULL, read_one, one_read, false, true},
    {"append of a row", BEFORE, NULL, append_one, one_added, false, true},
    {"append over chunks", BEFORE, NULL, append_over_chunks, over_chunks_added, false, true},
    {"first append", 0, NULL, append_first, first_added, true, true},
    {"open", BEFORE, NULL, open_range, opened, true, false},
    {"commit", BEFORE, put_rows, commit_rows, committed, true, false},
    {"commit beside a hole", BEFORE, put_rows, commit_beside_a_hole, committed, true, false},
    {"commit before a hole", BEFORE, put_rows, commit_before_a_hole, committed, true, false},
    {"truncate and append", BEFORE, NULL, truncate_and_append, truncated_and_appended, true, false},
    {"truncate within a chunk", BEFORE, NULL, truncate_within, truncated_within, true, false},
    {"truncate of committed rows", BEFORE, commit_ones, truncate_within, truncated_within, true, false},
    {"truncate between chunks", BEFORE, NULL, truncate_between, truncated_between, true, false},
    {"fork", BEFORE, NULL, fork_within, forked, true, false},
    {"delete", BEFORE, NULL, delete_it, deleted, true, false},
    {"create", 0, NULL, create_named, created, true, false},
};
