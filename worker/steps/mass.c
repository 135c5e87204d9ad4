// SPDX-License-Identifier: Apache-2.0
// Attention masses of rows that a step has attended: for each bin of the context that has keys here, the
// partial of its keys alone, and exp(its lse - lse of all), the posterior mass of these keys
// (docs/concepts/energy.md).
//
//     MASS_NEXT ◀──its masses are taken─── MASS_COMPUTING
//      │    │                                 ▲    │
//      │    └───a round is laid out───────────┘    │
//      │                                           │
//      │ none is left; cancelled, no time,         │ no memory,
//      ▼ no room                                   ▼ the device has failed
//     MASS_OVER (answered) ◀────────────────────────
//
// A round: pairs of a band of rows and a bin.
//
// Beside steps, never in one: a step's own work, split and bits do not know of it. Rounds are small, so that
// steps pass between them.
#include "worker/steps/mass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/loop/machine.h"
#include "kernels/scalar.h"
#include "proto/model/mass.h"
#include "proto/model/spec.h"
#include "worker/control/plans.h"
#include "worker/core/compute.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"
#include "worker/steps/step.h"

enum {
    ROUND_PARTS = 64,
    ROUND_BYTES = 4 * 1024 * 1024, // of partials; a single one may be more
    BAND_BYTES = 256 * 1024,       // of one partial, for whose sake rows are cut into bands
};

enum mass_state { MASS_NEXT, MASS_COMPUTING, MASS_OVER, MASS_STATES };

#define TO(state) (1u << MASS_##state)
static const struct common_machine mass_machine = {
    .name = "mass",
    .n = MASS_STATES,
    .states = {"next", "computing", "over"},
    .next = {[MASS_NEXT] = TO(COMPUTING) | TO(OVER), [MASS_COMPUTING] = TO(NEXT) | TO(OVER), [MASS_OVER] = 0},
};
#undef TO

struct part { // of a round: rows [row, row + rows) over the keys of a bin
    uint32_t row, rows, bin;
    struct kernels_partial partial;
};

struct worker_mass {
    struct worker *worker;
    enum mass_state state;
    struct proto_request *request;
    struct common_blob *blob; // of the request: q and lse lie in it
    const float *q, *lse;
    uint64_t session, incarnation, epoch, first, visible, block_first, block_end, deadline_ns;
    uint64_t bin_tokens;
    uint32_t layer, source, rows, q_heads, kv_heads, k_dim, v_dim; // source: whose K and V the layer reads
    uint64_t *bins; // [n_bins] those that have keys here, ascending
    uint32_t n_bins;
    uint32_t band;     // rows computed at a time
    uint32_t row, bin; // what comes next
    struct kernels_coverage cover;
    bool cancelled;
    bool waited_in_vain;            // for rows that are on the disk
    struct worker_compute *compute; // of the round
    struct common_blob *partials;   // likewise
    struct part parts[ROUND_PARTS];
    uint32_t n_parts;
    struct worker_job job;
    struct worker_device_job device_job;
    struct common_mail mail; // to itself, in MASS_NEXT
    float *out;              // [rows][q_heads][n_bins]
    uint64_t out_bytes, round_bytes;
};

static void mass_set_state(struct worker_mass *m, enum mass_state state)
{
    common_machine_move(&mass_machine, m->state, state);
    m->state = state;
}

static void round_free(struct worker_mass *m)
{
    worker_compute_free(m->compute);
    common_blob_unref(m->partials);
    m->compute = NULL;
    m->partials = NULL;
    m->worker->flight_bytes -= m->round_bytes;
    m->round_bytes = 0;
    m->n_parts = 0;
}

static void mass_free(void *arg)
{
    struct worker_mass *m = arg;
    common_blob_unref(m->blob);
    free(m->bins);
    free(m->out);
    free(m);
}

// Out of the worker's hand; its answer may still be on its way.
static void mass_let_go(struct worker_mass *m)
{
    struct worker *worker = m->worker;
    round_free(m);
    worker->flight_bytes -= m->out_bytes;
    worker->n_masses--;
    worker->n_prepares--;
    worker_hand_emptied(worker);
}

