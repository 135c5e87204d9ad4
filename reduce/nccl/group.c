// SPDX-License-Identifier: Apache-2.0
// A step on a rank, where the communicator carries its partials:
//
//     begin ──▶ frame to the children, with the operation's place
//       │
//     sink taken? ──yes──▶ the device's submission gives the work (before it has computed anything)
//       │ no
//     contribute ────────▶ gives the work, with what the host has
//       │
//     the tree is done: statuses, coverage, digests ──▶ not rank 0: done
//       │                                               rank 0: done when the numbers are there, too
//     cancelled, or nothing to give: an absence is given, so that no rank waits for this one
//
// A rank that never saw the frame can give nothing: the answers count who took its place, and where one is
// missing rank 0 gives the communicator up and forms another.
#include "reduce/nccl/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/hash/hash.h"
#include "common/log/log.h"
#include "common/loop/machine.h"
#include "common/secure/secret.h"
#include "kernels/partial.h"
#include "reduce/nccl/quiet.h"
#include "reduce/tree.h"

// How long rank 0 waits before it forms a communicator again: at first a tenth of its patience.
#define AGAIN_MOST_NS (60 * COMMON_NS_PER_S)
#define AGAIN_FIRST   10u
#define FAILURES_MOST 5u                 // in a row, in this process: then the engine is lost
#define SUM_MARK      UINT64_C(0x73756d) // in digests of what was added and not merged

struct nccl_op;

// A plan's way to its communicator. Ranks other than 0 know FORMING alone: in it, as far as they know.
//
//           one is made             a frame has its id          every rank is in it, and wants operations (quiet.h)
//     NONE ─────────────▶ FORMING ─────────────────────▶ TOLD ─────────────────────▶ ALL_IN
//      ▲                     │                            │ ▲─given up, or not any more─┤
//      │                     └────────────────────────────┴───────┬────────────────────┘
//      └──────left, as from every state────── BROKEN ◀──seen──────┘
enum nccl_group_state {
    NCCL_GROUP_NONE,
    NCCL_GROUP_FORMING,
    NCCL_GROUP_TOLD,
    NCCL_GROUP_ALL_IN,
    NCCL_GROUP_BROKEN,
    NCCL_GROUP_STATES
};

// A step on this rank. Ranks other than 0 have no part in its numbers once the tree is done.
//
//     TREE ──the tree is done──▶ OVER
//      └──rank 0: statuses are there, numbers are not──▶ NUMBERS ──there, or never──▶ OVER
enum nccl_op_state { NCCL_OP_TREE, NCCL_OP_NUMBERS, NCCL_OP_OVER, NCCL_OP_STATES };

struct nccl_group {
    struct reduce_group *tree;
    struct common_loop *loop;
    uint64_t plan;
    uint32_t self, n;
    int32_t *parents;
    enum nccl_group_state state;
    struct nccl_comm *comm; // NULL: NONE
    uint64_t last;          // rank 0: sequence given out
    uint64_t again_ns;      // rank 0: when one may be formed
    uint64_t pause_ns;
    uint64_t ready_ns; // rank 0: when it was first seen ready, while not all are in
    bool has_trials;   // of the plan's first communicator: what is chosen by them stays
    struct nccl_trials trials;
    struct nccl_op *ops;
    bool closing;
};

struct nccl_op {
    struct nccl_group *group;
    struct nccl_op *prev, *next;
    enum nccl_op_state state;
    struct reduce_op *tree; // NULL: it is done
    struct proto_step step; // as the children see it
    reduce_done_fn done;
    void *arg;
    struct nccl_work *work; // NULL: none, or it is over
    struct nccl_comm *comm; // that the work is of, held
    bool numbers;           // a communicator carries the partials
    bool failed;            // the work did
    enum nccl_variant variant;
    struct reduce_outcome outcome; // the tree's, in NUMBERS
    struct common_blob *out;       // the numbers, once they are there
};

struct nccl_setting nccl_setting = {.patience_ns = 10 * COMMON_NS_PER_S};
static unsigned failures; // of forming, in a row

