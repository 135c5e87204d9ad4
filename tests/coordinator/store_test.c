// SPDX-License-Identifier: Apache-2.0
// The store: what is acknowledged survives kill -9, numbers are never given twice, one coordinator at a time,
// foreign files are refused.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

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

#include "common/hash.h"
#include "coordinator/sessions/rangeset.h"
#include "coordinator/store/store.h"

static char folder[64], path[128];

// ---- a disk that fails where it is told to --------------------------------------------------------

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

// ---- what was read ------------------------------------------------------------------------------

struct seen {
    struct common_error *err;
    uint32_t workers, sessions, members, chunks, lost;
    uint64_t session, incarnation, epoch, instance, chunk_sum, key, cut, floor;
    char name[132], spec[16], holder[65];
    struct coordinator_rangeset ranges;
    uint32_t n_ranges;
    char followers[64]; // "1:w1 1:w2": by chunk
};

static bool on_worker(void *arg, const char *name, uint64_t instance)
{
    struct seen *seen = arg;
    assert_string_equal(name, "w0");
    seen->workers++;
    seen->instance = instance;
    return true;
}

static bool on_session(void *arg, uint64_t id, const char *name, const void *spec, size_t spec_bytes,
                       uint64_t incarnation, uint64_t epoch)
{
    struct seen *seen = arg;
    seen->sessions++;
    seen->session = id;
    seen->incarnation = incarnation;
    seen->epoch = epoch;
    snprintf(seen->name, sizeof(seen->name), "%s", name);
    snprintf(seen->spec, sizeof(seen->spec), "%.*s", (int)spec_bytes, (const char *)spec);
    return true;
}

static bool on_member(void *arg, uint64_t session, const char *worker)
{
    struct seen *seen = arg;
    (void)session, (void)worker;
    seen->members++;
    return true;
}

static bool on_chunk(void *arg, uint64_t session, uint32_t index, uint64_t id, bool lost, const char *holder)
{
    struct seen *seen = arg;
    (void)session;
    seen->chunks++;
    seen->lost += lost;
    seen->chunk_sum += id * (index + 1);
    snprintf(seen->holder, sizeof(seen->holder), "%s", holder);
    return true;
}

static bool on_follower(void *arg, uint64_t session, uint32_t index, const char *holder)
{
    struct seen *seen = arg;
    size_t at = strlen(seen->followers);
    (void)session;
    snprintf(seen->followers + at, sizeof(seen->followers) - at, "%s%u:%s", at ? " " : "", index, holder);
    return true;
}

static bool on_range(void *arg, uint64_t session, uint32_t layer, uint64_t first, uint64_t count)
{
    struct seen *seen = arg;
    (void)session;
    assert_int_equal(layer, 3);
    assert_true(coordinator_rangeset_add(&seen->ranges, first, count, NULL));
    seen->n_ranges++;
    return true;
}

static bool on_cut(void *arg, uint64_t session, uint64_t cut)
{
    struct seen *seen = arg;
    (void)session;
    seen->cut = cut;
    return true;
}

static bool on_floor(void *arg, uint64_t session, uint64_t floor)
{
    struct seen *seen = arg;
    assert_int_equal(session, seen->session);
    seen->floor = floor;
    return true;
}

static bool on_key(void *arg, uint64_t session, uint64_t key)
{
    struct seen *seen = arg;
    assert_int_equal(session, seen->session);
    seen->key = key;
    return true;
}

static enum common_code open_store(struct common_loop *loop, struct seen *seen,
                                   struct coordinator_store **out, struct common_error *err)
{
    struct coordinator_store_reader reader = {seen,        on_worker, on_session, on_member, on_chunk,
                                              on_follower, on_range,  on_key,     on_cut,    on_floor};
    memset(seen, 0, sizeof(*seen));
    return coordinator_store_open(path, false, loop, &reader, out, err);
}

// ---- working with it ----------------------------------------------------------------------------

static struct common_loop *loop;
static uint32_t done, failed;

static void written(void *arg, enum common_code code, const char *text)
{
    (void)arg, (void)text;
    done++;
    failed += code != COMMON_OK;
}

