// SPDX-License-Identifier: Apache-2.0
#include "worker/session/session.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/failpoint.h"
#include "proto/model/spec.h"
#include "worker/processors/device.h"
#include "worker/store/backing.h"

// ---- specs --------------------------------------------------------------------------------------

static enum common_code kind_init(struct worker_kind *kind, uint32_t kv_type, const struct proto_layer *layer,
                                  const struct worker_device *device, struct common_error *err)
{
    kind->kernels =
        (struct kernels_spec){.kv_type = (enum kernels_kv_type)kv_type, // numbered alike (chunk.c)
                              .k_dim = layer->k_dim,
                              .v_dim = layer->v_dim,
                              .q_heads = layer->q_heads,
                              .kv_heads = layer->kv_heads,
                              .scale = layer->scale,
                              .soft_cap = layer->soft_cap,
                              .window = layer->window,
                              .mask_chunk = layer->mask_chunk,
                              .not_causal = layer->not_causal,
                              .v_in_k = layer->v_in_k,
                              .alibi = layer->alibi};
    const char *problem = kernels_spec_problem(&kind->kernels);
    if (problem)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "spec: %s", problem);
    if (device)
        problem = worker_device_spec_problem(device, &kind->kernels);
    else if (!(kind->kernel = kernels_attention_default(&kind->kernels)))
        problem = "no attention kernel of this worker supports the spec";
    if (problem)
        return common_error_set(err, COMMON_UNIMPLEMENTED, "%s", problem);
    kind->kernel_digest =
        device ? worker_device_info(device)->digest : kernels_attention_digest(kind->kernel);
    return COMMON_OK;
}

// Which of the kinds a layer is of; layers that are alike are all of the first.
static uint32_t kind_of(const Banyan__Pb__Spec *pb, uint32_t layer)
{
    return pb->n_kinds ? pb->layer_kind[layer] : 0;
}

static enum common_code kinds_init(struct worker_spec *spec, const struct worker_device *device,
                                   struct common_error *err)
{
    enum common_code code = COMMON_OK;
    for (uint32_t l = 0; l < spec->pb->layers && code == COMMON_OK; l++) {
        struct proto_layer layer = proto_spec_layer(spec->pb, l);
        if (proto_layer_local(&layer))
            continue;
        struct worker_kind *kind = &spec->kinds[kind_of(spec->pb, l)];
        if (kind->kernels.q_heads == 0) // not yet
            code = kind_init(kind, spec->pb->kv_type, &layer, device, err);
    }
    return code;
}

enum common_code worker_spec_new(const Banyan__Pb__Spec *pb, const struct worker_device *device,
                                 struct worker_spec **out, struct common_error *err)
{
    struct common_error wrong;
    if (proto_spec_check(pb, &wrong) != COMMON_OK)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "spec: %.300s", wrong.message);
    size_t packed_bytes = banyan__pb__spec__get_packed_size(pb), n_kinds = pb->n_kinds ? pb->n_kinds : 1;
    struct worker_spec *spec = calloc(1, sizeof *spec + n_kinds * sizeof *spec->kinds);
    if (!spec)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a spec");
    spec->refs = 1;
    spec->packed_bytes = packed_bytes;
    spec->packed = malloc(packed_bytes);
    if (spec->packed) {
        banyan__pb__spec__pack(pb, spec->packed);
        spec->pb = banyan__pb__spec__unpack(NULL, packed_bytes, spec->packed);
    }
    spec->shape = spec->pb ? worker_shape_new(spec->pb) : NULL;
    enum common_code code =
        spec->shape ? kinds_init(spec, device, err)
                    : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a spec");
    if (code == COMMON_OK)
        *out = spec;
    else
        worker_spec_unref(spec);
    return code;
}

const struct worker_kind *worker_spec_kind(const struct worker_spec *spec, uint32_t layer)
{
    bool local = layer >= spec->pb->layers || kind_of(spec->pb, layer) == PROTO_LAYER_LOCAL;
    return local ? NULL : &spec->kinds[kind_of(spec->pb, layer)];
}