bool nccl_engine_lost(struct common_error *err)
{
    if (failures < FAILURES_MOST)
        return false;
    common_error_set(err, COMMON_UNAVAILABLE,
                     "no communicator could be formed %u times in a row: see this "
                     "worker's log, and start it again",
                     failures);
    return true;
}

// ---- state --------------------------------------------------------------------------------------

#define TO(state) (1u << NCCL_GROUP_##state)
static const struct common_machine group_machine = {
    .name = "group",
    .n = NCCL_GROUP_STATES,
    .states = {"none", "forming", "told", "all in", "broken"},
    .next = {[NCCL_GROUP_NONE] = TO(NONE) | TO(FORMING),
             [NCCL_GROUP_FORMING] = TO(TOLD) | TO(BROKEN) | TO(NONE),
             [NCCL_GROUP_TOLD] = TO(ALL_IN) | TO(BROKEN) | TO(NONE),
             [NCCL_GROUP_ALL_IN] = TO(TOLD) | TO(BROKEN) | TO(NONE),
             [NCCL_GROUP_BROKEN] = TO(NONE)},
};
#undef TO

static void group_set_state(struct nccl_group *group, enum nccl_group_state state)
{
    common_machine_move(&group_machine, group->state, state);
    group->state = state;
}

#define TO(state) (1u << NCCL_OP_##state)
static const struct common_machine op_machine = {
    .name = "operation",
    .n = NCCL_OP_STATES,
    .states = {"tree", "numbers", "over"},
    .next = {[NCCL_OP_TREE] = TO(NUMBERS) | TO(OVER), [NCCL_OP_NUMBERS] = TO(OVER), [NCCL_OP_OVER] = 0},
};
#undef TO

static void op_set_state(struct nccl_op *op, enum nccl_op_state state)
{
    common_machine_move(&op_machine, op->state, state);
    op->state = state;
}

// ---- the communicator ---------------------------------------------------------------------------

// Rank 0: forms another one, after a pause that grows while none comes to be.
static void form_later(struct nccl_group *group)
{
    uint64_t first = nccl_setting.patience_ns / AGAIN_FIRST;
    group->pause_ns = group->pause_ns ? group->pause_ns * 2 : first;
    group->pause_ns = group->pause_ns < AGAIN_MOST_NS ? group->pause_ns : AGAIN_MOST_NS;
    group->again_ns = common_clock_ns() + group->pause_ns;
}

static void comm_changed(void *arg) // perhaps twice for one change
{
    struct nccl_group *group = arg;
    struct common_error why;
    enum nccl_comm_state state = nccl_comm_state_get(group->comm, &why);
    bool was_ready = nccl_comm_was_ready(group->comm);
    if (was_ready && !group->has_trials)
        nccl_comm_trials(group->comm, &group->trials);
    group->has_trials |= was_ready;
    if (was_ready)
        failures = 0;
    if (state != NCCL_COMM_BROKEN || group->state == NCCL_GROUP_BROKEN)
        return;
    group_set_state(group, NCCL_GROUP_BROKEN);
    failures += !was_ready && why.code == COMMON_UNAVAILABLE;
    form_later(group);
}

static void leave_comm(struct nccl_group *group)
{
    nccl_comm_release(group->comm);
    group->comm = NULL;
    group_set_state(group, NCCL_GROUP_NONE);
    group->last = 0;
    group->ready_ns = 0;
}

static void comm_form(struct nccl_group *group, uint64_t generation, const uint8_t *id)
{
    const struct nccl_comm_options options = {.loop = group->loop,
                                              .device = nccl_setting.device,
                                              .rank = group->self,
                                              .ranks = group->n,
                                              .parents = group->parents,
                                              .generation = generation,
                                              .id = id,
                                              .plan = group->plan,
                                              .patience_ns = nccl_setting.patience_ns,
                                              .changed = comm_changed,
                                              .arg = group};
    leave_comm(group);
    group->comm = nccl_comm_new(&options);
    if (group->comm)
        group_set_state(group, NCCL_GROUP_FORMING);
}

