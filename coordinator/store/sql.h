// SPDX-License-Identifier: Apache-2.0
// The SQL half of the store (private to it): opening, schema, reading, and executing the operations of a
// batch. No threads here: before the store's thread starts it belongs to the opener, afterwards to that
// thread.
#ifndef COORDINATOR_SQL_H
#define COORDINATOR_SQL_H

#include <sqlite3.h>

#include "common/base/status.h"
#include "coordinator/store/reader.h"

enum coordinator_op_kind {
    COORDINATOR_OP_META, // name: the key; a: value
    COORDINATOR_OP_LIFE, // a: term, b: life
    COORDINATOR_OP_WORKER,
    COORDINATOR_OP_WORKER_DROP,
    COORDINATOR_OP_SESSION,
    COORDINATOR_OP_OWNER,  // a: session, b: tenant; name: of the session
    COORDINATOR_OP_TENANT, // a: id; name
    COORDINATOR_OP_TOKEN,  // a: id, b: access << 32 | tenant, c: created, d: expires; name; bytes: the hash
    COORDINATOR_OP_TOKEN_USED, // a: id, b: when
    COORDINATOR_OP_TOKEN_DROP, // a: id
    COORDINATOR_OP_QUOTA,      // a: tenant, b: max; name
    COORDINATOR_OP_QUOTA_DROP, // a: tenant; name
    COORDINATOR_OP_NUMBERS,
    COORDINATOR_OP_SESSION_DROP,
    COORDINATOR_OP_KEY,         // a: session, b: key
    COORDINATOR_OP_CUT,         // a: session, b: cut
    COORDINATOR_OP_FLOOR,       // a: session, b: floor
    COORDINATOR_OP_PREFIX,      // a: session, b: incarnation, c: used, d: ttl << 1 | pinned; bytes: hashes
    COORDINATOR_OP_PREFIX_USED, // a: session, b: used
    COORDINATOR_OP_MEMBER,
    COORDINATOR_OP_MEMBER_DROP,
    COORDINATOR_OP_DRAIN, // bytes: the reason
    COORDINATOR_OP_RESUME,
    COORDINATOR_OP_CHUNK,
    COORDINATOR_OP_FOLLOWER,
    COORDINATOR_OP_COPY_LOST,
    COORDINATOR_OP_CHUNK_LOST,
    COORDINATOR_OP_SEAL, // a: session, b: index, c: id, d: seal
    COORDINATOR_OP_CHUNK_DROP,
    COORDINATOR_OP_RANGE,
    COORDINATOR_OP_CLIP,
    COORDINATOR_OPS
};

struct coordinator_op {
    enum coordinator_op_kind kind;
    uint64_t a, b, c, d;
    char name[132];
    void *bytes; // owned by the batch
    size_t n_bytes;
};

#define COORDINATOR_STATEMENTS 52

struct coordinator_sql {
    sqlite3 *db;
    sqlite3_stmt *statements[COORDINATOR_STATEMENTS];
    bool opened; // by coordinator_sql_open, to its end
    bool unsure; // a COMMIT has failed, and may be found in the log after a crash all the same
};

// With the hold of the path (hold.h). Codes: coordinator_store_open.
enum common_code coordinator_sql_open(struct coordinator_sql *sql, const char *path, bool sync_full,
                                      struct common_error *err);
// Puts the log into the file. The log stays, empty: SQLite would remove it by its name, which may be another's by now. One
// that did not open, or is closed already, is allowed.
void coordinator_sql_close(struct coordinator_sql *sql);
// Replaces *path (of the heap) by the name that SQLite gives its files: without links, from the root on. UNAVAILABLE: a
// folder is missing, or it is a link to a file that is.
enum common_code coordinator_sql_real_path(char **path, struct common_error *err);
// Makes the folder that the file is to be in, with those above it.
void coordinator_sql_make_folder(const char *path);
// The file, or its name in its folder, outlives a loss of power. False: errno says why.
bool coordinator_sql_sync(const char *path);
bool coordinator_sql_sync_name(const char *path);

// Absent keys read as `absent`.
bool coordinator_sql_meta(struct coordinator_sql *sql, const char *key, uint64_t absent, uint64_t *out);
// The lives so far, by ascending term; free them. False: out of memory, or the file system.
bool coordinator_sql_lives(struct coordinator_sql *sql, uint64_t **lives, size_t *n);
enum common_code coordinator_sql_read(struct coordinator_sql *sql,
                                      const struct coordinator_store_reader *reader,
                                      struct common_error *err);

// SQLite's own result codes.
int coordinator_sql_exec(struct coordinator_sql *sql, const char *text);
int coordinator_sql_apply(struct coordinator_sql *sql, const struct coordinator_op *op);

#endif
