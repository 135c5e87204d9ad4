// SPDX-License-Identifier: Apache-2.0
#include "worker/rows/pull.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/list.h"
#include "common/log/log.h"
#include "proto/model/limits.h"
#include "worker/control/plans.h"
#include "worker/core/kept.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"
#include "worker/disk/disk.h"

#define PULLS_MAX   256u                   // under way, of this worker
#define READS_MAX   4u                     // asked for and not yet come
#define PIECE_BYTES (UINT64_C(256) << 10)  // of one read, or one row: some 50 us of either loop
#define READ_NS     (5 * COMMON_NS_PER_S)  // a read is answered within it
#define IDLE_NS     (10 * COMMON_NS_PER_S) // so long a link stays for the next pull
#define QUIET_NS    COMMON_NS_PER_S        // as of edges (reduce/edge.c)
#define AHEAD_NS                                                                                             \
    (2 * COMMON_NS_PER_MS) // of the rate: a timer is no finer, and pieces of short chunks are small
#define MUTE_NS    (3 * COMMON_NS_PER_S)   // likewise
#define CROWDED_NS (10 * COMMON_NS_PER_MS) // before it looks again whether the disk has written what waits

struct source { // a worker that is read from
    struct source *next;
    char *endpoint;
    struct proto_channel *channel;
    uint32_t pulls;        // that read from it
    uint64_t idle_from_ns; // when there are none
};

struct pull {
    struct common_list link; // in pulls.list
    struct worker_pulls *pulls;
    struct proto_request *request;
    struct source *source;
    uint64_t session, incarnation, chunk, first;
    struct worker_freeze *ranges; // [n_ranges]
    size_t n_ranges, at;          // ranges from `at` on have rows that have not been asked for
    uint64_t position;            // in ranges[at]
    uint32_t reading;             // reads under way
    bool more;                    // it has something to ask for
    uint64_t bytes;
    struct common_error err; // the first failure; OK: none
    enum proto_reason reason;
    bool cancelled, over;
};

struct piece { // of one read
    struct pull *pull;
    uint32_t layer, count;
    uint64_t first;
};

struct worker_pulls {
    struct worker *worker;
    struct common_timer *timer;
    struct common_list list; // pulls under way, in the order in which they came
    uint32_t n, reading;
    struct source *sources;
    uint64_t bytes_per_s; // 0: no limit
    uint64_t next_ns;     // no read before
    bool closing;
};

// ---- sources ------------------------------------------------------------------------------------

static struct source *source_get(struct worker_pulls *pulls, const char *endpoint, struct common_error *err)
{
    struct worker *worker = pulls->worker;
    for (struct source *s = pulls->sources; s; s = s->next)
        if (strcmp(s->endpoint, endpoint) == 0)
            return s;
    const struct proto_channel_options options = {.name = worker->name,
                                                  .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                                  .secret = &worker->secret,
                                                  .tls = worker->tls,
                                                  .peer_role = BANYAN__PB__ROLE__ROLE_WORKER,
                                                  .quiet_ns = QUIET_NS,
                                                  .mute_ns = MUTE_NS};
    struct source *s = calloc(1, sizeof *s);
    if (!s || !(s->endpoint = strdup(endpoint))) {
        free(s);
        common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a pull");
        return NULL;
    }
    if (proto_channel_open(worker->loop, endpoint, &options, &s->channel, err) != COMMON_OK) {
        free(s->endpoint);
        free(s);
        return NULL;
    }
    s->next = pulls->sources;
    pulls->sources = s;
    return s;
}

// Closes links that were unused for so long. Returns when the next one is due; COMMON_NO_DEADLINE: none is.
static uint64_t sources_close(struct worker_pulls *pulls, uint64_t now, uint64_t idle_ns)
{
    uint64_t due = COMMON_NO_DEADLINE;
    for (struct source **at = &pulls->sources, *s; (s = *at);) {
        uint64_t ends = s->idle_from_ns + idle_ns;
        if (s->pulls || ends > now) {
            due = !s->pulls && ends < due ? ends : due;
            at = &s->next;
            continue;
        }
        *at = s->next;
        proto_channel_close(s->channel);
        free(s->endpoint);
        free(s);
    }
    return due;
}

// ---- the end of a pull --------------------------------------------------------------------------

static void pull_fail(struct pull *p, const struct common_error *err, enum proto_reason reason)
{
    if (p->err.code != COMMON_OK)
        return;
    p->err = *err;
    p->reason = reason;
}