static void mass_end(struct worker_mass *m, const struct common_error *err, enum proto_reason reason)
{
    struct proto_request *request = m->request;
    mass_set_state(m, MASS_OVER);
    mass_let_go(m);
    if (err) {
        worker_fail(request, err, reason);
        mass_free(m);
        return;
    }
    struct common_slice piece = {m->out, m->out_bytes};
    struct proto_tensor_out tensor = {.dtype = BANYAN__PB__DTYPE__DTYPE_F32,
                                      .n_dims = 3,
                                      .dims = {m->rows, m->q_heads, m->n_bins},
                                      .pieces = &piece,
                                      .n_pieces = 1};
    Banyan__Pb__MassReply reply = BANYAN__PB__MASS_REPLY__INIT;
    reply.cover_tokens = m->cover.tokens;
    reply.cover_sum = m->cover.sum;
    proto_request_reply(request, &reply.base, &tensor, m->n_bins > 0 ? 1 : 0, mass_free, m);
}

// ---- a round ------------------------------------------------------------------------------------

// What a part weighs of the whole, whose log-sum-exp is lse: s exp(m - lse).
static float mass_of(float m, float s, float lse)
{
    if (isnan(lse) || isnan(m) || isnan(s))
        return NAN;
    if (s == 0 || lse == -INFINITY)
        return 0;
    return (float)(s * kernels_scalar_exp((double)m - lse));
}

static void take_masses(struct worker_mass *m)
{
    for (uint32_t p = 0; p < m->n_parts; p++) {
        const struct part *part = &m->parts[p];
        size_t pairs = (size_t)part->rows * m->q_heads, at = (size_t)part->row * m->q_heads;
        for (size_t i = 0; i < pairs; i++)
            m->out[(at + i) * m->n_bins + part->bin] =
                mass_of(part->partial.m[i], part->partial.s[i], m->lse[at + i]);
    }
}

static enum common_code add_part(struct worker_mass *m, const struct worker_session *session, uint8_t *block,
                                 struct common_error *err)
{
    struct part *part = &m->parts[m->n_parts];
    uint32_t rows = m->rows - m->row < m->band ? m->rows - m->row : m->band;
    uint64_t from = m->bins[m->bin] * m->bin_tokens, end = from + m->bin_tokens, digest;
    *part = (struct part){.row = m->row, .rows = rows, .bin = m->bin};
    kernels_partial_view(block, rows, m->q_heads, m->v_dim, &part->partial);
    struct worker_compute_item item = {.session = session,
                                       .layer = m->layer,
                                       .source = m->source,
                                       .rows = rows,
                                       .first = m->first + m->row,
                                       .from = from,
                                       .visible = end < m->visible ? end : m->visible,
                                       .block_first = m->block_first,
                                       .block_end = m->block_end,
                                       .kv_heads = m->kv_heads,
                                       .q = m->q + (size_t)m->row * m->q_heads * m->k_dim,
                                       .out = part->partial};
    struct kernels_coverage cover;
    enum common_code code = worker_compute_add(m->compute, &item, &cover, &digest, err);
    if (code != COMMON_OK)
        return code;
    if (m->row == 0)
        kernels_coverage_add(&m->cover, &cover);
    m->n_parts++;
    if (++m->bin == m->n_bins) {
        m->bin = 0;
        m->row += rows;
    }
    return COMMON_OK;
}

static enum common_code find_session(const struct worker_mass *m, struct worker_session **out,
                                     enum proto_reason *reason, struct common_error *err)
{
    enum common_code code = worker_session_find(&m->worker->sessions, m->session, m->incarnation, out, err);
    if (code == COMMON_ABORTED)
        *reason = PROTO_REASON_OLD_INCARNATION;
    if (code != COMMON_OK || ((*out)->epoch == m->epoch && !(*out)->short_of_rows))
        return code;
    *reason = PROTO_REASON_OLD_EPOCH;
    return common_error_set(err, COMMON_ABORTED, "epoch %" PRIu64 " here, %" PRIu64 " in the call",
                            (*out)->epoch, m->epoch);
}

