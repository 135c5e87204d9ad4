// SPDX-License-Identifier: Apache-2.0
#include "worker/rows/sums.h"

#include <assert.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/list.h"
#include "common/log/log.h"
#include "proto/model/spec.h"
#include "proto/sums/rows_sum.h"
#include "worker/control/plans.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"
#include "worker/disk/reread.h"

#define SUMS_MAX     64u                    // that wait, of this worker
#define SLICE_BYTES  (UINT64_C(1) << 20)    // about 0.1 ms of one thread
#define INLINE_BYTES (UINT64_C(64) << 10)   // of a slice on the loop's thread: some 10 us
#define AHEAD_NS     (2 * COMMON_NS_PER_MS) // slices may be so early: short pauses cost more than they spare

#define TRY_NS (5 * COMMON_NS_PER_MS) // a chunk that steps read now is free soon

enum { PIECES = 8, TRIES = 200 }; // of a slice: rows of one layer each; of a chunk that is read all the time

struct sum {
    struct common_list link; // in sums.list
    struct worker_sums *sums;
    struct proto_request *request;
    uint64_t session, incarnation, chunk, first;
    uint32_t layer, row; // the next row
    uint64_t of_layer;   // sum of the layer's rows before it
    uint64_t seal, bytes;
    uint64_t bytes_per_s; // 0: in haste
    uint64_t want;        // 0: unknown, or the file had it
    uint64_t again_ns;    // not before
    uint32_t tries;       // to write memory from the file
    bool healed, cancelled;
};

struct piece {
    struct worker_hash *hash;
    uint64_t sum;
    bool ends; // the layer
    uint32_t layer;
};

struct worker_sums {
    struct worker *worker;
    struct common_timer *timer;
    struct common_list list; // those in haste first
    uint32_t n;
    struct sum *at;           // that is being summed, while one of the next two is under way
    struct worker_wait *wait; // for its next layer, which is on the disk alone; NULL: there is none
    bool busy;                // with its slice:
    struct worker_job job;
    struct piece pieces[PIECES];
    uint32_t n_pieces;
    bool failed;      // the memory is lost, or there is none for a copy
    uint64_t next_ns; // no slice of one that is not in haste before
    // Whose file is read, or whose memory is written from it; NULL: none's
    struct sum *healing;
    struct worker_reread *reread;
    bool reading; // others go on meanwhile
};

static void sums_pump(struct worker_sums *sums);
static void slice_next(struct sum *m, uint64_t now);

// ---- the end of one -----------------------------------------------------------------------------

static void heal_end(struct sum *m)
{
    struct worker_sums *sums = m->sums;
    if (sums->healing != m)
        return;
    worker_reread_free(sums->reread);
    sums->reread = NULL;
    sums->healing = NULL;
}

static void sum_end(struct sum *m, const struct common_error *err, enum proto_reason reason)
{
    if (err) {
        worker_fail(m->request, err, reason);
    } else {
        COMMON_FAILPOINT("sum_answered");
        Banyan__Pb__ChunkSumReply reply = BANYAN__PB__CHUNK_SUM_REPLY__INIT;
        reply.seal = proto_seal_done(m->seal);
        reply.bytes = m->bytes;
        reply.healed = m->healed;
        proto_request_reply(m->request, &reply.base, NULL, 0, NULL, NULL);
    }
    heal_end(m);
    common_list_remove(&m->link);
    m->sums->n--;
    free(m);
}

// The chunk, while it is what was asked for; NULL with the failure. A layout may take it away between two slices.
static struct worker_chunk *sum_chunk(const struct sum *m, const struct worker_session **session,
                                      struct common_error *err)
{
    struct worker *worker = m->sums->worker;
    struct worker_session *found;
    if (m->cancelled || common_clock_ns() >= proto_request_deadline(m->request)) {
        common_error_set(err, COMMON_CANCELLED, "the caller has stopped waiting");
        return NULL;
    }
    if (worker->draining) {
        common_error_set(err, COMMON_UNAVAILABLE, "the worker is leaving");
        return NULL;
    }
    if (worker_session_find(&worker->sessions, m->session, m->incarnation, &found, err) != COMMON_OK)
        return NULL;
    const struct worker_session_chunk *entry = worker_session_chunk(found, m->chunk, m->first);
    if (!entry) {
        common_error_set(err, COMMON_NOT_FOUND,
                         "chunk %" PRIu64 " does not belong to session %016" PRIx64 " here", m->chunk,
                         m->session);
        return NULL;
    }
    *session = found;
    return entry->chunk;
}

