// SPDX-License-Identifier: Apache-2.0
// Prefixes found by content.
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/session/spec.h"
#include "common/secure/secret.h"
#include "proto/model/limits.h"

_Static_assert(BANYAN_PREFIX_HASH == PROTO_PREFIX_HASH, "a hash is as long in banyan.h as on the wire");

// ---- hashes -------------------------------------------------------------------------------------

static void put_u64(uint8_t *out, uint64_t x)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(x >> 8 * i);
}

// h(0) = SHA-256("banyan prefix" | salt), h(i) = SHA-256(h(i - 1) | the chunk's tokens), each cut to 16
// bytes.
banyan_code banyan_prefix_hashes(const void *salt, size_t salt_bytes, const int64_t *tokens, uint64_t n,
                                 uint32_t chunk_tokens, void *hashes, banyan_error *error)
{
    static const char begin[] = "banyan prefix";
    uint32_t chunk = chunk_tokens ? chunk_tokens : 256;
    uint64_t chunks = n / chunk;
    if ((!salt && salt_bytes) || (chunks && (!tokens || !hashes)))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    if (chunks > PROTO_HASHES_BYTES / PROTO_PREFIX_HASH)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "a prefix has at most %u chunks",
                                PROTO_HASHES_BYTES / PROTO_PREFIX_HASH);
    size_t row = PROTO_PREFIX_HASH + 8 * (size_t)chunk,
           room = row > sizeof begin + salt_bytes ? row : sizeof begin + salt_bytes;
    uint8_t *block = malloc(room), sum[COMMON_SHA256_BYTES];
    bool ok = block != NULL;
    if (ok) {
        memcpy(block, begin, sizeof begin);
        if (salt_bytes)
            memcpy(block + sizeof begin, salt, salt_bytes);
        ok = common_sha256(block, sizeof begin + salt_bytes, sum);
    }
    for (uint64_t i = 0; i < chunks && ok; i++) {
        memcpy(block, sum, PROTO_PREFIX_HASH);
        for (uint32_t t = 0; t < chunk; t++)
            put_u64(block + PROTO_PREFIX_HASH + 8 * (size_t)t, (uint64_t)tokens[i * chunk + t]);
        ok = common_sha256(block, row, sum);
        memcpy((uint8_t *)hashes + i * PROTO_PREFIX_HASH, sum, PROTO_PREFIX_HASH);
    }
    free(block);
    return ok ? BANYAN_OK : client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
}

static banyan_code check_hashes(const void *hashes, uint32_t n, banyan_error *error)
{
    if (!hashes || !n || n > PROTO_HASHES_BYTES / PROTO_PREFIX_HASH)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "give the hashes of 1 to %u chunks",
                                PROTO_HASHES_BYTES / PROTO_PREFIX_HASH);
    return BANYAN_OK;
}

static ProtobufCBinaryData packed(const void *hashes, uint32_t n)
{
    return (ProtobufCBinaryData){.data = (uint8_t *)hashes, .len = (size_t)n * PROTO_PREFIX_HASH};
}

// ---- finding and keeping ------------------------------------------------------------------------

static banyan_code take_found(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    (void)error;
    *(uint64_t *)arg = ((const Banyan__Pb__PrefixFindReply *)body)->length;
    return BANYAN_OK;
}

banyan_code banyan_prefix_find(banyan_client *client, const banyan_spec *spec, const void *hashes, uint32_t n,
                               uint64_t *length, banyan_error *error)
{
    if (!client || !spec || !length)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    banyan_code code = check_hashes(hashes, n, error);
    if (code != BANYAN_OK)
        return code;
    Banyan__Pb__Spec pb;
    void *memory;
    code = client_spec_to_pb(spec, &pb, &memory, error);
    if (code != BANYAN_OK)
        return code;
    Banyan__Pb__PrefixFindRequest request = BANYAN__PB__PREFIX_FIND_REQUEST__INIT;
    uint64_t found = 0;
    request.spec = &pb;
    request.prefix = packed(hashes, n);
    code = client_unary(client, BANYAN__PB__METHOD__METHOD_PREFIX_FIND, &request.base, true, 0, take_found,
                        &found, error);
    free(memory);
    if (code == BANYAN_OK)
        *length = found;
    return code;
}

static banyan_code take_kept(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    const Banyan__Pb__PrefixKeepReply *reply = (const Banyan__Pb__PrefixKeepReply *)body;
    banyan_kept *kept = arg;
    (void)error;
    kept->session = reply->session;
    kept->length = reply->length;
    client_copy_text(kept->why, sizeof kept->why, reply->why);
    return BANYAN_OK;
}

