// SPDX-License-Identifier: Apache-2.0
#include "coordinator/dashboard/history.h"

#include "coordinator/cluster/worker.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"

uint64_t coordinator_history_quantile(const struct common_buckets *buckets, double share)
{
    uint64_t all = common_buckets_count(buckets), n;
    double left = share * (double)all;
    for (uint32_t i = 0; i < COMMON_BUCKETS_BOUNDS && all; i++, left -= (double)n) {
        n = buckets->counts[i];
        if (!n || left > (double)n)
            continue;
        double high = (double)(UINT64_C(1) << (COMMON_BUCKETS_FIRST + i)), low = i ? high / 2 : 0;
        return (uint64_t)(low + (high - low) * left / (double)n);
    }
    return all ? UINT64_C(1) << (COMMON_BUCKETS_FIRST + COMMON_BUCKETS_BOUNDS - 1) : 0;
}

static void count(const struct coordinator *c, struct coordinator_history_counters *out)
{
    *out = (struct coordinator_history_counters){.steps = c->steps.count_steps,
                                                 .retries = c->steps.count_retries,
                                                 .took = c->steps.took};
    for (int i = COMMON_OK + 1; i < COMMON_CODE_COUNT; i++)
        out->failures += c->steps.failures[i];
}

static void look_at_workers(const struct coordinator_cluster *cluster, struct coordinator_history_sample *out)
{
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        const struct coordinator_worker *w = cluster->workers[i];
        if (!w)
            continue;
        out->workers++;
        out->active += w->state == COORDINATOR_WORKER_ACTIVE;
        out->used_bytes += coordinator_worker_said(w, w->used_bytes);
        out->capacity_bytes += coordinator_worker_said(w, w->capacity_bytes);
    }
}

void coordinator_history_take(struct coordinator_history *history, const struct coordinator *c,
                              uint64_t now_ns)
{
    struct coordinator_history_counters now;
    const struct coordinator_history_counters *last = &history->last;
    uint64_t since = history->n ? coordinator_history_at(history, history->n - 1)->at_ns : history->begun_ns;
    count(c, &now);
    struct coordinator_history_sample sample = {
        .at_ns = now_ns,
        .span_ns = now_ns - since,
        .steps = now.steps - last->steps,
        .failures = now.failures - last->failures,
        .retries = now.retries - last->retries,
        .sessions = c->sessions.n,
        .thin_chunks = coordinator_sessions_thin(&c->sessions),
    };
    struct common_buckets took = now.took;
    for (uint32_t i = 0; i <= COMMON_BUCKETS_BOUNDS; i++)
        took.counts[i] -= last->took.counts[i];
    sample.p50_ns = coordinator_history_quantile(&took, 0.5);
    sample.p99_ns = coordinator_history_quantile(&took, 0.99);
    look_at_workers(&c->cluster, &sample);
    history->last = now;
    history->ring[history->next] = sample;
    history->next = (history->next + 1) % COORDINATOR_HISTORY_MOST;
    if (history->n < COORDINATOR_HISTORY_MOST)
        history->n++;
}

const struct coordinator_history_sample *coordinator_history_at(const struct coordinator_history *history,
                                                                uint32_t i)
{
    uint32_t oldest = history->n < COORDINATOR_HISTORY_MOST ? 0 : history->next;
    return &history->ring[(oldest + i) % COORDINATOR_HISTORY_MOST];
}
