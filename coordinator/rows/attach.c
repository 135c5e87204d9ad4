// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rows/attach.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "coordinator/check/seals.h"
#include "coordinator/cluster/hide.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/place/forget.h"
#include "coordinator/place/placing.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/failover.h"
#include "coordinator/sync/recovery.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/unavailable.h"
#include "proto/model/spec.h"
#include "proto/rights/pass.h"
#include "proto/rights/ticket.h"

// What open and commit demand of their range.
static enum common_code check_range(const struct coordinator_sessions *sessions,
                                    const struct proto_request *request, uint64_t id, uint64_t first,
                                    uint64_t count, struct coordinator_session **out,
                                    struct proto_status *status)
{
    struct coordinator_session *s = coordinator_session_asked(sessions, request, id);
    uint64_t most = sessions->core->options.max_session_tokens;
    if (!s)
        return coordinator_session_unknown(id, status);
    uint64_t ct = s->layout.chunk_tokens;
    if (!count)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE, "the range is empty");
    if (first >= most || count > most - first)
        return proto_status_set(status, COMMON_OUT_OF_RANGE, PROTO_REASON_LIMIT,
                                "the range ends past the limit of %" PRIu64 " tokens a session", most);
    if ((first + count - 1) / ct - first / ct + 1 > COORDINATOR_ATTACH_CHUNKS)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_LIMIT,
                                "the range spans more than %d chunks of %" PRIu64 " tokens: split it",
                                COORDINATOR_ATTACH_CHUNKS, ct);
    *out = s;
    return COMMON_OK;
}

// ---- open ---------------------------------------------------------------------------------------

struct opening {
    struct coordinator_sessions *sessions;
    struct proto_request *request;
    uint64_t first, count;
};

static void answer_open(struct opening *o, struct coordinator_session *s)
{
    struct coordinator_sessions *sessions = o->sessions;
    uint64_t ct = s->layout.chunk_tokens, from = o->first / ct, n = (o->first + o->count - 1) / ct - from + 1;
    struct {
        Banyan__Pb__AttachChunk chunks[COORDINATOR_ATTACH_CHUNKS], *chunk_pointers[COORDINATOR_ATTACH_CHUNKS];
        Banyan__Pb__AttachWorker workers[COORDINATOR_ATTACH_CHUNKS],
            *worker_pointers[COORDINATOR_ATTACH_CHUNKS];
        struct coordinator_worker *named[COORDINATOR_ATTACH_CHUNKS];
        uint32_t indices[COORDINATOR_ATTACH_CHUNKS][COORDINATOR_COPIES_MAX];
        uint8_t ticket[PROTO_TICKET_MAX];
    } *room = coordinator_alloc(sizeof(*room));
    Banyan__Pb__AttachOpenReply m = BANYAN__PB__ATTACH_OPEN_REPLY__INIT;
    struct proto_ticket ticket = {.session = s->id,
                                  .incarnation = s->incarnation,
                                  .term = sessions->core->term,
                                  .first = o->first,
                                  .count = o->count,
                                  .number = s->tickets.number,
                                  .expires_wall_ns = coordinator_clock_ns(sessions->core) +
                                                     sessions->core->options.ticket_ns};
    const struct proto_identity *who = proto_request_identity(o->request);
    bool shown = coordinator_shows_workers(who);
    char pass[PROTO_PASS_CHARS + 1];
    for (uint64_t i = 0; i < n; i++) {
        const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, from + i);
        room->chunks[i] = (Banyan__Pb__AttachChunk)BANYAN__PB__ATTACH_CHUNK__INIT;
        room->chunks[i].chunk = chunk->id;
        room->chunks[i].first = (from + i) * ct;
        room->chunks[i].n_holders = coordinator_chunk_copies(chunk);
        room->chunks[i].holders = room->indices[i];
        for (uint32_t copy = 0; copy < coordinator_chunk_copies(chunk); copy++) {
            struct coordinator_worker *holder = coordinator_chunk_holder(chunk, copy);
            uint32_t w = 0;
            while (w < m.n_workers && room->named[w] != holder)
                w++;
            room->indices[i][copy] = w;
            if (w < m.n_workers)
                continue;
            if (w == COORDINATOR_ATTACH_CHUNKS) {
                proto_request_fail(o->request, COMMON_RESOURCE_EXHAUSTED,
                                   "the range lies on more workers than one answer can name: split it", NULL,
                                   0);
                goto free_room;
            }
            room->named[w] = holder;
            room->workers[w] = (Banyan__Pb__AttachWorker)BANYAN__PB__ATTACH_WORKER__INIT;
            if (shown)
                room->workers[w].name = holder->name;
            room->workers[w].endpoint = holder->endpoint;
            room->worker_pointers[m.n_workers++] = &room->workers[w];
        }
        room->chunk_pointers[i] = &room->chunks[i];
    }
    m.ticket.data = room->ticket;
    m.ticket.len = proto_ticket_make(&sessions->core->secret, &ticket, room->ticket);
    if (m.ticket.len == 0) {
        proto_request_fail(o->request, COMMON_RESOURCE_EXHAUSTED, "out of memory for a ticket", NULL, 0);
        goto free_room;
    }
    m.expires_wall_ns = ticket.expires_wall_ns;
    m.life_ns = sessions->core->options.ticket_ns;
    if (proto_pass_make(&sessions->core->secret, who,
                        ticket.expires_wall_ns / COMMON_NS_PER_S + PROTO_PASS_LIFE_S, pass))
        m.pass = pass;
    m.n_chunks = n;
    m.chunks = room->chunk_pointers;
    m.workers = room->worker_pointers;
    m.incarnation = s->incarnation;
    s->last_used_ns = common_clock_ns();
    coordinator_tickets_give(&s->tickets, o->first, o->count, s->last_used_ns,
                             sessions->core->options.ticket_ns);
    COMMON_FAILPOINT("ticket_given");
    proto_request_reply(o->request, &m.base, NULL, 0, NULL, NULL);
