// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sql.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/random.h"
#include "common/log/log.h"

// 1: all sessions are the default tenant's. 2: it has tenants, which a coordinator that reads 1 alone must
// not serve: it would show all sessions to everybody; or its session ids are made with a key, which such a
// one would take for slots that are none. A new store is 2 for its key; one that was made as 1 becomes 2 with
// its first tenant or token.
#define SCHEMA_VERSION     2
#define SCHEMA_VERSION_OLD 1
#define APPLICATION_ID     0x62616e79 // "bany": a file that is something else is refused, not altered

// In meta, of a store that was made with one: the key of its session ids (session/ids.h).
#define ID_KEY_0 "id_key_0"
#define ID_KEY_1 "id_key_1"

static const char schema[] =
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE workers(name TEXT PRIMARY KEY, instance INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE sessions(id INTEGER PRIMARY KEY, name TEXT UNIQUE, spec BLOB NOT NULL, incarnation INTEGER "
    "NOT NULL,"
    " epoch INTEGER NOT NULL);"
    "CREATE TABLE members(session INTEGER, worker TEXT, PRIMARY KEY(session, worker)) WITHOUT ROWID;"
    "CREATE TABLE chunks(session INTEGER, idx INTEGER, id INTEGER NOT NULL, lost INTEGER NOT NULL, PRIMARY "
    "KEY(session, idx)) WITHOUT ROWID;"
    "CREATE TABLE holders(session INTEGER, idx INTEGER, worker TEXT, PRIMARY KEY(session, idx, worker)) "
    "WITHOUT ROWID;"
    "CREATE TABLE ranges(session INTEGER, layer INTEGER, first INTEGER, count INTEGER NOT NULL, PRIMARY "
    "KEY(session, layer, first))"
    " WITHOUT ROWID;";

// Added to every store that lacks it; older coordinators do not mind.
static const char added_schema[] =
    "CREATE TABLE IF NOT EXISTS lives(term INTEGER PRIMARY KEY, life INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS keys(session INTEGER PRIMARY KEY, key INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS cuts(session INTEGER PRIMARY KEY, cut INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS floors(session INTEGER PRIMARY KEY, floor INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS prefixes(session INTEGER PRIMARY KEY, incarnation INTEGER NOT NULL, used "
    "INTEGER NOT NULL, life INTEGER NOT NULL, hashes BLOB NOT NULL);" // life: ttl in ns * 2 + pinned
    "CREATE TABLE IF NOT EXISTS followers(session INTEGER, idx INTEGER, worker TEXT, PRIMARY KEY(session, "
    "idx, worker)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS draining(worker TEXT PRIMARY KEY, reason BLOB NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS seals(session INTEGER, idx INTEGER, id INTEGER NOT NULL, seal INTEGER NOT "
    "NULL, PRIMARY KEY(session, idx)) WITHOUT ROWID;"
    // Sessions of other tenants than the default one have their names here, and none above: they are unique
    // in a tenant.
    "CREATE TABLE IF NOT EXISTS tenants(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);"
    "CREATE TABLE IF NOT EXISTS tokens(id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, name TEXT NOT NULL "
    "UNIQUE, access INTEGER NOT NULL, tenant INTEGER NOT NULL, created INTEGER NOT NULL, expires INTEGER NOT "
    "NULL, used INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS quotas(tenant INTEGER, name TEXT, max INTEGER NOT NULL, PRIMARY KEY(tenant, "
    "name)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS owners(session INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, name TEXT, "
    "UNIQUE(tenant, name));"
    "DELETE FROM owners WHERE session NOT IN (SELECT id FROM sessions);"
    "DELETE FROM keys WHERE session NOT IN (SELECT id FROM sessions);" // an older coordinator has deleted them
    "DELETE FROM cuts WHERE session NOT IN (SELECT id FROM sessions);"
    "DELETE FROM floors WHERE session NOT IN (SELECT id FROM sessions);"
    "DELETE FROM prefixes WHERE session NOT IN (SELECT id FROM sessions);"
    "DELETE FROM followers WHERE session NOT IN (SELECT id FROM sessions);"
    "DELETE FROM seals WHERE NOT EXISTS (SELECT 1 FROM chunks c WHERE c.session = seals.session AND c.idx = "
    "seals.idx AND c.id = seals.id)";

#define TEXTS 8 // statements of an operation, at most

// What each kind of operation executes, in order; ?1 ?2 ?3 ?4 are a b c d, ?5 the name, ?6 the bytes.
static const char *const texts[COORDINATOR_OPS][TEXTS] = {
    [COORDINATOR_OP_META] = {"INSERT OR REPLACE INTO meta VALUES(?5, ?1)"},
    [COORDINATOR_OP_LIFE] = {"INSERT INTO lives VALUES(?1, ?2)"},
    [COORDINATOR_OP_WORKER] = {"INSERT OR REPLACE INTO workers VALUES(?5, ?1)"},
    [COORDINATOR_OP_WORKER_DROP] = {"DELETE FROM workers WHERE name = ?5",
                                    "DELETE FROM draining WHERE worker = ?5"},
    [COORDINATOR_OP_SESSION] = {"INSERT OR REPLACE INTO sessions VALUES(?1, nullif(?5, ''), ?6, ?2, ?3)"},
    [COORDINATOR_OP_OWNER] = {"INSERT OR REPLACE INTO owners VALUES(?1, ?2, nullif(?5, ''))"},
    [COORDINATOR_OP_TENANT] = {"INSERT OR REPLACE INTO tenants VALUES(?1, ?5)", "PRAGMA user_version=2"},
    [COORDINATOR_OP_TOKEN] = {"INSERT INTO tokens VALUES(?1, ?6, ?5, ?2 >> 32, ?2 & 4294967295, ?3, ?4, 0)",
                              "PRAGMA user_version=2"},
    [COORDINATOR_OP_TOKEN_USED] = {"UPDATE tokens SET used = ?2 WHERE id = ?1"},
    [COORDINATOR_OP_TOKEN_DROP] = {"DELETE FROM tokens WHERE id = ?1"},
    [COORDINATOR_OP_QUOTA] = {"INSERT OR REPLACE INTO quotas VALUES(?1, ?5, ?2)"},
    [COORDINATOR_OP_QUOTA_DROP] = {"DELETE FROM quotas WHERE tenant = ?1 AND name = ?5"},
    [COORDINATOR_OP_NUMBERS] = {"UPDATE sessions SET incarnation = ?2, epoch = ?3 WHERE id = ?1"},
    [COORDINATOR_OP_SESSION_DROP] =
        {"DELETE FROM sessions WHERE id = ?1", "DELETE FROM members WHERE session = ?1",
         "DELETE FROM ranges WHERE session = ?1", "DELETE FROM keys WHERE session = ?1",
         "DELETE FROM cuts WHERE session = ?1", "DELETE FROM floors WHERE session = ?1",
         "DELETE FROM prefixes WHERE session = ?1", "DELETE FROM owners WHERE session = ?1"},
    [COORDINATOR_OP_KEY] = {"INSERT OR REPLACE INTO keys VALUES(?1, ?2)"},
    [COORDINATOR_OP_CUT] = {"INSERT OR REPLACE INTO cuts VALUES(?1, ?2)"},
    [COORDINATOR_OP_FLOOR] = {"INSERT OR REPLACE INTO floors VALUES(?1, ?2)"},
    [COORDINATOR_OP_PREFIX] = {"INSERT OR REPLACE INTO prefixes VALUES(?1, ?2, ?3, ?4, ?6)"},
    [COORDINATOR_OP_PREFIX_USED] = {"UPDATE prefixes SET used = ?2 WHERE session = ?1"},
    [COORDINATOR_OP_MEMBER] = {"INSERT OR REPLACE INTO members VALUES(?1, ?5)"},
    [COORDINATOR_OP_MEMBER_DROP] = {"DELETE FROM members WHERE session = ?1 AND worker = ?5"},
    [COORDINATOR_OP_DRAIN] = {"INSERT OR REPLACE INTO draining VALUES(?5, ?6)"},
    [COORDINATOR_OP_RESUME] = {"DELETE FROM draining WHERE worker = ?5"},
    [COORDINATOR_OP_CHUNK] = {"INSERT OR REPLACE INTO chunks VALUES(?1, ?2, ?3, ?4)",
                              "DELETE FROM seals WHERE session = ?1 AND idx = ?2 AND id <> ?3",
                              "DELETE FROM holders WHERE session = ?1 AND idx = ?2",
                              "DELETE FROM followers WHERE session = ?1 AND idx = ?2",
                              "INSERT INTO holders VALUES(?1, ?2, ?5)"},
    [COORDINATOR_OP_FOLLOWER] = {"INSERT OR REPLACE INTO followers VALUES(?1, ?2, ?5)"},
    // Another one serves in its place; then it follows no more, nor does the one that serves now.
    [COORDINATOR_OP_COPY_LOST] =
        {"UPDATE holders SET worker = (SELECT min(f.worker) FROM followers f WHERE f.session = ?1 AND f.idx "
         "= "
         "?2)"
         " WHERE session = ?1 AND idx = ?2 AND worker = ?5"
         " AND EXISTS (SELECT 1 FROM followers f WHERE f.session = ?1 AND f.idx = ?2)"
         " AND EXISTS (SELECT 1 FROM chunks c WHERE c.session = ?1 AND c.idx = ?2 AND c.id = ?3)",
         "DELETE FROM followers WHERE session = ?1 AND idx = ?2"
         " AND (worker = ?5 OR worker = (SELECT h.worker FROM holders h WHERE h.session = ?1 AND h.idx = ?2))"
         " AND EXISTS (SELECT 1 FROM chunks c WHERE c.session = ?1 AND c.idx = ?2 AND c.id = ?3)"},
    [COORDINATOR_OP_CHUNK_LOST] = {"UPDATE chunks SET lost = 1 WHERE session = ?1 AND idx = ?2 AND id = ?3"},
    [COORDINATOR_OP_SEAL] = {"INSERT OR REPLACE INTO seals SELECT ?1, ?2, ?3, ?4 WHERE EXISTS"
                             " (SELECT 1 FROM chunks c WHERE c.session = ?1 AND c.idx = ?2 AND c.id = ?3)"},
    [COORDINATOR_OP_CHUNK_DROP] = {"DELETE FROM chunks WHERE session = ?1 AND idx BETWEEN ?2 AND ?3",
                                   "DELETE FROM holders WHERE session = ?1 AND idx BETWEEN ?2 AND ?3",
                                   "DELETE FROM followers WHERE session = ?1 AND idx BETWEEN ?2 AND ?3",
                                   "DELETE FROM seals WHERE session = ?1 AND idx BETWEEN ?2 AND ?3"},
    // The union with every range that it overlaps or touches, then away with those that are inside it now.
    [COORDINATOR_OP_RANGE] =
        {"INSERT OR REPLACE INTO ranges"
         " SELECT ?1, ?2, lo, hi - lo FROM (SELECT min(?3, coalesce(min(first), ?3)) AS lo,"
         "   max(?3 + ?4, coalesce(max(first + count), ?3 + ?4)) AS hi"
         "   FROM ranges WHERE session = ?1 AND layer = ?2 AND first <= ?3 + ?4 AND first + count >= ?3)",
         "DELETE FROM ranges AS r WHERE session = ?1 AND layer = ?2 AND first <= ?3 + ?4 AND first + count "
         ">= ?3"
         " AND EXISTS (SELECT 1 FROM ranges o WHERE o.session = ?1 AND o.layer = ?2 AND o.first < r.first"
         "   AND o.first + o.count >= r.first + r.count)"},
    [COORDINATOR_OP_CLIP] =
        {"DELETE FROM ranges WHERE session = ?1 AND first >= ?2",
         "UPDATE ranges SET count = ?2 - first WHERE session = ?1 AND first + count > ?2"},
};

int coordinator_sql_exec(struct coordinator_sql *sql, const char *text)
{
    return sqlite3_exec(sql->db, text, NULL, NULL, NULL);
}

static enum common_code sql_fail(const char *path, const struct coordinator_sql *sql, int rc,
                                 struct common_error *err)
{
    if (rc == SQLITE_BUSY || rc == SQLITE_LOCKED)
        return common_error_set(
            err, COMMON_FAILED_PRECONDITION,
            "store %s is in use by a process without its lock file: a coordinator of an earlier version, or "
            "a program such as sqlite3; 'fuser %s' names it; stop it first",
            path, path);
    if (rc == SQLITE_NOTADB || rc == SQLITE_CORRUPT)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "store %s is not a Banyan store, or is damaged: %s", path,
                                sqlite3_errmsg(sql->db));
    return common_error_set(err, COMMON_UNAVAILABLE, "store %s cannot be used: %s", path,
                            sql->db ? sqlite3_errmsg(sql->db) : sqlite3_errstr(rc));
}

static bool meta_number(struct coordinator_sql *sql, const char *text, uint64_t *out)
{
    sqlite3_stmt *s = NULL;
    bool ok = sqlite3_prepare_v2(sql->db, text, -1, &s, NULL) == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW;
    if (ok)
        *out = (uint64_t)sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return ok;
}

void coordinator_sql_make_folder(const char *path)
{
    char folder[4096];
    size_t len = strlen(path);
    if (len >= sizeof(folder))
        return; // opening fails with a reason
    memcpy(folder, path, len + 1);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(folder, 0700); // an existing one is fine; any other failure shows when the file is opened
        *slash = '/';
    }
}

