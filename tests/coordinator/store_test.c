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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/hash/hash.h"
#include "tests/coordinator/store_suite.h"

#define OTHER UINT64_C(0x8000000000000011) // is read before the others: SQLite's numbers have a sign

static void everything_comes_back(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    struct stat info;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(coordinator_store_term(store), 1);
    assert_int_equal(seen.sessions + seen.chunks + seen.workers, 0);
    assert_int_equal(stat(store_path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_worker(batch, "w0", UINT64_MAX); // numbers of 64 bits come back whole
    coordinator_batch_session(batch, UINT64_C(0xfedcba9876543210), "a name", "spec", 4, 5, 6, 0);
    coordinator_batch_key(batch, UINT64_C(0xfedcba9876543210), UINT64_MAX - 1);
    coordinator_batch_cut(batch, UINT64_C(0xfedcba9876543210), 5);
    coordinator_batch_cut(batch, UINT64_C(0xfedcba9876543210), UINT64_MAX - 2); // the last one counts
    coordinator_batch_floor(batch, UINT64_C(0xfedcba9876543210), 7);
    coordinator_batch_floor(batch, UINT64_C(0xfedcba9876543210), UINT64_MAX - 3);
    const struct coordinator_prefix_row first = {.incarnation = 5,
                                                 .used_ns = 9,
                                                 .ttl_ns = UINT64_MAX >> 2,
                                                 .pinned = true,
                                                 .hashes = "abc",
                                                 .bytes = 3};
    struct coordinator_prefix_row other = {.incarnation = 1, .used_ns = 10, .hashes = "x", .bytes = 1};
    coordinator_batch_session(batch, OTHER, "", "spec", 4, 1, 1, 0);
    coordinator_batch_prefix(batch, UINT64_C(0xfedcba9876543210), &first);
    coordinator_batch_prefix(batch, OTHER, &other);
    coordinator_batch_prefix_used(batch, OTHER, 8); // before the other one
    coordinator_batch_member(batch, UINT64_C(0xfedcba9876543210), "w0");
    coordinator_batch_member(batch, UINT64_C(0xfedcba9876543210), "w1");
    coordinator_batch_drain(batch, "w1", "its fan is loud", 15);
    coordinator_batch_drain(batch, "w0", "", 0);
    coordinator_batch_resume(batch, "w0");
    for (uint32_t i = 0; i < 4; i++)
        coordinator_batch_chunk(batch, UINT64_C(0xfedcba9876543210), i, 10 + i, false, "w0");
    coordinator_batch_range(batch, UINT64_C(0xfedcba9876543210), 3, 0, 100);
    store_submit(store, batch);
    batch = coordinator_batch_new();
    coordinator_batch_numbers(batch, UINT64_C(0xfedcba9876543210), 7, 8);
    coordinator_batch_chunk_drop(batch, UINT64_C(0xfedcba9876543210), 3);
    coordinator_batch_chunk(batch, UINT64_C(0xfedcba9876543210), 1, 50, true, "w0");
    coordinator_batch_clip(batch, UINT64_C(0xfedcba9876543210), 60);
    coordinator_batch_member_drop(batch, UINT64_C(0xfedcba9876543210), "w1");
    store_submit(store, batch);
    store_close(store);
    assert_int_equal(store_done, 2);
    assert_int_equal(store_failed, 0);

    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(coordinator_store_term(store), 2);
    assert_true(seen.workers == 1 && seen.instance == UINT64_MAX);
    assert_true(seen.sessions == 2 && seen.session == UINT64_C(0xfedcba9876543210) && seen.incarnation == 7 &&
                seen.epoch == 8);
    assert_string_equal(seen.name, "a name");
    assert_string_equal(seen.spec, "spec");
    assert_string_equal(seen.holder, "w0");
    assert_true(seen.members == 1 && seen.chunks == 3 && seen.lost == 1);
    assert_int_equal(seen.chunk_sum, 10 + 50 * 2 + 12 * 3);
    assert_true(coordinator_rangeset_length(&seen.ranges) == 60);
    assert_true(seen.key == UINT64_MAX - 1);
    assert_string_equal(seen.prefixes,
                        "8000000000000011:1:0:0:x fedcba9876543210:5:4611686018427387903:1:abc");
    assert_string_equal(seen.draining, "w1: its fan is loud");
    assert_true(seen.cut == UINT64_MAX - 2);
    assert_true(seen.floor == UINT64_MAX - 3);
    coordinator_rangeset_free(&seen.ranges);
    batch = coordinator_batch_new();
    coordinator_batch_session_drop(batch, UINT64_C(0xfedcba9876543210));
    coordinator_batch_session_drop(batch, OTHER);
    coordinator_batch_resume(batch, "w1");
    store_submit(store, batch);
    store_close(store);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(
        seen.sessions + seen.members + seen.chunks + seen.n_ranges + seen.key + seen.cut + seen.floor, 0);
    assert_string_equal(seen.draining, "");
    assert_string_equal(seen.prefixes, "");
    store_close(store);
}

// Ranges come in any order and overlap: the store keeps their union, as few ranges as there are.
static void ranges_are_united(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (int round = 0; round < 6; round++) {
        struct coordinator_store *store;
        struct store_seen seen;
        struct coordinator_rangeset want = {0};
        snprintf(store_path, sizeof(store_path), "%s/ranges%d.db", store_folder, round);
        assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
        for (int i = 0; i < 60; i++) {
            uint64_t first = common_mix64(++seed) % 500, count = 1 + common_mix64(++seed) % 20;
            struct coordinator_batch *batch = coordinator_batch_new();
            coordinator_batch_range(batch, 9, 3, first, count);
            assert_true(coordinator_rangeset_add(&want, first, count, NULL));
            if (i == 40) {
                coordinator_batch_clip(batch, 9, 300);
                coordinator_rangeset_clip(&want, 300);
            }
            store_submit(store, batch);
        }
        store_close(store);
        assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
        assert_int_equal(seen.n_ranges, want.n);
        assert_int_equal(seen.ranges.n, want.n);
        assert_memory_equal(seen.ranges.ranges, want.ranges, want.n * sizeof(*want.ranges));
        store_close(store);
        coordinator_rangeset_free(&seen.ranges);
        coordinator_rangeset_free(&want);
    }
    assert_int_equal(store_failed, 0);
}

// A batch is all or nothing, and one that fails leaves those beside it alone.
static void a_batch_is_atomic(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, 1, "first", "s", 1, 1, 1, 0);
    store_submit(store, batch);
    batch = coordinator_batch_new();
    coordinator_batch_chunk(batch, 1, 0, 77, false, "w0");
    coordinator_batch_chunk(batch, 1, 0, 78, false, "w0");
    coordinator_batch_range(batch, 1, 3, 0, 5);
    store_submit(store, batch);
    store_close(store);
    assert_int_equal(store_failed, 0);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_true(seen.chunks == 1 && seen.chunk_sum == 78 && seen.sessions == 1);
    coordinator_rangeset_free(&seen.ranges);
    store_close(store);
}

static void a_chunk_has_one_holder(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_chunk(batch, 1, 0, 77, false, "w0");
    coordinator_batch_chunk(batch, 1, 0, 78, false, "w1"); // it has moved
    store_submit(store, batch);
    store_close(store);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_true(seen.chunks == 1 && seen.chunk_sum == 78);
    assert_string_equal(seen.holder, "w1");
    store_close(store);
}

static void reopen(struct coordinator_store **store, struct store_seen *seen)
{
    store_close(*store);
    assert_int_equal(store_open(seen, store, NULL), COMMON_OK);
}

// Beside it who follows: they go with it, and one takes its place when it is lost.
static void a_chunk_has_followers(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, 1, "a", "s", 1, 1, 1, 0);
    for (uint32_t i = 0; i < 3; i++) {
        coordinator_batch_chunk(batch, 1, i, 70 + i, false, "w0");
        coordinator_batch_follower(batch, 1, i, "w2");
        coordinator_batch_follower(batch, 1, i, "w1");
    }
    store_submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.followers, "0:w1 0:w2 1:w1 1:w2 2:w1 2:w2");
    assert_int_equal(seen.chunks, 3);
    batch = coordinator_batch_new();
    coordinator_batch_copy_lost(batch, 1, 0, 70, "w2");
    coordinator_batch_copy_lost(batch, 1, 1, 99, "w2"); // another chunk, in its place before
    coordinator_batch_chunk_drop(batch, 1, 2);
    store_submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.followers, "0:w1 1:w1 1:w2");
    batch = coordinator_batch_new();
    coordinator_batch_copy_lost(batch, 1, 0, 70, "w0"); // it served
    coordinator_batch_chunk(batch, 1, 1, 80, false, "w3");
    store_submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.followers, "");
    assert_int_equal(seen.chunk_sum, 70 * 1 + 80 * 2);
    batch = coordinator_batch_new();
    coordinator_batch_chunk_drop(batch, 1, 1);
    coordinator_batch_copy_lost(batch, 1, 0, 70, "w1"); // the last one stays
    store_submit(store, batch);
    reopen(&store, &seen);
    assert_int_equal(seen.chunks, 1);
    assert_string_equal(seen.holder, "w1");
    batch = coordinator_batch_new();
    coordinator_batch_follower(batch, 1, 0, "w4");
    coordinator_batch_session_drop(batch, 1);
    store_submit(store, batch);
    reopen(&store, &seen);
    assert_true(!seen.chunks && !seen.followers[0]);
    store_close(store);
}

