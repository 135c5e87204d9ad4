// SPDX-License-Identifier: Apache-2.0
// What a directory has, into memory that is empty. A file that is damaged, and a chunk that lacks rows which were
// acknowledged, is as if it had never been here: the session does not name the chunk, so that the coordinator takes
// another holder's, or says which range is lost.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "worker/disk/fetch.h"
#include "worker/disk/state.h"
#include "worker/store/cold.h"

struct reference { // a session names a chunk
    uint64_t chunk;
    uint32_t session; // of loading.images
};

struct loading {
    struct worker_disk *disk;
    struct worker_session_image **images; // [sessions.n], NULL where the file is damaged
    struct worker_ids sessions, chunks;
    struct worker_ids both;       // chunks that have a log and a sealed file
    struct reference *references; // of all sessions to chunks, by chunk
    size_t n_references;
    struct worker_ids dropped; // chunks that are not used
    struct worker_ids cut;     // chunks whose log had a torn end, in order once all are read
    uint8_t *k, *v;            // of a layer
    uint64_t k_bytes, v_bytes;
    struct common_error *err;
};

static enum common_code out_of_memory(const struct loading *load)
{
    return common_error_set(load->err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory to read --store");
}

// Nothing says that it is damaged: a later start may read it.
static enum common_code cannot_read(const struct loading *load, const char *name, int why)
{
    if (why == -ENOMEM)
        return out_of_memory(load);
    return common_error_set(load->err, COMMON_UNAVAILABLE, "--store %s: %s cannot be read: %s",
                            load->disk->path, name, strerror(-why));
}

// ---- names --------------------------------------------------------------------------------------

struct names {
    struct worker_ids *ids, stale; // stale: of files that were being written
    bool memory;
};

// An id and what follows it. False: it is no file of ours.
static bool parse_name(const char *name, uint64_t *id, const char **kind)
{
    char *end;
    if (strspn(name, "0123456789abcdef") != 16 || name[16] != '.')
        return false;
    *id = strtoull(name, &end, 16);
    *kind = end + 1;
    return *id != 0;
}

static bool take_name(void *arg, const char *name)
{
    struct names *names = arg;
    const char *kind;
    uint64_t id;
    if (!parse_name(name, &id, &kind))
        return true;
    bool whole = strcmp(kind, "log") == 0 || strcmp(kind, "sealed") == 0;
    names->memory = worker_ids_add(whole ? names->ids : &names->stale, id);
    return names->memory;
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool has_id(const struct worker_ids *list, uint64_t id) // sorted
{
    return list->n && bsearch(&id, list->ids, list->n, sizeof *list->ids, compare_ids);
}

// The ids of all files, each once, in order; those of two files in twice as well. Files that were being written go.
static enum common_code list_folder(struct loading *load, const char *folder, struct worker_ids *ids,
                                    struct worker_ids *twice)
{
    struct names names = {.ids = ids, .memory = true};
    struct worker_files *files = load->disk->files;
    static const char *const kinds[] = {"new", "seal"};
    char name[WORKER_NAME_BYTES];
    int result = files->ops->list(files, folder, take_name, &names);
    for (uint32_t i = 0; i < 2 * names.stale.n; i++) {
        snprintf(name, sizeof name, "%s/%016" PRIx64 ".%s", folder, names.stale.ids[i / 2], kinds[i % 2]);
        (void)files->ops->remove(files, name);
    }
    worker_ids_free(&names.stale);
    if (result != 0 || !names.memory)
        return result ? cannot_read(load, folder, result) : out_of_memory(load);
    if (ids->n)
        qsort(ids->ids, ids->n, sizeof *ids->ids, compare_ids);
    uint32_t n = 0;
    for (uint32_t i = 0; i < ids->n; i++)
        if (n == 0 || ids->ids[n - 1] != ids->ids[i])
            ids->ids[n++] = ids->ids[i];
        else if (!worker_ids_add(twice, ids->ids[i]))
            return out_of_memory(load);
    ids->n = n;
    return COMMON_OK;
}

// ---- sessions -----------------------------------------------------------------------------------

// Its image, into load->images.
static enum common_code read_session(struct loading *load, uint32_t nth)
{
    struct worker_disk *disk = load->disk;
    uint64_t id = load->sessions.ids[nth];
    char name[WORKER_NAME_BYTES], what[40];
    worker_disk_session_name(id, name);
    int result = worker_session_image_read(disk->files, id, &load->images[nth]);
    if (result != 0 && !worker_fetch_lost(result))
        return cannot_read(load, name, result);
    if (result != 0) {
        snprintf(what, sizeof what, "session=%016" PRIx64, id);
        worker_disk_quarantine(disk, name, what);
    }
    return COMMON_OK;
}

static enum common_code load_chunks(struct loading *load, const struct worker_session *session);

// A session and its chunks, as long as no other reference to them exists.
static enum common_code load_session(struct loading *load, uint32_t nth)
{
    struct worker_disk *disk = load->disk;
    struct worker_session *session = NULL;
    uint64_t id = load->sessions.ids[nth];
    enum common_code code = COMMON_OK;
    if (load->images[nth])
        code = worker_session_image_restore(load->images[nth], disk, &session, load->err);
    if (code != COMMON_OK) {
        struct common_error why = *load->err;
        return common_error_set(load->err, code, "--store %s: session %016" PRIx64 ": %.300s", disk->path, id,
                                why.message);
    }
    return session ? load_chunks(load, session) : COMMON_OK;
}

// The image of a session that is there. NULL: there is none.
static const struct worker_session_image *image_of(const struct loading *load, uint64_t id)
{
    const uint64_t *at =
        load->sessions.n ? bsearch(&id, load->sessions.ids, load->sessions.n, sizeof id, compare_ids) : NULL;
    return at ? load->images[at - load->sessions.ids] : NULL;
}

// ---- chunks -------------------------------------------------------------------------------------

// An append that is not in the session's log was never acknowledged as far as this disk can tell: a loss of
// power has taken that.
static bool append_counts(void *arg, uint64_t id, uint64_t term, uint64_t write)
{
    const struct loading *load = arg;
    const struct worker_session_image *image = image_of(load, id);
    return !image || worker_session_image_knows(image, term, write);
}

static bool rows_room(struct loading *load, uint64_t k_bytes, uint64_t v_bytes)
{
    if (k_bytes > load->k_bytes) {
        free(load->k);
        load->k = malloc(k_bytes);
        load->k_bytes = load->k ? k_bytes : 0;
    }
    if (v_bytes > load->v_bytes) {
        free(load->v);
        load->v = malloc(v_bytes);
        load->v_bytes = load->v ? v_bytes : 0;
    }
    return load->k && load->v;
}

// Rows of one state: what came before is done again.
static enum common_code take_run(struct loading *load, const struct worker_rows *rows, enum worker_row state)
{
    enum worker_row to = state == WORKER_ROW_APPENDED ? WORKER_ROW_APPENDED : WORKER_ROW_PUT;
    enum common_code code = worker_store_write(load->disk->store, rows, 1, to, UINT64_MAX, load->err);
    if (code == COMMON_OK && (state == WORKER_ROW_PREPARED || state == WORKER_ROW_COMMITTED))
        worker_chunk_prepare(rows->chunk, rows->layer, rows->row, rows->count);
    if (code == COMMON_OK && state == WORKER_ROW_COMMITTED)
        worker_chunk_commit(rows->chunk, rows->layer, rows->row, rows->count);
    return code;
}

static int compare_references(const void *a, const void *b)
{
    const struct reference *x = a, *y = b;
    return (x->chunk > y->chunk) - (x->chunk < y->chunk);
}

// Who names which chunk, so that a chunk's sessions are found without a look at all others.
static enum common_code list_references(struct loading *load)
{
    size_t n = 0;
    for (uint32_t i = 0; i < load->sessions.n; i++)
        n += load->images[i] ? worker_session_image_chunks(load->images[i]) : 0;
    load->references = malloc((n + 1) * sizeof *load->references);
    if (!load->references)
        return out_of_memory(load);
    for (uint32_t i = 0; i < load->sessions.n; i++)
        for (uint32_t k = 0; load->images[i] && k < worker_session_image_chunks(load->images[i]); k++)
            load->references[load->n_references++] =
                (struct reference){worker_session_image_chunk(load->images[i], k), i};
    if (n)
        qsort(load->references, n, sizeof *load->references, compare_references);
    return COMMON_OK;
}

// Whether every session that has the chunk has forgotten its layer.
static bool all_forget(const struct loading *load, const struct worker_chunk *chunk, uint32_t layer)
{
    uint64_t id = worker_chunk_id(chunk);
    size_t lo = 0, hi = load->n_references;
    while (lo < hi) { // the first of the chunk's
        size_t mid = lo + (hi - lo) / 2;
        if (load->references[mid].chunk < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < load->n_references && load->references[lo].chunk == id; lo++) {
        load->disk->looks++;
        if (worker_session_image_needs(load->images[load->references[lo].session], id,
                                       worker_chunk_first(chunk), layer))
            return false;
    }
    return true;
}

// A sealed file has been verified with all its layers: what memory has no room for stays there. An eighth of memory is
// left for what grows.
static bool stays_cold(const struct loading *load, const struct worker_chunk *chunk,
                       const struct worker_image *image, uint32_t layer)
{
    const struct worker_store *store = load->disk->store;
    const struct worker_form *form = worker_shape_form(worker_chunk_shape(chunk), layer);
    uint64_t limit = worker_store_limit(store) / 8 * 7;
    for (uint32_t i = 0; i < image->head.chunk_tokens; i++)
        if (image->states[layer][i] < WORKER_ROW_APPENDED)
            return false;
    return image->sealed && !worker_store_device(store) &&
           worker_store_used(store) + form->block_bytes > limit;
}

static enum common_code take_layer(struct loading *load, struct worker_chunk *chunk,
                                   const struct worker_image *image, uint32_t layer)
{
    const struct worker_image_layer *of = &image->layers[layer];
    const uint8_t *states = image->states[layer];
    uint32_t tokens = image->head.chunk_tokens;
    enum common_code code = COMMON_OK;
    if (!of->k_wire || all_forget(load, chunk, layer))
        return COMMON_OK;
    if (stays_cold(load, chunk, image, layer))
        return worker_store_put_cold(load->disk->store, chunk, layer, states, load->err);
    if (!rows_room(load, (uint64_t)tokens * of->k_wire, (uint64_t)tokens * of->v_wire + 1))
        return out_of_memory(load);
    worker_image_rows(image, layer, load->k, load->v);
    for (uint32_t row = 0, n; row < tokens && code == COMMON_OK; row += n) {
        for (n = 1; row + n < tokens && states[row + n] == states[row];)
            n++;
        const struct worker_rows rows = {
            chunk, layer, row, n, load->k + (uint64_t)row * of->k_wire, load->v + (uint64_t)row * of->v_wire};
        if (states[row] != WORKER_ROW_ABSENT)
            code = take_run(load, &rows, states[row]);
    }
    return code;
}

static bool drop_chunk(struct loading *load, uint64_t id)
{
    return worker_ids_add(&load->dropped, id);
}

static void quarantine_chunk(struct loading *load, const struct worker_session *session,
                             const struct worker_chunk *chunk)
{
    uint64_t first = worker_chunk_first(chunk);
    char name[WORKER_NAME_BYTES], what[128];
    snprintf(what, sizeof what, "chunk=%" PRIu64 " session=%016" PRIx64 " positions=%" PRIu64 "-%" PRIu64,
             worker_chunk_id(chunk), session->id, first, first + worker_chunk_shape(chunk)->chunk_tokens - 1);
    worker_name_log(worker_chunk_id(chunk), name);
    worker_disk_quarantine(load->disk, name, what);
    worker_name_sealed(worker_chunk_id(chunk), name);
    worker_disk_quarantine(load->disk, name, what);
}

// What its file is, for what comes.
static enum common_code take_keep(struct loading *load, struct worker_chunk *chunk,
                                  const struct worker_image *image)
{
    struct worker_disk *disk = load->disk;
    struct worker_keep *keep = worker_chunk_keep(chunk);
    char name[WORKER_NAME_BYTES];
    keep->end = image->bytes;
    keep->sealed = image->sealed;
    if (keep->sealed)
        worker_store_sealed(disk->store, chunk);
    disk->stats.bytes += image->bytes;
    worker_name_log(image->id, name);
    int result = image->cut ? disk->files->ops->cut(disk->files, name, image->bytes) : 0;
    if (result != 0)
        return cannot_read(load, name, result);
    if (image->cut && !worker_ids_add(&load->cut, image->id))
        return out_of_memory(load);
    worker_name_sealed(image->id, name);
    if (!image->sealed && has_id(&load->both, image->id)) // it is older
        (void)disk->files->ops->remove(disk->files, name);
    worker_disk_consider(disk, chunk);
    return COMMON_OK;
}

static enum common_code load_chunk(struct loading *load, const struct worker_session *session,
                                   struct worker_chunk *chunk)
{
    struct worker_image image;
    enum common_code code = COMMON_OK;
    char name[WORKER_NAME_BYTES];
    worker_chunk_keep(chunk)->serial = ++load->disk->serial;
    int result = worker_image_read(load->disk->files, worker_chunk_id(chunk), append_counts, load, &image);
    if (result == -ENOENT)
        return COMMON_OK;
    if (result != 0 && !worker_fetch_lost(result)) {
        snprintf(name, sizeof name, "chunks/%016" PRIx64, worker_chunk_id(chunk));
        return cannot_read(load, name, result);
    }
    bool bad =
        result != 0 || image.damaged ||
        (image.bytes > 0 && !worker_image_fits(&image, worker_chunk_first(chunk), worker_chunk_shape(chunk)));
    if (bad) {
        quarantine_chunk(load, session, chunk);
        code = drop_chunk(load, worker_chunk_id(chunk)) ? COMMON_OK : out_of_memory(load);
    } else {
        for (uint32_t l = 0; l < image.head.layers && code == COMMON_OK; l++)
            code = take_layer(load, chunk, &image, l);
        if (code == COMMON_RESOURCE_EXHAUSTED)
            common_error_set(load->err, code,
                             "--store %s has more unsealed rows than fit into --memory: raise it (%" PRIu64
                             " of %" PRIu64 " bytes are in use)",
                             load->disk->path, worker_store_used(load->disk->store),
                             worker_store_limit(load->disk->store));
        if (code == COMMON_OK)
            code = take_keep(load, chunk, &image);
    }
    if (result == 0)
        worker_image_end(&image);
    return code;
}

static enum common_code load_chunks(struct loading *load, const struct worker_session *session)
{
    enum common_code code = COMMON_OK;
    for (uint32_t i = 0; i < session->n_chunks && code == COMMON_OK; i++)
        if (worker_chunk_keep(session->chunks[i].chunk)->serial == 0) // not another session's already
            code = load_chunk(load, session, session->chunks[i].chunk);
    return code;
}

// ---- what is wrong with it ----------------------------------------------------------------------

static bool was_cut(const struct loading *load, const struct worker_chunk *chunk)
{
    return has_id(&load->cut, worker_chunk_id(chunk));
}

// A chunk without rows that were acknowledged is given up as a whole: what is missing of a part would be
// unknown.
static enum common_code check_rows(struct loading *load, const struct worker_session *session,
                                   const struct worker_chunk *chunk)
{
    uint64_t first = worker_chunk_first(chunk);
    if (!worker_appended_lacks(session, chunk))
        return COMMON_OK;
    common_log_warn("--store %s lacks rows that were acknowledged: the chunk is dropped chunk=%" PRIu64
                    " session=%016" PRIx64 " positions=%" PRIu64 "-%" PRIu64,
                    load->disk->path, worker_chunk_id(chunk), session->id, first,
                    first + worker_chunk_shape(chunk)->chunk_tokens - 1);
    if (was_cut(load, chunk)) // it is no chunk of which only a part has come so far
        quarantine_chunk(load, session, chunk);
    return drop_chunk(load, worker_chunk_id(chunk)) ? COMMON_OK : out_of_memory(load);
}

// Rows that are frozen by no commit of the session: a loss of power has taken that. They belong to the commit
// that the coordinator sends again, or thaw with all that are over by then.
static bool freeze_rows(struct loading *load, struct worker_session *session,
                        const struct worker_chunk *chunk)
{
    const struct worker_shape *shape = worker_chunk_shape(chunk);
    for (uint32_t l = 0; l < shape->layers; l++)
        for (uint32_t row = 0; row < shape->chunk_tokens; row++) {
            struct worker_freeze freeze = {1, worker_chunk_first(chunk) + row, 1, l, .holes = false};
            if (worker_chunk_row(chunk, l, row) != WORKER_ROW_PREPARED)
                continue;
            bool frozen = worker_frozen_covers(&session->frozen, l, freeze.first);
            while (!frozen && row + 1 < shape->chunk_tokens &&
                   worker_chunk_row(chunk, l, row + 1) == WORKER_ROW_PREPARED) {
                freeze.count++;
                row++;
            }
            if (!frozen && !worker_frozen_add(&session->frozen, load->disk->store, &freeze))
                return false;
        }
    return true;
}

static enum common_code check_session(struct loading *load, struct worker_session *session)
{
    for (uint32_t i = 0; i < session->n_chunks; i++) {
        const struct worker_chunk *chunk = session->chunks[i].chunk;
        // A copy lacks what a truncation cuts off, of which this session may not have heard.
        enum common_code code = session->chunks[i].copy ? COMMON_OK : check_rows(load, session, chunk);
        if (code != COMMON_OK)
            return code;
        if (worker_chunk_has_put(chunk) && !freeze_rows(load, session, chunk))
            return out_of_memory(load);
        if (worker_chunk_has_put(chunk))
            session->put_at_ns = load->disk->attach_ns;
        // One without a file had no row yet, as a rule.
        const struct worker_keep *keep = worker_chunk_keep(session->chunks[i].chunk);
        bool no_file = keep->end == 0 && !keep->sealed;
        if (was_cut(load, chunk) || (no_file && worker_appended_reaches(session, chunk)))
            session->doubtful = true;
    }
    return COMMON_OK;
}

static bool is_dropped(const void *arg, uint64_t id)
{
    return has_id(arg, id);
}

// The session as it is without the chunks that are dropped.
static enum common_code drop_chunks(struct loading *load, struct worker_session *session)
{
    uint32_t n = session->n_chunks;
    enum common_code code = worker_session_without(load->disk->sessions, load->disk->store, session,
                                                   is_dropped, &load->dropped, load->err);
    if (session->n_chunks < n)
        session->logged.layout = true; // its file does not have it yet
    session->lacks = false;            // the coordinator asks returning workers
    return code;
}

// Files of chunks that no session has. A session's own file goes after those of its chunks, so it is lost.
static void clear_others(struct loading *load)
{
    struct worker_files *files = load->disk->files;
    char names[2][WORKER_NAME_BYTES];
    for (uint32_t i = 0; i < load->chunks.n; i++) {
        uint64_t id = load->chunks.ids[i];
        if (worker_store_find(load->disk->store, id))
            continue;
        worker_name_log(id, names[0]);
        worker_name_sealed(id, names[1]);
        for (int k = 0; k < 2; k++)
            if (has_id(&load->dropped, id)) // in quarantine, or it has too little
                (void)files->ops->remove(files, names[k]);
            else
                worker_disk_quarantine(load->disk, names[k],
                                       "it belongs to no session: the session's file is lost");
    }
}

// ---- all of it ----------------------------------------------------------------------------------

static enum common_code each_session(struct loading *load,
                                     enum common_code (*apply)(struct loading *, struct worker_session *))
{
    enum common_code code = COMMON_OK;
    for (uint32_t i = 0; i < load->sessions.n && code == COMMON_OK; i++) {
        struct worker_session *session = worker_map_get(load->disk->sessions, load->sessions.ids[i]);
        if (session)
            code = apply(load, session);
    }
    return code;
}

static enum common_code load_all(struct loading *load)
{
    enum common_code code = list_folder(load, "sessions", &load->sessions, &load->both);
    load->both.n = 0; // a session has one
    if (code == COMMON_OK)
        code = list_folder(load, "chunks", &load->chunks, &load->both);
    load->images = calloc(load->sessions.n + 1, sizeof(*load->images));
    if (code == COMMON_OK && !load->images)
        code = out_of_memory(load);
    for (uint32_t i = 0; i < load->sessions.n && code == COMMON_OK; i++)
        code = read_session(load, i);
    if (code == COMMON_OK)
        code = list_references(load);
    for (uint32_t i = 0; i < load->sessions.n && code == COMMON_OK; i++)
        code = load_session(load, i);
    if (load->cut.n)
        qsort(load->cut.ids, load->cut.n, sizeof *load->cut.ids, compare_ids);
    for (uint32_t i = 0; i < load->sessions.n && code == COMMON_OK; i++) // now that all have their references
        if (load->images[i])
            worker_session_image_forget(load->images[i], load->disk);
    if (code == COMMON_OK)
        code = each_session(load, check_session);
    if (code == COMMON_OK && load->dropped.n) {
        qsort(load->dropped.ids, load->dropped.n, sizeof *load->dropped.ids, compare_ids);
        code = each_session(load, drop_chunks);
    }
    if (code == COMMON_OK)
        clear_others(load);
    return code;
}

// A layout that the files lack, from before the disk was open.
static enum common_code write_layout(struct loading *load, struct worker_session *session)
{
    struct common_error err; // it lacks what was damaged: later will do
    bool lacks = session->logged.layout;
    session->logged.layout = false;
    if (lacks)
        (void)worker_disk_layout(load->disk, session, false, &err);
    return COMMON_OK;
}

enum common_code worker_disk_load(struct worker_disk *disk, struct worker_store *store,
                                  struct worker_map *sessions, struct common_error *err)
{
    struct loading load = {.disk = disk, .err = err};
    uint64_t began_ns = common_clock_ns();
    disk->store = store;
    worker_store_set_backing(store, &disk->backing);
    disk->sessions = sessions;
    enum common_code code = load_all(&load);
    if (code == COMMON_OK)
        code = worker_disk_work(disk, err);
    if (code == COMMON_OK) {
        disk->state = WORKER_DISK_OPEN;
        (void)each_session(&load, write_layout);
        code = worker_disk_boot_open(disk, err);
        if (code == COMMON_OK)
            code = worker_disk_queue_begin(disk, err);
        common_log_info("read store=%s sessions=%zu chunks=%" PRIu64 " bytes=%" PRIu64 " damaged=%" PRIu64
                        " ms=%" PRIu64,
                        disk->path, sessions->count, worker_store_chunks(store), disk->stats.bytes,
                        disk->stats.damaged, (common_clock_ns() - began_ns) / COMMON_NS_PER_MS);
    }
    for (uint32_t i = 0; load.images && i < load.sessions.n; i++)
        worker_session_image_free(load.images[i]);
    free(load.images);
    free(load.references);
    worker_ids_free(&load.sessions);
    worker_ids_free(&load.chunks);
    worker_ids_free(&load.both);
    worker_ids_free(&load.dropped);
    worker_ids_free(&load.cut);
    free(load.k);
    free(load.v);
    return code;
}
