// SPDX-License-Identifier: Apache-2.0
// The inside of the dashboard: what its answers have in common. An answer in JSON is made by a function
//
//     enum common_code coordinator_dashboard_NAME(dashboard, query, id, &json, &err)
//
// query: of the URL, "" for none; id: in the path, 0 where it has none. On success json is new and the caller's. Otherwise
// INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED or UNAVAILABLE, which become 400, 404, 429 and 503, with the sentence in
// err.
#ifndef COORDINATOR_DASHBOARD_ASK_H
#define COORDINATOR_DASHBOARD_ASK_H

#include <jansson.h>

#include "coordinator/dashboard/history.h"
#include "coordinator/dashboard/list.h"
#include "coordinator/state.h"

struct coordinator_dashboard {
    struct coordinator *c;
    char host[96];         // that --http names, brackets and all
    bool loopback;         // it is a loopback address
    uint32_t wrong_tokens; // since wrong_tokens_from_ns
    uint64_t wrong_tokens_from_ns;
    struct coordinator_lists lists; // of sessions
    struct coordinator_history history;
    struct common_timer *sampling; // takes its samples
};

typedef enum common_code (*coordinator_dashboard_fn)(struct coordinator_dashboard *d, const char *query,
                                                     uint64_t id, json_t **out, struct common_error *err);
#define COORDINATOR_DASHBOARD_ASK(name)                                                                      \
    enum common_code coordinator_dashboard_##name(struct coordinator_dashboard *d, const char *query,        \
                                                  uint64_t id, json_t **out, struct common_error *err)
COORDINATOR_DASHBOARD_ASK(cluster);  // cluster.c
COORDINATOR_DASHBOARD_ASK(workers);  // cluster.c
COORDINATOR_DASHBOARD_ASK(plans);    // plans.c
COORDINATOR_DASHBOARD_ASK(plan);     // plans.c
COORDINATOR_DASHBOARD_ASK(sessions); // list.c
COORDINATOR_DASHBOARD_ASK(session);  // holders.c
COORDINATOR_DASHBOARD_ASK(mass);     // look.c
COORDINATOR_DASHBOARD_ASK(trace);    // look.c
COORDINATOR_DASHBOARD_ASK(events);   // events.c
COORDINATOR_DASHBOARD_ASK(history);  // past.c
COORDINATOR_DASHBOARD_ASK(tenants);  // tenants.c

// ---- for these ----

// A number of the query, `absent` where it is not there. INVALID_ARGUMENT: it is none, or not least..most.
enum common_code coordinator_dashboard_number(const char *query, const char *word, uint64_t absent,
                                              uint64_t least, uint64_t most, uint64_t *out,
                                              struct common_error *err);
// The session, or NOT_FOUND.
enum common_code coordinator_dashboard_find(const struct coordinator_dashboard *d, uint64_t id,
                                            struct coordinator_session **out, struct common_error *err);
json_t *coordinator_dashboard_id(uint64_t id);        // 16 hex digits: JSON's numbers are not so long
json_t *coordinator_dashboard_text(const char *text); // a peer's; bytes that are no UTF-8 become '?'
json_t *coordinator_dashboard_real(double x);         // null where it is not finite
static inline json_t *coordinator_dashboard_u64(uint64_t n)
{
    return json_integer(n < INT64_MAX ? (json_int_t)n : INT64_MAX);
}

#endif
