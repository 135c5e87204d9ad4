// SPDX-License-Identifier: Apache-2.0
// A worker's files while the disk is slow, or fails: its loop goes on, and nothing is answered for that is
// not on the disk.
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "tests/worker/disk_fixture.h"

enum { FSYNCS = 3 };
static const enum worker_fsync fsyncs[FSYNCS] = {WORKER_FSYNC_ALWAYS, WORKER_FSYNC_INTERVAL,
                                                 WORKER_FSYNC_NEVER};

static pthread_t loop_thread;
static atomic_bool hangs, hung, on_loop;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t goes_on = PTHREAD_COND_INITIALIZER;

// A call that takes until the test ends it. On the loop's own thread it would never end.
static void standing(void)
{
    if (pthread_equal(pthread_self(), loop_thread)) {
        atomic_store(&on_loop, true);
        return;
    }
    pthread_mutex_lock(&mutex);
    while (atomic_load(&hangs)) {
        atomic_store(&hung, true);
        pthread_cond_wait(&goes_on, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

static void hang(bool on)
{
    pthread_mutex_lock(&mutex);
    atomic_store(&hangs, on);
    pthread_cond_broadcast(&goes_on);
    pthread_mutex_unlock(&mutex);
}

static void begin_empty(struct process *p, struct sim_files *directory, enum worker_fsync fsync)
{
    loop_thread = pthread_self();
    disk_fsync = fsync;
    disk_boot = "one";
    sim_files_init(directory);
    start(p, directory);
    atomic_store(&hung, false);
    atomic_store(&on_loop, false);
}

static void begin_slow(struct process *p, struct sim_files *directory, enum worker_fsync fsync)
{
    begin_empty(p, directory, fsync);
    (void)fill(p, TOKENS + 1);
    assert_int_equal(tell_apart(p, SESSION + 1, 1), COMMON_OK);
    directory->syncing = standing;
}

// Every call of the file system takes its time, not syncs alone.
static void begin_standing(struct process *p, struct sim_files *directory, enum worker_fsync fsync)
{
    begin_slow(p, directory, fsync);
    directory->syncing = NULL;
    directory->beside = standing;
}

struct beats {
    struct process *p;
    uint32_t n;
    bool done;
};

static void beat(void *arg) // a heartbeat, or a read of another session: anything of the loop's
{
    struct beats *beats = arg;
    beats->n += atomic_load(&hung); // the disk hangs, and the loop does not
    assert_false(beats->done && beats->n < 20);
    if (beats->n == 20)
        hang(false);
    if (beats->done)
        common_loop_stop(beats->p->loop);
}

static void note_done(void *arg)
{
    struct beats *beats = arg;
    assert_true(beats->n >= 20); // not before the disk has it
    beats->done = true;
}

// Runs the loop until the wait is over: the disk goes on when the loop has had 20 turns meanwhile.
static void run_beats(struct process *p, struct beats *beats)
{
    struct common_timer *timer;
    assert_int_equal(common_timer_new(p->loop, beat, beats, &timer), COMMON_OK);
    common_timer_start(timer, COMMON_NS_PER_MS, true);
    common_loop_run(p->loop);
    common_timer_free(timer);
    assert_true(beats->done);
    assert_false(atomic_load(&on_loop));
}

// What an append does before it waits.
static enum common_code append_asks(struct process *p, uint64_t position)
{
    uint8_t k[ROW], v[ROW];
    struct worker_session *session = session_of(p);
    struct worker_rows rows = {
        worker_store_find(p->store, 100 + position / TOKENS), 0, (uint32_t)(position % TOKENS), 1, k, v};
    row_of(0, position, k, v);
    session->write_term = p->term;
    session->write = ++p->write;
    worker_appended_confirm(session, 0, position);
    worker_appended_begin(session, 0, p->write);
    enum common_code code = worker_disk_append(p->disk, session, 0, p->write, position + 1, &p->err);
    if (code == COMMON_OK)
        code = worker_store_write(p->store, &rows, 1, WORKER_ROW_APPENDED, UINT64_MAX, &p->err);
    return code;
}

static void a_sync_that_hangs(void **state)
{
    static const enum worker_fsync ways[] = {WORKER_FSYNC_ALWAYS, WORKER_FSYNC_INTERVAL};
    struct sim_files directory;
    struct process p;
    (void)state;
    for (size_t way = 0; way < 2; way++) {
        struct worker_disk_wait wait = {0};
        struct beats beats = {.p = &p};
        begin_slow(&p, &directory, ways[way]);
        hang(true);
        if (ways[way] == WORKER_FSYNC_INTERVAL) // what was taken back is synced before what comes
            worker_chunk_withdraw(session_of(&p)->chunks[1].chunk, 0, 0, 1, WORKER_ROW_ABSENT);
        assert_int_equal(append_asks(&p, ways[way] == WORKER_FSYNC_INTERVAL ? TOKENS : TOKENS + 1),
                         COMMON_OK);
        assert_true(worker_disk_wait(p.disk, &wait, note_done, &beats));
        run_beats(&p, &beats);
        assert_int_equal(worker_disk_took(p.disk, session_of(&p), 0, UINT64_MAX, &wait, &p.err), COMMON_OK);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// Files are written, cut, renamed and removed beside the loop, whatever --fsync says: a file system that
// stands still for these does not stop it.
static void a_disk_that_hangs(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    for (int way = 0; way < FSYNCS; way++) {
        struct worker_disk_wait wait = {0};
        struct beats beats = {.p = &p};
        begin_standing(&p, &directory, fsyncs[way]);
        uint64_t calls = directory.calls;
        hang(true);
        assert_int_equal(append_asks(&p, TOKENS + 1), COMMON_OK); // written
        assert_int_equal(worker_disk_chunk(p.disk, worker_store_find(p.store, 100), &p.err),
                         COMMON_OK); // written, renamed
        worker_chunk_withdraw(session_of(&p)->chunks[1].chunk, 0, 1, 1, WORKER_ROW_ABSENT);
        worker_session_drop(&p.sessions, p.store, SESSION + 1); // removed
        assert_true(worker_disk_wait(p.disk, &wait, note_done, &beats));
        run_beats(&p, &beats);
        assert_true(directory.calls > calls + 6);
        assert_int_equal(sim_files_count(&directory, "sessions/"), 1);
        assert_int_equal(worker_disk_took(p.disk, session_of(&p), 0, UINT64_MAX, &wait, &p.err), COMMON_OK);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// What waits for a disk that stands still is bounded: the rest is refused, says so, and comes in later.
static void what_waits_is_bounded(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    for (int way = 0; way < FSYNCS; way++) {
        struct worker_disk_wait wait = {0};
        struct beats beats = {.p = &p};
        struct worker_disk_stats stats;
        uint64_t at = TOKENS + 1, refused = 0;
        disk_waiting = 6000;
        begin_standing(&p, &directory, fsyncs[way]);
        assert_false(worker_disk_crowded(p.disk));
        hang(true);
        for (; at < 3 * TOKENS && append_asks(&p, at) == COMMON_OK; at++) {
        }
        assert_true(at > TOKENS + 2 && at < 3 * TOKENS);
        assert_true(worker_disk_crowded(p.disk));
        for (int times = 0; times < 1000; times++) { // which takes no more memory
            refused += append_asks(&p, at) == COMMON_RESOURCE_EXHAUSTED;
            (void)worker_disk_chunk(p.disk, worker_store_find(p.store, 100 + (uint64_t)times % CHUNKS),
                                    &p.err);
            worker_appended_settle(session_of(&p), 0, p.write);
        }
        assert_int_equal(refused, 1000);
        assert_non_null(strstr(p.err.message, "too much is waiting to be written"));
        worker_disk_get_stats(p.disk, &stats);
        assert_true(stats.waiting >= disk_waiting / 2 && stats.waiting < 2 * disk_waiting);
        assert_true(worker_disk_wait(p.disk, &wait, note_done, &beats));
        run_beats(&p, &beats);
        assert_false(worker_disk_crowded(p.disk));
        disk_waiting = 0;
        kill_it(&p, &directory);
        start(&p, &directory);
        assert_true(check_layer(&p, 0, WORKER_ROW_APPENDED) >= TOKENS + 1);
        p.write = session_of(&p)->write;
        assert_int_equal(append(&p, 0, check_layer(&p, 0, WORKER_ROW_APPENDED)), COMMON_OK);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// A full disk refuses rows, and forks, which have some: layouts that bring none are taken, and written when
// there is room.
static void layouts_on_a_full_disk(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    for (int way = 0; way < FSYNCS; way++) {
        begin_slow(&p, &directory, fsyncs[way]);
        uint64_t length = TOKENS + 1;
        directory.room = 0;
        for (int times = 0; times < 2; times++) {
            assert_int_equal(append(&p, 0, length),
                             COMMON_RESOURCE_EXHAUSTED); // the session's own log has failed
            assert_int_equal(tell_layout(&p, SESSION, CHUNKS), COMMON_OK);
            assert_int_equal(tell_apart(&p, SESSION + 2, 1), COMMON_OK);
            assert_int_equal(tell_layout(&p, SESSION + 3, 1), COMMON_RESOURCE_EXHAUSTED);
        }
        directory.room = UINT64_MAX;
        assert_int_equal(tell_layout(&p, SESSION, CHUNKS), COMMON_OK);
        assert_int_equal(tell_layout(&p, SESSION + 3, 1), COMMON_OK);
        assert_int_equal(append(&p, 0, length), COMMON_OK);
        kill_it(&p, &directory);
        start(&p, &directory);
        assert_int_equal(check_layer(&p, 0, WORKER_ROW_APPENDED), length + 1);
        const struct worker_session *fork = worker_map_get(&p.sessions, SESSION + 3);
        assert_true(fork && worker_chunk_ready(fork->chunks[0].chunk, 0) == TOKENS);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

struct taken {
    struct process *p;
    struct worker_disk_wait wait;
    enum common_code code;
    bool done;
};

static void note_taken(void *arg)
{
    struct taken *taken = arg;
    taken->code = worker_disk_took(taken->p->disk, session_of(taken->p), (CHUNKS - 1) * TOKENS, TOKENS,
                                   &taken->wait, &taken->p->err);
    taken->done = true;
    common_loop_stop(taken->p->loop);
}

// Rows are not answered for while the session's file lacks the chunk that they are in, though the chunk's own
// file has them: no process that starts on the files would find them.
static void rows_of_a_chunk_that_no_file_names(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    for (int way = 0; way < FSYNCS; way++) {
        struct worker_disk_wait first = {0};
        struct beats beats = {.p = &p};
        struct taken taken = {.p = &p};
        begin_empty(&p, &directory, fsyncs[way]);
        set_layout(&p, 1);
        directory.beside = standing;
        directory.refused = "sessions/0000000000000007";
        hang(true);
        assert_int_equal(ask_layout(&p, SESSION, CHUNKS), COMMON_OK);
        assert_true(worker_disk_wait(p.disk, &first, note_done, &beats));
        worker_disk_start(p.disk); // it is under way when rows come
        assert_int_equal(put_rows(&p, CHUNKS - 1), COMMON_OK);
        assert_true(worker_disk_wait(p.disk, &taken.wait, note_taken, &taken));
        assert_true(taken.wait.batch > first.batch);
        run_beats(&p, &beats);
        while (!taken.done)
            common_loop_run(p.loop);
        assert_int_equal(taken.code, COMMON_RESOURCE_EXHAUSTED);
        directory.refused = NULL;
        assert_int_equal(kept(&p, SESSION, put_rows(&p, CHUNKS - 1)), COMMON_OK);
        kill_it(&p, &directory);
        start(&p, &directory);
        assert_int_equal(session_of(&p)->n_chunks, CHUNKS);
        assert_int_equal(worker_chunk_rows_at(worker_store_find(p.store, 102), 0, 0, TOKENS, WORKER_ROW_PUT),
                         TOKENS);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// What was answered for outlives a loss of power right after.
static void nothing_too_early(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    for (uint64_t n = 0; n < 12; n++)
        for (uint64_t chance = 1; chance < 8; chance++) {
            begin_slow(&p, &directory, WORKER_FSYNC_ALWAYS);
            for (uint64_t i = 0; i < n; i++)
                assert_int_equal(append(&p, 0, TOKENS + 1 + i), COMMON_OK);
            sim_files_power(&directory, common_mix64(chance + 100 * n));
            finish(&p);
            assert_false(atomic_load(&on_loop));
            disk_boot = "two";
            start(&p, &directory);
            assert_int_equal(check_layer(&p, 0, WORKER_ROW_PREPARED), TOKENS + 1 + n);
            assert_false(session_of(&p)->doubtful);
            kill_it(&p, &directory);
            sim_files_end(&directory);
        }
}

// What could not be done is answered with that, of that session alone; memory is written again when it can
// be.
static void what_fails(void **state)
{
    enum { SYNC, CHUNKS_REFUSED, SESSIONS_REFUSED, WAYS };
    struct sim_files directory;
    struct process p;
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        begin_slow(&p, &directory, WORKER_FSYNC_ALWAYS);
        directory.no_sync = way == SYNC;
        directory.refused = way == CHUNKS_REFUSED     ? "chunks/0000000000000065"
                            : way == SESSIONS_REFUSED ? "sessions/0000000000000007"
                                                      : NULL;
        assert_int_equal(append(&p, 0, TOKENS + 1), COMMON_RESOURCE_EXHAUSTED);
        assert_non_null(strstr(p.err.message, "--store DIR cannot be written"));
        if (way != SYNC)
            assert_int_equal(tell_apart(&p, SESSION + 1, 2), COMMON_OK); // another one's
        directory.no_sync = false;
        directory.refused = NULL;
        for (uint64_t i = 0; i < 4; i++)
            assert_int_equal(append(&p, 0, TOKENS + 1 + i), COMMON_OK);
        sim_files_power(&directory, common_mix64((uint64_t)way));
        finish(&p);
        disk_boot = "two";
        start(&p, &directory);
        assert_int_equal(check_layer(&p, 0, WORKER_ROW_PREPARED), TOKENS + 5);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sync_that_hangs),
        cmocka_unit_test(a_disk_that_hangs),
        cmocka_unit_test(what_waits_is_bounded),
        cmocka_unit_test(layouts_on_a_full_disk),
        cmocka_unit_test(rows_of_a_chunk_that_no_file_names),
        cmocka_unit_test(nothing_too_early),
        cmocka_unit_test(what_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