struct worker_spec *worker_spec_ref(struct worker_spec *spec)
{
    spec->refs++;
    return spec;
}

void worker_spec_unref(struct worker_spec *spec)
{
    if (!spec || --spec->refs > 0)
        return;
    worker_shape_unref(spec->shape);
    if (spec->pb)
        banyan__pb__spec__free_unpacked(spec->pb, NULL);
    free(spec->packed);
    free(spec);
}

struct comparison { // of what is being packed with bytes that are there: needs no memory
    ProtobufCBuffer base;
    const uint8_t *bytes;
    bool equal;
};

static void compare_packed(ProtobufCBuffer *buffer, size_t n, const uint8_t *bytes)
{
    struct comparison *c = (struct comparison *)buffer;
    c->equal = c->equal && memcmp(c->bytes, bytes, n) == 0;
    c->bytes += n;
}

bool worker_spec_equal(const struct worker_spec *spec, const Banyan__Pb__Spec *pb)
{
    struct comparison c = {.base = {compare_packed}, .bytes = spec->packed, .equal = true};
    if (banyan__pb__spec__get_packed_size(pb) != spec->packed_bytes)
        return false;
    (void)banyan__pb__spec__pack_to_buffer(pb, &c.base);
    return c.equal;
}

// ---- layouts ------------------------------------------------------------------------------------

static int order(uint64_t first_a, uint64_t id_a, uint64_t first_b, uint64_t id_b)
{
    if (first_a != first_b)
        return first_a < first_b ? -1 : 1;
    return id_a < id_b ? -1 : id_a > id_b;
}

// Index of the first chunk that is not before (first, id).
static uint32_t lower_bound(const struct worker_session *session, uint64_t first, uint64_t id)
{
    uint32_t lo = 0, hi = session->n_chunks;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        const struct worker_chunk *chunk = session->chunks[mid].chunk;
        if (order(worker_chunk_first(chunk), worker_chunk_id(chunk), first, id) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct worker_session_chunk *worker_session_chunk(const struct worker_session *session, uint64_t chunk_id,
                                                  uint64_t first)
{
    uint32_t i = lower_bound(session, first, chunk_id);
    return i < session->n_chunks && worker_chunk_id(session->chunks[i].chunk) == chunk_id &&
                   worker_chunk_first(session->chunks[i].chunk) == first
               ? &session->chunks[i]
               : NULL;
}

uint32_t worker_session_at(const struct worker_session *session, uint64_t position)
{
    return lower_bound(session, position - position % session->spec->shape->chunk_tokens, 0);
}

uint32_t worker_session_span(const struct worker_session *session, uint64_t first, uint64_t count,
                             uint32_t *n)
{
    uint64_t tokens = session->spec->shape->chunk_tokens; // chunks lie on multiples of it
    uint32_t from = lower_bound(session, first - first % tokens, 0),
             to = lower_bound(session, first + count, 0);
    *n = to - from;
    return from;
}

enum common_code worker_session_find(const struct worker_map *sessions, uint64_t id, uint64_t incarnation,
                                     struct worker_session **out, struct common_error *err)
{
    struct worker_session *session = worker_map_get(sessions, id);
    if (!session)
        return common_error_set(err, COMMON_NOT_FOUND, "session %016" PRIx64 " is unknown here", id);
    if (session->incarnation != incarnation)
        return common_error_set(err, COMMON_ABORTED,
                                "session %016" PRIx64 " is at incarnation %" PRIu64 ", not %" PRIu64, id,
                                session->incarnation, incarnation);
    *out = session;
    return COMMON_OK;
}

enum common_code worker_session_check(const struct worker_map *sessions, uint64_t id, uint64_t incarnation,
                                      uint32_t layer, uint64_t first, uint64_t count,
                                      struct worker_session **out, struct common_error *err)
{
    struct worker_session *session = NULL; // for -O3, which does not see that it is set
    enum common_code code = worker_session_find(sessions, id, incarnation, &session, err);
    if (code != COMMON_OK)
        return code;
    const struct worker_shape *shape = session->spec->shape;
    if (layer >= shape->layers)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "layer %u of %u", layer, shape->layers);
    if (!worker_shape_form(shape, layer))
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "layer %u has no rows of its own", layer);
    if (count == 0 || first >= WORKER_POSITIONS_MAX || count > WORKER_POSITIONS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "invalid range: %" PRIu64 " rows from position %" PRIu64, count, first);
    *out = session;
    return COMMON_OK;
}