static enum common_code no_real_path(const char *path, const char *why, struct common_error *err)
{
    return common_error_set(err, COMMON_UNAVAILABLE, "store %s cannot be used: %s", path, why);
}

enum common_code coordinator_sql_real_path(char **path, struct common_error *err)
{
    struct stat st;
    char *real = realpath(*path, NULL);
    if (!real && errno == ENOENT && lstat(*path, &st) == 0)
        return no_real_path(*path, "it is a link to a missing file", err);
    if (!real && errno == ENOENT) { // a new one
        const char *slash = strrchr(*path, '/'), *base = slash ? slash + 1 : *path;
        size_t len = !slash ? 0 : slash == *path ? 1 : (size_t)(slash - *path);
        char *folder = slash ? strndup(*path, len) : strdup("."), *real_folder = realpath(folder, NULL);
        if (real_folder && asprintf(&real, "%s/%s", real_folder[1] ? real_folder : "", base) < 0)
            real = NULL;
        free(folder);
        free(real_folder);
    }
    if (!real)
        return no_real_path(*path, strerror(errno), err);
    free(*path);
    *path = real;
    return COMMON_OK;
}

bool coordinator_sql_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return ok;
}

bool coordinator_sql_sync_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t len = !slash ? 0 : slash == path ? 1 : (size_t)(slash - path);
    char *folder = slash ? strndup(path, len) : strdup(".");
    bool ok = folder && coordinator_sql_sync(folder);
    free(folder);
    return ok;
}

