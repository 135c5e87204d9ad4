// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/landing.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/hash/hash.h"
#include "coordinator/cluster/edges.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/place/placing.h"
#include "coordinator/session/session.h"
#include "coordinator/steps/call.h"
#include "coordinator/steps/frame.h"
#include "coordinator/steps/item.h"
#include "coordinator/steps/queue.h"
#include "coordinator/steps/run.h"
#include "coordinator/steps/spans.h"
#include "coordinator/sync/repair.h"
#include "proto/model/spec.h"

static void take_traces(struct proto_trace **traces, uint32_t *n, const struct coordinator_frame *f,
                        const struct proto_step_result *result)
{
    for (uint32_t i = 0; i < result->n_traces; i++) {
        const struct proto_trace *t = &result->traces[i];
        uint32_t at = 0;
        while (at < *n && strcmp((*traces)[at].worker, t->worker))
            at++;
        if (at < *n) { // several frames: the parts add up
            (*traces)[at].queue_ns += t->queue_ns;
            (*traces)[at].compute_ns += t->compute_ns;
            (*traces)[at].wait_ns += t->wait_ns;
            (*traces)[at].tokens += t->tokens;
            continue;
        }
        if (at >= 1024 || t->rank >= f->queue->plan->n)
            continue;
        *traces = coordinator_frame_grown(*traces, at + 1, sizeof(**traces));
        (*traces)[at] = *t;
        (*traces)[at].parent = f->queue->plan->tree->nodes[t->rank].parent;
        *n = at + 1;
    }
}

// Copies a slab's rows to their place among all query heads.
static void scatter(const struct coordinator_item *item, const struct coordinator_slab *slab,
                    const uint8_t *from, uint8_t *to, size_t head_bytes)
{
    const struct proto_layer layer = coordinator_item_layer(item);
    size_t group = layer.q_heads / layer.kv_heads, row = layer.q_heads * head_bytes,
           part = slab->kv_heads * group * head_bytes;
    to += slab->row * row + slab->kv_head * group * head_bytes;
    if (part == row) {
        memcpy(to, from, slab->rows * row);
        return;
    }
    for (uint32_t r = 0; r < slab->rows; r++)
        memcpy(to + r * row, from + r * part, part);
}

static void slab_failed(struct coordinator_item *item, enum common_code code, enum proto_reason reason,
                        const char *text, const char *worker, bool again)
{
    if (item->failure && !item->again)
        return; // an earlier slab has decided
    proto_status_set(coordinator_item_failure(item), code, reason, "%s", text);
    if (worker[0])
        proto_status_add_worker(item->failure, worker);
    item->failure->session = item->ask.session;
    item->failure->layer = item->ask.layer;
    item->again = again;
    if (item->state == COORDINATOR_ITEM_QUEUED) { // its other slabs need not go
        coordinator_queue_leave(item);
        coordinator_item_set_state(item, COORDINATOR_ITEM_FLYING);
    }
}

static bool may_mend(enum common_code code)
{
    return code == COMMON_UNAVAILABLE || code == COMMON_ABORTED || code == COMMON_CANCELLED ||
           code == COMMON_NOT_FOUND;
}

static void frame_failed(struct coordinator_frame *f, enum common_code code, const char *text)
{
    bool ours = code == COMMON_RESOURCE_EXHAUSTED || code == COMMON_DEADLINE_EXCEEDED || may_mend(code);
    enum common_code told = code == COMMON_NOT_FOUND || code == COMMON_CANCELLED ? COMMON_UNAVAILABLE : code;
    for (uint32_t i = 0; i < f->step.n_items; i++)
        slab_failed(f->owners[i], ours ? told : COMMON_INTERNAL, PROTO_REASON_NONE, text,
                    f->queue->plan->workers[0]->name, may_mend(code));
    // The root does not know the plan (any more), or us: it would say so again.
    if (code == COMMON_NOT_FOUND || code == COMMON_ABORTED)
        coordinator_plan_retire(f->queue->plan);
}

// Rows that a holder had when the step was sent are gone, as it has said since: a new attempt says which, does without
// them, or finds them at another holder.
static bool rows_went(const struct coordinator_item *item, const struct proto_step_result_item *r)
{
    const struct coordinator_session *s = item->way.s;
    return r->code == COMMON_DATA_LOSS && r->reason == PROTO_REASON_COVERAGE && (s->missing || s->awaited);
}

