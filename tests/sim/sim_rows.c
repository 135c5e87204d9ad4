// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/coverage.h"
#include "proto/kv.h"

static void *zeroed(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p)
        abort();
    return p;
}

// ---- chunks ---------------------------------------------------------------------------------------------

struct sim_chunk *sim_rows_chunk(const struct sim_rows *rows, uint64_t id)
{
    struct sim_chunk *chunk = rows->chunks;
    while (chunk && chunk->id != id)
        chunk = chunk->next;
    return chunk;
}

static struct sim_chunk *chunk_hold(struct sim_rows *rows, const struct sim_session *session, uint64_t id,
                                    uint64_t first)
{
    struct sim_chunk *chunk = sim_rows_chunk(rows, id);
    if (!chunk) {
        chunk = zeroed(sizeof *chunk);
        *chunk =
            (struct sim_chunk){.next = rows->chunks,
                               .id = id,
                               .first = first,
                               .layers = session->layers,
                               .tokens = session->tokens,
                               .rows = zeroed(session->layers * session->tokens * sizeof(struct sim_row))};
        rows->chunks = chunk;
    }
    if (chunk->first != first || chunk->tokens != session->tokens)
        return NULL;
    chunk->refs++;
    return chunk;
}

static void chunk_release(struct sim_rows *rows, struct sim_chunk *chunk)
{
    if (--chunk->refs > 0)
        return;
    struct sim_chunk **at = &rows->chunks;
    while (*at != chunk)
        at = &(*at)->next;
    *at = chunk->next;
    free(chunk->rows);
    free(chunk);
}

struct sim_row *sim_chunk_row(const struct sim_chunk *chunk, uint32_t layer, uint32_t row)
{
    return &chunk->rows[layer * chunk->tokens + row];
}

uint32_t sim_chunk_ready(const struct sim_chunk *chunk, uint32_t layer)
{
    uint32_t n = 0;
    while (n < chunk->tokens && sim_chunk_row(chunk, layer, n)->state >= SIM_ROW_APPENDED)
        n++;
    return n;
}

// A new incarnation: no commit will come for what was put and prepared.
static void chunk_forget(struct sim_chunk *chunk)
{
    for (uint32_t i = 0; i < chunk->layers * chunk->tokens; i++)
        if (chunk->rows[i].state < SIM_ROW_APPENDED)
            chunk->rows[i].state =
                chunk->refs == 1 || chunk->rows[i].state == SIM_ROW_ABSENT ? SIM_ROW_ABSENT : SIM_ROW_PUT;
}

// ---- sessions -------------------------------------------------------------------------------------------

struct sim_session *sim_rows_session(const struct sim_rows *rows, uint64_t id)
{
    struct sim_session *session = rows->sessions;
    while (session && session->id != id)
        session = session->next;
    return session;
}

enum common_code sim_rows_check(const struct sim_rows *rows, uint64_t id, uint64_t incarnation,
                                uint32_t layer, struct sim_session **out, struct common_error *err)
{
    struct sim_session *session = sim_rows_session(rows, id);
    if (!session)
        return common_error_set(err, COMMON_NOT_FOUND, "session %016" PRIx64 " is unknown here", id);
    if (session->incarnation != incarnation)
        return common_error_set(err, COMMON_ABORTED,
                                "session %016" PRIx64 " is at incarnation %" PRIu64 ", not %" PRIu64, id,
                                session->incarnation, incarnation);
    if (layer >= session->layers)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "layer %u of %u", layer, session->layers);
    *out = session;
    return COMMON_OK;
}