static enum common_code round_lay_out(struct worker_mass *m, enum proto_reason *reason,
                                      struct common_error *err)
{
    struct worker *worker = m->worker;
    struct worker_session *session;
    enum common_code code = find_session(m, &session, reason, err);
    if (code != COMMON_OK)
        return code;
    uint64_t each = kernels_partial_bytes(m->band, m->q_heads, m->v_dim);
    uint64_t fit = each < ROUND_BYTES ? ROUND_BYTES / each : 1;
    uint64_t left = (uint64_t)((m->rows - m->row + m->band - 1) / m->band) * m->n_bins - m->bin;
    fit = fit < ROUND_PARTS ? fit : ROUND_PARTS;
    fit = fit < left ? fit : left;
    uint64_t room =
        worker->flight_limit > worker->flight_bytes ? worker->flight_limit - worker->flight_bytes : 0;
    if (fit * each > room) {
        *reason = PROTO_REASON_LIMIT;
        worker->flight_refused++;
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "the worker has reached its limit of %" PRIu64
                                " bytes in flight: raise its --memory",
                                worker->flight_limit);
    }
    m->partials = common_blob_new(fit * each);
    m->compute = worker_compute_new(worker->store, (uint32_t)fit, room - fit * each);
    if (!m->partials || !m->compute)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for masses");
    for (uint64_t i = 0; i < fit && code == COMMON_OK; i++)
        code = add_part(m, session, m->partials->data + i * each, err);
    if (code == COMMON_FAILED_PRECONDITION)
        *reason = PROTO_REASON_FORGOTTEN;
    m->round_bytes = fit * each + worker_compute_bytes(m->compute);
    worker->flight_bytes += m->round_bytes;
    return code;
}

// ---- running ------------------------------------------------------------------------------------

static void mass_proceed(void *arg);

static void round_done(struct worker_mass *m)
{
    take_masses(m);
    round_free(m);
    mass_set_state(m, MASS_NEXT);
}

static void team_done(void *arg, bool complete)
{
    struct worker_mass *m = arg;
    struct common_error err;
    if (complete) {
        round_done(m);
        mass_proceed(m);
        return;
    }
    common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for masses");
    mass_end(m, &err, PROTO_REASON_NONE);
}

static void team_task(void *arg, uint32_t task, void *scratch)
{
    worker_compute_run(((struct worker_mass *)arg)->compute, task, scratch);
}

static void device_done(void *arg, enum common_code code, const struct common_error *err)
{
    struct worker_mass *m = arg;
    if (code == COMMON_OK) {
        round_done(m);
        mass_proceed(m);
        return;
    }
    struct common_error why = *err;
    mass_end(m, &why, PROTO_REASON_NONE);
}

static void mass_compute(struct worker_mass *m)
{
    struct worker *worker = m->worker;
    uint32_t n, tasks = worker_compute_tasks(m->compute);
    uint64_t scratch = worker_compute_scratch(m->compute);
    const struct kernels_device_item *items = worker_compute_device_items(m->compute, &n);
    mass_set_state(m, MASS_COMPUTING);
    if (items) {
        m->device_job = (struct worker_device_job){.items = items, .n = n, .done = device_done, .arg = m};
        worker_device_submit(worker->device, &m->device_job);
        return;
    }
    if (tasks > 0 && worker_compute_madds(m->compute) >= worker->inline_madds) {
        m->job = (struct worker_job){
            .tasks = tasks, .scratch_bytes = scratch, .run = team_task, .done = team_done, .arg = m};
        worker_team_submit(worker->team, &m->job);
        return;
    }
    if (!worker_scratch_ready(worker, scratch)) {
        team_done(m, false);
        return;
    }
    for (uint32_t i = 0; i < tasks; i++)
        worker_compute_run(m->compute, i, worker->scratch);
    round_done(m);
    common_loop_mail(worker->loop, &m->mail, mass_proceed, m); // steps that wait go first
}

