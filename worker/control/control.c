// SPDX-License-Identifier: Apache-2.0
// The coordinator's calls about sessions and chunks. Every call may be repeated; one that fails
// changes nothing.
#include "worker/control/control.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "proto/model/limits.h"
#include "proto/rpc/health.h"
#include "worker/control/lose.h"
#include "worker/control/plans.h"
#include "worker/core/kept.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"
#include "worker/store/cold.h"

static bool is_put(const struct worker_chunk *chunk)
{
    const struct worker_shape *shape = worker_chunk_shape(chunk);
    for (uint32_t l = 0; worker_chunk_has_put(chunk) && l < shape->layers; l++)
        for (uint32_t row = 0; worker_shape_form(shape, l) && row < shape->chunk_tokens; row++) {
            enum worker_row state = worker_chunk_row(chunk, l, row);
            if (state == WORKER_ROW_PUT || state == WORKER_ROW_PREPARED)
                return true;
        }
    return false;
}

// Puts with older tickets are refused from here on: what is put by now is all there is without a fresh one.
static void refuse_tickets(struct worker *worker, const Banyan__Pb__LayoutSetRequest *body,
                           Banyan__Pb__LayoutSetReply *reply)
{
    struct worker_session *session = worker_map_get(&worker->sessions, body->session);
    if (!session || session->tickets_term > body->term ||
        (session->tickets_term == body->term && session->tickets > body->tickets))
        return;
    session->tickets = body->tickets;
    session->tickets_term = body->term;
    for (size_t i = 0; i < body->n_chunks; i++) {
        const struct worker_chunk *chunk = worker_store_find(worker->store, body->chunks[i]->chunk);
        if (chunk && is_put(chunk))
            reply->put[reply->n_put++] = body->chunks[i]->chunk;
    }
}

