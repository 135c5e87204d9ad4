// SPDX-License-Identifier: Apache-2.0
// The files of sessions: what they are, where their history stands, and which chunks they have.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "worker/disk/state.h"

#define SLACK_BYTES (UINT64_C(64) << 10) // a log that is longer than this and four heads is rewritten

struct session_head {
    uint64_t incarnation, epoch, life, term, write_term, write, writes_over, settled;
    uint32_t layers, n_frozen, n_chunks;
    uint32_t has_chunks, has_forgotten, doubtful;
    // struct worker_appended [layers]; where it has them, uint64_t forgotten [layers]; struct session_freeze [n_frozen];
    // where it has them, struct session_chunk [n_chunks]
};

struct session_freeze {
    uint64_t commit, first, count, layer;
};

struct session_chunk {
    uint64_t id, first, flags;
};

enum { CHUNK_COMPUTE = 1, CHUNK_COPY = 2 }; // of session_chunk.flags

struct session_append {
    uint64_t layer, length, write_term, write, end;
};

_Static_assert(sizeof(struct worker_appended) == 24, "it is a part of the file");

struct worker_session_image {
    uint64_t id;
    struct session_head head;
    Banyan__Pb__Spec *spec;
    struct worker_appended *appended; // [head.layers], as the next where has_forgotten
    uint64_t *forgotten;
    struct session_freeze *frozen; // [head.n_frozen]
    struct session_chunk *chunks;  // [n_chunks]
    uint32_t n_chunks;
    uint64_t bytes;
    bool cut; // it had a torn end
};

void worker_disk_session_name(uint64_t id, char out[WORKER_NAME_BYTES])
{
    snprintf(out, WORKER_NAME_BYTES, "sessions/%016" PRIx64 ".log", id);
}

static bool works(const struct worker_disk *disk)
{
    return disk && disk->state == WORKER_DISK_OPEN;
}

// ---- writing ------------------------------------------------------------------------------------

static void count_bytes(struct worker_disk *disk, struct worker_session *session, uint64_t end)
{
    disk->stats.bytes += end - session->logged.end;
    session->logged.end = end;
}

int worker_disk_session_unsynced(struct worker_disk *disk, struct worker_session *session)
{
    char name[WORKER_NAME_BYTES];
    worker_disk_session_name(session->id, name);
    if (disk->fsync == WORKER_FSYNC_INTERVAL && !session->logged.unsynced)
        session->logged.unsynced = worker_ids_add(&disk->unsynced_sessions, session->id);
    bool now = disk->fsync == WORKER_FSYNC_ALWAYS || (disk->fsync == WORKER_FSYNC_INTERVAL &&
                                                      !session->logged.unsynced); // no memory to do it later
    return now ? worker_disk_sync_soon(disk, name) : 0;
}

static void listed(struct worker_disk *disk, struct worker_session *session)
{
    if (!session->logged.listed)
        session->logged.listed = worker_ids_add(&disk->touched, session->id);
    disk->unlisted |= !session->logged.listed;
}

static void set_layout(struct worker_disk *disk, struct worker_session *session, bool lacks)
{
    disk->layouts += lacks && !session->logged.layout;
    disk->layouts -= !lacks && session->logged.layout;
    session->logged.layout = lacks;
    if (session->logged.owed && !lacks) {
        session->logged.owed = false;
        session->logged.laid = disk->queue ? worker_queue_next(disk->queue) : 0;
    }
}

void worker_disk_session_failed(struct worker_disk *disk, struct worker_session *session, uint64_t batch)
{
    session->logged.mended = WORKER_NOT_MENDED;
    session->logged.anew = session->logged.touched = true;
    set_layout(disk, session, true);
    session->logged.owed |= session->logged.laid >= batch; // else an older batch has what a layout owed
    listed(disk, session);
}

static uint64_t head_bytes(const struct worker_session *session, bool chunks)
{
    const struct worker_frozen *frozen = &session->frozen;
    uint64_t layers = session->spec->shape->layers;
    return sizeof(struct session_head) + layers * sizeof(struct worker_appended) +
           (session->forgotten ? layers * sizeof(uint64_t) : 0) + frozen->n * sizeof(struct session_freeze) +
           (chunks ? session->n_chunks * sizeof(struct session_chunk) : 0);
}

