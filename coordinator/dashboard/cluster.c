// SPDX-License-Identifier: Apache-2.0
// What the coordinator says of itself and of its workers. Counters are sums since its start: who asks twice has rates.
#include <string.h>

#include "common/base/clock.h"
#include "common/http/http.h"
#include "coordinator/check/seals.h"
#include "coordinator/cluster/slow.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/cluster/worker_limits.h"
#include "coordinator/dashboard/ask.h"
#include "coordinator/health.h"
#include "coordinator/limits.h"
#include "coordinator/place/moves.h"
#include "coordinator/place/wishes.h"
#include "coordinator/session/table.h"

static json_t *limits_json(const struct coordinator *c, uint64_t *clients)
{
    struct coordinator_limit_use limits[COORDINATOR_LIMIT_USES];
    uint32_t n = coordinator_limits(c, limits);
    json_t *rows = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(rows, json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "name", limits[i].name,
                                              "flag", limits[i].flag, "worker",
                                              coordinator_dashboard_text(limits[i].worker), "used",
                                              coordinator_dashboard_u64(limits[i].used), "max",
                                              coordinator_dashboard_u64(limits[i].max), "refused",
                                              coordinator_dashboard_u64(limits[i].refused)));
    *clients = limits[PROTO_LIMIT_CLIENTS].used + limits[PROTO_LIMIT_NNG_CLIENTS].used;
    return rows;
}

// counts[i] of answers that took at most first_ns << i, the last one of the rest (common/metrics/buckets.h).
static json_t *times_json(const struct common_buckets *buckets)
{
    json_t *counts = json_array();
    for (uint32_t i = 0; i <= COMMON_BUCKETS_BOUNDS; i++)
        json_array_append_new(counts, coordinator_dashboard_u64(buckets->counts[i]));
    return json_pack("{s:I, s:o, s:o}", "first_ns", (json_int_t)1 << COMMON_BUCKETS_FIRST, "counts", counts,
                     "sum_ns", coordinator_dashboard_u64(buckets->sum_ns));
}

static json_t *states_json(const struct coordinator *c)
{
    static const char *const names[COORDINATOR_CONDITIONS] = {[COORDINATOR_CONDITION_LOST] = "lost",
                                                              [COORDINATOR_CONDITION_MISSING] = "unavailable",
                                                              [COORDINATOR_CONDITION_DEGRADED] = "degraded",
                                                              [COORDINATOR_CONDITION_CHANGING] = "changing",
                                                              [COORDINATOR_CONDITION_ACTIVE] = "active"};
    struct coordinator_census census;
    coordinator_sessions_census(&c->sessions, &census);
    json_t *states = json_pack("{s:o}", "lost_chunks", coordinator_dashboard_u64(census.lost_chunks));
    for (int i = 0; i < COORDINATOR_CONDITIONS; i++)
        json_object_set_new(states, names[i], coordinator_dashboard_u64(census.sessions[i]));
    return states;
}

static json_t *counters_json(const struct coordinator *c)
{
    uint64_t failures = 0;
    for (int i = COMMON_OK + 1; i < COMMON_CODE_COUNT; i++)
        failures += c->steps.failures[i];
    const struct {
        const char *name;
        uint64_t n;
    } counters[] = {
        {"steps", c->steps.count_steps},
        {"frames", c->steps.count_frames},
        {"retries", c->steps.count_retries},
        {"failures", failures},
        {"partial_answers", c->steps.count_partial},
        {"audited", c->steps.count_audited},
        {"audit_differences", c->steps.count_audit_differences},
        {"moved_chunks", c->sessions.moves->chunks},
        {"moved_bytes", c->sessions.moves->bytes},
        {"struck_copies", c->sessions.struck_copies},
        {"corrupt_copies", c->sessions.seals->corrupt},
    };
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof(counters) / sizeof(*counters); i++)
        json_object_set_new(object, counters[i].name, coordinator_dashboard_u64(counters[i].n));
    return object;
}

COORDINATOR_DASHBOARD_ASK(cluster)
{
    (void)query, (void)id, (void)err;
    const struct coordinator *c = d->c;
    char text[COMMON_HEALTH_TEXT];
    uint64_t now = common_clock_ns(), clients = 0;
    bool ready = common_health_run(coordinator_health_ready, (void *)c, false, NULL, text);
    json_t *root = json_pack("{s:o, s:s, s:b, s:s, s:o, s:o, s:o}", "cluster",
                             coordinator_dashboard_text(c->core.options.cluster), "version", BANYAN_VERSION,
                             "ready", ready, "health", text, "term", coordinator_dashboard_u64(c->core.term),
                             "uptime_ns", coordinator_dashboard_u64(now - c->core.started_ns), "now_ns",
                             coordinator_dashboard_u64(now));
    *out = root;
    json_object_set_new(root, "limits", limits_json(c, &clients));
    json_object_set_new(root, "clients", coordinator_dashboard_u64(clients));
    json_object_set_new(root, "sessions", coordinator_dashboard_u64(c->sessions.n));
    json_object_set_new(root, "session_states", states_json(c));
    json_object_set_new(root, "thin_chunks",
                        coordinator_dashboard_u64(coordinator_sessions_thin(&c->sessions)));
    json_object_set_new(root, "moves", coordinator_dashboard_u64(c->sessions.moves->n));
    json_object_set_new(root, "wished_chunks", coordinator_dashboard_u64(c->sessions.wishes->n));
    json_object_set_new(root, "items", coordinator_dashboard_u64(c->steps.items));
    json_object_set_new(root, "counters", counters_json(c));
    json_object_set_new(root, "took", times_json(&c->steps.took));
    json_object_set_new(root, "tree", times_json(&c->steps.tree));
    return COMMON_OK;
}