// A chunk keeps its seal while it is the same, no matter who holds it, and another in its place has none.
static void a_chunk_has_a_seal(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, 1, "a", "s", 1, 1, 1, 0);
    for (uint32_t i = 0; i < 4; i++) {
        coordinator_batch_chunk(batch, 1, i, 70 + i, false, "w0");
        coordinator_batch_follower(batch, 1, i, "w1");
        coordinator_batch_seal(batch, 1, i, i == 3 ? 99 : 70 + i, 500 + i); // 3: of the chunk before it
    }
    store_submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.seals, "0:500 1:501 2:502");
    batch = coordinator_batch_new();
    coordinator_batch_chunk(batch, 1, 0, 70, false, "w5"); // it has moved
    coordinator_batch_copy_lost(batch, 1, 1, 71, "w0");
    coordinator_batch_chunk(batch, 1, 2, 80, false, "w0"); // a truncate has cut it
    store_submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.seals, "0:500 1:501");
    batch = coordinator_batch_new();
    coordinator_batch_chunk_drop(batch, 1, 0);
    coordinator_batch_seal(batch, 1, 0, 70, 500); // comes late
    coordinator_batch_seal(batch, 1, 1, 71, UINT64_MAX);
    store_submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.seals, "1:18446744073709551615");
    batch = coordinator_batch_new();
    coordinator_batch_session_drop(batch, 1);
    store_submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.seals, "");
    store_close(store);
}

