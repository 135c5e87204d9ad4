// SPDX-License-Identifier: Apache-2.0
// What a store reads when it opens, as the coordinator gets it: rows of its tables, in an order in which each
// refers to what came before it.
#ifndef COORDINATOR_STORE_READER_H
#define COORDINATOR_STORE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COORDINATOR_RESTORED_KEY                                                                             \
    "restored" // in the table meta: it was made from a backup (restore.h); 0 or absent: no

// A token as it is kept: what was made of it, never itself (tenants/tokens.h).
#define COORDINATOR_TOKEN_HASH 32
struct coordinator_token_row {
    uint64_t id;
    uint32_t tenant, access;               // enum proto_access
    uint64_t created_s, expires_s, used_s; // wall clock; 0: never
    uint8_t hash[COORDINATOR_TOKEN_HASH];  // SHA-256
    char name[65];
};

// Called while the store opens, for everything in it: workers first, then sessions, then what refers to them.
// False ends the opening (the callee has filled the error).
struct coordinator_store_reader {
    void *arg;
    bool (*worker)(void *arg, const char *name, uint64_t instance);
    bool (*session)(void *arg, uint64_t id, const char *name, const void *spec, size_t spec_bytes,
                    uint64_t incarnation, uint64_t epoch, uint32_t tenant);
    bool (*member)(void *arg, uint64_t session, const char *worker);
    bool (*chunk)(void *arg, uint64_t session, uint32_t index, uint64_t id, bool lost, const char *holder);
    bool (*follower)(void *arg, uint64_t session, uint32_t index, const char *holder); // after all chunks
    bool (*seal)(void *arg, uint64_t session, uint32_t index, uint64_t seal);          // after all followers
    bool (*range)(void *arg, uint64_t session, uint32_t layer, uint64_t first, uint64_t count);
    bool (*key)(void *arg, uint64_t session, uint64_t key);
    bool (*cut)(void *arg, uint64_t session, uint64_t cut);
    bool (*floor)(void *arg, uint64_t session, uint64_t floor);
    // After all of a session, in the order in which they were used.
    bool (*prefix)(void *arg, uint64_t session, uint64_t incarnation, uint64_t ttl_ns, bool pinned,
                   const void *hashes, size_t bytes);
    bool (*draining)(void *arg, const char *worker, const void *order, size_t bytes);
    // All tenants but the default one, then all tokens, both with `tenants` and not `arg`. May be NULL.
    bool (*tenant)(void *tenants, uint32_t id, const char *name);
    bool (*token)(void *tenants, const struct coordinator_token_row *row);
    void *tenants;
    // Quotas of tenants, with `quotas` and not `arg`. May be NULL.
    bool (*quota)(void *quotas, uint32_t tenant, const char *name, uint64_t max);
    void *quotas;
    // First of all, with `arg`: the key that the store's ids of sessions are made with (session/ids.h). Not called where a store
    // has none: it is of before there were such keys. May be NULL.
    void (*id_key)(void *arg, const uint64_t key[2]);
};

#endif