// All that the session is but its spec. Free it; NULL: no memory.
static uint8_t *head_new(const struct worker_disk *disk, const struct worker_session *session, bool chunks,
                         uint64_t *bytes)
{
    *bytes = head_bytes(session, chunks);
    uint8_t *out = malloc(*bytes), *at = out;
    uint32_t layers = session->spec->shape->layers;
    if (!out)
        return NULL;
    struct session_head head = {.incarnation = session->incarnation,
                                .epoch = session->epoch,
                                .life = session->life,
                                .term = *disk->term,
                                .write_term = session->write_term,
                                .write = session->write,
                                .writes_over = session->writes_over,
                                .settled = session->settled,
                                .layers = layers,
                                .n_frozen = session->frozen.n,
                                .n_chunks = chunks ? session->n_chunks : 0,
                                .has_chunks = chunks,
                                .has_forgotten = session->forgotten != NULL,
                                .doubtful = session->doubtful};
    memcpy(at, &head, sizeof head);
    at += sizeof head;
    memcpy(at, session->appended, layers * sizeof *session->appended);
    at += layers * sizeof *session->appended;
    if (session->forgotten) {
        memcpy(at, session->forgotten, layers * sizeof *session->forgotten);
        at += layers * sizeof *session->forgotten;
    }
    for (uint32_t i = 0; i < session->frozen.n; i++, at += sizeof(struct session_freeze)) {
        const struct worker_freeze *f = &session->frozen.entries[i];
        struct session_freeze freeze = {f->commit, f->first, f->count, f->layer};
        memcpy(at, &freeze, sizeof freeze);
    }
    for (uint32_t i = 0; chunks && i < session->n_chunks; i++, at += sizeof(struct session_chunk)) {
        const struct worker_session_chunk *c = &session->chunks[i];
        struct session_chunk chunk = {worker_chunk_id(c->chunk), worker_chunk_first(c->chunk),
                                      (c->compute ? CHUNK_COMPUTE : 0) | (c->copy ? CHUNK_COPY : 0)};
        memcpy(at, &chunk, sizeof chunk);
    }
    return out;
}

static int add_head(struct worker_disk *disk, struct worker_log *log, const struct worker_session *session,
                    bool chunks, bool *broken)
{
    uint64_t bytes;
    uint8_t *head = head_new(disk, session, chunks, &bytes);
    int result = head ? worker_record_write(disk->files, log, WORKER_RECORD_HEAD,
                                            &(struct iovec){head, bytes}, 1, broken)
                      : -ENOMEM;
    free(head);
    return result;
}

int worker_disk_session_anew(struct worker_disk *disk, struct worker_session *session)
{
    const struct worker_files_ops *ops = disk->files->ops;
    const struct iovec spec = {session->spec->packed, session->spec->packed_bytes};
    struct worker_log log = {.owner = session->id};
    char name[WORKER_NAME_BYTES];
    bool broken, first = session->logged.end == 0;
    worker_disk_session_name(session->id, name);
    snprintf(log.name, sizeof log.name, "sessions/%016" PRIx64 ".new", session->id);
    if (worker_disk_full(disk))
        return -EAGAIN;
    (void)ops->remove(disk->files, log.name); // of an earlier try
    int result = worker_disk_needs(disk, session, log.name);
    if (result == 0)
        result = worker_record_write(disk->files, &log, WORKER_RECORD_SPEC, &spec, 1, &broken);
    if (result == 0)
        result = add_head(disk, &log, session, true, &broken);
    if (result == 0 &&
        (disk->fsync == WORKER_FSYNC_ALWAYS || (disk->fsync == WORKER_FSYNC_INTERVAL && !first)))
        result = ops->sync(disk->files, log.name);
    if (COMMON_FAILPOINT_FAILS("disk_session_written"))
        result = -ENOSPC;
    if (result == 0)
        result = ops->move(disk->files, log.name, name);
    if (result != 0) {
        (void)ops->remove(disk->files, log.name);
        return result;
    }
    COMMON_FAILPOINT("disk_session_named");
    count_bytes(disk, session, log.end);
    session->logged.touched = session->logged.anew = false;
    if (disk->queue)
        worker_mend(&session->logged.mended, worker_queue_next(disk->queue));
    set_layout(disk, session, false);
    if (disk->fsync == WORKER_FSYNC_ALWAYS)
        return worker_disk_sync_names(disk, "sessions", name);
    return worker_disk_session_unsynced(disk, session);
}

static bool is_long(const struct worker_session *session)
{
    return session->logged.end > SLACK_BYTES + 4 * (head_bytes(session, true) + session->spec->packed_bytes);
}