// ---- workers ------------------------------------------------------------------------------------

static void put(json_t *object, const char *name, uint64_t n)
{
    json_object_set_new(object, name, coordinator_dashboard_u64(n));
}

static json_t *worker_json(const struct coordinator_worker *w, uint64_t now)
{
    bool absent = w->state == COORDINATOR_WORKER_ABSENT;
    json_t *o =
        json_pack("{s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:b, s:f}", "name",
                  coordinator_dashboard_text(w->name), "host", coordinator_dashboard_text(w->host), "state",
                  coordinator_worker_state_name(absent ? COORDINATOR_WORKER_LOST : w->state), "endpoint",
                  coordinator_dashboard_text(w->endpoint), "kernel", coordinator_dashboard_text(w->kernel),
                  "version", coordinator_dashboard_text(w->version), "no_device",
                  coordinator_dashboard_text(w->no_device), "engine",
                  coordinator_dashboard_text(w->engine[0] ? w->engine : "stream"), "drain_reason",
                  coordinator_dashboard_text(w->order.reason), "draining", w->draining, "cordoned",
                  w->cordoned, "slow", w->pace.slow, "pace", coordinator_pace_seen(&w->pace));
    put(o, "capacity_bytes", coordinator_worker_said(w, w->capacity_bytes));
    put(o, "used_bytes", coordinator_worker_said(w, w->used_bytes));
    put(o, "reserved_bytes", coordinator_worker_reserved_bytes(w));
    put(o, "cold_bytes", coordinator_worker_said(w, w->cold_bytes));
    put(o, "store_bytes", w->store_bytes);
    put(o, "quarantined_bytes", coordinator_quarantine_bytes(&w->quarantine));
    put(o, "quarantined_sessions", w->quarantine.n);
    put(o, "planned_bandwidth", w->speed);
    put(o, "seen_bandwidth", coordinator_worker_seen_speed(w));
    put(o, "threads", w->threads);
    put(o, "chunks", w->chunks);
    put(o, "tokens", w->tokens);
    put(o, "sessions", w->members);
    put(o, "steps", w->steps);
    put(o, "moves", w->moves);
    put(o, "last_compute_ns", w->last_compute_ns);
    put(o, "heartbeat_age_ns", w->last_beat_ns && now > w->last_beat_ns ? now - w->last_beat_ns : 0);
    return o;
}

// What its last heartbeat says.
static json_t *worker_limits_json(const struct coordinator_worker *w)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < w->n_limits; i++) {
        const struct coordinator_worker_limit *limit = &w->limits[i];
        json_t *row = json_pack("{s:o, s:o}", "name", coordinator_dashboard_text(limit->name), "flag",
                                coordinator_dashboard_text(limit->flag));
        put(row, "used", limit->used);
        put(row, "max", limit->max);
        put(row, "refused", limit->refused);
        json_array_append_new(rows, row);
    }
    return rows;
}

// All of them, or with `name` one, and its limits with it.
COORDINATOR_DASHBOARD_ASK(workers)
{
    (void)id;
    const struct coordinator_cluster *cluster = &d->c->cluster;
    uint64_t now = common_clock_ns();
    char name[COORDINATOR_LIST_TEXT + 1] = "";
    enum common_http_value given = common_http_query(query, "name", name, sizeof(name));
    if (given == COMMON_HTTP_BAD)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "name takes the name of a worker");
    if (given == COMMON_HTTP_GIVEN) {
        const struct coordinator_worker *w = coordinator_worker_find(cluster, name);
        if (!w)
            return common_error_set(err, COMMON_NOT_FOUND, "there is no worker with this name");
        json_t *one = worker_json(w, now);
        json_object_set_new(one, "limits", worker_limits_json(w));
        *out = json_pack("{s:o, s:[o]}", "now_ns", coordinator_dashboard_u64(now), "workers", one);
        return COMMON_OK;
    }
    json_t *rows = json_array();
    for (uint32_t i = 0; i < cluster->n_workers; i++)
        if (cluster->workers[i])
            json_array_append_new(rows, worker_json(cluster->workers[i], now));
    *out = json_pack("{s:o, s:o}", "now_ns", coordinator_dashboard_u64(now), "workers", rows);
    return COMMON_OK;
}
