// SPDX-License-Identifier: Apache-2.0
// What is durable of a coordinator's store: tables as in coordinator/store/sql.c, in memory. Private to the
// simulator; sim_store.h is for tests.
#ifndef TESTS_SIM_SIM_DISK_H
#define TESTS_SIM_SIM_DISK_H

#include <stddef.h>
#include <stdint.h>

#include "coordinator/store/store.h"

enum sim_op_kind {
    SIM_OP_META, // name: the key; a: value
    SIM_OP_WORKER,
    SIM_OP_WORKER_DROP,
    SIM_OP_SESSION,
    SIM_OP_NUMBERS,
    SIM_OP_SESSION_DROP,
    SIM_OP_KEY,
    SIM_OP_CUT,
    SIM_OP_FLOOR,
    SIM_OP_PREFIX, // as in coordinator/store/sql.h
    SIM_OP_PREFIX_USED,
    SIM_OP_MEMBER,
    SIM_OP_MEMBER_DROP,
    SIM_OP_DRAIN,
    SIM_OP_RESUME,
    SIM_OP_CHUNK,
    SIM_OP_FOLLOWER,
    SIM_OP_COPY_LOST,
    SIM_OP_CHUNK_LOST,
    SIM_OP_SEAL,
    SIM_OP_CHUNK_DROP,
    SIM_OP_RANGE,
    SIM_OP_CLIP,
    SIM_OP_TENANT,
    SIM_OP_TOKEN, // bytes: a struct coordinator_token_row
    SIM_OP_TOKEN_USED,
    SIM_OP_TOKEN_DROP,
    SIM_OP_QUOTA, // a: tenant, b: max, 0: none; name
};

struct sim_op {
    enum sim_op_kind kind;
    uint64_t a, b, c, d;
    char name[132];
    void *bytes; // owned
    size_t n_bytes;
};

enum {
    SIM_META,
    SIM_WORKERS,
    SIM_SESSIONS,
    SIM_MEMBERS,
    SIM_CHUNKS,
    SIM_FOLLOWERS,
    SIM_SEALS,
    SIM_RANGES,
    SIM_KEYS,
    SIM_CUTS,
    SIM_FLOORS,
    SIM_DRAINING,
    SIM_TENANTS,
    SIM_TOKENS,
    SIM_QUOTAS,
    SIM_PREFIXES,
    SIM_TABLES
};

// A row is an operation that has put it there: SIM_OP_META, _WORKER, _SESSION, _MEMBER, _CHUNK, _FOLLOWER,
// _SEAL, _RANGE, _KEY, _CUT, _FLOOR, _PREFIX, _DRAIN, _TENANT, _TOKEN or _QUOTA.
struct sim_rows { // of one session; in a table without sessions: all
    uint64_t session;
    struct sim_op **rows; // owned
    size_t n, cap;
};

// By session, so that a change costs no more with a million rows of others.
struct sim_table {
    struct sim_rows *sessions; // owned, ascending; one without rows may stay
    size_t n, cap;
};

struct sim_tables {
    struct sim_table tables[SIM_TABLES];
};

void sim_tables_apply(struct sim_tables *tables, const struct sim_op *op);
// In the store's order: workers, sessions, members, chunks, ranges. As coordinator_store_open.
enum common_code sim_tables_read(struct sim_tables *tables, const struct coordinator_store_reader *reader,
                                 struct common_error *err);
uint64_t sim_tables_meta(const struct sim_tables *tables, const char *key, uint64_t absent);
void sim_tables_copy(const struct sim_tables *from, struct sim_tables *to);
void sim_tables_clear(struct sim_tables *tables);

void sim_holds_forget(void); // of all disks (sim_hold.c)

#endif