// Rank 0: forms one when there is none, or again when it is broken and some time has passed.
static void group_lead(struct nccl_group *group)
{
    uint64_t now = common_clock_ns(), generation = 0;
    struct common_error err;
    bool broken = group->comm && nccl_comm_state_get(group->comm, NULL) == NCCL_COMM_BROKEN;
    if ((group->comm && !broken) || now < group->again_ns || nccl_engine_lost(&err))
        return;
    while (generation == 0)
        if (!common_random(&generation, sizeof generation)) {
            form_later(group);
            return;
        }
    comm_form(group, generation, NULL);
    if (!group->comm)
        form_later(group); // there are too many
}

// Others: as the frame says.
static void group_follow(struct nccl_group *group, const struct proto_collective *said)
{
    bool known = group->comm && nccl_comm_generation(group->comm) == said->generation;
    if (!known && said->generation > 0 && said->id_bytes == PROTO_COLLECTIVE_ID_MAX)
        comm_form(group, said->generation, said->id);
}

static bool is_member(const struct nccl_group *group, uint64_t generation)
{
    return group->comm && nccl_comm_generation(group->comm) == generation &&
           nccl_comm_state_get(group->comm, NULL) == NCCL_COMM_READY;
}

// Rank 0: what the answers to a frame that named the communicator say of it. Their `generation` is its own
// where every rank is in it and wants operations; `joined` counts ranks that are in it, or, of a frame with
// an operation, that took their place.
static void hear_members(struct nccl_group *group, const struct nccl_op *op,
                         const struct proto_step_result *result)
{
    uint64_t asked = op->step.collective.generation;
    if (asked == 0 || !group->comm || asked != nccl_comm_generation(group->comm))
        return;
    if (group->state == NCCL_GROUP_TOLD && result->generation == asked) {
        group_set_state(group, NCCL_GROUP_ALL_IN);
        group->pause_ns = 0;
    } else if (group->state == NCCL_GROUP_ALL_IN && result->generation != asked) {
        group_set_state(group, NCCL_GROUP_TOLD); // by stream, until they say so again
        group->ready_ns = 0;
    } else if (group->state == NCCL_GROUP_TOLD && result->joined == group->n) {
        group->ready_ns = 0; // none is missing
    }
}

// Rank 0: the order of operations is no longer known.
static void give_up(struct nccl_group *group, struct nccl_comm *comm, const char *why)
{
    if (comm == group->comm && group->state == NCCL_GROUP_ALL_IN)
        group_set_state(group, NCCL_GROUP_TOLD);
    nccl_comm_break(comm, why);
}

// ---- ending -------------------------------------------------------------------------------------

// This rank has no part in it: none must wait.
static void give_absence(struct nccl_op *op)
{
    if (!op->work || op->work->given)
        return;
    op->work->source = NCCL_SOURCE_ABSENT;
    nccl_comm_give(op->comm, op->work);
}

static void op_drop(struct nccl_op *op)
{
    if (op->work && op->work->given)
        op->work->done = NULL;
    if (op->comm)
        nccl_comm_drop(op->comm);
    common_blob_unref(op->out);
    *(op->prev ? &op->prev->next : &op->group->ops) = op->next;
    if (op->next)
        op->next->prev = op->prev;
    free(op);
}

static void op_end(struct nccl_op *op, struct reduce_outcome *outcome)
{
    reduce_done_fn done = op->done;
    void *arg = op->arg;
    op_set_state(op, NCCL_OP_OVER);
    give_absence(op);
    op_drop(op);
    done(arg, outcome); // may close the group
}

static void op_fail(struct nccl_op *op, enum common_code code, const char *text)
{
    struct reduce_outcome outcome = {.code = code};
    snprintf(outcome.text, sizeof outcome.text, "%.255s", text);
    if (op->state == NCCL_OP_NUMBERS)
        proto_step_result_free(op->outcome.result);
    op_end(op, &outcome);
}

static bool any_ok(const struct proto_step_result *result)
{
    for (uint32_t i = 0; i < result->n_items; i++)
        if (result->items[i].code == COMMON_OK)
            return true;
    return false;
}

