// SPDX-License-Identifier: Apache-2.0
#include "proto/rights/access.h"

#include <string.h>

const struct proto_identity proto_identity_admin = {.access = PROTO_ACCESS_ADMIN};

static const char *const names[PROTO_ACCESSES] = {
    [PROTO_ACCESS_NONE] = "none",   [PROTO_ACCESS_READ_ONLY] = "read-only",
    [PROTO_ACCESS_USER] = "user",   [PROTO_ACCESS_OPERATOR] = "operator",
    [PROTO_ACCESS_ADMIN] = "admin",
};

const char *proto_access_name(enum proto_access access)
{
    return (unsigned)access < PROTO_ACCESSES ? names[access] : "none";
}

bool proto_access_parse(const char *name, enum proto_access *out)
{
    for (int i = PROTO_ACCESS_READ_ONLY; i < PROTO_ACCESSES; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum proto_access)i;
            return true;
        }
    return false;
}

bool proto_tenant_name_ok(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > PROTO_TENANT_NAME_MAX || strchr("._-", name[0]))
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}
