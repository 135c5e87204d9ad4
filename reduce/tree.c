// SPDX-License-Identifier: Apache-2.0
// A step on one rank:
//
//     begin ──▶ COMPUTING ──contribute──▶ GATHERING ──every child merged──▶ ENDED ──▶ done, gone
//                   │                         │                               ▲
//                   └──── cancel, close ──────┴───────────────────────────────┘
//
//     COMPUTING   frames are on their way to the children; the own partial is not there. Answers are kept.
//     GATHERING   the own partial is there. As soon as the prefix own, child 0, ... child i has come, it is
//                 merged.
//     ENDED       done has run. With a carrier a child's acknowledgement may still be under way: the calls
//                 stay until it is there, and the frame's bytes with them; nothing waits for that.
//
// Order of merging, whatever the order of arrival:  (((own + child 0) + child 1) + child 2) ...
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/loop/machine.h"
#include "common/memory/block.h"
#include "reduce/tree.h"

enum op_state { OP_COMPUTING, OP_GATHERING, OP_ENDED, OP_STATES };

struct answer {
    struct reduce_op *op;
    struct reduce_edge_call call;
    struct reduce_parcel *parcel; // the carrier's; NULL: none is expected (any more)
    bool arrived;
    struct proto_step_result *result; // NULL: it failed, as `error` says
    struct common_error error;
};

struct reduce_op {
    struct reduce_group *group;
    struct reduce_op *prev, *next;
    enum op_state state;
    const struct proto_step *step;
    size_t bytes; // of the packed partials
    bool bare;    // they are carried elsewhere
    reduce_done_fn done;
    void *arg;
    struct reduce_local local;
    uint32_t merged;           // children so far
    struct common_blob *frame; // that the step's bytes lie in, kept for calls that outlive it
    struct answer answers[];   // [n_children]
};

#define TO(state) (1u << OP_##state)
static const struct common_machine op_machine = {
    .name = "reduction",
    .n = OP_STATES,
    .states = {"computing", "gathering", "ended"},
    .next = {[OP_COMPUTING] = TO(GATHERING) | TO(ENDED), [OP_GATHERING] = TO(ENDED), [OP_ENDED] = 0},
};
#undef TO

static void op_enter(struct reduce_op *op, enum op_state state)
{
    common_machine_move(&op_machine, op->state, state);
    op->state = state;
}

// ---- ending -------------------------------------------------------------------------------------

static void unlink_op(struct reduce_op *op, struct reduce_op **list)
{
    if (op->prev)
        op->prev->next = op->next;
    else
        *list = op->next;
    if (op->next)
        op->next->prev = op->prev;
    op->prev = op->next = NULL;
}

static void link_op(struct reduce_op *op, struct reduce_op **list)
{
    op->next = *list;
    if (op->next)
        op->next->prev = op;
    *list = op;
}

// Of those that are ending.
static void op_free(struct reduce_op *op)
{
    unlink_op(op, &op->group->ending);
    for (uint32_t i = 0; i < op->group->n_children; i++)
        reduce_edge_cancel(&op->answers[i].call);
    common_blob_unref(op->frame);
    common_block_give(op);
}

static bool acknowledged(const struct reduce_op *op)
{
    for (uint32_t i = 0; i < op->group->n_children; i++)
        if (op->answers[i].call.state != REDUCE_EDGE_CALL_IDLE)
            return false;
    return true;
}

static void forget_parcel(struct answer *answer)
{
    struct reduce_carrier *carrier = answer->op->group->carrier;
    if (answer->parcel)
        carrier->ops->forget(carrier, answer->parcel);
    answer->parcel = NULL;
}

static void op_end(struct reduce_op *op, struct reduce_outcome *outcome)
{
    reduce_done_fn done = op->done;
    void *arg = op->arg;
    op_enter(op, OP_ENDED);
    unlink_op(op, &op->group->first);
    for (uint32_t i = 0; i < op->group->n_children; i++) {
        struct answer *answer = &op->answers[i];
        // Who was heard has the frame; with a carrier its acknowledgement is waited for.
        if (!op->group->carrier || outcome->code != COMMON_OK)
            reduce_edge_cancel(&answer->call);
        forget_parcel(answer);
        proto_step_result_free(answer->result);
    }
    if (outcome->code != COMMON_OK) {
        proto_step_result_free(op->local.result);
        common_blob_unref(op->local.partials);
    }
    link_op(op, &op->group->ending);
    if (acknowledged(op))
        op_free(op);
    done(arg, outcome); // may close the group
}