// Rank 0, statuses and numbers are there.
static void op_complete(struct nccl_op *op)
{
    struct reduce_outcome outcome = op->outcome;
    outcome.partials = op->out;
    op->out = NULL;
    size_t offset = 0;
    reduce_clear_failed(&op->step, outcome.result, outcome.partials);
    for (uint32_t i = 0; i < op->step.n_items; i++) {
        const struct proto_step_item *item = &op->step.items[i];
        kernels_partial_pad(outcome.partials->data + offset, item->rows, item->q_heads, item->v_dim);
        if (op->variant == NCCL_VARIANT_SUM)
            outcome.result->items[i].digest = common_mix64(outcome.result->items[i].digest ^ SUM_MARK);
        offset += kernels_partial_bytes(item->rows, item->q_heads, item->v_dim);
    }
    op_end(op, &outcome);
}

// No number is worth waiting for: every item has failed somewhere.
static void op_complete_without(struct nccl_op *op)
{
    size_t bytes;
    if (!reduce_partials_bytes(&op->step, PROTO_PAYLOAD_MAX, &bytes) || !(op->out = common_blob_new(bytes)))
        op_fail(op, COMMON_RESOURCE_EXHAUSTED, "out of memory for a step's result");
    else
        op_complete(op);
}

static void tree_done(void *arg, struct reduce_outcome *outcome)
{
    struct nccl_op *op = arg;
    struct nccl_group *group = op->group;
    op->tree = NULL;
    if (group->self == 0 && outcome->code == COMMON_OK) {
        hear_members(group, op, outcome->result);
        if (!op->numbers)
            outcome->result->joined = 0; // nothing was carried
    }
    if (group->self > 0 || outcome->code != COMMON_OK || !op->numbers) {
        op_end(op, outcome);
        return;
    }
    op_set_state(op, NCCL_OP_NUMBERS);
    op->outcome = *outcome;
    bool all = outcome->result->joined == group->n;
    if (!all)
        give_up(group, op->comm, "a worker did not join");
    if (!any_ok(outcome->result))
        op_complete_without(op);
    else if (!all)
        op_fail(op, COMMON_UNAVAILABLE,
                "a worker was not in the communicator: the step is repeated by stream");
    else if (op->out)
        op_complete(op);
    else if (!op->work)
        op_fail(op, COMMON_UNAVAILABLE, "the communicator broke during the step");
}

// On rank 0 the numbers are there, or will never be. Elsewhere: this rank has done its part.
static void work_done(void *arg, struct nccl_work *work)
{
    struct nccl_op *op = arg;
    bool root = op->group->self == 0;
    char text[256];
    op->work = NULL;
    op->failed = work->code != COMMON_OK;
    if (work->code == COMMON_OK && root) {
        op->out = work->out;
        work->out = NULL;
        if (op->state == NCCL_OP_NUMBERS)
            op_complete(op);
        return;
    }
    if (work->code == COMMON_OK || !root)
        return; // rank 0 checks whether all took part
    if (work->code == COMMON_FAILED_PRECONDITION && op->state == NCCL_OP_TREE)
        return; // the answers will say why a rank had no part
    size_t len = (size_t)snprintf(text, sizeof text, "step %" PRIu64 ": %.150s", op->step.step, work->text);
    if (op->tree && len < sizeof text)
        reduce_tree_missing(op->tree, text + len, sizeof text - len);
    common_log_warn("nccl: %s", text);
    if (op->state == NCCL_OP_NUMBERS) {
        op_fail(op, COMMON_UNAVAILABLE, text);
        return;
    }
    if (work->code == COMMON_UNAVAILABLE) // the tree may wait for those that hang
        reduce_tree_fail(op->tree, COMMON_UNAVAILABLE, text);
}

// ---- a step -------------------------------------------------------------------------------------

static struct nccl_op *op_new(struct nccl_group *group, const struct proto_step *step, reduce_done_fn done,
                              void *arg)
{
    struct nccl_op *op = calloc(1, sizeof *op);
    if (!op)
        return NULL;
    op->group = group;
    op->step = *step;
    op->done = done;
    op->arg = arg;
    op->next = group->ops;
    if (op->next)
        op->next->prev = op;
    group->ops = op;
    return op;
}

