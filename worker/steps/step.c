// SPDX-License-Identifier: Apache-2.0
// One step on one worker.
//
//   BEGINNING ──the engine has it──▶ COMPUTING ──own part ready──▶ MERGING ──engine done──▶ OVER
//                   rows are cold ┌▶  │    ▲                                        (answered, freed)
//                      WAITING ◀──┘◀──┤    │
//          (disk, memory, a step before)   │
//                   to team or device │    │ it is done
//                                     ▼    │
//                                     AWAY ┘
//                                      │
//                                      └──engine done: cancelled, plan gone──▶ ABANDONED (answered)
//                                                                                  │ it is done
//                                                                                  ▼
//   COMPUTING ──it appended, and the files have yet to take that──▶ KEEPING ──they have, or have not──▶ MERGING
//
//   BEGINNING, COMPUTING, WAITING, KEEPING ──engine done: cancelled, no memory, no time▶ OVER
//
// The frame goes to the children first. Appended rows are stored in the order of frames, before anything is
// computed. What is small is computed here, without a hand-off; the rest on the team; where K and V are a
// device's, everything there.
#include "worker/steps/step.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/loop/machine.h"
#include "common/memory/block.h"
#include "kernels/partial.h"
#include "proto/model/spec.h"
#include "worker/control/plans.h"
#include "worker/core/compute.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"
#include "worker/disk/disk.h"
#include "worker/steps/append.h"
#include "worker/steps/finish.h"
#include "worker/steps/items.h"
#include "worker/steps/probe.h"
#include "worker/steps/spans.h"

enum step_state {
    STEP_BEGINNING, // the handler still looks at it, and frees it when it is over by then
    STEP_COMPUTING,
    STEP_WAITING, // for rows that are on the disk, memory, or a step before it (follow.h); nothing has been stored yet
    STEP_AWAY,    // the team has it, or the device
    STEP_KEEPING, // its part is ready; what it appended is not in the files yet
    STEP_MERGING,
    STEP_ABANDONED,
    STEP_OVER,
    STEP_STATES
};

#define TO(state) (1u << STEP_##state)
static const struct common_machine step_machine = {
    .name = "step",
    .n = STEP_STATES,
    .states = {"beginning", "computing", "waiting", "away", "keeping", "merging", "abandoned", "over"},
    .next = {[STEP_BEGINNING] = TO(COMPUTING) | TO(OVER),
             [STEP_COMPUTING] = TO(WAITING) | TO(AWAY) | TO(KEEPING) | TO(MERGING) | TO(OVER),
             [STEP_WAITING] = TO(COMPUTING) | TO(OVER),
             [STEP_AWAY] = TO(COMPUTING) | TO(ABANDONED),
             [STEP_KEEPING] = TO(MERGING) | TO(OVER),
             [STEP_MERGING] = TO(OVER),
             [STEP_ABANDONED] = TO(OVER),
             [STEP_OVER] = 0},
};
#undef TO

#define ROOM_NS (2 * COMMON_NS_PER_S) // for so long a step waits for memory for its rows

struct worker_step {
    struct worker *worker;
    struct worker_step *prev, *next; // of worker->steps
    enum step_state state;
    struct proto_request *request; // NULL once answered
    struct proto_step *step;
    const struct reduce_engine_ops *engine;
    struct reduce_op *op; // NULL once done
    uint32_t self;        // rank
    uint64_t plan_digest;
    struct common_blob *partials;     // ours until contributed
    struct proto_step_result *result; // likewise
    struct worker_compute *compute;
    struct worker_wait *wait; // WAITING: one of the two, or behind another step
    struct worker_room *room;
    struct worker_follower follower;
    bool tried;                   // to store what it appends
    struct worker_disk_wait kept; // KEEPING
    bool *fresh; // [n_items] whether no other attempt had stored its rows; NULL: it appends nothing
    struct common_error why; // that rows did not come
    struct worker_job job;
    struct worker_device_job device_job;
    uint64_t arrived_ns, ready_ns; // ready_ns: the own part; 0: not yet
    uint64_t ended_ns;             // answered
    _Atomic uint64_t started_ns;   // first task
    bool paced;                    // worker->pace counts it now
    enum common_code failed;       // what it was answered with, where that was no result
    struct worker_spans *spans;    // NULL: nothing in it is traced
    uint64_t flight_bytes;
};

