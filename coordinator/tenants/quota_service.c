// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tenants/quota_service.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/store/store.h"

struct filled { // of one tenant, in a reply
    Banyan__Pb__TenantQuotas m;
    Banyan__Pb__QuotaUse uses[COORDINATOR_QUOTAS], *list[COORDINATOR_QUOTAS];
};

static void fill(struct filled *out, struct coordinator_quotas *quotas,
                 const struct coordinator_tenant *tenant, uint64_t now_ns)
{
    const struct coordinator_use *use = coordinator_use_of(quotas, tenant->id);
    out->m = (Banyan__Pb__TenantQuotas)BANYAN__PB__TENANT_QUOTAS__INIT;
    out->m.tenant = (char *)tenant->name;
    out->m.n_quotas = COORDINATOR_QUOTAS;
    out->m.quotas = out->list;
    for (int i = 0; i < COORDINATOR_QUOTAS; i++) {
        out->uses[i] = (Banyan__Pb__QuotaUse)BANYAN__PB__QUOTA_USE__INIT;
        out->uses[i].name = (char *)coordinator_quota_names[i];
        out->uses[i].max = use->quota.max[i];
        out->uses[i].used = coordinator_quota_used(use, (enum coordinator_quota_kind)i, now_ns);
        out->uses[i].refused = use->refused[i];
        out->list[i] = &out->uses[i];
    }
}

static const struct coordinator_tenant *tenant_wanted(const struct coordinator_quotas *quotas,
                                                      struct proto_request *request, const char *name)
{
    const struct proto_identity *who = proto_request_identity(request);
    const struct coordinator_tenant *tenant = name[0] ? coordinator_tenant_named(quotas->tenants, name)
                                                      : coordinator_tenant_of(quotas->tenants, who->tenant);
    struct proto_status status;
    if (tenant && (who->access >= PROTO_ACCESS_OPERATOR || tenant->id == who->tenant))
        return tenant;
    proto_status_set(&status, COMMON_NOT_FOUND, "",
                     "there is no tenant named %.64s: its first token creates it (banyanctl token create)",
                     name);
    proto_request_fail_status(request, &status);
    return NULL;
}

// ---- set ----------------------------------------------------------------------------------------

struct setting {
    struct coordinator_quotas *quotas;
    struct proto_request *request;
    uint32_t tenant;
    bool named[COORDINATOR_QUOTAS];
    uint64_t max[COORDINATOR_QUOTAS];
};

static enum common_code take_request(struct setting *set, const Banyan__Pb__QuotaSetRequest *m,
                                     struct proto_status *status)
{
    enum coordinator_quota_kind kind;
    if (!m->n_quotas)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, "", "no quota is named: nothing to set");
    for (size_t i = 0; i < m->n_quotas; i++) {
        const Banyan__Pb__QuotaUse *q = m->quotas[i];
        if (!coordinator_quota_parse(q->name, &kind))
            return proto_status_set(status, COMMON_INVALID_ARGUMENT, "",
                                    "'%.40s' is not a quota: use bytes, sessions, steps_per_s, "
                                    "steps_in_flight, connections or watches",
                                    q->name);
        if (q->max > (kind == COORDINATOR_QUOTA_STEPS_PER_S ? COORDINATOR_RATE_MOST : INT64_MAX))
            return proto_status_set(status, COMMON_INVALID_ARGUMENT, "",
                                    "a quota %s of %" PRIu64 " is too large", q->name, q->max);
        set->named[kind] = true;
        set->max[kind] = q->max;
    }
    return COMMON_OK;
}

static void stored(void *arg, enum common_code code, const char *text)
{
    struct setting *set = arg;
    struct coordinator_use *use = coordinator_use_of(set->quotas, set->tenant);
    uint64_t now_ns = common_clock_ns();
    if (code != COMMON_OK) {
        proto_request_fail(set->request, code, text, NULL, 0);
        free(set);
        return;
    }
    for (int i = 0; i < COORDINATOR_QUOTAS; i++) {
        if (!set->named[i])
            continue;
        coordinator_quota_set(use, (enum coordinator_quota_kind)i, set->max[i], now_ns);
        common_log_info("a quota was set tenant=%s quota=%s max=%" PRIu64 " by=%s",
                        coordinator_tenant_name(set->quotas->tenants, set->tenant),
                        coordinator_quota_names[i], set->max[i], proto_request_identity(set->request)->name);
    }
    struct filled filled;
    Banyan__Pb__QuotaSetReply m = BANYAN__PB__QUOTA_SET_REPLY__INIT;
    fill(&filled, set->quotas, coordinator_tenant_of(set->quotas->tenants, set->tenant), now_ns);
    m.now = &filled.m;
    proto_request_reply(set->request, &m.base, NULL, 0, NULL, NULL);
    free(set);
}

void coordinator_handle_quota_set(struct coordinator_quotas *quotas, struct proto_request *request)
{
    const Banyan__Pb__QuotaSetRequest *m = (const void *)proto_request_message(request)->body;
    struct proto_status status;
    const struct coordinator_tenant *tenant = tenant_wanted(quotas, request, m->tenant);
    if (!tenant)
        return;
    struct setting *set = coordinator_alloc(sizeof(*set));
    *set = (struct setting){.quotas = quotas, .request = request, .tenant = tenant->id};
    if (take_request(set, m, &status) != COMMON_OK) {
        proto_request_fail_status(request, &status);
        free(set);
        return;
    }
    struct coordinator_batch *batch = coordinator_batch_new();
    for (int i = 0; i < COORDINATOR_QUOTAS; i++)
        if (set->named[i])
            coordinator_batch_quota(batch, tenant->id, coordinator_quota_names[i], set->max[i]);
    coordinator_store_submit(quotas->tenants->store, batch, stored, set);
}

// ---- show ---------------------------------------------------------------------------------------

void coordinator_handle_quota_show(struct coordinator_quotas *quotas, struct proto_request *request)
{
    const Banyan__Pb__QuotaShowRequest *m = (const void *)proto_request_message(request)->body;
    const struct coordinator_tenants *tenants = quotas->tenants;
    bool all = !m->tenant[0] && proto_request_identity(request)->access >= PROTO_ACCESS_OPERATOR;
    const struct coordinator_tenant *one = all ? NULL : tenant_wanted(quotas, request, m->tenant);
    if (!all && !one)
        return;
    struct filled *filled = coordinator_alloc(PROTO_QUOTA_TENANTS_MAX * sizeof(*filled));
    Banyan__Pb__TenantQuotas *list[PROTO_QUOTA_TENANTS_MAX];
    Banyan__Pb__QuotaShowReply reply = BANYAN__PB__QUOTA_SHOW_REPLY__INIT;
    uint64_t now_ns = common_clock_ns();
    for (uint32_t i = all ? m->after : 0; all ? i < tenants->n : i < 1; i++) {
        if (reply.n_tenants == PROTO_QUOTA_TENANTS_MAX) {
            reply.next = i;
            break;
        }
        struct filled *at = &filled[reply.n_tenants];
        fill(at, quotas, all ? &tenants->all[i] : one, now_ns);
        list[reply.n_tenants++] = &at->m;
    }
    reply.tenants = list;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
    free(filled);
}
