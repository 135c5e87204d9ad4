// SPDX-License-Identifier: Apache-2.0
// Who watches the sessions of chaos_test, beside those who make their steps.
#include "common/base/clock.h"
#include "coordinator/state.h"
#include "coordinator/steps/watch.h"
#include "tests/sim/chaos.h"
#include "tests/sim/sim_watch.h"

#define LATEST_NS (200 * COMMON_NS_PER_MS) // before its deadline a watch is answered

void chaos_start_watch(struct model *m)
{
    struct op *op = chaos_op_new(WATCH, m, (uint32_t)sim_random(LAYERS + 1), 0, 1 + (uint32_t)sim_random(6));
    bool trace = sim_random(2);
    struct sim_wish wish = {.steps = op->rows,
                            .layer = op->layer,
                            .wait_ns = sim_random(3 * COMMON_NS_PER_S),
                            .mass_bins = trace && sim_random(2) ? 0 : 1 + (uint32_t)sim_random(8),
                            .mass_heads = sim_random(2),
                            .trace = trace,
                            .from = chaos_from};
    op->first = sim_clock() + wish.wait_ns; // until when it waits
    op->wants_trace = trace;
    op->wants_mass = wish.mass_bins != 0;
    op->call = sim_watch(chaos_a_client(), m->id, &wish);
}

// Whether a client has made this step, and it was not refused for good.
static bool was_made(const struct model *m, const struct sim_watched *step)
{
    for (uint32_t i = 0; i < chaos.n_ops; i++) {
        const struct op *o = &chaos.ops[i];
        if (o->m == m && o->kind == (step->append ? APPEND : READ) && o->layer == step->layer &&
            o->first == step->first && o->rows == step->rows &&
            (!o->call->done || o->call->code == COMMON_OK || chaos_passes(o->call->code)))
            return true;
    }
    return false;
}

static void check_step(const struct op *op, const struct sim_watched *step)
{
    uint64_t end = step->first + step->rows;
    if (op->layer && op->layer != step->layer + 1)
        chaos_violated(op, "a watch tells of another layer");
    if (!was_made(op->m, step))
        chaos_violated(op, "a watch tells of a step that nobody made");
    if (step->visible != end)
        chaos_violated(op, "a watched step saw other rows");
    if (op->wants_trace && (!step->n_traces || step->strangers))
        chaos_violated(op, "a watched step has no traces of its workers");
    if (op->wants_mass && !step->has_mass)
        chaos_violated(op, "a watched step has no masses");
    if (!step->has_mass || step->mass_code != COMMON_OK)
        return;
    if (step->missing > end)
        chaos_violated(op, "a watched step lacks more than it could see");
    bool all =
        !chaos.any_gone; // else of what is left, and missing are those of it that its rows would have seen
    if (step->mass_visible != end || step->mass_tokens > end || (all && step->mass_tokens != end))
        chaos_violated(op, "masses of other rows");
    if (!step->missing && step->mass_tokens == end && !(step->mass_off <= 1e-3f))
        chaos_violated(op, "wrong masses");
}

void chaos_check_watch(const struct op *op)
{
    const struct sim_call *call = op->call;
    if (call->code != COMMON_OK)
        return;
    if (call->n_watched > op->rows)
        chaos_violated(op, "a watch tells of too many steps");
    uint64_t latest = call->deadline_ns - LATEST_NS;
    if (call->n_watched < op->rows && call->done_ns < op->first && call->done_ns < latest)
        chaos_violated(op, "a watch ends early, and with too few steps");
    for (uint32_t i = 0; i < call->n_watched; i++) {
        check_step(op, &call->watched[i]);
        for (uint32_t k = 0; k < i; k++)
            if (call->watched[k].step == call->watched[i].step)
                chaos_violated(op, "a watch tells of one step twice");
    }
}

bool chaos_nobody_watches(void)
{
    bool nobody = true;
    for (const struct coordinator_watch *w = chaos.cluster->coordinator->steps.watches; w; w = w->next)
        nobody = nobody && !w->n_watchers && !w->probes;
    return nobody;
}