static struct sim_session *session_make(struct sim_rows *rows, const Banyan__Pb__LayoutSetRequest *request)
{
    const Banyan__Pb__Spec *spec = request->spec;
    struct sim_session *session = zeroed(sizeof *session), **at = &rows->sessions;
    *session = (struct sim_session){.id = request->session,
                                    .layers = spec->layers,
                                    .tokens = spec->chunk_tokens,
                                    .k_row = proto_kv_row_bytes(spec->kv_type, spec->kv_heads, spec->k_dim),
                                    .v_row = proto_kv_row_bytes(spec->kv_type, spec->kv_heads, spec->v_dim)};
    while (*at && (*at)->id < session->id)
        at = &(*at)->next;
    session->next = *at;
    *at = session;
    return session;
}

void sim_rows_drop(struct sim_rows *rows, uint64_t id)
{
    struct sim_session **at = &rows->sessions, *session;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    session = *at;
    if (!session)
        return;
    *at = session->next;
    for (uint32_t i = 0; i < session->n; i++)
        chunk_release(rows, session->entries[i].chunk);
    for (uint32_t i = 0; i < session->n_staged; i++)
        chunk_release(rows, session->staged[i].chunk);
    free(session->entries);
    free(session->staged);
    free(session);
}

void sim_rows_clear(struct sim_rows *rows)
{
    while (rows->sessions)
        sim_rows_drop(rows, rows->sessions->id);
}

