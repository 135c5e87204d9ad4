// SPDX-License-Identifier: Apache-2.0
// The store on a disk that is full or fails, and in a process that is killed.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/hash/hash.h"
#include "tests/coordinator/store_suite.h"

// ---- a disk that fails where it should ------------------------------------------------------------

static _Atomic(const char *) full_at; // the next execution of this text finds the disk full
static atomic_uint full_in;           // so many steps from now one finds it full; 0: none does
static atomic_bool sync_asked;        // every commit is to reach the disk before it returns

int __real_sqlite3_exec(sqlite3 *db, const char *text, int (*row)(void *, int, char **, char **), void *arg,
                        char **error);
int __wrap_sqlite3_exec(sqlite3 *db, const char *text, int (*row)(void *, int, char **, char **), void *arg,
                        char **error);
int __wrap_sqlite3_exec(sqlite3 *db, const char *text, int (*row)(void *, int, char **, char **), void *arg,
                        char **error)
{
    const char *doomed = full_at;
    if (strcmp(text, "PRAGMA synchronous=FULL") == 0)
        sync_asked = true;
    if (!doomed || strcmp(text, doomed) != 0)
        return __real_sqlite3_exec(db, text, row, arg, error);
    full_at = NULL;
    return SQLITE_FULL;
}

int __real_sqlite3_step(sqlite3_stmt *statement);
int __wrap_sqlite3_step(sqlite3_stmt *statement);
int __wrap_sqlite3_step(sqlite3_stmt *statement)
{
    return full_in > 0 && --full_in == 0 ? SQLITE_FULL : __real_sqlite3_step(statement);
}

// ---- a disk that is full ------------------------------------------------------------------------