free_room:
    free(room);
}

static void open_placed(void *arg, struct coordinator_session *s, const struct proto_status *failure)
{
    struct opening *o = arg;
    struct proto_status status;
    // What was to be placed is; a chunk with rows whose holder is away has kept its place.
    if (!failure && coordinator_session_missing(s, o->first, o->count, 0, &status) != COMMON_OK)
        failure = &status;
    if (failure && coordinator_placing_waits(o->sessions, failure))
        coordinator_park_placing(o->sessions, o->request, coordinator_handle_attach_open, o->sessions);
    else if (failure)
        proto_request_fail_status(o->request, failure);
    else
        answer_open(o, s);
    free(o);
}

void coordinator_handle_attach_open(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    const Banyan__Pb__AttachOpenRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = NULL;
    struct proto_status status;
    if (check_range(sessions, request, m->session, m->first, m->count, &s, &status) != COMMON_OK) {
        proto_request_fail_status(request, &status);
        return;
    }
    if (coordinator_session_writable(s, &status) != COMMON_OK) {
        proto_request_fail_status(request, &status);
        return;
    }
    if (coordinator_park(s, request, coordinator_handle_attach_open, arg))
        return;
    struct opening *o = coordinator_alloc(sizeof(*o));
    *o = (struct opening){.sessions = sessions, .request = request, .first = m->first, .count = m->count};
    uint64_t ct = s->layout.chunk_tokens;
    coordinator_place(s, m->first / ct, (m->first + m->count - 1) / ct, true, open_placed, o);
}

// ---- commit -------------------------------------------------------------------------------------

struct commit_holder { // and what is known of its part in the commit
    struct committing *k;
    struct coordinator_worker *w;
    uint32_t stamp;    // of the worker when it was told to prepare
    bool unheard;      // nobody knows whether it got the last message
    char refusal[129]; // why it would not commit; "": it did not refuse
};

