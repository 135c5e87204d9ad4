// SPDX-License-Identifier: Apache-2.0
// What tenants may have and have: quota set, quota show.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

#define UNSET UINT64_MAX

static struct {
    const char *name, *what;
    enum ctl_format format;
    uint64_t max;
} quotas[] = {
    {"bytes", "memory", CTL_BYTES, UNSET},
    {"sessions", "sessions", CTL_COUNT, UNSET},
    {"steps_per_s", "steps per second", CTL_COUNT, UNSET},
    {"steps_in_flight", "steps in flight", CTL_COUNT, UNSET},
    {"connections", "connections", CTL_COUNT, UNSET},
    {"watches", "watches", CTL_COUNT, UNSET},
};
#define QUOTAS (sizeof quotas / sizeof *quotas)

static const struct common_option set_options[] = {
    {"memory", 0, COMMON_OPTION_SIZE, &quotas[0].max, "SIZE",
     "K, V and tables of its sessions' chunks, all copies, such as 10G", 0, INT64_MAX},
    {"sessions", 0, COMMON_OPTION_U64, &quotas[1].max, "N", "sessions", 0, INT64_MAX},
    {"steps-per-second", 0, COMMON_OPTION_U64, &quotas[2].max, "N",
     "attention steps per second; a second's worth at once", 0, 1000000000},
    {"steps-in-flight", 0, COMMON_OPTION_U64, &quotas[3].max, "N", "unanswered steps", 0, INT64_MAX},
    {"connections", 0, COMMON_OPTION_U64, &quotas[4].max, "N", "connections of its clients", 0, INT64_MAX},
    {"watches", 0, COMMON_OPTION_U64, &quotas[5].max, "N", "calls waiting for steps or events", 0, INT64_MAX},
    {0},
};

static enum ctl_exit check_set(int n_args, char **args)
{
    (void)n_args;
    (void)args;
    for (size_t i = 0; i < QUOTAS; i++)
        if (quotas[i].max != UNSET)
            return CTL_OK;
    return ctl_say(CTL_USAGE, "nothing to set: give --memory, --sessions, --steps-per-second, "
                              "--steps-in-flight, --connections or --watches");
}

static const struct banyan_quota *quota_of(const banyan_tenant_quotas *of, const char *name)
{
    for (uint32_t i = 0; i < of->n; i++)
        if (!strcmp(of->quotas[i].name, name))
            return &of->quotas[i];
    return NULL;
}

static json_t *tenant_json(const banyan_tenant_quotas *of)
{
    json_t *all = json_object();
    for (uint32_t i = 0; i < of->n; i++)
        json_object_set_new(all, of->quotas[i].name,
                            json_pack("{s:o, s:o, s:o}", "used", ctl_json_u64(of->quotas[i].used), "max",
                                      ctl_json_u64(of->quotas[i].max), "refused",
                                      ctl_json_u64(of->quotas[i].refused)));
    return json_pack("{s:s, s:o}", "tenant", of->tenant, "quotas", all);
}

static const char *amount(enum ctl_format format, uint64_t n, char *out, size_t bytes)
{
    if (format == CTL_BYTES)
        return common_format_bytes(n, out, bytes);
    snprintf(out, bytes, "%" PRIu64, n);
    return out;
}

static void add_rows(json_t *rows, const banyan_tenant_quotas *of)
{
    for (size_t i = 0; i < QUOTAS; i++) {
        const banyan_quota *q = quota_of(of, quotas[i].name);
        char used[32], max[32] = "no limit", share[16] = "";
        if (!q)
            continue;
        if (q->max)
            snprintf(share, sizeof share, "%.0f%%", 100.0 * (double)q->used / (double)q->max);
        json_array_append_new(
            rows, json_pack("{s:s, s:s, s:s, s:s, s:s, s:o}", "tenant", of->tenant, "quota", quotas[i].what,
                            "used", amount(quotas[i].format, q->used, used, sizeof used), "max",
                            q->max ? amount(quotas[i].format, q->max, max, sizeof max) : max, "share", share,
                            "refused", ctl_json_u64(q->refused)));
    }
}

