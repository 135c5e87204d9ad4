// SPDX-License-Identifier: Apache-2.0
#include "coordinator/metrics.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/metrics/process.h"
#include "common/tracing/tracer.h"
#include "coordinator/check/seals.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/slow.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/events.h"
#include "coordinator/health.h"
#include "coordinator/limits.h"
#include "coordinator/place/moves.h"
#include "coordinator/place/wishes.h"
#include "coordinator/prefix/prefix.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"
#include "coordinator/store/store.h"
#include "coordinator/tenants/quota_metrics.h"
#include "coordinator/trail/trail.h"
#include "proto/rpc/metrics.h"

struct number {
    enum common_metric_kind kind;
    const char *name, *help, *label, *value;
    double amount;
};

static bool put(struct common_metrics *table, const struct number *n)
{
    return common_metrics_put(
        table,
        &(struct common_metric_spec){
            .kind = n->kind, .name = n->name, .help = n->help, .label = n->label, .value = n->value},
        n->amount);
}

static bool put_times(struct common_metrics *table, const struct coordinator *c)
{
    struct common_buckets store;
    coordinator_store_took(c->store, &store);
    const struct {
        const char *name, *help;
        const struct common_buckets *took;
        const struct common_exemplars *last;
    } times[] = {
        {"banyan_step_seconds", "Attend calls, from arrival to answer.", &c->steps.took, &c->steps.took_last},
        {"banyan_step_tree_seconds", "Part of banyan_step_seconds spent waiting for workers.", &c->steps.tree,
         &c->steps.tree_last},
        {"banyan_step_own_seconds", "Part of banyan_step_seconds spent in the coordinator.", &c->steps.own,
         &c->steps.own_last},
        {"banyan_store_write_seconds", "Transactions of the store, until they are on disk (see --fsync).",
         &store, NULL},
    };
    for (size_t i = 0; i < sizeof(times) / sizeof(*times); i++)
        if (!common_metrics_put_traced(table,
                                       &(struct common_metric_spec){.kind = COMMON_METRIC_HISTOGRAM,
                                                                    .name = times[i].name,
                                                                    .help = times[i].help},
                                       times[i].took, times[i].last))
            return false;
    return true;
}

static bool put_sessions(struct common_metrics *table, const struct coordinator *c)
{
    static const char *const names[COORDINATOR_CONDITIONS] = {
        [COORDINATOR_CONDITION_LOST] = "lost",         [COORDINATOR_CONDITION_MISSING] = "unavailable",
        [COORDINATOR_CONDITION_DEGRADED] = "degraded", [COORDINATOR_CONDITION_CHANGING] = "changing",
        [COORDINATOR_CONDITION_ACTIVE] = "active",
    };
    struct coordinator_census census;
    coordinator_sessions_census(&c->sessions, &census);
    for (int i = 0; i < COORDINATOR_CONDITIONS; i++)
        if (!put(table, &(struct number){COMMON_METRIC_GAUGE, "banyan_sessions_state",
                                         "Sessions by their worst condition.", "state", names[i],
                                         (double)census.sessions[i]}))
            return false;
    return put(table, &(struct number){COMMON_METRIC_GAUGE, "banyan_lost_chunks",
                                       "Chunks of sessions that no worker holds any longer.", NULL, NULL,
                                       (double)census.lost_chunks});
}

static bool put_worker_states(struct common_metrics *table, const struct coordinator *c)
{
    double counts[COORDINATOR_WORKER_STATES] = {0};
    for (uint32_t i = 0; i < c->cluster.n_workers; i++)
        if (c->cluster.workers[i])
            counts[c->cluster.workers[i]->state]++;
    for (int i = 0; i < COORDINATOR_WORKER_STATES; i++)
        if (!put(table, &(struct number){COMMON_METRIC_GAUGE, "banyan_workers", "Workers by state.", "state",
                                         coordinator_worker_state_name((enum coordinator_worker_state)i),
                                         counts[i]}))
            return false;
    return true;
}

// Plans by engine: those that an engine's workers offer, and stream.
static bool put_engines(struct common_metrics *table, const struct coordinator *c)
{
    static const char *const engines[] = {COORDINATOR_ENGINE_STREAM, "mpi", "nccl"};
    for (size_t e = 0; e < sizeof(engines) / sizeof(*engines); e++) {
        struct number n = {COMMON_METRIC_GAUGE,
                           "banyan_engine_plans",
                           "Plans whose partials an engine carries.",
                           "engine",
                           engines[e],
                           0};
        for (const struct coordinator_plan *plan = c->cluster.plans; plan; plan = plan->next)
            n.amount += plan->state == COORDINATOR_PLAN_READY && strcmp(plan->engine, engines[e]) == 0;
        if (!put(table, &n))
            return false;
    }
    return true;
}