static uint64_t session_bytes(const struct worker_spec *spec)
{
    uint32_t n_kinds = spec->pb->n_kinds ? (uint32_t)spec->pb->n_kinds : 1;
    return sizeof(struct worker_session) + sizeof *spec + n_kinds * sizeof *spec->kinds +
           worker_shape_bytes(spec->shape) + spec->shape->layers * sizeof(struct worker_appended) +
           (spec->pb->forget ? spec->shape->layers * sizeof(uint64_t) : 0) +
           2 * spec->packed_bytes; // packed, and as a message
}

static uint64_t entry_bytes(uint64_t n)
{
    return n * sizeof(struct worker_session_chunk);
}

// ---- forgetting ---------------------------------------------------------------------------------

static uint64_t chunk_end(const struct worker_session *session, uint32_t nth)
{
    return worker_chunk_first(session->chunks[nth].chunk) + session->spec->shape->chunk_tokens;
}

// The session's word on a chunk that it refers to: which layers' rows it will not ask for.
static void chunk_forgo(struct worker_store *store, const struct worker_session *session,
                        struct worker_chunk *chunk)
{
    uint64_t end = worker_chunk_first(chunk) + session->spec->shape->chunk_tokens;
    for (uint32_t l = 0; session->forgotten && l < session->spec->shape->layers; l++)
        if (end <= session->forgotten[l])
            worker_store_forgo(store, chunk, l);
}

// Rows that are on their way to it, and that other sessions here, which share the chunk, have forgotten.
static void chunk_recall(const struct worker_session *session, struct worker_chunk *chunk)
{
    uint64_t end = worker_chunk_first(chunk) + session->spec->shape->chunk_tokens;
    for (uint32_t l = 0; session->forgotten && l < session->spec->shape->layers; l++)
        if (end > session->forgotten[l])
            worker_store_recall(chunk, l);
}

static void chunk_release(struct worker_store *store, const struct worker_session *session,
                          struct worker_chunk *chunk)
{
    uint64_t end = worker_chunk_first(chunk) + session->spec->shape->chunk_tokens;
    for (uint32_t l = 0; session->forgotten && l < session->spec->shape->layers; l++)
        if (end <= session->forgotten[l])
            worker_store_unforgo(chunk, l);
    worker_store_release(store, chunk);
}

static void layer_forget(struct worker_store *store, struct worker_session *session, uint32_t layer,
                         uint64_t position)
{
    uint64_t before = session->forgotten[layer], low = before < position ? before : position,
             high = before < position ? position : before;
    for (uint32_t i = worker_session_at(session, low); i < session->n_chunks && chunk_end(session, i) <= high;
         i++) {
        if (position > before)
            worker_store_forgo(store, session->chunks[i].chunk, layer);
        else
            worker_store_unforgo(session->chunks[i].chunk, layer);
    }
    session->forgotten[layer] = position;
}

// fresh: a floor that falls counts as well.
static void session_forget(struct worker_store *store, struct worker_session *session, uint64_t floor,
                           bool fresh)
{
    for (uint32_t l = 0; session->forgotten && l < session->spec->shape->layers; l++) {
        uint64_t position = proto_spec_forgotten(session->spec->pb, l, floor);
        if (fresh || position > session->forgotten[l])
            layer_forget(store, session, l, position);
    }
}