static void rows_came(void *arg, const struct common_error *failed)
{
    struct worker_mass *m = arg;
    m->waited_in_vain = failed != NULL;
    mass_proceed(m);
}

// Whether it waits for rows of the layer that are not in memory.
static bool mass_waits(struct worker_mass *m)
{
    struct worker_session *session;
    struct common_error err;
    enum proto_reason reason;
    struct worker_wants wants = {0};
    if (m->waited_in_vain || find_session(m, &session, &reason, &err) != COMMON_OK)
        return false;
    const struct worker_compute_item all = {.session = session,
                                            .layer = m->layer,
                                            .source = m->source,
                                            .rows = m->rows,
                                            .first = m->first,
                                            .visible = m->visible,
                                            .block_first = m->block_first,
                                            .block_end = m->block_end};
    worker_compute_wants(&all, &wants);
    bool waits = wants.cold && worker_warm_wait(m->worker->warm, &wants, m->deadline_ns, rows_came, m);
    worker_wants_free(&wants);
    return waits;
}

static void mass_proceed(void *arg)
{
    struct worker_mass *m = arg;
    struct common_error err;
    enum proto_reason reason = PROTO_REASON_NONE;
    if (m->cancelled) {
        common_error_set(&err, COMMON_CANCELLED, "cancelled by the caller");
        mass_end(m, &err, PROTO_REASON_NONE);
    } else if (m->worker->draining) {
        common_error_set(&err, COMMON_UNAVAILABLE, "the worker is leaving");
        mass_end(m, &err, PROTO_REASON_NONE);
    } else if (common_clock_ns() >= m->deadline_ns) {
        common_error_set(&err, COMMON_DEADLINE_EXCEEDED, "the deadline passed before the computation began");
        mass_end(m, &err, PROTO_REASON_NONE);
    } else if (m->row == m->rows || m->n_bins == 0) {
        mass_end(m, NULL, PROTO_REASON_NONE);
    } else if (mass_waits(m)) {
        return;
    } else if (round_lay_out(m, &reason, &err) != COMMON_OK) {
        mass_end(m, &err, reason);
    } else {
        mass_compute(m);
    }
}

static void mass_cancelled(void *arg)
{
    ((struct worker_mass *)arg)->cancelled = true; // seen before the next round
}

// ---- beginning ----------------------------------------------------------------------------------

// The bins that have keys here. False: out of memory.
static bool list_bins(struct worker_mass *m, const struct worker_session *session)
{
    uint32_t n, from = worker_session_span(session, 0, m->visible, &n);
    uint64_t bins = (m->visible + m->bin_tokens - 1) / m->bin_tokens; // limited by check_shape
    m->bins = malloc(bins * sizeof *m->bins);
    if (!m->bins)
        return false;
    for (uint32_t i = from; i < from + n; i++) {
        uint64_t bin = worker_chunk_first(session->chunks[i].chunk) / m->bin_tokens;
        if (session->chunks[i].compute && (m->n_bins == 0 || m->bins[m->n_bins - 1] != bin))
            m->bins[m->n_bins++] = bin;
    }
    return true;
}

