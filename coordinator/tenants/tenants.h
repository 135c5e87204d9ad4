// SPDX-License-Identifier: Apache-2.0
// The room of tenants: who may be a client of this cluster, and as whom (docs/operating/tenants.md). It
// stands on the store and has no notion of sessions.
//
//   tenants.c   the table of tenants: id and name
//   tokens.c    tokens: made once, kept as SHA-256, looked up by it
//
// A tenant is a name for sessions that belong together. The default one has id 0 and is always there; the
// others are made by the first token that is made for them, and stay. Their ids are small and never given
// twice.
#ifndef COORDINATOR_TENANTS_H
#define COORDINATOR_TENANTS_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/core.h"
#include "coordinator/tenants/tokens.h"
#include "proto/rights/access.h"

#define COORDINATOR_TENANTS_MAX 4096u

struct coordinator_batch;
struct coordinator_store;
struct coordinator_store_reader;

struct coordinator_tenant {
    uint32_t id;
    char name[PROTO_TENANT_NAME_BYTES];
};

struct coordinator_tenants {
    struct coordinator_core *core;
    struct coordinator_store *store; // set by the caller once it is open
    struct coordinator_tenant *all;  // [n] by id; the default one first. Moves when one is made
    uint32_t n;
    struct coordinator_tokens tokens;
};

void coordinator_tenants_init(struct coordinator_tenants *tenants, struct coordinator_core *core);
void coordinator_tenants_fini(struct coordinator_tenants *tenants);

// Fills in what coordinator_store_open calls for tenants and tokens.
void coordinator_tenants_reader(struct coordinator_tenants *tenants, struct coordinator_store_reader *reader);

// NULL: there is none. Valid until the next one is made.
const struct coordinator_tenant *coordinator_tenant_of(const struct coordinator_tenants *tenants,
                                                       uint32_t id);
const struct coordinator_tenant *coordinator_tenant_named(const struct coordinator_tenants *tenants,
                                                          const char *name);
const char *coordinator_tenant_name(const struct coordinator_tenants *tenants,
                                    uint32_t id); // "": there is none

// The one with this name, which is right (proto_tenant_name_ok); made where there is none, and put in the
// batch then. RESOURCE_EXHAUSTED: too many.
enum common_code coordinator_tenant_make(struct coordinator_tenants *tenants, const char *name,
                                         struct coordinator_batch *batch, uint32_t *id,
                                         struct common_error *err);

#endif
