// SPDX-License-Identifier: Apache-2.0
// The engine `stream`. A step on one rank:
//
//     begin ──▶ COMPUTING ──contribute──▶ GATHERING ──every child merged──▶ ENDED ──▶ done, gone
//                   │                         │                               ▲
//                   └──── cancel, close ──────┴───────────────────────────────┘
//
//     COMPUTING   frames are on their way to the children; the own partial is not there. Answers are kept.
//     GATHERING   the own partial is there. As soon as the prefix own, child 0, ... child i has come, it is
//     merged.
//
// Order of merging, whatever the order of arrival:  (((own + child 0) + child 1) + child 2) ...
// Order of sending: the deepest subtree first, as it answers last; of equals the lower rank first.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "reduce/edge.h"
#include "reduce/engine.h"
#include "reduce/plan.h"
#include "reduce/topology.h"

struct child {
    uint32_t rank, subtree;
    char name[65];
    struct reduce_edge *edge;
};

struct reduce_group {
    struct reduce_env env;
    uint32_t self, subtree;
    uint32_t n_children;
    struct child *children; // [n_children] ascending rank
    uint32_t *send_order;   // [n_children] indices
    uint32_t *child_of;     // [subtree] index of the child that a rank self + i is below; not for i = 0
    bool *holds;            // [n_children] scratch of begin
    bool closing;
    struct reduce_op *first; // steps in it
};

enum op_state { OP_COMPUTING, OP_GATHERING, OP_ENDED };

struct answer {
    struct reduce_op *op;
    struct reduce_edge_call call;
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
    reduce_done_fn done;
    void *arg;
    struct reduce_local local;
    uint32_t merged;         // children so far
    struct answer answers[]; // [n_children]
};

static void op_enter(struct reduce_op *op, enum op_state state)
{
    static const bool allowed[3][3] = {
        [OP_COMPUTING] = {[OP_GATHERING] = true, [OP_ENDED] = true},
        [OP_GATHERING] = {[OP_ENDED] = true},
    };
    assert(allowed[op->state][state]);
    op->state = state;
}

// ---- ending
// --------------------------------------------------------------------------------------------------------

static void op_end(struct reduce_op *op, struct reduce_outcome *outcome)
{
    reduce_done_fn done = op->done;
    void *arg = op->arg;
    op_enter(op, OP_ENDED);
    if (op->prev)
        op->prev->next = op->next;
    else
        op->group->first = op->next;
    if (op->next)
        op->next->prev = op->prev;
    for (uint32_t i = 0; i < op->group->n_children; i++) {
        reduce_edge_cancel(&op->answers[i].call);
        proto_step_result_free(op->answers[i].result);
    }
    if (outcome->code != COMMON_OK) {
        proto_step_result_free(op->local.result);
        common_blob_unref(op->local.partials);
    }
    free(op);
    done(arg, outcome); // may close the group
}

static void op_fail(struct reduce_op *op, enum common_code code, const char *text)
{
    struct reduce_outcome outcome = {.code = code};
    snprintf(outcome.text, sizeof outcome.text, "%s", text);
    op_end(op, &outcome);
}

// Items that failed leave as the identity: what they hold is not worth sending, and may be memory never
// written.
static void clear_failed(struct reduce_op *op)
{
    size_t offset = 0;
    for (uint32_t i = 0; i < op->step->n_items; i++) {
        const struct proto_step_item *item = &op->step->items[i];
        if (op->local.result->items[i].code != COMMON_OK) {
            struct kernels_partial view;
            kernels_partial_view(op->local.partials->data + offset, item->rows, item->q_heads, item->v_dim,
                                 &view);
            kernels_partial_reset(&view);
            kernels_partial_pad(op->local.partials->data + offset, item->rows, item->q_heads, item->v_dim);
        }
        offset += kernels_partial_bytes(item->rows, item->q_heads, item->v_dim);
    }
}

static void op_complete(struct reduce_op *op)
{
    struct proto_step_result *result = op->local.result;
    uint64_t waited_ns = common_clock_ns() - op->local.ready_ns;
    for (uint32_t i = 0; i < result->n_traces; i++) {
        if (result->traces[i].rank == op->group->self)
            result->traces[i].wait_ns = waited_ns;
    }
    clear_failed(op);
    struct reduce_outcome outcome = {.code = COMMON_OK, .result = result, .partials = op->local.partials};
    op_end(op, &outcome);
}

// ---- merging
// -------------------------------------------------------------------------------------------------------