static int prepare_all(struct coordinator_sql *sql)
{
    int n = 0;
    for (int kind = 0; kind < COORDINATOR_OPS; kind++) {
        for (int i = 0; i < TEXTS && texts[kind][i]; i++) {
            assert(n < COORDINATOR_STATEMENTS); // as many as `texts` has
            int rc = sqlite3_prepare_v3(sql->db, texts[kind][i], -1, SQLITE_PREPARE_PERSISTENT,
                                        &sql->statements[n++], NULL);
            if (rc != SQLITE_OK)
                return rc;
        }
    }
    return SQLITE_OK;
}

enum common_code coordinator_sql_open(struct coordinator_sql *sql, const char *path, bool sync_full,
                                      struct common_error *err)
{
    memset(sql, 0, sizeof(*sql));
    bool memory = !strcmp(path, ":memory:");
    if (!memory) {
        coordinator_sql_make_folder(path);
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600); // SQLite would make it readable for all
        if (fd >= 0)
            close(fd);
    }
    int rc = sqlite3_open_v2(path, &sql->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                             NULL);
    enum common_code code = COMMON_OK;
    uint64_t application = 0, version = 0, tables = 0;
    int keep = 1;
    if (rc == SQLITE_OK && !memory) // hold.h: nothing is removed by its name
        rc = sqlite3_file_control(sql->db, "main", SQLITE_FCNTL_PERSIST_WAL, &keep);
    if (rc != SQLITE_OK) {
        code = sql_fail(path, sql, rc, err);
        goto failed;
    }
    // Beside the hold (hold.h), SQLite's own lock keeps programs out that take no hold, and an index of the
    // log off the disk.
    if ((rc = coordinator_sql_exec(sql, "PRAGMA locking_mode=EXCLUSIVE")) != SQLITE_OK ||
        (rc = coordinator_sql_exec(sql, "PRAGMA journal_mode=WAL")) != SQLITE_OK ||
        (rc = coordinator_sql_exec(sql, sync_full ? "PRAGMA synchronous=FULL"
                                                  : "PRAGMA synchronous=NORMAL")) != SQLITE_OK ||
        (rc = coordinator_sql_exec(sql, "BEGIN EXCLUSIVE")) != SQLITE_OK) {
        code = sql_fail(path, sql, rc, err);
        goto failed;
    }
    if (!meta_number(sql, "PRAGMA application_id", &application) ||
        !meta_number(sql, "PRAGMA user_version", &version) ||
        !meta_number(sql, "SELECT count(*) FROM sqlite_schema", &tables)) {
        code = sql_fail(path, sql, sqlite3_errcode(sql->db), err);
        goto failed;
    }
    if (!tables) {
        char marks[96];
        sqlite3_snprintf(sizeof(marks), marks, "PRAGMA application_id=%d; PRAGMA user_version=%d",
                         APPLICATION_ID, SCHEMA_VERSION);
        char key[160];
        int64_t halves[2];
        if (!common_random(halves, sizeof halves)) {
            code = common_error_set(err, COMMON_UNAVAILABLE, "cannot get random bytes");
            goto failed;
        }
        sqlite3_snprintf(sizeof key, key, "INSERT INTO meta VALUES('%s', %lld), ('%s', %lld)", ID_KEY_0,
                         (sqlite3_int64)halves[0], ID_KEY_1, (sqlite3_int64)halves[1]);
        if ((rc = coordinator_sql_exec(sql, schema)) != SQLITE_OK ||
            (rc = coordinator_sql_exec(sql, key)) != SQLITE_OK ||
            (rc = coordinator_sql_exec(sql, marks)) != SQLITE_OK) {
            code = sql_fail(path, sql, rc, err);
            goto failed;
        }
    } else if (application != APPLICATION_ID) {
        code = common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "%s is a database, but not a Banyan store: choose another --store", path);
        goto failed;
    } else if (version != SCHEMA_VERSION && version != SCHEMA_VERSION_OLD) {
        code = common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "store %s has version %llu and this coordinator reads versions up to %d: use "
                                "the coordinator that wrote it",
                                path, (unsigned long long)version, SCHEMA_VERSION);
        goto failed;
    }
    if ((rc = coordinator_sql_exec(sql, added_schema)) != SQLITE_OK ||
        (rc = coordinator_sql_exec(sql, "COMMIT")) != SQLITE_OK || (rc = prepare_all(sql)) != SQLITE_OK) {
        code = sql_fail(path, sql, rc, err);
        goto failed;
    }
    sql->opened = true;
    return COMMON_OK;