void worker_session_restore_forgotten(struct worker_store *store, struct worker_session *session,
                                      const uint64_t *positions)
{
    for (uint32_t l = 0; session->forgotten && l < session->spec->shape->layers; l++)
        layer_forget(store, session, l, positions[l]);
}

// ---- lives --------------------------------------------------------------------------------------

static void release_chunks(struct worker_store *store, struct worker_session *session)
{
    for (uint32_t i = 0; i < session->n_chunks; i++)
        chunk_release(store, session, session->chunks[i].chunk);
    worker_store_give(store, entry_bytes(session->n_chunks));
    session->n_chunks = 0;
}

static void free_session(struct worker_store *store, struct worker_session *session)
{
    release_chunks(store, session);
    worker_frozen_clear(&session->frozen, store);
    worker_store_give(store, session_bytes(session->spec));
    worker_spec_unref(session->spec);
    free(session->chunks);
    free(session->staged);
    free(session->appended);
    free(session->forgotten);
    free(session);
}

void worker_session_drop(struct worker_map *sessions, struct worker_store *store, uint64_t id)
{
    struct worker_session *session = worker_map_remove(sessions, id);
    if (!session)
        return;
    release_chunks(store, session); // first, so that no file is left without one that names it
    worker_backing_drop(worker_store_backing(store), session);
    free_session(store, session);
}

uint64_t worker_session_bytes(const struct worker_session *session)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < session->n_chunks; i++)
        bytes += worker_chunk_bytes(session->chunks[i].chunk);
    return bytes;
}

static int compare_entries(const void *a, const void *b)
{
    const struct worker_layout_entry *x = a, *y = b;
    return order(x->first, x->chunk, y->first, y->chunk);
}

// Merges the sorted runs [0, half) and [half, n); of equals those of the first one come first.
static void merge_runs(struct worker_layout_entry *entries, uint32_t half, uint32_t n,
                       struct worker_layout_entry *room)
{
    uint32_t a = 0, b = half, at = 0;
    memcpy(room, entries, half * sizeof *room);
    while (a < half)
        entries[at++] = b < n && compare_entries(&entries[b], &room[a]) < 0 ? entries[b++] : room[a++];
}

// Keeps the order of equals. Runs that are in order already, as nearly all are, cost a comparison each. False: no memory.
static bool entries_sort(struct worker_layout_entry *entries, uint32_t n)
{
    uint32_t sorted = 1;
    while (sorted < n && compare_entries(&entries[sorted - 1], &entries[sorted]) <= 0)
        sorted++;
    struct worker_layout_entry *room = sorted < n ? malloc(n * sizeof *room) : NULL;
    if (sorted < n && !room)
        return false;
    for (uint64_t run = 1; sorted < n && run < n; run *= 2)
        for (uint64_t from = 0; from + run < n; from += 2 * run) {
            uint64_t left = n - from < 2 * run ? n - from : 2 * run;
            if (compare_entries(&entries[from + run - 1], &entries[from + run]) > 0)
                merge_runs(entries + from, (uint32_t)run, (uint32_t)left, room);
        }
    free(room);
    return true;
}

// Sorts, and leaves one of equal entries: the last one given. INVALID_ARGUMENT: one id at two places.
static enum common_code entries_tidy(struct worker_layout_entry *entries, uint32_t *n,
                                     struct common_error *err)
{
    if (!entries_sort(entries, *n))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a layout");
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *n; i++) {
        if (kept > 0 && compare_entries(&entries[kept - 1], &entries[i]) == 0)
            kept--;
        entries[kept++] = entries[i];
    }
    *n = kept;
    struct worker_map seen = {0};
    enum common_code code = COMMON_OK;
    for (uint32_t i = 0; i < kept && code == COMMON_OK; i++) {
        if (worker_map_get(&seen, entries[i].chunk))
            code = common_error_set(err, COMMON_INVALID_ARGUMENT, "a chunk is named at two positions");
        else if (!worker_map_put(&seen, entries[i].chunk, entries))
            code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a layout");
    }
    worker_map_free(&seen);
    return code;
}

