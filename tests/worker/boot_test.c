// SPDX-License-Identifier: Apache-2.0
// Whether a worker detects that its files may lack rows (worker/disk/boot.c): after a loss of power, and only
// then, until a coordinator has said which rows there are.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/worker/disk_fixture.h"

// Another process on the directory, after a loss of power or not.
static void again(struct process *p, struct sim_files *directory, const char *boot)
{
    kill_it(p, directory);
    disk_boot = boot;
    start(p, directory);
}

static void ends_in_order(struct process *p, struct sim_files *directory, const char *boot)
{
    finish(p);
    disk_boot = boot;
    start(p, directory);
}

// What a coordinator says that has all rows of all layers up to there.
static void settle(struct process *p, uint64_t length)
{
    Banyan__Pb__LayoutSetRequest request = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    uint64_t lengths[LAYERS];
    struct worker_session *session = session_of(p);
    for (uint32_t l = 0; l < LAYERS; l++)
        lengths[l] = length;
    request.term = 1;
    request.session = SESSION;
    request.incarnation = session->incarnation;
    request.epoch = session->epoch;
    request.lengths = lengths;
    request.n_lengths = LAYERS;
    request.settled = session->write + 1;
    if (worker_session_layout(&p->sessions, p->store, &request, &p->err) != COMMON_OK)
        fail_msg("%s", p->err.message);
    finish_changes(p);
}

static void begin_with(struct process *p, struct sim_files *directory, enum worker_fsync fsync)
{
    sim_files_init(directory);
    disk_boot = "one";
    disk_fsync = fsync;
    start(p, directory);
    fill(p, TOKENS + 5);
    assert_false(session_of(p)->doubtful);
}