// The op's work, with the place that the frame has.
static bool make_work(struct nccl_op *op, size_t bytes)
{
    struct nccl_group *group = op->group;
    bool root = group->self == 0;
    struct nccl_layout layout;
    if (!nccl_layout_make(&layout, &op->step, bytes, group->parents, root ? group->n : 1))
        return false;
    struct nccl_work *work = nccl_work_new(&layout);
    if (!work) {
        nccl_layout_free(&layout);
        return false;
    }
    work->out = root ? common_blob_new(bytes) : NULL;
    if (root && !work->out) {
        nccl_work_free(work);
        return false;
    }
    op->variant = op->step.collective.variant == NCCL_VARIANT_SUM ? NCCL_VARIANT_SUM : NCCL_VARIANT_GATHER;
    work->sequence = op->step.collective.sequence;
    work->variant = op->variant;
    work->step = op->step.step;
    work->done = work_done;
    work->arg = op;
    op->work = work;
    op->comm = group->comm;
    nccl_comm_hold(op->comm);
    op->numbers = true;
    return true;
}

// Rank 0: the frame carries how to join.
static void group_invite(struct nccl_group *group, enum nccl_comm_state state, struct proto_collective *say)
{
    const uint8_t *id = nccl_comm_id(group->comm);
    if (!id)
        return;
    uint64_t now = common_clock_ns();
    if (state == NCCL_COMM_READY && group->ready_ns == 0)
        group->ready_ns = now;
    if (state == NCCL_COMM_READY && now - group->ready_ns > nccl_setting.patience_ns) {
        give_up(group, group->comm, "not all members became ready");
        return;
    }
    say->generation = nccl_comm_generation(group->comm);
    say->id_bytes = PROTO_COLLECTIVE_ID_MAX;
    memcpy(say->id, id, sizeof say->id);
}

// Rank 0: how the step's partials come up, and what the frame says of the communicator.
static void op_decide(struct nccl_op *op, size_t bytes)
{
    struct nccl_group *group = op->group;
    struct proto_collective *say = &op->step.collective;
    enum nccl_comm_state state;
    group_lead(group);
    if (!group->comm || (state = nccl_comm_state_get(group->comm, NULL)) == NCCL_COMM_BROKEN)
        return;
    if (nccl_comm_condemned(group->comm)) // answers may still name it, and all ranks be in it
        return;
    if (group->state != NCCL_GROUP_ALL_IN) {
        group_invite(group, state, say);
        return;
    }
    say->generation = nccl_comm_generation(group->comm);
    if (state != NCCL_COMM_READY || bytes > nccl_comm_bytes_max(group->comm) ||
        group->last >= nccl_comm_completed(group->comm) + NCCL_LANES)
        return;
    say->sequence = group->last + 1;
    say->variant = nccl_setting.algorithm == NCCL_ALGORITHM_AUTO  ? nccl_trials_faster(&group->trials, bytes)
                   : nccl_setting.algorithm == NCCL_ALGORITHM_SUM ? NCCL_VARIANT_SUM
                                                                  : NCCL_VARIANT_GATHER;
    if (!make_work(op, bytes))
        say->sequence = 0;
}

static enum common_code group_begin(struct reduce_group *base, const struct proto_step *step,
                                    reduce_done_fn done, void *arg, struct reduce_op **out,
                                    struct common_error *err)
{
    struct nccl_group *group = (struct nccl_group *)base;
    size_t bytes;
    bool sized = reduce_partials_bytes(step, PROTO_PAYLOAD_MAX, &bytes);
    struct nccl_op *op = op_new(group, step, done, arg);
    if (!op)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a step");
    if (group->self == 0) {
        op->step.collective = (struct proto_collective){0};
        if (sized && group->n > 1 && !group->closing)
            op_decide(op, bytes);
    } else {
        const struct proto_collective *said = &step->collective;
        group_follow(group, said);
        if (sized && said->sequence > 0 && group->comm &&
            nccl_comm_generation(group->comm) == said->generation)
            make_work(op, bytes); // or this rank does not take its place
    }
    enum common_code code = reduce_tree_begin(group->tree, &op->step, tree_done, op, &op->tree, err);
    if (code != COMMON_OK) {
        if (group->self > 0) {
            give_absence(op); // others have received it
        } else {              // no one has
            nccl_work_free(op->work);
            op->work = NULL;
        }
        op_drop(op);
        return code;
    }
    if (group->self == 0 && op->numbers)
        group->last++;
    if (group->self == 0 && op->step.collective.id_bytes > 0 && group->state == NCCL_GROUP_FORMING) {
        group_set_state(group, NCCL_GROUP_TOLD); // the frame is on its way
        nccl_comm_go(group->comm);
    }
    *out = (struct reduce_op *)op;
    return COMMON_OK;
}