static enum common_code check_layout(const struct worker_session *session, const struct worker_spec *spec,
                                     const Banyan__Pb__LayoutSetRequest *request, struct common_error *err)
{
    if (session) {
        if (request->incarnation < session->incarnation)
            return common_error_set(err, COMMON_ABORTED,
                                    "session %016" PRIx64 " is already at incarnation %" PRIu64,
                                    request->session, session->incarnation);
        if (request->epoch < session->epoch)
            return common_error_set(err, COMMON_ABORTED,
                                    "session %016" PRIx64 " is already at epoch %" PRIu64, request->session,
                                    session->epoch);
        if (request->spec && !worker_spec_equal(session->spec, request->spec))
            return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                    "session %016" PRIx64 " has another spec here", request->session);
    }
    if (session && session->life != request->life && !request->claim)
        return common_error_set(
            err, COMMON_FAILED_PRECONDITION,
            "session %016" PRIx64
            " is in quarantine here: its layout came from another store, or from a later state of this one",
            request->session);
    if (request->n_lengths && request->n_lengths != spec->shape->layers)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "%zu lengths for %u layers", request->n_lengths,
                                spec->shape->layers);
    if (request->forgotten > WORKER_POSITIONS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "no such position");
    if ((request->more || request->page) && !request->replace)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "more and page need replace");
    for (size_t i = 0; i < request->n_chunks; i++) {
        const Banyan__Pb__LayoutChunk *chunk = request->chunks[i];
        if (chunk->chunk == 0 || chunk->first % spec->shape->chunk_tokens != 0 ||
            chunk->first >= WORKER_POSITIONS_MAX)
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "chunk %" PRIu64 " at position %" PRIu64
                                    ": ids must not be 0, and positions must be multiples of %u",
                                    chunk->chunk, chunk->first, spec->shape->chunk_tokens);
    }
    return COMMON_OK;
}

static void put_entries(const Banyan__Pb__LayoutSetRequest *request, struct worker_layout_entry *out)
{
    for (size_t i = 0; i < request->n_chunks; i++) {
        const Banyan__Pb__LayoutChunk *chunk = request->chunks[i];
        out[i] = (struct worker_layout_entry){chunk->chunk, chunk->first, chunk->compute, chunk->incoming,
                                              chunk->copy};
    }
}

static enum common_code too_many_chunks(struct common_error *err)
{
    return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "a session has at most %u chunks here",
                            WORKER_SESSION_CHUNKS_MAX);
}

// *resume: what has come of a layout in several messages goes on.
static enum common_code check_page(const struct worker_session *session,
                                   const Banyan__Pb__LayoutSetRequest *request, bool *resume,
                                   struct common_error *err)
{
    bool staged = session->staging && session->staging_term == request->term &&
                  session->staging_incarnation == request->incarnation &&
                  session->staging_epoch == request->epoch;
    *resume = request->replace && staged && request->page != 1;
    if (request->page > 1 && (!staged || session->n_staged != request->page - 1))
        return common_error_set(err, COMMON_ABORTED,
                                "a layout in several calls was interrupted: begin again");
    return COMMON_OK;
}

static void session_unstage(struct worker_session *session)
{
    free(session->staged);
    session->staged = NULL;
    session->n_staged = session->cap_staged = 0;
    session->staging = false;
}

// One message of several: added as it is to those before it. The last one sorts them all.
static enum common_code layout_stage(struct worker_session *session,
                                     const Banyan__Pb__LayoutSetRequest *request, struct common_error *err)
{
    bool resume;
    enum common_code code = check_page(session, request, &resume, err);
    if (code != COMMON_OK)
        return code;
    if (!resume)
        session_unstage(session);
    if (request->n_chunks > WORKER_SESSION_CHUNKS_MAX - session->n_staged)
        return too_many_chunks(err);
    uint32_t n = session->n_staged + (uint32_t)request->n_chunks;
    if (n >= session->cap_staged) { // twice as many, so that all messages together copy few
        struct worker_layout_entry *staged = realloc(session->staged, 2 * (n + 1) * sizeof *staged);
        if (!staged)
            return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a layout");
        session->staged = staged;
        session->cap_staged = 2 * (n + 1);
    }
    put_entries(request, session->staged + session->n_staged);
    session->n_staged = n;
    session->staging = true;
    session->staging_term = request->term;
    session->staging_incarnation = request->incarnation;
    session->staging_epoch = request->epoch;
    return COMMON_OK;
}