static int by_position(const void *x, const void *y)
{
    const struct sim_chunk *a = ((const struct sim_entry *)x)->chunk,
                           *b = ((const struct sim_entry *)y)->chunk;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

enum common_code sim_rows_layout(struct sim_rows *rows, const Banyan__Pb__LayoutSetRequest *request,
                                 struct common_error *err)
{
    struct sim_session *session = sim_rows_session(rows, request->session);
    bool known = session != NULL;
    if (!known && !request->spec)
        return common_error_set(err, COMMON_NOT_FOUND, "session %016" PRIx64 " is unknown here",
                                request->session);
    if (known && (request->incarnation < session->incarnation || request->epoch < session->epoch))
        return common_error_set(err, COMMON_ABORTED, "session %016" PRIx64 " is further already",
                                request->session);
    session = known ? session : session_make(rows, request);
    bool resume = request->replace && session->staged_epoch == request->epoch;
    if (!resume) {
        for (uint32_t i = 0; i < session->n_staged; i++)
            chunk_release(rows, session->staged[i].chunk);
        session->n_staged = 0;
    }
    uint32_t kept = request->replace ? 0 : session->n;
    session->staged = realloc(session->staged,
                              (session->n_staged + kept + request->n_chunks + 1) * sizeof(*session->staged));
    if (!session->staged)
        abort();
    for (uint32_t i = 0; i < kept; i++) {
        session->staged[session->n_staged++] = session->entries[i];
        session->entries[i].chunk->refs++;
    }
    for (size_t i = 0; i < request->n_chunks; i++) {
        const Banyan__Pb__LayoutChunk *chunk = request->chunks[i];
        struct sim_entry *entry = NULL;
        for (uint32_t k = 0; k < session->n_staged && !entry; k++)
            entry = session->staged[k].chunk->id == chunk->chunk ? &session->staged[k] : NULL;
        if (!entry) {
            entry = &session->staged[session->n_staged];
            entry->chunk = chunk_hold(rows, session, chunk->chunk, chunk->first);
            if (!entry->chunk)
                return common_error_set(err, COMMON_FAILED_PRECONDITION, "chunk %" PRIu64 " lies elsewhere",
                                        chunk->chunk);
            session->n_staged++;
        }
        entry->compute = chunk->compute;
    }
    session->staged_epoch = request->epoch;
    if (request->more)
        return COMMON_OK;
    if (session->n_staged)
        qsort(session->staged, session->n_staged, sizeof(*session->staged), by_position);
    for (uint32_t i = 0; i < session->n; i++)
        chunk_release(rows, session->entries[i].chunk);
    free(session->entries);
    session->entries = session->staged;
    session->n = session->n_staged;
    session->staged = NULL;
    session->n_staged = 0;
    session->staged_epoch = 0;
    for (uint32_t i = 0; known && request->incarnation > session->incarnation && i < session->n; i++)
        chunk_forget(session->entries[i].chunk);
    session->incarnation = request->incarnation;
    session->epoch = request->epoch;
    return COMMON_OK;
}

// ---- rows -----------------------------------------------------------------------------------------------

// The one that is computed, where a truncation is making a copy beside it.
struct sim_chunk *sim_session_chunk(const struct sim_session *session, uint64_t position)
{
    for (uint32_t i = 0; i < session->n; i++) {
        const struct sim_entry *entry = &session->entries[i];
        if (entry->compute && position >= entry->chunk->first &&
            position < entry->chunk->first + entry->chunk->tokens)
            return entry->chunk;
    }
    return NULL;
}

static struct sim_row *row_at(const struct sim_session *session, uint32_t layer, uint64_t position)
{
    const struct sim_chunk *chunk = sim_session_chunk(session, position);
    return chunk ? sim_chunk_row(chunk, layer, (uint32_t)(position - chunk->first)) : NULL;
}

uint64_t sim_session_put(struct sim_session *session, uint32_t layer, uint64_t first, uint64_t count,
                         uint64_t tag)
{
    uint64_t held = 0;
    for (uint64_t at = first; at < first + count; at++) {
        struct sim_row *row = row_at(session, layer, at);
        held += row != NULL;
        if (row && row->state <= SIM_ROW_PUT)
            *row = (struct sim_row){SIM_ROW_PUT, tag + at};
    }
    return held;
}

void sim_session_move(struct sim_session *session, uint32_t layer, uint64_t first, uint64_t count,
                      enum sim_row_state from, enum sim_row_state to)
{
    for (uint64_t at = first; at < first + count; at++) {
        struct sim_row *row = row_at(session, layer, at);
        if (row && row->state == from)
            row->state = to;
    }
}

bool sim_session_all(const struct sim_session *session, uint32_t layer, uint64_t first, uint64_t count,
                     enum sim_row_state least)
{
    for (uint64_t at = first; at < first + count; at++) {
        const struct sim_row *row = row_at(session, layer, at);
        if (row && row->state < least)
            return false;
    }
    return true;
}

enum common_code sim_session_append(struct sim_session *session, const struct proto_append_run *run,
                                    uint32_t layer, uint64_t position, uint64_t tag, uint64_t replace_from,
                                    struct common_error *err)
{
    const struct sim_chunk *chunk = sim_session_chunk(session, position);
    if (!chunk || chunk->id != run->chunk)
        return common_error_set(err, COMMON_DATA_LOSS, "chunk %" PRIu64 " is not held here", run->chunk);
    struct sim_row *row = sim_chunk_row(chunk, layer, (uint32_t)(position - chunk->first));
    bool kept =
        row->state >= SIM_ROW_PREPARED && !(row->state == SIM_ROW_APPENDED && position >= replace_from);
    if (kept && row->tag != tag)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "other bytes are at position %" PRIu64 " of layer %u", position, layer);
    row->tag = tag;
    row->state = row->state == SIM_ROW_COMMITTED ? SIM_ROW_COMMITTED : SIM_ROW_APPENDED;
    return COMMON_OK;
}

void sim_session_cover(const struct sim_session *session, uint32_t layer, uint64_t visible, uint64_t *tokens,
                       uint64_t *sum)
{
    *tokens = *sum = 0;
    for (uint32_t i = 0; i < session->n; i++) {
        const struct sim_chunk *chunk = session->entries[i].chunk;
        if (!session->entries[i].compute || visible <= chunk->first)
            continue;
        uint64_t below = visible - chunk->first, ready = sim_chunk_ready(chunk, layer);
        uint64_t covered = below < ready ? below : ready;
        if (!covered)
            continue;
        *tokens += covered;
        *sum += common_coverage_mix(chunk->id, covered, session->epoch);
    }
}