static const struct kernels_device_sink *group_sink(struct reduce_op *base,
                                                    const struct common_blob *partials,
                                                    const struct kernels_device_item *items, uint32_t n)
{
    struct nccl_op *op = (struct nccl_op *)base;
    uint64_t written = 0;
    if (!op->work || op->work->given)
        return NULL;
    for (uint32_t i = 0; i < n; i++)
        written += kernels_partial_bytes(items[i].out.rows, items[i].out.heads, items[i].out.dv);
    // The rest is the identity, or of items that failed
    struct common_blob *rest =
        written < op->work->layout.bytes ? common_blob_ref((struct common_blob *)partials) : NULL;
    return nccl_comm_sink(op->comm, op->work, partials->data, rest);
}

static void group_contribute(struct reduce_op *base, const struct reduce_local *local)
{
    struct nccl_op *op = (struct nccl_op *)base;
    struct proto_step_result *result = local->result;
    uint64_t generation = op->step.collective.generation;
    if (op->work && !op->work->given && local->partials && local->partials->len == op->work->layout.bytes) {
        reduce_clear_failed(&op->step, result, local->partials);
        op->work->image = common_blob_ref(local->partials);
        op->work->source = NCCL_SOURCE_HOST;
        nccl_comm_give(op->comm, op->work);
    }
    give_absence(op);
    bool member = generation > 0 && is_member(op->group, generation);
    result->generation = member && !nccl_quiet_wanted() ? generation : 0;
    result->joined = member && (op->step.collective.sequence == 0 || (op->numbers && !op->failed));
    reduce_tree_contribute(op->tree, local);
}

static void group_cancel(struct reduce_op *base)
{
    struct nccl_op *op = (struct nccl_op *)base;
    if (op->numbers && op->tree && reduce_tree_unsent(op->tree)) // a rank without the frame cannot join
        nccl_comm_break(op->comm, "a frame was not sent");
    if (op->tree)
        reduce_tree_cancel(op->tree); // ends in tree_done
    else
        op_fail(op, COMMON_CANCELLED, "the step was cancelled");
}

// ---- a plan -------------------------------------------------------------------------------------

static void group_close(struct reduce_group *base)
{
    struct nccl_group *group = (struct nccl_group *)base;
    if (!group)
        return;
    group->closing = true;
    for (struct nccl_op *op = group->ops, *next; op; op = next) {
        next = op->next;
        if (!op->tree)
            op_fail(op, COMMON_CANCELLED, "the plan was dropped");
    }
    reduce_tree_close(group->tree);
    leave_comm(group);
    free(group->parents);
    free(group);
}

static enum common_code group_open(const struct reduce_env *env, const struct reduce_group_spec *spec,
                                   struct reduce_group **out, struct common_error *err)
{
    struct common_error why;
    if (nccl_engine_lost(&why))
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "the engine nccl is lost: %.180s",
                                why.message);
    struct nccl_group *group = calloc(1, sizeof *group);
    int32_t *parents = calloc(spec->n ? spec->n : 1, sizeof *parents);
    enum common_code code =
        group && parents ? reduce_tree_open(env, spec, &group->tree, err)
                         : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a plan");
    if (code != COMMON_OK) {
        free(group);
        free(parents);
        return code;
    }
    group->tree->bare = true;
    for (uint32_t r = 0; r < spec->n; r++)
        parents[r] = spec->members[r].parent;
    group->parents = parents;
    group->loop = env->loop;
    group->plan = spec->plan;
    group->self = spec->self;
    group->n = spec->n;
    *out = (struct reduce_group *)group;
    return COMMON_OK;
}

struct reduce_engine_ops nccl_engine = {
    .name = "nccl",
    .repeatable = true, // with gather: module.c
    .open = group_open,
    .close = group_close,
    .begin = group_begin,
    .contribute = group_contribute,
    .cancel = group_cancel,
    .sink = group_sink,
};
