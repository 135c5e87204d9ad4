// SPDX-License-Identifier: Apache-2.0
// Tokens: made, listed, revoked. For admins.
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"

struct token_made {
    char *out;
    uint64_t *id;
};

static banyan_code take_made(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    const struct token_made *made = arg;
    const Banyan__Pb__TokenCreateReply *reply = (const Banyan__Pb__TokenCreateReply *)body;
    if (strlen(reply->token) > 64)
        return client_error_set(error, BANYAN_INTERNAL, "the coordinator's token is too long");
    client_copy_text(made->out, 65, reply->token);
    if (made->id)
        *made->id = reply->id;
    return BANYAN_OK;
}

banyan_code banyan_token_create(banyan_client *client, const char *name, const char *access,
                                const char *tenant, uint64_t life_s, char out[65], uint64_t *id,
                                banyan_error *error)
{
    if (!client || !name || !access || !out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    struct token_made made = {.out = out, .id = id};
    Banyan__Pb__TokenCreateRequest request = BANYAN__PB__TOKEN_CREATE_REQUEST__INIT;
    request.name = (char *)name;
    request.access = (char *)access;
    request.tenant = (char *)(tenant ? tenant : "");
    request.life_s = life_s;
    return client_unary(client, BANYAN__PB__METHOD__METHOD_TOKEN_CREATE, &request.base, false, 0, take_made,
                        &made, error);
}

struct token_listing {
    banyan_token_list list;
    uint64_t next;
};

static banyan_code take_page(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct token_listing *listing = arg;
    const Banyan__Pb__TokenListReply *reply = (const Banyan__Pb__TokenListReply *)body;
    banyan_token_list *list = &listing->list;
    listing->next = reply->n_tokens ? reply->next : 0;
    if (reply->n_tokens == 0)
        return BANYAN_OK;
    banyan_token_info *grown = realloc(list->tokens, (list->n + reply->n_tokens) * sizeof *grown);
    if (!grown)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    list->tokens = grown;
    for (size_t i = 0; i < reply->n_tokens; i++) {
        const Banyan__Pb__TokenInfo *from = reply->tokens[i];
        banyan_token_info *to = &list->tokens[list->n++];
        *to = (banyan_token_info){.id = from->id,
                                  .created_s = from->created_s,
                                  .expires_s = from->expires_s,
                                  .used_s = from->used_s};
        client_copy_text(to->name, sizeof to->name, from->name);
        client_copy_text(to->tenant, sizeof to->tenant, from->tenant);
        client_copy_text(to->access, sizeof to->access, from->access);
    }
    return BANYAN_OK;
}

banyan_code banyan_token_get_list(banyan_client *client, banyan_token_list *out, banyan_error *error)
{
    struct token_listing listing = {0};
    banyan_code code = BANYAN_OK;
    if (!client || !out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    do {
        Banyan__Pb__TokenListRequest request = BANYAN__PB__TOKEN_LIST_REQUEST__INIT;
        request.after = listing.next;
        code = client_unary(client, BANYAN__PB__METHOD__METHOD_TOKEN_LIST, &request.base, true, 0, take_page,
                            &listing, error);
    } while (code == BANYAN_OK && listing.next != 0);
    if (code == BANYAN_OK)
        *out = listing.list;
    else
        banyan_token_list_free(&listing.list);
    return code;
}

void banyan_token_list_free(banyan_token_list *list)
{
    if (!list)
        return;
    free(list->tokens);
    *list = (banyan_token_list){0};
}

banyan_code banyan_token_revoke(banyan_client *client, const char *name, uint64_t id, banyan_error *error)
{
    if (!client || (!name && !id))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    Banyan__Pb__TokenRevokeRequest request = BANYAN__PB__TOKEN_REVOKE_REQUEST__INIT;
    request.name = (char *)(name ? name : "");
    request.id = name ? 0 : id;
    return client_unary(client, BANYAN__PB__METHOD__METHOD_TOKEN_REVOKE, &request.base, false, 0, NULL, NULL,
                        error);
}
