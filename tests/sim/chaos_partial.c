// SPDX-License-Identifier: Apache-2.0
// Partial answers of chaos_test: what is declared had no copy at some moment of the call, and the mean is of
// exactly the rest.
#include "tests/sim/chaos.h"

#include <math.h>
#include <stdio.h>

#include "common/hash/hash.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"

static struct op *live[OPS]; // under way
static uint32_t n_live;

// Not from the dice: seeds go on as they did without.
bool chaos_takes_partial(void)
{
    return common_mix64(chaos.seed << 12 ^ chaos.n_ops) % 3 < (chaos.kills ? 2u : 1u);
}

void chaos_partial_begins(struct op *op)
{
    op->partial = true;
    if (!op->call->done)
        live[n_live++] = op;
}

// As coordinators see it: each copy is known to be lost, or in doubt, or its worker has been given up.
static bool is_at_nobody(const struct coordinator_chunk *chunk)
{
    for (uint32_t copy = 0; copy < coordinator_chunk_copies(chunk) && !chunk->lost; copy++) {
        enum coordinator_worker_state state = coordinator_chunk_holder(chunk, copy)->state;
        if (!((chunk->gone | coordinator_chunk_doubted(chunk)) & 1u << copy) &&
            state != COORDINATOR_WORKER_LOST && state != COORDINATOR_WORKER_ABSENT)
            return false;
    }
    return true;
}

static void look_for(struct op *op, const struct coordinator *coordinator)
{
    const struct coordinator_session *s = coordinator_session_any(&coordinator->sessions, op->m->id);
    for (uint32_t i = 0; s && i < s->layout.n && s->layout.chunks[i].index <= TOKENS / CHUNK_TOKENS; i++)
        if (is_at_nobody(&s->layout.chunks[i]))
            op->gone |= 1u << s->layout.chunks[i].index;
    chaos.any_gone = chaos.any_gone || op->gone;
}

void chaos_look_for_gone(void)
{
    for (uint32_t i = 0; i < n_live;) {
        struct op *op = live[i];
        for (uint32_t c = 0; c < 2; c++) {
            const struct sim_coordinator *at = &chaos.cluster->coordinators[c];
            if (at->loop && at->coordinator && !sim_loop_muted(at->loop) && !at->coordinator->core.stopping)
                look_for(op, at->coordinator);
        }
        if (op->call->done)
            live[i] = live[--n_live];
        else
            i++;
    }
}

void chaos_check_partial(const struct op *op, uint64_t at)
{
    const struct model *m = op->m;
    const struct sim_call *call = op->call;
    uint64_t from = chaos_from(op->layer, at), seen = 0;
    bool missing[TOKENS] = {false};
    double sum = 0;
    chaos.n_partial += call->n_declared > 0;
    for (uint32_t i = 0; i < call->n_declared; i++) {
        uint64_t first = call->missing_first[i], end = first + call->missing_count[i];
        if (first >= end || end > at + 1 ||
            (i && first <= call->missing_first[i - 1] + call->missing_count[i - 1]))
            chaos_violated(op, "missing ranges are not in order");
        for (uint64_t k = first; k < end; k++) {
            missing[k] = true;
            if (!(op->gone >> k / CHUNK_TOKENS & 1))
                chaos_violated(op, "a token is declared missing that was there all the time");
        }
    }
    for (uint64_t i = from; i <= at; i++) {
        if (missing[i])
            continue;
        if (!m->maybe[op->layer][i])
            chaos_violated(op, "a row can be seen that nobody wrote");
        sum += m->value[op->layer][i];
        seen++;
    }
    double want = seen ? sum / (double)seen : 0;
    bool right = fabs(call->o - want) <= 1e-4 * want || op->tainted;
    if (op->kind == READ && call->seen != seen) // of an append: of all its rows
        chaos_violated(op, "a partial answer says that it saw other tokens");
    if (right)
        return;
    fprintf(stderr, "wanted %g of %d tokens, %u ranges missing\n", want, (int)seen, call->n_declared);
    chaos_violated(op, "a wrong partial answer");
}