static void op_fail(struct reduce_op *op, enum common_code code, const char *text)
{
    struct reduce_outcome outcome = {.code = code};
    snprintf(outcome.text, sizeof outcome.text, "%.255s", text);
    op_end(op, &outcome);
}

static void op_complete(struct reduce_op *op)
{
    struct proto_step_result *result = op->local.result;
    uint64_t waited_ns = common_clock_ns() - op->local.ready_ns;
    for (uint32_t i = 0; i < result->n_traces; i++) {
        if (result->traces[i].rank == op->group->self)
            result->traces[i].wait_ns = waited_ns;
    }
    if (!op->bare)
        reduce_clear_failed(op->step, op->local.result, op->local.partials);
    struct reduce_outcome outcome = {.code = COMMON_OK, .result = result, .partials = op->local.partials};
    if (op->group->carrier && op->group->self > 0) {
        struct common_error err;
        const struct common_blob *sent = reduce_result_empty(result) ? NULL : op->local.partials;
        enum common_code code =
            op->group->carrier->ops->send(op->group->carrier, op->step, result, sent, &err);
        if (code != COMMON_OK) {
            op_fail(op, code, err.message);
            return;
        }
        common_blob_unref(op->local.partials);
        outcome.partials = NULL;
        result->n_traces = 0; // they went along
    }
    op_end(op, &outcome);
}

// ---- merging ------------------------------------------------------------------------------------

// What a child that gave no answer stands for: every item failed, nothing was seen.
static void merge_lost(struct reduce_op *op, const struct reduce_tree_child *child,
                       const struct common_error *error)
{
    bool lost = error->code == COMMON_UNAVAILABLE || error->code == COMMON_DEADLINE_EXCEEDED;
    op->local.result->generation = 0;
    for (uint32_t i = 0; i < op->step->n_items; i++) {
        struct proto_step_result_item *item = &op->local.result->items[i];
        if (item->code != COMMON_OK)
            continue;
        item->code = error->code;
        if (lost)
            snprintf(item->message, sizeof item->message, "the edge to a worker is down: %.180s",
                     error->message);
        else
            snprintf(item->message, sizeof item->message, "%.200s", error->message);
        // A frame as a whole is ABORTED where the plan is not known, or no longer.
        item->reason = lost                            ? PROTO_REASON_WORKER_LOST
                       : error->code == COMMON_ABORTED ? PROTO_REASON_OLD_PLAN
                                                       : PROTO_REASON_NONE;
        snprintf(item->worker, sizeof item->worker, "%s", child->name);
    }
}

// The result has room for one trace a rank; a child may fill what its subtree has.
static void merge_traces(struct reduce_op *op, const struct reduce_tree_child *child,
                         const struct proto_step_result *from)
{
    struct proto_step_result *into = op->local.result;
    if (!op->step->want_trace)
        return;
    for (uint32_t i = 0; i < from->n_traces && into->n_traces < op->group->subtree; i++) {
        uint32_t rank = from->traces[i].rank;
        if (rank >= child->rank && rank < child->rank + child->subtree)
            into->traces[into->n_traces++] = from->traces[i];
    }
}

// Merges what can be merged. The op may be gone afterwards.
static void op_advance(struct reduce_op *op)
{
    struct reduce_group *group = op->group;
    if (op->state != OP_GATHERING)
        return;
    while (op->merged < group->n_children && op->answers[op->merged].arrived) {
        const struct reduce_tree_child *child = &group->children[op->merged];
        struct answer *answer = &op->answers[op->merged++];
        if (answer->result) {
            reduce_merge(op->step, op->bare ? NULL : op->local.partials, op->local.result,
                         answer->result->tensors[0], answer->result);
            merge_traces(op, child, answer->result);
            proto_step_result_free(answer->result);
            answer->result = NULL;
        } else {
            merge_lost(op, child, &answer->error);
        }
    }
    if (op->merged == group->n_children)
        op_complete(op);
}

