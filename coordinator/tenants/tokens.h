// SPDX-License-Identifier: Apache-2.0
// Tokens by which clients show who they are. A token is "bt_" and 43 characters of base64url: 256 random
// bits. It is shown once, when it is made; what is kept is its SHA-256, by which it is looked up: how long a
// look-up takes reveals only the hash of what was presented, which the caller has, and nothing that is kept.
#ifndef COORDINATOR_TOKENS_H
#define COORDINATOR_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/store/store.h"
#include "proto/rights/access.h"

#define COORDINATOR_TOKENS_MAX    4096u
#define COORDINATOR_TOKEN_CHARS   46    // of a token
#define COORDINATOR_TOKEN_BUCKETS 1024u // a power of two

struct coordinator_token {
    struct coordinator_token *next; // in its bucket
    struct coordinator_token_row row;
    uint64_t written_s; // row.used_s as the store has it
    bool ready;         // the store has it, and it is not being revoked
    bool expired;       // and its links were closed
};

struct coordinator_tokens {
    struct coordinator_token *buckets[COORDINATOR_TOKEN_BUCKETS];
    uint32_t n;
};

void coordinator_tokens_init(struct coordinator_tokens *tokens);
void coordinator_tokens_fini(struct coordinator_tokens *tokens);

// One that the store has. NULL: out of memory.
struct coordinator_token *coordinator_tokens_add(struct coordinator_tokens *tokens,
                                                 const struct coordinator_token_row *row);
void coordinator_tokens_remove(struct coordinator_tokens *tokens, uint64_t id);

// A new one, as it is presented, and what is kept of it. False: the system gives no random bytes.
bool coordinator_token_make(char out[COORDINATOR_TOKEN_CHARS + 1], struct coordinator_token_row *row);

// The token that is presented, if it is one that is ready and has not expired; else NULL.
struct coordinator_token *coordinator_token_presented(const struct coordinator_tokens *tokens,
                                                      const void *credentials, size_t len, uint64_t now_s);

struct coordinator_token *coordinator_token_of(const struct coordinator_tokens *tokens, uint64_t id);
struct coordinator_token *coordinator_token_named(const struct coordinator_tokens *tokens, const char *name);

// Every token, in any order: start with NULL.
struct coordinator_token *coordinator_token_next(const struct coordinator_tokens *tokens,
                                                 const struct coordinator_token *token);

#endif
