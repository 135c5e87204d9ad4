// SPDX-License-Identifier: Apache-2.0
// Phase one of a commit: freeze the rows and report what is here. Hashing gigabytes must not keep steps
// waiting: above a limit it goes to the team, over pinned rows, and the answer follows.
#include "worker/rows/prepare.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/failpoint.h"
#include "worker/control/plans.h"
#include "worker/core/kept.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"
#include "worker/rows/expire.h"
#include "worker/rows/rows.h"

#define HASH_INLINE_BYTES (UINT64_C(1) << 20) // about 0.1 ms

enum { REPORT_CHUNKS_MAX = 1024, REPORT_RANGES_MAX = 64, REPORT_RANGES_TOTAL = 1536 };

struct prepare { // one call
    struct worker *worker;
    struct proto_request *request;
    Banyan__Pb__RowsPrepareReply reply;
    struct worker_hash **hashes; // [reply.n_chunks], NULL where rows are missing
    uint64_t bytes;              // to hash
    bool sums;                   // and not hashes
    struct worker_job job;
    uint32_t next;           // on a device: the chunk that is hashed next
    struct common_mail mail; // likewise, for the turn that hashes it
    atomic_bool failed;      // a hash could not be had
};

// Rows of an append that is not acknowledged are not there: it may yet be refused, and then they go.
static bool is_there(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint64_t length)
{
    enum worker_row state = worker_chunk_row(chunk, layer, row);
    return state != WORKER_ROW_ABSENT && state != WORKER_ROW_FORGOTTEN &&
           (state != WORKER_ROW_APPENDED || worker_chunk_first(chunk) + row < length);
}

// The ranges of a chunk's rows that are here. At most `budget` of them: what is left out counts as missing.
static bool report_ranges(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                          uint64_t length, uint32_t budget, Banyan__Pb__ChunkReport *pb)
{
    pb->present = malloc(REPORT_RANGES_MAX * sizeof *pb->present);
    if (!pb->present)
        return false;
    for (uint32_t at = row;
         at < row + count && pb->n_present < REPORT_RANGES_MAX && pb->n_present < budget;) {
        uint32_t end = at;
        while (end < row + count && is_there(chunk, layer, end, length))
            end++;
        if (end > at) {
            Banyan__Pb__Range *range = malloc(sizeof *range);
            if (!range)
                return false;
            banyan__pb__range__init(range);
            range->first = worker_chunk_first(chunk) + at;
            range->count = end - at;
            pb->present[pb->n_present++] = range;
        }
        at = end + 1;
    }
    return true;
}

static Banyan__Pb__ChunkReport *report_chunk(const struct worker_chunk *chunk, uint32_t layer, uint32_t row,
                                             uint32_t count, uint64_t length, uint32_t budget)
{
    Banyan__Pb__ChunkReport *pb = malloc(sizeof *pb);
    if (!pb)
        return NULL;
    banyan__pb__chunk_report__init(pb);
    pb->chunk = worker_chunk_id(chunk);
    pb->first = worker_chunk_first(chunk);
    if (!report_ranges(chunk, layer, row, count, length, budget, pb)) {
        banyan__pb__chunk_report__free_unpacked(pb, NULL);
        return NULL;
    }
    return pb;
}

static void prepare_free(struct prepare *p)
{
    for (size_t i = 0; i < p->reply.n_chunks; i++) {
        if (p->hashes)
            worker_hash_free(p->worker->store, p->hashes[i]);
        banyan__pb__chunk_report__free_unpacked(p->reply.chunks[i], NULL);
    }
    free(p->hashes);
    free(p->reply.chunks);
    free(p);
}

static void hash_task(void *arg, uint32_t task, void *scratch)
{
    struct prepare *p = arg;
    (void)scratch;
    Banyan__Pb__ChunkReport *report = p->reply.chunks[task];
    if (p->hashes[task] && !worker_hash_run(p->hashes[task], p->sums, p->sums ? &report->sum : &report->hash))
        atomic_store(&p->failed, true);
}

// The files have not taken the freeze: the commit has none.
static void let_go(struct prepare *p)
{
    const Banyan__Pb__RowsPrepareRequest *body =
        (const Banyan__Pb__RowsPrepareRequest *)proto_request_message(p->request)->body;
    struct worker_freeze freeze = {body->commit, body->first, body->count, body->layer, .holes = false};
    struct worker_session *session;
    struct common_error err;
    if (worker_session_find(&p->worker->sessions, body->session, body->incarnation, &session, &err) ==
        COMMON_OK)
        worker_frozen_drop(&session->frozen, p->worker->store, &freeze, worker_thaw_rows, session);
}