static bool answer_fits(const struct reduce_op *op, const struct proto_step_result *result)
{
    if (result->n_items != op->step->n_items)
        return false;
    if (result->n_tensors == 0)
        return op->bare || reduce_result_empty(result);
    if (op->bare)
        return false;
    return result->n_tensors == 1 && result->tensor_bytes[0] == op->bytes &&
           (uintptr_t)result->tensors[0] % COMMON_BLOB_ALIGN == 0;
}

// A child's result, or why there is none.
static void answer_take(struct answer *answer, enum common_code code, const char *text,
                        struct proto_step_result *result)
{
    struct reduce_op *op = answer->op;
    answer->arrived = true;
    if (result && answer_fits(op, result)) {
        answer->result = result;
    } else if (result) {
        common_error_set(&answer->error, COMMON_INTERNAL, "the answer does not fit the step");
        proto_step_result_free(result);
    } else {
        common_error_set(&answer->error, code, "%s", text);
    }
    op_advance(op);
}

// On an edge.
static void on_answer(void *arg, enum common_code code, const char *text, struct proto_step_result *result)
{
    struct answer *answer = arg;
    struct reduce_op *op = answer->op;
    struct reduce_carrier *carrier = op->group->carrier;
    if (!carrier) {
        answer_take(answer, code, text, result);
        return;
    }
    proto_step_result_free(result);
    if (op->state == OP_ENDED) {
        if (acknowledged(op))
            op_free(op);
    } else if (code == COMMON_OK && !answer->arrived) {
        carrier->ops->ring(carrier, answer->parcel); // the op may be gone
    } else if (!answer->arrived) {
        forget_parcel(answer);
        answer_take(answer, code, text, NULL);
    }
}

// From the carrier.
static void on_parcel(void *arg, enum common_code code, const char *text, struct proto_step_result *result)
{
    struct answer *answer = arg;
    answer->parcel = NULL;
    answer_take(answer, code, text, result);
}

// ---- the step -----------------------------------------------------------------------------------

// Marks the children below which an appended row is held.
static void find_holders(struct reduce_group *group, const struct proto_step *step)
{
    memset(group->holds, 0, group->n_children * sizeof *group->holds);
    for (uint32_t i = 0; step->has_kv && i < step->n_appends; i++) {
        const struct proto_append_run *run = &step->appends[i];
        for (uint32_t h = 0; h < run->n_holders; h++) {
            uint32_t below = run->holders[h] - group->self; // wraps for ranks before this one
            if (below > 0 && below < group->subtree)
                group->holds[group->child_of[below]] = true;
        }
    }
}

enum common_code reduce_tree_begin(struct reduce_group *group, const struct proto_step *step,
                                   reduce_done_fn done, void *arg, struct reduce_op **out,
                                   struct common_error *err)
{
    size_t bytes;
    if (group->closing)
        return common_error_set(err, COMMON_CANCELLED, "the plan is being dropped");
    if (step->collective.sequence > 0 && !group->bare)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "the frame names a communicator, and the plan's engine has none");
    if (!reduce_partials_bytes(step, PROTO_PAYLOAD_MAX, &bytes))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "the step's partials have no size or exceed %llu bytes",
                                (unsigned long long)PROTO_PAYLOAD_MAX);
    struct reduce_op *op = common_block_zeros(sizeof *op + group->n_children * sizeof *op->answers);
    if (!op)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a step");
    op->group = group;
    op->step = step;
    op->bytes = bytes;
    op->bare = step->collective.sequence > 0;
    op->done = done;
    op->arg = arg;
    op->frame = common_blob_ref(step->blob);
    link_op(op, &group->first);

    find_holders(group, step);
    for (uint32_t i = 0; i < group->n_children; i++) {
        uint32_t c = group->send_order[i];
        struct answer *answer = &op->answers[c];
        const struct reduce_tree_child *child = &group->children[c];
        struct reduce_carrier *carrier = group->carrier;
        enum common_code code = COMMON_OK;
        answer->op = op;
        if (carrier)
            code =
                carrier->ops->expect(carrier, step, child->rank, bytes, step->want_trace ? child->subtree : 0,
                                     on_parcel, answer, &answer->parcel, &answer->error);
        if (code == COMMON_OK)
            code = reduce_edge_send(child->edge, &answer->call, step, group->holds[c], on_answer, answer,
                                    &answer->error);
        if (code != COMMON_OK) {
            forget_parcel(answer);
            answer->error.code = code;
            answer->arrived = true;
        }
    }
    *out = op;
    return COMMON_OK;
}