struct committing {
    struct coordinator_commit id;
    struct coordinator_sessions *sessions;
    struct proto_request *request;
    struct coordinator_session *s; // counted in s->shared
    uint32_t layer;
    uint64_t first, count;
    struct commit_holder *holders; // [n_holders]
    uint32_t n_holders;
    uint32_t pending;                                            // answers
    bool writing;                                                // counted in s->writing, and has a number
    bool missed;                                                 // a holder did not hear how it ended
    struct coordinator_rangeset present[COORDINATOR_COPIES_MAX]; // by copy
    struct reported {
        uint64_t sums[COORDINATOR_COPIES_MAX], want; // what holders have, and what was attached; 0: not known
        bool differs;                                // from what was attached
    } * chunks;                                      // [n_chunks] of the range
    uint64_t n_chunks;
    struct proto_status status; // the first failure
};

// Whoever did not hear how a commit ended is asked and told again: that all below a number are over. While an older commit of the
// session is under way, that number is below this one's: so it is told once more when none is.
static void settle_later(struct committing *k)
{
    struct coordinator_session *s = k->s;
    if (!k->missed && !s->frozen_to) // nearly always
        return;
    uint64_t settled = coordinator_commits_settled(&k->sessions->commits, k->sessions->core->term, s->id);
    if (k->missed && settled <= k->id.number) {
        s->frozen_to = k->id.number > s->frozen_to ? k->id.number : s->frozen_to;
    } else if (s->frozen_to && settled > s->frozen_to) {
        s->frozen_to = 0;
        coordinator_session_doubt_all(s);
    }
}

// Whoever may not have heard how the commit ended is asked what it holds of the session, and told again.
static void commit_end(struct committing *k)
{
    struct coordinator_session *s = k->s;
    if (k->writing) {
        coordinator_commit_end(&k->sessions->commits, &k->id);
        settle_later(k);
    }
    for (uint32_t i = 0; i < k->n_holders; i++)
        if (k->holders[i].unheard)
            coordinator_session_doubt(s, k->holders[i].w);
    s->writing -= k->writing;
    for (uint32_t i = 0; i < COORDINATOR_COPIES_MAX; i++)
        coordinator_rangeset_free(&k->present[i]);
    free(k->holders);
    free(k->chunks);
    free(k);
    coordinator_session_unshare(s);
}

static void answer_commit(struct proto_request *request, struct coordinator_session *s, uint32_t layer)
{
    Banyan__Pb__AttachCommitReply m = BANYAN__PB__ATTACH_COMMIT_REPLY__INIT;
    m.length = coordinator_session_layer_length(s, layer);
    proto_request_reply(request, &m.base, NULL, 0, NULL, NULL);
}

// A holder without the rows of a durable commit: where it has the only copy, steps over them will say DATA_LOSS, so the
// client must know.
static void commit_refused(struct committing *k)
{
    for (uint32_t i = 0; i < k->n_holders; i++) {
        const struct commit_holder *h = &k->holders[i];
        if (!h->refusal[0] || coordinator_failover_without(k->s, h->w, k->first, k->count))
            continue;
        common_log_error("a worker lacks rows whose commit is durable: %s session=%016" PRIx64
                         " layer=%u first=%" PRIu64 " count=%" PRIu64 " worker=%s",
                         h->refusal, k->s->id, k->layer, k->first, k->count, h->w->name);
        if (k->status.code == COMMON_OK) {
            proto_status_set(&k->status, COMMON_DATA_LOSS, PROTO_REASON_COVERAGE,
                             "a worker lacks rows of tokens [%" PRIu64 ", %" PRIu64
                             ") of layer %u (%s): attach the range again, then commit again",
                             k->first, k->first + k->count, k->layer, h->refusal);
            k->status.session = k->s->id;
            k->status.layer = k->layer;
            proto_status_add_range(&k->status, k->first, k->count);
        }
        proto_status_add_worker(&k->status, h->w->name);
    }
}

