// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tenants/tenants.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/store/store.h"

static bool add(struct coordinator_tenants *tenants, uint32_t id, const char *name)
{
    struct coordinator_tenant *more = realloc(tenants->all, (tenants->n + 1) * sizeof(*more));
    if (!more)
        return false;
    tenants->all = more;
    more[tenants->n] = (struct coordinator_tenant){.id = id};
    snprintf(more[tenants->n++].name, sizeof(more->name), "%s", name);
    return true;
}

void coordinator_tenants_init(struct coordinator_tenants *tenants, struct coordinator_core *core)
{
    tenants->core = core;
    if (!add(tenants, PROTO_TENANT_DEFAULT, "default"))
        abort();
    coordinator_tokens_init(&tenants->tokens);
}

void coordinator_tenants_fini(struct coordinator_tenants *tenants)
{
    coordinator_tokens_fini(&tenants->tokens);
    free(tenants->all);
    tenants->all = NULL;
    tenants->n = 0;
}

static bool load_tenant(void *arg, uint32_t id, const char *name)
{
    struct coordinator_tenants *tenants = arg; // ascending ids, the default one is not among them
    return id > tenants->all[tenants->n - 1].id && add(tenants, id, name);
}

static bool load_token(void *arg, const struct coordinator_token_row *row)
{
    struct coordinator_tenants *tenants = arg;
    return coordinator_tokens_add(&tenants->tokens, row) != NULL;
}

void coordinator_tenants_reader(struct coordinator_tenants *tenants, struct coordinator_store_reader *reader)
{
    reader->tenants = tenants;
    reader->tenant = load_tenant;
    reader->token = load_token;
}

const struct coordinator_tenant *coordinator_tenant_of(const struct coordinator_tenants *tenants, uint32_t id)
{
    uint32_t lo = 0, hi = tenants->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (tenants->all[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < tenants->n && tenants->all[lo].id == id ? &tenants->all[lo] : NULL;
}

const struct coordinator_tenant *coordinator_tenant_named(const struct coordinator_tenants *tenants,
                                                          const char *name)
{
    for (uint32_t i = 0; i < tenants->n; i++)
        if (!strcmp(tenants->all[i].name, name))
            return &tenants->all[i];
    return NULL;
}

const char *coordinator_tenant_name(const struct coordinator_tenants *tenants, uint32_t id)
{
    const struct coordinator_tenant *tenant = coordinator_tenant_of(tenants, id);
    return tenant ? tenant->name : "";
}

// One that the store refuses stays in the table until the end of this life: nothing belongs to it.
enum common_code coordinator_tenant_make(struct coordinator_tenants *tenants, const char *name,
                                         struct coordinator_batch *batch, uint32_t *id,
                                         struct common_error *err)
{
    const struct coordinator_tenant *known = coordinator_tenant_named(tenants, name);
    uint32_t made = known ? known->id : tenants->all[tenants->n - 1].id + 1;
    if (!known && tenants->n == COORDINATOR_TENANTS_MAX)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the limit of %u tenants is reached",
                                COORDINATOR_TENANTS_MAX);
    if (!known && !add(tenants, made, name))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a tenant");
    if (made != PROTO_TENANT_DEFAULT)
        coordinator_batch_tenant(batch, made, name); // again where the store refused it before
    *id = made;
    return COMMON_OK;
}