// The layout that the request asks for, as a list of its own: what is there (or staged) and what comes.
static enum common_code layout_collect(const struct worker_session *session,
                                       const Banyan__Pb__LayoutSetRequest *request,
                                       struct worker_layout_entry **out, uint32_t *n,
                                       struct common_error *err)
{
    bool resume;
    enum common_code code = check_page(session, request, &resume, err);
    if (code != COMMON_OK)
        return code;
    uint32_t have = request->replace ? (resume ? session->n_staged : 0) : session->n_chunks;
    if (request->n_chunks > WORKER_SESSION_CHUNKS_MAX - have)
        return too_many_chunks(err);
    struct worker_layout_entry *entries = malloc((have + request->n_chunks + 1) * sizeof *entries);
    if (!entries)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a layout");
    if (resume)
        memcpy(entries, session->staged, have * sizeof *entries);
    for (uint32_t i = 0; !request->replace && i < have; i++)
        entries[i] = (struct worker_layout_entry){worker_chunk_id(session->chunks[i].chunk),
                                                  worker_chunk_first(session->chunks[i].chunk),
                                                  session->chunks[i].compute, session->chunks[i].incoming,
                                                  session->chunks[i].copy};
    put_entries(request, entries + have);
    *n = have + (uint32_t)request->n_chunks;
    code = entries_tidy(entries, n, err);
    if (code != COMMON_OK) {
        free(entries);
        return code;
    }
    *out = entries;
    return COMMON_OK;
}

static bool has_rows(const struct worker_chunk *chunk)
{
    for (uint32_t l = 0; l < worker_chunk_shape(chunk)->layers; l++)
        if (worker_chunk_ready(chunk, l) > 0)
            return true;
    return false;
}

// References to all chunks of the new layout, then the old ones go: a failure leaves the session as it was. A
// layout of as many chunks, or fewer, needs no room in the account: a full worker can always receive it.
// *shares becomes true where a chunk is new to the session, and has rows.
static enum common_code layout_install(struct worker_store *store, struct worker_session *session,
                                       const struct worker_layout_entry *entries, uint32_t n, bool *shares,
                                       struct common_error *err)
{
    struct worker_session_chunk *chunks = malloc((n + 1) * sizeof *chunks);
    uint32_t before = session->n_chunks, more = n > before ? n - before : 0;
    if (!chunks || !worker_store_take(store, entry_bytes(more))) {
        free(chunks);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for a layout of %u chunks", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        enum common_code code = worker_store_hold(store, entries[i].chunk, entries[i].first,
                                                  session->spec->shape, &chunks[i].chunk, err);
        if (code != COMMON_OK) {
            while (i > 0)
                worker_store_release(store, chunks[--i].chunk);
            worker_store_give(store, entry_bytes(more));
            free(chunks);
            return code;
        }
        chunks[i].compute = entries[i].compute;
        chunks[i].incoming = entries[i].incoming;
        chunks[i].copy = entries[i].copy;
    }
    for (uint32_t i = 0; i < n; i++) {
        *shares = *shares || (has_rows(chunks[i].chunk) &&
                              !worker_session_chunk(session, entries[i].chunk, entries[i].first));
        chunk_forgo(store, session, chunks[i].chunk);
        if (chunks[i].incoming)
            chunk_recall(session, chunks[i].chunk);
    }
    for (uint32_t i = 0; i < session->n_chunks; i++)
        chunk_release(store, session, session->chunks[i].chunk);
    worker_store_give(store, entry_bytes(before > n ? before - n : 0));
    free(session->chunks);
    session->chunks = chunks;
    session->n_chunks = n;
    return COMMON_OK;
}