static void pull_free(struct pull *p)
{
    free(p->ranges);
    free(p);
}

// The files have its rows, or it has failed.
static void pull_answer(void *arg, struct proto_request *request, const struct common_error *failed)
{
    struct pull *p = arg;
    Banyan__Pb__ChunkPullReply reply = BANYAN__PB__CHUNK_PULL_REPLY__INIT;
    reply.bytes = p->bytes;
    if (failed)
        worker_fail(request, failed, p->reason);
    else
        proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
    pull_free(p);
}

static void pull_end(struct pull *p)
{
    COMMON_FAILPOINT("pull_answered");
    struct worker_pulls *pulls = p->pulls;
    p->over = true;
    if (--p->source->pulls == 0)
        p->source->idle_from_ns = common_clock_ns();
    common_list_remove(&p->link);
    pulls->n--;
    if (p->err.code != COMMON_OK)
        pull_answer(p, p->request, &p->err);
    else
        worker_kept_answer(pulls->worker, p->request, p->session, p->first, 1, pull_answer, p);
}

// The chunk that the rows go to; NULL with the failure.
static struct worker_chunk *pull_chunk(struct pull *p, struct worker_session **session)
{
    struct worker *worker = p->pulls->worker;
    struct common_error err;
    enum common_code code = worker_session_find(&worker->sessions, p->session, p->incarnation, session, &err);
    struct worker_chunk *chunk = code == COMMON_OK ? worker_store_find(worker->store, p->chunk) : NULL;
    if (code == COMMON_OK && (!chunk || !worker_session_chunk(*session, p->chunk, p->first))) {
        common_error_set(&err, COMMON_NOT_FOUND,
                         "chunk %" PRIu64 " does not belong to session %016" PRIx64 " here", p->chunk,
                         p->session);
        chunk = NULL;
    }
    if (!chunk)
        pull_fail(p, &err, err.code == COMMON_ABORTED ? PROTO_REASON_OLD_INCARNATION : PROTO_REASON_NONE);
    return chunk;
}

// ---- a piece ------------------------------------------------------------------------------------

static enum common_code take_rows(struct pull *p, const struct piece *r, const struct proto_message *message,
                                  struct common_error *err)
{
    struct worker_session *session;
    struct worker_chunk *chunk = pull_chunk(p, &session);
    if (!chunk) {
        *err = p->err;
        return err->code;
    }
    const struct worker_form *form = worker_shape_form(worker_chunk_shape(chunk), r->layer);
    const Banyan__Pb__ChunkReadReply *body = (const Banyan__Pb__ChunkReadReply *)message->body;
    size_t k_bytes = r->count * form->k_wire, v_bytes = r->count * form->v_wire;
    if (message->n_tensors != (v_bytes ? 2 : 1) || message->tensors[0].bytes != k_bytes ||
        (v_bytes && message->tensors[1].bytes != v_bytes))
        return common_error_set(err, COMMON_INTERNAL, "worker at %s sent rows of another shape",
                                p->source->endpoint);
    const uint8_t *const bytes[2] = {message->tensors[0].data, v_bytes ? message->tensors[1].data : NULL};
    if (worker_form_sum(form, bytes, r->first, r->count) != body->sum)
        return common_error_set(err, COMMON_DATA_LOSS,
                                "rows of chunk %" PRIu64 " from %s differ from what its memory holds",
                                p->chunk, p->source->endpoint);
    struct worker_rows rows = {.chunk = chunk,
                               .layer = r->layer,
                               .row = (uint32_t)(r->first - p->first),
                               .count = r->count,
                               .k = bytes[0],
                               .v = bytes[1]};
    p->bytes += k_bytes + v_bytes;
    if (COMMON_FAILPOINT_FAILS("pull_rows"))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "a failpoint refuses these rows");
    return worker_store_write(p->pulls->worker->store, &rows, 1, WORKER_ROW_COMMITTED, UINT64_MAX, err);
}

static void pulls_pump(struct worker_pulls *pulls);

static void read_done(void *arg, const struct proto_reply *reply)
{
    struct piece r = *(struct piece *)arg;
    struct pull *p = r.pull;
    struct worker_pulls *pulls = p->pulls;
    struct common_error err = {0};
    free(arg);
    p->reading--;
    pulls->reading--;
    enum common_code code = reply->code;
    if (code != COMMON_OK) {
        common_error_set(&err, code == COMMON_CANCELLED ? COMMON_UNAVAILABLE : code, "%s", reply->text);
    } else if (p->err.code == COMMON_OK) {
        code = take_rows(p, &r, reply->message, &err);
    }
    if (code != COMMON_OK)
        pull_fail(p, &err, code == COMMON_DATA_LOSS ? PROTO_REASON_HASH_MISMATCH : PROTO_REASON_NONE);
    if (!pulls->closing)
        pulls_pump(pulls);
}