// It misses rows that another slab of its append was to bring, and which may not have been stored: that one says why.
static bool is_blind(const struct coordinator_item *item, const struct proto_step_item *sent,
                     const struct proto_step_result_item *r)
{
    return item->ask.append && !item->stored && !sent->n_append && r->code == COMMON_DATA_LOSS &&
           r->reason == PROTO_REASON_COVERAGE;
}

// A holder has no memory for rows of its append, which a chunk without any may find elsewhere. Each worker says so once:
// who has is not chosen again.
static void no_memory(struct coordinator_item *item, struct coordinator_worker *w)
{
    struct coordinator_session *s = item->way.s;
    uint64_t ct = s->layout.chunk_tokens, last = item->ask.first + item->ask.rows - 1;
    bool decided = item->failure && !item->again && !item->elsewhere;
    if (coordinator_placing_refused(s, w, item->ask.first / ct, last / ct) && !decided &&
        item->refusals < coordinator_item_steps(item)->cluster->n_workers)
        item->elsewhere = true;
    item->refusals++;
}

static void slab_back(struct coordinator_item *item, const struct coordinator_frame *f, uint32_t at,
                      const struct proto_step_result_item *r)
{
    const struct proto_step_item *sent = &f->step.items[at];
    if (r->code != COMMON_OK) {
        // A member that lost its layout is not a session that does not exist: our caller decides.
        bool went = rows_went(item, r);
        enum common_code told = r->code == COMMON_NOT_FOUND || went ? COMMON_UNAVAILABLE : r->code;
        struct coordinator_worker *w =
            r->worker[0] ? coordinator_worker_find(f->queue->steps->cluster, r->worker) : NULL;
        bool unreached = r->code == COMMON_UNAVAILABLE; // by its parent: it has said nothing of its layouts
        bool again = may_mend(r->code) && r->reason != PROTO_REASON_OLD_WRITE;
        again = again || went;
        bool cold = r->reason == PROTO_REASON_COLD; // its rows are on their way into memory
        item->apart = item->apart || cold;
        bool no_plan = r->reason == PROTO_REASON_OLD_PLAN; // a member below the root does not know the plan
        if (no_plan)
            coordinator_plan_retire(f->queue->plan);
        if (w && may_mend(r->code) && !unreached && !no_plan && !cold && item->attempt > 3)
            coordinator_session_doubt(item->way.s, w);
        if (w && unreached && coordinator_edges_cut(f->queue->plan, w))
            again = false;
        if (item->blind && sent->n_append)
            item->again = true; // what decides is why the rows were not there
        if (!item->failure || item->again)
            item->blind = is_blind(item, sent, r);
        if (w && sent->n_append && r->code == COMMON_RESOURCE_EXHAUSTED && r->reason == PROTO_REASON_FULL)
            no_memory(item, w);
        slab_failed(item, told, r->reason, r->message, r->worker, again);
        return;
    }
    if (r->cover_tokens != sent->cover_tokens || r->cover_sum != sent->cover_sum ||
        r->appends < sent->cover_appends) {
        slab_failed(item, COMMON_DATA_LOSS, PROTO_REASON_COVERAGE, "the answer does not cover all tokens", "",
                    false);
        return;
    }
    item->way.digest += common_mix64(r->digest + f->nth[at]);
    item->way.slabs_left--;
    if (sent->n_append && --item->way.bands_left == 0)
        coordinator_item_acknowledge(
            item); // all its rows: a part of them would be a length that was not requested
}

// A call whose only frame this was can be answered from the result as it is.
static bool is_whole(const struct coordinator_frame *f, const struct proto_step_result *result)
{
    const struct coordinator_call *call = f->owners[0]->call;
    if (!call->request || call->out || call->n_items != f->step.n_items)
        return false;
    for (uint32_t i = 0; i < f->step.n_items; i++) {
        const struct coordinator_item *item = f->owners[i];
        if (item->call != call || item->index != i || item->way.slabs.n > 1 ||
            result->items[i].code != COMMON_OK || item->failure)
            return false;
    }
    return true;
}