// Until the worker has been told, nothing may make it forget rows that are prepared there (truncate.c).
static void mark_untold(struct committing *k, const struct coordinator_worker *w)
{
    uint64_t ct = k->s->layout.chunk_tokens;
    for (uint64_t i = k->first / ct; i <= (k->first + k->count - 1) / ct; i++) {
        struct coordinator_chunk *chunk = coordinator_layout_find(&k->s->layout, i);
        uint32_t copy = chunk ? coordinator_chunk_copy_at(chunk, w) : COORDINATOR_COPIES_MAX;
        if (copy < COORDINATOR_COPIES_MAX)
            chunk->copies[copy].untold = true;
    }
}

static void committed(struct committing *k)
{
    COMMON_FAILPOINT("commit_told");
    struct coordinator_rangeset *set = &k->s->layers[k->layer];
    for (uint32_t i = 0; i < k->n_holders; i++) {
        if (k->holders[i].unheard) { // the commit is durable: whoever did not hear of it will
            mark_untold(k, k->holders[i].w);
            coordinator_session_doubt(k->s, k->holders[i].w);
        }
        k->holders[i].unheard = false;
    }
    commit_refused(k);
    // Only now may steps look at the rows: a step reaches most holders through their parents, so it could
    // overtake the word of the commit on our own link.
    coordinator_rangeset_keep(set, k->first, k->count);
    coordinator_session_count_tokens(k->s);
    if (k->status.code != COMMON_OK) {
        proto_request_fail_status(k->request, &k->status);
    } else {
        answer_commit(k->request, k->s, k->layer);
        coordinator_forget_wrote(k->s, k->layer, k->first);
        coordinator_place_ahead(k->s, k->first + k->count);
    }
    commit_end(k);
}

static void commit_answered(void *arg, const struct proto_reply *reply)
{
    struct commit_holder *h = arg;
    bool refused = reply->code == COMMON_FAILED_PRECONDITION || reply->code == COMMON_NOT_FOUND;
    h->unheard = reply->code != COMMON_OK && reply->code != COMMON_FAILED_PRECONDITION;
    h->k->missed = h->k->missed || reply->code != COMMON_OK;
    if (refused)
        snprintf(h->refusal, sizeof(h->refusal), "%s", reply->text[0] ? reply->text : "no reason given");
    if (--h->k->pending == 0)
        committed(h->k);
}

static void tell_committed(struct committing *k)
{
    k->pending = k->n_holders + 1;
    for (uint32_t i = 0; i < k->n_holders; i++) {
        Banyan__Pb__RowsCommitRequest m = BANYAN__PB__ROWS_COMMIT_REQUEST__INIT;
        m.term = k->sessions->core->term;
        m.session = k->s->id;
        m.incarnation = k->s->incarnation;
        m.layer = k->layer;
        m.first = k->first;
        m.count = k->count;
        m.commit = k->id.number;
        coordinator_worker_call(k->holders[i].w, BANYAN__PB__METHOD__METHOD_ROWS_COMMIT, &m.base,
                                commit_answered, &k->holders[i]);
    }
    if (--k->pending == 0)
        committed(k);
}

static void abort_answered(void *arg, const struct proto_reply *reply)
{
    struct commit_holder *h = arg;
    struct committing *k = h->k;
    // Whatever it refuses may leave rows frozen. On a new link the abort may have overtaken the prepare.
    h->unheard = reply->code != COMMON_OK || h->stamp != h->w->visit;
    k->missed = k->missed || h->unheard;
    if (--k->pending)
        return;
    proto_request_fail_status(k->request, &k->status);
    commit_end(k);
}

// The rows of the range that lie in its nth chunk.
static struct proto_range chunk_part(const struct committing *k, uint64_t nth)
{
    uint64_t ct = k->s->layout.chunk_tokens, start = (k->first / ct + nth) * ct, end = k->first + k->count;
    uint64_t from = start < k->first ? k->first : start, to = start + ct < end ? start + ct : end;
    return (struct proto_range){.first = from, .count = to - from};
}