static bool is_here(const struct worker_chunk *chunk, uint32_t layer, uint64_t row)
{
    enum worker_row state = worker_chunk_row(chunk, layer, (uint32_t)row);
    return state == WORKER_ROW_APPENDED || state == WORKER_ROW_COMMITTED;
}

// The next rows that are not here, as many as go into one piece. False: there are none left.
static bool next_piece(struct pull *p, const struct worker_session *session, const struct worker_chunk *chunk,
                       struct piece *out)
{
    const struct worker_shape *shape = worker_chunk_shape(chunk);
    for (; p->at < p->n_ranges; p->at++, p->position = 0) {
        const struct worker_freeze *range = &p->ranges[p->at];
        uint64_t end = range->first + range->count;
        uint64_t from = p->position > range->first ? p->position : range->first;
        if (worker_session_forgotten(session, range->layer) >= p->first + shape->chunk_tokens)
            continue; // they are no longer asked for
        while (from < end && is_here(chunk, range->layer, from - p->first))
            from++;
        if (from == end)
            continue;
        const struct worker_form *form = worker_shape_form(shape, range->layer);
        uint64_t most = PIECE_BYTES / (form->k_wire + form->v_wire), count = 1;
        while (count < most && from + count < end && !is_here(chunk, range->layer, from + count - p->first))
            count++;
        *out = (struct piece){.pull = p, .layer = range->layer, .first = from, .count = (uint32_t)count};
        p->position = from + count;
        return true;
    }
    return false;
}

static bool read_send(struct pull *p, const struct piece *piece, uint64_t bytes)
{
    struct worker_pulls *pulls = p->pulls;
    struct common_error err;
    struct piece *r = malloc(sizeof *r);
    Banyan__Pb__ChunkReadRequest body = BANYAN__PB__CHUNK_READ_REQUEST__INIT;
    body.session = p->session;
    body.incarnation = p->incarnation;
    body.chunk = p->chunk;
    body.layer = piece->layer;
    body.first = piece->first;
    body.count = piece->count;
    uint64_t now = common_clock_ns(), deadline = proto_request_deadline(p->request);
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_CHUNK_READ,
                              .body = &body.base,
                              .deadline_ns = deadline < now + READ_NS ? deadline : now + READ_NS,
                              .done = read_done,
                              .arg = r};
    if (!r) {
        common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a pull");
        pull_fail(p, &err, PROTO_REASON_NONE);
        return false;
    }
    *r = *piece;
    if (proto_channel_call(p->source->channel, &call, NULL, &err) != COMMON_OK) {
        pull_fail(p, &err, PROTO_REASON_NONE);
        free(r);
        return false;
    }
    p->reading++;
    pulls->reading++;
    if (pulls->bytes_per_s) {
        uint64_t from = pulls->next_ns > now ? pulls->next_ns : now;
        pulls->next_ns =
            from + (uint64_t)((double)bytes * (double)COMMON_NS_PER_S / (double)pulls->bytes_per_s);
    }
    return true;
}

// Asks for one piece. False: the pull has nothing (more) to ask for.
static bool pull_ask(struct pull *p)
{
    struct worker_session *session;
    struct piece piece;
    struct worker_chunk *chunk = p->err.code == COMMON_OK ? pull_chunk(p, &session) : NULL;
    p->more = false;
    if (!chunk || !next_piece(p, session, chunk, &piece))
        return false;
    const struct worker_form *form = worker_shape_form(worker_chunk_shape(chunk), piece.layer);
    return read_send(p, &piece, piece.count * (form->k_wire + form->v_wire));
}

// Whether it has something to ask for. It was found so before, or is looked at now.
static bool pull_has_more(struct pull *p)
{
    struct worker_session *session;
    struct piece piece;
    size_t at = p->at;
    uint64_t position = p->position;
    struct worker_chunk *chunk = p->err.code == COMMON_OK && !p->more ? pull_chunk(p, &session) : NULL;
    if (chunk) {
        p->more = next_piece(p, session, chunk, &piece);
        p->at = at;
        p->position = position;
    }
    return p->more && p->err.code == COMMON_OK;
}