static void show(const struct ctl *ctl, const banyan_tenant_quotas *tenants, uint32_t n)
{
    static const struct ctl_column columns[] = {
        {"tenant", "TENANT", CTL_TEXT},
        {"quota", "QUOTA", CTL_TEXT},
        {"used", "USED", CTL_TEXT},
        {"max", "MAX", CTL_TEXT},
        {"share", "SHARE", CTL_TEXT},
        {"refused", "REFUSED", CTL_COUNT},
        {0},
    };
    json_t *rows = json_array();
    for (uint32_t i = 0; i < n; i++) {
        if (ctl->json)
            json_array_append_new(rows, tenant_json(&tenants[i]));
        else
            add_rows(rows, &tenants[i]);
    }
    ctl_print_rows(ctl, rows, columns);
}

static enum ctl_exit run_set(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_quota wanted[QUOTAS] = {0};
    banyan_tenant_quotas now;
    banyan_error error;
    uint32_t n = 0;
    for (size_t i = 0; i < QUOTAS; i++) {
        if (quotas[i].max == UNSET)
            continue;
        snprintf(wanted[n].name, sizeof wanted[n].name, "%s", quotas[i].name);
        wanted[n++].max = quotas[i].max;
    }
    if (banyan_quota_set(ctl->client, args[0], wanted, n, &now, &error) != BANYAN_OK)
        return ctl_fail(&error);
    show(ctl, &now, 1);
    return CTL_OK;
}

static enum ctl_exit run_show(struct ctl *ctl, int n_args, char **args)
{
    banyan_quota_list list;
    banyan_error error;
    if (banyan_quota_get_list(ctl->client, n_args > 0 ? args[0] : NULL, &list, &error) != BANYAN_OK)
        return ctl_fail(&error);
    show(ctl, list.tenants, list.n);
    banyan_quota_list_free(&list);
    return CTL_OK;
}

// What of each is used, in a line.
static enum ctl_exit run_tenants(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    banyan_quota_list list;
    banyan_error error;
    if (banyan_quota_get_list(ctl->client, NULL, &list, &error) != BANYAN_OK)
        return ctl_fail(&error);
    static const struct ctl_column columns[] = {
        {"tenant", "TENANT", CTL_TEXT},    {"sessions", "SESSIONS", CTL_COUNT},
        {"bytes", "BYTES", CTL_BYTES},     {"connections", "CONNECTIONS", CTL_COUNT},
        {"refused", "REFUSED", CTL_COUNT}, {0},
    };
    json_t *rows = json_array();
    for (uint32_t i = 0; i < list.n; i++) {
        const banyan_tenant_quotas *of = &list.tenants[i];
        json_t *row = json_pack("{s:s}", "tenant", of->tenant);
        uint64_t refused = 0;
        for (uint32_t k = 0; k < of->n; k++) {
            json_object_set_new(row, of->quotas[k].name, ctl_json_u64(of->quotas[k].used));
            refused += of->quotas[k].refused;
        }
        json_object_set_new(row, "refused", ctl_json_u64(refused));
        json_array_append_new(rows, row);
    }
    banyan_quota_list_free(&list);
    ctl_print_rows(ctl, rows, columns);
    return CTL_OK;
}

const struct ctl_command ctl_quota_commands[] = {
    {"tenant list", "", "list tenants and what they use",
     "Lists tenants: their sessions, the memory of these, their connections, and how often a quota has "
     "refused something.\n"
     "Operators and admins see all tenants, others their own. 'quota show' has the limits.",
     NULL, 0, 0, run_tenants, NULL},
    {"quota set", "TENANT", "set a tenant's quotas",
     "Sets the given quotas, at once and permanently; 0: no limit. Existing data stays even if it exceeds "
     "the\n"
     "quota; anything further is refused. For admins.",
     set_options, 1, 1, run_set, check_set},
    {"quota show", "[TENANT]", "show tenants' quotas and their use",
     "Shows, for each quota, what is in use, the limit, and how often it refused something since the "
     "coordinator's\n"
     "start. Operators and admins see all tenants, others their own.",
     NULL, 0, 1, run_show, NULL},
    {0},
};
