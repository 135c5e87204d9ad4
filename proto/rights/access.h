// SPDX-License-Identifier: Apache-2.0
// Who asks: a tenant and what its token permits (docs/operating/tenants.md). Pure, any thread.
#ifndef PROTO_ACCESS_H
#define PROTO_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#define PROTO_TENANT_DEFAULT    0u // the tenant that is always there, named "default"
#define PROTO_TENANT_NAME_MAX   64 // bytes of a tenant's name, and of a token's
#define PROTO_TENANT_NAME_BYTES (PROTO_TENANT_NAME_MAX + 1)

// What a client's token permits; each but NONE is allowed some more than the one before it, though OPERATOR
// touches no K, V or answers (coordinator/access.c has the table).
enum proto_access {
    PROTO_ACCESS_NONE, // nothing: no token, a wrong one; daemons, which have a role instead
    PROTO_ACCESS_READ_ONLY,
    PROTO_ACCESS_USER,
    PROTO_ACCESS_OPERATOR,
    PROTO_ACCESS_ADMIN,
    PROTO_ACCESSES
};

struct proto_identity {
    uint32_t tenant;
    enum proto_access access;
    uint64_t token; // its id; 0: none, or that of the token file
    char name[PROTO_TENANT_NAME_BYTES];
};

// Of any caller if no token is required, and of the token file's: an admin of the default tenant.
extern const struct proto_identity proto_identity_admin;

const char *proto_access_name(enum proto_access access); // "none", "read-only", "user", "operator", "admin"
// False: it is none of the last four.
bool proto_access_parse(const char *name, enum proto_access *out);

// 1 to 64 of a-z 0-9 . _ -, beginning with a letter or a digit: names of tenants and of tokens.
bool proto_tenant_name_ok(const char *name);

#endif