// ---- a slice ------------------------------------------------------------------------------------

// The next layer is in memory, until this has returned, or will not be.
static void layer_came(void *arg, const struct common_error *failed)
{
    struct worker_sums *sums = arg;
    sums->wait = NULL;
    if (failed)
        sum_end(sums->at, failed, PROTO_REASON_NONE);
    else
        slice_next(sums->at, common_clock_ns());
    sums_pump(sums);
}

// False: it need not, or cannot, with the error.
static bool wait_for_layer(struct sum *m, struct worker_chunk *chunk, struct common_error *err)
{
    struct worker_sums *sums = m->sums;
    struct worker_wants wants = {0};
    if (sums->n_pieces || m->layer >= worker_chunk_shape(chunk)->layers ||
        !worker_chunk_cold(chunk, m->layer))
        return false;
    worker_wants_add(&wants, chunk, m->layer);
    sums->wait =
        worker_warm_wait(sums->worker->warm, &wants, proto_request_deadline(m->request), layer_came, sums);
    worker_wants_free(&wants);
    if (!sums->wait)
        common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "too many calls are waiting for rows on disk");
    return sums->wait != NULL;
}

// Adds a piece: rows of the layer that comes next. False, with no error: it is enough, or there are none left, or
// that layer is on the disk alone.
static bool add_piece(struct sum *m, struct worker_chunk *chunk, const struct worker_session *session,
                      uint64_t *bytes, struct common_error *err)
{
    struct worker_sums *sums = m->sums;
    const struct worker_shape *shape = worker_chunk_shape(chunk);
    while (m->layer < shape->layers && !proto_spec_keeps(session->spec->pb, m->layer))
        m->layer++;
    if (m->layer == shape->layers || sums->n_pieces == PIECES || *bytes >= SLICE_BYTES)
        return false;
    if (worker_chunk_cold(chunk, m->layer))
        return false;
    const struct worker_form *form = worker_shape_form(shape, m->layer);
    uint64_t most = (SLICE_BYTES - *bytes) / (form->k_wire + form->v_wire) + 1;
    uint32_t count = shape->chunk_tokens - m->row;
    count = count < most ? count : (uint32_t)most;
    uint32_t there = worker_chunk_forgotten(chunk, m->layer)
                         ? 0
                         : worker_chunk_rows_at(chunk, m->layer, m->row, count, WORKER_ROW_PREPARED);
    if (there < count) {
        common_error_set(err, COMMON_FAILED_PRECONDITION, "position %" PRIu64 " of layer %u is not here",
                         m->first + m->row + there, m->layer);
        return false;
    }
    struct piece *piece = &sums->pieces[sums->n_pieces];
    piece->hash = worker_hash_new(chunk, m->layer, m->row, count, bytes);
    if (!piece->hash) {
        common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a sum");
        return false;
    }
    sums->n_pieces++;
    piece->layer = m->layer;
    m->row += count;
    piece->ends = m->row == shape->chunk_tokens;
    if (piece->ends) {
        m->row = 0;
        m->layer++;
    }
    return true;
}

static void slice_run(void *arg, uint32_t task, void *scratch)
{
    struct worker_sums *sums = arg;
    (void)task;
    (void)scratch;
    for (uint32_t i = 0; i < sums->n_pieces && !sums->failed; i++)
        sums->failed = !worker_hash_run(sums->pieces[i].hash, true, &sums->pieces[i].sum);
}

static void slice_take(struct worker_sums *sums)
{
    struct sum *m = sums->at;
    struct common_error err;
    for (uint32_t i = 0; i < sums->n_pieces; i++) {
        const struct piece *piece = &sums->pieces[i];
        worker_hash_free(sums->worker->store, piece->hash);
        m->of_layer += piece->sum;
        if (!piece->ends)
            continue;
        m->seal = proto_seal_add(m->seal, piece->layer, m->of_layer);
        m->of_layer = 0;
    }
    sums->n_pieces = 0;
    if (!sums->failed)
        return;
    sums->failed = false;
    if (worker_store_check(sums->worker->store, &err) == COMMON_OK)
        common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a sum");
    sum_end(m, &err, PROTO_REASON_NONE);
}