failed:
    coordinator_sql_close(sql);
    return code;
}

void coordinator_sql_close(struct coordinator_sql *sql)
{
    for (int i = 0; i < COORDINATOR_STATEMENTS; i++)
        sqlite3_finalize(sql->statements[i]);
    if (sql->opened) // what does not go into the file now stays in the log, for the next start
        (void)sqlite3_wal_checkpoint_v2(sql->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    if (sqlite3_close(sql->db) != SQLITE_OK)
        common_log_error("the store's files stay open until the process ends: a statement is in use");
    memset(sql, 0, sizeof(*sql));
}

bool coordinator_sql_meta(struct coordinator_sql *sql, const char *key, uint64_t absent, uint64_t *out)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(sql->db, "SELECT value FROM meta WHERE key = ?1", -1, &s, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_bind_text(s, 1, key, -1, SQLITE_STATIC);
        rc = sqlite3_step(s);
        *out = rc == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(s, 0) : absent;
    }
    sqlite3_finalize(s);
    return rc == SQLITE_ROW || rc == SQLITE_DONE;
}

static const char *text_of(sqlite3_stmt *s, int column)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    return text ? text : "";
}

static uint64_t u64(sqlite3_stmt *s, int column)
{
    return (uint64_t)sqlite3_column_int64(s, column);
}