// The store's log may become `more` bytes longer than it is; UINT64_MAX: as long as it likes.
static void disk_room(uint64_t more)
{
    char log[160];
    struct stat info;
    struct rlimit limit;
    snprintf(log, sizeof(log), "%s-wal", store_path);
    assert_int_equal(stat(log, &info), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = more == UINT64_MAX ? limit.rlim_max : (rlim_t)info.st_size + more;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

struct answer {
    bool come;
    enum common_code code;
    char text[160];
};

static void answered(void *arg, enum common_code code, const char *text)
{
    struct answer *answer = arg;
    answer->come = true;
    answer->code = code;
    snprintf(answer->text, sizeof(answer->text), "%s", text);
}

static struct coordinator_batch *chunks_of(uint32_t first, uint32_t count)
{
    struct coordinator_batch *batch = coordinator_batch_new();
    for (uint32_t i = 0; i < count; i++)
        coordinator_batch_chunk(batch, 1, first + i, 1, false,
                                "a holder whose name is as long as the name of a holder may be, or nearly");
    return batch;
}

static void submit_chunks(struct coordinator_store *store, struct answer *answer, uint32_t first,
                          uint32_t count)
{
    coordinator_store_submit(store, chunks_of(first, count), answered, answer);
}

static void await(const struct answer *answer)
{
    while (!answer->come) { // one turn of the loop
        common_loop_stop(store_loop);
        common_loop_run(store_loop);
    }
}

// What is refused is not there afterwards, what is acknowledged is, also when the disk is full in the middle
// of a transaction that carries several batches.
void store_full_disk(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    struct answer before = {0}, refused = {0}, busy = {0}, many[3] = {0}, after = {0};
    void (*was)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    submit_chunks(store, &before, 0, 1);
    await(&before);
    assert_int_equal(before.code, COMMON_OK);
    disk_room(0);
    submit_chunks(store, &refused, 1, 1);
    await(&refused);
    assert_int_not_equal(refused.code, COMMON_OK);
    assert_non_null(strstr(refused.text, "store"));
    // The second of these is more than the store keeps in memory before it writes, and more than the disk
    // has. While the first batch is being written the others wait, and share a transaction.
    struct coordinator_batch *batches[] = {chunks_of(10000, 1), chunks_of(20000, 100000),
                                           chunks_of(10001, 1)};
    disk_room(3 << 20);
    submit_chunks(store, &busy, 2, 5000);
    for (int i = 0; i < 3; i++)
        coordinator_store_submit(store, batches[i], answered, &many[i]);
    for (int i = 0; i < 3; i++)
        await(&many[i]);
    assert_int_equal(busy.code, COMMON_OK);
    assert_int_not_equal(many[1].code, COMMON_OK);
    assert_true(many[0].code == COMMON_OK && many[2].code == COMMON_OK); // what fits is not taken along
    disk_room(UINT64_MAX);
    submit_chunks(store, &after, 10002, 1);
    await(&after);
    assert_int_equal(after.code, COMMON_OK);
    store_close(store);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(seen.chunks, 1 + 5000 + 2 + 1);
    store_close(store);
    signal(SIGXFSZ, was);
}

// ---- deletes on a disk that is full ----------------------------------------------------------------

// What the store's files have together may not become more than this; 0: as much as they like.
static atomic_ullong disk_bytes;

static unsigned long long files_bytes(void)
{
    static const char *const suffixes[] = {"", "-wal", "-spare"};
    unsigned long long sum = 0;
    for (int i = 0; i < 3; i++) {
        char path[160];
        struct stat info;
        snprintf(path, sizeof path, "%s%s", store_path, suffixes[i]);
        sum += stat(path, &info) == 0 ? (unsigned long long)info.st_size : 0;
    }
    return sum;
}

static bool no_room(int fd, off_t end)
{
    struct stat info;
    unsigned long long most = disk_bytes;
    return most && fstat(fd, &info) == 0 && end > info.st_size &&
           files_bytes() + (unsigned long long)(end - info.st_size) > most;
}

int __real_posix_fallocate(int fd, off_t at, off_t len);
int __wrap_posix_fallocate(int fd, off_t at, off_t len);
int __wrap_posix_fallocate(int fd, off_t at, off_t len)
{
    return no_room(fd, at + len) ? ENOSPC : __real_posix_fallocate(fd, at, len);
}

static ssize_t small_pwrite(int fd, const void *data, size_t len, off_t at)
{
    if (!no_room(fd, at + (off_t)len))
        return pwrite(fd, data, len, at);
    errno = ENOSPC;
    return -1;
}

static struct coordinator_batch *session_of(uint64_t id, uint32_t chunks)
{
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, id, "", "spec", 4, 1, 1, 0);
    for (uint32_t i = 0; i < chunks; i++)
        coordinator_batch_chunk(batch, id, i, id << 32 | i, false, "a holder of some chunks of this session");
    return batch;
}

static enum common_code submitted(struct coordinator_store *store, struct coordinator_batch *batch,
                                  struct answer *answer)
{
    *answer = (struct answer){0};
    coordinator_store_submit(store, batch, answered, answer);
    await(answer);
    return answer->code;
}

// A session is deleted and another truncated, though the disk has no byte left; what needs space is refused
// meanwhile. Then the log is emptied, and new sessions take the place of the deleted one.
void store_deletes_when_full(void **state)
{
    (void)state;
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    struct coordinator_store *store;
    struct store_seen seen;
    struct answer answer;
    uint64_t id = 2;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(vfs->xSetSystemCall(vfs, "pwrite", (sqlite3_syscall_ptr)small_pwrite), SQLITE_OK);
    assert_int_equal(vfs->xSetSystemCall(vfs, "pwrite64", (sqlite3_syscall_ptr)small_pwrite), SQLITE_OK);
    assert_int_equal(submitted(store, session_of(1, 3000), &answer), COMMON_OK);
    disk_bytes = files_bytes() + (1 << 20);
    while (submitted(store, session_of(id, 500), &answer) == COMMON_OK)
        id++;
    assert_int_equal(answer.code, COMMON_RESOURCE_EXHAUSTED);
    assert_true(id > 2);
    disk_bytes = files_bytes(); // not a byte more
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session_drop(batch, 1);
    assert_int_equal(submitted(store, batch, &answer), COMMON_OK);
    assert_non_null(strstr(coordinator_store_trouble(store), "only what frees space"));
    assert_int_equal(submitted(store, session_of(id, 1), &answer), COMMON_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(answer.text, "only what frees space"));
    batch = coordinator_batch_new();
    coordinator_batch_cut(batch, 2, 7);
    coordinator_batch_clip(batch, 2, 0);
    for (uint32_t i = 0; i < 500; i++)
        coordinator_batch_chunk_drop(batch, 2, i);
    assert_int_equal(submitted(store, batch, &answer), COMMON_OK);
    for (int i = 0; i < 600 && submitted(store, session_of(id, 1), &answer) != COMMON_OK; i++)
        usleep(100000);
    assert_int_equal(answer.code, COMMON_OK);
    assert_null(coordinator_store_trouble(store));
    assert_true(files_bytes() <= disk_bytes);
    disk_bytes = 0;
    store_close(store);
    assert_int_equal(vfs->xSetSystemCall(vfs, NULL, NULL), SQLITE_OK);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(seen.sessions, id - 1); // 1 is gone, the last one is there
    assert_int_equal(seen.chunks, (id - 3) * 500 + 1);
    store_close(store);
}

// A commit that fails acknowledges nothing, and the next one works.
void store_commit_that_fails(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    struct answer refused = {0}, after = {0};
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    full_at = "COMMIT";
    submit_chunks(store, &refused, 0, 1);
    await(&refused);
    assert_int_equal(refused.code, COMMON_RESOURCE_EXHAUSTED);
    submit_chunks(store, &after, 1, 1);
    await(&after);
    assert_int_equal(after.code, COMMON_OK);
    store_close(store);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(seen.chunks, 1);
    assert_int_equal(seen.chunk_sum, 2); // the second
    store_close(store);
}

// The second operation of a batch fails, between two batches of the same transaction: its first one is not
// there either, theirs are.
void store_half_a_batch(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    struct answer answers[3] = {0};
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    full_in = 7; // a chunk takes three steps: one before, one of this batch, and the next
    submit_chunks(store, &answers[0], 0, 1);
    submit_chunks(store, &answers[1], 10, 2);
    submit_chunks(store, &answers[2], 1, 1);
    for (int i = 0; i < 3; i++)
        await(&answers[i]);
    assert_int_equal(full_in, 0);
    assert_true(answers[0].code == COMMON_OK && answers[2].code == COMMON_OK);
    assert_int_equal(answers[1].code, COMMON_RESOURCE_EXHAUSTED);
    store_close(store);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(seen.chunks, 2);
    assert_int_equal(seen.chunk_sum, 1 + 2);
    store_close(store);
}

// Numbers are given once they are reserved on disk, not before; a reservation that fails is tried again.
void store_numbers_wait(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    uint64_t next;
    bool given = false;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next));
    coordinator_store_skip(store, COORDINATOR_COUNTER_GENERATION, next + 1000000);
    full_at = "COMMIT";
    assert_false(coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next));
    for (int i = 0; i < 5000 && !given; i++) {
        common_loop_stop(store_loop);
        common_loop_run(store_loop);
        given = coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next);
        if (!given)
            usleep(1000);
    }
    assert_true(given && !full_at);
    store_close(store);
}

