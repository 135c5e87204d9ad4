// SPDX-License-Identifier: Apache-2.0
// What tenants may have and have: set by admins, shown.
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"

static void take_tenant(const Banyan__Pb__TenantQuotas *from, banyan_tenant_quotas *to)
{
    *to = (banyan_tenant_quotas){0};
    client_copy_text(to->tenant, sizeof to->tenant, from->tenant);
    for (size_t i = 0; i < from->n_quotas && to->n < sizeof to->quotas / sizeof *to->quotas; i++) {
        banyan_quota *quota = &to->quotas[to->n++];
        client_copy_text(quota->name, sizeof quota->name, from->quotas[i]->name);
        quota->max = from->quotas[i]->max;
        quota->used = from->quotas[i]->used;
        quota->refused = from->quotas[i]->refused;
    }
}

static banyan_code take_set(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    const Banyan__Pb__QuotaSetReply *reply = (const Banyan__Pb__QuotaSetReply *)body;
    if (!reply->now)
        return client_error_set(error, BANYAN_INTERNAL, "the answer has no quotas");
    if (arg)
        take_tenant(reply->now, arg);
    return BANYAN_OK;
}

banyan_code banyan_quota_set(banyan_client *client, const char *tenant, const banyan_quota *quotas,
                             uint32_t n, banyan_tenant_quotas *out, banyan_error *error)
{
    Banyan__Pb__QuotaUse uses[PROTO_QUOTAS_MAX], *list[PROTO_QUOTAS_MAX];
    if (!client || !quotas)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    if (n < 1 || n > PROTO_QUOTAS_MAX)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "%u quotas: 1 to %u can be set at a time", n,
                                PROTO_QUOTAS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        uses[i] = (Banyan__Pb__QuotaUse)BANYAN__PB__QUOTA_USE__INIT;
        uses[i].name = (char *)quotas[i].name;
        uses[i].max = quotas[i].max;
        list[i] = &uses[i];
    }
    Banyan__Pb__QuotaSetRequest request = BANYAN__PB__QUOTA_SET_REQUEST__INIT;
    request.tenant = (char *)(tenant ? tenant : "");
    request.n_quotas = n;
    request.quotas = list;
    banyan_tenant_quotas now;
    banyan_code code = client_unary(client, BANYAN__PB__METHOD__METHOD_QUOTA_SET, &request.base, true, 0,
                                    take_set, &now, error);
    if (code == BANYAN_OK && out)
        *out = now;
    return code;
}

struct quota_listing {
    banyan_quota_list list;
    uint32_t after, next;
};

static banyan_code take_page(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct quota_listing *listing = arg;
    const Banyan__Pb__QuotaShowReply *reply = (const Banyan__Pb__QuotaShowReply *)body;
    banyan_quota_list *list = &listing->list;
    listing->next = reply->next > listing->after ? reply->next : 0;
    if (!reply->n_tenants)
        return BANYAN_OK;
    banyan_tenant_quotas *grown = realloc(list->tenants, (list->n + reply->n_tenants) * sizeof *grown);
    if (!grown)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    list->tenants = grown;
    for (size_t i = 0; i < reply->n_tenants; i++)
        take_tenant(reply->tenants[i], &list->tenants[list->n++]);
    return BANYAN_OK;
}

banyan_code banyan_quota_get_list(banyan_client *client, const char *tenant, banyan_quota_list *out,
                                  banyan_error *error)
{
    struct quota_listing listing = {0};
    banyan_code code = BANYAN_OK;
    if (!client || !out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    do {
        Banyan__Pb__QuotaShowRequest request = BANYAN__PB__QUOTA_SHOW_REQUEST__INIT;
        request.tenant = (char *)(tenant ? tenant : "");
        request.after = listing.after = listing.next;
        code = client_unary(client, BANYAN__PB__METHOD__METHOD_QUOTA_SHOW, &request.base, true, 0, take_page,
                            &listing, error);
    } while (code == BANYAN_OK && listing.next != 0);
    if (code == BANYAN_OK)
        *out = listing.list;
    else
        banyan_quota_list_free(&listing.list);
    return code;
}

void banyan_quota_list_free(banyan_quota_list *list)
{
    if (!list)
        return;
    free(list->tenants);
    *list = (banyan_quota_list){0};
}
