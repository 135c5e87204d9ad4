// SPDX-License-Identifier: Apache-2.0
// A worker's files (worker/disk), over a directory in memory and a real one: whatever byte of them changes,
// wherever they end, and whichever write fails, a process that starts on them has what was acknowledged or
// does not name the chunk, and never other bytes.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/common/sanitized.h"
#include "tests/sim/sim_files.h"
#include "tests/worker/disk_fixture.h"
#include "worker/disk/disk.h"
#include "worker/files/image.h"
#include "worker/memory/memory.h"
#include "worker/session/session.h"

// ---- what comes back ----------------------------------------------------------------------------

static void killed(void **state)
{
    struct sim_files directory;
    struct process p;
    struct worker_disk_stats stats;
    (void)state;
    sim_files_init(&directory);
    start(&p, &directory);
    uint64_t length = fill(&p, 2 * TOKENS + 5);
    for (int round = 0; round < 3; round++) {
        kill_it(&p, &directory);
        if (round == 1)
            seal(&directory, 100);
        start(&p, &directory);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            assert_int_equal(check_layer(&p, layer, WORKER_ROW_APPENDED), length);
        const struct worker_session *session = session_of(&p);
        assert_int_equal(session->n_chunks, CHUNKS);
        assert_int_equal(session->appended[0].length, length - 1);
        assert_int_equal(session->appended[0].end, length); // not known to be acknowledged
        assert_true(session->appended[0].write > 0);
        p.write = session->write;
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            assert_int_equal(append(&p, layer, length), COMMON_OK);
        length++;
    }
    worker_disk_get_stats(p.disk, &stats);
    assert_int_equal(stats.damaged, 0);
    // An append that is over before it was acknowledged is not there when the next process starts.
    worker_appended_settle(session_of(&p), 0, p.write);
    finish_changes(&p);
    kill_it(&p, &directory);
    start(&p, &directory);
    assert_int_equal(check_layer(&p, 0, WORKER_ROW_APPENDED), length - 1);
    // Nor is a session that was dropped, nor its chunks.
    worker_session_drop(&p.sessions, p.store, SESSION);
    finish_changes(&p);
    kill_it(&p, &directory);
    assert_int_equal(sim_files_count(&directory, "chunks/"), 0);
    assert_int_equal(sim_files_count(&directory, "sessions/"), 0);
    sim_files_end(&directory);
}

// Rows that a commit has frozen stay so, and thaw when it is over; those that were only put may be put again.
static void frozen(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    sim_files_init(&directory);
    start(&p, &directory);
    set_layout(&p, CHUNKS);
    assert_int_equal(attach(&p, 0, 0), COMMON_OK);
    kill_it(&p, &directory);
    start(&p, &directory);
    assert_int_equal(check_layer(&p, 0, WORKER_ROW_PREPARED), TOKENS);
    assert_int_equal(check_layer(&p, 0, WORKER_ROW_APPENDED), 0);
    assert_int_equal(session_of(&p)->frozen.n, 1);
    assert_int_equal(session_of(&p)->frozen.entries[0].commit, 9);
    worker_chunk_abort(worker_store_find(p.store, 100), 0, 0, TOKENS);
    finish_changes(&p);
    kill_it(&p, &directory);
    start(&p, &directory);
    assert_int_equal(worker_chunk_row(worker_store_find(p.store, 100), 0, 3), WORKER_ROW_PUT);
    assert_true(session_of(&p)->put_at_ns > 0);
    kill_it(&p, &directory);
    sim_files_end(&directory);
}