static void slice_done(void *arg, bool complete)
{
    struct worker_sums *sums = arg;
    struct worker *worker = sums->worker;
    (void)complete; // it is never cancelled, and it needs no scratch
    sums->busy = false;
    slice_take(sums);
    worker->n_prepares--;
    sums_pump(sums);
    worker_hand_emptied(worker);
}

static void slice_send(struct worker_sums *sums)
{
    sums->busy = true;
    sums->job = (struct worker_job){.tasks = 1, .run = slice_run, .done = slice_done, .arg = sums};
    sums->worker->n_prepares++;
    worker_team_submit(sums->worker->team, &sums->job);
}

// ---- memory from the files ------------------------------------------------------------------------

static void file_read(void *arg)
{
    COMMON_FAILPOINT("heal_read");
    struct worker_sums *sums = arg;
    struct worker *worker = sums->worker;
    sums->reading = false;
    worker->n_prepares--;
    sums_pump(sums);
    worker_hand_emptied(worker);
}

// Has the file read. False: there is none.
static bool heal_begin(struct sum *m, struct worker_chunk *chunk, const struct worker_session *session)
{
    struct worker_sums *sums = m->sums;
    struct worker *worker = sums->worker;
    if (COMMON_FAILPOINT_FAILS("heal_begun"))
        return false;
    sums->reread = worker_disk_reread(worker->disk, chunk, session->spec, m->want, file_read, sums);
    if (!sums->reread)
        return false;
    sums->healing = m;
    sums->reading = true;
    worker->n_prepares++; // in hand: the process does not end before it has
    return true;
}

// The memory is as it should be: it is summed up once more.
static void healed(struct sum *m)
{
    COMMON_FAILPOINT("heal_written");
    common_log_error("memory is wrong and is reloaded from its file session=%016" PRIx64 " chunk=%" PRIu64,
                     m->session, m->chunk);
    heal_end(m);
    m->healed = true;
    m->want = 0;
    m->layer = m->row = 0;
    m->seal = m->bytes = 0;
}

// The memory is not what it should be, and the files may be. True: it is summed up once more, or is about to be.
static bool heal(struct sum *m, struct worker_chunk *chunk, const struct worker_session *session)
{
    struct worker_sums *sums = m->sums;
    if (!m->want || proto_seal_done(m->seal) == m->want)
        return false;
    if (!sums->healing)
        return heal_begin(m, chunk, session);
    if (sums->healing != m) { // one at a time: a file takes memory
        m->again_ns = common_clock_ns() + TRY_NS;
        return true;
    }
    switch (worker_reread_write(sums->reread, chunk, SLICE_BYTES)) {
    case WORKER_REREAD_DONE:
        healed(m);
        return true;
    case WORKER_REREAD_MORE:
        return true;
    case WORKER_REREAD_PINNED:
        m->again_ns = common_clock_ns() + TRY_NS;
        return m->tries++ < TRIES;
    case WORKER_REREAD_NONE:
        break;
    }
    return false;
}

// Sums up the next slice, or ends it.
static void slice_next(struct sum *m, uint64_t now)
{
    struct worker_sums *sums = m->sums;
    const struct worker_session *session = NULL;
    struct common_error err = {0};
    uint64_t bytes = 0;
    struct worker_chunk *chunk = sum_chunk(m, &session, &err);
    sums->at = m;
    while (chunk && add_piece(m, chunk, session, &bytes, &err))
        ;
    if (chunk && err.code == COMMON_OK && wait_for_layer(m, chunk, &err))
        return;
    if (err.code != COMMON_OK) {
        for (uint32_t i = 0; i < sums->n_pieces; i++)
            worker_hash_free(sums->worker->store, sums->pieces[i].hash);
        sums->n_pieces = 0;
        sum_end(m, &err,
                err.code == COMMON_ABORTED               ? PROTO_REASON_OLD_INCARNATION
                : err.code == COMMON_FAILED_PRECONDITION ? PROTO_REASON_HOLE
                                                         : PROTO_REASON_NONE);
        return;
    }
    if (!sums->n_pieces) {
        if (!heal(m, chunk, session))
            sum_end(m, NULL, PROTO_REASON_NONE);
        return;
    }
    m->bytes += bytes;
    if (m->bytes_per_s) {
        uint64_t from = sums->next_ns > now ? sums->next_ns : now;
        sums->next_ns = from + (uint64_t)((double)bytes * (double)COMMON_NS_PER_S / (double)m->bytes_per_s);
    }
    if (bytes > INLINE_BYTES && !sums->worker->device) {
        slice_send(sums);
        return;
    }
    slice_run(sums, 0, NULL); // what is on a device only the loop may read
    slice_take(sums);
}