static void prepare_kept(void *arg, struct proto_request *request, const struct common_error *failed)
{
    struct prepare *p = arg;
    if (failed) {
        let_go(p);
        worker_fail(request, failed, PROTO_REASON_NONE);
    } else {
        COMMON_FAILPOINT("rows_prepared");
        proto_request_reply(request, &p->reply.base, NULL, 0, NULL, NULL);
    }
    prepare_free(p);
}

static void prepare_answer(void *arg, bool complete)
{
    struct prepare *p = arg;
    (void)complete; // it is never cancelled, and it needs no scratch
    struct common_error err;
    if (!atomic_load(&p->failed)) {
        const Banyan__Pb__RowsPrepareRequest *body =
            (const Banyan__Pb__RowsPrepareRequest *)proto_request_message(p->request)->body;
        worker_kept_answer(p->worker, p->request, body->session, body->first, body->count, prepare_kept, p);
        return;
    }
    if (worker_store_check(p->worker->store, &err) == COMMON_OK)
        common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a hash");
    worker_fail(p->request, &err, PROTO_REASON_NONE);
    prepare_free(p);
}

static void answer_later(void *arg, bool complete)
{
    struct worker *worker = ((struct prepare *)arg)->worker;
    prepare_answer(arg, complete);
    worker->n_prepares--;
    worker_hand_emptied(worker);
}

// What is on a device only the loop may read: chunk by chunk, so that steps go on meanwhile.
static void hash_next(void *arg)
{
    struct prepare *p = arg;
    if (p->next < p->reply.n_chunks && !atomic_load(&p->failed)) {
        hash_task(p, p->next++, NULL);
        common_loop_mail(p->worker->loop, &p->mail, hash_next, p);
        return;
    }
    answer_later(p, true);
}

// Reports on one chunk, and makes its hash ready to run.
static bool add_chunk(struct prepare *p, struct worker_chunk *chunk,
                      const Banyan__Pb__RowsPrepareRequest *body, uint64_t length, uint32_t *ranges)
{
    uint32_t row, count;
    worker_chunk_part(chunk, body->first, body->count, &row, &count);
    Banyan__Pb__ChunkReport *pb =
        report_chunk(chunk, body->layer, row, count, length, REPORT_RANGES_TOTAL - *ranges);
    if (!pb)
        return false;
    size_t at = p->reply.n_chunks++;
    p->reply.chunks[at] = pb;
    p->hashes[at] = NULL;
    *ranges += (uint32_t)pb->n_present;
    if (pb->n_present != 1 || pb->present[0]->count != count)
        return true;
    p->hashes[at] = worker_hash_new(chunk, body->layer, row, count, &p->bytes);
    return p->hashes[at] != NULL;
}

// What is hashed is to be in memory. Chunks beyond the limit are refused later.
static void hash_wants(const struct worker_session *session, const Banyan__Pb__RowsPrepareRequest *body,
                       struct worker_wants *wants)
{
    uint32_t span, from = worker_session_span(session, body->first, body->count, &span);
    for (uint32_t i = from; i < from + span && span <= REPORT_CHUNKS_MAX; i++)
        if (worker_chunk_keep(session->chunks[i].chunk)->behind) // its file is rewritten
            worker_wants_add_chunk(wants, session->chunks[i].chunk);
        else
            worker_wants_add(wants, session->chunks[i].chunk, body->layer);
}

