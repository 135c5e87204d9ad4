// SPDX-License-Identifier: Apache-2.0
#include "coordinator/admission.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/clock.h"
#include "common/http/http.h"
#include "common/log/log.h"
#include "common/secure/secret.h"
#include "coordinator/cluster/hide.h"
#include "coordinator/state.h"
#include "coordinator/tenants/access.h"
#include "proto/rpc/status.h"

#define LOOK_EVERY_NS COMMON_NS_PER_S
#define WRITE_EVERY_S 600 // when a token was used last is known to so many seconds

// Identities without a token of the table, of links that are closed when there is one.
#define ANYBODY UINT64_MAX

static uint64_t now_s(void)
{
    return common_clock_wall_ns() / COMMON_NS_PER_S;
}

bool coordinator_wants_token(const struct coordinator *c)
{
    return c->core.options.token || c->tenants.tokens.n || !c->door_open;
}

static bool is_file_token(const struct coordinator *c, const void *credentials, size_t len)
{
    const char *token = c->core.options.token;
    return token && len == strlen(token) && common_bytes_equal(credentials, token, len);
}

bool coordinator_admit(void *arg, const void *credentials, size_t len, const char *peer,
                       struct proto_identity *out)
{
    struct coordinator *c = arg;
    (void)peer;
    if (is_file_token(c, credentials, len)) {
        *out = proto_identity_admin;
        return true;
    }
    struct coordinator_token *token =
        coordinator_token_presented(&c->tenants.tokens, credentials, len, now_s());
    if (token) {
        token->row.used_s = now_s();
        *out = (struct proto_identity){.tenant = token->row.tenant,
                                       .access = (enum proto_access)token->row.access,
                                       .token = token->row.id};
        memcpy(out->name, token->row.name, sizeof(out->name));
        return true;
    }
    if (coordinator_wants_token(c))
        return false;
    *out = proto_identity_admin;
    out->token = ANYBODY;
    return true;
}

const char *coordinator_unadmitted(void *arg, const void *credentials, size_t len)
{
    const struct coordinator *c = arg;
    bool expired = coordinator_token_presented(&c->tenants.tokens, credentials, len, 0) != NULL;
    return expired ? "the client token has expired" : NULL;
}

bool coordinator_admit_http(struct coordinator *c, const struct common_http_request *request,
                            struct proto_identity *out)
{
    const char *shown = request->authorization;
    *out = proto_identity_admin;
    if (!coordinator_wants_token(c))
        return true;
    *out = (struct proto_identity){0};
    if (!shown || !shown[0])
        return true;
    if (strncasecmp(shown, "Bearer ", 7) == 0 &&
        coordinator_admit(c, shown + 7, strlen(shown + 7), "HTTP", out))
        return true;
    char peer[96];
    snprintf(peer, sizeof(peer), "%s over HTTP", request->peer);
    proto_server_refuses(c->server, PROTO_REFUSED_TOKEN, peer,
                         "its client token is wrong, expired or revoked");
    return false;
}

void coordinator_wording(void *arg, const struct proto_request *request, char *text, size_t bytes,
                         Banyan__Pb__Status *status)
{
    (void)arg;
    if (proto_request_is_daemon(request))
        return;
    bool shown = coordinator_shows_workers(proto_request_identity(request));
    for (size_t i = 0; i < status->n_details; i++) {
        Banyan__Pb__Detail *detail = status->details[i];
        if (shown)
            coordinator_name_workers(text, bytes, (const char *const *)detail->workers, detail->n_workers);
        else
            detail->n_workers = 0;
    }
}

bool coordinator_may(struct coordinator *c, struct proto_request *request)
{
    struct common_error err;
    if (coordinator_access_permits(request, &err) == COMMON_OK)
        return true;
    proto_server_refuses(c->server, PROTO_REFUSED_ROLE, proto_request_peer(request), err.message);
    proto_request_fail_why(request, COMMON_PERMISSION_DENIED, PROTO_REASON_ACCESS, err.message);
    return false;
}

// ---- as time goes by ----------------------------------------------------------------------------

void coordinator_admission_tick(struct coordinator *c, uint64_t now_ns)
{
    struct coordinator_batch *batch = NULL;
    uint64_t now = now_s();
    if (!c->tenants.tokens.n || now_ns - c->tokens_looked_ns < LOOK_EVERY_NS)
        return;
    c->tokens_looked_ns = now_ns;
    for (struct coordinator_token *t = NULL; (t = coordinator_token_next(&c->tenants.tokens, t));) {
        if (t->row.expires_s && now >= t->row.expires_s && !t->expired) {
            t->expired = true;
            proto_server_evict(c->server, t->row.id);
            common_log_info("a token has expired token=%s", t->row.name);
        }
        if (t->ready && t->row.used_s >= t->written_s + WRITE_EVERY_S) {
            batch = batch ? batch : coordinator_batch_new();
            coordinator_batch_token_used(batch, t->row.id, t->row.used_s);
            t->written_s = t->row.used_s;
        }
    }
    if (batch)
        coordinator_store_submit(c->store, batch, NULL, NULL);
}

