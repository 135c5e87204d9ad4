// SPDX-License-Identifier: Apache-2.0
// The files of chunks, as memory changes.
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "worker/disk/state.h"
#include "worker/store/chunk.h"
#include "worker/store/cold.h"

#define SLACK_BYTES (UINT64_C(1) << 20) // a log that is longer than this and twice its rows is rewritten

static bool works(const struct worker_disk *disk)
{
    return disk && disk->state == WORKER_DISK_OPEN;
}

// ---- logs ---------------------------------------------------------------------------------------

// Its bytes are to be synced: now, or later. 0 or a negative errno.
int worker_disk_unsynced(struct worker_disk *disk, struct worker_chunk *chunk)
{
    char name[WORKER_NAME_BYTES];
    worker_name_log(chunk->id, name);
    chunk->keep.changed_ns = common_clock_ns();
    chunk->keep.grew = disk->queue ? worker_queue_next(disk->queue) : 0;
    if (disk->fsync == WORKER_FSYNC_INTERVAL && !chunk->keep.unsynced)
        chunk->keep.unsynced = worker_ids_add(&disk->unsynced_chunks, chunk->id);
    bool now = disk->fsync == WORKER_FSYNC_ALWAYS ||
               (disk->fsync == WORKER_FSYNC_INTERVAL && !chunk->keep.unsynced); // no memory to do it later
    return now ? worker_disk_sync_soon(disk, name) : 0;
}

static void count_bytes(struct worker_disk *disk, struct worker_chunk *chunk, uint64_t end)
{
    disk->stats.bytes += end - chunk->keep.end; // wraps where it is less, and back
    chunk->keep.end = end;
}

static int add_record(struct worker_disk *disk, struct worker_chunk *chunk, uint32_t type,
                      const struct iovec *payload, int n)
{
    struct worker_log log = {.owner = chunk->id, .end = chunk->keep.end};
    bool broken = false;
    worker_name_log(chunk->id, log.name);
    int result = worker_record_write(disk->files, &log, type, payload, n, &broken);
    if (broken)
        worker_disk_later(disk, chunk);
    if (result == 0)
        count_bytes(disk, chunk, log.end);
    return result;
}

// The record that every log begins with.
static int add_head(struct worker_disk *disk, struct worker_log *log, const struct worker_chunk *chunk)
{
    const struct worker_shape *shape = chunk->shape;
    struct worker_image_head head = {.first = chunk->first,
                                     .layers = shape->layers,
                                     .chunk_tokens = shape->chunk_tokens,
                                     .kv_type = shape->kv_type};
    struct worker_image_layer *layers = calloc(shape->layers, sizeof *layers);
    bool broken;
    if (!layers)
        return -ENOMEM;
    for (uint32_t l = 0; l < shape->layers; l++) {
        const struct worker_form *form = worker_shape_form(shape, l);
        if (form)
            layers[l] = (struct worker_image_layer){(uint32_t)form->k_wire, (uint32_t)form->v_wire};
    }
    const struct iovec payload[] = {{&head, sizeof head}, {layers, shape->layers * sizeof *layers}};
    int result = worker_record_write(disk->files, log, WORKER_RECORD_CHUNK, payload, 2, &broken);
    free(layers);
    return result;
}

static int rows_room(struct worker_disk *disk, uint64_t bytes)
{
    if (bytes <= disk->rows_bytes)
        return 0;
    free(disk->rows);
    disk->rows = malloc(bytes);
    disk->rows_bytes = disk->rows ? bytes : 0;
    return disk->rows ? 0 : -ENOMEM;
}