// What is not what was attached goes, so that nobody commits it. Of what does not fit here, the next commit says
// the same.
static size_t rows_to_drop(const struct committing *k, Banyan__Pb__Range out[PROTO_COMMIT_DROP_MAX],
                           Banyan__Pb__Range *pointers[PROTO_COMMIT_DROP_MAX])
{
    size_t n = 0;
    for (uint64_t i = 0; i < k->n_chunks && n < PROTO_COMMIT_DROP_MAX; i++) {
        if (!k->chunks[i].differs)
            continue;
        struct proto_range part = chunk_part(k, i);
        out[n] = (Banyan__Pb__Range)BANYAN__PB__RANGE__INIT;
        out[n].first = part.first;
        out[n].count = part.count;
        pointers[n] = &out[n];
        n++;
    }
    return n;
}

static void abort_rows(struct committing *k)
{
    COMMON_FAILPOINT("commit_aborted");
    Banyan__Pb__Range drop[PROTO_COMMIT_DROP_MAX], *pointers[PROTO_COMMIT_DROP_MAX];
    size_t n_drop = rows_to_drop(k, drop, pointers);
    k->pending = k->n_holders;
    for (uint32_t i = 0, n = k->n_holders; i < n; i++) { // the last answer may end it on this stack
        Banyan__Pb__RowsAbortRequest m = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
        m.term = k->sessions->core->term;
        m.session = k->s->id;
        m.incarnation = k->s->incarnation;
        m.layer = k->layer;
        m.first = k->first;
        m.count = k->count;
        m.commit = k->id.number;
        m.n_drop = n_drop;
        m.drop = pointers;
        coordinator_worker_call(k->holders[i].w, BANYAN__PB__METHOD__METHOD_ROWS_ABORT, &m.base,
                                abort_answered, &k->holders[i]);
    }
}

// What the store has refused is not there, nor will be after a crash: the commit has not happened, and its rows thaw. They stay
// put, so the client may commit them again.
static void commit_stored(void *arg, enum common_code code, const char *text)
{
    struct committing *k = arg;
    if (code != COMMON_OK) {
        coordinator_rangeset_unreserve(&k->s->layers[k->layer]);
        proto_status_set(&k->status, code, coordinator_store_reason(code), "%s", text);
        abort_rows(k);
        return;
    }
    COMMON_FAILPOINT("commit_stored");
    tell_committed(k);
}

static void copy_differs(struct committing *k, uint64_t nth, const struct coordinator_worker *w)
{
    struct proto_range part = chunk_part(k, nth);
    bool durable = coordinator_rangeset_contains(&k->s->layers[k->layer], part.first, part.count);
    struct coordinator_chunk *chunk =
        coordinator_layout_find(&k->s->layout, part.first / k->s->layout.chunk_tokens);
    k->chunks[nth].differs = !durable;
    if (chunk && chunk->seal) // the client may be wrong, or this memory
        coordinator_chunk_ask(k->s, chunk);
    common_log_error("a worker does not have the bytes that were attached: session=%016" PRIx64
                     " layer=%u first=%" PRIu64 " count=%" PRIu64 " worker=%s",
                     k->s->id, k->layer, part.first, part.count, w->name);
    if (k->status.code == COMMON_OK)
        proto_status_set(&k->status, COMMON_DATA_LOSS, PROTO_REASON_HASH_MISMATCH,
                         "tokens [%" PRIu64 ", %" PRIu64
                         ") of layer %u are not the bytes that were attached: %s",
                         part.first, part.first + part.count, k->layer,
                         durable ? "they are committed, so truncate before them and attach them again"
                                 : "attach them again, then commit again");
    proto_status_add_range(&k->status, part.first, part.count);
    proto_status_add_worker(&k->status, w->name);
}

