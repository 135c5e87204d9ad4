// SPDX-License-Identifier: Apache-2.0
// Attached rows: put by clients with a ticket, committed or aborted by the coordinator. What comes between:
// prepare.c.
#include "worker/rows/rows.h"

#include <stdlib.h>

#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "common/memory/blob.h"
#include "worker/control/plans.h"
#include "worker/core/kept.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"
#include "worker/rows/expire.h"
#include "worker/rows/ticket.h"

void worker_chunk_part(const struct worker_chunk *chunk, uint64_t first, uint64_t count, uint32_t *row,
                       uint32_t *rows)
{
    uint64_t start = worker_chunk_first(chunk), end = start + worker_chunk_shape(chunk)->chunk_tokens;
    uint64_t from = first > start ? first : start, to = first + count < end ? first + count : end;
    *row = (uint32_t)(from - start);
    *rows = (uint32_t)(to - from);
}

// ---- put ----------------------------------------------------------------------------------------

static enum common_code put_permitted(struct worker *worker, const Banyan__Pb__ChunkPutRequest *body,
                                      struct proto_ticket *ticket, struct common_error *err)
{
    if (body->count == 0 || body->count > WORKER_POSITIONS_MAX || body->first > WORKER_POSITIONS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "invalid range: %" PRIu64 " rows from position %" PRIu64, body->count,
                                body->first);
    return worker_ticket_check(
        worker, &body->ticket,
        &(struct worker_wanted){PROTO_TICKET_PUT, body->session, body->first, body->count}, ticket, err);
}

// Shape of the tensors against the session's.
static enum common_code put_sizes(const struct worker_session *session,
                                  const Banyan__Pb__ChunkPutRequest *body,
                                  const struct proto_message *message, struct common_error *err)
{
    const struct worker_shape *shape = session->spec->shape;
    const struct worker_form *form = worker_shape_form(shape, body->layer);
    if (message->n_tensors != 2)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "a put needs two tensors, K and V, not %zu",
                                message->n_tensors);
    for (size_t i = 0; i < 2; i++) { // count <= 2^40: no product wraps
        uint64_t want = body->count * (i == 0 ? form->k_wire : form->v_wire);
        if (message->tensors[i].bytes != want)
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "%s has %zu bytes where %" PRIu64
                                    " rows of the session's shape have %" PRIu64,
                                    i == 0 ? "K" : "V", message->tensors[i].bytes, body->count, want);
        if (message->tensors[i].dtype != BANYAN__PB__DTYPE__DTYPE_U8 &&
            message->tensors[i].dtype != (uint32_t)shape->kv_type)
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "%s does not have the session's type",
                                    i == 0 ? "K" : "V");
    }
    return COMMON_OK;
}

// Cuts the range into pieces, one a chunk; none for a copy beside another (a truncation is going on).
// FAILED_PRECONDITION when a part of it is not held here, or by two chunks, of which the next layout names one.
static enum common_code put_pieces(const struct worker_session *session,
                                   const Banyan__Pb__ChunkPutRequest *body,
                                   const struct proto_message *message, struct worker_rows **out, uint32_t *n,
                                   struct common_error *err)
{
    const struct worker_form *form = worker_shape_form(session->spec->shape, body->layer);
    uint32_t span, from = worker_session_span(session, body->first, body->count, &span);
    struct worker_rows *pieces = malloc((span + 1) * sizeof *pieces);
    if (!pieces)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a put");
    uint64_t done = 0;
    *n = 0;
    for (uint32_t i = from; i < from + span && done < body->count; i++) {
        struct worker_chunk *chunk = session->chunks[i].chunk;
        if (session->chunks[i].copy)
            continue;
        bool two = i + 1 < session->n_chunks && !session->chunks[i + 1].copy &&
                   worker_chunk_first(session->chunks[i + 1].chunk) == worker_chunk_first(chunk);
        if (two || worker_chunk_first(chunk) > body->first + done)
            break;
        struct worker_rows *piece = &pieces[(*n)++];
        piece->chunk = chunk;
        piece->layer = body->layer;
        worker_chunk_part(chunk, body->first, body->count, &piece->row, &piece->count);
        piece->k = (const uint8_t *)message->tensors[0].data + done * form->k_wire;
        piece->v = (const uint8_t *)message->tensors[1].data + done * form->v_wire;
        done += piece->count;
    }
    if (done < body->count) {
        free(pieces);
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "this worker does not hold position %" PRIu64 ": open the "
                                "attach again",
                                body->first + done);
    }
    *out = pieces;
    return COMMON_OK;
}