static void submit(struct coordinator_store *store, struct coordinator_batch *batch)
{
    coordinator_store_submit(store, batch, written, NULL);
}

// Waits for everything that was submitted, then closes.
static void close_store(struct coordinator_store *store)
{
    coordinator_store_stop(store);
    common_loop_stop(loop);
    common_loop_run(loop);
    coordinator_store_free(store);
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/banyan-store-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/deep/er/store.db", folder);
    assert_int_equal(common_loop_new(&loop), COMMON_OK);
    done = failed = 0;
    full_at = NULL;
    full_in = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    common_loop_free(loop);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

static void everything_comes_back(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    struct stat info;
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_int_equal(coordinator_store_term(store), 1);
    assert_int_equal(seen.sessions + seen.chunks + seen.workers, 0);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_worker(batch, "w0", UINT64_MAX); // numbers of 64 bits come back whole
    coordinator_batch_session(batch, UINT64_C(0xfedcba9876543210), "a name", "spec", 4, 5, 6);
    coordinator_batch_key(batch, UINT64_C(0xfedcba9876543210), UINT64_MAX - 1);
    coordinator_batch_cut(batch, UINT64_C(0xfedcba9876543210), 5);
    coordinator_batch_cut(batch, UINT64_C(0xfedcba9876543210), UINT64_MAX - 2); // the last one counts
    coordinator_batch_floor(batch, UINT64_C(0xfedcba9876543210), 7);
    coordinator_batch_floor(batch, UINT64_C(0xfedcba9876543210), UINT64_MAX - 3);
    coordinator_batch_member(batch, UINT64_C(0xfedcba9876543210), "w0");
    for (uint32_t i = 0; i < 4; i++)
        coordinator_batch_chunk(batch, UINT64_C(0xfedcba9876543210), i, 10 + i, false, "w0");
    coordinator_batch_range(batch, UINT64_C(0xfedcba9876543210), 3, 0, 100);
    submit(store, batch);
    batch = coordinator_batch_new();
    coordinator_batch_numbers(batch, UINT64_C(0xfedcba9876543210), 7, 8);
    coordinator_batch_chunk_drop(batch, UINT64_C(0xfedcba9876543210), 3);
    coordinator_batch_chunk(batch, UINT64_C(0xfedcba9876543210), 1, 50, true, "w0");
    coordinator_batch_clip(batch, UINT64_C(0xfedcba9876543210), 60);
    submit(store, batch);
    close_store(store);
    assert_int_equal(done, 2);
    assert_int_equal(failed, 0);

    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_int_equal(coordinator_store_term(store), 2);
    assert_true(seen.workers == 1 && seen.instance == UINT64_MAX);
    assert_true(seen.sessions == 1 && seen.session == UINT64_C(0xfedcba9876543210) && seen.incarnation == 7 &&
                seen.epoch == 8);
    assert_string_equal(seen.name, "a name");
    assert_string_equal(seen.spec, "spec");
    assert_string_equal(seen.holder, "w0");
    assert_true(seen.members == 1 && seen.chunks == 3 && seen.lost == 1);
    assert_int_equal(seen.chunk_sum, 10 + 50 * 2 + 12 * 3);
    assert_true(coordinator_rangeset_length(&seen.ranges) == 60);
    assert_true(seen.key == UINT64_MAX - 1);
    assert_true(seen.cut == UINT64_MAX - 2);
    assert_true(seen.floor == UINT64_MAX - 3);
    coordinator_rangeset_free(&seen.ranges);
    batch = coordinator_batch_new();
    coordinator_batch_session_drop(batch, UINT64_C(0xfedcba9876543210));
    submit(store, batch);
    close_store(store);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_int_equal(
        seen.sessions + seen.members + seen.chunks + seen.n_ranges + seen.key + seen.cut + seen.floor, 0);
    close_store(store);
}

// Ranges come in any order and overlap: the store keeps their union, as few ranges as there are.
static void ranges_are_united(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (int round = 0; round < 6; round++) {
        struct coordinator_store *store;
        struct seen seen;
        struct coordinator_rangeset want = {0};
        snprintf(path, sizeof(path), "%s/ranges%d.db", folder, round);
        assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
        for (int i = 0; i < 60; i++) {
            uint64_t first = common_mix64(++seed) % 500, count = 1 + common_mix64(++seed) % 20;
            struct coordinator_batch *batch = coordinator_batch_new();
            coordinator_batch_range(batch, 9, 3, first, count);
            assert_true(coordinator_rangeset_add(&want, first, count, NULL));
            if (i == 40) {
                coordinator_batch_clip(batch, 9, 300);
                coordinator_rangeset_clip(&want, 300);
            }
            submit(store, batch);
        }
        close_store(store);
        assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
        assert_int_equal(seen.n_ranges, want.n);
        assert_int_equal(seen.ranges.n, want.n);
        assert_memory_equal(seen.ranges.ranges, want.ranges, want.n * sizeof(*want.ranges));
        close_store(store);
        coordinator_rangeset_free(&seen.ranges);
        coordinator_rangeset_free(&want);
    }
    assert_int_equal(failed, 0);
}

// A batch is all or nothing, and one that fails leaves those beside it alone.
static void a_batch_is_atomic(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, 1, "first", "s", 1, 1, 1);
    submit(store, batch);
    batch = coordinator_batch_new();
    coordinator_batch_chunk(batch, 1, 0, 77, false, "w0");
    coordinator_batch_chunk(batch, 1, 0, 78, false, "w0");
    coordinator_batch_range(batch, 1, 3, 0, 5);
    submit(store, batch);
    close_store(store);
    assert_int_equal(failed, 0);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_true(seen.chunks == 1 && seen.chunk_sum == 78 && seen.sessions == 1);
    coordinator_rangeset_free(&seen.ranges);
    close_store(store);
}