// Once the files have what it says.
static void layout_answer(void *arg, struct proto_request *request, const struct common_error *failed)
{
    struct worker *worker = arg;
    const Banyan__Pb__LayoutSetRequest *body = (const void *)proto_request_message(request)->body;
    COMMON_FAILPOINT("layout_done");
    Banyan__Pb__LayoutSetReply reply = BANYAN__PB__LAYOUT_SET_REPLY__INIT;
    uint64_t put[PROTO_LAYOUT_CHUNKS_MAX];
    reply.used_bytes = worker_store_total(worker->store);
    reply.put = put;
    if (failed) {
        worker_fail(request, failed, "");
        return;
    }
    if (body->tickets)
        refuse_tickets(worker, body, &reply);
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

void worker_handle_layout_set(void *arg, struct proto_request *request)
{
    COMMON_FAILPOINT("layout_received");
    struct worker *worker = arg;
    const Banyan__Pb__LayoutSetRequest *body =
        (const Banyan__Pb__LayoutSetRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    struct common_error err;
    if (body->visit && body->term == worker->visit_term && body->visit < worker->visit) {
        common_error_set(&err, COMMON_ABORTED, "visit %" PRIu64 " is over: visit %" PRIu64 " has begun",
                         body->visit, worker->visit);
        worker_fail(request, &err, "OLD_EPOCH");
        return;
    }
    struct worker_session *known = worker_map_get(&worker->sessions, body->session);
    bool names_lost = worker_names_lost(worker, body); // made before that arrived, or beside it: a fork's
    if (known && names_lost)
        known->lacks = true;
    if (names_lost || (known && known->lacks)) { // else the chunk would be here again, without its rows
        common_error_set(&err, COMMON_ABORTED,
                         "rows of session %016" PRIx64 " are lost here: request its inventory",
                         body->session);
        worker_fail(request, &err, "OLD_EPOCH");
        return;
    }
    if (worker_session_layout(&worker->sessions, worker->store, body, &err) != COMMON_OK) {
        worker_fail(request, &err, err.code == COMMON_ABORTED ? "OLD_EPOCH" : "");
        return;
    }
    worker_lost_comes(worker, body);
    if (known && body->replace && !body->more) // it has the list of what is lost
        known->short_of_rows = false;
    worker_kept_layout(worker, request, body->session, layout_answer, worker);
}

static void drop_answer(void *arg, struct proto_request *request, const struct common_error *failed)
{
    Banyan__Pb__SessionDropReply reply = BANYAN__PB__SESSION_DROP_REPLY__INIT;
    (void)arg;
    if (failed)
        worker_fail(request, failed, "");
    else
        proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

void worker_handle_session_drop(void *arg, struct proto_request *request)
{
    COMMON_FAILPOINT("drop_received");
    struct worker *worker = arg;
    const Banyan__Pb__SessionDropRequest *body =
        (const Banyan__Pb__SessionDropRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    const struct worker_session *session = worker_map_get(&worker->sessions, body->session);
    bool other = session && session->life != body->life;
    if (session && (body->claim || !other)) // else it is in quarantine, and stays
        worker_session_drop(&worker->sessions, worker->store, body->session);
    if (other && body->claim)
        COMMON_FAILPOINT("quarantine_claimed");
    COMMON_FAILPOINT("drop_done");
    worker_kept_all(worker, request, drop_answer, NULL);
}

struct copied { // an answer that may wait
    uint64_t hash;
};

static void copy_answer(void *arg, struct proto_request *request, const struct common_error *failed)
{
    struct copied *copied = arg;
    Banyan__Pb__ChunkCopyReply reply = BANYAN__PB__CHUNK_COPY_REPLY__INIT;
    reply.hash = copied->hash;
    free(copied);
    if (failed)
        worker_fail(request, failed, "");
    else
        proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

void worker_handle_chunk_copy(void *arg, struct proto_request *request)
{
    COMMON_FAILPOINT("copy_received");
    struct worker *worker = arg;
    const Banyan__Pb__ChunkCopyRequest *body =
        (const Banyan__Pb__ChunkCopyRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request) ||
        worker_kept_crowded(worker, request, worker_handle_chunk_copy))
        return;
    struct common_error err;
    struct worker_session *session;
    uint64_t first = 0;
    struct copied *copied = calloc(1, sizeof *copied);
    enum common_code code =
        !copied ? common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a copy")
                : worker_session_find(&worker->sessions, body->session, body->incarnation, &session, &err);
    if (code == COMMON_OK) {
        struct worker_chunk *from = worker_store_find(worker->store, body->from_chunk);
        struct worker_chunk *to = worker_store_find(worker->store, body->chunk);
        struct worker_wants wants = {0};
        if (from && from != to && to && body->rows > 0)
            worker_wants_add_chunk(&wants, from);
        if (wants.cold || wants.failed) {
            free(copied);
            worker_warm_request(worker->warm, &wants, worker_handle_chunk_copy, request);
            return;
        }
        worker_wants_free(&wants);
        first = to ? worker_chunk_first(to) : 0;
        if (!from)
            code = common_error_set(&err, COMMON_NOT_FOUND, "chunk %" PRIu64 " is not held here",
                                    body->from_chunk);
        else if (!to || !worker_session_chunk(session, body->chunk, worker_chunk_first(to)))
            code = common_error_set(&err, COMMON_NOT_FOUND,
                                    "chunk %" PRIu64 " does not belong to session %016" PRIx64 " here",
                                    body->chunk, body->session);
        else
            code = worker_store_copy(worker->store, from, to, body->rows, &copied->hash, &err);
    }
    if (code == COMMON_OK && COMMON_FAILPOINT_FAILS("copy_done"))
        code = common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "a failpoint refuses this copy");
    if (code == COMMON_OK) {
        worker_kept_answer(worker, request, body->session, first, 1, copy_answer, copied);
        return;
    }
    free(copied);
    worker_fail(request, &err, code == COMMON_ABORTED ? "OLD_INCARNATION" : "");
}

void worker_handle_health(void *arg, struct proto_request *request)
{
    struct worker *worker = arg;
    const Banyan__Pb__HealthCheckRequest *asked = (const void *)proto_request_message(request)->body;
    Banyan__Pb__HealthCheckReply reply = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    reply.serving = !worker->draining;
    reply.version = BANYAN_VERSION;
    reply.term = worker->term;
    reply.uptime_ns = common_clock_ns() - worker->started_ns;
    if (asked->examine)
        proto_health_examine(&reply, worker_disk_path(worker->disk), worker->tls);
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}