bool coordinator_sql_lives(struct coordinator_sql *sql, uint64_t **lives, size_t *n)
{
    sqlite3_stmt *s = NULL;
    uint64_t *list = NULL;
    size_t count = 0;
    int rc = sqlite3_prepare_v2(sql->db, "SELECT life FROM lives ORDER BY term", -1, &s, NULL);
    bool ok = rc == SQLITE_OK;
    while (ok && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        uint64_t *more = realloc(list, (count + 1) * sizeof(*more));
        ok = more != NULL;
        list = ok ? more : list;
        if (ok)
            list[count++] = u64(s, 0);
    }
    sqlite3_finalize(s);
    if (!ok || rc != SQLITE_DONE) {
        free(list);
        return false;
    }
    *lives = list;
    *n = count;
    return true;
}

static bool read_token(const struct coordinator_store_reader *r, sqlite3_stmt *s)
{
    struct coordinator_token_row row = {.id = u64(s, 0),
                                        .access = (uint32_t)u64(s, 3),
                                        .tenant = (uint32_t)u64(s, 4),
                                        .created_s = u64(s, 5),
                                        .expires_s = u64(s, 6),
                                        .used_s = u64(s, 7)};
    const void *hash = sqlite3_column_blob(s, 1);
    if (!hash || sqlite3_column_bytes(s, 1) != COORDINATOR_TOKEN_HASH)
        return true; // nobody can present it
    memcpy(row.hash, hash, sizeof(row.hash));
    snprintf(row.name, sizeof(row.name), "%s", text_of(s, 2));
    return r->token(r->tenants, &row);
}