// ---- a disk that is full ------------------------------------------------------------------------

// The store's log may become `more` bytes longer than it is; UINT64_MAX: as long as it likes.
static void disk_room(uint64_t more)
{
    char log[160];
    struct stat info;
    struct rlimit limit;
    snprintf(log, sizeof(log), "%s-wal", path);
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
        common_loop_stop(loop);
        common_loop_run(loop);
    }
}

// What is refused is not there afterwards, what is acknowledged is, also when the disk is full in the middle
// of a transaction that carries several batches.
static void a_full_disk(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    struct answer before = {0}, refused = {0}, busy = {0}, many[3] = {0}, after = {0};
    void (*was)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
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
    close_store(store);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_int_equal(seen.chunks, 1 + 5000 + 2 + 1);
    close_store(store);
    signal(SIGXFSZ, was);
}

// A commit that fails acknowledges nothing, and the next one works.
static void a_commit_that_fails(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    struct answer refused = {0}, after = {0};
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    full_at = "COMMIT";
    submit_chunks(store, &refused, 0, 1);
    await(&refused);
    assert_int_equal(refused.code, COMMON_RESOURCE_EXHAUSTED);
    submit_chunks(store, &after, 1, 1);
    await(&after);
    assert_int_equal(after.code, COMMON_OK);
    close_store(store);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_int_equal(seen.chunks, 1);
    assert_int_equal(seen.chunk_sum, 2); // the second
    close_store(store);
}

// The second operation of a batch fails, between two batches of the same transaction: its first one is not there
// either, theirs are.
static void half_a_batch(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    struct answer answers[3] = {0};
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    full_in = 7; // a chunk takes three steps: one before, one of this batch, and the next
    submit_chunks(store, &answers[0], 0, 1);
    submit_chunks(store, &answers[1], 10, 2);
    submit_chunks(store, &answers[2], 1, 1);
    for (int i = 0; i < 3; i++)
        await(&answers[i]);
    assert_int_equal(full_in, 0);
    assert_true(answers[0].code == COMMON_OK && answers[2].code == COMMON_OK);
    assert_int_equal(answers[1].code, COMMON_RESOURCE_EXHAUSTED);
    close_store(store);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_int_equal(seen.chunks, 2);
    assert_int_equal(seen.chunk_sum, 1 + 2);
    close_store(store);
}

