// SPDX-License-Identifier: Apache-2.0
// Background work: writing what is behind, and, on the thread, syncing, sealing and rereading.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "worker/disk/fetch.h"
#include "worker/disk/state.h"
#include "worker/store/cold.h"

#define TICK_NS      (1 * COMMON_NS_PER_S)
#define JOB_NS       (20 * COMMON_NS_PER_MS) // the same while a job is under way
#define QUIET_NS     (1 * COMMON_NS_PER_S)   // before a full chunk is sealed
#define SCRUB_MIN_NS (1 * COMMON_NS_PER_MS)  // between two files

// ---- what is behind -----------------------------------------------------------------------------

// Whether the chunk waits for rows that are being read into memory.
static bool is_wanted(const struct worker_disk *disk, struct worker_chunk *chunk)
{
    return disk->queue && disk->wanted && worker_chunk_keep(chunk)->behind && worker_chunk_any_cold(chunk);
}

// Those that wait for rows are left in the list.
static bool catch_up_chunks(struct worker_disk *disk, int *why)
{
    uint32_t left = 0;
    bool all = true;
    for (uint32_t i = 0; i < disk->retry.n; i++) {
        struct worker_chunk *chunk = worker_store_find(disk->store, disk->retry.ids[i]);
        struct worker_keep *keep = chunk ? worker_chunk_keep(chunk) : NULL;
        bool wanted = chunk && is_wanted(disk, chunk);
        if (wanted)
            disk->wanted(disk->told_arg, chunk);
        all = all && (!keep || !keep->behind || wanted || worker_disk_chunk_anew(disk, chunk, why));
        if (keep && keep->behind) {
            disk->retry.ids[left++] = disk->retry.ids[i];
            continue;
        }
        if (keep)
            keep->retry = false;
        if (chunk)
            worker_disk_consider(disk, chunk);
    }
    disk->retry.n = left;
    disk->ahead &= disk->unlisted || left > 0;
    return all;
}

// Its log comes after those of chunks that wait for rows.
static bool waits_for_rows(const struct worker_disk *disk, const struct worker_session *session)
{
    for (uint32_t i = 0; disk->ahead && i < session->n_chunks; i++)
        if (worker_chunk_keep(session->chunks[i].chunk)->withdrawn &&
            is_wanted(disk, session->chunks[i].chunk))
            return true;
    return false;
}

// One that waits for a chunk of its own keeps no other waiting.
static bool catch_up_sessions(struct worker_disk *disk, int *why)
{
    uint32_t left = 0;
    bool all = true;
    for (uint32_t i = 0; i < disk->touched.n; i++) {
        struct worker_session *session = worker_map_get(disk->sessions, disk->touched.ids[i]);
        bool waits = session && waits_for_rows(disk, session);
        int result = session && !waits ? worker_disk_session_write(disk, session) : 0;
        all = all && result == 0;
        *why = result ? result : *why;
        if (result != 0 || waits) {
            disk->touched.ids[left++] = disk->touched.ids[i];
        } else if (session) {
            session->logged.listed = false;
        }
    }
    disk->touched.n = left;
    return all;
}

// Nothing is behind any more, as far as anybody has asked: it takes a batch to know whether the files took that.
static void told_again(struct worker_disk *disk)
{
    if (!disk->told)
        return;
    if (disk->queue && !disk->taken)
        disk->taken = worker_queue_asked(disk->queue);
    if (disk->queue && worker_queue_done(disk->queue) < disk->taken)
        return;
    disk->told = false;
    common_log_info("--store %s can be written again", disk->path);
}

bool worker_disk_catch_up(struct worker_disk *disk)
{
    struct common_error err;
    int why = 0;
    worker_disk_relist(disk);
    bool all = catch_up_sessions(disk, &why) && catch_up_chunks(disk, &why);
    if (all && disk->unlisted) {
        why = -ENOMEM;
        all = false;
    }
    if (!all) {
        (void)worker_disk_refused(disk, why, &err);
        return false;
    }
    if (disk->queue && disk->retry.n == 0)
        worker_mend(&disk->mended, worker_queue_next(disk->queue));
    told_again(disk);
    return true;
}

// ---- syncing ------------------------------------------------------------------------------------