// One of a coordinator that knew no seals gets them; what such a one has done meanwhile counts.
static void an_older_store_gets_seals(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    sqlite3 *db;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, 1, "a", "s", 1, 1, 1, 0);
    for (uint32_t i = 0; i < 3; i++) {
        coordinator_batch_chunk(batch, 1, i, 77 + i, false, "w0");
        coordinator_batch_seal(batch, 1, i, 77 + i, 600 + i);
    }
    store_submit(store, batch);
    store_close(store);
    assert_int_equal(sqlite3_open(store_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "UPDATE chunks SET id = 90 WHERE idx = 1; DELETE FROM chunks WHERE idx = 2",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_string_equal(seen.seals, "0:600");
    store_close(store);
    assert_int_equal(sqlite3_open(store_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "DROP TABLE seals", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_string_equal(seen.seals, "");
    batch = coordinator_batch_new();
    coordinator_batch_seal(batch, 1, 0, 77, 7);
    store_submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.seals, "0:7");
    store_close(store);
}

// A store of a coordinator that knew no followers is opened as it is.
static void an_older_store_gets_followers(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    sqlite3 *db;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, 1, "a", "s", 1, 1, 1, 0);
    coordinator_batch_chunk(batch, 1, 0, 77, false, "w0");
    store_submit(store, batch);
    store_close(store);
    assert_int_equal(sqlite3_open(store_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "DROP TABLE followers", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_string_equal(seen.holder, "w0");
    batch = coordinator_batch_new();
    coordinator_batch_follower(batch, 1, 0, "w1");
    store_submit(store, batch);
    reopen(&store, &seen);
    assert_string_equal(seen.followers, "0:w1");
    store_close(store);
}

// A range that begins where the session ends now is gone; it does not stay as one without tokens.
static void a_clip_where_a_range_begins(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_range(batch, 1, 3, 0, 50);
    coordinator_batch_range(batch, 1, 3, 60, 40);
    coordinator_batch_clip(batch, 1, 60);
    store_submit(store, batch);
    store_close(store);
    assert_int_equal(store_failed, 0);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(seen.n_ranges, 1);
    assert_int_equal(coordinator_rangeset_length(&seen.ranges), 50);
    coordinator_rangeset_free(&seen.ranges);
    store_close(store);
}

// Through several blocks, reserved ahead while the loop runs.
static void numbers_go_on(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    uint64_t last = 0, next;
    uint32_t dry = 0;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    for (uint32_t i = 0; i < 300000; i++) {
        while (!coordinator_store_next(store, COORDINATOR_COUNTER_CHUNK, &next)) {
            common_loop_stop(store_loop);
            common_loop_run(store_loop);
            usleep(1000);
            assert_true(++dry < 60000);
        }
        assert_true(i == 0 || next == last + 1);
        last = next;
    }
    store_close(store);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_CHUNK, &next) && next > last);
    store_close(store);
}

// A store lists its lives, also those that a copy of it has not had; a copy lists those before the copying.
// Neither gives a chunk the number that the other one has given.
static void lives_are_kept(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    uint64_t lives[5], id = 0, chunks[5];
    char command[512], right[128];
    for (int i = 0; i < 4; i++) { // two lives, the copy, and one more of each
        if (i == 2) {
            snprintf(command, sizeof(command), "cp %s %s/copy.db", store_path, store_folder);
            assert_int_equal(system(command), 0);
        }
        if (i == 3) {
            snprintf(right, sizeof(right), "%s", store_path);
            snprintf(store_path, sizeof(store_path), "%s/copy.db", store_folder);
        }
        assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
        lives[i] = coordinator_store_life(store);
        id = i ? id : lives[0];
        assert_true(lives[i] != 0 && coordinator_store_id(store) == id);
        for (int k = 0; k <= i; k++)
            assert_int_equal(coordinator_store_knows_life(store, lives[k]), !(i == 3 && k == 2));
        assert_false(coordinator_store_knows_life(store, 0));
        assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_CHUNK, &chunks[i]));
        for (int k = 0; k < i; k++)
            assert_true(chunks[i] > chunks[k]);
        store_close(store);
    }
    snprintf(store_path, sizeof(store_path), "%s", right);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
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
        common_loop_stop(store_loop);
        common_loop_run(store_loop);
    }
    assert_int_equal(next, far + 1);
    store_close(store);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_true(coordinator_store_next(store, COORDINATOR_COUNTER_GENERATION, &next) && next > far + 1);
    store_close(store);
}

