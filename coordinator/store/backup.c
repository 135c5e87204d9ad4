// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/backup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/hash/hash.h"
#include "coordinator/store/job.h"

#define PAGES 64 // of a slice: 256 KiB

enum backup_state { BACKUP_OPENING, BACKUP_COPYING, BACKUP_SUMMING, BACKUP_READY, BACKUP_READING };

struct coordinator_backup {
    struct coordinator_store_job job; // first
    struct coordinator_store *store;
    coordinator_backup_fn done;
    void *arg;
    atomic_bool freed; // by its owner, while a job was under way
    bool busy;         // a job is under way: the rest is the store's thread's
    enum backup_state state;
    int fd;
    sqlite3 *to;
    sqlite3_backup *copy;
    uint64_t at; // of the sum, or of the piece
    size_t piece_bytes;
    enum common_code code;
    char text[192];
    struct coordinator_backup_facts facts;
    uint8_t piece[COORDINATOR_BACKUP_PIECE];
};

// ---- the store's thread ---------------------------------------------------------------------------------

static bool failed(struct coordinator_backup *b, enum common_code code, const char *what, const char *why)
{
    b->code = code;
    snprintf(b->text, sizeof b->text, "%s: %s", what, why);
    return true;
}

static bool open_copy(struct coordinator_backup *b, struct coordinator_sql *sql)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s-backup", coordinator_store_path(b->store)) >= (int)sizeof path)
        return failed(b, COMMON_UNAVAILABLE, "cannot back up", "the path of the store is too long");
    if (!coordinator_store_named(b->store)) // then a file of this name may be another coordinator's
        return failed(
            b, COMMON_FAILED_PRECONDITION, "cannot back up",
            "the store was moved while in use: stop the coordinator, and start it where the store is");
    (void)unlink(path); // of a process that ended between the next lines
    b->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int failure = errno;
    COMMON_FAILPOINT("backup_file_made");
    int rc = b->fd < 0 ? SQLITE_CANTOPEN
                       : sqlite3_open_v2(path, &b->to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    (void)unlink(path);
    if (b->fd < 0)
        return failed(b, COMMON_UNAVAILABLE, "the backup's file cannot be created beside the store",
                      strerror(failure));
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(b->to, "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF", NULL, NULL, NULL);
    b->copy = rc == SQLITE_OK ? sqlite3_backup_init(b->to, "main", sql->db, "main") : NULL;
    if (!b->copy)
        return failed(b, COMMON_UNAVAILABLE, "cannot back up", sqlite3_errmsg(b->to));
    b->state = BACKUP_COPYING;
    return false;
}

static bool count(struct coordinator_sql *sql, const char *text, uint64_t *out)
{
    sqlite3_stmt *s = NULL;
    bool ok = sqlite3_prepare_v2(sql->db, text, -1, &s, NULL) == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW;
    if (ok)
        *out = (uint64_t)sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return ok;
}

// What the store has now is what the copy has: nothing was written since its last page was copied.
static bool count_all(struct coordinator_backup *b, struct coordinator_sql *sql)
{
    struct coordinator_backup_facts *f = &b->facts;
    return count(sql, "SELECT count(*) FROM sessions", &f->sessions) &&
           count(sql, "SELECT count(*) FROM chunks", &f->chunks) &&
           count(sql, "SELECT count(*) FROM workers", &f->workers) &&
           count(sql,
                 "SELECT coalesce(sum(most), 0) FROM (SELECT max(n) AS most FROM (SELECT session, sum(count) "
                 "AS n FROM ranges GROUP BY session, layer) GROUP BY session)",
                 &f->tokens);
}

static bool copy_some(struct coordinator_backup *b, struct coordinator_sql *sql)
{
    int rc = sqlite3_backup_step(b->copy, PAGES);
    if (rc == SQLITE_OK)
        return false;
    if (rc != SQLITE_DONE)
        return failed(b, rc == SQLITE_FULL ? COMMON_RESOURCE_EXHAUSTED : COMMON_UNAVAILABLE,
                      "the backup cannot be written beside the store", sqlite3_errstr(rc));
    if (COMMON_FAILPOINT_FAILS("backup_copied"))
        return failed(b, COMMON_RESOURCE_EXHAUSTED, "the backup cannot be written beside the store",
                      "a failpoint");
    bool counted = count_all(b, sql);
    rc = sqlite3_backup_finish(b->copy);
    b->copy = NULL;
    if (!counted || rc != SQLITE_OK)
        return failed(b, COMMON_UNAVAILABLE, "the store cannot be read", sqlite3_errmsg(sql->db));
    rc = sqlite3_close(b->to);
    b->to = NULL;
    off_t end = lseek(b->fd, 0, SEEK_END);
    if (rc != SQLITE_OK || end <= 0)
        return failed(b, COMMON_UNAVAILABLE, "the backup cannot be written beside the store",
                      "it is incomplete");
    b->facts.bytes = (uint64_t)end;
    b->state = BACKUP_SUMMING;
    return false;
}