// Numbers are given once they are reserved on disk, not before; a reservation that fails is tried again.
static void numbers_wait_for_the_disk(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    uint64_t next;
    bool given = false;
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next));
    coordinator_store_skip(store, COORDINATOR_COUNTER_GENERATION, next + 1000000);
    full_at = "COMMIT";
    assert_false(coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next));
    for (int i = 0; i < 5000 && !given; i++) {
        common_loop_stop(loop);
        common_loop_run(loop);
        given = coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next);
        if (!given)
            usleep(1000);
    }
    assert_true(given && !full_at);
    close_store(store);
}

static void a_chunk_has_one_holder(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_chunk(batch, 1, 0, 77, false, "w0");
    coordinator_batch_chunk(batch, 1, 0, 78, false, "w1"); // it has moved
    submit(store, batch);
    close_store(store);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_true(seen.chunks == 1 && seen.chunk_sum == 78);
    assert_string_equal(seen.holder, "w1");
    close_store(store);
}

static void reopen(struct coordinator_store **store, struct seen *seen)
{
    close_store(*store);
    assert_int_equal(open_store(loop, seen, store, NULL), COMMON_OK);
}

// Beside it who follows: they go with it, and one takes its place when it is lost.
static void a_chunk_has_followers(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, 1, "a", "s", 1, 1, 1);
    for (uint32_t i = 0; i < 3; i++) {
        coordinator_batch_chunk(batch, 1, i, 70 + i, false, "w0");
        coordinator_batch_follower(batch, 1, i, "w2");
        coordinator_batch_follower(batch, 1, i, "w1");
    }
    submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.followers, "0:w1 0:w2 1:w1 1:w2 2:w1 2:w2");
    assert_int_equal(seen.chunks, 3);
    batch = coordinator_batch_new();
    coordinator_batch_copy_lost(batch, 1, 0, 70, "w2");
    coordinator_batch_copy_lost(batch, 1, 1, 99, "w2"); // another chunk, in its place before
    coordinator_batch_chunk_drop(batch, 1, 2);
    submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.followers, "0:w1 1:w1 1:w2");
    batch = coordinator_batch_new();
    coordinator_batch_copy_lost(batch, 1, 0, 70, "w0"); // it served
    coordinator_batch_chunk(batch, 1, 1, 80, false, "w3");
    submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.followers, "");
    assert_int_equal(seen.chunk_sum, 70 * 1 + 80 * 2);
    batch = coordinator_batch_new();
    coordinator_batch_chunk_drop(batch, 1, 1);
    coordinator_batch_copy_lost(batch, 1, 0, 70, "w1"); // the last one stays
    submit(store, batch);
    reopen(&store, &seen);
    assert_int_equal(seen.chunks, 1);
    assert_string_equal(seen.holder, "w1");
    batch = coordinator_batch_new();
    coordinator_batch_follower(batch, 1, 0, "w4");
    coordinator_batch_session_drop(batch, 1);
    submit(store, batch);
    reopen(&store, &seen);
    assert_true(!seen.chunks && !seen.followers[0]);
    close_store(store);
}

// A store of a coordinator that knew no followers is opened as it is.
static void an_older_store_gets_followers(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    sqlite3 *db;
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, 1, "a", "s", 1, 1, 1);
    coordinator_batch_chunk(batch, 1, 0, 77, false, "w0");
    submit(store, batch);
    close_store(store);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "DROP TABLE followers", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_string_equal(seen.holder, "w0");
    batch = coordinator_batch_new();
    coordinator_batch_follower(batch, 1, 0, "w1");
    submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.followers, "0:w1");
    close_store(store);
}

// A range that begins where the session ends now is gone; it does not stay as one without tokens.
static void a_clip_where_a_range_begins(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_range(batch, 1, 3, 0, 50);
    coordinator_batch_range(batch, 1, 3, 60, 40);
    coordinator_batch_clip(batch, 1, 60);
    submit(store, batch);
    close_store(store);
    assert_int_equal(failed, 0);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_int_equal(seen.n_ranges, 1);
    assert_int_equal(coordinator_rangeset_length(&seen.ranges), 50);
    coordinator_rangeset_free(&seen.ranges);
    close_store(store);
}