// Rows that are put again, and are on the disk alone, are read first, beside the loop: with all of their
// chunk, since its file may be rewritten.
static bool put_waits(struct worker *worker, const struct worker_rows *pieces, uint32_t n,
                      struct proto_request *request)
{
    struct worker_wants wants = {0};
    for (uint32_t i = 0; i < n; i++)
        if (worker_chunk_any_cold(pieces[i].chunk))
            worker_wants_add_chunk(&wants, pieces[i].chunk);
    if (!wants.cold && !wants.failed) {
        worker_wants_free(&wants);
        return false;
    }
    worker_warm_request(worker->warm, &wants, worker_handle_chunk_put, request);
    return true;
}

static void put_answer(void *arg, struct proto_request *request, const struct common_error *failed)
{
    Banyan__Pb__ChunkPutReply reply = BANYAN__PB__CHUNK_PUT_REPLY__INIT;
    (void)arg;
    if (failed)
        worker_fail(request, failed, PROTO_REASON_NONE);
    else
        proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

void worker_handle_chunk_put(void *arg, struct proto_request *request)
{
    COMMON_FAILPOINT("put_received");
    struct worker *worker = arg;
    const struct proto_message *message = proto_request_message(request);
    const Banyan__Pb__ChunkPutRequest *body = (const Banyan__Pb__ChunkPutRequest *)message->body;
    struct common_error err;
    struct proto_ticket ticket;
    struct worker_session *session = NULL;
    struct worker_rows *pieces = NULL;
    uint32_t n = 0;
    bool old_ticket = false, differs = false; // of the first, a fresh one may help
    if (worker_kept_crowded(worker, request, worker_handle_chunk_put))
        return;
    enum common_code code = put_permitted(worker, body, &ticket, &err);
    old_ticket = code == COMMON_FAILED_PRECONDITION;
    if (code == COMMON_OK)
        code = worker_session_check(&worker->sessions, body->session, ticket.incarnation, body->layer,
                                    body->first, body->count, &session, &err);
    if (code == COMMON_OK && ticket.term == session->tickets_term && ticket.number < session->tickets) {
        code = common_error_set(&err, COMMON_FAILED_PRECONDITION,
                                "holders have changed since the ticket was given: open the attach again");
        old_ticket = true;
    }
    if (code == COMMON_OK)
        code = put_sizes(session, body, message, &err);
    if (code == COMMON_OK) {
        code = put_pieces(session, body, message, &pieces, &n, &err);
        old_ticket = code == COMMON_FAILED_PRECONDITION;
    }
    bool forgotten = code == COMMON_OK && body->first < worker_session_given_back(session, body->layer);
    if (forgotten)
        code = common_error_set(&err, COMMON_FAILED_PRECONDITION,
                                "rows of layer %u below position %" PRIu64
                                " are forgotten: nothing can be attached there",
                                body->layer, worker_session_forgotten(session, body->layer));
    if (code == COMMON_OK && put_waits(worker, pieces, n, request)) {
        free(pieces);
        return;
    }
    if (code == COMMON_OK && COMMON_FAILPOINT_FAILS("put_refused"))
        code = common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "a failpoint refuses this put");
    if (code == COMMON_OK)
        code = worker_store_write(worker->store, pieces, n, WORKER_ROW_PUT, UINT64_MAX, &err);
    bool full = code == COMMON_RESOURCE_EXHAUSTED && pieces;
    if (code == COMMON_FAILED_PRECONDITION && pieces) {
        forgotten = forgotten || body->first < worker_session_forgotten(session, body->layer);
        differs = !forgotten && worker_store_differs(worker->store, pieces, n);
    }
    COMMON_FAILPOINT("put_written");
    if (code == COMMON_OK)
        worker_attach_touch(worker, session, true);
    if (code == COMMON_OK)
        worker->attached_bytes += message->tensors[0].bytes + message->tensors[1].bytes;
    free(pieces);
    if (code == COMMON_RESOURCE_EXHAUSTED &&
        worker_warm_request_room(worker->warm, worker_handle_chunk_put, request))
        return;
    if (code != COMMON_OK) {
        if (old_ticket)
            common_log_debug("an old ticket: %s", err.message);
        worker_fail(request, &err,
                    code == COMMON_ABORTED ? PROTO_REASON_OLD_INCARNATION
                    : old_ticket           ? PROTO_REASON_OLD_TICKET
                    : forgotten            ? PROTO_REASON_FORGOTTEN
                    : differs              ? PROTO_REASON_OTHER_BYTES
                    : full                 ? PROTO_REASON_FULL
                                           : PROTO_REASON_NONE);
        return;
    }
    worker_kept_answer(worker, request, body->session, body->first, body->count, put_answer, NULL);
}

