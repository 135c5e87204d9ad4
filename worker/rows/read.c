// SPDX-License-Identifier: Apache-2.0
// Serving rows: to another worker, which makes a copy of the chunk (pull.c), and to clients with a ticket.
#include "worker/rows/read.h"

#include <stdlib.h>

#include "common/base/failpoint.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"
#include "worker/rows/pull.h"
#include "worker/rows/ticket.h"

// The rows of the chunk that are asked for: all of them there, and never to change.
static enum common_code find_rows(const struct worker *worker, const Banyan__Pb__ChunkReadRequest *body,
                                  uint64_t incarnation, struct worker_rows *out, struct common_error *err)
{
    struct worker_session *session;
    enum common_code code = worker_session_check(&worker->sessions, body->session, incarnation, body->layer,
                                                 body->first, body->count, &session, err);
    if (code != COMMON_OK)
        return code;
    struct worker_chunk *chunk = worker_store_find(worker->store, body->chunk);
    if (!chunk || !worker_session_chunk(session, body->chunk, worker_chunk_first(chunk)))
        return common_error_set(err, COMMON_NOT_FOUND,
                                "chunk %" PRIu64 " of session %016" PRIx64 " is not held here", body->chunk,
                                body->session);
    uint64_t first = worker_chunk_first(chunk), tokens = worker_chunk_shape(chunk)->chunk_tokens;
    if (body->first < first || body->first - first >= tokens || body->count > tokens - (body->first - first))
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "the rows are not all of chunk %" PRIu64,
                                body->chunk);
    const struct worker_form *form = worker_shape_form(worker_chunk_shape(chunk), body->layer);
    if (body->count > 1 && body->count * (form->k_wire + form->v_wire) > PROTO_READ_BYTES_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "more than %" PRIu64 " bytes in one read",
                                PROTO_READ_BYTES_MAX);
    *out = (struct worker_rows){
        .chunk = chunk, .layer = body->layer, .row = (uint32_t)(body->first - first), .count = body->count};
    if (worker_chunk_forgotten(chunk, body->layer))
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "layer %u of chunk %" PRIu64 " is forgotten",
                                body->layer, body->chunk);
    uint32_t n = worker_chunk_rows_at(chunk, out->layer, out->row, out->count, WORKER_ROW_PREPARED);
    if (n < out->count)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "position %" PRIu64 " of layer %u is not here", body->first + n, body->layer);
    return COMMON_OK;
}

static void bytes_sent(void *blob)
{
    common_blob_unref(blob);
}

static const char *reason_of(enum common_code code, const struct worker_rows *rows)
{
    bool forgotten = rows->chunk && worker_chunk_forgotten(rows->chunk, rows->layer);
    return code == COMMON_ABORTED               ? "OLD_INCARNATION"
           : forgotten                          ? "FORGOTTEN"
           : code == COMMON_FAILED_PRECONDITION ? "HOLE"
                                                : "";
}

static void read_rows(struct worker *worker, struct proto_request *request,
                      const Banyan__Pb__ChunkReadRequest *body, uint64_t incarnation,
                      void (*handle)(void *worker, struct proto_request *request))
{
    COMMON_FAILPOINT("read_received");
    struct common_error err;
    struct worker_rows rows = {0};
    enum common_code code = find_rows(worker, body, incarnation, &rows, &err);
    if (code != COMMON_OK) {
        worker_fail(request, &err, reason_of(code, &rows));
        return;
    }
    struct worker_wants wants = {0};
    if (worker_chunk_cold(rows.chunk, rows.layer)) {
        worker_wants_add(&wants, rows.chunk, rows.layer);
        worker_warm_request(worker->warm, &wants, handle, request);
        return;
    }
    worker_chunk_touch(worker->store, rows.chunk, rows.layer);
    const struct worker_form *form = worker_shape_form(worker_chunk_shape(rows.chunk), rows.layer);
    size_t k_bytes = rows.count * form->k_wire, v_bytes = rows.count * form->v_wire;
    proto_request_charge(request, k_bytes + v_bytes);
    struct common_blob *blob = common_blob_new(k_bytes + v_bytes);
    Banyan__Pb__ChunkReadReply reply = BANYAN__PB__CHUNK_READ_REPLY__INIT;
    if (blob)
        worker_chunk_read(rows.chunk, rows.layer, rows.row, rows.count, blob->data, blob->data + k_bytes);
    if (!blob || !worker_chunk_sum(rows.chunk, rows.layer, rows.row, rows.count, &reply.sum)) {
        common_blob_unref(blob);
        if (worker_store_check(worker->store, &err) == COMMON_OK)
            common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for rows to send");
        worker_fail(request, &err, "");
        return;
    }
    struct common_slice k = {blob->data, k_bytes}, v = {blob->data + k_bytes, v_bytes};
    struct proto_tensor_out tensors[2] = {
        {.dtype = BANYAN__PB__DTYPE__DTYPE_U8, .n_dims = 1, .dims = {k_bytes}, .pieces = &k, .n_pieces = 1},
        {.dtype = BANYAN__PB__DTYPE__DTYPE_U8, .n_dims = 1, .dims = {v_bytes}, .pieces = &v, .n_pieces = 1}};
    // V of a latent session lies in K: a tensor has one dimension of 1 at least.
    proto_request_reply(request, &reply.base, tensors, v_bytes ? 2 : 1, bytes_sent, blob);
}

void worker_handle_chunk_read(void *arg, struct proto_request *request)
{
    const Banyan__Pb__ChunkReadRequest *body = (const void *)proto_request_message(request)->body;
    read_rows(arg, request, body, body->incarnation, worker_handle_chunk_read);
}

// Of a chunk that is forgotten in part another worker takes all, and a client what is not: below, there may be nothing
// but what a session that was born with its floor was filled with.
static enum common_code check_forgotten(const struct worker *worker, const Banyan__Pb__ChunkReadRequest *body,
                                        uint64_t incarnation, struct common_error *err)
{
    struct worker_session *session;
    enum common_code code = worker_session_check(&worker->sessions, body->session, incarnation, body->layer,
                                                 body->first, body->count, &session, err);
    if (code != COMMON_OK || body->first >= worker_session_forgotten(session, body->layer))
        return COMMON_OK; // whatever else is wrong is found later
    return common_error_set(err, COMMON_FAILED_PRECONDITION,
                            "rows of layer %u below position %" PRIu64 " are forgotten", body->layer,
                            worker_session_forgotten(session, body->layer));
}

// Clients name no incarnation: it is the ticket's.
void worker_handle_client_read(void *arg, struct proto_request *request)
{
    const Banyan__Pb__ChunkReadRequest *body = (const void *)proto_request_message(request)->body;
    struct proto_ticket ticket;
    struct common_error err;
    enum common_code code = worker_ticket_check(
        arg, &body->ticket,
        &(struct worker_wanted){PROTO_TICKET_READ, body->session, body->first, body->count}, &ticket, &err);
    if (code != COMMON_OK) {
        worker_fail(request, &err, code == COMMON_FAILED_PRECONDITION ? "OLD_TICKET" : "");
    } else if (check_forgotten(arg, body, ticket.incarnation, &err) != COMMON_OK) {
        worker_fail(request, &err, "FORGOTTEN");
    } else {
        read_rows(arg, request, body, ticket.incarnation, worker_handle_client_read);
    }
}
