// SPDX-License-Identifier: Apache-2.0
// Whether a loss of power may have taken something: the directory says of which start of the machine it is, and whether
// all that was written is on the disk.
//
//     boot ID open     what was written may not be on the disk: with another ID it may be lost
//     boot ID sync     all that was answered is (--fsync always): a process of the same ID syncs the rest,
//                      because it may answer that it is there
//     boot ID safe     all of it is: from an end in order on
//
// A file that is missing, or not like this, counts as unsafe.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "worker/disk/fetch.h"
#include "worker/disk/state.h"

#define BOOT_NAME   "boot"
#define BOOT_SYSTEM "/proc/sys/kernel/random/boot_id"

static void system_boot(char out[WORKER_BOOT_BYTES])
{
    ssize_t n = -1;
    int fd = open(BOOT_SYSTEM, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, out, WORKER_BOOT_BYTES - 1);
        close(fd);
    }
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, " \n")] = 0;
}

enum common_code worker_disk_boot_read(struct worker_disk *disk, const char *boot, struct common_error *err)
{
    char have[WORKER_BOOT_BYTES + 16], open[WORKER_BOOT_BYTES + 16], sync[WORKER_BOOT_BYTES + 16];
    if (boot)
        snprintf(disk->boot, sizeof disk->boot, "%s", boot);
    else
        system_boot(disk->boot);
    int64_t n = disk->files->ops->read(disk->files, BOOT_NAME, 0, have, sizeof have - 1);
    if (n < 0 && !worker_fetch_lost((int)n)) // it may say that all is safe
        return common_error_set(err, COMMON_UNAVAILABLE, "--store %s: %s cannot be read: %s", disk->path,
                                BOOT_NAME, strerror((int)-n));
    have[n > 0 ? n : 0] = 0;
    snprintf(open, sizeof open, "boot %s open\n", disk->boot);
    snprintf(sync, sizeof sync, "boot %s sync\n", disk->boot);
    const char *end = strrchr(have, ' ');
    bool is_safe =
        strncmp(have, "boot ", 5) == 0 && end && (strcmp(end, " safe\n") == 0 || strcmp(end, " sync\n") == 0);
    bool same = disk->boot[0] && strcmp(have, open) == 0;
    disk->dark = !is_safe && !same;
    disk->unsafe = !is_safe || strcmp(have, sync) == 0;
    return COMMON_OK;
}

static bool boot_write(struct worker_disk *disk, const char *state)
{
    const struct worker_files_ops *ops = disk->files->ops;
    char text[WORKER_BOOT_BYTES + 16];
    int len = snprintf(text, sizeof text, "boot %s %s\n", disk->boot, state);
    (void)ops->remove(disk->files, BOOT_NAME ".new"); // of an earlier try
    return ops->write(disk->files, BOOT_NAME ".new", 0, &(struct iovec){text, (size_t)len}, 1) == 0 &&
           ops->sync(disk->files, BOOT_NAME ".new") == 0 && !COMMON_FAILPOINT_FAILS("disk_boot_written") &&
           ops->move(disk->files, BOOT_NAME ".new", BOOT_NAME) == 0 &&
           ops->sync_folder(disk->files, ".") == 0;
}

// What the process before has written, and may not have synced. False: it cannot be synced.
static bool sync_old(struct worker_disk *disk)
{
    struct worker_chunk *chunk;
    void *session;
    int why = 0;
    for (size_t cursor = 0; why == 0 && worker_store_next(disk->store, &cursor, &chunk);)
        if (worker_chunk_keep(chunk)->end > 0 && !worker_chunk_keep(chunk)->sealed)
            why = worker_disk_unsynced(disk, chunk);
    for (size_t cursor = 0; why == 0 && worker_map_next(disk->sessions, &cursor, &session);)
        why = worker_disk_session_unsynced(disk, session);
    if (why == 0 && disk->fsync == WORKER_FSYNC_ALWAYS) { // files that it had just made
        why = disk->files->ops->sync_folder(disk->files, "chunks");
        why = why ? why : disk->files->ops->sync_folder(disk->files, "sessions");
    }
    return why == 0;
}

// Sessions in doubt, which a next process must not forget.
static bool write_doubts(struct worker_disk *disk)
{
    void *session;
    for (size_t cursor = 0; worker_map_next(disk->sessions, &cursor, &session);)
        if (((struct worker_session *)session)->doubtful)
            worker_disk_touch(disk, session);
    return worker_disk_catch_up(disk);
}

enum common_code worker_disk_boot_open(struct worker_disk *disk, struct common_error *err)
{
    bool any = disk->sessions->count > 0;
    bool synced = !any || !disk->unsafe || sync_old(disk);
    if (write_doubts(disk) &&
        boot_write(disk, synced && disk->fsync == WORKER_FSYNC_ALWAYS ? "sync" : "open"))
        return COMMON_OK;
    int result = disk->files->ops->remove(disk->files, BOOT_NAME); // a full disk lets that
    if (result == 0 || result == -ENOENT)
        return COMMON_OK;
    return common_error_set(err, COMMON_UNAVAILABLE, "--store %s cannot be written: %s", disk->path,
                            strerror(-result));
}

void worker_disk_boot_close(struct worker_disk *disk)
{
    if (!boot_write(disk, "safe"))
        common_log_warn("--store %s cannot record that everything is on disk", disk->path);
}
