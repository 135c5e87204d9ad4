// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/slow.h"

#include <inttypes.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/worker.h"

uint64_t coordinator_worker_seen_speed(const struct coordinator_worker *w)
{
    return (uint64_t)((double)w->speed * coordinator_pace_seen(&w->pace));
}

// Plans have a tree that its old speed has chosen: the next ones do not.
static void verdict(struct coordinator_worker *w, uint64_t now_ns)
{
    struct coordinator_cluster *cluster = w->cluster;
    bool counts = cluster->core->options.slow_workers == COORDINATOR_SLOW_MOVE;
    if (w->pace.slow) {
        cluster->slow_verdicts++;
        w->slow_since_ns = now_ns;
        coordinator_worker_tell(w, WORKER_SLOW, WARN,
                                "a worker is much slower than planned%s worker=%s planned=%" PRIu64
                                " seen=%" PRIu64 " unit=bytes/s",
                                counts ? "" : ": only flagged (--slow-workers)", w->name, w->speed,
                                (uint64_t)((double)w->speed * w->pace.factor));
    } else {
        coordinator_worker_tell(w, WORKER_WELL, INFO,
                                "a worker is as fast as planned again worker=%s planned=%" PRIu64
                                " unit=bytes/s",
                                w->name, w->speed);
    }
    if (!counts)
        return;
    cluster->speeds++;
    coordinator_plans_worker_slow(w);
    coordinator_turn_mark(&cluster->core->turn, COORDINATOR_PHASE_SESSIONS);
}

void coordinator_slow_tick(struct coordinator_cluster *cluster, uint64_t now_ns)
{
    const struct coordinator_options *options = &cluster->core->options;
    uint64_t beats_ns = 2 * options->heartbeat_ns; // below that it hears nothing new
    uint64_t window_ns = options->slow_after_ns / 2 > beats_ns ? options->slow_after_ns / 2 : beats_ns;
    if (options->slow_workers == COORDINATOR_SLOW_IGNORE || now_ns < cluster->look_ns)
        return;
    cluster->look_ns = now_ns + window_ns;
    struct coordinator_pace **paces = coordinator_alloc((cluster->n_workers + 1) * sizeof(*paces));
    struct coordinator_worker **workers = coordinator_alloc((cluster->n_workers + 1) * sizeof(*workers));
    bool *changed = coordinator_alloc((cluster->n_workers + 1) * sizeof(*changed));
    uint32_t n = 0;
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        struct coordinator_worker *w = cluster->workers[i];
        if (!w || !coordinator_worker_active(w))
            continue;
        w->pace.scale = w->speed ? (double)w->bandwidth / (double)w->speed : 1;
        workers[n] = w;
        paces[n++] = &w->pace;
    }
    coordinator_pace_look(paces, n, window_ns, cluster->looks++, changed);
    for (uint32_t i = 0; i < n; i++)
        if (changed[i])
            verdict(workers[i], now_ns);
    free(changed);
    free(workers);
    free(paces);
}
