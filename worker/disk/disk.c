// SPDX-License-Identifier: Apache-2.0
#include "worker/disk/disk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/failpoint.h"
#include "common/log.h"
#include "worker/disk/state.h"

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
    disk->stats.refused++;
    if (!disk->told)
        common_log_error(
            "--store %s does not take what is to be kept: what comes is refused until it does: %s",
            disk->path, strerror(-why));
    disk->told = true;
    return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the worker's --store %s does not take it: %s",
                            disk->path, strerror(-why));
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
    common_log_error("a file of --store is damaged, nothing of it is used: %s/%s %s: %s", disk->path, name,
                     what, result == 0 ? "it lies in quarantine/" : strerror(-result));
}

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
    disk->loop = loop;
    disk->files = files;
    disk->fsync = options->fsync;
    disk->scrub_ns = options->scrub_ns;
    disk->attach_ns = options->attach_ns;
    disk->term = options->term;
    disk->damaged = options->damaged;
    disk->sealed = options->sealed;
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
        common_log_warn("--store %s has not taken all that is to be kept", disk->path);
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
    disk->files->ops->close(disk->files);
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

int worker_disk_sync(struct worker_disk *disk, const char *name)
{
    uint64_t began_ns = common_clock_ns();
    int result = disk->files->ops->sync(disk->files, name);
    if (result == 0)
        common_buckets_add(&disk->stats.synced, common_clock_ns() - began_ns);
    return result;
}

void worker_disk_get_stats(const struct worker_disk *disk, struct worker_disk_stats *out)
{
    *out = disk ? disk->stats : (struct worker_disk_stats){0};
    out->failing = disk && disk->told;
}
