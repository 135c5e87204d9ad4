// SPDX-License-Identifier: Apache-2.0
// The store is copied while it is written, and a store is made of the copy.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/loop/loop.h"
#include "coordinator/store/backup.h"
#include "coordinator/store/restore.h"
#include "tests/coordinator/store_suite.h"

#define CHUNKS 6000 // more than one slice copies

struct taking {
    struct coordinator_store *store;
    struct coordinator_backup *backup;
    enum common_code code;
    char text[200];
    int fd;
    uint64_t at;
};

static void put_chunks(struct coordinator_store *store, uint32_t from, uint32_t to)
{
    struct coordinator_batch *batch = coordinator_batch_new();
    for (uint32_t i = from; i < to; i++)
        coordinator_batch_chunk(batch, 9, i, 1000 + i, false, "w0");
    store_submit(store, batch);
}

static void next_piece(void *arg, enum common_code code, const char *text)
{
    struct taking *t = arg;
    size_t bytes;
    t->code = code;
    snprintf(t->text, sizeof t->text, "%s", text);
    if (code == COMMON_OK && t->fd < 0) { // the copy is there
        const struct coordinator_backup_facts *f = coordinator_backup_facts(t->backup);
        char path[200];
        snprintf(path, sizeof path, "%s/backup", store_folder);
        t->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        assert_int_equal(write(t->fd, f->head, sizeof f->head), sizeof f->head);
        assert_false(coordinator_backup_read(t->backup, 1, next_piece, t));
        assert_false(coordinator_backup_read(
            t->backup, (f->bytes / COORDINATOR_BACKUP_PIECE + 1) * COORDINATOR_BACKUP_PIECE, next_piece, t));
    } else if (code == COMMON_OK) {
        const void *piece = coordinator_backup_piece(t->backup, &bytes);
        assert_int_equal(write(t->fd, piece, bytes), bytes);
        t->at += bytes;
    }
    if (code == COMMON_OK && t->at < coordinator_backup_facts(t->backup)->bytes) {
        assert_true(coordinator_backup_read(t->backup, t->at, next_piece, t));
        assert_false(coordinator_backup_read(t->backup, t->at, next_piece, t)); // busy
        return;
    }
    common_loop_stop(store_loop);
}

// What was put before is in the store; more is put while it is being copied, or when it has been.
static void begin(void *arg, enum common_code code, const char *text)
{
    struct taking *t = arg;
    struct common_error err;
    (void)text;
    assert_int_equal(code, COMMON_OK);
    assert_int_equal(coordinator_backup_new(t->store, next_piece, t, &t->backup, &err), COMMON_OK);
    put_chunks(t->store, CHUNKS, CHUNKS + 50);
}

static bool is_there(const char *end)
{
    char path[200];
    snprintf(path, sizeof path, "%s%s", store_path, end);
    return access(path, F_OK) == 0;
}

