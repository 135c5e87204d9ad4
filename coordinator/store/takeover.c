// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/takeover.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/failpoint.h"
#include "coordinator/store/sql.h"

#define PIECE     (256 * 1024)
#define TRIES_MAX 100

struct paths {
    char db[PATH_MAX], wal[PATH_MAX], copy[PATH_MAX], copy_wal[PATH_MAX];
};

static enum common_code system_failed(const char *path, const char *what, struct common_error *err)
{
    return common_error_set(err, COMMON_UNAVAILABLE, "the store cannot be taken over: %s %s: %s", path, what,
                            strerror(errno));
}

static ssize_t read_piece(int fd, char *out, off_t at)
{
    size_t got = 0;
    while (got < PIECE) {
        ssize_t n = pread(fd, out + got, PIECE - got, at + (off_t)got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

// A file that is absent is copied as an empty one.
static bool copy_file(const char *from, const char *to, char *piece)
{
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0 && errno != ENOENT)
        return false;
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = out >= 0;
    ssize_t n = in < 0 ? 0 : PIECE;
    for (off_t at = 0; ok && n == PIECE; at += n) {
        n = read_piece(in, piece, at);
        ok = n >= 0 && pwrite(out, piece, (size_t)n, at) == n;
    }
    int failure = errno;
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    errno = failure;
    return ok;
}

static bool same_file(const char *a, const char *b, char *pieces)
{
    int fds[2] = {open(a, O_RDONLY | O_CLOEXEC), open(b, O_RDONLY | O_CLOEXEC)};
    ssize_t n[2] = {PIECE, PIECE};
    bool same = fds[1] >= 0;
    for (off_t at = 0; same && n[0] == PIECE; at += PIECE) {
        n[0] = fds[0] < 0 ? 0 : read_piece(fds[0], pieces, at);
        n[1] = read_piece(fds[1], pieces + PIECE, at);
        same = n[0] >= 0 && n[0] == n[1] && !memcmp(pieces, pieces + PIECE, (size_t)n[0]);
    }
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return same;
}

// The old process may run again and end a transaction meanwhile: one, after which it reads OWNER and is over. What two
// readings, one after the other, find the same was there at once in between.
static enum common_code copy_both(const struct paths *p, struct common_error *err)
{
    char *pieces = malloc(2 * (size_t)PIECE);
    if (!pieces)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    enum common_code code = COMMON_IN_PROGRESS;
    for (int i = 0; i < TRIES_MAX && code == COMMON_IN_PROGRESS; i++) {
        if (!copy_file(p->db, p->copy, pieces) || !copy_file(p->wal, p->copy_wal, pieces))
            code = system_failed(p->copy, "cannot be written", err);
        else if (same_file(p->db, p->copy, pieces) && same_file(p->wal, p->copy_wal, pieces))
            code = COMMON_OK;
    }
    free(pieces);
    return code == COMMON_IN_PROGRESS
               ? common_error_set(err, COMMON_UNAVAILABLE,
                                  "the store cannot be taken over: %s is still being written", p->db)
               : code;
}

// Nothing but the pages of the log goes into the file: takeover.h says why.
static enum common_code merge_log(const struct paths *p, struct common_error *err)
{
    sqlite3 *db = NULL;
    int rc = sqlite3_open_v2(p->copy, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, "PRAGMA locking_mode=EXCLUSIVE", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, "PRAGMA synchronous=FULL", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, "SELECT count(*) FROM sqlite_schema", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    enum common_code code =
        rc == SQLITE_OK ? COMMON_OK
        : rc == SQLITE_NOTADB || rc == SQLITE_CORRUPT
            ? common_error_set(err, COMMON_INVALID_ARGUMENT, "%s is not a Banyan store, or is damaged", p->db)
            : common_error_set(err, COMMON_UNAVAILABLE, "the store cannot be taken over: %s",
                               db ? sqlite3_errmsg(db) : sqlite3_errstr(rc));
    if (sqlite3_close(db) != SQLITE_OK && code == COMMON_OK)
        code = common_error_set(err, COMMON_UNAVAILABLE, "the store cannot be taken over: its copy is open");
    return code;
}

enum common_code coordinator_takeover(const char *path, struct common_error *err)
{
    struct paths p;
    if (strlen(path) + sizeof "-taking-wal" > PATH_MAX)
        return common_error_set(err, COMMON_UNAVAILABLE, "the path of the store is too long");
    snprintf(p.db, sizeof p.db, "%s", path);
    snprintf(p.wal, sizeof p.wal, "%.*s-wal", PATH_MAX - 16, path);
    snprintf(p.copy, sizeof p.copy, "%.*s-taking", PATH_MAX - 16, path);
    snprintf(p.copy_wal, sizeof p.copy_wal, "%.*s-taking-wal", PATH_MAX - 16, path);
    enum common_code code = copy_both(&p, err);
    COMMON_FAILPOINT("takeover_copied");
    if (code == COMMON_OK)
        code = merge_log(&p, err);
    if (code != COMMON_OK)
        return code;
    (void)unlink(p.copy_wal); // empty, if it is still there
    COMMON_FAILPOINT("takeover_merged");
    if (!coordinator_sql_sync(p.copy) || rename(p.copy, p.db) != 0 || !coordinator_sql_sync_name(p.db))
        return system_failed(p.db, "cannot be replaced", err);
    COMMON_FAILPOINT("takeover_named");
    if ((unlink(p.wal) != 0 && errno != ENOENT) || !coordinator_sql_sync_name(p.db))
        return system_failed(p.wal, "cannot be removed", err);
    COMMON_FAILPOINT("takeover_done");
    return COMMON_OK;
}