banyan_code banyan_session_keep(banyan_session *session, const void *hashes, uint32_t n, uint64_t ttl_ns,
                                bool pin, banyan_kept *out, banyan_error *error)
{
    if (!session)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "the session is NULL");
    banyan_code code = check_hashes(hashes, n, error);
    if (code != BANYAN_OK)
        return code;
    Banyan__Pb__PrefixKeepRequest request = BANYAN__PB__PREFIX_KEEP_REQUEST__INIT;
    banyan_kept kept = {0};
    request.session = session->id;
    request.prefix = packed(hashes, n);
    request.ttl_ns = ttl_ns;
    request.pin = pin;
    code = client_unary(session->client, BANYAN__PB__METHOD__METHOD_PREFIX_KEEP, &request.base, true, 0,
                        take_kept, &kept, error);
    if (code == BANYAN_OK && out)
        *out = kept;
    return code;
}

// ---- what is kept -------------------------------------------------------------------------------

struct listing {
    banyan_prefix_list list;
    uint64_t after;
    bool more;
};

static banyan_code take_page(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct listing *listing = arg;
    const Banyan__Pb__PrefixListReply *reply = (const Banyan__Pb__PrefixListReply *)body;
    banyan_prefix_list *list = &listing->list;
    listing->more = reply->next != 0 && reply->next != listing->after;
    listing->after = reply->next;
    list->kept = reply->kept;
    list->bytes = reply->bytes;
    list->limit_bytes = reply->limit_bytes;
    if (!reply->n_prefixes)
        return BANYAN_OK;
    banyan_prefix_info *grown = realloc(list->prefixes, (list->n + reply->n_prefixes) * sizeof *grown);
    if (!grown)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    list->prefixes = grown;
    for (size_t i = 0; i < reply->n_prefixes; i++) {
        const Banyan__Pb__PrefixInfo *from = reply->prefixes[i];
        banyan_prefix_info *to = &list->prefixes[list->n++];
        *to = (banyan_prefix_info){.session = from->session,
                                   .length = from->length,
                                   .bytes = from->bytes,
                                   .hits = from->hits,
                                   .idle_ns = from->idle_ns,
                                   .ttl_ns = from->ttl_ns,
                                   .hash = from->hash,
                                   .pinned = from->pinned};
        client_copy_text(to->tenant, sizeof to->tenant, from->tenant);
    }
    return BANYAN_OK;
}

banyan_code banyan_prefix_get_list(banyan_client *client, banyan_prefix_list *out, banyan_error *error)
{
    struct listing listing = {0};
    banyan_code code;
    if (!client || !out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    do {
        Banyan__Pb__PrefixListRequest request = BANYAN__PB__PREFIX_LIST_REQUEST__INIT;
        request.after = listing.after;
        code = client_unary(client, BANYAN__PB__METHOD__METHOD_PREFIX_LIST, &request.base, true, 0, take_page,
                            &listing, error);
    } while (code == BANYAN_OK && listing.more);
    if (code == BANYAN_OK)
        *out = listing.list;
    else
        banyan_prefix_list_free(&listing.list);
    return code;
}

void banyan_prefix_list_free(banyan_prefix_list *list)
{
    if (!list)
        return;
    free(list->prefixes);
    *list = (banyan_prefix_list){0};
}

static banyan_code take_dropped(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    const Banyan__Pb__PrefixDropReply *reply = (const Banyan__Pb__PrefixDropReply *)body;
    uint64_t *numbers = arg;
    (void)error;
    numbers[0] = reply->sessions;
    numbers[1] = reply->bytes;
    return BANYAN_OK;
}

banyan_code banyan_prefix_drop(banyan_client *client, uint64_t session, uint64_t *sessions, uint64_t *bytes,
                               banyan_error *error)
{
    if (!client)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "the client is NULL");
    Banyan__Pb__PrefixDropRequest request = BANYAN__PB__PREFIX_DROP_REQUEST__INIT;
    uint64_t numbers[2] = {0, 0};
    request.session = session;
    banyan_code code = client_unary(client, BANYAN__PB__METHOD__METHOD_PREFIX_DROP, &request.base, true, 0,
                                    take_dropped, numbers, error);
    if (code == BANYAN_OK && sessions)
        *sessions = numbers[0];
    if (code == BANYAN_OK && bytes)
        *bytes = numbers[1];
    return code;
}