void store_full_sync(void **state)
{
    (void)state;
    for (int full = 0; full < 2; full++) {
        struct coordinator_store *store;
        struct store_seen seen = {0};
        struct coordinator_store_reader reader = store_reader(&seen);
        sync_asked = false;
        assert_int_equal(coordinator_store_open(store_path, full, store_loop, &reader, &store, NULL),
                         COMMON_OK);
        assert_int_equal(sync_asked, full);
        store_close(store);
    }
}

// Many lives, each killed at a moment of its own: terms rise, no number comes twice, what was acknowledged is
// there.
void store_killed_again_and_again(void **state)
{
    (void)state;
    uint64_t last_chunk = 0, last_generation = 0, acknowledged = 0;
    for (int life = 0; life < 12; life++) {
        int pipes[2];
        assert_int_equal(pipe(pipes), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) { // prints each number as it gets it, and each write as it is acknowledged
            struct coordinator_store *store;
            struct store_seen seen;
            uint64_t said[3] = {0};
            if (common_loop_new(&store_loop) != COMMON_OK || store_open(&seen, &store, NULL) != COMMON_OK)
                _exit(1);
            for (uint32_t i = 0;; i++) {
                if (!coordinator_store_next(store, COORDINATOR_COUNTER_CHUNK, &said[0]) ||
                    !coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &said[1]))
                    _exit(2);
                struct coordinator_batch *batch = coordinator_batch_new();
                coordinator_batch_chunk(batch, 1, (uint32_t)life * 1000 + i, said[0], false, "w0");
                uint32_t before = store_done;
                store_submit(store, batch);
                while (store_done == before) { // one turn of the loop
                    common_loop_stop(store_loop);
                    common_loop_run(store_loop);
                }
                said[2]++;
                if (write(pipes[1], said, sizeof(said)) != sizeof(said))
                    _exit(3);
            }
        }
        close(pipes[1]);
        uint64_t said[3], in_this_life = 0;
        int wanted = 1 + life * 3;
        while (wanted-- && read(pipes[0], said, sizeof(said)) == sizeof(said)) {
            assert_true(said[0] > last_chunk && said[1] > last_generation);
            last_chunk = said[0];
            last_generation = said[1];
            in_this_life = said[2];
        }
        assert_true(in_this_life > 0);
        kill(pid, SIGKILL);
        assert_true(WIFSIGNALED(store_child_status(pid)));
        while (read(pipes[0], said, sizeof(said)) == sizeof(said)) { // said before it died
            assert_true(said[0] > last_chunk);
            last_chunk = said[0];
            last_generation = said[1];
            in_this_life = said[2];
        }
        close(pipes[0]);
        acknowledged += in_this_life;
    }
    struct coordinator_store *store;
    struct store_seen seen;
    uint64_t next;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(coordinator_store_term(store), 13);
    assert_true(seen.chunks >= acknowledged &&
                seen.chunks <= acknowledged + 12); // each life may have written one more unheard
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_CHUNK, &next) && next > last_chunk);
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next) &&
                next > last_generation);
    store_close(store);
}