static int add_record(struct worker_disk *disk, struct worker_session *session,
                      const struct session_append *append)
{
    struct worker_log log = {.owner = session->id, .end = session->logged.end};
    bool broken = false;
    worker_disk_session_name(session->id, log.name);
    int result = worker_disk_full(disk) ? -EAGAIN : worker_disk_needs(disk, session, log.name);
    if (result != 0)
        return result;
    result = append
                 ? worker_record_write(disk->files, &log, WORKER_RECORD_APPEND,
                                       &(struct iovec){(void *)(uintptr_t)append, sizeof *append}, 1, &broken)
                 : add_head(disk, &log, session, session->logged.layout, &broken);
    session->logged.anew = session->logged.anew || broken;
    if (result == 0)
        count_bytes(disk, session, log.end);
    return result ? result : worker_disk_session_unsynced(disk, session);
}

int worker_disk_session_write(struct worker_disk *disk, struct worker_session *session)
{
    struct worker_logged *logged = &session->logged;
    int why = 0;
    if (!worker_disk_withdrawals_ready(disk, session, &why))
        return why;
    if (logged->end == 0 || logged->anew || is_long(session))
        return worker_disk_session_anew(disk, session);
    if (!logged->touched && !logged->layout)
        return 0;
    int result = add_record(disk, session, NULL);
    if (result == 0) {
        logged->touched = false;
        set_layout(disk, session, false);
    }
    return result;
}

void worker_disk_relist(struct worker_disk *disk)
{
    struct worker_chunk *chunk;
    void *value;
    if (!disk->unlisted)
        return;
    disk->unlisted = false;
    for (size_t cursor = 0; worker_map_next(disk->sessions, &cursor, &value);) {
        struct worker_session *session = value;
        if (session->logged.touched || session->logged.layout || session->logged.anew)
            worker_disk_touch(disk, session);
    }
    for (size_t cursor = 0; worker_store_next(disk->store, &cursor, &chunk);) {
        if (worker_chunk_keep(chunk)->behind)
            worker_disk_later(disk, chunk);
        worker_disk_consider(disk, chunk);
    }
}

bool worker_disk_layouts_ready(struct worker_disk *disk, int *why)
{
    worker_disk_relist(disk);
    for (uint32_t i = 0; disk->layouts > 0 && i < disk->touched.n; i++) {
        struct worker_session *session = worker_map_get(disk->sessions, disk->touched.ids[i]);
        if (session && session->logged.layout && (*why = worker_disk_session_write(disk, session)) != 0)
            return false;
    }
    if (disk->layouts > 0)
        *why = -ENOMEM; // there is no memory to list which
    return disk->layouts == 0;
}

// ---- what sessions say --------------------------------------------------------------------------

enum common_code worker_disk_layout(struct worker_disk *disk, struct worker_session *session, bool shares,
                                    struct common_error *err)
{
    struct common_error later;
    if (!works(disk))
        return COMMON_OK;
    set_layout(disk, session, true);
    session->logged.owed = session->logged.owed || shares;
    int why = worker_disk_session_write(disk, session);
    if (why == 0)
        return COMMON_OK;
    listed(disk, session);
    bool owed = session->logged.owed;
    enum common_code code = worker_disk_refused(disk, why, owed ? err : &later);
    return owed ? code : COMMON_OK;
}

void worker_disk_touch(struct worker_disk *disk, struct worker_session *session)
{
    if (!works(disk))
        return;
    session->logged.touched = true;
    listed(disk, session);
}

enum common_code worker_disk_append(struct worker_disk *disk, struct worker_session *session, uint32_t layer,
                                    uint64_t write, uint64_t end, struct common_error *err)
{
    const struct worker_appended *appended = &session->appended[layer];
    struct session_append append = {layer, appended->length, session->write_term, write, end};
    if (!works(disk))
        return COMMON_OK;
    // A process that starts takes rows that are there for those of the newest append that the session's log names.
    int why = 0;
    if (!worker_disk_withdrawals_ready(disk, session, &why) ||
        (why = worker_disk_withdrawn(disk, session)) != 0)
        return worker_disk_refused(disk, why, err);
    bool anew =
        session->logged.end == 0 || session->logged.anew || session->logged.layout || is_long(session);
    if (anew)
        why = worker_disk_session_anew(disk, session);
    if (why == 0)
        why = COMMON_FAILPOINT_FAILS("disk_append") ? -ENOSPC : add_record(disk, session, &append);
    COMMON_FAILPOINT("disk_append_written");
    if (why != 0)
        return worker_disk_refused(disk, why, err);
    disk->append_session = session->id;
    disk->append_term = session->write_term;
    disk->append_write = write;
    return COMMON_OK;
}