static bool read_piece(struct coordinator_backup *b)
{
    uint64_t left = b->facts.bytes - b->at;
    b->piece_bytes = left < sizeof b->piece ? (size_t)left : sizeof b->piece;
    for (size_t got = 0; got < b->piece_bytes;) {
        ssize_t n = pread(b->fd, b->piece + got, b->piece_bytes - got, (off_t)(b->at + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

static void put_u64(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static void make_head(struct coordinator_backup_facts *f)
{
    const uint64_t fields[] = {COORDINATOR_BACKUP_FORMAT, f->bytes,    f->sum,    f->life,
                               common_clock_wall_ns(),    f->sessions, f->chunks, f->term};
    memset(f->head, 0, sizeof f->head);
    memcpy(f->head, COORDINATOR_BACKUP_MAGIC, 16);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        put_u64(f->head + 16 + 8 * i, fields[i]);
    put_u64(f->head + 120, common_xxh3(f->head, 120, 0));
}

static bool sum_some(struct coordinator_backup *b)
{
    if (!read_piece(b))
        return failed(b, COMMON_UNAVAILABLE, "the backup cannot be read", strerror(errno));
    b->facts.sum = common_xxh3(b->piece, b->piece_bytes, b->facts.sum);
    b->at += b->piece_bytes;
    if (b->at < b->facts.bytes)
        return false;
    make_head(&b->facts);
    COMMON_FAILPOINT("backup_summed");
    b->state = BACKUP_READY;
    return true;
}

static void close_copy(struct coordinator_backup *b)
{
    if (b->copy)
        sqlite3_backup_finish(b->copy);
    b->copy = NULL;
    sqlite3_close(b->to);
    b->to = NULL;
}

static bool slice(struct coordinator_store_job *job, struct coordinator_sql *sql, bool closing)
{
    struct coordinator_backup *b = (struct coordinator_backup *)job;
    bool over = true;
    if (closing || atomic_load(&b->freed))
        failed(b, COMMON_CANCELLED, "the backup was abandoned",
               closing ? "the coordinator is stopping" : "ended");
    else if (b->state == BACKUP_OPENING)
        over = open_copy(b, sql);
    else if (b->state == BACKUP_COPYING)
        over = copy_some(b, sql);
    else if (b->state == BACKUP_SUMMING)
        over = sum_some(b);
    else if (!read_piece(b))
        failed(b, COMMON_UNAVAILABLE, "the backup cannot be read", strerror(errno));
    if (over)
        close_copy(b);
    return over;
}

// ---- the loop thread ------------------------------------------------------------------------------------

static void destroy(struct coordinator_backup *b)
{
    if (b->fd >= 0)
        close(b->fd);
    free(b);
}

static void job_done(void *arg)
{
    struct coordinator_backup *b = arg;
    b->busy = false;
    if (b->state == BACKUP_READING)
        b->state = BACKUP_READY;
    bool freed = atomic_load(&b->freed);
    if (freed && b->code == COMMON_OK) // its last slice had ended before: it may no longer be read
        failed(b, COMMON_CANCELLED, "the backup was abandoned", "ended");
    b->done(b->arg, b->code, b->text);
    if (freed)
        destroy(b);
}

static bool run(struct coordinator_backup *b, coordinator_backup_fn done, void *arg)
{
    b->done = done;
    b->arg = arg;
    b->busy = coordinator_store_run(b->store, &b->job);
    return b->busy;
}

enum common_code coordinator_backup_new(struct coordinator_store *store, coordinator_backup_fn done,
                                        void *arg, struct coordinator_backup **out, struct common_error *err)
{
    if (!strcmp(coordinator_store_path(store), ":memory:"))
        return common_error_set(
            err, COMMON_FAILED_PRECONDITION,
            "the coordinator's store is ':memory:', which keeps nothing: there is nothing "
            "to back up");
    struct coordinator_backup *b = calloc(1, sizeof *b);
    if (!b)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    b->job = (struct coordinator_store_job){.slice = slice, .done = job_done};
    b->store = store;
    b->fd = -1;
    b->facts.term = coordinator_store_term(store);
    b->facts.life = coordinator_store_life(store);
    if (!run(b, done, arg)) {
        destroy(b);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "another backup is running: try again when it has finished");
    }
    *out = b;
    return COMMON_OK;
}

const struct coordinator_backup_facts *coordinator_backup_facts(const struct coordinator_backup *b)
{
    return &b->facts;
}

bool coordinator_backup_read(struct coordinator_backup *b, uint64_t offset, coordinator_backup_fn done,
                             void *arg)
{
    if (b->busy || b->state != BACKUP_READY || offset % COORDINATOR_BACKUP_PIECE || offset >= b->facts.bytes)
        return false;
    b->at = offset;
    b->state = BACKUP_READING;
    if (!run(b, done, arg))
        b->state = BACKUP_READY;
    return b->busy;
}

const void *coordinator_backup_piece(const struct coordinator_backup *b, size_t *bytes)
{
    *bytes = b->piece_bytes;
    return b->piece;
}

void coordinator_backup_free(struct coordinator_backup *b)
{
    if (!b)
        return;
    if (b->busy)
        atomic_store(&b->freed, true);
    else
        destroy(b);
}
