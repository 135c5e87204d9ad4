// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/metrics.h"

#include "common/base/clock.h"
#include "common/metrics/process.h"
#include "common/tracing/tracer.h"
#include "proto/rpc/metrics.h"
#include "worker/core/state.h"
#include "worker/daemon/health.h"
#include "worker/daemon/limits.h"
#include "worker/disk/disk.h"
#include "worker/store/cold.h"
#include "worker/store/store.h"

static bool put_times(struct common_metrics *table, const struct worker *worker,
                      const struct common_buckets *synced)
{
    static const char part[] = "This worker's part of a frame of steps: waiting to compute, computing, and "
                               "merging what comes from below.";
    const struct {
        const char *name, *help, *part;
        const struct common_buckets *took;
        const struct common_exemplars *last;
    } times[] = {
        {"banyan_part_seconds", part, "queue", &worker->queue, &worker->queue_last},
        {"banyan_part_seconds", part, "compute", &worker->compute, &worker->compute_last},
        {"banyan_part_seconds", part, "tree", &worker->tree, &worker->tree_last},
        {"banyan_store_sync_seconds", "Syncs of single files of --store (--fsync always, interval).", NULL,
         synced, NULL},
    };
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (!common_metrics_put_traced(table,
                                       &(struct common_metric_spec){.kind = COMMON_METRIC_HISTOGRAM,
                                                                    .name = times[i].name,
                                                                    .help = times[i].help,
                                                                    .label = times[i].part ? "part" : NULL,
                                                                    .value = times[i].part},
                                       times[i].took, times[i].last))
            return false;
    return true;
}

static bool put_numbers(struct common_metrics *table, const struct worker *worker,
                        const struct worker_disk_stats *files)
{
    const enum common_metric_kind counter = COMMON_METRIC_COUNTER, gauge = COMMON_METRIC_GAUGE;
    struct worker_cold_stats cold;
    worker_store_get_cold(worker->store, &cold);
    const struct {
        enum common_metric_kind kind;
        const char *name, *help;
        double number;
    } numbers[] = {
        {gauge, "banyan_ready", "1 while /readyz answers 200.", worker_health_is_ready(worker)},
        {gauge, "banyan_uptime_seconds", "Seconds since the start.",
         (double)(common_clock_ns() - worker->started_ns) / 1e9},
        {counter, "banyan_parts_total", "Frames of steps that have ended here.", (double)worker->steps_done},
        {gauge, "banyan_parts_in_hand", "Frames of steps in progress.", worker->n_steps},
        {counter, "banyan_attached_bytes_total", "K and V that clients and workers have put here.",
         (double)worker->attached_bytes},
        {gauge, "banyan_kv_used_bytes", "K and V in use, including what is on disk only.",
         (double)worker_store_total(worker->store)},
        {gauge, "banyan_kv_capacity_bytes", "Limit of K and V.",
         (double)worker_store_capacity(worker->store)},
        {gauge, "banyan_kv_chunks", "Chunks.", (double)worker_store_chunks(worker->store)},
        {gauge, "banyan_flight_used_bytes", "Memory of frames, partials and workspaces in use.",
         (double)worker->flight_bytes},
        {gauge, "banyan_cold_bytes", "Used bytes that are on disk only (--store).", (double)cold.bytes},
        {counter, "banyan_cold_evicted_total", "Layers of chunks evicted from memory.", (double)cold.evicted},
        {counter, "banyan_cold_loaded_total", "Layers of chunks read back from disk.", (double)cold.loaded},
        {counter, "banyan_cold_loaded_bytes_total", "Bytes read back from disk.", (double)cold.loaded_bytes},
        {counter, "banyan_cold_load_seconds_total",
         "Seconds spent reading back from disk, summed over all threads.", (double)cold.load_ns / 1e9},
        {gauge, "banyan_store_bytes", "Bytes of the files of --store.", (double)files->bytes},
        {counter, "banyan_store_refused_total", "Writes to files that failed.", (double)files->refused},
        {counter, "banyan_store_damaged_total", "Files found damaged.", (double)files->damaged},
        {gauge, "banyan_store_behind", "1 while the files lack data that they should have.", files->failing},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!common_metrics_put(table,
                                &(struct common_metric_spec){.kind = numbers[i].kind,
                                                             .name = numbers[i].name,
                                                             .help = numbers[i].help},
                                numbers[i].number))
            return false;
    return true;
}

static bool put_limits(struct common_metrics *table, const struct worker *worker)
{
    struct proto_limit_use limits[PROTO_WORKER_LIMITS_MAX];
    uint32_t n = worker_limits(worker, limits);
    for (uint32_t i = 0; i < n; i++)
        if (!proto_metrics_put_limit(table, limits[i].name, limits[i].used, limits[i].max, limits[i].refused))
            return false;
    return true;
}

bool worker_metrics_put(const struct worker *worker, struct common_metrics *table)
{
    const struct proto_server *servers[] = {worker->public_server, worker->edge_server};
    struct worker_disk_stats files;
    worker_disk_get_stats(worker->disk, &files);
    return put_numbers(table, worker, &files) && put_times(table, worker, &files.synced) &&
           put_limits(table, worker) && proto_metrics_put(table, servers, 2) &&
           proto_metrics_put_tls(table, worker->tls) && common_tracer_put(worker->tracer, table) &&
           common_process_put(table);
}