// All chunks of one moment are in it: what came in one batch is there or not.
void store_is_backed_up(void **state)
{
    (void)state;
    struct taking t = {.fd = -1};
    struct store_seen seen;
    struct common_error err;
    assert_int_equal(store_open(&seen, &t.store, NULL), COMMON_OK);
    uint64_t id = coordinator_store_id(t.store), life = coordinator_store_life(t.store);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_worker(batch, "w0", 4);
    coordinator_batch_session(batch, 9, "a name", "spec", 4, 5, 6, 0);
    coordinator_batch_range(batch, 9, 3, 0, 77);
    coordinator_batch_range(batch, 9, 3, 20, 30);
    store_submit(t.store, batch);
    put_chunks(t.store, 0, CHUNKS);
    batch = coordinator_batch_new();
    coordinator_batch_term(batch, 3);
    coordinator_store_submit(t.store, batch, begin, &t);
    common_loop_run(store_loop);
    if (t.code != COMMON_OK)
        fail_msg("%s", t.text);
    assert_false(is_there("-backup"));
    struct coordinator_backup_facts f = *coordinator_backup_facts(t.backup);
    coordinator_backup_free(t.backup);
    close(t.fd);
    assert_true(f.sessions == 1 && f.tokens == 77 && f.workers == 1);
    assert_true(f.chunks == CHUNKS || f.chunks == CHUNKS + 50);
    store_close(t.store);

    char from[200];
    snprintf(from, sizeof from, "%s/backup", store_folder);
    assert_int_equal(coordinator_restore(from, store_path, &err), COMMON_ALREADY_EXISTS);
    snprintf(store_path, sizeof store_path, "%s/restored/store.db", store_folder);
    if (coordinator_restore(from, store_path, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    assert_false(is_there("-restoring") || is_there("-wal"));
    common_loop_free(store_loop);
    assert_int_equal(common_loop_new(&store_loop), COMMON_OK);
    assert_int_equal(store_open(&seen, &t.store, NULL), COMMON_OK);
    assert_true(seen.sessions == 1 && seen.session == 9 && seen.incarnation == 5 && seen.epoch == 6);
    assert_int_equal(seen.chunks, f.chunks);
    coordinator_rangeset_free(&seen.ranges);
    assert_true(coordinator_store_restored(t.store));
    assert_false(coordinator_store_knows_life(t.store, life)); // what it did later is another's
    assert_true(id == life && coordinator_store_id(t.store) != id);
    assert_true(coordinator_store_term(t.store) > f.term + 1000);
    batch = coordinator_batch_new();
    coordinator_batch_accept(batch);
    store_submit(t.store, batch);
    store_close(t.store);
    common_loop_free(store_loop);
    assert_int_equal(common_loop_new(&store_loop), COMMON_OK);
    assert_int_equal(store_open(&seen, &t.store, NULL), COMMON_OK);
    assert_false(coordinator_store_restored(t.store));
    coordinator_rangeset_free(&seen.ranges);
    store_close(t.store);
}

static void given_up(void *arg, enum common_code code, const char *text)
{
    (void)text;
    *(enum common_code *)arg = code;
    common_loop_stop(store_loop);
}

// When the store is stopped, or the backup given up.
enum when { STOPPED, FREED, FREED_WHEN_COPIED, WHENS };

// What the backup's owner gets in the end.
static enum common_code give_up(enum when when)
{
    struct coordinator_store *store;
    struct coordinator_backup *backup, *next;
    struct store_seen seen;
    struct common_error err;
    enum common_code code = COMMON_OK, next_code = COMMON_CANCELLED;
    snprintf(store_path, sizeof store_path, "%s/given-up%d.db", store_folder, when);
    assert_int_equal(store_open(&seen, &store, NULL), COMMON_OK);
    coordinator_rangeset_free(&seen.ranges);
    put_chunks(store, 0, CHUNKS);
    assert_int_equal(coordinator_backup_new(store, given_up, &code, &backup, &err), COMMON_OK);
    if (when == FREED_WHEN_COPIED) { // the store takes another when it has ended the first
        while (coordinator_backup_new(store, given_up, &next_code, &next, &err) != COMMON_OK)
            usleep(100);
        coordinator_backup_free(next);
    }
    if (when != STOPPED)
        coordinator_backup_free(backup);
    coordinator_store_stop(store);
    common_loop_run(store_loop); // given_up ends it
    if (when == STOPPED)
        coordinator_backup_free(backup);
    coordinator_store_free(store);
    assert_int_equal(next_code, COMMON_CANCELLED);
    assert_false(is_there("-backup"));
    assert_int_equal(store_failed, 0);
    common_loop_free(store_loop);
    assert_int_equal(common_loop_new(&store_loop), COMMON_OK);
    return code;
}

// A copy that has ended when the store is stopped is reported as such: then it is tried again.
void store_backup_is_given_up(void **state)
{
    (void)state;
    enum common_code code = COMMON_OK;
    for (int tries = 0; tries < 100 && code == COMMON_OK; tries++)
        code = give_up(STOPPED);
    assert_int_equal(code, COMMON_CANCELLED);
    for (int times = 0; times < 20; times++)
        assert_int_equal(give_up(FREED), COMMON_CANCELLED);
    assert_int_equal(give_up(FREED_WHEN_COPIED), COMMON_CANCELLED);
}

// It says so, and the store goes on.
void store_in_memory_has_no_backup(void **state)
{
    (void)state;
    struct taking t = {.fd = -1};
    struct store_seen seen;
    struct common_error err;
    snprintf(store_path, sizeof store_path, ":memory:");
    assert_int_equal(store_open(&seen, &t.store, NULL), COMMON_OK);
    assert_int_equal(coordinator_backup_new(t.store, next_piece, &t, &t.backup, &err),
                     COMMON_FAILED_PRECONDITION);
    store_close(t.store);
}