static enum common_code read_id_key(struct coordinator_sql *sql, const struct coordinator_store_reader *r,
                                    struct common_error *err)
{
    sqlite3_stmt *s = NULL;
    uint64_t key[2];
    int n = 0, rc = sqlite3_prepare_v2(sql->db,
                                       "SELECT value FROM meta WHERE key IN ('" ID_KEY_0 "', '" ID_KEY_1
                                       "') ORDER BY key",
                                       -1, &s, NULL);
    while (rc == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW && n < 2)
        key[n++] = u64(s, 0);
    rc = sqlite3_finalize(s);
    if (rc != SQLITE_OK || n == 1)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "the key of the store's session ids cannot be read: %s",
                                rc != SQLITE_OK ? sqlite3_errmsg(sql->db) : "half of it is missing");
    if (n && r->id_key)
        r->id_key(r->arg, key);
    return COMMON_OK;
}

enum common_code coordinator_sql_read(struct coordinator_sql *sql, const struct coordinator_store_reader *r,
                                      struct common_error *err)
{
    static const char *const queries[] = {
        "SELECT name, instance FROM workers",
        "SELECT s.id, coalesce(o.name, s.name), s.spec, s.incarnation, s.epoch, coalesce(o.tenant, 0)"
        " FROM sessions s LEFT JOIN owners o ON o.session = s.id ORDER BY s.id",
        "SELECT session, worker FROM members",
        "SELECT c.session, c.idx, c.id, c.lost, h.worker FROM chunks c JOIN holders h ON h.session = "
        "c.session AND h.idx = c.idx"
        " ORDER BY c.session, c.idx",
        "SELECT session, idx, worker FROM followers ORDER BY session, idx, worker",
        "SELECT session, idx, seal FROM seals",
        "SELECT session, layer, first, count FROM ranges ORDER BY session, layer, first",
        "SELECT session, key FROM keys",
        "SELECT session, cut FROM cuts",
        "SELECT session, floor FROM floors",
        "SELECT worker, reason FROM draining ORDER BY worker",
        "SELECT id, name FROM tenants ORDER BY id",
        "SELECT id, hash, name, access, tenant, created, expires, used FROM tokens ORDER BY id",
        "SELECT tenant, name, max FROM quotas",
        "SELECT session, incarnation, life, hashes FROM prefixes ORDER BY used, session",
    };
    enum common_code code = read_id_key(sql, r, err);
    for (size_t q = 0; q < sizeof(queries) / sizeof(*queries) && code == COMMON_OK; q++) {
        sqlite3_stmt *s = NULL;
        int rc = sqlite3_prepare_v2(sql->db, queries[q], -1, &s, NULL);
        bool ok = rc == SQLITE_OK;
        while (ok && (rc = sqlite3_step(s)) == SQLITE_ROW) {
            if (q == 0)
                ok = r->worker(r->arg, text_of(s, 0), u64(s, 1));
            else if (q == 1)
                ok =
                    r->session(r->arg, u64(s, 0), text_of(s, 1), sqlite3_column_blob(s, 2),
                               (size_t)sqlite3_column_bytes(s, 2), u64(s, 3), u64(s, 4), (uint32_t)u64(s, 5));
            else if (q == 2)
                ok = r->member(r->arg, u64(s, 0), text_of(s, 1));
            else if (q == 3)
                ok = r->chunk(r->arg, u64(s, 0), (uint32_t)u64(s, 1), u64(s, 2), u64(s, 3) != 0,
                              text_of(s, 4));
            else if (q == 4)
                ok = r->follower(r->arg, u64(s, 0), (uint32_t)u64(s, 1), text_of(s, 2));
            else if (q == 5)
                ok = r->seal(r->arg, u64(s, 0), (uint32_t)u64(s, 1), u64(s, 2));
            else if (q == 6)
                ok = r->range(r->arg, u64(s, 0), (uint32_t)u64(s, 1), u64(s, 2), u64(s, 3));
            else if (q == 7)
                ok = r->key(r->arg, u64(s, 0), u64(s, 1));
            else if (q == 8)
                ok = r->cut(r->arg, u64(s, 0), u64(s, 1));
            else if (q == 9)
                ok = r->floor(r->arg, u64(s, 0), u64(s, 1));
            else if (q == 11)
                ok = !r->tenant || r->tenant(r->tenants, (uint32_t)u64(s, 0), text_of(s, 1));
            else if (q == 12)
                ok = !r->token || read_token(r, s);
            else if (q == 13)
                ok = !r->quota || r->quota(r->quotas, (uint32_t)u64(s, 0), text_of(s, 1), u64(s, 2));
            else if (q == 14)
                ok = !r->prefix || r->prefix(r->arg, u64(s, 0), u64(s, 1), u64(s, 2) >> 1, u64(s, 2) & 1,
                                             sqlite3_column_blob(s, 3), (size_t)sqlite3_column_bytes(s, 3));
            else
                ok = r->draining(r->arg, text_of(s, 0), sqlite3_column_blob(s, 1),
                                 (size_t)sqlite3_column_bytes(s, 1));
        }
        if (ok && rc != SQLITE_DONE)
            code = common_error_set(err, COMMON_INVALID_ARGUMENT, "the store cannot be read: %s",
                                    sqlite3_errmsg(sql->db));
        else if (!ok)
            code = err && err->code != COMMON_OK ? err->code : COMMON_INTERNAL;
        sqlite3_finalize(s);
    }
    return code;
}

static int op_run(sqlite3_stmt *s, const struct coordinator_op *op)
{
    const uint64_t numbers[] = {op->a, op->b, op->c, op->d};
    int n = sqlite3_bind_parameter_count(s); // the highest index that the statement uses
    for (int i = 1; i <= n; i++) {
        if (i <= 4)
            sqlite3_bind_int64(s, i, (sqlite3_int64)numbers[i - 1]);
        else if (i == 5)
            sqlite3_bind_text(s, i, op->name, -1, SQLITE_STATIC);
        else
            sqlite3_bind_blob(s, i, op->bytes, (int)op->n_bytes, SQLITE_STATIC);
    }
    int rc = sqlite3_step(s);
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int coordinator_sql_apply(struct coordinator_sql *sql, const struct coordinator_op *op)
{
    int at = 0, rc = SQLITE_OK;
    for (int kind = 0; kind < (int)op->kind; kind++)
        for (int i = 0; i < TEXTS && texts[kind][i]; i++)
            at++;
    for (int i = 0; i < TEXTS && texts[op->kind][i] && rc == SQLITE_OK; i++)
        rc = op_run(sql->statements[at + i], op);
    return rc;
}
