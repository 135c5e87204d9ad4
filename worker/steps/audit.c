// SPDX-License-Identifier: Apache-2.0
// Audits: rows of a step that was answered, once more, over the keys of some chunks that are held here, in float64 with
// kernels/reference.h. Nothing of what serves steps takes part: no kernel, no split, no merge, no device. Where a device
// has K and V they are read from it, and computed here.
//
//   Audit ──▶ checked; chunks pinned, runs laid out (a copy, from a device) ──▶ the team: a task for each row and head
//         ◀── [rows][heads][4 + v_dim] float64 ──────────────────────────────────────────────┘
//
// A call is small (the coordinator cuts it so) and alone, and is computed on the team, so that no step waits for the loop.
#include "worker/steps/audit.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory/blob.h"
#include "kernels/reference.h"
#include "proto/model/spec.h"
#include "worker/control/plans.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"

struct worker_audit {
    struct worker *worker;
    struct proto_request *request;
    struct common_blob *blob; // of the request: q lies in it
    const Banyan__Pb__AuditRequest *body;
    const float *q; // [positions][q_heads][k_dim]
    struct worker_spec *spec;
    const struct kernels_spec *kernels;        // of the layer
    uint32_t source, group, kv_head, kv_heads; // KV heads that its query heads read
    struct worker_chunk **chunks;              // [body->n_chunks], of which the first n_pins are pinned
    size_t n_pins;
    struct kernels_run *runs; // [kv_heads][n_runs]
    uint32_t n_runs;
    uint8_t *copy;             // of a device's rows; NULL: runs point to the store
    double *out;               // [positions][q_heads][PROTO_AUDIT_HEAD + v_dim]
    uint64_t out_bytes, bytes; // bytes: of all that, counted in the worker's flight
    struct worker_job job;
};

static void audit_free(void *arg)
{
    struct worker_audit *a = arg;
    common_blob_unref(a->blob);
    worker_spec_unref(a->spec);
    free(a->chunks);
    free(a->runs);
    free(a->copy);
    free(a->out);
    free(a);
}

// Pins go, and what was counted; its answer may still be on its way.
static void let_go(struct worker_audit *a)
{
    struct worker *worker = a->worker;
    for (size_t i = 0; i < a->n_pins; i++)
        worker_store_unpin(worker->store, a->chunks[i]);
    a->n_pins = 0;
    worker->flight_bytes -= a->bytes;
    worker->n_audits--;
    worker->n_prepares--;
    worker_hand_emptied(worker);
}

// ---- computing ------------------------------------------------------------------------------------------

static void audit_task(void *arg, uint32_t task, void *scratch)
{
    const struct worker_audit *a = arg;
    const Banyan__Pb__AuditRequest *body = a->body;
    uint32_t head = body->q_head + task % body->q_heads;
    struct kernels_spec one = *a->kernels;
    struct kernels_reference_row row;
    double *out = a->out + (size_t)task * (PROTO_AUDIT_HEAD + one.v_dim);
    (void)scratch;
    one.q_heads = one.kv_heads = 1;
    one.alibi = one.alibi ? one.alibi + head : NULL;
    const struct kernels_job job = {.spec = &one,
                                    .rows = 1,
                                    .q_first = body->positions[task / body->q_heads],
                                    .visible = body->visible,
                                    .block_first = body->block_first,
                                    .block_end = body->block_first + body->block_count,
                                    .q = a->q + (size_t)task * one.k_dim,
                                    .q_row_stride = one.k_dim,
                                    .q_head_stride = one.k_dim,
                                    .runs = a->runs + (size_t)(head / a->group - a->kv_head) * a->n_runs,
                                    .run_count = a->n_runs};
    kernels_reference(&job, NULL, out + PROTO_AUDIT_HEAD, &row);
    out[0] = row.lse;
    out[1] = row.x_abs;
    out[2] = row.v_abs;
    out[3] = (double)row.keys;
}

static void audit_done(void *arg, bool complete)
{
    struct worker_audit *a = arg;
    struct proto_request *request = a->request;
    struct common_error err;
    let_go(a);
    if (!complete) {
        common_error_set(&err, COMMON_CANCELLED, "cancelled by the caller");
        worker_fail(request, &err, PROTO_REASON_NONE);
        audit_free(a);
        return;
    }
    struct common_slice piece = {a->out, a->out_bytes};
    struct proto_tensor_out tensor = {.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                      .n_dims = 1,
                                      .dims = {a->out_bytes},
                                      .pieces = &piece,
                                      .n_pieces = 1};
    Banyan__Pb__AuditReply reply = BANYAN__PB__AUDIT_REPLY__INIT;
    proto_request_reply(request, &reply.base, &tensor, 1, audit_free, a);
}

static void audit_cancelled(void *arg)
{
    struct worker_audit *a = arg;
    worker_team_cancel(a->worker->team, &a->job);
}

// ---- beginning ------------------------------------------------------------------------------------------