static void step_set_state(struct worker_step *s, enum step_state state)
{
    common_machine_move(&step_machine, s->state, state);
    s->state = state;
}

static void flight_add(struct worker_step *s, uint64_t bytes)
{
    s->flight_bytes += bytes;
    s->worker->flight_bytes += bytes;
}

static void step_free(struct worker_step *s)
{
    struct worker *worker = s->worker;
    assert(!s->request && !s->op && s->state == STEP_OVER);
    *(s->prev ? &s->prev->next : &worker->steps) = s->next;
    if (s->next)
        s->next->prev = s->prev;
    worker->n_steps--;
    worker->flight_bytes -= s->flight_bytes;
    worker_compute_free(s->compute);
    common_blob_unref(s->partials);
    proto_step_result_free(s->result);
    worker_spans_free(s->spans);
    proto_step_free(s->step);
    free(s->fresh);
    common_block_give(s);
    worker_hand_emptied(worker);
}

// ---- answering ----------------------------------------------------------------------------------

struct answer { // what a reply's bytes live in until they are sent
    struct common_blob *blob;
    struct proto_step_result *result;
};

static void answer_sent(void *arg)
{
    struct answer *answer = arg;
    common_blob_unref(answer->blob);
    proto_step_result_free(answer->result);
    free(answer);
}

static void step_reply(struct worker_step *s, struct common_blob *blob, struct proto_step_result *result)
{
    struct answer *answer = malloc(sizeof *answer);
    struct proto_request *request = s->request;
    s->request = NULL;
    uint64_t now = s->ended_ns = common_clock_ns();
    common_buckets_add(&s->worker->tree, s->ready_ns ? now - s->ready_ns : 0);
    proto_request_ends(request, now);
    if (!answer) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for an answer", NULL,
                           0);
        common_blob_unref(blob);
        proto_step_result_free(result);
        return;
    }
    *answer = (struct answer){blob, result};
    worker_spans_result(s->spans, COMMON_OK, result);
    COMMON_FAILPOINT("partial_answered");
    proto_step_reply(request, result, answer_sent, answer);
}

static void step_fail(struct worker_step *s, enum common_code code, enum proto_reason reason,
                      const char *text)
{
    struct proto_status status;
    struct proto_request *request = s->request;
    s->request = NULL;
    s->failed = code;
    s->ended_ns = common_clock_ns();
    proto_status_set(&status, code, reason, "%s", text);
    proto_request_fail_status(request, &status);
}

static void step_export(struct worker_step *s)
{
    if (!s->spans)
        return;
    if (s->failed != COMMON_OK)
        worker_spans_result(s->spans, s->failed, NULL);
    uint64_t started_ns = atomic_load(&s->started_ns);
    const struct worker_spans_times times = {s->arrived_ns, started_ns ? started_ns : s->ready_ns,
                                             s->ready_ns, s->ended_ns};
    worker_spans_end(s->spans, s->worker, s->step, s->self, &times);
}

static void step_done(void *arg, struct reduce_outcome *outcome)
{
    struct worker_step *s = arg;
    s->op = NULL;
    if (outcome->code != COMMON_OK) {
        bool overtaken = outcome->code == COMMON_CANCELLED && s->request;
        if (overtaken)
            step_fail(s, COMMON_ABORTED, PROTO_REASON_OLD_PLAN,
                      "the plan was replaced or dropped during the step");
        else if (s->request)
            step_fail(s, outcome->code, PROTO_REASON_NONE, outcome->text);
    } else if (s->self == 0) {
        struct common_blob *blob =
            worker_finish(s->worker, s->step, s->plan_digest, outcome->partials, outcome->result);
        common_blob_unref(outcome->partials);
        if (blob) {
            step_reply(s, blob, outcome->result);
        } else {
            proto_step_result_free(outcome->result);
            step_fail(s, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                      "the system has no memory for an answer");
        }
    } else {
        bool sent = outcome->partials && !reduce_result_empty(outcome->result);
        outcome->result->tensors[0] = sent ? outcome->partials->data : NULL;
        outcome->result->tensor_bytes[0] = sent ? outcome->partials->len : 0;
        outcome->result->n_tensors = sent ? 1 : 0;
        step_reply(s, outcome->partials, outcome->result);
    }
    s->worker->steps_done++;
    step_export(s);
    if (s->state == STEP_AWAY) {
        step_set_state(s, STEP_ABANDONED);
        if (s->worker->device)
            worker_device_cancel(s->worker->device, &s->device_job);
        else
            worker_team_cancel(s->worker->team, &s->job);
        return;
    }
    if (s->wait)
        worker_warm_cancel(s->wait);
    if (s->room)
        worker_warm_room_cancel(s->room);
    if (!s->tried)
        worker_follow_over(&s->worker->follows, &s->follower, false);
    if (s->state == STEP_KEEPING)
        worker_disk_wait_cancel(&s->kept);
    bool beginning = s->state == STEP_BEGINNING;
    step_set_state(s, STEP_OVER);
    if (!beginning)
        step_free(s);
}