enum common_code worker_disk_frozen(struct worker_disk *disk, struct worker_session *session, uint64_t first,
                                    uint64_t count, struct common_error *err)
{
    uint32_t span, from = worker_session_span(session, first, count, &span);
    if (!works(disk))
        return COMMON_OK;
    COMMON_FAILPOINT("disk_frozen");
    session->logged.touched = true;
    int why = worker_disk_session_write(disk, session);
    for (uint32_t i = from; why == 0 && i < from + span; i++) {
        struct worker_chunk *chunk = session->chunks[i].chunk;
        if (worker_chunk_keep(chunk)->behind)
            (void)worker_disk_chunk_anew(disk, chunk, &why);
    }
    return why == 0 ? COMMON_OK : worker_disk_refused(disk, why, err);
}

void worker_disk_drop(struct worker_disk *disk, struct worker_session *session)
{
    char name[WORKER_NAME_BYTES];
    if (!works(disk))
        return;
    COMMON_FAILPOINT("disk_dropped");
    count_bytes(disk, session, 0);
    set_layout(disk, session, false);
    worker_disk_session_name(session->id, name);
    (void)disk->files->ops->remove(disk->files, name);
    COMMON_FAILPOINT("disk_session_gone");
}

// ---- reading ------------------------------------------------------------------------------------

void worker_session_image_free(struct worker_session_image *image)
{
    if (!image)
        return;
    if (image->spec)
        banyan__pb__spec__free_unpacked(image->spec, NULL);
    free(image->appended);
    free(image->forgotten);
    free(image->frozen);
    free(image->chunks);
    free(image);
}

// A list out of a record, into memory of its own in place of the one before. 0, -EBADMSG or -ENOMEM.
static int take_list(const struct worker_record *record, uint64_t *at, uint64_t n, uint64_t bytes, void *out)
{
    if (n > (record->bytes - *at) / bytes)
        return -EBADMSG;
    void *copy = malloc(n * bytes + 1);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, record->payload + *at, n * bytes);
    *at += n * bytes;
    free(*(void **)out);
    *(void **)out = copy;
    return 0;
}

static int take_head(struct worker_session_image *image, const struct worker_record *record)
{
    uint64_t at = sizeof image->head;
    if (record->bytes < at)
        return -EBADMSG;
    memcpy(&image->head, record->payload, sizeof image->head);
    const struct session_head *head = &image->head;
    if (head->layers != image->spec->layers || (!head->has_chunks && !image->chunks))
        return -EBADMSG;
    int result = take_list(record, &at, head->layers, sizeof *image->appended, &image->appended);
    if (result == 0 && head->has_forgotten)
        result = take_list(record, &at, head->layers, sizeof *image->forgotten, &image->forgotten);
    if (result == 0)
        result = take_list(record, &at, head->n_frozen, sizeof *image->frozen, &image->frozen);
    if (result == 0 && head->has_chunks) {
        result = take_list(record, &at, head->n_chunks, sizeof *image->chunks, &image->chunks);
        image->n_chunks = head->n_chunks;
    }
    return result == 0 && at != record->bytes ? -EBADMSG : result;
}

static int take_append(struct worker_session_image *image, const struct worker_record *record)
{
    struct session_append append;
    if (record->bytes != sizeof append || !image->appended)
        return -EBADMSG;
    memcpy(&append, record->payload, sizeof append);
    if (append.layer >= image->head.layers)
        return -EBADMSG;
    struct worker_appended *appended = &image->appended[append.layer];
    appended->length = append.length;
    appended->end =
        appended->write == append.write && appended->end > append.end ? appended->end : append.end;
    appended->write = append.end > append.length ? append.write : 0;
    appended->end = appended->write ? appended->end : 0;
    image->head.write_term = append.write_term;
    image->head.write = append.write;
    return 0;
}

static int take_record(struct worker_session_image *image, const struct worker_record *record)
{
    if (record->type == WORKER_RECORD_SPEC && !image->spec)
        image->spec = banyan__pb__spec__unpack(NULL, record->bytes, record->payload);
    if (!image->spec)
        return -EBADMSG;
    if (record->type == WORKER_RECORD_HEAD)
        return take_head(image, record);
    if (record->type == WORKER_RECORD_APPEND)
        return take_append(image, record);
    return record->type == WORKER_RECORD_SPEC ? 0 : -EBADMSG;
}

int worker_session_image_read(struct worker_files *files, uint64_t id, struct worker_session_image **out)
{
    char name[WORKER_NAME_BYTES];
    struct worker_session_image *image = calloc(1, sizeof *image);
    uint8_t *file = NULL;
    uint64_t len, at = 0;
    struct worker_record record;
    worker_disk_session_name(id, name);
    int result = image ? worker_file_read(files, name, &file, &len) : -ENOMEM;
    if (result == 0)
        image->id = id;
    while (result == 0 && worker_record_next(file, len, id, &at, &record)) {
        result = take_record(image, &record);
        image->bytes = at;
    }
    if (result == 0 && (!image->appended || worker_record_damaged(file, len, id, image->bytes)))
        result = -EBADMSG;
    if (result == 0 && image->bytes < len) {
        image->cut = true;
        result = files->ops->cut(files, name, image->bytes);
    }
    free(file);
    if (result != 0) {
        worker_session_image_free(image);
        return result;
    }
    *out = image;
    return 0;
}