static void sync_list(struct worker_disk *disk, struct worker_ids *list,
                      void (*name_of)(uint64_t, char[WORKER_NAME_BYTES]), const atomic_bool *stop)
{
    char name[WORKER_NAME_BYTES];
    uint32_t left = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        name_of(list->ids[i], name);
        uint64_t began_ns = common_clock_ns();
        int result = atomic_load(stop) ? -EINTR : disk->thread_files->ops->sync(disk->thread_files, name);
        if (result == 0)
            common_buckets_add(&disk->thread_synced, common_clock_ns() - began_ns);
        if (result != 0 && result != -ENOENT) // sealed meanwhile, or dropped
            list->ids[left++] = list->ids[i];
    }
    list->n = left;
}

static void sync_run(void *arg, const atomic_bool *stop)
{
    struct worker_disk *disk = arg;
    sync_list(disk, &disk->sync_chunks, worker_name_log, stop);
    sync_list(disk, &disk->sync_sessions, worker_disk_session_name, stop);
    (void)disk->thread_files->ops->sync_folder(disk->thread_files, "chunks");
    (void)disk->thread_files->ops->sync_folder(disk->thread_files, "sessions");
}

// After an error the disk's part of a file is unknown, whatever a second try says: it is rewritten.
static void sync_end(struct worker_disk *disk)
{
    disk->syncing = false;
    common_buckets_sum(&disk->stats.synced, &disk->thread_synced);
    disk->thread_synced = (struct common_buckets){0};
    for (uint32_t i = 0; i < disk->sync_chunks.n; i++) {
        struct worker_chunk *chunk = worker_store_find(disk->store, disk->sync_chunks.ids[i]);
        if (chunk)
            worker_disk_later(disk, chunk);
    }
    for (uint32_t i = 0; i < disk->sync_sessions.n; i++) {
        struct worker_session *session = worker_map_get(disk->sessions, disk->sync_sessions.ids[i]);
        if (!session)
            continue;
        session->logged.anew = true;
        worker_disk_touch(disk, session);
    }
    if (disk->sync_chunks.n + disk->sync_sessions.n > 0)
        common_log_warn("--store %s: files could not be synced and are written again files=%u", disk->path,
                        disk->sync_chunks.n + disk->sync_sessions.n);
    disk->sync_chunks.n = disk->sync_sessions.n = 0;
}

static void swap(struct worker_ids *a, struct worker_ids *b)
{
    struct worker_ids was = *a;
    *a = *b;
    *b = was;
}

// What the queue has yet to write is to be synced, too: the job waits for it.
static void sync_submit(struct worker_disk *disk)
{
    if (worker_queue_done(disk->queue) < disk->sync_after)
        return;
    disk->sync_after = 0;
    disk->sync_job.run = sync_run;
    disk->sync_job.arg = disk;
    worker_disk_thread_submit(disk->thread, &disk->sync_job);
}

static void sync_begin(struct worker_disk *disk)
{
    if (disk->syncing || disk->unsynced_chunks.n + disk->unsynced_sessions.n == 0)
        return;
    swap(&disk->unsynced_chunks, &disk->sync_chunks);
    swap(&disk->unsynced_sessions, &disk->sync_sessions);
    for (uint32_t i = 0; i < disk->sync_chunks.n; i++) {
        struct worker_chunk *chunk = worker_store_find(disk->store, disk->sync_chunks.ids[i]);
        if (chunk)
            worker_chunk_keep(chunk)->unsynced = false;
    }
    for (uint32_t i = 0; i < disk->sync_sessions.n; i++) {
        struct worker_session *session = worker_map_get(disk->sessions, disk->sync_sessions.ids[i]);
        if (session)
            session->logged.unsynced = false;
    }
    disk->syncing = true;
    disk->sync_after = worker_queue_asked(disk->queue);
    sync_submit(disk);
}

// ---- sealing ------------------------------------------------------------------------------------

// The log as well: a loss of power may bring it back, and then it counts.
static int sync_both(struct worker_files *files, struct worker_seal *seal, const char *sealed)
{
    char log[WORKER_NAME_BYTES];
    worker_name_log(seal->id, log);
    int result = files->ops->sync(files, log);
    seal->unsure = result != 0 && result != -ENOENT;
    return result ? result : files->ops->sync(files, sealed);
}