static void step_cancelled(void *arg) // the caller vanished, or has no more time
{
    struct worker_step *s = arg;
    step_fail(s, COMMON_CANCELLED, PROTO_REASON_NONE, "cancelled by the caller");
    s->engine->cancel(s->op); // ends in step_done
}

// ---- the own part -------------------------------------------------------------------------------

// Everything of an item that needs the loop thread: checks, append, and what will be computed.
static enum common_code take_item(struct worker_step *s, uint32_t i, const struct kernels_partial *out,
                                  enum proto_reason *reason, struct common_error *err)
{
    const struct proto_step_item *item = &s->step->items[i];
    struct proto_step_result_item *result = &s->result->items[i];
    struct worker_session *session = worker_map_get(&s->worker->sessions, item->session);
    if (!session)
        return common_error_set(err, COMMON_NOT_FOUND, "session %016" PRIx64 " is unknown here",
                                item->session);
    if (session->incarnation != item->incarnation) {
        *reason = PROTO_REASON_OLD_INCARNATION;
        return common_error_set(err, COMMON_ABORTED, "incarnation %" PRIu64 " here, %" PRIu64 " in the step",
                                session->incarnation, item->incarnation);
    }
    if (session->epoch != item->epoch) {
        *reason = PROTO_REASON_OLD_EPOCH;
        return common_error_set(err, COMMON_ABORTED, "epoch %" PRIu64 " here, %" PRIu64 " in the step",
                                session->epoch, item->epoch);
    }
    if (session->short_of_rows) {
        *reason = PROTO_REASON_OLD_EPOCH;
        return common_error_set(err, COMMON_ABORTED, "rows of session %016" PRIx64 " are lost here",
                                item->session);
    }
    const char *problem = worker_item_problem(session, item);
    if (problem)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "%s", problem);
    bool cold = worker_any_cold(s->worker);
    if (cold && s->step->quick && worker_item_cold(s->worker, s->step, item)) { // before anything is stored
        worker_item_ahead(s->worker, item);
        *reason = PROTO_REASON_COLD;
        return common_error_set(err, COMMON_ABORTED,
                                "rows of layer %u are being read from the worker's --store", item->layer);
    }
    if (cold)
        worker_item_ahead(s->worker, item);
    if (s->step->quick && item->n_append && worker_disk_slow(s->worker->disk)) { // likewise
        *reason = PROTO_REASON_COLD;
        return common_error_set(
            err, COMMON_ABORTED,
            "the worker's --store is slow: a frame that others share does not wait for it");
    }
    uint32_t source = proto_spec_source(session->spec->pb, item->layer);
    worker_appended_confirm(session, source, item->length);
    bool first = item->n_append && session->appended[item->layer].write != item->write;
    enum common_code code = item->n_append ? worker_append_rows(s->worker, s->step, s->self, session, item,
                                                                &result->appends, reason, err)
                                           : COMMON_OK;
    if (code != COMMON_OK)
        return code;
    if (first && s->fresh)
        s->fresh[i] = true;
    struct worker_compute_item compute = {.session = session,
                                          .layer = item->layer,
                                          .source = source,
                                          .rows = item->rows,
                                          .first = item->first,
                                          .visible = item->visible,
                                          .block_first = item->block_first,
                                          .block_end = item->block_first + item->block_count,
                                          .kv_head = item->kv_head,
                                          .kv_heads = item->kv_heads,
                                          .q = (const float *)(s->step->q + item->q_offset),
                                          .out = *out};
    struct kernels_coverage cover;
    code = worker_compute_add(s->compute, &compute, &cover, &result->digest, err);
    if (code == COMMON_OK) {
        result->cover_tokens = cover.tokens;
        result->cover_sum = cover.sum;
        return code;
    }
    if (code == COMMON_FAILED_PRECONDITION)
        *reason = PROTO_REASON_FORGOTTEN;
    if (code == COMMON_RESOURCE_EXHAUSTED && s->why.code != COMMON_OK)
        common_error_set(err, code, "%.300s", s->why.message);
    if (first) // no other attempt has stored it, which may have been acknowledged
        worker_appended_settle(session, item->layer, item->write);
    return code;
}

