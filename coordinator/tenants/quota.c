// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tenants/quota.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/store/store.h"

const char *const coordinator_quota_names[COORDINATOR_QUOTAS] = {
    [COORDINATOR_QUOTA_BYTES] = "bytes",
    [COORDINATOR_QUOTA_SESSIONS] = "sessions",
    [COORDINATOR_QUOTA_STEPS_PER_S] = "steps_per_s",
    [COORDINATOR_QUOTA_STEPS_IN_FLIGHT] = "steps_in_flight",
    [COORDINATOR_QUOTA_CONNECTIONS] = "connections",
    [COORDINATOR_QUOTA_WATCHES] = "watches",
};

static const struct words {
    const char *what, *less, *option; // of a refusal: what is limited, what the client can do, what raises it
} words[COORDINATOR_QUOTAS] = {
    [COORDINATOR_QUOTA_BYTES] = {"bytes of K and V", "delete or truncate sessions", "--memory"},
    [COORDINATOR_QUOTA_SESSIONS] = {"sessions", "delete some", "--sessions"},
    [COORDINATOR_QUOTA_STEPS_PER_S] = {"steps a second", "", "--steps-per-second"},
    [COORDINATOR_QUOTA_STEPS_IN_FLIGHT] = {"steps in flight", "wait until some are answered",
                                           "--steps-in-flight"},
    [COORDINATOR_QUOTA_CONNECTIONS] = {"connections", "close some", "--connections"},
    [COORDINATOR_QUOTA_WATCHES] = {"watches", "wait until some have ended", "--watches"},
};

bool coordinator_quota_parse(const char *name, enum coordinator_quota_kind *out)
{
    for (int i = 0; i < COORDINATOR_QUOTAS; i++) {
        if (strcmp(coordinator_quota_names[i], name))
            continue;
        *out = (enum coordinator_quota_kind)i;
        return true;
    }
    return false;
}

void coordinator_quotas_init(struct coordinator_quotas *quotas, struct coordinator_tenants *tenants)
{
    *quotas = (struct coordinator_quotas){.tenants = tenants};
}

void coordinator_quotas_fini(struct coordinator_quotas *quotas)
{
    for (uint32_t i = 0; i < quotas->n; i++)
        free(quotas->all[i]);
    free(quotas->all);
    *quotas = (struct coordinator_quotas){0};
}

struct coordinator_use *coordinator_use_of(struct coordinator_quotas *quotas, uint32_t tenant)
{
    uint32_t at =
        tenant < COORDINATOR_TENANTS_MAX ? tenant : COORDINATOR_TENANTS_MAX; // there are none beyond
    if (at >= quotas->n) {
        quotas->all = realloc(quotas->all, (at + 1) * sizeof(struct coordinator_use *));
        if (!quotas->all)
            abort();
        while (quotas->n <= at)
            quotas->all[quotas->n++] = NULL;
    }
    if (!quotas->all[at]) {
        quotas->all[at] = coordinator_alloc(sizeof(struct coordinator_use));
        quotas->all[at]->quotas = quotas;
        quotas->all[at]->tenant = tenant;
    }
    return quotas->all[at];
}

static bool load_quota(void *arg, uint32_t tenant, const char *name, uint64_t max)
{
    enum coordinator_quota_kind kind;
    bool known = coordinator_quota_parse(name, &kind);
    if (known && (kind != COORDINATOR_QUOTA_STEPS_PER_S || max <= COORDINATOR_RATE_MOST))
        coordinator_quota_set(coordinator_use_of(arg, tenant), kind, max, common_clock_ns());
    return true; // one that a newer coordinator has set is not ours to keep
}

void coordinator_quotas_reader(struct coordinator_quotas *quotas, struct coordinator_store_reader *reader)
{
    reader->quotas = quotas;
    reader->quota = load_quota;
}

void coordinator_quota_set(struct coordinator_use *use, enum coordinator_quota_kind kind, uint64_t max,
                           uint64_t now_ns)
{
    use->quota.max[kind] = max;
    if (kind == COORDINATOR_QUOTA_STEPS_PER_S)
        coordinator_rate_set(&use->rate, max, now_ns);
}

static enum common_code refuse(struct coordinator_use *use, enum coordinator_quota_kind kind, uint64_t wanted,
                               uint64_t wait_ns, struct proto_status *status)
{
    const char *tenant = coordinator_tenant_name(use->quotas->tenants, use->tenant);
    const struct words *w = &words[kind];
    char used[96], less[64];
    use->refused[kind]++;
    snprintf(used, sizeof(used), "%" PRIu64 " are used and %" PRIu64 " more were asked for", use->used[kind],
             wanted);
    snprintf(less, sizeof(less), "%s", w->less);
    if (kind == COORDINATOR_QUOTA_STEPS_PER_S) {
        snprintf(used, sizeof(used), "%" PRIu64 " more were asked for", wanted);
        snprintf(less, sizeof(less), "try again in %" PRIu64 " ms",
                 (wait_ns + COMMON_NS_PER_MS - 1) / COMMON_NS_PER_MS);
    }
    proto_status_set(status, COMMON_RESOURCE_EXHAUSTED, "QUOTA",
                     "the quota %s of tenant %s, %" PRIu64
                     " %s, is reached (%s): %s, or ask an admin for more "
                     "(banyanctl quota set %s %s N)",
                     coordinator_quota_names[kind], tenant, use->quota.max[kind], w->what, used, less, tenant,
                     w->option);
    status->retry_ns = wait_ns;
    return status->code;
}

bool coordinator_quota_fits(const struct coordinator_use *use, enum coordinator_quota_kind kind, uint64_t n)
{
    uint64_t max = use->quota.max[kind], used = use->used[kind];
    return !max || (used <= max && n <= max - used);
}

enum common_code coordinator_quota_take(struct coordinator_use *use, enum coordinator_quota_kind kind,
                                        uint64_t n, struct proto_status *status)
{
    assert(kind != COORDINATOR_QUOTA_STEPS_PER_S);
    if (!coordinator_quota_fits(use, kind, n))
        return refuse(use, kind, n, 0, status);
    use->used[kind] += n;
    return COMMON_OK;
}

enum common_code coordinator_quota_take_steps(struct coordinator_use *use, uint64_t n, uint64_t now_ns,
                                              struct proto_status *status)
{
    uint64_t wait_ns;
    if (!coordinator_quota_fits(use, COORDINATOR_QUOTA_STEPS_IN_FLIGHT, n))
        return refuse(use, COORDINATOR_QUOTA_STEPS_IN_FLIGHT, n, 0, status);
    if (!coordinator_rate_take(&use->rate, n, now_ns, &wait_ns))
        return refuse(use, COORDINATOR_QUOTA_STEPS_PER_S, n, wait_ns, status);
    use->used[COORDINATOR_QUOTA_STEPS_IN_FLIGHT] += n;
    use->steps += n;
    return COMMON_OK;
}

void coordinator_quota_give(struct coordinator_use *use, enum coordinator_quota_kind kind, uint64_t n)
{
    assert(n <= use->used[kind]);
    use->used[kind] -= n;
}

uint64_t coordinator_quota_used(const struct coordinator_use *use, enum coordinator_quota_kind kind,
                                uint64_t now_ns)
{
    return kind == COORDINATOR_QUOTA_STEPS_PER_S ? coordinator_rate_used(&use->rate, now_ns)
                                                 : use->used[kind];
}