bool worker_session_image_knows(const struct worker_session_image *image, uint64_t term, uint64_t write)
{
    return term < image->head.write_term || (term == image->head.write_term && write <= image->head.write);
}

uint32_t worker_session_image_chunks(const struct worker_session_image *image)
{
    return image->n_chunks;
}

uint64_t worker_session_image_chunk(const struct worker_session_image *image, uint32_t nth)
{
    return image->chunks[nth].id;
}

bool worker_session_image_needs(const struct worker_session_image *image, uint64_t chunk, uint64_t first,
                                uint32_t layer)
{
    uint32_t lo = 0, hi = image->n_chunks; // they are in order of positions
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (image->chunks[mid].first < first)
            lo = mid + 1;
        else
            hi = mid;
    }
    while (lo < image->n_chunks && image->chunks[lo].first == first && image->chunks[lo].id != chunk)
        lo++;
    if (lo == image->n_chunks || image->chunks[lo].first != first)
        return false;
    uint64_t tokens = image->spec->chunk_tokens ? image->spec->chunk_tokens : WORKER_CHUNK_TOKENS;
    return !image->forgotten || layer >= image->head.layers || image->forgotten[layer] < first + tokens;
}

// ---- restoring ----------------------------------------------------------------------------------

static enum common_code lay_out(const struct worker_session_image *image, struct worker_disk *disk,
                                struct common_error *err)
{
    Banyan__Pb__LayoutSetRequest request = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    Banyan__Pb__LayoutChunk *chunks = malloc((image->n_chunks + 1) * sizeof *chunks),
                            **pointers = malloc((image->n_chunks + 1) * sizeof(*pointers));
    request.term = image->head.term;
    request.session = image->id;
    request.incarnation = image->head.incarnation;
    request.epoch = image->head.epoch;
    request.life = image->head.life;
    request.spec = image->spec;
    request.replace = true;
    request.chunks = pointers;
    for (uint32_t i = 0; chunks && pointers && i < image->n_chunks; i++) {
        banyan__pb__layout_chunk__init(&chunks[i]);
        chunks[i].chunk = image->chunks[i].id;
        chunks[i].first = image->chunks[i].first;
        chunks[i].compute = image->chunks[i].flags & CHUNK_COMPUTE;
        chunks[i].copy = image->chunks[i].flags & CHUNK_COPY;
        pointers[request.n_chunks++] = &chunks[i];
    }
    enum common_code code =
        chunks && pointers ? worker_session_layout(disk->sessions, disk->store, &request, err)
                           : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory");
    free(chunks);
    free(pointers);
    return code;
}

enum common_code worker_session_image_restore(const struct worker_session_image *image,
                                              struct worker_disk *disk, struct worker_session **out,
                                              struct common_error *err)
{
    const struct session_head *head = &image->head;
    enum common_code code = lay_out(image, disk, err);
    if (code != COMMON_OK)
        return code;
    struct worker_session *session = worker_map_get(disk->sessions, image->id);
    session->write_term = head->write_term;
    session->write = head->write;
    session->writes_over = head->writes_over;
    session->settled = head->settled;
    session->doubtful = head->doubtful || image->cut || disk->dark;
    memcpy(session->appended, image->appended, head->layers * sizeof *session->appended);
    for (uint32_t i = 0; i < head->n_frozen; i++) {
        const struct session_freeze *f = &image->frozen[i];
        struct worker_freeze freeze = {f->commit, f->first, f->count, (uint32_t)f->layer, .holes = false};
        if (f->count && f->layer < head->layers && !worker_frozen_add(&session->frozen, disk->store, &freeze))
            return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for a session");
    }
    session->logged.end = image->bytes;
    disk->stats.bytes += image->bytes;
    if (head->term > *disk->term)
        *disk->term = head->term;
    *out = session;
    return COMMON_OK;
}

void worker_session_image_forget(const struct worker_session_image *image, struct worker_disk *disk)
{
    struct worker_session *session = worker_map_get(disk->sessions, image->id);
    if (session && session->forgotten && image->forgotten)
        worker_session_restore_forgotten(disk->store, session, image->forgotten);
}