static void take_items(struct worker_step *s)
{
    size_t offset = 0;
    s->tried = true;
    for (uint32_t i = 0; i < s->step->n_items; i++) {
        const struct proto_step_item *item = &s->step->items[i];
        struct kernels_partial out;
        struct common_error err;
        enum proto_reason reason = PROTO_REASON_NONE;
        uint8_t *block = s->partials->data + offset;
        kernels_partial_view(block, item->rows, item->q_heads, item->v_dim, &out);
        kernels_partial_pad(block, item->rows, item->q_heads, item->v_dim);
        bool failed =
            s->result->items[i].code != COMMON_OK; // before its turn: what it was to see was not stored
        if (!failed && take_item(s, i, &out, &reason, &err) != COMMON_OK) {
            worker_item_fail(s->worker, &s->result->items[i], err.code, reason, err.message);
            s->result->items[i].appends = 0;
            failed = true;
        }
        if (failed)
            kernels_partial_reset(&out);
        offset += kernels_partial_bytes(item->rows, item->q_heads, item->v_dim);
    }
}

static void step_pace_begin(struct worker_step *s)
{
    uint64_t kind;
    double work = worker_compute_work(s->compute, &kind);
    s->paced = worker_pace_begin(&s->worker->pace, work, kind, s->worker->n_prepares == 0, common_clock_ns());
}

static void step_pace_end(struct worker_step *s, bool complete)
{
    if (s->paced)
        worker_pace_end(&s->worker->pace, complete && s->worker->n_prepares == 0, common_clock_ns());
    s->paced = false;
}

static void step_contribute(struct worker_step *s);

// An item whose rows the files have not taken fails by itself, and its rows go.
static void drop_item(struct worker_step *s, uint32_t i, uint8_t *block, const struct common_error *err)
{
    const struct proto_step_item *item = &s->step->items[i];
    struct worker_session *session = worker_map_get(&s->worker->sessions, item->session);
    struct kernels_partial out;
    kernels_partial_view(block, item->rows, item->q_heads, item->v_dim, &out);
    kernels_partial_reset(&out);
    worker_item_fail(s->worker, &s->result->items[i], err->code, PROTO_REASON_FULL, err->message);
    s->result->items[i].appends = 0;
    if (s->fresh && s->fresh[i] && session->incarnation == item->incarnation)
        worker_appended_settle(session, item->layer, item->write);
}

static void step_kept(void *arg)
{
    struct worker_step *s = arg;
    uint8_t *block = s->partials->data;
    for (uint32_t i = 0; i < s->step->n_items; i++) {
        const struct proto_step_item *item = &s->step->items[i];
        const struct worker_session *session = worker_map_get(&s->worker->sessions, item->session);
        struct common_error err;
        if (item->n_append && session && s->result->items[i].code == COMMON_OK &&
            worker_disk_took(s->worker->disk, session, item->first, item->append_rows, &s->kept, &err) !=
                COMMON_OK)
            drop_item(s, i, block, &err);
        block += kernels_partial_bytes(item->rows, item->q_heads, item->v_dim);
    }
    step_contribute(s);
}

// Whether the part waits until the files have what it appended.
static bool step_keeps(struct worker_step *s)
{
    if (s->state == STEP_KEEPING || s->step->n_appends == 0 ||
        !worker_disk_wait(s->worker->disk, &s->kept, step_kept, s))
        return false;
    step_set_state(s, STEP_KEEPING);
    return true;
}