// ---- commit, abort ------------------------------------------------------------------------------

// Whether all rows of the range that are of chunks held here are committed, appended, frozen by this
// commit, or forgotten. 0: by any.
static enum common_code committable(struct worker_session *session, const struct worker_freeze *freeze,
                                    struct common_error *err)
{
    bool own = freeze->commit == 0 || worker_frozen_has(&session->frozen, freeze);
    enum worker_row least = own ? WORKER_ROW_PREPARED : WORKER_ROW_APPENDED;
    uint32_t span, from = worker_session_span(session, freeze->first, freeze->count, &span);
    for (uint32_t i = from; i < from + span; i++) {
        const struct worker_chunk *chunk = session->chunks[i].chunk;
        uint32_t row, rows;
        worker_chunk_part(chunk, freeze->first, freeze->count, &row, &rows);
        if (worker_session_leaves_out(session, i, freeze->layer))
            continue;
        uint32_t n = worker_chunk_rows_at(chunk, freeze->layer, row, rows, least);
        if (n < rows)
            return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                    "position %" PRIu64 " of layer %u is not prepared",
                                    worker_chunk_first(chunk) + row + n, freeze->layer);
    }
    return COMMON_OK;
}

static void each_part(const struct worker_session *session, uint32_t layer, uint64_t first, uint64_t count,
                      void (*apply)(struct worker_chunk *, uint32_t, uint32_t, uint32_t))
{
    uint32_t span, from = worker_session_span(session, first, count, &span);
    for (uint32_t i = from; i < from + span; i++) {
        uint32_t row, rows;
        worker_chunk_part(session->chunks[i].chunk, first, count, &row, &rows);
        apply(session->chunks[i].chunk, layer, row, rows);
    }
}

void worker_thaw_rows(void *session, uint32_t layer, uint64_t first, uint64_t count)
{
    each_part(session, layer, first, count, worker_chunk_abort);
}

static enum common_code commit_range(struct worker *worker, struct worker_session *session,
                                     const struct worker_freeze *freeze, struct common_error *err)
{
    enum common_code code = committable(session, freeze, err);
    if (code == COMMON_OK || freeze->commit == 0) // sent again: what is here of a durable range counts
        each_part(session, freeze->layer, freeze->first, freeze->count, worker_chunk_commit);
    if (code == COMMON_OK) {
        worker_frozen_drop(&session->frozen, worker->store, freeze, worker_thaw_rows,
                           session); // nothing is left to thaw
        worker_disk_touch(worker->disk, session);
    }
    return code;
}