static void refuse(struct proto_request *request, enum common_code code, const char *text)
{
    bool token =
        code == COMMON_ALREADY_EXISTS || code == COMMON_NOT_FOUND || code == COMMON_FAILED_PRECONDITION;
    proto_request_fail_why(request, code, token ? PROTO_REASON_TOKEN : PROTO_REASON_NONE, text);
}

// ---- making -------------------------------------------------------------------------------------

struct making {
    struct coordinator *c;
    struct proto_request *request;
    uint64_t id, expires_s;
    char token[COORDINATOR_TOKEN_CHARS + 1];
};

static void made(void *arg, enum common_code code, const char *text)
{
    struct making *k = arg;
    struct coordinator_token *token = coordinator_token_of(&k->c->tenants.tokens, k->id);
    if (code != COMMON_OK || !token) {
        coordinator_tokens_remove(&k->c->tenants.tokens, k->id);
        proto_request_fail_why(k->request, code != COMMON_OK ? code : COMMON_ABORTED,
                               coordinator_store_reason(code),
                               code != COMMON_OK ? text : "the token was revoked while it was being created");
    } else {
        token->ready = true;
        common_log_info("a token was created token=%s access=%s tenant=%s", token->row.name,
                        proto_access_name((enum proto_access)token->row.access),
                        coordinator_tenant_name(&k->c->tenants, token->row.tenant));
        Banyan__Pb__TokenCreateReply m = BANYAN__PB__TOKEN_CREATE_REPLY__INIT;
        m.id = k->id;
        m.token = k->token;
        m.expires_s = k->expires_s;
        proto_request_reply(k->request, &m.base, NULL, 0, NULL, NULL);
        if (k->c->server) // from now on every client needs one
            proto_server_evict(k->c->server, ANYBODY);
    }
    explicit_bzero(k, sizeof(*k));
    free(k);
}

// Beside the token `but`. One that stays: until it is revoked.
static bool has_admin(const struct coordinator *c, uint64_t but, bool stays)
{
    const struct coordinator_token *t = NULL;
    while ((t = coordinator_token_next(&c->tenants.tokens, t)))
        if (t->row.id != but && t->ready && t->row.access == PROTO_ACCESS_ADMIN &&
            (!t->row.expires_s || (!stays && now_s() < t->row.expires_s)))
            return true;
    return c->core.options.token != NULL;
}

static enum common_code check_create(const struct coordinator *c, const Banyan__Pb__TokenCreateRequest *m,
                                     struct coordinator_token_row *row, struct common_error *err)
{
    enum proto_access access;
    const char *tenant = m->tenant[0] ? m->tenant : "default";
    if (!proto_tenant_name_ok(m->name) || !proto_tenant_name_ok(tenant))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "'%.80s' is not a valid %s name: use 1 to 64 of a-z 0-9 . _ -, beginning "
                                "with a letter or a digit",
                                proto_tenant_name_ok(m->name) ? tenant : m->name,
                                proto_tenant_name_ok(m->name) ? "tenant" : "token");
    if (!proto_access_parse(m->access, &access))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "'%.20s' is not an access level: use read-only, user, operator or admin",
                                m->access);
    if (m->life_s > INT64_MAX / 2)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "a token's lifetime must be less than 2^62 seconds");
    if (coordinator_token_named(&c->tenants.tokens, m->name))
        return common_error_set(err, COMMON_ALREADY_EXISTS,
                                "a token named %s exists: revoke it first, or choose another name", m->name);
    if (c->tenants.tokens.n >= COORDINATOR_TOKENS_MAX)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "the limit of %u tokens is reached: revoke some", COORDINATOR_TOKENS_MAX);
    if (access == PROTO_ACCESS_ADMIN && m->life_s && !has_admin(c, 0, true))
        return common_error_set(
            err, COMMON_FAILED_PRECONDITION,
            "every admin token would expire, and then no one could create another: create one without "
            "--expires first, or start the coordinator with --token-file");
    if (access != PROTO_ACCESS_ADMIN && !has_admin(c, 0, false))
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "the first token must be an admin's, or no one could create a second: create "
                                "one with --access admin, and use it to create this one");
    row->access = access;
    row->created_s = now_s();
    row->expires_s = m->life_s ? row->created_s + m->life_s : 0;
    snprintf(row->name, sizeof(row->name), "%s", m->name);
    return COMMON_OK;
}

void coordinator_handle_token_create(struct coordinator *c, struct proto_request *request)
{
    const Banyan__Pb__TokenCreateRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_token_row row = {0};
    struct common_error err;
    struct coordinator_batch *batch = NULL;
    struct coordinator_token *token = NULL;
    struct making *k = coordinator_alloc(sizeof(*k));
    *k = (struct making){.c = c, .request = request};
    enum common_code code = check_create(c, m, &row, &err);
    if (code == COMMON_OK && !coordinator_token_make(k->token, &row))
        code = common_error_set(&err, COMMON_UNAVAILABLE, "cannot get random bytes for a token");
    if (code == COMMON_OK) {
        batch = coordinator_batch_new();
        code = coordinator_tenant_make(&c->tenants, m->tenant[0] ? m->tenant : "default", batch, &row.tenant,
                                       &err);
    }
    if (code == COMMON_OK && !(token = coordinator_tokens_add(&c->tenants.tokens, &row)))
        code = common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a token");
    if (code != COMMON_OK) {
        coordinator_batch_free(batch);
        explicit_bzero(k, sizeof(*k));
        free(k);
        refuse(request, code, err.message);
        return;
    }
    token->ready = false;
    k->id = row.id;
    k->expires_s = row.expires_s;
    coordinator_batch_token(batch, &row);
    coordinator_store_submit(c->store, batch, made, k);
}

