// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/restore.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/failpoint.h"
#include "common/base/random.h"
#include "common/hash/hash.h"
#include "coordinator/store/backup.h"
#include "coordinator/store/hold.h"
#include "coordinator/store/sql.h"

#define TERMS       1024               // lives that may have been since
#define GENERATIONS (INT64_C(1) << 24) // sessions that may have been made since

struct paths {
    char db[PATH_MAX], wal[PATH_MAX], made[PATH_MAX], made_wal[PATH_MAX];
};

static uint64_t get_u64(const uint8_t *at)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static enum common_code system_failed(const char *path, const char *what, struct common_error *err)
{
    return common_error_set(err, COMMON_UNAVAILABLE, "nothing is restored: %s %s: %s", path, what,
                            strerror(errno));
}

static enum common_code damaged(const char *path, const char *why, struct common_error *err)
{
    return common_error_set(
        err, COMMON_INVALID_ARGUMENT,
        "nothing is restored: %s is not a backup of a coordinator's store, or is damaged: "
        "%s",
        path, why);
}

static ssize_t read_all(int fd, void *out, size_t bytes)
{
    size_t got = 0;
    while (got < bytes) {
        ssize_t n = read(fd, (char *)out + got, bytes - got);
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

static bool write_all(int fd, const void *data, size_t bytes)
{
    for (size_t put = 0; put < bytes;) {
        ssize_t n = write(fd, (const char *)data + put, bytes - put);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        put += (size_t)n;
    }
    return true;
}

static enum common_code check_head(const char *backup, const uint8_t *head, struct common_error *err)
{
    if (memcmp(head, COORDINATOR_BACKUP_MAGIC, 16) != 0)
        return damaged(backup, "its first bytes are wrong", err);
    if (get_u64(head + 120) != common_xxh3(head, 120, 0))
        return damaged(backup, "its header does not match its checksum", err);
    if (get_u64(head + 16) != COORDINATOR_BACKUP_FORMAT)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "nothing is restored: %s is of a newer version: use the coordinator of the "
                                "version that made it",
                                backup);
    return COMMON_OK;
}

// The database out of the file, with all its sums.
static enum common_code unpack(int in, const char *backup, const struct paths *p, struct common_error *err)
{
    uint8_t head[COORDINATOR_BACKUP_HEAD];
    ssize_t n = read_all(in, head, sizeof head);
    if (n < 0)
        return system_failed(backup, "cannot be read", err);
    if (n != sizeof head)
        return damaged(backup, "it is too short", err);
    enum common_code code = check_head(backup, head, err);
    if (code != COMMON_OK)
        return code;
    uint8_t *piece = malloc(COORDINATOR_BACKUP_PIECE + 1);
    int out = open(p->made, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (!piece || out < 0) {
        code = piece ? system_failed(p->made, "cannot be created", err)
                     : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
        goto end;
    }
    uint64_t bytes = get_u64(head + 24), sum = 0, at = 0;
    while (at < bytes && code == COMMON_OK) {
        size_t want = bytes - at < COORDINATOR_BACKUP_PIECE ? (size_t)(bytes - at) : COORDINATOR_BACKUP_PIECE;
        n = read_all(in, piece, want);
        if (n < 0)
            code = system_failed(backup, "cannot be read", err);
        else if ((size_t)n != want)
            code = damaged(backup, "its end is missing", err);
        else if (!write_all(out, piece, want))
            code = system_failed(p->made, "cannot be written", err);
        else
            sum = common_xxh3(piece, want, sum);
        at += want;
    }
    if (code == COMMON_OK && read_all(in, piece, 1) != 0)
        code = damaged(backup, "it continues after its end", err);
    else if (code == COMMON_OK && sum != get_u64(head + 32))
        code = damaged(backup, "its contents do not match its checksum", err);
end:
    if (out >= 0 && close(out) != 0 && code == COMMON_OK)
        code = system_failed(p->made, "cannot be written", err);
    free(piece);
    return code;
}

// restore.h says what.
static enum common_code mark(const struct paths *p, struct common_error *err)
{
    struct coordinator_sql sql;
    uint64_t life = 0;
    char text[512];
    while (!life)
        if (!common_random(&life, sizeof life))
            return common_error_set(err, COMMON_UNAVAILABLE, "cannot get random bytes");
    enum common_code code = coordinator_sql_open(&sql, p->made, true, err);
    if (code != COMMON_OK)
        return code;
    sqlite3_snprintf(sizeof text, text,
                     "BEGIN IMMEDIATE;"
                     "UPDATE lives SET life = %lld WHERE term = (SELECT max(term) FROM lives);"
                     "UPDATE meta SET value = value + %d WHERE key = 'term';"
                     "UPDATE meta SET value = value + %lld WHERE key = 'next_generation';"
                     "INSERT OR REPLACE INTO meta VALUES('%s', 1);"
                     "COMMIT",
                     (sqlite3_int64)life, TERMS, (sqlite3_int64)GENERATIONS, COORDINATOR_RESTORED_KEY);
    if (coordinator_sql_exec(&sql, text) != SQLITE_OK ||
        sqlite3_wal_checkpoint_v2(sql.db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) != SQLITE_OK)
        code = common_error_set(err, COMMON_UNAVAILABLE, "nothing is restored: %s cannot be written: %s",
                                p->made, sqlite3_errmsg(sql.db));
    coordinator_sql_close(&sql);
    return code;
}

static enum common_code exists(const char *path, struct common_error *err)
{
    return common_error_set(
        err, COMMON_ALREADY_EXISTS,
        "nothing is restored: %s exists: move the old store away, and its -wal with it, or name another "
        "--store",
        path);
}

static bool is_there(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

// An empty log is what a coordinator leaves that has stopped.
static bool has_log(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && !(S_ISREG(st.st_mode) && st.st_size == 0);
}

// With the hold of the path.
static enum common_code restore_held(const char *backup, const char *path, struct common_error *err)
{
    struct paths p;
    if (strlen(path) + sizeof "-restoring-wal" > PATH_MAX)
        return common_error_set(err, COMMON_UNAVAILABLE, "the path of the store is too long");
    snprintf(p.db, sizeof p.db, "%s", path);
    snprintf(p.wal, sizeof p.wal, "%.*s-wal", PATH_MAX - 16, path);
    snprintf(p.made, sizeof p.made, "%.*s-restoring", PATH_MAX - 16, path);
    snprintf(p.made_wal, sizeof p.made_wal, "%.*s-restoring-wal", PATH_MAX - 16, path);
    if (is_there(p.db) || has_log(p.wal))
        return exists(is_there(p.db) ? p.db : p.wal, err);
    int in = open(backup, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return system_failed(backup, "cannot be opened", err);
    (void)unlink(p.made_wal); // of a restore that was killed
    (void)unlink(p.made);
    enum common_code code = unpack(in, backup, &p, err);
    close(in);
    COMMON_FAILPOINT("restoring_unpacked");
    if (code == COMMON_OK)
        code = mark(&p, err);
    COMMON_FAILPOINT("restoring_marked");
    if (code == COMMON_OK && (COMMON_FAILPOINT_FAILS("restoring_synced") || !coordinator_sql_sync(p.made)))
        code = system_failed(p.made, "cannot be written", err);
    if (code == COMMON_OK && link(p.made, p.db) != 0)
        code = errno == EEXIST ? exists(p.db, err) : system_failed(p.db, "cannot be created", err);
    COMMON_FAILPOINT("restoring_named");
    if (code == COMMON_OK && !coordinator_sql_sync_name(p.db))
        code = system_failed(p.db, "cannot be written", err);
    (void)unlink(p.made);
    (void)unlink(p.made_wal);
    return code;
}

static void nothing_open(void *arg)
{
    (void)arg;
}

enum common_code coordinator_restore(const char *backup, const char *path, struct common_error *err)
{
    struct coordinator_hold *hold = NULL;
    coordinator_sql_make_folder(path);
    char *real = strdup(path);
    enum common_code code = real ? coordinator_sql_real_path(&real, err)
                                 : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    if (code == COMMON_OK)
        code = coordinator_hold_take(real, &hold, err);
    if (code == COMMON_OK)
        code = restore_held(backup, real, err);
    coordinator_hold_end(hold, nothing_open, NULL);
    free(real);
    return code;
}
