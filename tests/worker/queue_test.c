// SPDX-License-Identifier: Apache-2.0
// A worker's files while the disk is slow, or fails: its loop goes on, and nothing is answered for that is not on the disk.
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "tests/worker/disk_fixture.h"

static pthread_t loop_thread;
static atomic_bool hangs, hung, on_loop;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t goes_on = PTHREAD_COND_INITIALIZER;

// A sync that takes until somebody ends it. On the loop's own thread it would never end.
static void syncing(void)
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

static void begin_slow(struct process *p, struct sim_files *directory, enum worker_fsync fsync)
{
    loop_thread = pthread_self();
    disk_fsync = fsync;
    disk_boot = "one";
    sim_files_init(directory);
    start(p, directory);
    (void)fill(p, TOKENS + 1);
    assert_int_equal(tell_apart(p, SESSION + 1, 1), COMMON_OK);
    atomic_store(&hung, false);
    atomic_store(&on_loop, false);
    directory->syncing = syncing;
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

// What an append does before it waits.
static void append_begins(struct process *p, uint64_t position)
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
    assert_int_equal(worker_disk_append(p->disk, session, 0, p->write, position + 1, &p->err), COMMON_OK);
    assert_int_equal(worker_store_write(p->store, &rows, 1, WORKER_ROW_APPENDED, UINT64_MAX, &p->err),
                     COMMON_OK);
}

static void a_sync_that_hangs(void **state)
{
    static const enum worker_fsync ways[] = {WORKER_FSYNC_ALWAYS, WORKER_FSYNC_INTERVAL};
    struct sim_files directory;
    struct process p;
    (void)state;
    for (size_t way = 0; way < 2; way++) {
        struct worker_disk_wait wait = {0};
        struct common_timer *timer;
        struct beats beats = {.p = &p};
        begin_slow(&p, &directory, ways[way]);
        hang(true);
        if (ways[way] == WORKER_FSYNC_INTERVAL) // what was taken back is synced before what comes
            worker_chunk_withdraw(session_of(&p)->chunks[1].chunk, 0, 0, 1, WORKER_ROW_ABSENT);
        append_begins(&p, ways[way] == WORKER_FSYNC_INTERVAL ? TOKENS : TOKENS + 1);
        assert_true(worker_disk_wait(p.disk, &wait, note_done, &beats));
        assert_int_equal(common_timer_new(p.loop, beat, &beats, &timer), COMMON_OK);
        common_timer_start(timer, COMMON_NS_PER_MS, true);
        common_loop_run(p.loop);
        common_timer_free(timer);
        assert_true(beats.done);
        assert_false(atomic_load(&on_loop));
        assert_int_equal(worker_disk_took(p.disk, session_of(&p), &wait, &p.err), COMMON_OK);
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

// What could not be done is answered with that, of that session alone; memory is written anew when it can be.
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
        assert_non_null(strstr(p.err.message, "--store DIR does not take it"));
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
        cmocka_unit_test(nothing_too_early),
        cmocka_unit_test(what_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