// The own part is ready. The step may be gone afterwards.
static void step_contribute(struct worker_step *s)
{
    if (step_keeps(s))
        return;
    uint64_t now = common_clock_ns(), started = atomic_load(&s->started_ns);
    struct worker *worker = s->worker;
    if (started == 0)
        started = now;
    worker->last_compute_ns = now - started;
    s->ready_ns = now;
    common_buckets_add(&worker->queue, started - s->arrived_ns);
    common_buckets_add(&worker->compute, now - started);
    if (s->step->want_trace) {
        struct proto_trace *trace = &s->result->traces[s->result->n_traces++];
        trace->rank = s->self;
        trace->queue_ns = started - s->arrived_ns;
        trace->compute_ns = now - started;
        trace->tokens = worker_compute_tokens(s->compute);
        snprintf(trace->worker, sizeof trace->worker, "%s", worker->name);
    }
    const struct worker_spans_times times = {s->arrived_ns, started, now, 0};
    worker_spans_ready(s->spans, worker, &times, worker_compute_tokens(s->compute));
    worker_compute_free(s->compute); // unpins
    s->compute = NULL;
    struct reduce_local local = {.result = s->result, .partials = s->partials, .ready_ns = now};
    s->result = NULL;
    s->partials = NULL;
    step_set_state(s, STEP_MERGING);
    s->engine->contribute(s->op, &local);
}

static void team_task(void *arg, uint32_t task, void *scratch)
{
    struct worker_step *s = arg;
    uint64_t none = 0;
    if (atomic_load_explicit(&s->started_ns, memory_order_relaxed) == 0)
        atomic_compare_exchange_strong(&s->started_ns, &none, common_clock_ns());
    worker_compute_run(s->compute, task, scratch);
}

static void give_up(struct worker_step *s, enum common_code code, const char *text)
{
    step_fail(s, code, PROTO_REASON_NONE, text);
    s->engine->cancel(s->op); // ends in step_done
}

// Back from the team or the device. False: it was abandoned, and is gone.
static bool step_back(struct worker_step *s, bool complete)
{
    bool abandoned = s->state == STEP_ABANDONED;
    step_pace_end(s, complete && !abandoned);
    step_set_state(s, abandoned ? STEP_OVER : STEP_COMPUTING);
    if (abandoned)
        step_free(s);
    return !abandoned;
}

