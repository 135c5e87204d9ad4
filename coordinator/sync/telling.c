// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/telling.h"

#include "common/log/log.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/failover.h"
#include "coordinator/sync/returned.h"
#include "proto/rpc/status.h"

#define PAGE_CHUNKS 1024
// Of one RowsCommit: a worker looks at each of them, and does nothing else meanwhile (some 10 ms).
#define PAGE_ROWS (UINT64_C(1) << 21)

void coordinator_telling_begin(struct coordinator_telling *telling, const struct coordinator_session *s)
{
    *telling = (struct coordinator_telling){.stage = COORDINATOR_TELLING_LAYOUT,
                                            .session = s->id,
                                            .incarnation = s->incarnation,
                                            .epoch = s->layout.epoch};
}

// ---- layout -------------------------------------------------------------------------------------

// The next chunk that the worker holds or keeps (returned.h), in order of position. A copy under way comes behind what it
// is copied from: it may be durable already that it takes its place.
static const struct coordinator_chunk *chunk_next(const struct coordinator_session *s,
                                                  const struct coordinator_worker *w, uint64_t *cursor)
{
    const struct coordinator_chunk *copy = s->copy && coordinator_chunk_held_by(s->copy, w) ? s->copy : NULL;
    for (;;) {
        uint64_t index = *cursor / 2;
        if (*cursor % 2) {
            ++*cursor;
            if (copy && copy->index == index)
                return copy;
            continue;
        }
        uint32_t at = coordinator_layout_lower(&s->layout, index);
        if (at == s->layout.n)
            return NULL;
        const struct coordinator_chunk *chunk = &s->layout.chunks[at];
        *cursor = 2 * (uint64_t)chunk->index + 1;
        if (coordinator_chunk_held_by(chunk, w) || coordinator_returned_has(s, w, chunk))
            return chunk;
    }
}

static void tell_layout(struct coordinator_telling *t, struct coordinator_session *s,
                        struct coordinator_worker *w, proto_reply_fn done, void *arg)
{
    Banyan__Pb__LayoutChunk chunks[PAGE_CHUNKS], *pointers[PAGE_CHUNKS];
    Banyan__Pb__LayoutSetRequest m = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    const struct coordinator_chunk *chunk;
    m.term = w->cluster->core->term;
    m.session = s->id;
    m.incarnation = s->incarnation;
    m.epoch = s->layout.epoch;
    m.spec = s->spec;
    m.life = coordinator_store_life(w->cluster->store);
    m.visit = w->visit_number;
    m.claim = true; // what another life has told the worker of the session is the store's too (store.h)
    m.replace = true;
    m.page = t->told + 1;
    m.chunks = pointers;
    m.settled = coordinator_session_settled(s);
    m.forgotten = s->floor;
    m.n_lengths = s->spec->layers;
    m.lengths = coordinator_alloc(s->spec->layers * sizeof(*m.lengths));
    for (uint32_t l = 0; l < s->spec->layers; l++)
        m.lengths[l] = coordinator_rangeset_length(&s->layers[l]);
    while (m.n_chunks < PAGE_CHUNKS && (chunk = chunk_next(s, w, &t->cursor))) {
        Banyan__Pb__LayoutChunk *out = &chunks[m.n_chunks];
        *out = (Banyan__Pb__LayoutChunk)BANYAN__PB__LAYOUT_CHUNK__INIT;
        out->chunk = chunk->id;
        out->first = (uint64_t)chunk->index * s->spec->chunk_tokens;
        out->copy = chunk == s->copy;
        out->compute = !out->copy && chunk->holder == w;
        out->incoming = !out->copy && !coordinator_chunk_held_by(chunk, w);
        pointers[m.n_chunks++] = out;
        t->holds = t->holds || (chunk != s->copy && !out->incoming);
    }
    uint64_t ahead = t->cursor;
    m.more = chunk_next(s, w, &ahead) != NULL;
    t->told += (uint32_t)m.n_chunks;
    if (!m.more)
        t->stage = t->holds ? COORDINATOR_TELLING_ROWS : COORDINATOR_TELLING_OVER;
    coordinator_worker_call(w, BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &m.base, done, arg);
    free(m.lengths);
}

// ---- rows ---------------------------------------------------------------------------------------