static void full_sync_is_asked_of_the_disk(void **state)
{
    (void)state;
    for (int full = 0; full < 2; full++) {
        struct coordinator_store *store;
        struct seen seen = {0};
        struct coordinator_store_reader reader = {&seen,       on_worker, on_session, on_member, on_chunk,
                                                  on_follower, on_range,  on_key,     on_cut,    on_floor};
        sync_asked = false;
        assert_int_equal(coordinator_store_open(path, full, loop, &reader, &store, NULL), COMMON_OK);
        assert_int_equal(sync_asked, full);
        close_store(store);
    }
}

static int child_status(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

// Many lives, each killed at a moment of its own: terms rise, no number comes twice, what was acknowledged is
// there.
static void killed_again_and_again(void **state)
{
    (void)state;
    uint64_t last_chunk = 0, last_generation = 0, acknowledged = 0;
    for (int life = 0; life < 12; life++) {
        int pipes[2];
        assert_int_equal(pipe(pipes), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) { // tells each number as it gets it, and each write as it is acknowledged
            struct coordinator_store *store;
            struct seen seen;
            struct common_loop *own;
            uint64_t said[3] = {0};
            if (common_loop_new(&own) != COMMON_OK || open_store(own, &seen, &store, NULL) != COMMON_OK)
                _exit(1);
            for (uint32_t i = 0;; i++) {
                if (!coordinator_store_next(store, COORDINATOR_COUNTER_CHUNK, &said[0]) ||
                    !coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &said[1]))
                    _exit(2);
                struct coordinator_batch *batch = coordinator_batch_new();
                coordinator_batch_chunk(batch, 1, (uint32_t)life * 1000 + i, said[0], false, "w0");
                uint32_t before = done;
                coordinator_store_submit(store, batch, written, NULL);
                while (done == before) { // one turn of the loop
                    common_loop_stop(own);
                    common_loop_run(own);
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
        assert_true(WIFSIGNALED(child_status(pid)));
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
    struct seen seen;
    uint64_t next;
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_int_equal(coordinator_store_term(store), 13);
    assert_true(seen.chunks >= acknowledged &&
                seen.chunks <= acknowledged + 12); // each life may have written one more unheard
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_CHUNK, &next) && next > last_chunk);
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next) &&
                next > last_generation);
    close_store(store);
}

// Through several blocks, reserved ahead while the loop runs.
static void numbers_go_on(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    uint64_t last = 0, next;
    uint32_t dry = 0;
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    for (uint32_t i = 0; i < 300000; i++) {
        while (!coordinator_store_next(store, COORDINATOR_COUNTER_CHUNK, &next)) {
            common_loop_stop(loop);
            common_loop_run(loop);
            usleep(1000);
            assert_true(++dry < 60000);
        }
        assert_true(i == 0 || next == last + 1);
        last = next;
    }
    close_store(store);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_CHUNK, &next) && next > last);
    close_store(store);
}

// A store knows its lives, also those that a copy of it has not had; a copy knows those before the copying.
// Neither gives a chunk the number that the other one has given.
static void lives_are_kept(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    uint64_t lives[5], id = 0, chunks[5];
    char command[512], right[128];
    for (int i = 0; i < 4; i++) { // two lives, the copy, and one more of each
        if (i == 2) {
            snprintf(command, sizeof(command), "cp %s %s/copy.db", path, folder);
            assert_int_equal(system(command), 0);
        }
        if (i == 3) {
            snprintf(right, sizeof(right), "%s", path);
            snprintf(path, sizeof(path), "%s/copy.db", folder);
        }
        assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
        lives[i] = coordinator_store_life(store);
        id = i ? id : lives[0];
        assert_true(lives[i] != 0 && coordinator_store_id(store) == id);
        for (int k = 0; k <= i; k++)
            assert_int_equal(coordinator_store_knows_life(store, lives[k]), !(i == 3 && k == 2));
        assert_false(coordinator_store_knows_life(store, 0));
        assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_CHUNK, &chunks[i]));
        for (int k = 0; k < i; k++)
            assert_true(chunks[i] > chunks[k]);
        close_store(store);
    }
    snprintf(path, sizeof(path), "%s", right);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_true(coordinator_store_knows_life(store, lives[2]) &&
                !coordinator_store_knows_life(store, lives[3]));
    // Numbers that turn up elsewhere are skipped, and never given again
    uint64_t next, far;
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next));
    far = next + 1000000; // past what is reserved
    coordinator_store_skip(store, COORDINATOR_COUNTER_GENERATION, next + 5);
    coordinator_store_skip(store, COORDINATOR_COUNTER_GENERATION, next + 2);
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next) &&
                next == far - 1000000 + 6);
    coordinator_store_skip(store, COORDINATOR_COUNTER_GENERATION, far);
    while (!coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next)) { // until it is reserved
        common_loop_stop(loop);
        common_loop_run(loop);
    }
    assert_int_equal(next, far + 1);
    close_store(store);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next) && next > far + 1);
    close_store(store);
}