static enum common_code check_shape(struct worker_mass *m, const Banyan__Pb__MassRequest *body,
                                    const struct proto_message *message, const struct worker_session *session,
                                    struct common_error *err)
{
    const struct worker_kind *kind = worker_spec_kind(session->spec, body->layer);
    uint64_t chunk = session->spec->shape->chunk_tokens;
    if (!kind)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "layer %u of %u does not exist or holds nothing", body->layer,
                                session->spec->shape->layers);
    const struct kernels_spec *spec = &kind->kernels;
    if (body->visible == 0 || body->visible > WORKER_POSITIONS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "keys out of range");
    if (body->block_first > WORKER_POSITIONS_MAX || body->block_count > WORKER_POSITIONS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "block out of range");
    if (body->rows < 1 || body->rows > PROTO_STEP_ROWS_MAX || body->first >= WORKER_POSITIONS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "rows out of range");
    if (body->bin_chunks < 1)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "a bin needs chunks");
    m->bin_tokens = body->bin_chunks * chunk;
    uint64_t bins = (body->visible + m->bin_tokens - 1) / m->bin_tokens;
    if (bins > PROTO_MASS_BINS_MAX || (uint64_t)body->rows * spec->q_heads * bins > PROTO_MASS_VALUES_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "%" PRIu64
                                " bins of %u rows and %u heads are more than %u bins, or %u values",
                                bins, body->rows, spec->q_heads, PROTO_MASS_BINS_MAX, PROTO_MASS_VALUES_MAX);
    uint64_t pairs = (uint64_t)body->rows * spec->q_heads;
    if (message->n_tensors != 2 || message->tensors[0].bytes != pairs * spec->k_dim * sizeof(float) ||
        message->tensors[1].bytes != pairs * sizeof(float))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "masses need q and lse of all the rows' query heads");
    m->source = proto_spec_source(session->spec->pb, body->layer);
    m->q_heads = spec->q_heads;
    m->kv_heads = spec->kv_heads;
    m->k_dim = spec->k_dim;
    m->v_dim = spec->v_dim;
    m->rows = body->rows;
    m->block_first = body->block_first;
    m->block_end = body->block_first + body->block_count;
    m->first = body->first;
    m->q = message->tensors[0].data;
    m->lse = message->tensors[1].data;
    uint64_t each = kernels_partial_bytes(1, m->q_heads, m->v_dim), band = BAND_BYTES / each;
    m->band = band < 1 ? 1 : band < m->rows ? (uint32_t)band : m->rows;
    return COMMON_OK;
}

static enum common_code mass_begin(struct worker_mass *m, const Banyan__Pb__MassRequest *body,
                                   const struct proto_message *message, enum proto_reason *reason,
                                   struct common_error *err)
{
    struct worker *worker = m->worker;
    struct worker_session *session;
    if (worker->draining)
        return common_error_set(err, COMMON_UNAVAILABLE, "the worker is leaving");
    m->session = body->session;
    m->incarnation = body->incarnation;
    m->epoch = body->epoch;
    m->layer = body->layer;
    m->visible = body->visible;
    enum common_code code = find_session(m, &session, reason, err);
    if (code == COMMON_OK)
        code = check_shape(m, body, message, session, err);
    if (code != COMMON_OK)
        return code;
    if (!list_bins(m, session))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for masses");
    m->out_bytes = (uint64_t)m->rows * m->q_heads * m->n_bins * sizeof(float);
    uint64_t room =
        worker->flight_limit > worker->flight_bytes ? worker->flight_limit - worker->flight_bytes : 0;
    if (worker->n_masses >= WORKER_MASSES_MAX || m->out_bytes > room) {
        *reason = PROTO_REASON_LIMIT;
        worker->flight_refused++;
        m->out_bytes = 0;
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "the worker has reached its limit of %" PRIu64
                                " bytes in flight: raise its --memory",
                                worker->flight_limit);
    }
    m->out = malloc(m->out_bytes + 1);
    if (!m->out)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for masses");
    return COMMON_OK;
}

void worker_handle_mass(void *arg, struct proto_request *request)
{
    struct worker *worker = arg;
    const struct proto_message *message = proto_request_message(request);
    const Banyan__Pb__MassRequest *body = (const Banyan__Pb__MassRequest *)message->body;
    struct common_error err;
    enum proto_reason reason = PROTO_REASON_NONE;
    if (!worker_term_check(worker, body->term, request))
        return;
    struct worker_mass *m = calloc(1, sizeof *m);
    if (!m) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for masses", NULL,
                           0);
        return;
    }
    m->worker = worker;
    if (mass_begin(m, body, message, &reason, &err) != COMMON_OK) {
        worker_fail(request, &err, reason);
        mass_free(m);
        return;
    }
    m->request = request;
    m->blob = common_blob_ref(message->blob);
    m->deadline_ns = proto_request_deadline(request);
    worker->flight_bytes += m->out_bytes;
    worker->n_masses++;
    worker->n_prepares++; // what the team may still work on
    proto_request_on_cancel(request, mass_cancelled, m);
    mass_proceed(m);
}