// The rows of a layer that memory has, by stretches of one state.
static int add_layer(struct worker_disk *disk, struct worker_log *log, const struct worker_chunk *chunk,
                     uint32_t layer)
{
    const struct worker_layer *l = chunk->layers[layer];
    uint32_t tokens = chunk->shape->chunk_tokens;
    struct common_error err;
    bool broken;
    int result = l ? rows_room(disk, tokens * (l->form->k_wire + l->form->v_wire)) : 0;
    for (uint32_t row = 0, n; l && row < tokens && result == 0; row += n) {
        struct worker_rows_head head = {.layer = layer, .row = row, .state = l->rows[row]};
        for (n = 1; row + n < tokens && l->rows[row + n] == l->rows[row];)
            n++;
        if (l->rows[row] == WORKER_ROW_ABSENT)
            continue;
        head.count = n;
        uint8_t *k = disk->rows, *v = k + n * l->form->k_wire;
        worker_chunk_read(chunk, layer, row, n, k, v);
        const struct iovec payload[] = {{&head, sizeof head},
                                        {k, n * l->form->k_wire},
                                        {v, n * l->form->v_wire}};
        result = worker_memory_lost(chunk->memory, &err)
                     ? -EIO
                     : worker_record_write(disk->files, log, WORKER_RECORD_SET, payload, 3, &broken);
    }
    return result;
}

// Rows that only the sealed file has must be in memory before it goes. They are, except where rows were taken
// back and whoever needs the log comes before they have been read (worker_disk_options.wanted): then the
// caller waits for the disk.
static int load_cold(struct worker_disk *disk, struct worker_chunk *chunk)
{
    enum common_code code = COMMON_OK;
    struct common_error err;
    worker_chunk_busy(chunk);
    for (uint32_t l = 0; l < chunk->shape->layers && code == COMMON_OK; l++)
        code = worker_store_load(disk->store, chunk, l, &err);
    worker_chunk_idle(chunk);
    return code == COMMON_OK ? 0 : code == COMMON_RESOURCE_EXHAUSTED ? -ENOMEM : -EIO;
}

bool worker_disk_chunk_anew(struct worker_disk *disk, struct worker_chunk *chunk, int *why)
{
    struct worker_log log = {.owner = chunk->id};
    char name[WORKER_NAME_BYTES], sealed[WORKER_NAME_BYTES];
    const struct worker_files_ops *ops = disk->files->ops;
    int result = worker_disk_full(disk) ? -EAGAIN : load_cold(disk, chunk);
    if (result != 0) {
        *why = result;
        return false;
    }
    worker_name_new(chunk->id, log.name);
    worker_name_log(chunk->id, name);
    worker_name_sealed(chunk->id, sealed);
    (void)ops->remove(disk->files, log.name); // of an earlier try
    if (result == 0)
        result = add_head(disk, &log, chunk);
    for (uint32_t l = 0; l < chunk->shape->layers && result == 0; l++)
        result = add_layer(disk, &log, chunk, l);
    if (result == 0 &&
        disk->fsync != WORKER_FSYNC_NEVER) // before it takes the place of what may be on the disk
        result = ops->sync(disk->files, log.name);
    if (COMMON_FAILPOINT_FAILS("disk_anew_written"))
        result = -ENOSPC;
    bool both = chunk->keep.sealed && disk->queue; // the sealed file goes only where the log has come
    if (result == 0 && both)
        result = worker_queue_replace(disk->queue, log.name, name, sealed);
    else if (result == 0)
        result = ops->move(disk->files, log.name, name);
    if (result != 0) {
        (void)ops->remove(disk->files, log.name);
        *why = result;
        return false;
    }
    COMMON_FAILPOINT("disk_anew_named");
    if (chunk->keep.sealed && !both)
        (void)ops->remove(disk->files, sealed); // where both are, the log counts
    chunk->keep.sealed = chunk->keep.behind = false;
    chunk->keep.serial = ++disk->serial; // what is being done with the one before comes to nothing
    count_bytes(disk, chunk, log.end);
    if (disk->queue) {
        worker_mend(&chunk->keep.mended, worker_queue_next(disk->queue));
        if (chunk->keep.withdrawn)
            disk->settles = chunk->keep.settles = worker_queue_next(disk->queue);
    }
    *why = disk->fsync == WORKER_FSYNC_ALWAYS ? worker_disk_sync_names(disk, "chunks", name) : 0;
    if (*why == 0)
        *why = worker_disk_unsynced(disk, chunk);
    return *why == 0;
}