static void team_done(void *arg, bool complete)
{
    struct worker_step *s = arg;
    if (!step_back(s, complete))
        return;
    if (complete)
        step_contribute(s);
    else
        give_up(s, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a step");
}

static void device_done(void *arg, enum common_code code, const struct common_error *err)
{
    struct worker_step *s = arg;
    if (!step_back(s, code == COMMON_OK))
        return;
    if (code == COMMON_OK)
        step_contribute(s);
    else
        give_up(s, code, err->message);
}

bool worker_scratch_ready(struct worker *worker, uint64_t bytes)
{
    if (bytes <= worker->scratch_bytes)
        return true;
    void *scratch = aligned_alloc(KERNELS_ALIGN, common_align64(bytes));
    if (!scratch)
        return false;
    free(worker->scratch);
    worker->scratch = scratch;
    worker->scratch_bytes = common_align64(bytes);
    return true;
}

static void step_compute(struct worker_step *s)
{
    uint32_t tasks = worker_compute_tasks(s->compute);
    uint64_t scratch = worker_compute_scratch(s->compute);
    uint32_t n;
    const struct kernels_device_item *items = worker_compute_device_items(s->compute, &n);
    flight_add(s, worker_compute_bytes(s->compute));
    if (items) {
        s->device_job =
            (struct worker_device_job){.items = items,
                                       .n = n,
                                       .sink = s->engine->sink ? s->engine->sink(s->op, s->partials, items, n)
                                                               : NULL,
                                       .done = device_done,
                                       .arg = s};
        step_set_state(s, STEP_AWAY);
        atomic_store(&s->started_ns, common_clock_ns());
        step_pace_begin(s);
        worker_device_submit(s->worker->device, &s->device_job);
        return;
    }
    if (worker_compute_madds(s->compute) >= s->worker->inline_madds && tasks > 0) {
        s->job = (struct worker_job){
            .tasks = tasks, .scratch_bytes = scratch, .run = team_task, .done = team_done, .arg = s};
        step_set_state(s, STEP_AWAY);
        worker_probe_stop(s->worker);
        step_pace_begin(s);
        worker_team_submit(s->worker->team, &s->job);
        return;
    }
    if (!worker_scratch_ready(s->worker, scratch)) {
        give_up(s, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a step");
        return;
    }
    step_pace_begin(s);
    for (uint32_t i = 0; i < tasks; i++)
        team_task(s, i, s->worker->scratch);
    step_pace_end(s, true);
    step_contribute(s);
}

// ---- waiting ------------------------------------------------------------------------------------

static void step_proceed(struct worker_step *s, bool may_wait);

static void rows_came(void *arg, const struct common_error *failed)
{
    struct worker_step *s = arg;
    s->wait = NULL;
    if (failed)
        s->why = *failed;
    step_set_state(s, STEP_COMPUTING);
    step_proceed(s, !failed); // items whose rows have not come fail by themselves
}

static void room_came(void *arg)
{
    struct worker_step *s = arg;
    s->room = NULL;
    step_set_state(s, STEP_COMPUTING);
    step_proceed(s, true);
}

static void step_before_went(void *arg)
{
    struct worker_step *s = arg;
    step_set_state(s, STEP_COMPUTING);
    step_proceed(s, true);
}

static bool waits_behind(struct worker_step *s)
{
    if (!worker_follow(&s->worker->follows, &s->follower))
        return false;
    step_set_state(s, STEP_WAITING);
    return true;
}

// It waits for something of its own, and those that look at what it appends behind it.
static void step_wait(struct worker_step *s)
{
    worker_follow_bring(&s->worker->follows, &s->follower);
    step_set_state(s, STEP_WAITING);
}

// Whether it waits for memory: chunks are being sealed, and will leave it.
static bool waits_for_room(struct worker_step *s)
{
    uint64_t until_ns = s->arrived_ns + ROOM_NS;
    if (!s->worker->disk || s->step->n_appends == 0 || worker_step_has_room(s->worker, s->step))
        return false;
    s->room =
        worker_warm_room(s->worker->warm, until_ns < s->step->deadline_ns ? until_ns : s->step->deadline_ns,
                         room_came, s);
    if (s->room)
        step_wait(s);
    return s->room != NULL;
}

// Whether it waits: rows that it reads are not in memory.
static bool step_waits(struct worker_step *s)
{
    struct worker_wants wants = {0};
    if (s->step->quick || !worker_any_cold(s->worker))
        return false;
    for (uint32_t i = 0; i < s->step->n_items; i++)
        worker_item_wants(s->worker, s->step, &s->step->items[i], &wants);
    s->wait =
        wants.cold ? worker_warm_wait(s->worker->warm, &wants, s->step->deadline_ns, rows_came, s) : NULL;
    worker_wants_free(&wants);
    if (s->wait)
        step_wait(s);
    return s->wait != NULL;
}

static void step_proceed(struct worker_step *s, bool may_wait)
{
    if (common_clock_ns() >= s->step->deadline_ns) { // before anything is stored
        give_up(s, COMMON_DEADLINE_EXCEEDED, "the deadline passed before the computation began");
        return;
    }
    if (may_wait && (waits_behind(s) || waits_for_room(s) || step_waits(s)))
        return;
    take_items(s);
    if (s->step->n_appends > 0)
        worker_disk_start(s->worker->disk); // its files take what it appends while it computes
    worker_follow_over(&s->worker->follows, &s->follower, true);
    step_compute(s);
}

// ---- beginning ----------------------------------------------------------------------------------

static enum common_code step_admit(struct worker *worker, const struct proto_step *step,
                                   const struct worker_plan **plan, size_t *partial_bytes,
                                   enum proto_reason *reason, struct common_error *err)
{
    if (worker->draining)
        return common_error_set(err, COMMON_UNAVAILABLE, "the worker is leaving");
    *plan = worker_map_get(&worker->plans, step->plan);
    if (!*plan || (*plan)->epoch != step->plan_epoch) {
        *reason = PROTO_REASON_OLD_PLAN;
        return common_error_set(err, COMMON_ABORTED,
                                "plan %016" PRIx64 " at epoch %" PRIu64 " is not installed here", step->plan,
                                step->plan_epoch);
    }
    uint64_t room =
        worker->flight_limit > worker->flight_bytes ? worker->flight_limit - worker->flight_bytes : 0;
    // Twice: the partials, and the answer that is made of them.
    if (worker->n_steps >= WORKER_STEPS_MAX) {
        *reason = PROTO_REASON_LIMIT;
        worker->steps_refused++;
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "the worker has reached its limit of %u steps at once", WORKER_STEPS_MAX);
    }
    if (!reduce_partials_bytes(step, room / 2, partial_bytes)) {
        *reason = PROTO_REASON_LIMIT;
        worker->flight_refused++;
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "the worker has reached its limit of %" PRIu64
                                " bytes in flight: raise its --memory",
                                worker->flight_limit);
    }
    return COMMON_OK;
}