// The chunks that lack rows of these ranges, as one range for each stretch of them.
static void name_lacking(const struct worker_session *session, const Banyan__Pb__RowsCommitRequest *body,
                         struct proto_status *status)
{
    uint64_t tokens = session->spec->shape->chunk_tokens, first = 0, count = 0;
    for (uint32_t i = 0; i < session->n_chunks; i++) {
        const struct worker_chunk *chunk = session->chunks[i].chunk;
        uint64_t start = worker_chunk_first(chunk);
        bool lacks = false;
        for (size_t r = 0; r < body->n_ranges && !lacks; r++) {
            const Banyan__Pb__RowsRange *range = body->ranges[r];
            uint32_t row, rows;
            if (range->first >= start + tokens || start >= range->first + range->count ||
                worker_session_leaves_out(session, i, range->layer))
                continue;
            worker_chunk_part(chunk, range->first, range->count, &row, &rows);
            lacks = worker_chunk_rows_at(chunk, range->layer, row, rows, WORKER_ROW_PREPARED) < rows;
        }
        if (lacks && count && first + count == start) {
            count += tokens;
        } else if (lacks) {
            if (count)
                proto_status_add_range(status, first, count);
            first = start;
            count = tokens;
        }
    }
    if (count)
        proto_status_add_range(status, first, count);
}

// Ranges whose commit is durable, sent again. All are checked before any of them counts; the chunks that lack
// rows are named.
static enum common_code commit_again(struct worker *worker, const Banyan__Pb__RowsCommitRequest *body,
                                     struct common_error *err, struct proto_status *status)
{
    struct worker_session *session = NULL;
    enum common_code first = COMMON_OK;
    if (body->commit)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "ranges need commit 0");
    for (size_t i = 0; i < body->n_ranges; i++) {
        const Banyan__Pb__RowsRange *range = body->ranges[i];
        enum common_code code = worker_session_check(&worker->sessions, body->session, body->incarnation,
                                                     range->layer, range->first, range->count, &session, err);
        if (code != COMMON_OK)
            return code;
    }
    for (size_t i = 0; i < body->n_ranges; i++) {
        const Banyan__Pb__RowsRange *range = body->ranges[i];
        struct worker_freeze freeze = {0, range->first, range->count, range->layer, .holes = false};
        struct common_error lacks;
        enum common_code code = commit_range(worker, session, &freeze, &lacks);
        if (first == COMMON_OK && code != COMMON_OK)
            *err = lacks;
        first = first == COMMON_OK ? code : first;
    }
    proto_status_set(status, first, PROTO_REASON_NONE, "%s", first == COMMON_OK ? "" : err->message);
    if (first != COMMON_OK)
        name_lacking(session, body, status);
    return first;
}