static void seal_run(void *arg, const atomic_bool *stop)
{
    struct worker_disk *disk = arg;
    struct worker_files *files = disk->thread_files;
    for (uint32_t i = 0; i < disk->n_seals; i++) {
        struct worker_seal *seal = &disk->seals[i];
        struct worker_image image;
        char name[WORKER_NAME_BYTES];
        seal->result = atomic_load(stop) ? -EINTR : worker_image_read(files, seal->id, NULL, NULL, &image);
        if (seal->result != 0)
            continue;
        seal->damaged = image.damaged;
        seal->end = image.bytes;
        worker_name_seal(seal->id, name);
        (void)files->ops->remove(files, name);
        seal->result = image.damaged || image.sealed || !worker_image_full(&image)
                           ? -EAGAIN
                           : worker_image_seal(files, &image, name);
        if (seal->result == 0 && disk->fsync != WORKER_FSYNC_NEVER)
            seal->result = sync_both(files, seal, name);
        if (seal->result != 0)
            (void)files->ops->remove(files, name);
        worker_image_end(&image);
        int64_t size = seal->result == 0 ? files->ops->size(files, name) : 0;
        seal->bytes = size > 0 ? (uint64_t)size : 0;
        COMMON_FAILPOINT("disk_seal_written");
    }
}

// The sealed file takes the log's place, if nothing has come to the log since.
static void take_sealed(struct worker_disk *disk, struct worker_chunk *chunk, struct worker_seal *seal)
{
    const struct worker_files_ops *ops = disk->files->ops;
    struct worker_keep *keep = chunk ? worker_chunk_keep(chunk) : NULL;
    char from[WORKER_NAME_BYTES], to[WORKER_NAME_BYTES], log[WORKER_NAME_BYTES], what[32];
    bool same = keep && keep->serial == seal->serial && !keep->behind && !keep->sealed;
    worker_name_seal(seal->id, from);
    worker_name_sealed(seal->id, to);
    worker_name_log(seal->id, log);
    if (same && seal->damaged) { // memory is what counts
        snprintf(what, sizeof what, "chunk=%" PRIu64, seal->id);
        worker_disk_quarantine(disk, log, what);
        worker_disk_later(disk, chunk);
    }
    if (same && seal->unsure) // as after any sync that has failed
        worker_disk_later(disk, chunk);
    if (!same || seal->result != 0 || keep->end != seal->end ||
        worker_queue_replace(disk->queue, from, to, log) != 0) {
        (void)ops->remove(disk->files, from);
        if (same && keep->end != seal->end) // the log's end was not written yet
            worker_disk_consider(disk, chunk);
        return;
    }
    disk->stats.bytes += seal->bytes - keep->end;
    keep->end = seal->bytes;
    keep->sealed = keep->naming = seal->taken = true;
    keep->serial = ++disk->serial; // a requested scrub, which the log does not mention
}

// They are in their places. One that is not is behind, and is rewritten.
static void seal_named(void *arg)
{
    struct worker_disk *disk = arg;
    disk->sealing = disk->naming = false;
    for (uint32_t i = 0; i < disk->n_seals; i++) {
        struct worker_chunk *chunk =
            disk->seals[i].taken ? worker_store_find(disk->store, disk->seals[i].id) : NULL;
        struct worker_keep *keep = chunk ? worker_chunk_keep(chunk) : NULL;
        COMMON_FAILPOINT("disk_seal_named");
        if (!keep)
            continue;
        keep->naming = false;
        if (!keep->sealed || keep->behind)
            continue;
        disk->stats.sealed++;
        worker_store_sealed(disk->store, chunk);
    }
    disk->n_seals = 0;
    if (disk->sealed)
        disk->sealed(disk->told_arg);
}

static void seal_end(struct worker_disk *disk)
{
    disk->naming = true;
    for (uint32_t i = 0; i < disk->n_seals; i++)
        take_sealed(disk, worker_store_find(disk->store, disk->seals[i].id), &disk->seals[i]);
    if (!worker_disk_wait(disk, &disk->named, seal_named, disk))
        seal_named(disk);
}