// ---- all of them --------------------------------------------------------------------------------

static void check_cancelled(struct pull *p)
{
    struct common_error err;
    if (!p->cancelled && common_clock_ns() < proto_request_deadline(p->request))
        return;
    common_error_set(&err, COMMON_CANCELLED, "the caller has stopped waiting");
    pull_fail(p, &err, PROTO_REASON_NONE);
}

// Nothing is left to ask for and nothing under way. A layout may have taken the chunk away meanwhile and given it back.
static void check_all(struct pull *p)
{
    struct worker_session *session;
    struct common_error err;
    struct piece lacks;
    struct worker_chunk *chunk = p->err.code == COMMON_OK ? pull_chunk(p, &session) : NULL;
    p->at = 0;
    p->position = 0;
    if (!chunk || !next_piece(p, session, chunk, &lacks))
        return;
    common_error_set(&err, COMMON_UNAVAILABLE, "position %" PRIu64 " of layer %u is gone again", lacks.first,
                     lacks.layer);
    pull_fail(p, &err, PROTO_REASON_NONE);
}

static bool may_read(const struct worker_pulls *pulls, uint64_t now)
{
    return pulls->reading < READS_MAX && pulls->next_ns <= now + AHEAD_NS &&
           !worker_disk_crowded(pulls->worker->disk);
}

// A piece for each in turn: one with many rows does not hold up the others.
static void pulls_ask(struct worker_pulls *pulls, uint64_t now)
{
    for (bool any = true; any && may_read(pulls, now);) {
        any = false;
        for (uint32_t n = pulls->n; n && may_read(pulls, now); n--) {
            struct pull *p = common_list_entry(pulls->list.next, struct pull, link);
            common_list_remove(&p->link);
            common_list_push(&pulls->list, &p->link);
            any = pull_ask(p) || any;
        }
    }
}

static void pulls_pump(struct worker_pulls *pulls)
{
    uint64_t now = common_clock_ns(), due;
    for (struct common_list *at = pulls->list.next; at != &pulls->list; at = at->next)
        check_cancelled(common_list_entry(at, struct pull, link));
    pulls_ask(pulls, now);
    bool wait = false; // for the rate, or the disk
    for (struct common_list *at = pulls->list.next, *next; at != &pulls->list; at = next) {
        struct pull *p = common_list_entry(at, struct pull, link);
        next = at->next;
        bool more = pull_has_more(p);
        wait = wait || more;
        if (more || p->reading)
            continue;
        check_all(p);
        pull_end(p);
    }
    due = sources_close(pulls, now, IDLE_NS);
    if (wait && pulls->reading < READS_MAX && pulls->next_ns > now + AHEAD_NS)
        due = pulls->next_ns - AHEAD_NS;
    if (wait && worker_disk_crowded(pulls->worker->disk) && due > now + CROWDED_NS)
        due = now + CROWDED_NS;
    if (due != COMMON_NO_DEADLINE)
        common_timer_start(pulls->timer, due > now ? due - now : 0, false);
}

static void pulls_tick(void *arg)
{
    pulls_pump(arg);
}

struct worker_pulls *worker_pulls_new(struct worker *worker)
{
    struct worker_pulls *pulls = calloc(1, sizeof *pulls);
    if (!pulls)
        return NULL;
    if (common_timer_new(worker->loop, pulls_tick, pulls, &pulls->timer) != COMMON_OK) {
        free(pulls);
        return NULL;
    }
    pulls->worker = worker;
    common_list_init(&pulls->list);
    return pulls;
}

void worker_pulls_free(struct worker_pulls *pulls)
{
    struct common_error err;
    if (!pulls)
        return;
    pulls->closing = true;
    for (struct source *s = pulls->sources; s; s = s->next) {
        proto_channel_close(s->channel); // reads under way end here
        s->channel = NULL;
    }
    common_error_set(&err, COMMON_UNAVAILABLE, "the worker is leaving");
    while (!common_list_empty(&pulls->list)) {
        struct pull *p = common_list_entry(pulls->list.next, struct pull, link);
        assert(p->reading == 0);
        pull_fail(p, &err, PROTO_REASON_NONE);
        pull_end(p);
    }
    sources_close(pulls, UINT64_MAX, 0);
    common_timer_free(pulls->timer);
    free(pulls);
}

// ---- the call -----------------------------------------------------------------------------------