static void power(void **state)
{
    (void)state;
    for (int fsync = WORKER_FSYNC_ALWAYS; fsync <= WORKER_FSYNC_NEVER; fsync++) {
        struct sim_files directory;
        struct process p;
        bool always = fsync == WORKER_FSYNC_ALWAYS;
        begin_with(&p, &directory, (enum worker_fsync)fsync);
        again(&p, &directory, "one"); // the process alone
        assert_false(session_of(&p)->doubtful);
        again(&p, &directory, "two");
        assert_int_equal(session_of(&p)->doubtful, !always);
        again(&p, &directory, "two"); // and it does not forget
        assert_int_equal(session_of(&p)->doubtful, !always);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// It is over when a coordinator with a record of all rows has listed them, and the rows are here.
static void told(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    begin_with(&p, &directory, WORKER_FSYNC_INTERVAL);
    again(&p, &directory, "two");
    set_layout(&p, CHUNKS); // no list of what there should be
    assert_true(session_of(&p)->doubtful);
    settle(&p, TOKENS + 6);
    assert_true(session_of(&p)->doubtful);
    again(&p, &directory, "two"); // which was named, and which it lacks: the chunk is given up
    assert_int_equal(session_of(&p)->n_chunks, CHUNKS - 1);
    assert_true(session_of(&p)->doubtful);
    settle(&p, TOKENS);
    assert_false(session_of(&p)->doubtful);
    again(&p, &directory, "two");
    assert_false(session_of(&p)->doubtful);
    kill_it(&p, &directory);
    sim_files_end(&directory);
}

static const struct sim_file *log_of(const struct sim_files *directory, uint64_t chunk)
{
    char name[64];
    snprintf(name, sizeof name, "chunks/%016" PRIx64 ".log", chunk);
    for (size_t i = 0; i < directory->n; i++)
        if (strcmp(directory->files[i].name, name) == 0)
            return &directory->files[i];
    fail_msg("there is no %s", name);
    return NULL;
}

// What an append that failed has left in the files does not come back in the place of the next one's rows.
static void taken_back(void **state)
{
    (void)state;
    for (int fsync = WORKER_FSYNC_ALWAYS; fsync <= WORKER_FSYNC_NEVER; fsync++) {
        struct sim_files directory;
        struct process p;
        begin_with(&p, &directory, (enum worker_fsync)fsync);
        struct worker_chunk *chunk = session_of(&p)->chunks[1].chunk;
        worker_chunk_withdraw(chunk, 0, 4, 1, WORKER_ROW_ABSENT);
        size_t until = log_of(&directory, worker_chunk_id(chunk))->len;
        assert_int_equal(append(&p, 0, TOKENS + 4), COMMON_OK);
        assert_true(log_of(&directory, worker_chunk_id(chunk))->synced >= until);
        size_t synced = log_of(&directory, worker_chunk_id(chunk))->synced;
        assert_int_equal(append(&p, 0, TOKENS + 5), COMMON_OK); // that was all
        assert_true(fsync == WORKER_FSYNC_ALWAYS ||
                    log_of(&directory, worker_chunk_id(chunk))->synced == synced);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// A chunk's only rows are of an append that may have been acknowledged, and its file is gone: as if it had
// never had one.
static void a_file_is_gone(void **state)
{
    (void)state;
    for (int gone = 0; gone < 2; gone++) {
        struct sim_files directory;
        struct process p;
        char name[64];
        sim_files_init(&directory);
        disk_boot = "one";
        disk_fsync = WORKER_FSYNC_INTERVAL;
        start(&p, &directory);
        fill(&p, TOKENS + 1);
        snprintf(name, sizeof name, "%s",
                 log_of(&directory, worker_chunk_id(session_of(&p)->chunks[1].chunk))->name);
        kill_it(&p, &directory);
        struct worker_files *files = sim_files_open(&directory);
        if (gone)
            assert_int_equal(files->ops->remove(files, name), 0);
        files->ops->close(files);
        start(&p, &directory);
        assert_int_equal(session_of(&p)->doubtful, gone);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// An end in order leaves nothing to lose, but with --fsync never.
static void in_order(void **state)
{
    (void)state;
    for (int fsync = WORKER_FSYNC_ALWAYS; fsync <= WORKER_FSYNC_NEVER; fsync++) {
        struct sim_files directory;
        struct process p;
        begin_with(&p, &directory, (enum worker_fsync)fsync);
        ends_in_order(&p, &directory, "two");
        assert_int_equal(session_of(&p)->doubtful, fsync == WORKER_FSYNC_NEVER);
        // What the process before had not synced this one does, or at its end at the latest.
        p.write = session_of(&p)->write;
        assert_int_equal(append(&p, 0, TOKENS + 5), COMMON_OK);
        again(&p, &directory, "two");
        ends_in_order(&p, &directory, "two");
        for (size_t i = 0; i < directory.n && fsync != WORKER_FSYNC_NEVER; i++)
            assert_int_equal(directory.files[i].synced, directory.files[i].len);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// A sync that fails is no end in order.
static void no_sync(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    begin_with(&p, &directory, WORKER_FSYNC_INTERVAL);
    directory.no_sync = true;
    finish(&p);
    directory.no_sync = false;
    disk_boot = "two";
    start(&p, &directory);
    assert_true(session_of(&p)->doubtful);
    kill_it(&p, &directory);
    sim_files_end(&directory);
}

// A log with a torn end may have had more.
static void torn(void **state)
{
    (void)state;
    for (int chunk = 0; chunk < 2; chunk++) {
        struct sim_files directory;
        struct process p;
        begin_with(&p, &directory, WORKER_FSYNC_INTERVAL);
        kill_it(&p, &directory);
        struct sim_file *file = sim_files_find(&directory, chunk ? "chunks/0000000000000065.log"
                                                                 : "sessions/0000000000000007.log");
        assert_non_null(file);
        file->len -= 3;
        start(&p, &directory);
        assert_true(session_of(&p)->doubtful);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// The file that says it is away, or nonsense, or cannot be written: better in doubt once too often.
static void without(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct sim_files directory;
        struct process p;
        begin_with(&p, &directory, WORKER_FSYNC_INTERVAL);
        finish(&p);
        struct worker_files *files = sim_files_open(&directory);
        struct sim_file *file = sim_files_find(&directory, "boot");
        assert_non_null(file);
        if (way == 0)
            assert_int_equal(files->ops->remove(files, "boot"), 0);
        if (way == 1)
            memcpy(file->bytes, "BOOT", 4);
        if (way == 2)
            file->len -= 1;
        if (way == 3) { // while it is written
            directory.fail_at = directory.writes + 1;
            start(&p, &directory);
            assert_false(session_of(&p)->doubtful);
            assert_null(sim_files_find(&directory, "boot"));
            kill_it(&p, &directory);
            directory.fail_at = 0;
        }
        files->ops->close(files);
        start(&p, &directory);
        assert_true(session_of(&p)->doubtful);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// On this machine.
static void the_systems(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    begin_with(&p, &directory, WORKER_FSYNC_INTERVAL);
    ends_in_order(&p, &directory, NULL);
    assert_false(session_of(&p)->doubtful);
    again(&p, &directory, NULL); // the same
    assert_false(session_of(&p)->doubtful);
    again(&p, &directory, "two");
    assert_true(session_of(&p)->doubtful);
    kill_it(&p, &directory);
    sim_files_end(&directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(power),          cmocka_unit_test(told),     cmocka_unit_test(taken_back),
        cmocka_unit_test(a_file_is_gone), cmocka_unit_test(in_order), cmocka_unit_test(no_sync),
        cmocka_unit_test(torn),           cmocka_unit_test(without),  cmocka_unit_test(the_systems),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