// Ready for another record.
static bool log_ready(struct worker_disk *disk, struct worker_chunk *chunk, int *why)
{
    if (chunk->keep.behind || chunk->keep.sealed || chunk->keep.end == 0 ||
        chunk->keep.end > SLACK_BYTES + 2 * worker_chunk_bytes(chunk))
        return worker_disk_chunk_anew(disk, chunk, why);
    return true;
}

// ---- what the store says ------------------------------------------------------------------------

// Whether a piece brings nothing: all of its rows are there, and it does not alter them.
static bool is_known(struct worker_disk *disk, const struct worker_rows *piece, enum worker_row to)
{
    return to <= WORKER_ROW_APPENDED && worker_store_same(disk->store, piece, 1);
}

// A loss of power must not bring back what was taken back, in the place of what comes now: numbers of an append that
// failed would pass for those of one that was acknowledged. That is rare, and waits for the disk with any --fsync.
static int sync_withdrawn(struct worker_disk *disk, struct worker_chunk *chunk)
{
    char name[WORKER_NAME_BYTES];
    worker_name_log(chunk->id, name);
    int result = worker_disk_sync(disk, name);
    if (result == 0)
        result = worker_disk_sync_names(disk, "chunks", name);
    chunk->keep.withdrawn = result != 0;
    if (disk->queue)
        disk->settles = chunk->keep.settles = worker_queue_next(disk->queue);
    return result;
}

int worker_disk_needs(struct worker_disk *disk, const struct worker_session *session, const char *name)
{
    char needed[WORKER_NAME_BYTES];
    int why = 0;
    if (!disk->queue || disk->settles <= worker_queue_done(disk->queue))
        return 0;
    for (uint32_t i = 0; i < session->n_chunks && why == 0; i++) {
        const struct worker_chunk *chunk = session->chunks[i].chunk;
        worker_name_log(chunk->id, needed);
        if (chunk->keep.settles > worker_queue_done(disk->queue))
            why = worker_queue_needs(disk->queue, name, needed);
    }
    return why;
}

bool worker_disk_withdrawals_ready(struct worker_disk *disk, const struct worker_session *session, int *why)
{
    for (uint32_t i = 0; disk->ahead && i < session->n_chunks; i++) {
        struct worker_chunk *chunk = session->chunks[i].chunk;
        if (chunk->keep.behind && chunk->keep.withdrawn && !worker_disk_chunk_anew(disk, chunk, why))
            return false;
    }
    return true;
}

int worker_disk_withdrawn(struct worker_disk *disk, const struct worker_session *session)
{
    uint64_t position = UINT64_MAX; // appends of all layers lie past it
    int why = 0;
    for (uint32_t l = 0; l < session->spec->shape->layers; l++)
        if (worker_shape_form(session->spec->shape, l) && session->appended[l].length < position)
            position = session->appended[l].length;
    if (position == UINT64_MAX)
        return 0;
    for (uint32_t i = worker_session_at(session, position); i < session->n_chunks && why == 0; i++) {
        struct worker_chunk *chunk = session->chunks[i].chunk;
        if (!chunk->keep.withdrawn)
            continue;
        if (!chunk->keep.behind || worker_disk_chunk_anew(disk, chunk, &why))
            why = sync_withdrawn(disk, chunk);
    }
    return why;
}

static int add_rows(struct worker_disk *disk, const struct worker_rows *piece, enum worker_row to)
{
    const struct worker_form *form = worker_shape_form(piece->chunk->shape, piece->layer);
    struct worker_rows_head head = {
        .layer = piece->layer, .row = piece->row, .count = piece->count, .state = (uint32_t)to};
    int why = 0;
    if (to == WORKER_ROW_APPENDED) {
        head.session = disk->append_session;
        head.term = disk->append_term;
        head.write = disk->append_write;
    }
    const struct iovec payload[] = {{&head, sizeof head},
                                    {(void *)(uintptr_t)piece->k, piece->count * form->k_wire},
                                    {(void *)(uintptr_t)piece->v, piece->count * form->v_wire}};
    if (!log_ready(disk, piece->chunk, &why))
        return why;
    int result = piece->chunk->keep.withdrawn ? sync_withdrawn(disk, piece->chunk) : 0;
    if (result == 0)
        result = add_record(disk, piece->chunk, WORKER_RECORD_ROWS, payload, 3);
    return result ? result : worker_disk_unsynced(disk, piece->chunk);
}