// ---- listing ------------------------------------------------------------------------------------

#define LIST_PAGE 256

void coordinator_handle_token_list(struct coordinator *c, struct proto_request *request)
{
    const Banyan__Pb__TokenListRequest *m = (const void *)proto_request_message(request)->body;
    const struct coordinator_token *page[LIST_PAGE];
    uint32_t n = 0, more = 0;
    for (const struct coordinator_token *t = NULL; (t = coordinator_token_next(&c->tenants.tokens, t));) {
        if (!t->ready || t->row.id <= m->after)
            continue;
        uint32_t at = n;
        while (at > 0 && page[at - 1]->row.id > t->row.id)
            at--;
        more += n == LIST_PAGE;
        if (at == LIST_PAGE)
            continue;
        memmove(&page[at + 1], &page[at], ((n < LIST_PAGE ? n : LIST_PAGE - 1) - at) * sizeof(page[0]));
        page[at] = t;
        n += n < LIST_PAGE;
    }
    Banyan__Pb__TokenInfo *infos = coordinator_alloc((n + 1) * sizeof(*infos)), *list[LIST_PAGE];
    for (uint32_t i = 0; i < n; i++) {
        const struct coordinator_token_row *row = &page[i]->row;
        infos[i] = (Banyan__Pb__TokenInfo)BANYAN__PB__TOKEN_INFO__INIT;
        infos[i].id = row->id;
        infos[i].name = (char *)row->name;
        infos[i].access = (char *)proto_access_name((enum proto_access)row->access);
        infos[i].tenant = (char *)coordinator_tenant_name(&c->tenants, row->tenant);
        infos[i].created_s = row->created_s;
        infos[i].expires_s = row->expires_s;
        infos[i].used_s = row->used_s;
        list[i] = &infos[i];
    }
    Banyan__Pb__TokenListReply reply = BANYAN__PB__TOKEN_LIST_REPLY__INIT;
    reply.n_tokens = n;
    reply.tokens = list;
    reply.next = more ? page[n - 1]->row.id : 0;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
    free(infos);
}

// ---- revoking -----------------------------------------------------------------------------------

struct revoking {
    struct coordinator *c;
    struct proto_request *request;
    uint64_t id;
};

static void revoked(void *arg, enum common_code code, const char *text)
{
    struct revoking *k = arg;
    struct coordinator *c = k->c;
    struct coordinator_token *token = coordinator_token_of(&c->tenants.tokens, k->id);
    if (code != COMMON_OK) {
        if (token) // it is as good as before
            token->ready = true;
        proto_request_fail_why(k->request, code, coordinator_store_reason(code), text);
    } else {
        if (token)
            common_log_info("a token was revoked token=%s", token->row.name);
        coordinator_tokens_remove(&c->tenants.tokens, k->id);
        Banyan__Pb__TokenRevokeReply m = BANYAN__PB__TOKEN_REVOKE_REPLY__INIT;
        m.id = k->id;
        proto_request_reply(k->request, &m.base, NULL, 0, NULL, NULL);
        if (c->server)
            proto_server_evict(c->server, k->id);
    }
    free(k);
}

void coordinator_handle_token_revoke(struct coordinator *c, struct proto_request *request)
{
    const Banyan__Pb__TokenRevokeRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_token *token = m->id ? coordinator_token_of(&c->tenants.tokens, m->id)
                                            : coordinator_token_named(&c->tenants.tokens, m->name);
    if (!token || !token->ready) {
        refuse(request, COMMON_NOT_FOUND, "there is no such token: it may have been revoked");
        return;
    }
    bool last = !has_admin(c, token->row.id, false), last_that_stays = !has_admin(c, token->row.id, true);
    if (token->row.access == PROTO_ACCESS_ADMIN && (last || (last_that_stays && !token->row.expires_s))) {
        refuse(request, COMMON_FAILED_PRECONDITION,
               last ? "this is the last admin token: create another one first, or no one could create, list "
                      "or revoke tokens"
                    : "all other admin tokens expire: create one that does not first, or in the end no one "
                      "could create, list or revoke tokens");
        return;
    }
    struct revoking *k = coordinator_alloc(sizeof(*k));
    *k = (struct revoking){.c = c, .request = request, .id = token->row.id};
    // From now on it admits no one; connections with it are closed once the store has this.
    token->ready = false;
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_token_drop(batch, token->row.id);
    coordinator_store_submit(c->store, batch, revoked, k);
}