// What the client attached against what the workers have in their memory; where it does not say, theirs against each
// other's.
static void compare_sums(struct committing *k)
{
    for (uint64_t i = 0; i < k->n_chunks; i++) {
        const struct reported *at = &k->chunks[i];
        const struct coordinator_chunk *chunk =
            coordinator_layout_find(&k->s->layout, chunk_part(k, i).first / k->s->layout.chunk_tokens);
        uint64_t first = 0;
        for (uint32_t copy = 0; chunk && copy < coordinator_chunk_copies(chunk); copy++) {
            uint64_t sum = at->sums[copy];
            if (at->want && sum && sum != at->want)
                copy_differs(k, i, coordinator_chunk_holder(chunk, copy));
            bool same = !first || !sum || sum == first;
            first = first ? first : sum;
            if (same || at->want || k->status.code != COMMON_OK)
                continue;
            proto_status_set(&k->status, COMMON_FAILED_PRECONDITION, PROTO_REASON_HASH_MISMATCH,
                             "the holders of chunk %" PRIu64 " (tokens from %" PRIu64
                             ") do not have the same bytes: attach them again",
                             chunk->id, chunk->index * (uint64_t)k->s->layout.chunk_tokens);
            k->status.chunk = chunk->id;
        }
    }
}

// Rows count as there when all copies have them. Returns how many ranges some copy lacks; some of them in *missing.
static uint32_t missing_rows(const struct committing *k, struct proto_range missing[PROTO_STATUS_RANGES])
{
    for (uint32_t copy = 0; copy < COORDINATOR_COPIES_MAX; copy++) {
        uint32_t n =
            coordinator_rangeset_missing(&k->present[copy], k->first, k->count, missing, PROTO_STATUS_RANGES);
        if (n)
            return n;
    }
    return 0;
}

static void commit_judge(struct committing *k)
{
    COMMON_FAILPOINT("commit_prepared");
    struct coordinator_session *s = k->s;
    struct proto_range missing[PROTO_STATUS_RANGES];
    uint32_t n = missing_rows(k, missing);
    if (k->status.code == COMMON_OK && n) {
        proto_status_set(&k->status, COMMON_FAILED_PRECONDITION, PROTO_REASON_HOLE,
                         "tokens [%" PRIu64 ", %" PRIu64
                         ")%s of layer %u have not arrived: attach them, then commit again",
                         missing[0].first, missing[0].first + missing[0].count, n > 1 ? " and others" : "",
                         k->layer);
        for (uint32_t i = 0; i < n && i < PROTO_STATUS_RANGES; i++)
            proto_status_add_range(&k->status, missing[i].first, missing[i].count);
    }
    struct coordinator_rangeset *set = &s->layers[k->layer];
    if (k->status.code == COMMON_OK)
        compare_sums(k);
    if (k->status.code == COMMON_OK && !coordinator_rangeset_room(set, k->first, k->count))
        proto_status_set(&k->status, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_LIMIT,
                         "layer %u already has %u separate ranges: fill holes first", k->layer, set->n);
    // Before it is durable: what is must count here, too.
    if (k->status.code == COMMON_OK && !coordinator_rangeset_reserve(set))
        proto_status_set(&k->status, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                         "the coordinator is out of memory: commit again");
    k->status.session = s->id;
    k->status.layer = k->layer;
    if (k->status.code != COMMON_OK) {
        abort_rows(k);
        return;
    }
    if (coordinator_rangeset_contains(set, k->first, k->count)) { // committed again: are the rows there?
        tell_committed(k);
        return;
    }
    // The store has not seen what steps appended: with the rows beside these it keeps as few ranges as we do.
    uint64_t first = k->first, count = k->count;
    coordinator_rangeset_join(set, &first, &count);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_range(batch, s->id, k->layer, first, count);
    coordinator_store_submit(k->sessions->store, batch, commit_stored, k);
}

static void take_report(struct committing *k, const struct coordinator_worker *w,
                        const Banyan__Pb__ChunkReport *r)
{
    struct coordinator_session *s = k->s;
    uint64_t ct = s->layout.chunk_tokens, index = r->first / ct, end_at = k->first + k->count;
    const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, index);
    if (!chunk || chunk->id != r->chunk || index < k->first / ct || index - k->first / ct >= k->n_chunks)
        return; // a copy that a truncation is making
    uint32_t copy = coordinator_chunk_copy_at(chunk, w);
    if (copy == COORDINATOR_COPIES_MAX)
        return; // it is not asked for this one
    k->chunks[index - k->first / ct].sums[copy] = r->sum;
    for (size_t i = 0; i < r->n_present; i++) {
        const Banyan__Pb__Range *range = r->present[i];
        if (range->count && range->first >= k->first && range->first < end_at &&
            range->count <= end_at - range->first)
            coordinator_rangeset_add(&k->present[copy], range->first, range->count,
                                     NULL); // what does not fit counts as missing
    }
}