static void pull_cancelled(void *arg)
{
    struct pull *p = arg;
    p->cancelled = true;
    if (!p->over)                                      // else its answer comes by itself
        common_timer_start(p->pulls->timer, 0, false); // not on this stack
}

static enum common_code check_ranges(const struct worker_session *session,
                                     const Banyan__Pb__ChunkPullRequest *body, struct common_error *err)
{
    const struct worker_shape *shape = session->spec->shape;
    uint64_t end = body->first + shape->chunk_tokens;
    for (size_t i = 0; i < body->n_ranges; i++) {
        const Banyan__Pb__RowsRange *range = body->ranges[i];
        if (range->layer >= shape->layers || !worker_shape_form(shape, range->layer) || range->count == 0 ||
            range->first < body->first || range->first >= end || range->count > end - range->first)
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "range %zu of a pull lies outside its chunk", i);
    }
    return COMMON_OK;
}

static enum common_code pull_make(struct worker *worker, const Banyan__Pb__ChunkPullRequest *body,
                                  struct pull **out, struct common_error *err)
{
    struct worker_pulls *pulls = worker->pulls;
    struct worker_session *session;
    enum common_code code =
        worker_session_find(&worker->sessions, body->session, body->incarnation, &session, err);
    if (code == COMMON_OK && !worker_session_chunk(session, body->chunk, body->first))
        code = common_error_set(err, COMMON_NOT_FOUND,
                                "chunk %" PRIu64 " does not belong to session %016" PRIx64 " here",
                                body->chunk, body->session);
    if (code == COMMON_OK)
        code = check_ranges(session, body, err);
    if (code == COMMON_OK && worker->draining)
        code = common_error_set(err, COMMON_UNAVAILABLE, "the worker is leaving");
    if (code == COMMON_OK && pulls->n >= PULLS_MAX)
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the worker already has %u pulls in progress",
                                pulls->n);
    if (code != COMMON_OK)
        return code;
    struct source *source = source_get(pulls, body->from, err);
    if (!source)
        return err->code;
    struct pull *p = calloc(1, sizeof *p);
    struct worker_freeze *ranges = malloc((body->n_ranges + 1) * sizeof *ranges);
    if (!p || !ranges) {
        free(p);
        free(ranges);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a pull");
    }
    for (size_t i = 0; i < body->n_ranges; i++)
        ranges[i] = (struct worker_freeze){.first = body->ranges[i]->first,
                                           .count = body->ranges[i]->count,
                                           .layer = body->ranges[i]->layer};
    *p = (struct pull){.pulls = pulls,
                       .source = source,
                       .session = body->session,
                       .incarnation = body->incarnation,
                       .chunk = body->chunk,
                       .first = body->first,
                       .ranges = ranges,
                       .n_ranges = body->n_ranges,
                       .reason = PROTO_REASON_NONE};
    *out = p;
    return COMMON_OK;
}

// A chunk whose file must be rewritten, and of which rows are on disk only, is read first, beside the loop.
static bool pull_waits(struct worker *worker, uint64_t id, struct proto_request *request)
{
    struct worker_chunk *chunk = worker_store_find(worker->store, id);
    struct worker_wants wants = {0};
    if (!chunk || !worker_chunk_keep(chunk)->behind || !worker_chunk_any_cold(chunk))
        return false;
    worker_wants_add_chunk(&wants, chunk);
    worker_warm_request(worker->warm, &wants, worker_handle_chunk_pull, request);
    return true;
}

void worker_handle_chunk_pull(void *arg, struct proto_request *request)
{
    COMMON_FAILPOINT("pull_received");
    struct worker *worker = arg;
    const Banyan__Pb__ChunkPullRequest *body =
        (const Banyan__Pb__ChunkPullRequest *)proto_request_message(request)->body;
    struct common_error err;
    struct pull *p = NULL;
    if (!worker_term_check(worker, body->term, request) || pull_waits(worker, body->chunk, request))
        return;
    enum common_code code = pull_make(worker, body, &p, &err);
    if (code != COMMON_OK) {
        worker_fail(request, &err, code == COMMON_ABORTED ? PROTO_REASON_OLD_INCARNATION : PROTO_REASON_NONE);
        return;
    }
    struct worker_pulls *pulls = worker->pulls;
    p->request = request;
    p->source->pulls++;
    common_list_push(&pulls->list, &p->link);
    pulls->n++;
    pulls->bytes_per_s = body->bytes_per_s;
    proto_request_on_cancel(request, pull_cancelled, p);
    pulls_pump(pulls);
}
