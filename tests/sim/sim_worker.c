// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_worker.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "proto/status.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_step.h"
#include "worker/membership.h"

#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name
#define DAEMONS      (1u << BANYAN__PB__ROLE__ROLE_WORKER | 1u << BANYAN__PB__ROLE__ROLE_COORDINATOR)

void sim_refuse(struct proto_request *request, const struct common_error *err, const char *reason)
{
    struct proto_status status;
    proto_status_set(&status, err->code, reason, "%s", err->message);
    proto_request_fail_status(request, &status);
}

bool sim_term_check(struct sim_worker *worker, uint64_t term, struct proto_request *request)
{
    if (term >= worker->term) {
        worker->term = term;
        if (worker->plans_term < term) {
            sim_plans_close(worker);
            worker->plans_term = term;
        }
        return true;
    }
    struct common_error err;
    common_error_set(&err, COMMON_ABORTED, "term %" PRIu64 " is over: term %" PRIu64 " has begun", term,
                     worker->term);
    sim_refuse(request, &err, "OLD_TERM");
    return false;
}

// ---- sessions and rows ----------------------------------------------------------------------------------

static void handle_layout_set(struct sim_worker *worker, struct proto_request *request)
{
    const Banyan__Pb__LayoutSetRequest *m = (const void *)proto_request_message(request)->body;
    struct common_error err;
    if (!sim_term_check(worker, m->term, request))
        return;
    enum common_code code = sim_rows_layout(&worker->rows, m, &err);
    if (code != COMMON_OK) {
        sim_refuse(request, &err, code == COMMON_ABORTED ? "OLD_EPOCH" : "");
        return;
    }
    Banyan__Pb__LayoutSetReply reply = BANYAN__PB__LAYOUT_SET_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void handle_session_drop(struct sim_worker *worker, struct proto_request *request)
{
    const Banyan__Pb__SessionDropRequest *m = (const void *)proto_request_message(request)->body;
    if (!sim_term_check(worker, m->term, request))
        return;
    sim_rows_drop(&worker->rows, m->session);
    Banyan__Pb__SessionDropReply reply = BANYAN__PB__SESSION_DROP_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

// One report a chunk: the rows from the first one of the range on that are there, as one range.
static void handle_rows_prepare(struct sim_worker *worker, struct proto_request *request)
{
    enum { REPORTS = 64 };
    const Banyan__Pb__RowsPrepareRequest *m = (const void *)proto_request_message(request)->body;
    struct sim_session *session;
    struct common_error err;
    if (!sim_term_check(worker, m->term, request))
        return;
    enum common_code code =
        sim_rows_check(&worker->rows, m->session, m->incarnation, m->layer, &session, &err);
    if (code != COMMON_OK) {
        sim_refuse(request, &err, code == COMMON_ABORTED ? "OLD_INCARNATION" : "");
        return;
    }
    sim_session_move(session, m->layer, m->first, m->count, SIM_ROW_PUT, SIM_ROW_PREPARED);
    Banyan__Pb__ChunkReport reports[REPORTS], *pointers[REPORTS];
    Banyan__Pb__Range ranges[REPORTS], *range_pointers[REPORTS];
    Banyan__Pb__RowsPrepareReply reply = BANYAN__PB__ROWS_PREPARE_REPLY__INIT;
    reply.chunks = pointers;
    uint64_t end = m->first + m->count;
    for (uint64_t at = m->first; at < end; at = (at / session->tokens + 1) * session->tokens) {
        const struct sim_chunk *chunk = sim_session_chunk(session, at);
        if (!chunk)
            continue;
        assert(reply.n_chunks < REPORTS);
        size_t i = reply.n_chunks++;
        uint64_t to = chunk->first + chunk->tokens < end ? chunk->first + chunk->tokens : end, n = 0,
                 hash = 0;
        for (; at + n < to; n++) {
            const struct sim_row *row = sim_chunk_row(chunk, m->layer, (uint32_t)(at + n - chunk->first));
            if (row->state == SIM_ROW_ABSENT)
                break;
            hash = hash * 31 + row->tag;
        }
        ranges[i] = (Banyan__Pb__Range)BANYAN__PB__RANGE__INIT;
        ranges[i].first = at;
        ranges[i].count = n;
        range_pointers[i] = &ranges[i];
        reports[i] = (Banyan__Pb__ChunkReport)BANYAN__PB__CHUNK_REPORT__INIT;
        reports[i].chunk = chunk->id;
        reports[i].first = chunk->first;
        reports[i].n_present = n > 0;
        reports[i].present = &range_pointers[i];
        reports[i].hash = hash;
        pointers[i] = &reports[i];
    }
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void handle_rows_commit(struct sim_worker *worker, struct proto_request *request)
{
    const Banyan__Pb__RowsCommitRequest *m = (const void *)proto_request_message(request)->body;
    struct sim_session *session;
    struct common_error err;
    if (!sim_term_check(worker, m->term, request))
        return;
    enum common_code code =
        sim_rows_check(&worker->rows, m->session, m->incarnation, m->layer, &session, &err);
    if (code == COMMON_OK && !sim_session_all(session, m->layer, m->first, m->count, SIM_ROW_PREPARED))
        code = common_error_set(&err, COMMON_FAILED_PRECONDITION, "a position of layer %u is not prepared",
                                m->layer);
    if (code != COMMON_OK) {
        sim_refuse(request, &err, code == COMMON_ABORTED ? "OLD_INCARNATION" : "");
        return;
    }
    sim_session_move(session, m->layer, m->first, m->count, SIM_ROW_PREPARED, SIM_ROW_COMMITTED);
    sim_session_move(session, m->layer, m->first, m->count, SIM_ROW_APPENDED, SIM_ROW_COMMITTED);
    Banyan__Pb__RowsCommitReply reply = BANYAN__PB__ROWS_COMMIT_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void handle_rows_abort(struct sim_worker *worker, struct proto_request *request)
{
    const Banyan__Pb__RowsAbortRequest *m = (const void *)proto_request_message(request)->body;
    struct sim_session *session;
    struct common_error err;
    if (!sim_term_check(worker, m->term, request))
        return;
    enum common_code code =
        sim_rows_check(&worker->rows, m->session, m->incarnation, m->layer, &session, &err);
    if (code != COMMON_OK) {
        sim_refuse(request, &err, code == COMMON_ABORTED ? "OLD_INCARNATION" : "");
        return;
    }
    sim_session_move(session, m->layer, m->first, m->count, SIM_ROW_PREPARED, SIM_ROW_PUT);
    Banyan__Pb__RowsAbortReply reply = BANYAN__PB__ROWS_ABORT_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void handle_chunk_copy(struct sim_worker *worker, struct proto_request *request)
{
    const Banyan__Pb__ChunkCopyRequest *m = (const void *)proto_request_message(request)->body;
    struct sim_session *session;
    struct common_error err;
    if (!sim_term_check(worker, m->term, request))
        return;
    enum common_code code = sim_rows_check(&worker->rows, m->session, m->incarnation, 0, &session, &err);
    const struct sim_chunk *from = sim_rows_chunk(&worker->rows, m->from_chunk);
    const struct sim_chunk *to = sim_rows_chunk(&worker->rows, m->chunk);
    if (code == COMMON_OK && (!from || !to))
        code = common_error_set(&err, COMMON_NOT_FOUND, "chunk %" PRIu64 " is not held here",
                                from ? m->chunk : m->from_chunk);
    if (code != COMMON_OK) {
        sim_refuse(request, &err, code == COMMON_ABORTED ? "OLD_INCARNATION" : "");
        return;
    }
    for (uint32_t layer = 0; layer < from->layers; layer++)
        for (uint32_t row = 0; row < m->rows; row++)
            if (sim_chunk_row(from, layer, row)->state >= SIM_ROW_APPENDED)
                *sim_chunk_row(to, layer, row) = *sim_chunk_row(from, layer, row);
    Banyan__Pb__ChunkCopyReply reply = BANYAN__PB__CHUNK_COPY_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

// A session a page: so that pages are always gone through.
static void handle_inventory(struct sim_worker *worker, struct proto_request *request)
{
    const Banyan__Pb__InventoryRequest *m = (const void *)proto_request_message(request)->body;
    if (!sim_term_check(worker, m->term, request))
        return;
    Banyan__Pb__InventoryReply reply = BANYAN__PB__INVENTORY_REPLY__INIT;
    const struct sim_session *session = worker->rows.sessions;
    while (session && session->id <= m->after_session)
        session = session->next;
    Banyan__Pb__InventorySession page = BANYAN__PB__INVENTORY_SESSION__INIT, *pages = &page;
    uint32_t n = session ? session->n : 0;
    Banyan__Pb__InventoryChunk *chunks = calloc(n + 1, sizeof(*chunks)),
                               **pointers = calloc(n + 1, sizeof(*pointers));
    uint32_t *layer_rows = calloc(session ? (size_t)n * session->layers + 1 : 1, sizeof(*layer_rows));
    if (!chunks || !pointers || !layer_rows)
        abort();
    for (uint32_t i = 0; i < n; i++) {
        const struct sim_chunk *chunk = session->entries[i].chunk;
        chunks[i] = (Banyan__Pb__InventoryChunk)BANYAN__PB__INVENTORY_CHUNK__INIT;
        chunks[i].chunk = chunk->id;
        chunks[i].first = chunk->first;
        chunks[i].n_layer_rows = session->layers;
        chunks[i].layer_rows = layer_rows + (size_t)i * session->layers;
        for (uint32_t layer = 0; layer < session->layers; layer++)
            chunks[i].layer_rows[layer] = sim_chunk_ready(chunk, layer);
        pointers[i] = &chunks[i];
    }
    if (session) {
        page.session = session->id;
        page.incarnation = session->incarnation;
        page.epoch = session->epoch;
        page.n_chunks = n;
        page.chunks = pointers;
        reply.n_sessions = 1;
        reply.sessions = &pages;
        reply.next_session = session->next ? session->id : 0;
    }
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
    free(chunks);
    free(pointers);
    free(layer_rows);
}

static void handle_health(struct sim_worker *worker, struct proto_request *request)
{
    Banyan__Pb__HealthCheckReply reply = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    reply.serving = true;
    reply.version = "sim";
    reply.term = worker->term;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

// ---- rules ----------------------------------------------------------------------------------------------

static void handle_now(struct sim_worker *worker, struct proto_request *request)
{
    static void (*const handlers[SIM_METHODS])(struct sim_worker *, struct proto_request *) = {
        [METHOD(HEALTH_CHECK)] = handle_health,
        [METHOD(PLAN_INSTALL)] = sim_handle_plan_install,
        [METHOD(PLAN_DROP)] = sim_handle_plan_drop,
        [METHOD(LAYOUT_SET)] = handle_layout_set,
        [METHOD(SESSION_DROP)] = handle_session_drop,
        [METHOD(ROWS_PREPARE)] = handle_rows_prepare,
        [METHOD(ROWS_COMMIT)] = handle_rows_commit,
        [METHOD(ROWS_ABORT)] = handle_rows_abort,
        [METHOD(CHUNK_COPY)] = handle_chunk_copy,
        [METHOD(INVENTORY)] = handle_inventory,
        [METHOD(STEP)] = sim_handle_step,
    };
    handlers[proto_request_message(request)->header->method](worker, request);
}

static void hold(struct sim_worker *worker, struct proto_request *request)
{
    struct sim_held *held = malloc(sizeof *held);
    if (!held)
        abort();
    *held = (struct sim_held){.request = request};
    if (!worker->held)
        worker->held_tail = &worker->held;
    *worker->held_tail = held;
    worker->held_tail = &held->next;
    worker->n_held++;
}

static struct proto_request *take_held(struct sim_worker *worker)
{
    struct sim_held *held = worker->held;
    struct proto_request *request = held->request;
    worker->held = held->next;
    worker->n_held--;
    free(held);
    return request;
}

static void handle(void *arg, struct proto_request *request)
{
    struct sim_worker *worker = arg;
    uint32_t method = proto_request_message(request)->header->method;
    struct sim_rule *rule = &worker->rules[method], now = *rule;
    worker->seen[method]++;
    if (rule->verdict != SIM_DO && rule->times && --rule->times == 0)
        rule->verdict = SIM_DO;
    struct common_error err;
    switch (now.verdict) {
    case SIM_DO:
        handle_now(worker, request);
        break;
    case SIM_FAIL:
        common_error_set(&err, now.code, "as the test orders");
        sim_refuse(request, &err, now.reason ? now.reason : "");
        break;
    case SIM_HOLD:
        hold(worker, request);
        break;
    }
}

void sim_worker_rule(struct sim_worker *worker, uint32_t method, struct sim_rule rule)
{
    assert(method < SIM_METHODS);
    worker->rules[method] = rule;
}

void sim_worker_let_go(struct sim_worker *worker)
{
    for (uint32_t n = worker->n_held; n > 0; n--)
        handle_now(worker, take_held(worker));
}

void sim_worker_fail_held(struct sim_worker *worker, enum common_code code, const char *text)
{
    for (uint32_t n = worker->n_held; n > 0; n--)
        proto_request_fail(take_held(worker), code, text, NULL, 0);
}

// ---- the process ----------------------------------------------------------------------------------------

static const struct proto_method methods[] = {
    {METHOD(HEALTH_CHECK), DAEMONS, handle}, {METHOD(PLAN_INSTALL), DAEMONS, handle},
    {METHOD(PLAN_DROP), DAEMONS, handle},    {METHOD(LAYOUT_SET), DAEMONS, handle},
    {METHOD(SESSION_DROP), DAEMONS, handle}, {METHOD(ROWS_PREPARE), DAEMONS, handle},
    {METHOD(ROWS_COMMIT), DAEMONS, handle},  {METHOD(ROWS_ABORT), DAEMONS, handle},
    {METHOD(CHUNK_COPY), DAEMONS, handle},   {METHOD(INVENTORY), DAEMONS, handle},
    {METHOD(STEP), DAEMONS, handle},         {0, 0, NULL},
};

static void stats(void *arg, struct worker_membership_stats *out)
{
    const struct sim_worker *worker = arg;
    out->steps = worker->steps;
    for (const struct sim_chunk *chunk = worker->rows.chunks; chunk; chunk = chunk->next)
        out->chunks++;
}

struct sim_worker *sim_worker_new(const struct sim_worker_options *options)
{
    struct sim_worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        abort();
    worker->options = *options;
    snprintf(worker->name, sizeof worker->name, "%s", options->name);
    snprintf(worker->host, sizeof worker->host, "%s", options->host);
    snprintf(worker->coordinator, sizeof worker->coordinator, "%s", options->coordinator);
    snprintf(worker->endpoint, sizeof worker->endpoint, "tcp://127.0.0.1:%u", options->port);
    return worker;
}

void sim_worker_start(struct sim_worker *worker)
{
    struct common_error err;
    assert(!worker->loop);
    if (common_loop_new(&worker->loop) != COMMON_OK)
        abort();
    sim_loop_name(worker->loop, worker->name);
    worker->term = worker->plans_term = 0;
    struct proto_server_options server = {.name = worker->name,
                                          .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                          .secret = worker->options.secret,
                                          .methods = methods,
                                          .arg = worker};
    struct worker_membership_options membership = {.coordinator = worker->coordinator,
                                                   .name = worker->name,
                                                   .host = worker->host,
                                                   .endpoint = worker->endpoint,
                                                   .edge_endpoint = worker->endpoint,
                                                   .kernel = "sim",
                                                   .secret = worker->options.secret,
                                                   .capacity_bytes = worker->options.capacity_bytes,
                                                   .bandwidth = worker->options.bandwidth,
                                                   .threads = 1,
                                                   .term = &worker->term,
                                                   .stats = stats,
                                                   .arg = worker};
    if (proto_server_new(worker->loop, &server, &worker->server, &err) != COMMON_OK ||
        proto_server_listen(worker->server, worker->endpoint, &err) != COMMON_OK ||
        worker_membership_new(worker->loop, &membership, &worker->membership, &err) != COMMON_OK) {
        fprintf(stderr, "sim: worker %s: %s\n", worker->name, err.message);
        abort();
    }
}

void sim_worker_kill(struct sim_worker *worker)
{
    if (!worker->loop)
        return;
    sim_loop_thaw(worker->loop);
    sim_loop_mute(worker->loop);
    sim_plans_close(worker);
    sim_worker_fail_held(worker, COMMON_UNAVAILABLE, "the process has ended");
    worker_membership_free(worker->membership);
    proto_server_close(worker->server);
    sim_loop_drain(worker->loop);
    common_loop_free(worker->loop);
    sim_rows_clear(&worker->rows);
    worker->loop = NULL;
    worker->server = NULL;
    worker->membership = NULL;
}

void sim_worker_free(struct sim_worker *worker)
{
    if (!worker)
        return;
    sim_worker_kill(worker);
    free(worker);
}

uint64_t sim_worker_put(struct sim_worker *worker, uint64_t id, uint32_t layer, uint64_t first,
                        uint64_t count, uint64_t tag)
{
    struct sim_session *session = sim_rows_session(&worker->rows, id);
    return session ? sim_session_put(session, layer, first, count, tag) : 0;
}

uint64_t sim_worker_tokens(const struct sim_worker *worker, uint64_t id, uint32_t layer)
{
    const struct sim_session *session = sim_rows_session(&worker->rows, id);
    uint64_t n = 0;
    for (uint32_t i = 0; session && i < session->n; i++)
        n += sim_chunk_ready(session->entries[i].chunk, layer);
    return n;
}