// Makes room for the whole subtree's traces.
static bool widen_traces(struct reduce_op *op)
{
    struct proto_step_result *old = op->local.result;
    if (!op->step->want_trace || op->group->n_children == 0)
        return true;
    struct proto_step_result *wide = proto_step_result_new(old->n_items, op->group->subtree);
    if (!wide)
        return false;
    memcpy(wide->items, old->items, old->n_items * sizeof *old->items);
    wide->generation = old->generation;
    wide->joined = old->joined;
    wide->n_traces = old->n_traces < op->group->subtree ? old->n_traces : op->group->subtree;
    memcpy(wide->traces, old->traces, wide->n_traces * sizeof *old->traces);
    proto_step_result_free(old);
    op->local.result = wide;
    return true;
}

// False: out of memory.
static bool ready_partials(struct reduce_op *op)
{
    if (op->bare) {
        common_blob_unref(op->local.partials);
        op->local.partials = NULL;
        return true;
    }
    bool any_ok = false;
    for (uint32_t i = 0; i < op->local.result->n_items; i++)
        any_ok |= op->local.result->items[i].code == COMMON_OK;
    if (op->local.partials || any_ok)
        return true;
    op->local.partials = common_blob_new(op->bytes); // it will be made the identity
    return op->local.partials != NULL;
}

static bool own_part_fits(const struct reduce_op *op)
{
    if (op->local.result->n_items != op->step->n_items)
        return false;
    return op->bare || (op->local.partials && op->local.partials->len == op->bytes);
}

void reduce_tree_contribute(struct reduce_op *op, const struct reduce_local *local)
{
    op_enter(op, OP_GATHERING);
    op->local = *local;
    if (!ready_partials(op) || !widen_traces(op)) {
        op_fail(op, COMMON_RESOURCE_EXHAUSTED, "out of memory for a step's result");
        return;
    }
    if (!own_part_fits(op)) {
        op_fail(op, COMMON_INTERNAL, "the worker's own partials do not fit the step");
        return;
    }
    struct reduce_carrier *carrier = op->group->carrier;
    if (carrier && op->group->n_children > 0)
        carrier->ops->look(carrier);
    op_advance(op);
}

void reduce_tree_fail(struct reduce_op *op, enum common_code code, const char *text)
{
    op_fail(op, code, text);
}

void reduce_tree_cancel(struct reduce_op *op)
{
    op_fail(op, COMMON_CANCELLED, "the step was cancelled");
}

void reduce_tree_missing(const struct reduce_op *op, char *text, size_t cap)
{
    uint32_t missing = 0;
    size_t len = strlen(text);
    for (uint32_t i = 0; i < op->group->n_children; i++)
        missing += !op->answers[i].arrived;
    if (missing)
        snprintf(text + len, cap - len, "; no result from %u of %u children", missing, op->group->n_children);
}

bool reduce_tree_unsent(const struct reduce_op *op)
{
    for (uint32_t i = 0; i < op->group->n_children; i++)
        if (op->answers[i].call.state == REDUCE_EDGE_CALL_WAITING)
            return true;
    return false;
}

void reduce_tree_close(struct reduce_group *group)
{
    if (!group)
        return;
    group->closing = true;
    while (group->first)
        op_fail(group->first, COMMON_CANCELLED, "the plan was dropped");
    while (group->ending)
        op_free(group->ending);
    reduce_tree_free(group);
}