void worker_handle_rows_commit(void *arg, struct proto_request *request)
{
    COMMON_FAILPOINT("rows_commit_received");
    struct worker *worker = arg;
    const Banyan__Pb__RowsCommitRequest *body =
        (const Banyan__Pb__RowsCommitRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    struct common_error err;
    struct proto_status lacking = {0};
    enum common_code code;
    if (body->n_ranges) {
        code = commit_again(worker, body, &err, &lacking);
    } else {
        struct worker_session *session;
        struct worker_freeze freeze = {body->commit, body->first, body->count, body->layer, .holes = false};
        code = worker_session_check(&worker->sessions, body->session, body->incarnation, body->layer,
                                    body->first, body->count, &session, &err);
        if (code == COMMON_OK)
            code = commit_range(worker, session, &freeze, &err);
    }
    if (code != COMMON_OK && lacking.n_ranges) {
        proto_request_fail_status(request, &lacking);
        return;
    }
    if (code != COMMON_OK) {
        worker_fail(request, &err, code == COMMON_ABORTED ? PROTO_REASON_OLD_INCARNATION : PROTO_REASON_NONE);
        return;
    }
    COMMON_FAILPOINT("rows_commit_done");
    Banyan__Pb__RowsCommitReply reply = BANYAN__PB__ROWS_COMMIT_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void settle_session(struct worker *worker, struct worker_session *session, uint64_t before)
{
    uint32_t n = session->frozen.n;
    worker_frozen_settle(&session->frozen, worker->store, before, worker_thaw_rows, session);
    if (session->frozen.n != n)
        worker_disk_touch(worker->disk, session);
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool is_settled(const struct worker *worker, const struct worker_session *session,
                       const uint64_t *except, size_t n_except)
{
    if (session->life != worker->life) // in quarantine: the store that says so does not know of its commits
        return false;
    return !n_except || !bsearch(&session->id, except, n_except, sizeof *except, compare_ids);
}

// Commits below `before` are over, whatever became of them: what had to be committed has been. one: of this
// session; 0: of all but those in except and in quarantine. Sorts except.
static void settle_rows(struct worker *worker, uint64_t before, uint64_t one, uint64_t *except,
                        size_t n_except)
{
    size_t cursor = 0;
    void *session = one ? worker_map_get(&worker->sessions, one) : NULL;
    if (session) {
        if (before > ((struct worker_session *)session)->settled)
            ((struct worker_session *)session)->settled = before;
        settle_session(worker, session, before);
    }
    if (one)
        return;
    if (before > worker->settled)
        worker->settled = before;
    if (n_except)
        qsort(except, n_except, sizeof *except, compare_ids);
    while (worker_map_next(&worker->sessions, &cursor, &session))
        if (is_settled(worker, session, except, n_except))
            settle_session(worker, session, before);
}

// What is not what was attached, as the coordinator found. Ranges outside that of the message are left alone.
static void discard_rows(struct worker_session *session, const Banyan__Pb__RowsAbortRequest *body)
{
    for (size_t i = 0; i < body->n_drop; i++) {
        const Banyan__Pb__Range *range = body->drop[i];
        if (range->first >= body->first && range->count && range->count <= body->count &&
            range->first - body->first <= body->count - range->count)
            each_part(session, body->layer, range->first, range->count, worker_chunk_discard);
    }
}

static void abort_answer(void *arg, struct proto_request *request, const struct common_error *failed)
{
    Banyan__Pb__RowsAbortReply reply = BANYAN__PB__ROWS_ABORT_REPLY__INIT;
    (void)arg;
    if (failed)
        worker_fail(request, failed, PROTO_REASON_NONE);
    else
        proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

void worker_handle_rows_abort(void *arg, struct proto_request *request)
{
    COMMON_FAILPOINT("rows_abort_received");
    struct worker *worker = arg;
    const Banyan__Pb__RowsAbortRequest *body =
        (const Banyan__Pb__RowsAbortRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    struct common_error err;
    struct worker_session *session;
    struct worker_freeze freeze = {body->commit, body->first, body->count, body->layer, .holes = false};
    if (body->before) {
        settle_rows(worker, body->before, body->session, body->except, body->n_except);
    } else if (worker_session_check(&worker->sessions, body->session, body->incarnation, body->layer,
                                    body->first, body->count, &session, &err) != COMMON_OK) {
        worker_fail(request, &err,
                    err.code == COMMON_ABORTED ? PROTO_REASON_OLD_INCARNATION : PROTO_REASON_NONE);
        return;
    } else {
        if (body->write) {
            worker_appended_confirm(session, body->layer, body->first);
            worker_appended_settle(session, body->layer, body->write);
        } else {
            worker_frozen_drop(&session->frozen, worker->store, &freeze, worker_thaw_rows, session);
            discard_rows(session, body);
        }
        worker_disk_touch(worker->disk, session);
    }
    COMMON_FAILPOINT("rows_abort_done");
    worker_kept_all(worker, request, abort_answer, NULL); // what was taken back does not come back
}