// The next one; NULL: none.
static struct sum *next_of(const struct worker_sums *sums)
{
    struct common_list *at = sums->list.next;
    if (at != &sums->list && sums->reading && common_list_entry(at, struct sum, link) == sums->healing)
        at = at->next;
    return at == &sums->list ? NULL : common_list_entry(at, struct sum, link);
}

// How long he has to wait; 0: not at all.
static uint64_t wait_ns(const struct sum *m, uint64_t now)
{
    const struct worker_sums *sums = m->sums;
    uint64_t paced = m->bytes_per_s && sums->next_ns > now + AHEAD_NS ? sums->next_ns - now : 0;
    uint64_t again = m->again_ns > now ? m->again_ns - now : 0;
    return paced > again ? paced : again;
}

static bool is_idle(const struct worker_sums *sums)
{
    return !sums->busy && !sums->wait && next_of(sums);
}

// One slice, then whatever else the loop has to do.
static void sums_pump(struct worker_sums *sums)
{
    uint64_t now = common_clock_ns();
    if (is_idle(sums) && wait_ns(next_of(sums), now) == 0)
        slice_next(next_of(sums), now);
    if (is_idle(sums))
        common_timer_start(sums->timer, wait_ns(next_of(sums), now), false);
}

static void sums_tick(void *arg)
{
    sums_pump(arg);
}

struct worker_sums *worker_sums_new(struct worker *worker)
{
    struct worker_sums *sums = calloc(1, sizeof *sums);
    if (!sums)
        return NULL;
    if (common_timer_new(worker->loop, sums_tick, sums, &sums->timer) != COMMON_OK) {
        free(sums);
        return NULL;
    }
    sums->worker = worker;
    common_list_init(&sums->list);
    return sums;
}

void worker_sums_free(struct worker_sums *sums)
{
    struct common_error err;
    if (!sums)
        return;
    assert(!sums->busy && !sums->reading);
    if (sums->wait)
        worker_warm_cancel(sums->wait);
    sums->wait = NULL;
    common_error_set(&err, COMMON_UNAVAILABLE, "the worker is leaving");
    while (!common_list_empty(&sums->list))
        sum_end(common_list_entry(sums->list.next, struct sum, link), &err, PROTO_REASON_NONE);
    common_timer_free(sums->timer);
    free(sums);
}

// ---- the call -----------------------------------------------------------------------------------

static void sum_cancelled(void *arg)
{
    ((struct sum *)arg)->cancelled = true; // ends when it is its turn
}

// Behind those in haste, or, in haste itself, before all others: what one of them waits for it asks for again.
static void sum_enqueue(struct worker_sums *sums, struct sum *m)
{
    struct common_list *before = m->bytes_per_s ? &sums->list : sums->list.next;
    while (before != &sums->list && !common_list_entry(before, struct sum, link)->bytes_per_s)
        before = before->next;
    common_list_push(before, &m->link);
    sums->n++;
    if (m->bytes_per_s || !sums->wait || !sums->at->bytes_per_s)
        return;
    worker_warm_cancel(sums->wait);
    sums->wait = NULL;
}

void worker_handle_chunk_sum(void *arg, struct proto_request *request)
{
    COMMON_FAILPOINT("sum_received");
    struct worker *worker = arg;
    struct worker_sums *sums = worker->sums;
    const Banyan__Pb__ChunkSumRequest *body =
        (const Banyan__Pb__ChunkSumRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    struct sum *m = sums->n < SUMS_MAX ? calloc(1, sizeof *m) : NULL;
    if (!m) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the worker has too many sums in progress",
                           NULL, 0);
        return;
    }
    *m = (struct sum){.sums = sums,
                      .request = request,
                      .session = body->session,
                      .incarnation = body->incarnation,
                      .chunk = body->chunk,
                      .first = body->first,
                      .bytes_per_s = body->bytes_per_s,
                      .want = body->want};
    sum_enqueue(sums, m);
    proto_request_on_cancel(request, sum_cancelled, m);
    sums_pump(sums);
}