static void seal_begin(struct worker_disk *disk, uint64_t now_ns)
{
    uint32_t left = 0;
    bool hurry = false;
    if (disk->sealing)
        return;
    for (uint32_t i = 0; i < disk->full.n; i++) {
        struct worker_chunk *chunk = worker_store_find(disk->store, disk->full.ids[i]);
        struct worker_keep *keep = chunk ? worker_chunk_keep(chunk) : NULL;
        bool quiet = disk->hurry ? keep && worker_disk_chunk_full(chunk)
                                 : keep && keep->changed_ns + QUIET_NS <= now_ns;
        bool written = keep && keep->grew <= worker_queue_done(disk->queue); // the file is what was asked for
        bool later = keep && (disk->n_seals == SEALS_MAX || !quiet || !written);
        hurry = hurry || (disk->hurry && quiet && !written);
        if (later)
            disk->full.ids[left++] = disk->full.ids[i];
        if (!keep || later)
            continue;
        keep->full = false;
        if (!keep->sealed && !keep->behind && keep->end > 0 && worker_disk_chunk_full(chunk))
            disk->seals[disk->n_seals++] =
                (struct worker_seal){.id = disk->full.ids[i], .serial = keep->serial, .result = -EINTR};
    }
    disk->full.n = left;
    disk->hurry = hurry;
    if (disk->n_seals == 0)
        return;
    disk->sealing = true;
    disk->seal_job.run = seal_run;
    disk->seal_job.arg = disk;
    worker_disk_thread_submit(disk->thread, &disk->seal_job);
}

// ---- scrubbing ----------------------------------------------------------------------------------

static void scrub_run(void *arg, const atomic_bool *stop)
{
    struct worker_disk *disk = arg;
    struct worker_image image;
    (void)stop; // one file
    int result = worker_image_read(disk->thread_files, disk->scrub_id, NULL, NULL, &image);
    disk->scrub_result = result;
    if (result != 0)
        return;
    disk->scrub_result = image.damaged || image.bytes < disk->scrub_end ? -EBADMSG : 0;
    worker_image_end(&image);
}

// What is damaged on disk is complete in memory: it is rewritten. What is cold is not.
static void scrub_end(struct worker_disk *disk)
{
    struct worker_chunk *chunk = worker_store_find(disk->store, disk->scrub_id);
    struct worker_keep *keep = chunk ? worker_chunk_keep(chunk) : NULL;
    char name[WORKER_NAME_BYTES], what[80];
    disk->scrubbing = false;
    if (disk->scrub_result == 0 || !keep || keep->serial != disk->scrub_serial || keep->behind)
        return;
    if (!worker_fetch_lost(disk->scrub_result)) { // the next round will tell
        common_log_warn("a file of --store cannot be read: %s chunk=%" PRIu64, strerror(-disk->scrub_result),
                        disk->scrub_id);
        return;
    }
    if (worker_chunk_any_cold(chunk)) {
        worker_disk_lost(disk, chunk);
        return;
    }
    if (keep->sealed)
        worker_name_sealed(disk->scrub_id, name);
    else
        worker_name_log(disk->scrub_id, name);
    snprintf(what, sizeof what, "chunk=%" PRIu64 " position=%" PRIu64 ": it is written again from memory",
             disk->scrub_id, worker_chunk_first(chunk));
    worker_disk_quarantine(disk, name, what);
    worker_disk_later(disk, chunk);
}

static void scrub_begin(struct worker_disk *disk, uint64_t now_ns)
{
    size_t cursor = 0;
    struct worker_chunk *chunk;
    if (disk->scrub_ns == 0 || disk->scrubbing || now_ns < disk->scrub_next_ns)
        return;
    if (disk->scrubs.n == 0) { // another round
        while (worker_store_next(disk->store, &cursor, &chunk))
            if (!worker_ids_add(&disk->scrubs, worker_chunk_id(chunk)))
                break;
        disk->scrub_every_ns = disk->scrub_ns / (disk->scrubs.n + 1);
        if (disk->scrub_every_ns < SCRUB_MIN_NS)
            disk->scrub_every_ns = SCRUB_MIN_NS;
    }
    disk->scrub_next_ns = now_ns + disk->scrub_every_ns;
    if (disk->scrubs.n == 0)
        return;
    disk->scrub_id = disk->scrubs.ids[--disk->scrubs.n];
    chunk = worker_store_find(disk->store, disk->scrub_id);
    const struct worker_keep *keep = chunk ? worker_chunk_keep(chunk) : NULL;
    if (!keep || keep->behind || keep->end == 0 || keep->naming ||
        (!keep->sealed &&
         keep->grew > worker_queue_done(disk->queue))) // its end may not be written yet: in the next round
        return;
    disk->scrub_serial = keep->serial;
    disk->scrub_end = keep->end;
    disk->scrubbing = true;
    disk->scrub_job.run = scrub_run;
    disk->scrub_job.arg = disk;
    worker_disk_thread_submit(disk->thread, &disk->scrub_job);
}