// What a child that gave no answer stands for: every item failed, nothing was seen.
static void merge_lost(struct reduce_op *op, const struct child *child, const struct common_error *error)
{
    bool lost = error->code == COMMON_UNAVAILABLE || error->code == COMMON_DEADLINE_EXCEEDED;
    for (uint32_t i = 0; i < op->step->n_items; i++) {
        struct proto_step_result_item *item = &op->local.result->items[i];
        if (item->code != COMMON_OK)
            continue;
        item->code = error->code;
        snprintf(item->message, sizeof item->message, "worker %s: %.180s", child->name, error->message);
        snprintf(item->reason, sizeof item->reason, "%s", lost ? "WORKER_LOST" : "");
        snprintf(item->worker, sizeof item->worker, "%s", child->name);
    }
}

// The result has room for one trace a rank; a child may fill what its subtree has.
static void merge_traces(struct reduce_op *op, const struct child *child,
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
        const struct child *child = &group->children[op->merged];
        struct answer *answer = &op->answers[op->merged++];
        if (answer->result) {
            reduce_merge(op->step, op->local.partials, op->local.result, answer->result->tensors[0],
                         answer->result);
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
        return reduce_result_empty(result);
    return result->n_tensors == 1 && result->tensor_bytes[0] == op->bytes &&
           (uintptr_t)result->tensors[0] % COMMON_BLOB_ALIGN == 0;
}

static void on_answer(void *arg, enum common_code code, const char *text, struct proto_step_result *result)
{
    struct answer *answer = arg;
    struct reduce_op *op = answer->op;
    answer->arrived = true;
    if (code == COMMON_OK && answer_fits(op, result)) {
        answer->result = result;
    } else if (code == COMMON_OK) {
        common_error_set(&answer->error, COMMON_INTERNAL, "the answer does not fit the step");
        proto_step_result_free(result);
    } else {
        common_error_set(&answer->error, code, "%s", text);
    }
    op_advance(op);
}

// ---- the step
// ------------------------------------------------------------------------------------------------------

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

static enum common_code stream_begin(struct reduce_group *group, const struct proto_step *step,
                                     reduce_done_fn done, void *arg, struct reduce_op **out,
                                     struct common_error *err)
{
    size_t bytes;
    if (group->closing)
        return common_error_set(err, COMMON_CANCELLED, "the plan is being dropped");
    if (!reduce_partials_bytes(step, PROTO_PAYLOAD_MAX, &bytes))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "the step's partials have no size or pass %llu bytes",
                                (unsigned long long)PROTO_PAYLOAD_MAX);
    struct reduce_op *op = calloc(1, sizeof *op + group->n_children * sizeof *op->answers);
    if (!op)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a step");
    op->group = group;
    op->step = step;
    op->bytes = bytes;
    op->done = done;
    op->arg = arg;
    op->next = group->first;
    if (op->next)
        op->next->prev = op;
    group->first = op;

    find_holders(group, step);
    for (uint32_t i = 0; i < group->n_children; i++) {
        uint32_t c = group->send_order[i];
        struct answer *answer = &op->answers[c];
        answer->op = op;
        enum common_code code = reduce_edge_send(group->children[c].edge, &answer->call, step,
                                                 group->holds[c], on_answer, answer, &answer->error);
        if (code != COMMON_OK) {
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
    wide->n_traces = old->n_traces < op->group->subtree ? old->n_traces : op->group->subtree;
    memcpy(wide->traces, old->traces, wide->n_traces * sizeof *old->traces);
    proto_step_result_free(old);
    op->local.result = wide;
    return true;
}

static void stream_contribute(struct reduce_op *op, const struct reduce_local *local)
{
    op_enter(op, OP_GATHERING);
    op->local = *local;
    bool any_ok = false;
    for (uint32_t i = 0; i < local->result->n_items; i++)
        any_ok |= local->result->items[i].code == COMMON_OK;
    if (!local->partials && !any_ok)
        op->local.partials = common_blob_new(op->bytes); // clear_failed makes it the identity
    if ((!op->local.partials && !any_ok) || !widen_traces(op)) {
        op_fail(op, COMMON_RESOURCE_EXHAUSTED, "out of memory for a step's result");
        return;
    }
    if (op->local.result->n_items != op->step->n_items || !op->local.partials ||
        op->local.partials->len != op->bytes) {
        op_fail(op, COMMON_INTERNAL, "the worker's own partials do not fit the step");
        return;
    }
    op_advance(op);
}

static void stream_cancel(struct reduce_op *op)
{
    op_fail(op, COMMON_CANCELLED, "the step was cancelled");
}

// ---- the group
// -----------------------------------------------------------------------------------------------------

// Sizes of all subtrees, from parents alone. False: no pre-order tree.
static bool measure_subtrees(const struct reduce_group_spec *spec, uint32_t *subtree, uint32_t *next)
{
    if (spec->members[0].parent != -1)
        return false;
    for (uint32_t r = 0; r < spec->n; r++)
        subtree[r] = 1;
    for (uint32_t r = spec->n; r-- > 1;) {
        if (spec->members[r].parent < 0 || (uint32_t)spec->members[r].parent >= r)
            return false;
        subtree[spec->members[r].parent] += subtree[r];
    }
    for (uint32_t r = 0; r < spec->n; r++) { // next[r]: where its next child has to stand
        next[r] = r + 1;
        if (r > 0) {
            uint32_t parent = (uint32_t)spec->members[r].parent;
            if (next[parent] != r)
                return false;
            next[parent] += subtree[r];
        }
    }
    return true;
}

static bool text_ends(const char *text, size_t len)
{
    return memchr(text, 0, len) != NULL;
}

static enum common_code add_children(struct reduce_group *group, const struct reduce_group_spec *spec,
                                     const uint32_t *subtree, struct common_error *err)
{
    for (uint32_t r = group->self + 1; r < group->self + group->subtree; r += subtree[r]) {
        const struct reduce_group_member *member = &spec->members[r];
        if (!text_ends(member->name, sizeof member->name) ||
            !text_ends(member->edge_endpoint, sizeof member->edge_endpoint))
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "member %u: its name or endpoint does not end", r);
        struct child *child = &group->children[group->n_children];
        child->rank = r;
        child->subtree = subtree[r];
        memcpy(child->name, member->name, sizeof child->name);
        for (uint32_t i = r; i < r + subtree[r]; i++)
            group->child_of[i - group->self] = group->n_children;
        enum common_code code =
            reduce_edge_acquire(group->env.edges, member->edge_endpoint, &child->edge, err);
        if (code != COMMON_OK)
            return code;
        group->n_children++;
    }
    return COMMON_OK;
}

static bool order_sends(struct reduce_group *group, const struct reduce_group_spec *spec)
{
    int32_t *parents = calloc(spec->n, sizeof *parents);
    uint32_t *heights = calloc(spec->n, sizeof *heights), *ranks = calloc(spec->n, sizeof *ranks);
    bool ok = parents && heights && ranks;
    if (ok) {
        for (uint32_t r = 0; r < spec->n; r++)
            parents[r] = spec->members[r].parent;
        for (uint32_t c = 0; c < group->n_children; c++)
            ranks[c] = group->children[c].rank;
        reduce_topology_heights(parents, spec->n, heights);
        reduce_topology_send_order(ranks, group->n_children, heights, group->send_order);
    }
    free(ranks);
    free(heights);
    free(parents);
    return ok;
}

static void stream_close(struct reduce_group *group)
{
    if (!group)
        return;
    group->closing = true;
    while (group->first)
        op_fail(group->first, COMMON_CANCELLED, "the plan was dropped");
    for (uint32_t c = 0; c < group->n_children; c++)
        reduce_edge_release(group->children[c].edge);
    free(group->children);
    free(group->send_order);
    free(group->child_of);
    free(group->holds);
    free(group);
}

static enum common_code stream_open(const struct reduce_env *env, const struct reduce_group_spec *spec,
                                    struct reduce_group **out, struct common_error *err)
{
    if (spec->n == 0 || spec->n > REDUCE_PLAN_MEMBERS_MAX || spec->self >= spec->n)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "rank %u of %u members: a plan has 1 to %d",
                                spec->self, spec->n, REDUCE_PLAN_MEMBERS_MAX);
    if (!env->edges)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "reduce_env.edges is not set");

    enum common_code code;
    struct reduce_group *group = calloc(1, sizeof *group);
    uint32_t *subtree = calloc(spec->n, sizeof *subtree), *scratch = calloc(spec->n, sizeof *scratch);
    if (!group || !subtree || !scratch) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a plan");
        goto out;
    }
    if (!measure_subtrees(spec, subtree, scratch)) {
        code = common_error_set(err, COMMON_INVALID_ARGUMENT, "the members' parents are no pre-order tree");
        goto out;
    }
    group->env = *env;
    group->self = spec->self;
    group->subtree = subtree[spec->self];
    group->children = calloc(group->subtree, sizeof *group->children);
    group->send_order = calloc(group->subtree, sizeof *group->send_order);
    group->child_of = calloc(group->subtree, sizeof *group->child_of);
    group->holds = calloc(group->subtree, sizeof *group->holds);
    if (!group->children || !group->send_order || !group->child_of || !group->holds) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a plan");
        goto out;
    }
    code = add_children(group, spec, subtree, err);
    if (code != COMMON_OK)
        goto out;
    if (!order_sends(group, spec)) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a plan");
        goto out;
    }
    *out = group;
    group = NULL;

out:
    free(scratch);
    free(subtree);
    stream_close(group);
    return code;
}

const struct reduce_engine_ops reduce_engine_stream = {
    .name = "stream",
    .repeatable = true,
    .open = stream_open,
    .close = stream_close,
    .begin = stream_begin,
    .contribute = stream_contribute,
    .cancel = stream_cancel,
};