// The next committed range, at most `most` rows of it. False: there is none.
static bool range_next(struct coordinator_telling *t, const struct coordinator_session *s, uint64_t most,
                       Banyan__Pb__RowsRange *out)
{
    for (; t->layer < s->spec->layers; t->layer++, t->from = 0) {
        struct proto_range range;
        if (!coordinator_rangeset_next(&s->layers[t->layer], t->from, &range))
            continue;
        *out = (Banyan__Pb__RowsRange)BANYAN__PB__ROWS_RANGE__INIT;
        out->layer = t->layer;
        out->first = range.first;
        out->count = range.count < most ? range.count : most;
        t->from = range.first + out->count;
        return true;
    }
    return false;
}

// False: there are no rows left.
static bool tell_rows(struct coordinator_telling *t, const struct coordinator_session *s,
                      struct coordinator_worker *w, proto_reply_fn done, void *arg)
{
    struct {
        Banyan__Pb__RowsRange ranges[PROTO_COMMIT_RANGES_MAX], *pointers[PROTO_COMMIT_RANGES_MAX];
    } *page = coordinator_alloc(sizeof(*page));
    Banyan__Pb__RowsCommitRequest m = BANYAN__PB__ROWS_COMMIT_REQUEST__INIT;
    uint64_t rows = 0;
    m.term = w->cluster->core->term;
    m.session = s->id;
    m.incarnation = s->incarnation;
    m.ranges = page->pointers;
    while (m.n_ranges < PROTO_COMMIT_RANGES_MAX && rows < PAGE_ROWS &&
           range_next(t, s, PAGE_ROWS - rows, &page->ranges[m.n_ranges])) {
        rows += page->ranges[m.n_ranges].count;
        page->pointers[m.n_ranges] = &page->ranges[m.n_ranges];
        m.n_ranges++;
    }
    if (m.n_ranges)
        coordinator_worker_call(w, BANYAN__PB__METHOD__METHOD_ROWS_COMMIT, &m.base, done, arg);
    free(page);
    return m.n_ranges > 0;
}

enum coordinator_told coordinator_telling_next(struct coordinator_telling *telling,
                                               const struct coordinator_sessions *sessions,
                                               struct coordinator_worker *w, proto_reply_fn layout_told,
                                               proto_reply_fn rows_told, void *arg)
{
    struct coordinator_session *s = coordinator_session_any(sessions, telling->session);
    if (telling->stage == COORDINATOR_TELLING_OVER)
        return COORDINATOR_TOLD_ALL;
    if (!s || s->incarnation != telling->incarnation || s->layout.epoch != telling->epoch) {
        telling->stage = COORDINATOR_TELLING_OVER;
        return COORDINATOR_TOLD_CHANGED;
    }
    if (telling->stage == COORDINATOR_TELLING_LAYOUT) {
        tell_layout(telling, s, w, layout_told, arg);
        return COORDINATOR_TOLD;
    }
    if (tell_rows(telling, s, w, rows_told, arg))
        return COORDINATOR_TOLD;
    telling->stage = COORDINATOR_TELLING_OVER;
    return COORDINATOR_TOLD_ALL;
}

// A worker lacks rows of these chunks for good where it is a new process, and of those that have rows of a commit that was
// answered while the word of it was out (attach.c). False: it had the only copy of one.
static bool lacks_for_good(struct coordinator_session *s, struct coordinator_worker *w,
                           const struct proto_range *range)
{
    uint64_t ct = s->layout.chunk_tokens;
    bool others = true;
    if (w->fresh)
        return coordinator_failover_cut_short(s, w, range->first, range->count);
    for (uint32_t i = coordinator_layout_lower(&s->layout, range->first / ct);
         i < s->layout.n && s->layout.chunks[i].index * ct < range->first + range->count; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        uint32_t copy = coordinator_chunk_copy_at(chunk, w);
        if (copy < COORDINATOR_COPIES_MAX && chunk->untold & 1u << copy)
            others = coordinator_failover_cut_short(s, w, chunk->index * ct, ct) && others;
    }
    return others;
}

enum common_code coordinator_telling_rows_code(const struct proto_reply *reply, struct coordinator_session *s,
                                               struct coordinator_worker *w)
{
    if (reply->code != COMMON_FAILED_PRECONDITION)
        return reply->code;
    struct proto_status status;
    bool others = true;
    proto_status_from_pb(reply->status, &status);
    for (uint32_t i = 0; i < status.n_ranges; i++)
        others = lacks_for_good(s, w, &status.ranges[i]) && others;
    if (!w->fresh || !status.n_ranges)
        others = coordinator_failover_without(s, w, 0, coordinator_session_end(s)) && others;
    if (others)
        return COMMON_OK; // they have them
    common_log_error("a worker lacks rows whose commit is durable: %s worker=%s", reply->text, w->name);
    return COMMON_OK;
}