static enum common_code session_create(struct worker_map *sessions, struct worker_store *store,
                                       const Banyan__Pb__LayoutSetRequest *request,
                                       struct worker_session **out, struct common_error *err)
{
    if (request->session == 0 || !request->spec)
        return common_error_set(err, request->session ? COMMON_NOT_FOUND : COMMON_INVALID_ARGUMENT,
                                "session %016" PRIx64 " is unknown here and the request has no spec",
                                request->session);
    if (sessions->count >= WORKER_SESSIONS_MAX)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "a worker has at most %u sessions",
                                WORKER_SESSIONS_MAX);
    struct worker_spec *spec;
    enum common_code code = worker_spec_new(request->spec, worker_store_device(store), &spec, err);
    if (code != COMMON_OK)
        return code;
    struct worker_session *session = calloc(1, sizeof *session);
    struct worker_appended *appended = calloc(spec->shape->layers, sizeof *appended);
    uint64_t *forgotten = spec->pb->forget ? calloc(spec->shape->layers, sizeof *forgotten) : NULL;
    bool room = session && appended && (forgotten || !spec->pb->forget);
    if (!room || !worker_store_take(store, session_bytes(spec))) {
        free(appended);
        free(forgotten);
        free(session);
        worker_spec_unref(spec);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for a session");
    }
    session->id = request->session;
    session->spec = spec;
    session->appended = appended;
    session->forgotten = forgotten;
    *out = session;
    return COMMON_OK;
}

static bool lacks_rows(const struct worker_session *session)
{
    for (uint32_t i = 0; i < session->n_chunks; i++)
        if (!session->chunks[i].copy && worker_appended_lacks(session, session->chunks[i].chunk))
            return true;
    return false;
}

enum common_code worker_session_layout(struct worker_map *sessions, struct worker_store *store,
                                       const Banyan__Pb__LayoutSetRequest *request, struct common_error *err)
{
    struct worker_session *session = worker_map_get(sessions, request->session);
    bool known = session != NULL, shares = false;
    struct worker_layout_entry *entries = NULL;
    uint32_t n = 0;
    enum common_code code = known ? COMMON_OK : session_create(sessions, store, request, &session, err);
    if (code != COMMON_OK)
        return code;
    code = check_layout(known ? session : NULL, session->spec, request, err);
    if (code == COMMON_OK)
        code = request->more ? layout_stage(session, request, err)
                             : layout_collect(session, request, &entries, &n, err);
    // Before chunks of a new history come to stand where rows were forgotten.
    if (code == COMMON_OK && !request->more)
        session_forget(store, session, request->forgotten, request->incarnation > session->incarnation);
    if (code == COMMON_OK && !request->more)
        code = layout_install(store, session, entries, n, &shares, err);
    if (code == COMMON_OK && !known && !worker_map_put(sessions, session->id, session))
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a session");
    if (code != COMMON_OK) {
        if (!known)
            free_session(store, session);
        free(entries);
        return code;
    }
    if (request->more)
        return COMMON_OK; // nothing takes effect before the last message
    session_unstage(session);
    free(entries);
    worker_appended_layout(session, request, request->incarnation > session->incarnation);
    if (known && request->incarnation > session->incarnation) {
        worker_frozen_clear(&session->frozen, store);
        for (uint32_t i = 0; i < session->n_chunks; i++)
            worker_chunk_forget(session->chunks[i].chunk);
    }
    session->incarnation = request->incarnation;
    session->epoch = request->epoch;
    if (known && session->life != request->life)
        COMMON_FAILPOINT("quarantine_left");
    session->life = request->life;
    if (session->doubtful && request->settled) {
        session->doubtful = lacks_rows(session);
        if (!session->doubtful)
            worker_appended_tidy(session);
    }
    return worker_backing_layout(worker_store_backing(store), session, shares, err);
}
