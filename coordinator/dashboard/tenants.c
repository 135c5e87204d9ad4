// SPDX-License-Identifier: Apache-2.0
// The tenants and their quotas: what QuotaShow says to operators and admins, a page at a time. Never tokens.
#include <string.h>

#include "common/base/clock.h"
#include "common/http/http.h"
#include "coordinator/dashboard/ask.h"

#define PAGE 256 // tenants of one answer

static json_t *tenant_json(const struct coordinator_quotas *quotas, const struct coordinator_tenant *tenant,
                           uint64_t now_ns)
{
    static const struct coordinator_use nothing; // of a tenant that has used nothing, and has no quota
    const struct coordinator_use *use = tenant->id < quotas->n ? quotas->all[tenant->id] : NULL;
    json_t *list = json_object();
    for (int i = 0; i < COORDINATOR_QUOTAS; i++) {
        uint64_t used = use ? coordinator_quota_used(use, (enum coordinator_quota_kind)i, now_ns) : 0;
        json_object_set_new(list, coordinator_quota_names[i],
                            json_pack("{s:o, s:o, s:o}", "used", coordinator_dashboard_u64(used), "max",
                                      coordinator_dashboard_u64((use ? use : &nothing)->quota.max[i]),
                                      "refused",
                                      coordinator_dashboard_u64((use ? use : &nothing)->refused[i])));
    }
    return json_pack("{s:o, s:o, s:o}", "name", coordinator_dashboard_text(tenant->name), "steps",
                     coordinator_dashboard_u64((use ? use : &nothing)->steps), "quotas", list);
}

COORDINATOR_DASHBOARD_ASK(tenants)
{
    (void)id;
    const struct coordinator_tenants *tenants = &d->c->tenants;
    char text[COORDINATOR_LIST_TEXT + 1] = "";
    uint64_t limit = 0, offset = 0, matching = 0, now_ns = common_clock_ns();
    if (common_http_query(query, "q", text, sizeof(text)) == COMMON_HTTP_BAD)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "q takes at most %d bytes of text",
                                COORDINATOR_LIST_TEXT);
    enum common_code code = coordinator_dashboard_number(query, "limit", PAGE, 1, PAGE, &limit, err);
    if (code == COMMON_OK)
        code = coordinator_dashboard_number(query, "offset", 0, 0, COORDINATOR_TENANTS_MAX, &offset, err);
    if (code != COMMON_OK)
        return code;
    json_t *rows = json_array();
    for (uint32_t i = 0; i < tenants->n; i++) {
        const struct coordinator_tenant *tenant = &tenants->all[i];
        if (text[0] && !strcasestr(tenant->name, text))
            continue;
        if (matching >= offset && matching - offset < limit)
            json_array_append_new(rows, tenant_json(&d->c->quotas, tenant, now_ns));
        matching++;
    }
    *out = json_pack("{s:o, s:o, s:o, s:o}", "total", coordinator_dashboard_u64(tenants->n), "matching",
                     coordinator_dashboard_u64(matching), "offset", coordinator_dashboard_u64(offset),
                     "tenants", rows);
    return COMMON_OK;
}
