// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tenants/quota_metrics.h"

#include "common/base/clock.h"
#include "common/metrics/metrics.h"

struct sums { // of one label
    uint64_t used[COORDINATOR_QUOTAS], max[COORDINATOR_QUOTAS], refused[COORDINATOR_QUOTAS], steps;
};

static void add(struct sums *sums, const struct coordinator_use *use, uint64_t now_ns)
{
    for (int i = 0; i < COORDINATOR_QUOTAS; i++) {
        sums->used[i] += coordinator_quota_used(use, (enum coordinator_quota_kind)i, now_ns);
        sums->max[i] += use->quota.max[i];
        sums->refused[i] += use->refused[i];
    }
    sums->steps += use->steps;
}

static bool put(struct common_metrics *table, const char *tenant, const struct sums *sums)
{
    const struct {
        struct common_metric_spec spec;
        const uint64_t *numbers;
    } families[] = {
        {{.kind = COMMON_METRIC_GAUGE, .name = "banyan_quota_used", .help = "What a tenant uses of a quota."},
         sums->used},
        {{.kind = COMMON_METRIC_GAUGE,
          .name = "banyan_quota_max",
          .help = "How much a tenant may use; 0: no limit."},
         sums->max},
        {{.kind = COMMON_METRIC_COUNTER,
          .name = "banyan_quota_refused_total",
          .help = "Requests refused because of a quota."},
         sums->refused},
    };
    for (size_t f = 0; f < sizeof(families) / sizeof(*families); f++) {
        for (int i = 0; i < COORDINATOR_QUOTAS; i++) {
            struct common_metric_spec spec = families[f].spec;
            spec.label = "tenant", spec.value = tenant;
            spec.label2 = "quota", spec.value2 = coordinator_quota_names[i];
            if (!common_metrics_put(table, &spec, (double)families[f].numbers[i]))
                return false;
        }
    }
    return common_metrics_put(table,
                              &(struct common_metric_spec){.kind = COMMON_METRIC_COUNTER,
                                                           .name = "banyan_tenant_steps_total",
                                                           .help =
                                                               "Items of attend calls that were accepted.",
                                                           .label = "tenant",
                                                           .value = tenant},
                              (double)sums->steps);
}

bool coordinator_quota_metrics_put(const struct coordinator_quotas *quotas, const struct proto_identity *who,
                                   struct common_metrics *table)
{
    bool all = who->access >= PROTO_ACCESS_OPERATOR;
    if (who->access == PROTO_ACCESS_NONE)
        return true;
    const struct coordinator_tenants *tenants = quotas->tenants;
    uint64_t now_ns = common_clock_ns();
    struct sums other = {0};
    for (uint32_t i = 0; i < tenants->n; i++) {
        struct sums sums = {0};
        const struct coordinator_tenant *tenant = &tenants->all[i];
        if (!all && tenant->id != who->tenant)
            continue;
        if (tenant->id < quotas->n && quotas->all[tenant->id])
            add(!all || i < COORDINATOR_QUOTA_LABELS ? &sums : &other, quotas->all[tenant->id], now_ns);
        if ((!all || i < COORDINATOR_QUOTA_LABELS) && !put(table, tenant->name, &sums))
            return false;
    }
    return !all || tenants->n <= COORDINATOR_QUOTA_LABELS || put(table, "other", &other);
}
