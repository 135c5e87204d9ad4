// SPDX-License-Identifier: Apache-2.0
// What the coordinator tells a worker about sessions and chunks. Every call may come again; one that fails
// changes nothing.
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "worker/state.h"

bool worker_term_check(struct worker *worker, uint64_t term, struct proto_request *request)
{
    if (term >= worker->term) {
        worker->term = term;
        if (worker->plans_term < term) { // membership may have seen the term first
            worker_plans_close(worker);
            worker->plans_term = term;
        }
        return true;
    }
    struct proto_status status;
    proto_status_set(&status, COMMON_ABORTED, "OLD_TERM",
                     "term %" PRIu64 " is over: term %" PRIu64 " has begun", term, worker->term);
    proto_request_fail_status(request, &status);
    return false;
}

void worker_fail(struct proto_request *request, const struct common_error *err, const char *reason)
{
    struct proto_status status;
    proto_status_set(&status, err->code, reason, "%s", err->message);
    proto_request_fail_status(request, &status);
}

void worker_handle_layout_set(void *arg, struct proto_request *request)
{
    struct worker *worker = arg;
    const Banyan__Pb__LayoutSetRequest *body =
        (const Banyan__Pb__LayoutSetRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    struct common_error err;
    if (worker_session_layout(&worker->sessions, worker->store, body, &err) != COMMON_OK) {
        worker_fail(request, &err, err.code == COMMON_ABORTED ? "OLD_EPOCH" : "");
        return;
    }
    Banyan__Pb__LayoutSetReply reply = BANYAN__PB__LAYOUT_SET_REPLY__INIT;
    reply.used_bytes = worker_store_used(worker->store);
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

void worker_handle_session_drop(void *arg, struct proto_request *request)
{
    struct worker *worker = arg;
    const Banyan__Pb__SessionDropRequest *body =
        (const Banyan__Pb__SessionDropRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    const struct worker_session *session = worker_map_get(&worker->sessions, body->session);
    if (session && (body->claim || session->life == body->life)) // else it is in quarantine, and stays
        worker_session_drop(&worker->sessions, worker->store, body->session);
    Banyan__Pb__SessionDropReply reply = BANYAN__PB__SESSION_DROP_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

void worker_handle_chunk_copy(void *arg, struct proto_request *request)
{
    struct worker *worker = arg;
    const Banyan__Pb__ChunkCopyRequest *body =
        (const Banyan__Pb__ChunkCopyRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    struct common_error err;
    struct worker_session *session;
    Banyan__Pb__ChunkCopyReply reply = BANYAN__PB__CHUNK_COPY_REPLY__INIT;
    enum common_code code =
        worker_session_check(&worker->sessions, body->session, body->incarnation, 0, 0, 1, &session, &err);
    if (code == COMMON_OK) {
        const struct worker_chunk *from = worker_store_find(worker->store, body->from_chunk);
        struct worker_chunk *to = worker_store_find(worker->store, body->chunk);
        if (!from)
            code = common_error_set(&err, COMMON_NOT_FOUND, "chunk %" PRIu64 " is not held here",
                                    body->from_chunk);
        else if (!to || !worker_session_chunk(session, body->chunk, worker_chunk_first(to)))
            code = common_error_set(&err, COMMON_NOT_FOUND,
                                    "chunk %" PRIu64 " is not of session %016" PRIx64 " here", body->chunk,
                                    body->session);
        else
            code = worker_store_copy(worker->store, from, to, body->rows, &reply.hash, &err);
    }
    if (code != COMMON_OK)
        worker_fail(request, &err, code == COMMON_ABORTED ? "OLD_INCARNATION" : "");
    else
        proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

// ---- inventory ----------------------------------------------------------------------------------

// A page ends with the session that fills it, or inside of it: it may be larger by one header and one chunk
// (of 1,024 layers: 3 KiB).
enum { INVENTORY_BYTES = 48 * 1024, INVENTORY_HEADER_BYTES = 64 };

static int compare_sessions(const void *a, const void *b)
{
    uint64_t x = (*(struct worker_session *const *)a)->id, y = (*(struct worker_session *const *)b)->id;
    return x < y ? -1 : x > y;
}

// All sessions in ascending order of their ids; NULL when memory is short. There is room for one at least.
static struct worker_session **sorted_sessions(const struct worker *worker)
{
    struct worker_session **sessions = malloc((worker->sessions.count + 1) * sizeof *sessions);
    size_t cursor = 0, n = 0;
    void *value;
    while (sessions && worker_map_next(&worker->sessions, &cursor, &value))
        sessions[n++] = value;
    if (n > 1)
        qsort(sessions, n, sizeof *sessions, compare_sessions);
    return sessions;
}

static Banyan__Pb__InventoryChunk *inventory_chunk(const struct worker_chunk *chunk)
{
    const struct worker_shape *shape = worker_chunk_shape(chunk);
    Banyan__Pb__InventoryChunk *pb = malloc(sizeof *pb);
    if (!pb)
        return NULL;
    banyan__pb__inventory_chunk__init(pb);
    pb->layer_rows = malloc(shape->layers * sizeof *pb->layer_rows);
    if (!pb->layer_rows) {
        free(pb);
        return NULL;
    }
    pb->chunk = worker_chunk_id(chunk);
    pb->first = worker_chunk_first(chunk);
    pb->n_layer_rows = shape->layers;
    for (uint32_t i = 0; i < shape->layers; i++)
        pb->layer_rows[i] = worker_chunk_ready(chunk, i);
    return pb;
}

// Adds as many of the session's chunks, from index `from` on, as fit, and one at least, so that each page
// makes progress: the header alone may fill the page. Returns how many, or -1 when memory is short.
static int64_t inventory_session(const struct worker_session *session, uint32_t from, size_t *bytes,
                                 Banyan__Pb__InventorySession **out)
{
    Banyan__Pb__InventorySession *pb = malloc(sizeof *pb);
    if (!pb)
        return -1;
    banyan__pb__inventory_session__init(pb);
    pb->session = session->id;
    pb->incarnation = session->incarnation;
    pb->epoch = session->epoch;
    pb->life = session->life;
    pb->chunks = malloc((session->n_chunks - from + 1) * sizeof *pb->chunks);
    *out = pb;
    if (!pb->chunks)
        return -1;
    *bytes += INVENTORY_HEADER_BYTES;
    for (uint32_t i = from; i < session->n_chunks && (i == from || *bytes < INVENTORY_BYTES); i++) {
        Banyan__Pb__InventoryChunk *chunk = inventory_chunk(session->chunks[i].chunk);
        if (!chunk)
            return -1;
        pb->chunks[pb->n_chunks++] = chunk;
        pb->bytes += worker_chunk_bytes(session->chunks[i].chunk);
        *bytes += banyan__pb__inventory_chunk__get_packed_size(chunk) + 8;
    }
    return (int64_t)pb->n_chunks;
}

// Where the listing goes on inside a session: behind chunk `after`.
static uint32_t inventory_from(const struct worker_session *session, uint64_t after)
{
    for (uint32_t i = 0; i < session->n_chunks; i++)
        if (worker_chunk_id(session->chunks[i].chunk) == after)
            return i + 1;
    return 0; // gone meanwhile: from its start again
}

void worker_handle_inventory(void *arg, struct proto_request *request)
{
    struct worker *worker = arg;
    const Banyan__Pb__InventoryRequest *body =
        (const Banyan__Pb__InventoryRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    Banyan__Pb__InventoryReply reply = BANYAN__PB__INVENTORY_REPLY__INIT;
    worker->life = body->life;
    struct worker_session **sessions = sorted_sessions(worker);
    reply.sessions = malloc((worker->sessions.count + 1) * sizeof *reply.sessions);
    bool ok = sessions && reply.sessions;
    size_t bytes = 0, n = worker->sessions.count;
    for (size_t i = 0; ok && i < n; i++) {
        bool resumed = body->after_chunk != 0 && sessions[i]->id == body->after_session;
        if (sessions[i]->id <= body->after_session && !resumed)
            continue;
        uint32_t from = resumed ? inventory_from(sessions[i], body->after_chunk) : 0;
        Banyan__Pb__InventorySession *pb = NULL;
        int64_t taken = inventory_session(sessions[i], from, &bytes, &pb);
        if (pb)
            reply.sessions[reply.n_sessions++] = pb;
        ok = taken >= 0;
        if (!ok || bytes < INVENTORY_BYTES)
            continue;
        bool whole = from + (uint64_t)taken == sessions[i]->n_chunks; // else it has given a chunk
        if (!whole || i + 1 < n) {
            reply.next_session = sessions[i]->id;
            reply.next_chunk = whole ? 0 : pb->chunks[taken - 1]->chunk;
        }
        break;
    }
    if (ok)
        proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
    else
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for an inventory",
                           NULL, 0);
    for (size_t i = 0; i < reply.n_sessions; i++)
        banyan__pb__inventory_session__free_unpacked(reply.sessions[i], NULL);
    free(reply.sessions);
    free(sessions);
}

void worker_handle_health(void *arg, struct proto_request *request)
{
    struct worker *worker = arg;
    Banyan__Pb__HealthCheckReply reply = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    reply.serving = !worker->draining;
    reply.version = BANYAN_VERSION;
    reply.term = worker->term;
    reply.uptime_ns = common_clock_ns() - worker->started_ns;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}