static enum common_code check_shape(struct worker_audit *a, const struct worker_session *session,
                                    const struct proto_message *message, struct common_error *err)
{
    const Banyan__Pb__AuditRequest *body = a->body;
    const struct worker_kind *kind = worker_spec_kind(session->spec, body->layer);
    if (!kind)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "layer %u of %u does not exist or holds nothing", body->layer,
                                session->spec->shape->layers);
    a->kernels = &kind->kernels;
    a->source = proto_spec_source(session->spec->pb, body->layer);
    a->group = kernels_spec_group(a->kernels);
    if (body->n_positions < 1 || body->n_chunks < 1)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "an audit needs rows and chunks");
    if (body->q_heads < 1 || body->q_heads > a->kernels->q_heads ||
        body->q_head > a->kernels->q_heads - body->q_heads)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "query heads out of range");
    if (body->visible < 1 || body->visible > WORKER_POSITIONS_MAX ||
        body->block_first > WORKER_POSITIONS_MAX || body->block_count > WORKER_POSITIONS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "keys or block out of range");
    for (size_t i = 0; i < body->n_positions; i++)
        if (body->positions[i] >= WORKER_POSITIONS_MAX)
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "rows out of range");
    size_t pairs = body->n_positions * body->q_heads;
    if (message->n_tensors != 1 || message->tensors[0].bytes != pairs * a->kernels->k_dim * sizeof(float))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "the size of q does not match the rows and heads");
    a->q = message->tensors[0].data;
    a->kv_head = body->q_head / a->group;
    a->kv_heads = (body->q_head + body->q_heads - 1) / a->group - a->kv_head + 1;
    a->out_bytes = pairs * (PROTO_AUDIT_HEAD + a->kernels->v_dim) * sizeof(double);
    return COMMON_OK;
}

static enum common_code find_chunk(struct worker_audit *a, const struct worker_session *session, size_t i,
                                   enum proto_reason *reason, struct common_error *err)
{
    const Banyan__Pb__AuditChunk *wanted = a->body->chunks[i];
    const struct worker_session_chunk *entry = worker_session_chunk(session, wanted->chunk, wanted->first);
    if (i > 0 && wanted->first <= a->body->chunks[i - 1]->first)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "the chunks of an audit are not in order");
    if (!entry || entry->incoming)
        return common_error_set(err, COMMON_NOT_FOUND,
                                "chunk %" PRIu64 " of session %016" PRIx64 " is not held here", wanted->chunk,
                                session->id);
    if (wanted->rows < 1 || wanted->rows > session->spec->shape->chunk_tokens)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "rows of a chunk out of range");
    if (worker_chunk_forgotten(entry->chunk, a->source)) {
        *reason = PROTO_REASON_FORGOTTEN;
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "layer %u of chunk %" PRIu64 " is forgotten",
                                a->source, wanted->chunk);
    }
    if (worker_chunk_ready(entry->chunk, a->source) < wanted->rows) {
        *reason = PROTO_REASON_HOLE;
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "%u rows of layer %u of chunk %" PRIu64 " are not all here", wanted->rows,
                                a->source, wanted->chunk);
    }
    a->chunks[i] = entry->chunk;
    return COMMON_OK;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + KERNELS_ALIGN - 1) / KERNELS_ALIGN * KERNELS_ALIGN;
}

// Bytes of a copy of so many rows of one head.
static uint64_t head_bytes(const struct worker_form *form, uint32_t rows)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < form->n_parts; i++)
        bytes += aligned((uint64_t)rows * form->row[form->parts[i]]);
    return bytes;
}

// Room for the answer, for runs, and for a copy where a device has the rows.
static enum common_code take_room(struct worker_audit *a, const struct worker_form *form,
                                  enum proto_reason *reason, struct common_error *err)
{
    struct worker *worker = a->worker;
    bool there = worker_store_device(worker->store) != NULL;
    uint64_t runs = 0, copy = 0;
    for (size_t i = 0; i < a->body->n_chunks; i++) {
        uint32_t rows = a->body->chunks[i]->rows;
        runs += there ? 1 : worker_chunk_run_count(a->chunks[i], a->source, rows);
        copy += there ? head_bytes(form, rows) * a->kv_heads : 0;
    }
    uint64_t bytes = a->out_bytes + runs * a->kv_heads * sizeof *a->runs + copy;
    uint64_t room =
        worker->flight_limit > worker->flight_bytes ? worker->flight_limit - worker->flight_bytes : 0;
    if (bytes > room) {
        *reason = PROTO_REASON_LIMIT;
        worker->flight_refused++;
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "the worker has reached its limit of %" PRIu64
                                " bytes in flight: raise its --memory",
                                worker->flight_limit);
    }
    a->n_runs = (uint32_t)runs;
    a->runs = malloc(runs * a->kv_heads * sizeof *a->runs);
    a->out = malloc(a->out_bytes);
    a->copy = copy ? aligned_alloc(KERNELS_ALIGN, copy) : NULL;
    if (!a->runs || !a->out || (copy && !a->copy))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for an audit");
    a->bytes = bytes;
    return COMMON_OK;
}

