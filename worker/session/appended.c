// SPDX-License-Identifier: Apache-2.0
#include "worker/session/appended.h"

#include "worker/session/session.h"

// The stretch of the session's chunk that [first, end) touches. False: none.
static bool part_of(const struct worker_chunk *chunk, uint64_t first, uint64_t end, uint32_t *row,
                    uint32_t *rows)
{
    uint64_t start = worker_chunk_first(chunk), stop = start + worker_chunk_shape(chunk)->chunk_tokens;
    uint64_t from = first > start ? first : start, to = end < stop ? end : stop;
    *row = (uint32_t)(from - start);
    *rows = (uint32_t)(to - from);
    return from < to;
}

static void withdraw(struct worker_session *session, uint32_t layer, uint64_t first, uint64_t end,
                     enum worker_row to)
{
    uint32_t span, row, rows, from = worker_session_span(session, first, end - first, &span);
    for (uint32_t i = from; i < from + span; i++)
        if (part_of(session->chunks[i].chunk, first, end, &row, &rows))
            worker_chunk_withdraw(session->chunks[i].chunk, layer, row, rows, to);
}

// Rows that a commit has frozen are its own again: it may be durable already. A commit that found holes here comes to
// nothing, and what filled them was never its own.
static void take_rows_back(struct worker_session *session, uint32_t layer, uint64_t first, uint64_t end)
{
    for (uint32_t i = 0; i < session->frozen.n; i++) {
        const struct worker_freeze *freeze = &session->frozen.entries[i];
        uint64_t from = freeze->first > first ? freeze->first : first,
                 to = freeze->first + freeze->count < end ? freeze->first + freeze->count : end;
        if (freeze->layer == layer && from < to && !freeze->holes)
            withdraw(session, layer, from, to, WORKER_ROW_PREPARED);
    }
    withdraw(session, layer, first, end, WORKER_ROW_ABSENT);
}

static void take_back(struct worker_session *session, uint32_t layer)
{
    struct worker_appended *appended = &session->appended[layer];
    uint64_t first = appended->length, end = appended->end;
    bool any = appended->write && first < end;
    appended->write = appended->end = 0;
    if (any)
        take_rows_back(session, layer, first, end);
}

void worker_appended_tidy(struct worker_session *session)
{
    for (uint32_t l = 0; l < session->spec->shape->layers; l++) {
        const struct worker_appended *a = &session->appended[l];
        uint64_t from = a->write && a->end > a->length ? a->end : a->length;
        if (worker_shape_form(session->spec->shape, l))
            take_rows_back(session, l, from, UINT64_MAX);
    }
}

void worker_appended_confirm(struct worker_session *session, uint32_t layer, uint64_t length)
{
    struct worker_appended *appended = &session->appended[layer];
    if (length > appended->length)
        appended->length = length;
    if (appended->end <= appended->length)
        appended->write = appended->end = 0;
}

void worker_appended_begin(struct worker_session *session, uint32_t layer, uint64_t write)
{
    if (session->appended[layer].write != write)
        take_back(session, layer);
}

void worker_appended_stored(struct worker_session *session, uint32_t layer, uint64_t write, uint64_t end)
{
    struct worker_appended *appended = &session->appended[layer];
    if (end <= appended->length)
        return;
    appended->write = write;
    appended->end = end > appended->end ? end : appended->end;
}

void worker_appended_settle(struct worker_session *session, uint32_t layer, uint64_t write)
{
    if (session->appended[layer].write <= write)
        take_back(session, layer);
    if (write > session->writes_over)
        session->writes_over = write;
}

bool worker_appended_lacks(const struct worker_session *session, const struct worker_chunk *chunk)
{
    const struct worker_shape *shape = worker_chunk_shape(chunk);
    uint64_t first = worker_chunk_first(chunk);
    for (uint32_t l = 0; l < shape->layers; l++) {
        uint64_t length = session->appended[l].length, from = worker_session_forgotten(session, l);
        uint64_t n = length > first ? length - first : 0;
        n = n < shape->chunk_tokens ? n : shape->chunk_tokens;
        if (worker_shape_form(shape, l) && first + n > from &&
            worker_chunk_rows_at(chunk, l, 0, (uint32_t)n, WORKER_ROW_PREPARED) < n)
            return true;
    }
    return false;
}

bool worker_appended_reaches(const struct worker_session *session, const struct worker_chunk *chunk)
{
    const struct worker_shape *shape = worker_chunk_shape(chunk);
    uint64_t first = worker_chunk_first(chunk);
    for (uint32_t l = 0; l < shape->layers; l++) {
        const struct worker_appended *a = &session->appended[l];
        if (a->write && a->end > first && a->length < first + shape->chunk_tokens)
            return true;
    }
    return false;
}

void worker_appended_layout(struct worker_session *session, const Banyan__Pb__LayoutSetRequest *request,
                            bool newer)
{
    for (uint32_t l = 0; l < request->n_lengths; l++) {
        if (newer)
            session->appended[l].length = 0; // it may have fallen
        worker_appended_confirm(session, l, request->lengths[l]);
        if (newer)
            take_back(session, l);
        worker_appended_settle(session, l, request->settled);
    }
}
