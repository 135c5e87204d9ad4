// SPDX-License-Identifier: Apache-2.0
// What all files of this folder use: they call this one, and it calls none of them.
#include "worker/disk/state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "worker/store/cold.h"

#define NUDGE_NS (20 * COMMON_NS_PER_MS) // between two looks at how full memory is

bool worker_ids_add(struct worker_ids *list, uint64_t id)
{
    if (list->n == list->cap) {
        uint32_t cap = list->cap ? 2 * list->cap : 64;
        uint64_t *ids = realloc(list->ids, cap * sizeof *ids);
        if (!ids)
            return false;
        list->ids = ids;
        list->cap = cap;
    }
    list->ids[list->n++] = id;
    return true;
}

void worker_ids_free(struct worker_ids *list)
{
    free(list->ids);
    *list = (struct worker_ids){0};
}

enum common_code worker_disk_refused(struct worker_disk *disk, int why, struct common_error *err)
{
    const char *text =
        why == -EAGAIN ? "too much is waiting to be written: the disk is too slow" : strerror(-why);
    disk->stats.refused++;
    if (!disk->told)
        common_log_error("--store %s cannot be written: new rows are refused until it can: %s", disk->path,
                         text);
    disk->told = true;
    disk->taken = 0;
    return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the worker's --store %s cannot be written: %s",
                            disk->path, text);
}

void worker_disk_quarantine(struct worker_disk *disk, const char *name, const char *what)
{
    char to[WORKER_NAME_BYTES + 16];
    const char *base = strrchr(name, '/');
    snprintf(to, sizeof to, "quarantine/%s", base ? base + 1 : name);
    int result = disk->files->ops->move(disk->files, name, to);
    if (result == -ENOENT)
        return;
    COMMON_FAILPOINT("disk_set_aside");
    disk->stats.damaged++;
    common_log_error("a file of --store is damaged and not used: %s/%s %s: %s", disk->path, name, what,
                     result == 0 ? "moved to quarantine/" : strerror(-result));
}

// ---- syncing ------------------------------------------------------------------------------------

int worker_disk_sync(struct worker_disk *disk, const char *name)
{
    uint64_t began_ns = common_clock_ns();
    int result = disk->files->ops->sync(disk->files, name);
    if (result == 0 && !disk->queue)
        common_buckets_add(&disk->stats.synced, common_clock_ns() - began_ns);
    return result;
}

int worker_disk_sync_soon(struct worker_disk *disk, const char *name)
{
    return disk->queue ? worker_queue_sync_soon(disk->queue, name) : worker_disk_sync(disk, name);
}

int worker_disk_sync_names(struct worker_disk *disk, const char *folder, const char *name)
{
    return disk->queue ? worker_queue_sync_names(disk->queue, folder, name)
                       : disk->files->ops->sync_folder(disk->files, folder);
}

// ---- waiting for the queue ----------------------------------------------------------------------

void worker_disk_queue_end(struct worker_disk *disk)
{
    struct worker_queue *queue = disk->queue;
    if (queue) {
        worker_queue_end_waits(queue);
        worker_queue_free(queue);
    }
    disk->queue = NULL;
    disk->files = disk->directory;
    if (disk->reader)
        disk->reader->ops->close(disk->reader);
    disk->reader = NULL;
}

bool worker_disk_wait(struct worker_disk *disk, struct worker_disk_wait *wait, void (*done)(void *arg),
                      void *arg)
{
    if (!disk || !disk->queue)
        return false;
    wait->done = done;
    wait->arg = arg;
    return worker_queue_wait(disk->queue, wait);
}

void worker_disk_wait_cancel(struct worker_disk_wait *wait)
{
    common_list_remove(&wait->link);
}

bool worker_disk_waited(const struct worker_disk *disk, const struct worker_disk_wait *wait)
{
    return disk->queue && worker_queue_done(disk->queue) >= wait->batch;
}

bool worker_disk_full(const struct worker_disk *disk)
{
    return disk->queue && worker_queue_bytes(disk->queue) >= disk->waiting;
}

// ---- what is to be done -------------------------------------------------------------------------

void worker_disk_later(struct worker_disk *disk, struct worker_chunk *chunk)
{
    struct worker_keep *keep = worker_chunk_keep(chunk);
    keep->behind = true;
    if (!keep->retry)
        keep->retry = worker_ids_add(&disk->retry, worker_chunk_id(chunk));
    disk->unlisted |= !keep->retry;
}

void worker_disk_consider(struct worker_disk *disk, struct worker_chunk *chunk)
{
    struct worker_keep *keep = worker_chunk_keep(chunk);
    if (!keep->full && !keep->sealed)
        keep->full = worker_ids_add(&disk->full, worker_chunk_id(chunk));
    disk->unlisted |= !keep->full && !keep->sealed;
}

// Whether all layers have all their rows.
bool worker_disk_chunk_full(const struct worker_chunk *chunk)
{
    const struct worker_shape *shape = worker_chunk_shape(chunk);
    for (uint32_t l = 0; l < shape->layers; l++)
        if (worker_shape_form(shape, l) && worker_chunk_ready(chunk, l) < shape->chunk_tokens)
            return false;
    return true;
}

static bool any_full(const struct worker_disk *disk)
{
    for (uint32_t i = 0; i < disk->full.n; i++) {
        const struct worker_chunk *chunk = worker_store_find(disk->store, disk->full.ids[i]);
        if (chunk && worker_disk_chunk_full(chunk))
            return true;
    }
    return false;
}

bool worker_disk_hurry(struct worker_disk *disk)
{
    if (!disk || disk->state != WORKER_DISK_OPEN)
        return false;
    if (disk->sealing || disk->hurry)
        return true;
    disk->hurry = any_full(disk);
    if (disk->hurry)
        common_timer_start(disk->timer, 0, false);
    return disk->hurry;
}

void worker_disk_nudge(struct worker_disk *disk)
{
    uint64_t now_ns = common_clock_ns();
    if (now_ns < disk->nudge_next_ns ||
        worker_store_used(disk->store) <= worker_store_limit(disk->store) / 8 * 7)
        return;
    disk->nudge_next_ns = now_ns + NUDGE_NS;
    (void)worker_disk_hurry(disk);
}

// ---- what the disk has lost ---------------------------------------------------------------------

void worker_disk_lost(struct worker_disk *disk, struct worker_chunk *chunk)
{
    struct worker_keep *keep = worker_chunk_keep(chunk);
    char name[WORKER_NAME_BYTES], what[96];
    if (keep->lost || disk->state != WORKER_DISK_OPEN)
        return;
    keep->lost =
        worker_ids_add(&disk->lost, worker_chunk_id(chunk)); // no memory: with the next one who needs it
    snprintf(what, sizeof what, "chunk=%" PRIu64 " position=%" PRIu64 ": memory lacks some of its rows",
             worker_chunk_id(chunk), worker_chunk_first(chunk));
    worker_name_sealed(worker_chunk_id(chunk), name);
    worker_disk_quarantine(disk, name, what);
    if (disk->timer) // else it is being closed: who starts on the files finds it out
        common_timer_start(disk->timer, 0, false);
}

void worker_disk_tell_lost(struct worker_disk *disk)
{
    while (disk->lost.n > 0) {
        struct worker_chunk *chunk = worker_store_find(disk->store, disk->lost.ids[--disk->lost.n]);
        disk->stats.lost += chunk != NULL;
        if (chunk && worker_chunk_keep(chunk)->lost && disk->damaged)
            disk->damaged(disk->told_arg, chunk);
    }
}
