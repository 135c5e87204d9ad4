// SPDX-License-Identifier: Apache-2.0
#include "worker/disk/disk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "worker/disk/state.h"

// ---- its life -----------------------------------------------------------------------------------

enum common_code worker_disk_new(struct common_loop *loop, struct worker_files *files,
                                 const struct worker_disk_options *options, struct worker_disk **out,
                                 struct common_error *err)
{
    struct worker_disk *disk = calloc(1, sizeof *disk);
    if (!disk) {
        files->ops->close(files);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for --store");
    }
    disk->backing.ops = &worker_disk_backing_ops;
    disk->loop = loop;
    disk->files = disk->directory = files;
    disk->fsync = options->fsync;
    disk->waiting = options->waiting ? options->waiting : WORKER_WAITING_BYTES;
    disk->scrub_ns = options->scrub_ns;
    disk->attach_ns = options->attach_ns;
    disk->term = options->term;
    disk->damaged = options->damaged;
    disk->sealed = options->sealed;
    disk->wanted = options->wanted;
    disk->told_arg = options->arg;
    disk->path = strdup(options->path);
    enum common_code code =
        disk->path ? worker_disk_mark(disk, options, err)
                   : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for --store");
    if (code == COMMON_OK)
        code = worker_disk_boot_read(disk, options->boot, err);
    if (code != COMMON_OK) {
        worker_disk_free(disk);
        return code;
    }
    *out = disk;
    return COMMON_OK;
}

const char *worker_disk_path(const struct worker_disk *disk)
{
    return disk ? disk->path : NULL;
}

static bool synced(int result)
{
    return result == 0 || result == -ENOENT; // sealed meanwhile, or dropped
}

// False: some of it may not be on the disk.
static bool sync_all(struct worker_disk *disk)
{
    bool all = true;
    const struct worker_files_ops *ops = disk->files->ops;
    char name[WORKER_NAME_BYTES];
    for (uint32_t i = 0; i < disk->unsynced_chunks.n; i++) {
        worker_name_log(disk->unsynced_chunks.ids[i], name);
        all = synced(ops->sync(disk->files, name)) && all;
    }
    for (uint32_t i = 0; i < disk->unsynced_sessions.n; i++) {
        worker_disk_session_name(disk->unsynced_sessions.ids[i], name);
        all = synced(ops->sync(disk->files, name)) && all;
    }
    all = ops->sync_folder(disk->files, "chunks") == 0 && all;
    return ops->sync_folder(disk->files, "sessions") == 0 && all;
}

void worker_disk_close(struct worker_disk *disk)
{
    if (!disk || disk->state == WORKER_DISK_CLOSED)
        return;
    worker_disk_rest(disk);
    bool all = disk->state == WORKER_DISK_OPEN && worker_disk_catch_up(disk);
    if (disk->state == WORKER_DISK_OPEN && !all)
        common_log_warn("--store %s lacks some of what must be kept", disk->path);
    if (disk->state == WORKER_DISK_OPEN && disk->fsync == WORKER_FSYNC_INTERVAL && sync_all(disk) && all &&
        !disk->astray)
        worker_disk_boot_close(disk);
    disk->state = WORKER_DISK_CLOSED;
}

void worker_disk_free(struct worker_disk *disk)
{
    if (!disk)
        return;
    worker_disk_rest(disk);
    disk->directory->ops->close(disk->directory);
    worker_ids_free(&disk->retry);
    worker_ids_free(&disk->full);
    worker_ids_free(&disk->unsynced_chunks);
    worker_ids_free(&disk->unsynced_sessions);
    worker_ids_free(&disk->touched);
    worker_ids_free(&disk->sync_chunks);
    worker_ids_free(&disk->sync_sessions);
    worker_ids_free(&disk->scrubs);
    worker_ids_free(&disk->lost);
    free(disk->rows);
    free(disk->path);
    free(disk);
}

// ---- the queue ----------------------------------------------------------------------------------

