// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tenants/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/random.h"
#include "common/secure/secret.h"

#define PREFIX "bt_"

static uint32_t bucket_of(const uint8_t hash[COORDINATOR_TOKEN_HASH])
{
    uint32_t at;
    memcpy(&at, hash, sizeof(at));
    return at & (COORDINATOR_TOKEN_BUCKETS - 1);
}

void coordinator_tokens_init(struct coordinator_tokens *tokens)
{
    memset(tokens, 0, sizeof(*tokens));
}

void coordinator_tokens_fini(struct coordinator_tokens *tokens)
{
    for (uint32_t i = 0; i < COORDINATOR_TOKEN_BUCKETS; i++)
        for (struct coordinator_token *token = tokens->buckets[i], *next; token; token = next) {
            next = token->next;
            free(token);
        }
    memset(tokens, 0, sizeof(*tokens));
}

struct coordinator_token *coordinator_tokens_add(struct coordinator_tokens *tokens,
                                                 const struct coordinator_token_row *row)
{
    struct coordinator_token *token = calloc(1, sizeof(*token));
    if (!token)
        return NULL;
    struct coordinator_token **bucket = &tokens->buckets[bucket_of(row->hash)];
    *token =
        (struct coordinator_token){.next = *bucket, .row = *row, .written_s = row->used_s, .ready = true};
    *bucket = token;
    tokens->n++;
    return token;
}

void coordinator_tokens_remove(struct coordinator_tokens *tokens, uint64_t id)
{
    for (uint32_t i = 0; i < COORDINATOR_TOKEN_BUCKETS; i++)
        for (struct coordinator_token **at = &tokens->buckets[i]; *at; at = &(*at)->next)
            if ((*at)->row.id == id) {
                struct coordinator_token *token = *at;
                *at = token->next;
                free(token);
                tokens->n--;
                return;
            }
}

static void base64url(const uint8_t bytes[32], char out[44])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (int i = 0; i < 43; i++) { // 256 bits in sixes; the last one has four of them
        int bit = i * 6, at = bit / 8, shift = bit % 8;
        unsigned pair = (unsigned)bytes[at] << 8 | (at + 1 < 32 ? bytes[at + 1] : 0u);
        out[i] = digits[pair >> (10 - shift) & 63];
    }
    out[43] = '\0';
}

bool coordinator_token_make(char out[COORDINATOR_TOKEN_CHARS + 1], struct coordinator_token_row *row)
{
    uint8_t bits[32];
    uint64_t id = 0;
    while (!id) {
        if (!common_random(&id, sizeof(id)))
            return false;
        id &= INT64_MAX;
    }
    if (!common_random(bits, sizeof(bits)))
        return false;
    memcpy(out, PREFIX, sizeof(PREFIX) - 1);
    base64url(bits, out + sizeof(PREFIX) - 1);
    explicit_bzero(bits, sizeof(bits));
    row->id = id;
    return common_sha256(out, COORDINATOR_TOKEN_CHARS, row->hash);
}

static bool is_like_a_token(const void *credentials, size_t len) // by its form
{
    return len == COORDINATOR_TOKEN_CHARS && memcmp(credentials, PREFIX, sizeof(PREFIX) - 1) == 0;
}

struct coordinator_token *coordinator_token_presented(const struct coordinator_tokens *tokens,
                                                      const void *credentials, size_t len, uint64_t now_s)
{
    uint8_t hash[COORDINATOR_TOKEN_HASH];
    if (!tokens->n || !is_like_a_token(credentials, len) || !common_sha256(credentials, len, hash))
        return NULL;
    struct coordinator_token *token = tokens->buckets[bucket_of(hash)];
    while (token && memcmp(token->row.hash, hash, sizeof(hash)) != 0)
        token = token->next;
    return token && token->ready && (!token->row.expires_s || now_s < token->row.expires_s) ? token : NULL;
}

struct coordinator_token *coordinator_token_next(const struct coordinator_tokens *tokens,
                                                 const struct coordinator_token *token)
{
    if (token && token->next)
        return token->next;
    for (uint32_t i = token ? bucket_of(token->row.hash) + 1 : 0; i < COORDINATOR_TOKEN_BUCKETS; i++)
        if (tokens->buckets[i])
            return tokens->buckets[i];
    return NULL;
}

struct coordinator_token *coordinator_token_of(const struct coordinator_tokens *tokens, uint64_t id)
{
    struct coordinator_token *token = NULL;
    while ((token = coordinator_token_next(tokens, token)) && token->row.id != id)
        continue;
    return token;
}

struct coordinator_token *coordinator_token_named(const struct coordinator_tokens *tokens, const char *name)
{
    struct coordinator_token *token = NULL;
    while ((token = coordinator_token_next(tokens, token)) && strcmp(token->row.name, name) != 0)
        continue;
    return token;
}