// Copies one head of a chunk, and makes a run of it. Returns where the next one goes.
static uint8_t *copy_head(const struct worker_audit *a, const struct worker_form *form, size_t i,
                          uint32_t head, uint8_t *to)
{
    uint32_t rows = a->body->chunks[i]->rows;
    uint8_t *parts[WORKER_PARTS] = {NULL};
    for (uint32_t p = 0; p < form->n_parts; p++) {
        parts[form->parts[p]] = to;
        to += aligned((uint64_t)rows * form->row[form->parts[p]]);
    }
    worker_chunk_read_head(a->chunks[i], a->source, a->kv_head + head, rows, parts);
    a->runs[(size_t)head * a->n_runs + i] =
        (struct kernels_run){.k = parts[WORKER_PART_K],
                             .v = parts[WORKER_PART_V],
                             .first = worker_chunk_first(a->chunks[i]),
                             .rows = rows,
                             .k_scale = (const float *)(const void *)parts[WORKER_PART_K_SCALE],
                             .v_scale = (const float *)(const void *)parts[WORKER_PART_V_SCALE]};
    return to;
}

static enum common_code lay_out(struct worker_audit *a, const struct worker_form *form,
                                struct common_error *err)
{
    uint8_t *to = a->copy;
    uint32_t run = 0;
    for (size_t i = 0; i < a->body->n_chunks; i++) {
        for (uint32_t head = 0; a->copy && head < a->kv_heads; head++)
            to = copy_head(a, form, i, head, to);
        if (a->copy)
            continue;
        run += worker_chunk_runs(a->chunks[i], a->source, a->kv_head, a->kv_heads, a->body->chunks[i]->rows,
                                 a->n_runs, a->runs + run);
    }
    return worker_store_check(a->worker->store, err); // what a lost device's memory gave are zeros
}

// IN_PROGRESS: some of its rows, in *wants, are on the disk alone.
static enum common_code audit_begin(struct worker_audit *a, const struct proto_message *message,
                                    struct worker_wants *wants, enum proto_reason *reason,
                                    struct common_error *err)
{
    struct worker *worker = a->worker;
    struct worker_session *session;
    if (worker->draining)
        return common_error_set(err, COMMON_UNAVAILABLE, "the worker is leaving");
    if (worker->n_audits >= WORKER_AUDITS_MAX) {
        *reason = PROTO_REASON_LIMIT;
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the worker is busy with other audits");
    }
    enum common_code code =
        worker_session_find(&worker->sessions, a->body->session, a->body->incarnation, &session, err);
    if (code == COMMON_ABORTED)
        *reason = PROTO_REASON_OLD_INCARNATION;
    if (code == COMMON_OK)
        code = check_shape(a, session, message, err);
    if (code != COMMON_OK)
        return code;
    a->chunks = calloc(a->body->n_chunks, sizeof(struct worker_chunk *));
    if (!a->chunks)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for an audit");
    for (size_t i = 0; i < a->body->n_chunks && code == COMMON_OK; i++)
        code = find_chunk(a, session, i, reason, err);
    for (size_t i = 0; i < a->body->n_chunks && code == COMMON_OK; i++)
        worker_wants_add(wants, a->chunks[i], a->source);
    if (wants->cold || wants->failed)
        return code == COMMON_OK ? COMMON_IN_PROGRESS : code;
    const struct worker_form *form = worker_shape_form(session->spec->shape, a->source);
    if (code == COMMON_OK)
        code = take_room(a, form, reason, err);
    if (code == COMMON_OK)
        code = lay_out(a, form, err);
    if (code == COMMON_OK)
        a->spec = worker_spec_ref(session->spec);
    return code;
}

void worker_handle_audit(void *arg, struct proto_request *request)
{
    struct worker *worker = arg;
    const struct proto_message *message = proto_request_message(request);
    const Banyan__Pb__AuditRequest *body = (const Banyan__Pb__AuditRequest *)message->body;
    struct common_error err;
    enum proto_reason reason = PROTO_REASON_NONE;
    if (!worker_term_check(worker, body->term, request))
        return;
    struct worker_audit *a = calloc(1, sizeof *a);
    if (!a) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for an audit", NULL,
                           0);
        return;
    }
    a->worker = worker;
    a->request = request;
    a->body = body;
    struct worker_wants wants = {0};
    enum common_code code = audit_begin(a, message, &wants, &reason, &err);
    if (code != COMMON_OK) {
        if (code == COMMON_IN_PROGRESS)
            worker_warm_request(worker->warm, &wants, worker_handle_audit, request);
        else
            worker_fail(request, &err, reason);
        worker_wants_free(&wants);
        audit_free(a);
        return;
    }
    worker_wants_free(&wants);
    a->blob = common_blob_ref(message->blob);
    for (; a->n_pins < body->n_chunks; a->n_pins++)
        worker_store_pin(a->chunks[a->n_pins]);
    worker->flight_bytes += a->bytes;
    worker->n_audits++;
    worker->n_prepares++; // what the team may still work on
    a->job = (struct worker_job){.tasks = (uint32_t)(body->n_positions * body->q_heads),
                                 .run = audit_task,
                                 .done = audit_done,
                                 .arg = a};
    worker_team_submit(worker->team, &a->job);
    proto_request_on_cancel(request, audit_cancelled, a);
}