static void one_at_a_time(void **state)
{
    (void)state;
    struct coordinator_store *store, *second;
    struct seen seen;
    struct common_error err = {0};
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        bool right = open_store(loop, &seen, &second, &err) == COMMON_FAILED_PRECONDITION &&
                     strstr(err.message, path) && strstr(err.message, "in use");
        _exit(right ? 0 : 1);
    }
    int status = child_status(pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close_store(store);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK); // free again
    close_store(store);
}

static void foreign_files(void **state)
{
    (void)state;
    struct coordinator_store *store = NULL;
    struct seen seen;
    struct common_error err = {0};
    sqlite3 *db;
    char why[64];
    snprintf(path, sizeof(path), "%s/noise", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 2000; i++)
        fprintf(file, "this is not a database %d\n", i);
    fclose(file);
    assert_int_equal(open_store(loop, &seen, &store, &err), COMMON_INVALID_ARGUMENT);
    snprintf(path, sizeof(path), "%s/other.db", folder);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE theirs(x); INSERT INTO theirs VALUES(1)", NULL, NULL,
                                  NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(open_store(loop, &seen, &store, &err), COMMON_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "not a Banyan store"));
    snprintf(path, sizeof(path), "%s/newer.db", folder);
    assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
    close_store(store);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version=99", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(open_store(loop, &seen, &store, &err), COMMON_FAILED_PRECONDITION);
    snprintf(why, sizeof(why), "version 99");
    assert_non_null(strstr(err.message, why));
    snprintf(path, sizeof(path), "%s", folder); // a folder
    assert_int_equal(open_store(loop, &seen, &store, &err), COMMON_UNAVAILABLE);
}

static void memory_keeps_nothing(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct seen seen;
    snprintf(path, sizeof(path), ":memory:");
    for (int life = 0; life < 2; life++) {
        assert_int_equal(open_store(loop, &seen, &store, NULL), COMMON_OK);
        assert_int_equal(coordinator_store_term(store), 1);
        assert_int_equal(seen.sessions, 0);
        struct coordinator_batch *batch = coordinator_batch_new();
        coordinator_batch_session(batch, 1, "", "s", 1, 1, 1);
        submit(store, batch);
        batch = coordinator_batch_new();
        coordinator_batch_session(batch, 2, "", "s", 1, 1, 1); // without a name: any number of them
        submit(store, batch);
        close_store(store);
    }
    assert_true(done == 4 && failed == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(everything_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(ranges_are_united, setup, teardown),
        cmocka_unit_test_setup_teardown(a_batch_is_atomic, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(a_commit_that_fails, setup, teardown),
        cmocka_unit_test_setup_teardown(half_a_batch, setup, teardown),
        cmocka_unit_test_setup_teardown(numbers_wait_for_the_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(a_chunk_has_one_holder, setup, teardown),
        cmocka_unit_test_setup_teardown(a_chunk_has_followers, setup, teardown),
        cmocka_unit_test_setup_teardown(an_older_store_gets_followers, setup, teardown),
        cmocka_unit_test_setup_teardown(a_clip_where_a_range_begins, setup, teardown),
        cmocka_unit_test_setup_teardown(full_sync_is_asked_of_the_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(killed_again_and_again, setup, teardown),
        cmocka_unit_test_setup_teardown(numbers_go_on, setup, teardown),
        cmocka_unit_test_setup_teardown(lives_are_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(one_at_a_time, setup, teardown),
        cmocka_unit_test_setup_teardown(foreign_files, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_keeps_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