// A truncation is under way: the coordinator may have stored it, or not. Whatever the copy's id is, both
// chunks come back.
static void a_truncation_under_way(void **state)
{
    (void)state;
    for (uint64_t copy = 50; copy < 1000; copy += 900) { // below the other's, and above
        struct sim_files directory;
        struct process p;
        uint64_t hash;
        sim_files_init(&directory);
        start(&p, &directory);
        fill(&p, 2 * TOKENS + 7);
        tell_copy(&p, copy, 2);
        if (worker_store_copy(p.store, worker_store_find(p.store, 102), worker_store_find(p.store, copy), 3,
                              &hash, &p.err) != COMMON_OK)
            fail_msg("%s", p.err.message);
        finish_changes(&p);
        for (int round = 0; round < 2; round++) {
            kill_it(&p, &directory);
            start(&p, &directory);
            const struct worker_session *session = session_of(&p);
            const struct worker_chunk *made = worker_store_find(p.store, copy),
                                      *of = worker_store_find(p.store, 102);
            assert_int_equal(session->n_chunks, CHUNKS + 1);
            assert_false(session->doubtful);
            assert_true(made && of);
            for (uint32_t layer = 0; layer < LAYERS; layer++) {
                assert_int_equal(worker_chunk_rows_at(made, layer, 0, TOKENS, WORKER_ROW_APPENDED), 3);
                assert_int_equal(worker_chunk_rows_at(of, layer, 0, TOKENS, WORKER_ROW_APPENDED), 7);
            }
            for (uint32_t i = 0; i < session->n_chunks; i++)
                assert_int_equal(session->chunks[i].copy, session->chunks[i].chunk == made);
        }
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// ---- what is damaged ----------------------------------------------------------------------------

static void restore(struct sim_files *directory, const struct sim_files *from)
{
    sim_files_end(directory);
    sim_files_init(directory);
    struct worker_files *files = sim_files_open(directory);
    for (size_t i = 0; i < from->n; i++)
        assert_int_equal(files->ops->write(files, from->files[i].name, 0,
                                           &(struct iovec){from->files[i].bytes, from->files[i].len}, 1),
                         0);
    files->ops->close(files);
}

// With a sealed chunk, one that is full, and one that grows; the last appends are acknowledged.
static void make(struct sim_files *directory)
{
    struct process p;
    sim_files_init(directory);
    start(&p, directory);
    uint64_t length = fill(&p, 2 * TOKENS + 3);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        worker_appended_confirm(session_of(&p), layer, length);
    worker_disk_touch(p.disk, session_of(&p));
    finish(&p); // writes what is behind
    seal(directory, 100);
}

static void look(struct sim_files *directory, uint64_t most)
{
    struct process p;
    start(&p, directory);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_true(check_layer(&p, layer, WORKER_ROW_PREPARED) <= most);
    check_named(&p);
    kill_it(&p, directory);
}

static void every_byte(void **state)
{
    struct sim_files good, bad;
    (void)state;
    make(&good);
    sim_files_init(&bad);
    size_t damaged = 0, bytes = 0;
    for (size_t f = 0; f < good.n; f++) {
        if (!strchr(good.files[f].name, '/')) // whose directory it is: another test
            continue;
        for (size_t at = 0; at < good.files[f].len; at += SANITIZED(1, 7, 29)) { // every bit of some byte
            restore(&bad, &good);
            sim_files_find(&bad, good.files[f].name)->bytes[at] ^= (uint8_t)(1u << at % 8);
            look(&bad, 2 * TOKENS + 3);
            damaged += sim_files_count(&bad, "quarantine/") > 0;
            bytes++;
        }
    }
    assert_true(damaged > bytes / 2); // the others are in the last record of a log
    sim_files_end(&bad);
    sim_files_end(&good);
}

static void every_end(void **state)
{
    struct sim_files good, bad;
    (void)state;
    make(&good);
    sim_files_init(&bad);
    for (size_t f = 0; f < good.n; f++)
        for (size_t len = 0; strchr(good.files[f].name, '/') && len < good.files[f].len;
             len += SANITIZED(1, 5, 23)) {
            restore(&bad, &good);
            struct sim_file *file = sim_files_find(&bad, good.files[f].name);
            file->len = len;
            look(&bad, 2 * TOKENS + 3);
            look(&bad, 2 * TOKENS + 3); // what it has cut off
        }
    sim_files_end(&bad);
    sim_files_end(&good);
}

// An append was taken back, and the record that says so is the one that is damaged: it looks as if the
// machine had been writing it. The coordinator says where the layers end, and what was not acknowledged goes
// again, for good.
static void what_was_taken_back_stays_so(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    sim_files_init(&directory);
    start(&p, &directory);
    uint64_t length = fill(&p, TOKENS + 3), write = session_of(&p)->appended[0].write;
    worker_appended_settle(session_of(&p), 0, write);
    assert_int_equal(check_layer(&p, 0, WORKER_ROW_APPENDED), length - 1);
    worker_disk_touch(p.disk, session_of(&p));
    finish(&p);
    struct sim_file *log = sim_files_find(&directory, "chunks/0000000000000065.log");
    log->bytes[log->len - 1] ^= 1;
    start(&p, &directory);
    assert_int_equal(check_layer(&p, 0, WORKER_ROW_APPENDED), length); // no one can tell yet
    assert_int_equal(session_of(&p)->appended[0].write, 0);
    assert_true(session_of(&p)->doubtful);
    tell_settled(&p, length - 1, write);
    for (int life = 0; life < 2; life++) {
        assert_false(session_of(&p)->doubtful);
        assert_int_equal(check_layer(&p, 0, WORKER_ROW_APPENDED), length - 1);
        assert_int_equal(check_layer(&p, 1, WORKER_ROW_APPENDED), length); // a later append, under way still
        kill_it(&p, &directory);
        start(&p, &directory);
    }
    kill_it(&p, &directory);
    sim_files_end(&directory);
}

// ---- what is not there ---------------------------------------------------------------------------

// The bytes of a session whose own file is gone are not removed.
static void a_lost_session_file(void **state)
{
    struct sim_files directory;
    struct process p;
    struct worker_disk_stats stats;
    (void)state;
    make(&directory);
    size_t chunks = sim_files_count(&directory, "chunks/");
    assert_int_equal(chunks, CHUNKS);
    struct sim_file *file = sim_files_find(&directory, "sessions/0000000000000007.log");
    snprintf(file->name, sizeof file->name, "elsewhere");
    start(&p, &directory);
    assert_null(session_of(&p));
    assert_int_equal(sim_files_count(&directory, "chunks/"), 0);
    assert_int_equal(sim_files_count(&directory, "quarantine/"), chunks);
    worker_disk_get_stats(p.disk, &stats);
    assert_int_equal(stats.damaged, chunks);
    kill_it(&p, &directory);
    sim_files_end(&directory);
}

// A session that is dropped goes after its chunks: wherever the process ends, no file is left that no session
// names.
static void a_drop_that_is_cut_off(void **state)
{
    struct sim_files good, directory;
    struct process p;
    bool gone = false;
    (void)state;
    make(&good);
    sim_files_init(&directory);
    for (uint64_t nth = 1; !gone; nth++) {
        restore(&directory, &good);
        start(&p, &directory);
        directory.dies_at = directory.moves + nth;
        worker_session_drop(&p.sessions, p.store, SESSION);
        finish_changes(&p);
        gone = directory.moves < directory.dies_at;
        kill_it(&p, &directory);
        directory.dies_at = 0;
        start(&p, &directory);
        assert_int_equal(sim_files_count(&directory, "quarantine/"), 0);
        assert_true(!gone || sim_files_count(&directory, "s/") == 0);
        assert_true(gone == !session_of(&p));
        worker_session_drop(&p.sessions, p.store, SESSION); // as it is repeated
        finish_changes(&p);
        assert_int_equal(sim_files_count(&directory, "s/"), 0);
        kill_it(&p, &directory);
    }
    sim_files_end(&directory);
    sim_files_end(&good);
}

// ---- what does not fit --------------------------------------------------------------------------

// Each write in turn fails, in part, and those after it. What was acknowledged is there all the same; and
// when there is room again, everything goes on.
static void a_full_disk(void **state)
{
    (void)state;
    bool failed = true;
    for (uint64_t room = 300; failed; room += 37) {
        struct sim_files directory;
        struct process p;
        uint64_t length[LAYERS] = {TOKENS, TOKENS};
        sim_files_init(&directory);
        start(&p, &directory);
        directory.room = room;
        set_layout(&p, CHUNKS); // which it takes later, if it has to
        bool attached = attach(&p, 0, 0) == COMMON_OK && attach(&p, 0, 1) == COMMON_OK;
        for (uint32_t layer = 0; attached && layer < LAYERS; layer++)
            while (length[layer] < 2 * TOKENS + 5 && append(&p, layer, length[layer]) == COMMON_OK)
                length[layer]++;
        failed = length[0] < 2 * TOKENS + 5 || length[1] < 2 * TOKENS + 5;
        if (failed)
            assert_non_null(strstr(p.err.message, "--store DIR cannot be written"));
        kill_it(&p, &directory);
        directory.room = UINT64_MAX;
        start(&p, &directory);
        const struct worker_session *session = session_of(&p);
        if (attached)
            assert_int_equal(worker_chunk_rows_at(worker_store_find(p.store, 100), 0, 0, TOKENS,
                                                  WORKER_ROW_PREPARED),
                             TOKENS);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint64_t n = 0;
            for (uint32_t i = 0; session && i < session->n_chunks; i++) // but the one that is attached
                n += worker_chunk_first(session->chunks[i].chunk) == 0
                         ? 0
                         : worker_chunk_ready(session->chunks[i].chunk, layer);
            (void)check_layer(&p, layer, WORKER_ROW_PUT);
            assert_true(n >= length[layer] - TOKENS);
            assert_true(n <= length[layer] - TOKENS + 1); // one that was not acknowledged
        }
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// A fork has rows that no client sends to it: it is refused as long as the files do not take that it has
// them, also when it is repeated. A session that is new to its chunks as well waits for its rows.
static void a_fork_on_a_full_disk(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    sim_files_init(&directory);
    start(&p, &directory);
    uint64_t length = fill(&p, TOKENS + 5);
    directory.room = 0;
    for (int times = 0; times < 2; times++) {
        assert_int_equal(tell_layout(&p, SESSION + 1, 1), COMMON_RESOURCE_EXHAUSTED);
        assert_non_null(strstr(p.err.message, "--store DIR cannot be written"));
    }
    set_layout(&p, CHUNKS); // of chunks that it has
    directory.room = UINT64_MAX;
    assert_int_equal(tell_layout(&p, SESSION + 1, 1), COMMON_OK);
    kill_it(&p, &directory);
    start(&p, &directory);
    const struct worker_session *fork = worker_map_get(&p.sessions, SESSION + 1);
    assert_non_null(fork);
    assert_int_equal(fork->n_chunks, 1);
    assert_int_equal(worker_chunk_ready(fork->chunks[0].chunk, 0), TOKENS);
    assert_int_equal(check_layer(&p, 0, WORKER_ROW_APPENDED), length);
    kill_it(&p, &directory);
    sim_files_end(&directory);
}

// The same, without an end of the process in between.
static void room_again(void **state)
{
    struct sim_files directory;
    struct process p;
    struct worker_disk_stats stats;
    (void)state;
    for (uint64_t fail_at = 1; fail_at < 60; fail_at++) {
        sim_files_init(&directory);
        start(&p, &directory);
        directory.fail_at = directory.writes + fail_at;
        set_layout(&p, CHUNKS);
        uint64_t at = TOKENS;
        while (at < 2 * TOKENS + 5 && append(&p, 0, at) == COMMON_OK)
            at++;
        worker_disk_get_stats(p.disk, &stats);
        assert_true(at == 2 * TOKENS + 5 || (stats.refused > 0 && stats.failing));
        assert_int_equal(worker_chunk_ready(worker_store_find(p.store, 100 + at / TOKENS), 0), at % TOKENS);
        directory.fail_at = 0;
        for (; at < 2 * TOKENS + 9; at++)
            assert_int_equal(append(&p, 0, at), COMMON_OK);
        kill_it(&p, &directory);
        start(&p, &directory);
        (void)check_layer(&p, 0, WORKER_ROW_APPENDED);
        assert_int_equal(worker_chunk_ready(worker_store_find(p.store, 101), 0), TOKENS);
        assert_int_equal(worker_chunk_ready(worker_store_find(p.store, 102), 0), 9);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// What a session's log says of appends does not run ahead of what chunks' logs say was taken back: else the
// rows of one that failed would be there as the next one's, or as no append's, which count where there is no
// record of them.
static void one_log_is_refused(void **state)
{
    (void)state;
    enum { REFUSED, AGAIN, ENDS, ROWS, WAYS };
    for (int way = 0; way < WAYS; way++) {
        struct sim_files directory;
        struct process p;
        sim_files_init(&directory);
        start(&p, &directory);
        uint64_t length = fill(&p, TOKENS + 5);
        struct worker_session *session = session_of(&p);
        worker_appended_confirm(session, 0, length);
        assert_int_equal(append(&p, 0, length), COMMON_OK);
        uint64_t failed = p.write;
        directory.refused = "chunks/";
        if (way == ROWS) // the next append's own rows
            assert_int_equal(append(&p, 0, length), COMMON_RESOURCE_EXHAUSTED);
        else if (way == ENDS)
            worker_appended_settle(session, 0, failed);
        else
            worker_appended_begin(session, 0, ++p.write);
        if (way == AGAIN)
            directory.refused = NULL;
        worker_disk_touch(p.disk, session);
        enum common_code code = COMMON_OK;
        if (way == REFUSED || way == AGAIN)
            code = kept(&p, SESSION, worker_disk_append(p.disk, session, 0, p.write, length + 1, &p.err));
        assert_int_equal(code, way == REFUSED ? COMMON_RESOURCE_EXHAUSTED : COMMON_OK);
        const struct sim_file *log = sim_files_find(&directory, "chunks/0000000000000065.log");
        assert_true(log && (way != AGAIN || log->synced == log->len)); // nor after a loss of power
        if (way == ENDS)
            finish(&p); // writes what it can
        else
            kill_it(&p, &directory);
        directory.refused = NULL;
        start(&p, &directory);
        const struct worker_appended *appended = &session_of(&p)->appended[0];
        uint32_t row = (uint32_t)(length % TOKENS);
        bool there = worker_chunk_row(worker_store_find(p.store, 101), 0, row) != WORKER_ROW_ABSENT;
        assert_int_equal(there, way != AGAIN);
        assert_int_equal(appended->write, way == AGAIN ? failed + 1 : failed);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

static void little_memory(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    make(&directory);
    assert_int_equal(begin(&p, sim_files_open(&directory), "w", 4096), COMMON_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(p.err.message, "--memory"));
    kill_it(&p, &directory);
    look(&directory, 2 * TOKENS + 3); // nothing of it has gone
    assert_int_equal(sim_files_count(&directory, "quarantine/"), 0);
    sim_files_end(&directory);
}

// A file that cannot be opened for want of a descriptor is no damaged one: the start says so, and moves
// nothing.
static void no_descriptors(void **state)
{
    struct sim_files directory;
    struct process p;
    enum common_code code = COMMON_UNAVAILABLE;
    (void)state;
    make(&directory);
    for (uint64_t nth = 1; code != COMMON_OK; nth++) {
        directory.reads = 0;
        directory.no_reads_from = directory.no_reads_to = nth;
        code = begin(&p, sim_files_open(&directory), "w", 1 << 22);
        assert_true(code == COMMON_OK ? directory.reads < nth : code == COMMON_UNAVAILABLE);
        if (code != COMMON_OK)
            assert_non_null(strstr(p.err.message, "Too many open files"));
        assert_int_equal(sim_files_count(&directory, "quarantine/"), 0);
        kill_it(&p, &directory);
    }
    directory.no_reads_to = 0;
    start(&p, &directory);
    assert_int_equal(check_layer(&p, 0, WORKER_ROW_APPENDED), 2 * TOKENS + 3);
    kill_it(&p, &directory);
    sim_files_end(&directory);
}

// ---- a real directory ---------------------------------------------------------------------------

// The process that has it is being killed: the next one starts meanwhile.
static void a_directory_of_a_process_that_ends(void **state)
{
    char path[64], command[128];
    struct worker_files *files;
    struct common_error err;
    int made[2];
    char byte;
    (void)state;
    snprintf(path, sizeof path, "/tmp/banyan-disk-test-%ld", (long)getpid());
    assert_int_equal(pipe(made), 0);
    pid_t pid = fork();
    if (pid == 0) {
        bool ok = worker_files_open(path, &files, &err) == COMMON_OK && write(made[1], "", 1) == 1;
        usleep(200000);
        _exit(!ok);
    }
    assert_int_equal(read(made[0], &byte, 1), 1);
    assert_int_equal(worker_files_open(path, &files, &err), COMMON_OK);
    files->ops->close(files);
    close(made[0]);
    close(made[1]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    snprintf(command, sizeof command, "rm -r %s", path);
    assert_int_equal(system(command), 0);
}

static void a_real_directory(void **state)
{
    char path[64], command[128];
    struct worker_files *files, *other;
    struct process p;
    struct common_error err;
    (void)state;
    snprintf(path, sizeof path, "/tmp/banyan-disk-test-%ld", (long)getpid());
    assert_int_equal(worker_files_open(path, &files, &err), COMMON_OK);
    assert_int_equal(worker_files_open(path, &other, &err), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "in use by another worker process"));
    assert_int_equal(begin(&p, files, "w", 1 << 22), COMMON_OK);
    uint64_t length = fill(&p, 2 * TOKENS + 5);
    finish(&p);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(worker_files_open(path, &files, &err), COMMON_OK);
        assert_int_equal(begin(&p, files, "w", 1 << 22), COMMON_OK);
        assert_int_equal(check_layer(&p, 1, WORKER_ROW_APPENDED), length);
        finish(&p);
    }
    assert_int_equal(worker_files_open(path, &files, &err), COMMON_OK);
    assert_int_equal(begin(&p, files, "x", 1 << 22), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(p.err.message, "belongs to another worker"));
    finish(&p);
    assert_int_equal(chmod(path, 0755), 0);
    assert_int_equal(worker_files_open(path, &files, &err), COMMON_PERMISSION_DENIED);
    assert_non_null(strstr(err.message, "chmod 700"));
    snprintf(command, sizeof command, "rm -r -- '%s'", path);
    assert_int_equal(system(command), 0);
}

// ---- beside the loop ----------------------------------------------------------------------------

struct waiting {
    struct process *p;
    uint64_t sealed, damaged;
};

static void stop_when_done(void *arg)
{
    const struct waiting *w = arg;
    struct worker_disk_stats stats;
    worker_disk_get_stats(w->p->disk, &stats);
    if (stats.sealed >= w->sealed && stats.damaged >= w->damaged)
        common_loop_stop(w->p->loop);
}

// Runs the loop until so many chunks are sealed and so many files were found damaged.
static void wait_for(struct process *p, uint64_t sealed, uint64_t damaged)
{
    struct waiting waiting = {p, sealed, damaged};
    struct common_timer *timer;
    assert_int_equal(common_timer_new(p->loop, stop_when_done, &waiting, &timer), COMMON_OK);
    common_timer_start(timer, 1000000, true);
    common_loop_run(p->loop);
    common_timer_free(timer);
}

static void flip(const char *name)
{
    uint8_t byte;
    FILE *file = fopen(name, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 700, SEEK_SET), 0);
    assert_int_equal(fread(&byte, 1, 1, file), 1);
    byte ^= 4;
    assert_int_equal(fseek(file, 700, SEEK_SET), 0);
    assert_int_equal(fwrite(&byte, 1, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

// Full chunks are sealed; a sealed file that rots is found, and rewritten from memory.
static void sealed_and_scrubbed(void **state)
{
    char path[64], name[128], command[128];
    struct worker_files *files;
    struct process p;
    struct common_error err;
    (void)state;
    snprintf(path, sizeof path, "/tmp/banyan-disk-scrub-%ld", (long)getpid());
    assert_int_equal(worker_files_open(path, &files, &err), COMMON_OK);
    assert_int_equal(begin(&p, files, "w", 1 << 22), COMMON_OK);
    uint64_t length = fill(&p, 2 * TOKENS + 5);
    wait_for(&p, 2, 0);
    snprintf(name, sizeof name, "%s/chunks/%016x.sealed", path, 101);
    flip(name);
    wait_for(&p, 3, 1); // and sealed again
    snprintf(name, sizeof name, "%s/quarantine/%016x.sealed", path, 101);
    assert_int_equal(access(name, F_OK), 0);
    finish(&p);
    assert_int_equal(worker_files_open(path, &files, &err), COMMON_OK);
    assert_int_equal(begin(&p, files, "w", 1 << 22), COMMON_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_int_equal(check_layer(&p, layer, WORKER_ROW_APPENDED), length);
    finish(&p);
    snprintf(command, sizeof command, "rm -r -- '%s'", path);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed),
        cmocka_unit_test(frozen),
        cmocka_unit_test(a_truncation_under_way),
        cmocka_unit_test(every_byte),
        cmocka_unit_test(every_end),
        cmocka_unit_test(what_was_taken_back_stays_so),
        cmocka_unit_test(a_lost_session_file),
        cmocka_unit_test(a_drop_that_is_cut_off),
        cmocka_unit_test(a_full_disk),
        cmocka_unit_test(a_fork_on_a_full_disk),
        cmocka_unit_test(room_again),
        cmocka_unit_test(one_log_is_refused),
        cmocka_unit_test(little_memory),
        cmocka_unit_test(no_descriptors),
        cmocka_unit_test(a_directory_of_a_process_that_ends),
        cmocka_unit_test(a_real_directory),
        cmocka_unit_test(sealed_and_scrubbed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