enum common_code worker_disk_rows(struct worker_disk *disk, const struct worker_rows *pieces, uint32_t n,
                                  enum worker_row to, struct common_error *err)
{
    int why = 0;
    if (!works(disk))
        return COMMON_OK;
    if (!worker_disk_layouts_ready(disk, &why))
        return worker_disk_refused(disk, why, err);
    for (uint32_t i = 0; i < n; i++) {
        if (is_known(disk, &pieces[i], to) && !pieces[i].chunk->keep.behind)
            continue;
        why = COMMON_FAILPOINT_FAILS("disk_rows") ? -ENOSPC : add_rows(disk, &pieces[i], to);
        COMMON_FAILPOINT("disk_rows_written");
        for (uint32_t k = 0; why != 0 && k <= i; k++) { // it may have rows that memory will not have
            pieces[k].chunk->keep.withdrawn |= to == WORKER_ROW_APPENDED;
            disk->ahead |= to == WORKER_ROW_APPENDED;
            worker_disk_later(disk, pieces[k].chunk);
        }
        if (why != 0)
            return worker_disk_refused(disk, why, err);
        worker_disk_consider(disk, pieces[i].chunk); // when it is quiet
    }
    worker_disk_nudge(disk);
    return COMMON_OK;
}

void worker_disk_states(struct worker_disk *disk, struct worker_chunk *chunk, uint32_t layer, uint32_t row,
                        uint32_t count, enum worker_row from, enum worker_row to)
{
    struct worker_states_head head = {layer, row, count, from, to, 0};
    struct common_error err;
    bool withdrawn = from == WORKER_ROW_APPENDED && to == WORKER_ROW_ABSENT;
    chunk->keep.withdrawn |= withdrawn;
    if (!works(disk) || (chunk->keep.end == 0 && !chunk->keep.sealed))
        return;
    if (chunk->keep.behind) {
        disk->ahead |= withdrawn;
        return;
    }
    if (to == WORKER_ROW_COMMITTED && from == WORKER_ROW_APPENDED && chunk->keep.sealed)
        return; // serves like one, and the coordinator sends it again
    int why = 0;
    if (chunk->keep.sealed)
        worker_disk_later(disk, chunk);
    else if ((why = add_record(disk, chunk, WORKER_RECORD_STATES, &(struct iovec){&head, sizeof head}, 1)) ==
             0)
        why = worker_disk_unsynced(disk, chunk);
    if (why != 0) {
        worker_disk_later(disk, chunk);
        (void)worker_disk_refused(disk, why, &err);
    }
    disk->ahead |= withdrawn && chunk->keep.behind;
    worker_disk_consider(disk, chunk);
}

enum common_code worker_disk_chunk(struct worker_disk *disk, struct worker_chunk *chunk,
                                   struct common_error *err)
{
    int why = 0;
    if (!works(disk))
        return COMMON_OK;
    if (worker_disk_layouts_ready(disk, &why) && worker_disk_chunk_anew(disk, chunk, &why)) {
        worker_disk_consider(disk, chunk);
        return COMMON_OK;
    }
    worker_disk_later(disk, chunk);
    return worker_disk_refused(disk, why, err);
}

void worker_disk_forget(struct worker_disk *disk, struct worker_chunk *chunk)
{
    char name[WORKER_NAME_BYTES];
    if (!works(disk))
        return;
    count_bytes(disk, chunk, 0);
    worker_name_log(chunk->id, name);
    (void)disk->files->ops->remove(disk->files, name);
    COMMON_FAILPOINT("disk_chunk_gone");
    worker_name_sealed(chunk->id, name);
    (void)disk->files->ops->remove(disk->files, name);
}