static void commit_prepared(void *arg, const struct proto_reply *reply)
{
    const struct commit_holder *h = arg;
    struct committing *k = h->k;
    if (reply->code == COMMON_OK) {
        const Banyan__Pb__RowsPrepareReply *m = (const void *)reply->message->body;
        for (size_t i = 0; i < m->n_chunks; i++)
            take_report(k, h->w, m->chunks[i]);
    } else if (k->status.code == COMMON_OK) {
        if (reply->code ==
            COMMON_NOT_FOUND) // a worker without its layout is not a session that does not exist
            proto_status_set(&k->status, COMMON_UNAVAILABLE, PROTO_REASON_WORKER_LOST, "%s", reply->text);
        else if (reply->status)
            proto_status_from_pb(reply->status, &k->status);
        else
            proto_status_set(&k->status, reply->code == COMMON_CANCELLED ? COMMON_UNAVAILABLE : reply->code,
                             PROTO_REASON_WORKER_LOST, "%s", reply->text);
        if (k->status.n_workers == 0)
            proto_status_add_worker(&k->status, h->w->name);
    }
    if (--k->pending == 0)
        commit_judge(k);
}

static void commit_prepare(struct committing *k)
{
    COMMON_FAILPOINT("commit_begun");
    k->pending = k->n_holders + 1;
    for (uint32_t i = 0; i < k->n_holders; i++) {
        Banyan__Pb__RowsPrepareRequest m = BANYAN__PB__ROWS_PREPARE_REQUEST__INIT;
        m.term = k->sessions->core->term;
        m.session = k->s->id;
        m.incarnation = k->s->incarnation;
        m.layer = k->layer;
        m.first = k->first;
        m.count = k->count;
        m.commit = k->id.number;
        m.length = coordinator_session_layer_length(k->s, k->layer);
        m.sums = true;
        k->holders[i].stamp = k->holders[i].w->visit;
        coordinator_worker_call(k->holders[i].w, BANYAN__PB__METHOD__METHOD_ROWS_PREPARE, &m.base,
                                commit_prepared, &k->holders[i]);
    }
    if (--k->pending == 0)
        commit_judge(k);
}

// All chunks of the range placed and their holders there; fills the holders.
static bool find_holders(struct committing *k)
{
    struct coordinator_session *s = k->s;
    uint64_t ct = s->layout.chunk_tokens, from = k->first / ct;
    for (uint64_t i = 0; i < k->n_chunks; i++) {
        const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, from + i);
        uint64_t start = (from + i) * ct < k->first ? k->first : (from + i) * ct;
        uint64_t stop = (from + i + 1) * ct < k->first + k->count ? (from + i + 1) * ct : k->first + k->count;
        if (!chunk || !chunk->ready) {
            if (k->status.code == COMMON_OK)
                proto_status_set(&k->status, COMMON_FAILED_PRECONDITION, PROTO_REASON_HOLE,
                                 "tokens [%" PRIu64 ", %" PRIu64
                                 ") of layer %u were never attached: attach them, then commit again",
                                 start, stop, k->layer);
            proto_status_add_range(&k->status, start, stop - start);
            continue;
        }
        for (uint32_t copy = 0; copy < coordinator_chunk_copies(chunk); copy++) {
            struct coordinator_worker *w = coordinator_chunk_holder(chunk, copy);
            uint32_t h = 0;
            while (h < k->n_holders && k->holders[h].w != w)
                h++;
            if (h == k->n_holders)
                k->holders[k->n_holders++] = (struct commit_holder){.k = k, .w = w};
        }
        for (uint32_t none = coordinator_chunk_copies(chunk); none < COORDINATOR_COPIES_MAX; none++)
            coordinator_rangeset_add(&k->present[none], start, stop - start,
                                     NULL); // there is nothing to lack
    }
    return k->status.code == COMMON_OK &&
           (!s->missing ||
            coordinator_session_missing(s, k->first, k->count, k->layer, &k->status) == COMMON_OK);
}

