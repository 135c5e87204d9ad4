// SPDX-License-Identifier: Apache-2.0
// What each tenant has in use, and what it may have (docs/operating/quotas.md). What would be more is refused
// with RESOURCE_EXHAUSTED and the reason QUOTA before anything is done; what is there stays when a quota is
// lowered below it.
//
//   bytes            room of its sessions' chunks, placed or being placed: K, V and tables, times the copies asked for
//   sessions         that are there, or being made
//   steps_per_s      items of attend calls; a second's worth at once (rate.h)
//   steps_in_flight  items that have not been answered
//   connections      of its clients: stream links, and nng's by the first token shown over each
//   watches          calls that wait: SessionWatch, Events
//
// A use is counted where the thing is made and where it ends, by whoever makes it; nothing is ever summed up.
#ifndef COORDINATOR_QUOTA_H
#define COORDINATOR_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/tenants/rate.h"
#include "coordinator/tenants/tenants.h"
#include "proto/rpc/status.h"

enum coordinator_quota_kind {
    COORDINATOR_QUOTA_BYTES,
    COORDINATOR_QUOTA_SESSIONS,
    COORDINATOR_QUOTA_STEPS_PER_S,
    COORDINATOR_QUOTA_STEPS_IN_FLIGHT,
    COORDINATOR_QUOTA_CONNECTIONS,
    COORDINATOR_QUOTA_WATCHES,
    COORDINATOR_QUOTAS
};

extern const char *const coordinator_quota_names[COORDINATOR_QUOTAS]; // "bytes", ...
bool coordinator_quota_parse(const char *name, enum coordinator_quota_kind *out);

struct coordinator_quota {
    uint64_t max[COORDINATOR_QUOTAS]; // 0: no limit
};

struct coordinator_use { // of one tenant; stays where it is until the end
    const struct coordinator_quotas *quotas;
    uint32_t tenant;
    struct coordinator_quota quota;
    uint64_t used[COORDINATOR_QUOTAS]; // not of STEPS_PER_S
    struct coordinator_rate rate;
    uint64_t steps;                       // items taken so far
    uint64_t refused[COORDINATOR_QUOTAS]; // times, so far
};

struct coordinator_quotas {
    struct coordinator_tenants *tenants; // their names
    struct coordinator_use **all;        // [n] by tenant; NULL: nothing is known of it
    uint32_t n;
};

void coordinator_quotas_init(struct coordinator_quotas *quotas, struct coordinator_tenants *tenants);
void coordinator_quotas_fini(struct coordinator_quotas *quotas);
// Fills in what coordinator_store_open calls for quotas.
void coordinator_quotas_reader(struct coordinator_quotas *quotas, struct coordinator_store_reader *reader);

// The tenant's, made when there is none.
struct coordinator_use *coordinator_use_of(struct coordinator_quotas *quotas, uint32_t tenant);

// One quota from now on; the store has it. max: at most COORDINATOR_RATE_MOST of STEPS_PER_S. A bucket of a
// rate that is set is full.
void coordinator_quota_set(struct coordinator_use *use, enum coordinator_quota_kind kind, uint64_t max,
                           uint64_t now_ns);

bool coordinator_quota_fits(const struct coordinator_use *use, enum coordinator_quota_kind kind, uint64_t n);

// Takes n more, or none: RESOURCE_EXHAUSTED with words that say which quota, how much is used, and what to
// do. Not for STEPS_PER_S.
enum common_code coordinator_quota_take(struct coordinator_use *use, enum coordinator_quota_kind kind,
                                        uint64_t n, struct proto_status *status);
// The same of n steps, which count in flight and against the rate: both, or none. status->retry_ns: when the
// rate would let them.
enum common_code coordinator_quota_take_steps(struct coordinator_use *use, uint64_t n, uint64_t now_ns,
                                              struct proto_status *status);
// What is there already, or cannot be refused.
static inline void coordinator_quota_add(struct coordinator_use *use, enum coordinator_quota_kind kind,
                                         uint64_t n)
{
    use->used[kind] += n;
}
void coordinator_quota_give(struct coordinator_use *use, enum coordinator_quota_kind kind, uint64_t n);

uint64_t coordinator_quota_used(const struct coordinator_use *use, enum coordinator_quota_kind kind,
                                uint64_t now_ns);

#endif