static void copy_out(const struct coordinator_frame *f, const struct proto_step_result *result)
{
    const uint8_t *o = result->tensors[0], *lse = result->tensors[1];
    for (uint32_t i = 0; i < f->step.n_items; i++) {
        struct coordinator_item *item = f->owners[i];
        struct coordinator_call *call = item->call;
        const struct proto_step_item *sent = &f->step.items[i];
        size_t pairs = (size_t)sent->rows * sent->q_heads, o_bytes = pairs * sent->v_dim * sizeof(float);
        struct coordinator_slab slab;
        if (result->items[i].code == COMMON_OK && !item->failure && call->request) {
            if (coordinator_call_room(call)) {
                coordinator_slabs_at(&item->way.slabs, f->nth[i], &slab);
                scatter(item, &slab, o, call->out + item->reply.o_offset, sent->v_dim * sizeof(float));
                if (call->want_lse || item->ask.mass_bins || item->look.watched || item->look.keep)
                    scatter(item, &slab, lse, call->out + call->o_bytes + item->reply.lse_offset,
                            sizeof(float));
            } else {
                slab_failed(item, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                            "the coordinator is out of memory", "", false);
            }
        }
        o += o_bytes;
        lse += pairs * sizeof(float);
    }
}

static bool right_size(const struct coordinator_frame *f, const struct proto_step_result *result)
{
    size_t o_bytes = 0, lse_bytes = 0;
    for (uint32_t i = 0; i < f->step.n_items; i++) {
        const struct proto_step_item *sent = &f->step.items[i];
        size_t pairs = (size_t)sent->rows * sent->q_heads;
        o_bytes += pairs * sent->v_dim * sizeof(float);
        lse_bytes += pairs * sizeof(float);
    }
    return result->n_tensors == 2 && result->tensor_bytes[0] == o_bytes &&
           result->tensor_bytes[1] == lse_bytes;
}

static void look_at(struct coordinator_frame *f, const struct proto_step_result *result, uint64_t tree_ns)
{
    for (uint32_t i = 0; i < f->step.n_items; i++) {
        struct coordinator_item *item = f->owners[i];
        struct coordinator_call *call = item->call;
        if (tree_ns > call->tree_ns)
            call->tree_ns = tree_ns;
        if (result && call->want_trace && (i == 0 || f->owners[i - 1]->call != call))
            take_traces(&call->traces, &call->n_traces, f, result);
        if (result && item->look.watched && (i == 0 || f->owners[i - 1] != item))
            take_traces(&item->look.traces, &item->look.n_traces, f, result);
    }
}

void coordinator_frame_landed(void *arg, enum common_code code, const char *text,
                              struct proto_step_result *result)
{
    COMMON_FAILPOINT("frame_landed");
    struct coordinator_frame *f = arg;
    struct coordinator_queue *queue = f->queue;
    struct coordinator_steps *steps = queue->steps;
    steps->landed_ns = common_clock_ns();
    uint64_t tree_ns = steps->landed_ns - f->sent_ns;
    common_list_remove(&f->link);
    *(f->big ? &queue->big_in_flight : &queue->small_in_flight) -= 1;
    if (code == COMMON_OK && (result->n_items != f->step.n_items || !right_size(f, result))) {
        code = COMMON_INTERNAL;
        text = "a root answered a step with tensors of another size";
    }
    look_at(f, code == COMMON_OK ? result : NULL, tree_ns);
    coordinator_spans_landed(f, code, text, code == COMMON_OK ? result : NULL, steps->landed_ns);
    if (code != COMMON_OK) {
        frame_failed(f, code, text);
    } else {
        steps->count_collective += result->joined > 0;
        bool whole = is_whole(f, result);
        for (uint32_t i = 0; i < f->step.n_items; i++)
            slab_back(f->owners[i], f, i, &result->items[i]);
        if (whole && is_whole(f, result)) { // still: coverage was right too
            f->owners[0]->call->result = result;
            result = NULL;
        } else {
            copy_out(f, result);
        }
    }
    proto_step_result_free(result);
    for (uint32_t i = 0; i < f->step.n_items; i++)
        coordinator_item_landed(f->owners[i]); // may free it and what belongs to it
    coordinator_frame_recycle(steps, f);
    coordinator_queue_mark(queue);
    coordinator_plan_landed(queue->plan);
}