static void one_at_a_time(void **state)
{
    (void)state;
    struct coordinator_store *store, *second;
    struct store_seen seen;
    struct common_error err = {0};
    int opened[2];
    char one = 1;
    assert_int_equal(pipe(opened), 0);
    pid_t pid = fork(); // while there is one thread: a lock of another would stay locked in the child
    assert_true(pid >= 0);
    if (pid == 0) {
        bool right = read(opened[0], &one, 1) == 1 &&
                     store_open(&seen, &second, &err) == COMMON_FAILED_PRECONDITION &&
                     strstr(err.message, store_path) && strstr(err.message, "in use");
        _exit(right ? 0 : 1);
    }
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(write(opened[1], &one, 1), 1);
    int status = store_child_status(pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(opened[0]);
    close(opened[1]);
    store_close(store);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK); // free again
    store_close(store);
}

static void foreign_files(void **state)
{
    (void)state;
    struct coordinator_store *store = NULL;
    struct store_seen seen;
    struct common_error err = {0};
    sqlite3 *db;
    char why[64];
    snprintf(store_path, sizeof(store_path), "%s/noise", store_folder);
    FILE *file = fopen(store_path, "w");
    assert_non_null(file);
    for (int i = 0; i < 2000; i++)
        fprintf(file, "this is not a database %d\n", i);
    fclose(file);
    assert_int_equal(store_open(&seen, &store, &err), COMMON_INVALID_ARGUMENT);
    snprintf(store_path, sizeof(store_path), "%s/other.db", store_folder);
    assert_int_equal(sqlite3_open(store_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE theirs(x); INSERT INTO theirs VALUES(1)", NULL, NULL,
                                  NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(store_open(&seen, &store, &err), COMMON_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "not a Banyan store"));
    snprintf(store_path, sizeof(store_path), "%s/newer.db", store_folder);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    store_close(store);
    assert_int_equal(sqlite3_open(store_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version=99", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(store_open(&seen, &store, &err), COMMON_FAILED_PRECONDITION);
    snprintf(why, sizeof(why), "version 99");
    assert_non_null(strstr(err.message, why));
    snprintf(store_path, sizeof(store_path), "%s", store_folder); // a store_folder
    assert_int_equal(store_open(&seen, &store, &err), COMMON_UNAVAILABLE);
}

static uint64_t version_of(void)
{
    sqlite3 *db;
    sqlite3_stmt *s;
    assert_int_equal(sqlite3_open(store_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    uint64_t version = (uint64_t)sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return version;
}

static void make_old(void) // what a coordinator without tenants and keys of ids has written
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(store_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "DROP TABLE owners; DROP TABLE tenants; DROP TABLE tokens;"
                                  "DELETE FROM meta WHERE key LIKE 'id_key%'; PRAGMA user_version=1",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
}

// A new store has a key for its session ids and keeps it; each has its own. An earlier coordinator refuses
// such a store.
static void ids_have_a_key(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen first, again, other;
    struct common_error err;
    sqlite3 *db;
    assert_int_equal(store_open(&first, &store, NULL), COMMON_OK);
    store_close(store);
    assert_int_equal(first.id_keys, 1);
    assert_true(first.id_key[0] && first.id_key[1] && first.id_key[0] != first.id_key[1]);
    assert_int_equal(version_of(), 2);
    assert_int_equal(store_open(&again, &store, NULL), COMMON_OK);
    store_close(store);
    assert_int_equal(again.id_keys, 1);
    assert_memory_equal(again.id_key, first.id_key, sizeof first.id_key);
    assert_int_equal(sqlite3_open(store_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "DELETE FROM meta WHERE key = 'id_key_1'", NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(store_open(&again, &store, &err), COMMON_INVALID_ARGUMENT); // and not as if it had none
    assert_non_null(strstr(err.message, "half of it is missing"));
    snprintf(store_path, sizeof(store_path), "%s/another.db", store_folder);
    assert_int_equal(store_open(&other, &store, NULL), COMMON_OK);
    store_close(store);
    assert_memory_not_equal(other.id_key, first.id_key, sizeof first.id_key);
}

// The newest of each tenant and name; 0 takes it away.
static void quotas(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_string_equal(seen.quotas, "");
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_quota(batch, 0, "sessions", 5);
    coordinator_batch_quota(batch, 7, "bytes", INT64_MAX);
    coordinator_batch_quota(batch, 7, "sessions", 1);
    store_submit(store, batch);
    batch = coordinator_batch_new();
    coordinator_batch_quota(batch, 0, "sessions", 6);
    coordinator_batch_quota(batch, 7, "sessions", 0);
    coordinator_batch_quota(batch, 8, "sessions", 0);
    store_submit(store, batch);
    store_close(store);
    assert_int_equal(store_failed, 0);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_string_equal(seen.quotas, "0:sessions=6 7:bytes=9223372036854775807");
    store_close(store);
}

// Tenants and tokens come back; names are unique in a tenant, not in the store; and the first of them makes
// the store one that an earlier coordinator, which would show all sessions to every client, refuses.
static void tenants_and_tokens(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, 1, "same", "s", 1, 1, 1, 0);
    store_submit(store, batch);
    store_close(store);
    make_old(); // and no tenants
    assert_int_equal(version_of(), 1);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    struct coordinator_token_row row = {.id = INT64_MAX,
                                        .tenant = UINT32_MAX,
                                        .access = 2,
                                        .created_s = 7,
                                        .expires_s = 8,
                                        .hash = {1, 2, 3, [31] = 255},
                                        .name = "first"};
    batch = coordinator_batch_new();
    coordinator_batch_tenant(batch, UINT32_MAX, "a");
    coordinator_batch_token(batch, &row);
    coordinator_batch_session(batch, 2, "same", "s", 1, 1, 1, UINT32_MAX);
    store_submit(store, batch);
    batch = coordinator_batch_new();
    coordinator_batch_token_used(batch, row.id, 99);
    store_submit(store, batch);
    batch = coordinator_batch_new(); // the same name in the same tenant: refused as a whole
    coordinator_batch_token(batch, &(struct coordinator_token_row){.id = 5, .name = "first"});
    store_submit(store, batch);
    store_close(store);
    assert_int_equal(store_failed, 1);
    assert_int_equal(version_of(), 2);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(seen.sessions, 2);
    assert_true(seen.session == 2 && seen.tenant == UINT32_MAX);
    assert_string_equal(seen.name, "same");
    assert_string_equal(seen.tenants, "4294967295:a");
    assert_int_equal(seen.tokens, 1);
    row.used_s = 99;
    assert_memory_equal(&seen.token.hash, &row.hash, sizeof(row.hash));
    assert_true(seen.token.id == row.id && seen.token.tenant == row.tenant && seen.token.access == 2 &&
                seen.token.created_s == 7 && seen.token.expires_s == 8 && seen.token.used_s == 99);
    assert_string_equal(seen.token.name, "first");
    batch = coordinator_batch_new();
    coordinator_batch_token_drop(batch, row.id);
    coordinator_batch_session_drop(batch, 2);
    store_submit(store, batch);
    batch = coordinator_batch_new(); // its name is free again
    coordinator_batch_session(batch, 3, "same", "s", 1, 1, 1, UINT32_MAX);
    store_submit(store, batch);
    store_close(store);
    assert_int_equal(store_failed, 1);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_true(seen.tokens == 0 && seen.session == 3 && seen.tenant == UINT32_MAX);
    store_close(store);
}

// The tables of a coordinator without tenants: its sessions are the default tenant's.
static void older_store(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, 1, "old", "s", 1, 1, 1, 0);
    store_submit(store, batch);
    store_close(store);
    make_old();
    assert_int_equal(version_of(), 1);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    assert_int_equal(seen.id_keys, 0); // and none is made: sessions made later have plain ids as well
    assert_true(seen.sessions == 1 && seen.tenant == 0 && seen.tokens == 0);
    assert_string_equal(seen.name, "old");
    assert_string_equal(seen.tenants, "");
    store_close(store);
    assert_int_equal(version_of(), 1); // and that coordinator may have it back
}

static void memory_keeps_nothing(void **state)
{
    (void)state;
    struct coordinator_store *store;
    struct store_seen seen;
    snprintf(store_path, sizeof(store_path), ":memory:");
    for (int life = 0; life < 2; life++) {
        assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
        assert_int_equal(coordinator_store_term(store), 1);
        assert_int_equal(seen.sessions, 0);
        struct coordinator_batch *batch = coordinator_batch_new();
        coordinator_batch_session(batch, 1, "", "s", 1, 1, 1, 0);
        store_submit(store, batch);
        batch = coordinator_batch_new();
        coordinator_batch_session(batch, 2, "", "s", 1, 1, 1, 0); // without a name: any number of them
        store_submit(store, batch);
        store_close(store);
    }
    assert_true(store_done == 4 && store_failed == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(everything_comes_back, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(ranges_are_united, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(tenants_and_tokens, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(quotas, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(ids_have_a_key, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(older_store, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(a_batch_is_atomic, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(store_full_disk, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(store_deletes_when_full, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(store_commit_that_fails, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(store_half_a_batch, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(store_numbers_wait, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(a_chunk_has_one_holder, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(a_chunk_has_followers, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(an_older_store_gets_followers, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(a_chunk_has_a_seal, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(an_older_store_gets_seals, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(a_clip_where_a_range_begins, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(store_full_sync, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(store_killed_again_and_again, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(numbers_go_on, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(lives_are_kept, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(one_at_a_time, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(foreign_files, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(memory_keeps_nothing, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(store_is_backed_up, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(store_backup_is_given_up, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(store_in_memory_has_no_backup, store_setup, store_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