static enum common_code prepare_collect(struct prepare *p, struct worker_session *session,
                                        const Banyan__Pb__RowsPrepareRequest *body, struct common_error *err)
{
    uint32_t span, ranges = 0, from = worker_session_span(session, body->first, body->count, &span);
    if (span > REPORT_CHUNKS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "a commit spans at most %d chunks",
                                REPORT_CHUNKS_MAX);
    p->reply.chunks = malloc((span + 1) * sizeof *p->reply.chunks);
    p->hashes = malloc((span + 1) * sizeof *p->hashes);
    bool ok = p->reply.chunks && p->hashes;
    worker_appended_confirm(session, body->layer, body->length);
    worker_attach_touch(p->worker, session, false);
    for (uint32_t i = from; ok && i < from + span; i++)
        ok = add_chunk(p, session->chunks[i].chunk, body, session->appended[body->layer].length, &ranges);
    if (!ok)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a report");
    struct worker_freeze freeze = {body->commit, body->first, body->count, body->layer, .holes = false};
    for (size_t i = 0; i < p->reply.n_chunks; i++)
        freeze.holes = freeze.holes || (!p->hashes[i] &&
                                        !worker_session_leaves_out(session, from + (uint32_t)i, body->layer));
    if (!worker_frozen_add(&session->frozen, p->worker->store, &freeze))
        return session->frozen.n == WORKER_FROZEN_MAX
                   ? common_error_set(
                         err, COMMON_RESOURCE_EXHAUSTED,
                         "%u commits of this session are in progress: wait until some are answered",
                         session->frozen.n)
                   : common_error_set(
                         err, COMMON_RESOURCE_EXHAUSTED,
                         "no memory to record a commit: free some, or raise the worker's --memory");
    for (uint32_t i = from; i < from + span; i++) {
        uint32_t row, count;
        worker_chunk_part(session->chunks[i].chunk, body->first, body->count, &row, &count);
        worker_chunk_prepare(session->chunks[i].chunk, body->layer, row, count);
    }
    enum common_code code = worker_disk_frozen(p->worker->disk, session, body->first, body->count, err);
    if (code != COMMON_OK)
        worker_frozen_drop(&session->frozen, p->worker->store, &freeze, worker_thaw_rows, session);
    return code;
}

void worker_handle_rows_prepare(void *arg, struct proto_request *request)
{
    COMMON_FAILPOINT("prepare_received");
    struct worker *worker = arg;
    const Banyan__Pb__RowsPrepareRequest *body =
        (const Banyan__Pb__RowsPrepareRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    if (proto_request_over(request)) { // the release may have been here, and would not be repeated
        proto_request_fail(request, COMMON_CANCELLED, "the caller has stopped waiting for this commit", NULL,
                           0);
        return;
    }
    if (worker_kept_crowded(worker, request, worker_handle_rows_prepare))
        return;
    struct common_error err;
    struct worker_session *session;
    struct prepare *p = calloc(1, sizeof *p);
    if (!p) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a report", NULL,
                           0);
        return;
    }
    p->worker = worker;
    p->request = request;
    p->sums = body->sums;
    banyan__pb__rows_prepare_reply__init(&p->reply);
    const struct worker_session *of = worker_map_get(&worker->sessions, body->session);
    uint64_t settled = of && of->settled > worker->settled ? of->settled : worker->settled;
    bool late = body->commit && body->commit < settled; // it would freeze rows that are never thawed
    enum common_code code =
        late ? common_error_set(&err, COMMON_ABORTED, "commit %" PRIu64 " is over", body->commit)
             : worker_session_check(&worker->sessions, body->session, body->incarnation, body->layer,
                                    body->first, body->count, &session, &err);
    bool forgotten = code == COMMON_OK && body->first < worker_session_given_back(session, body->layer);
    if (forgotten) // it forgot them while this was on its way
        code = common_error_set(&err, COMMON_FAILED_PRECONDITION,
                                "rows of layer %u below position %" PRIu64 " are forgotten: commit again",
                                body->layer, worker_session_given_back(session, body->layer));
    struct worker_wants wants = {0};
    if (code == COMMON_OK)
        hash_wants(session, body, &wants);
    if (wants.cold || wants.failed) {
        prepare_free(p);
        worker_warm_request(worker->warm, &wants, worker_handle_rows_prepare, request);
        return;
    }
    worker_wants_free(&wants);
    if (code == COMMON_OK)
        code = prepare_collect(p, session, body, &err);
    if (code != COMMON_OK) {
        worker_fail(request, &err,
                    late                     ? PROTO_REASON_OLD_COMMIT
                    : forgotten              ? PROTO_REASON_FORGOTTEN
                    : code == COMMON_ABORTED ? PROTO_REASON_OLD_INCARNATION
                                             : PROTO_REASON_NONE);
        prepare_free(p);
    } else if (p->bytes <= HASH_INLINE_BYTES || worker->draining) {
        for (uint32_t i = 0; i < p->reply.n_chunks; i++)
            hash_task(p, i, NULL);
        prepare_answer(p, true);
    } else if (worker->device) {
        worker->n_prepares++;
        hash_next(p);
    } else {
        p->job = (struct worker_job){
            .tasks = (uint32_t)p->reply.n_chunks, .run = hash_task, .done = answer_later, .arg = p};
        worker->n_prepares++;
        worker_team_submit(worker->team, &p->job);
    }
}