// What was asked for was not done: memory has it, and the file is rewritten from it.
static void file_failed(void *arg, const char *name, int why, uint64_t batch)
{
    struct worker_disk *disk = arg;
    struct common_error err;
    const char *id = strchr(name, '/');
    uint64_t number = id ? strtoull(id + 1, NULL, 16) : 0;
    struct worker_chunk *chunk =
        strncmp(name, "chunks/", 7) == 0 ? worker_store_find(disk->store, number) : NULL;
    struct worker_session *session =
        strncmp(name, "sessions/", 9) == 0 ? worker_map_get(disk->sessions, number) : NULL;
    if (!chunk && !session)
        return; // it has gone meanwhile
    disk->mended = WORKER_NOT_MENDED;
    (void)worker_disk_refused(disk, why, &err);
    if (session)
        worker_disk_session_failed(disk, session, batch);
    if (!chunk)
        return;
    struct worker_keep *keep = worker_chunk_keep(chunk);
    keep->mended = WORKER_NOT_MENDED;
    keep->withdrawn = disk->ahead = true; // it may be what it should have said
    worker_disk_later(disk, chunk);
}

enum common_code worker_disk_queue_begin(struct worker_disk *disk, struct common_error *err)
{
    const struct worker_queue_options options = {
        .loop = disk->loop, .bytes_max = disk->waiting, .failed = file_failed, .arg = disk};
    disk->reader = disk->directory->ops->again(disk->directory);
    disk->queue = disk->reader ? worker_queue_new(disk->directory, &options) : NULL;
    if (!disk->queue)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "the system has no memory or no thread for --store");
    disk->files = worker_queue_files(disk->queue);
    return COMMON_OK;
}

static enum common_code took(const struct worker_disk *disk, bool failed, struct common_error *err)
{
    return failed ? common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                     "the worker's --store %s cannot be written", disk->path)
                  : COMMON_OK;
}

enum common_code worker_disk_took(struct worker_disk *disk, const struct worker_session *session,
                                  uint64_t first, uint64_t count, const struct worker_disk_wait *wait,
                                  struct common_error *err)
{
    if (!worker_disk_waited(disk, wait))
        return common_error_set(err, COMMON_UNAVAILABLE, "the worker is leaving");
    bool failed = session->logged.mended > wait->batch;
    uint32_t span = 0,
             from = disk->mended > wait->batch ? worker_session_span(session, first, count, &span) : 0;
    for (uint32_t i = from; i < from + span && !failed; i++)
        failed = worker_chunk_keep(session->chunks[i].chunk)->mended > wait->batch;
    return took(disk, failed, err);
}

enum common_code worker_disk_took_layout(struct worker_disk *disk, const struct worker_session *session,
                                         const struct worker_disk_wait *wait, struct common_error *err)
{
    const struct worker_logged *logged = &session->logged;
    if (!worker_disk_waited(disk, wait))
        return common_error_set(err, COMMON_UNAVAILABLE, "the worker is leaving");
    return took(disk, logged->mended > wait->batch && (logged->owed || logged->laid > wait->batch), err);
}

void worker_disk_start(struct worker_disk *disk)
{
    if (disk && disk->queue)
        worker_queue_begin(disk->queue);
}

bool worker_disk_crowded(const struct worker_disk *disk)
{
    return disk && disk->queue && worker_queue_bytes(disk->queue) >= disk->waiting / 2;
}

void worker_disk_end_waits(struct worker_disk *disk)
{
    if (disk && disk->queue)
        worker_queue_end_waits(disk->queue);
}

bool worker_disk_slow(const struct worker_disk *disk)
{
    if (!disk || !disk->queue)
        return false;
    bool syncs = disk->fsync == WORKER_FSYNC_ALWAYS; // each batch: the next one takes as long as the last
    return worker_queue_stands(disk->queue) ||
           (syncs && worker_queue_took(disk->queue) > WORKER_QUEUE_SLOW_NS);
}

void worker_disk_get_stats(const struct worker_disk *disk, struct worker_disk_stats *out)
{
    *out = disk ? disk->stats : (struct worker_disk_stats){0};
    out->failing = disk && disk->told;
    out->waiting = disk && disk->queue ? worker_queue_bytes(disk->queue) : 0;
}