static bool put_limits(struct common_metrics *table, const struct coordinator *c)
{
    struct coordinator_limit_use limits[COORDINATOR_LIMIT_USES];
    uint32_t n = coordinator_limits(c, limits);
    for (uint32_t i = 0; i < n; i++) {
        char name[80];
        snprintf(name, sizeof(name), "%s%s", limits[i].worker[0] ? "worker_" : "", limits[i].name);
        if (!proto_metrics_put_limit(table, name, limits[i].used, limits[i].max, limits[i].refused))
            return false;
    }
    return true;
}

static bool put_totals(struct common_metrics *table, const struct coordinator *c)
{
    const enum common_metric_kind counter = COMMON_METRIC_COUNTER, gauge = COMMON_METRIC_GAUGE;
    const struct number numbers[] = {
        {counter, "banyan_steps_total", "Items of attend calls answered.", NULL, NULL,
         (double)c->steps.count_steps},
        {counter, "banyan_frames_total", "Step frames sent to roots.", NULL, NULL,
         (double)c->steps.count_frames},
        {counter, "banyan_retries_total", "Items of attend calls that were retried.", NULL, NULL,
         (double)c->steps.count_retries},
        {counter, "banyan_partial_answers_total",
         "Items answered without missing tokens, as their clients allow.", NULL, NULL,
         (double)c->steps.count_partial},
        {counter, "banyan_collective_frames_total", "Step frames whose partials a communicator carried.",
         NULL, NULL, (double)c->steps.count_collective},
        {counter, "banyan_audited_total", "Steps recomputed in float64 and compared (--audit).", NULL, NULL,
         (double)c->steps.count_audited},
        {counter, "banyan_audit_differences_total", "Audited steps whose answers were wrong.", NULL, NULL,
         (double)c->steps.count_audit_differences},
        {counter, "banyan_audit_skipped_total", "Steps chosen for an audit that could not be audited.", NULL,
         NULL, (double)c->steps.count_audit_skipped},
        {gauge, "banyan_kept_steps", "Sessions with a kept step (--keep-steps).", NULL, NULL,
         c->steps.keep.n},
        {gauge, "banyan_kept_steps_bytes", "Memory of kept steps.", NULL, NULL, (double)c->steps.keep.bytes},
        {counter, "banyan_prefix_hits_total", "Sessions created from a kept prefix.", NULL, NULL,
         (double)c->sessions.prefixes->hits},
        {counter, "banyan_prefix_misses_total", "Sessions created with hashes that matched no kept prefix.",
         NULL, NULL, (double)c->sessions.prefixes->misses},
        {counter, "banyan_prefix_saved_tokens_total", "Tokens that hits did not have to compute.", NULL, NULL,
         (double)c->sessions.prefixes->saved_tokens},
        {counter, "banyan_prefix_evictions_total", "Kept prefixes deleted because room was needed.", NULL,
         NULL, (double)c->sessions.prefixes->evictions},
        {counter, "banyan_prefix_expired_total", "Kept prefixes deleted after their time to live.", NULL,
         NULL, (double)c->sessions.prefixes->expired},
        {gauge, "banyan_prefix_sessions", "Ended sessions kept as cache (--prefix-cache).", NULL, NULL,
         c->sessions.prefixes->index.n},
        {gauge, "banyan_prefix_bytes", "Workers' memory charged for kept prefixes.", NULL, NULL,
         (double)c->sessions.prefixes->index.bytes},
        {gauge, "banyan_prefix_index_bytes", "Coordinator's memory for finding kept prefixes.", NULL, NULL,
         (double)coordinator_prefix_index_bytes(&c->sessions.prefixes->index)},
        {counter, "banyan_moved_chunks_total", "Copies of chunks that have moved to a worker.", NULL, NULL,
         (double)c->sessions.moves->chunks},
        {counter, "banyan_moved_bytes_total", "Bytes of K and V that moves have copied between workers.",
         NULL, NULL, (double)c->sessions.moves->bytes},
        {counter, "banyan_returned_copies_total",
         "Moved copies that the worker still had after its return: nothing was copied.", NULL, NULL,
         (double)c->sessions.returned_chunks},
        {counter, "banyan_struck_copies_total", "Copies of chunks removed because their workers were lost.",
         NULL, NULL, (double)c->sessions.struck_copies},
        {counter, "banyan_slow_verdicts_total", "Times that a worker was found much slower than planned.",
         NULL, NULL, (double)c->cluster.slow_verdicts},
        {counter, "banyan_spread_sessions_total",
         "Times that a session's serving holders were re-weighted by speed.", NULL, NULL,
         (double)c->sessions.spread_sessions},
        {counter, "banyan_sealed_chunks_total", "Full chunks whose copies agreed and whose seal is stored.",
         NULL, NULL, (double)c->sessions.seals->sealed},
        {counter, "banyan_compared_copies_total",
         "Copies of chunks whose memory was compared with their seal.", NULL, NULL,
         (double)c->sessions.seals->compared},
        {counter, "banyan_corrupt_copies_total",
         "Copies removed because their worker's memory did not match the seal.", NULL, NULL,
         (double)c->sessions.seals->corrupt},
        {counter, "banyan_healed_copies_total",
         "Copies that workers reloaded from their files because memory did not match the seal.", NULL, NULL,
         (double)c->sessions.seals->healed},
        {counter, "banyan_refused_copies_total", "Moved copies that did not match the seal.", NULL, NULL,
         (double)c->sessions.seals->refused},
        {counter, "banyan_disputed_chunks_total",
         "Times that workers had different rows of an unsealed chunk.", NULL, NULL,
         (double)c->sessions.seals->disputed},
        {counter, "banyan_placements_refused_total",
         "Times that a chunk could not be placed because no worker had memory for it.", NULL, NULL,
         (double)c->cluster.refused_placements},
        {gauge, "banyan_thin_chunks", "Chunks with fewer copies than their sessions ask for.", NULL, NULL,
         (double)coordinator_sessions_thin(&c->sessions)},
        {gauge, "banyan_moves", "Moves of chunks between workers in progress.", NULL, NULL,
         c->sessions.moves->n},
        {gauge, "banyan_wished_chunks", "Chunks that a rebalance has yet to move.", NULL, NULL,
         c->sessions.wishes->n},
        {gauge, "banyan_store_failing", "1 while the store refuses changes, for example on a full disk.",
         NULL, NULL, coordinator_store_trouble(c->store) != NULL},
        {gauge, "banyan_sessions", "Sessions.", NULL, NULL, c->sessions.n},
        {gauge, "banyan_plans", "Plans.", NULL, NULL, c->cluster.n_plans},
        {gauge, "banyan_items", "Items of attend calls in progress.", NULL, NULL, c->steps.items},
        {gauge, "banyan_term", "Term of this coordinator.", NULL, NULL, (double)c->core.term},
        {gauge, "banyan_ready", "1 while /readyz answers 200.", NULL, NULL, coordinator_health_is_ready(c)},
        {gauge, "banyan_uptime_seconds", "Seconds since the start.", NULL, NULL,
         (double)(common_clock_ns() - c->core.started_ns) / 1e9},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if (!put(table, &numbers[i]))
            return false;
    return true;
}

static bool put_events(struct common_metrics *table, const struct coordinator *c)
{
    for (int i = 0; i < PROTO_EVENT_SEVERITIES; i++) {
        enum proto_event_severity severity = (enum proto_event_severity)i;
        if (!put(table,
                 &(struct number){COMMON_METRIC_COUNTER, "banyan_events_total",
                                  "Events (banyanctl events), including each of those that are grouped.",
                                  "severity", proto_event_severity_name(severity),
                                  (double)coordinator_events_total(c->core.events, severity)}))
            return false;
    }
    return put(table, &(struct number){COMMON_METRIC_GAUGE, "banyan_events_bytes",
                                       "Memory of kept events (--events).", NULL, NULL,
                                       (double)coordinator_events_bytes(c->core.events)});
}

static bool put_trail(struct common_metrics *table, const struct coordinator *c)
{
    const enum common_metric_kind counter = COMMON_METRIC_COUNTER, gauge = COMMON_METRIC_GAUGE;
    struct coordinator_trail_counts counts;
    if (!coordinator_trail_count(c->trail, &counts))
        return true;
    const struct number numbers[] = {
        {counter, "banyan_audit_log_records_total", "Records written to the audit log (--audit-log).", NULL,
         NULL, (double)counts.written},
        {counter, "banyan_audit_log_lost_total", "Records that could not be written to the audit log.", NULL,
         NULL, (double)counts.lost},
        {counter, "banyan_audit_log_left_out_total",
         "Refused and failed calls that the audit log only counted, during floods.", NULL, NULL,
         (double)counts.left_out},
        {gauge, "banyan_audit_log_waiting", "Records waiting for the audit log's disk.", NULL, NULL,
         (double)counts.waiting},
        {gauge, "banyan_audit_log_writable", "1 while the audit log can be written.", NULL, NULL,
         counts.works},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if (!put(table, &numbers[i]))
            return false;
    return true;
}

static double beat_age_s(const struct coordinator_worker *w, uint64_t now_ns)
{
    bool there = !coordinator_worker_gone(w) && w->last_beat_ns && now_ns > w->last_beat_ns;
    return there ? (double)(now_ns - w->last_beat_ns) / 1e9 : 0;
}

static bool put_worker(struct common_metrics *table, const struct coordinator_worker *w, uint64_t now)
{
    const enum common_metric_kind counter = COMMON_METRIC_COUNTER, gauge = COMMON_METRIC_GAUGE;
    const struct number mine[] = {
        {gauge, "banyan_worker_active", "1 while the worker may compute.", "worker", w->name,
         coordinator_worker_active(w)},
        {gauge, "banyan_worker_heartbeat_age_seconds",
         "Seconds since its last heartbeat or its registration; 0: not connected.", "worker", w->name,
         beat_age_s(w, now)},
        {gauge, "banyan_worker_draining", "1 while it is draining or drained.", "worker", w->name,
         w->draining},
        {gauge, "banyan_worker_slow", "1 while it is much slower than planned and others are not.", "worker",
         w->name, w->pace.slow},
        {gauge, "banyan_worker_planned_bytes_per_second",
         "Bytes of K and V per second that it measured at its start.", "worker", w->name, (double)w->speed},
        {gauge, "banyan_worker_seen_bytes_per_second",
         "Bytes of K and V per second that it computed recently; 0: too little work to measure.", "worker",
         w->name, (double)coordinator_worker_seen_speed(w)},
        {gauge, "banyan_worker_used_bytes", "Memory of K and V in use; 0: not connected.", "worker", w->name,
         (double)coordinator_worker_said(w, w->used_bytes)},
        {gauge, "banyan_worker_free_bytes",
         "Memory of K and V that new chunks may take: neither used nor reserved; 0: not connected.", "worker",
         w->name, (double)coordinator_worker_said(w, coordinator_worker_free_bytes(w))},
        {gauge, "banyan_worker_reserved_bytes",
         "Memory of K and V kept for chunks that were placed and not filled yet; 0: not connected.", "worker",
         w->name, (double)coordinator_worker_reserved_bytes(w)},
        {gauge, "banyan_worker_capacity_bytes", "Memory of K and V that it may use; 0: not connected.",
         "worker", w->name, (double)coordinator_worker_said(w, w->capacity_bytes)},
        {gauge, "banyan_worker_tokens", "Tokens in the chunks placed on it.", "worker", w->name,
         (double)w->tokens},
        {gauge, "banyan_worker_chunks", "Chunks placed on it.", "worker", w->name, (double)w->chunks},
        {gauge, "banyan_worker_cold_bytes", "Used bytes that are on disk only (--store).", "worker", w->name,
         (double)coordinator_worker_said(w, w->cold_bytes)},
        {counter, "banyan_worker_cold_evicted_total", "Layers of chunks evicted from memory since its start.",
         "worker", w->name, (double)w->cold_evicted},
        {counter, "banyan_worker_cold_loaded_total", "Layers of chunks read back from disk since its start.",
         "worker", w->name, (double)w->cold_loaded},
        {counter, "banyan_worker_cold_loaded_bytes_total", "Bytes read back from disk since its start.",
         "worker", w->name, (double)w->cold_loaded_bytes},
        {counter, "banyan_worker_cold_load_seconds_total",
         "Seconds spent reading back from disk, summed over all threads.", "worker", w->name,
         (double)w->cold_load_ns / 1e9},
        {gauge, "banyan_worker_store_bytes", "Bytes of its files (--store).", "worker", w->name,
         (double)w->store_bytes},
        {counter, "banyan_worker_store_refused_total", "Writes to its files that failed since its start.",
         "worker", w->name, (double)w->store_refused},
        {counter, "banyan_worker_store_damaged_total", "Files found damaged since its start.", "worker",
         w->name, (double)w->store_damaged},
    };
    for (size_t k = 0; k < sizeof(mine) / sizeof(*mine); k++)
        if (!put(table, &mine[k]))
            return false;
    return true;
}

static bool put_workers(struct common_metrics *table, const struct coordinator *c)
{
    uint64_t now = common_clock_ns();
    for (uint32_t i = 0; i < c->cluster.n_workers; i++)
        if (c->cluster.workers[i] && !put_worker(table, c->cluster.workers[i], now))
            return false;
    return true;
}

bool coordinator_metrics_put(const struct coordinator *c, const struct proto_identity *who,
                             struct common_metrics *table)
{
    const struct proto_server *servers[] = {c->server};
    return put_totals(table, c) && put_times(table, c) && put_sessions(table, c) &&
           put_worker_states(table, c) && put_workers(table, c) && put_engines(table, c) &&
           put_limits(table, c) && coordinator_quota_metrics_put(&c->quotas, who, table) &&
           put_events(table, c) && put_trail(table, c) &&
           proto_metrics_put_codes(table, "banyan_step_failures_total",
                                   "Items of attend calls that were answered with an error.",
                                   c->steps.failures) &&
           proto_metrics_put(table, servers, 1) && proto_metrics_put_tls(table, c->core.options.tls) &&
           common_tracer_put(c->core.options.tracer, table) && common_process_put(table);
}