// A sum counts where it is that of all rows of the range in a chunk.
static void take_sums(struct committing *k)
{
    const Banyan__Pb__AttachCommitRequest *m = (const void *)proto_request_message(k->request)->body;
    uint64_t ct = k->s->layout.chunk_tokens;
    for (size_t i = 0; i < m->n_sums; i++) {
        const Banyan__Pb__RowsSum *sum = m->sums[i];
        if (sum->first < k->first || sum->first - k->first >= k->count)
            continue;
        uint64_t nth = sum->first / ct - k->first / ct;
        struct proto_range part = chunk_part(k, nth);
        if (part.first == sum->first && part.count == sum->count)
            k->chunks[nth].want = sum->sum;
    }
}

// Of rows that were committed, and that their holders have given back since, nothing is asked. False: of all of them.
static bool skip_forgotten(struct committing *k, const struct coordinator_session *s)
{
    uint64_t forgotten = coordinator_session_forgotten(s, k->layer), end = k->first + k->count;
    uint64_t to = forgotten < end ? forgotten : end;
    if (to <= k->first || !coordinator_rangeset_contains(&s->layers[k->layer], k->first, to - k->first))
        return true;
    k->first = to;
    k->count = end - to;
    return k->count > 0;
}

static void commit_start(void *arg, struct coordinator_session *s)
{
    struct committing *k = arg;
    if (!s) {
        const char *text;
        enum common_code code = coordinator_gone(k->sessions->core, &text);
        proto_request_fail(k->request, code, text, NULL, 0);
        free(k);
        return;
    }
    if (!skip_forgotten(k, s)) {
        answer_commit(k->request, s, k->layer);
        free(k);
        return;
    }
    uint64_t ct = s->layout.chunk_tokens;
    k->s = s;
    k->n_chunks = (k->first + k->count - 1) / ct - k->first / ct + 1;
    k->chunks = coordinator_alloc(k->n_chunks * sizeof(*k->chunks));
    k->holders = coordinator_alloc(k->n_chunks * COORDINATOR_COPIES_MAX * sizeof(*k->holders));
    take_sums(k);
    s->last_used_ns = common_clock_ns();
    coordinator_session_share(s);
    if (find_holders(k)) {
        memset(&k->status, 0, sizeof(k->status));
        k->writing = true;
        s->writing++;
        coordinator_commit_begin(&k->sessions->commits, &k->id, k->sessions->core->term, s->id);
        s->last_commit = k->id.number;
        commit_prepare(k);
    } else {
        proto_request_fail_status(k->request, &k->status);
        commit_end(k);
    }
}

void coordinator_handle_attach_commit(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    const Banyan__Pb__AttachCommitRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = NULL;
    struct proto_status status;
    if (check_range(sessions, request, m->session, m->first, m->count, &s, &status) != COMMON_OK) {
        proto_request_fail_status(request, &status);
        return;
    }
    if (m->layer >= s->spec->layers) {
        proto_status_set(&status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                         "layer %u does not exist: the session has %u", m->layer, s->spec->layers);
        proto_request_fail_status(request, &status);
        return;
    }
    if (!proto_spec_stores(s->spec, m->layer)) {
        proto_status_set(&status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                         "layer %u has no K and V of its own: nothing is attached to it", m->layer);
        proto_request_fail_status(request, &status);
        return;
    }
    if (coordinator_park(s, request, coordinator_handle_attach_commit, arg))
        return;
    struct committing *k = coordinator_alloc(sizeof(*k));
    *k = (struct committing){
        .sessions = sessions, .request = request, .layer = m->layer, .first = m->first, .count = m->count};
    if (coordinator_session_when_open(s, commit_start, k) != COMMON_OK) {
        free(k);
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED,
                           "too many commits are waiting for this session: try again", NULL, 0);
    }
}