static struct worker_step *step_new(struct worker *worker, const struct worker_plan *plan,
                                    struct proto_step *step, size_t partial_bytes)
{
    struct worker_step *s = common_block_zeros(sizeof *s);
    if (!s)
        return NULL;
    uint64_t room = worker->flight_limit - worker->flight_bytes - 2 * partial_bytes;
    s->partials = common_blob_new(partial_bytes);
    s->result = proto_step_result_new(step->n_items, step->want_trace ? plan->n : 0);
    s->compute = worker_compute_new(worker->store, step->n_items, room);
    s->fresh = step->n_appends ? calloc(step->n_items, sizeof *s->fresh) : NULL;
    if (!s->partials || !s->result || !s->compute || (step->n_appends && !s->fresh)) {
        free(s->fresh);
        common_blob_unref(s->partials);
        proto_step_result_free(s->result);
        worker_compute_free(s->compute);
        common_block_give(s);
        return NULL;
    }
    s->worker = worker;
    s->step = step;
    worker_follower_init(&s->follower, step, s->result, step_before_went, s);
    s->engine = plan->engine;
    s->self = plan->self;
    s->plan_digest = plan->digest;
    s->next = worker->steps;
    if (s->next)
        s->next->prev = s;
    worker->steps = s;
    worker->n_steps++;
    flight_add(s, 2 * partial_bytes);
    return s;
}

void worker_handle_step(void *arg, struct proto_request *request)
{
    COMMON_FAILPOINT("step_received");
    struct worker *worker = arg;
    struct proto_step *step = NULL;
    const struct worker_plan *plan = NULL;
    struct common_error err;
    enum proto_reason reason = PROTO_REASON_NONE;
    size_t partial_bytes = 0;
    if (proto_step_decode(proto_request_message(request), proto_request_deadline(request), &step, &err) !=
        COMMON_OK) {
        worker_fail(request, &err, PROTO_REASON_NONE);
        return;
    }
    if (!worker_term_check(worker, step->term, request)) {
        proto_step_free(step);
        return;
    }
    if (step_admit(worker, step, &plan, &partial_bytes, &reason, &err) != COMMON_OK) {
        worker_fail(request, &err, reason);
        proto_step_free(step);
        return;
    }
    struct worker_step *s = step_new(worker, plan, step, partial_bytes);
    if (!s) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a step", NULL,
                           0);
        proto_step_free(step);
        return;
    }
    if (s->self == 0)
        step->collective = (struct proto_collective){0}; // the root's engine decides
    s->request = request;
    s->arrived_ns = proto_request_arrived(request);
    s->spans = worker_spans_new(worker, step);
    if (s->engine->begin(plan->group, step, step_done, s, &s->op, &err) != COMMON_OK) {
        step_fail(s, err.code, PROTO_REASON_NONE, err.message);
        step_export(s);
        step_set_state(s, STEP_OVER);
        step_free(s);
        return;
    }
    proto_request_on_cancel(request, step_cancelled, s); // at once, when the caller has gone meanwhile
    if (s->state == STEP_OVER) {
        step_free(s);
        return;
    }
    step_set_state(s, STEP_COMPUTING);
    step_proceed(s, true);
}