void worker_disk_set_scrub(struct worker_disk *disk, uint64_t scrub_ns)
{
    if (scrub_ns == disk->scrub_ns)
        return;
    disk->scrub_ns = scrub_ns;
    disk->scrubs.n = 0;
    disk->scrub_every_ns = disk->scrub_next_ns = 0;
}

// ---- turns --------------------------------------------------------------------------------------

static uint64_t next_tick(const struct worker_disk *disk)
{
    uint64_t after = TICK_NS;
    if (disk->scrub_ns > 0 && disk->scrub_every_ns > 0 && disk->scrub_every_ns < after)
        after = disk->scrub_every_ns;
    return disk->sealing || disk->syncing || disk->scrubbing ? JOB_NS : after;
}

static void tick(void *arg)
{
    struct worker_disk *disk = arg;
    uint64_t now_ns = common_clock_ns();
    worker_queue_take_synced(disk->queue, &disk->stats.synced);
    if (disk->syncing && disk->sync_after)
        sync_submit(disk);
    else if (disk->syncing && atomic_load(&disk->sync_job.done))
        sync_end(disk);
    if (disk->sealing && !disk->naming && atomic_load(&disk->seal_job.done))
        seal_end(disk);
    if (disk->scrubbing && atomic_load(&disk->scrub_job.done))
        scrub_end(disk);
    worker_disk_tell_lost(disk);
    if (worker_disk_catch_up(disk))
        seal_begin(disk, now_ns);
    if (disk->fsync == WORKER_FSYNC_INTERVAL && now_ns >= disk->sync_next_ns) {
        sync_begin(disk);
        disk->sync_next_ns = now_ns + TICK_NS;
    }
    scrub_begin(disk, now_ns);
    common_timer_start(disk->timer, next_tick(disk), false);
}

enum common_code worker_disk_work(struct worker_disk *disk, struct common_error *err)
{
    enum common_code code = common_timer_new(disk->loop, tick, disk, &disk->timer);
    if (code == COMMON_OK)
        code = worker_disk_thread_new(&disk->thread);
    if (code == COMMON_OK)
        code = worker_disk_lanes_new(disk);
    if (code == COMMON_OK && !(disk->thread_files = disk->files->ops->again(disk->files)))
        code = COMMON_RESOURCE_EXHAUSTED;
    if (code != COMMON_OK)
        return common_error_set(err, code, "the system has no memory or no thread for --store");
    common_timer_start(disk->timer, TICK_NS, false);
    return COMMON_OK;
}

void worker_disk_rest(struct worker_disk *disk)
{
    common_timer_free(disk->timer);
    disk->timer = NULL;
    worker_disk_thread_free(disk->thread);
    disk->thread = NULL;
    worker_disk_lanes_free(disk);
    if (disk->sealing && !disk->naming && disk->queue)
        seal_end(disk);
    worker_disk_queue_end(disk);
    for (uint32_t i = 0; disk->syncing && i < disk->sync_chunks.n; i++) // whatever it has come to
        disk->astray |= !worker_ids_add(&disk->unsynced_chunks, disk->sync_chunks.ids[i]);
    for (uint32_t i = 0; disk->syncing && i < disk->sync_sessions.n; i++)
        disk->astray |= !worker_ids_add(&disk->unsynced_sessions, disk->sync_sessions.ids[i]);
    disk->sealing = disk->syncing = disk->scrubbing = false;
    disk->sync_after = 0;
    if (disk->thread_files)
        disk->thread_files->ops->close(disk->thread_files);
    disk->thread_files = NULL;
}
