// SPDX-License-Identifier: Apache-2.0
#include "coordinator/turn.h"

#include <assert.h>

void coordinator_turn_mark(struct coordinator_turn *turn, enum coordinator_phase phase)
{
    if (!turn->marked && !turn->draining && turn->end)
        common_deferred_mark(turn->end);
    turn->marked |= 1u << phase;
}

void coordinator_turn_set(struct coordinator_turn *turn, enum coordinator_phase phase,
                          void (*drain)(void *arg), void *arg)
{
    turn->phases[phase].drain = drain;
    turn->phases[phase].arg = arg;
}

void coordinator_turn_complete(struct coordinator_turn *turn, struct coordinator_completion *completion)
{
    common_list_push(&turn->completions, &completion->link);
    coordinator_turn_mark(turn, COORDINATOR_PHASE_COMPLETIONS);
}

static void run_completions(void *arg)
{
    struct coordinator_turn *turn = arg;
    while (!common_list_empty(&turn->completions)) {
        struct coordinator_completion *completion =
            common_list_entry(turn->completions.next, struct coordinator_completion, link);
        common_list_remove(&completion->link);
        completion->fn(completion->arg);
    }
}

void coordinator_turn_drain(struct coordinator_turn *turn)
{
    if (turn->draining || !turn->marked)
        return;
    turn->draining = true;
    turn->turns++;
    while (turn->marked) {
        unsigned phase = (unsigned)__builtin_ctz(turn->marked);
        turn->marked &= ~(1u << phase);
        assert(turn->phases[phase].drain);
        turn->phases[phase].drain(turn->phases[phase].arg);
    }
    turn->draining = false;
}

static void turn_over(void *arg)
{
    coordinator_turn_drain(arg);
}

enum common_code coordinator_turn_init(struct coordinator_turn *turn, struct common_loop *loop)
{
    common_list_init(&turn->completions);
    coordinator_turn_set(turn, COORDINATOR_PHASE_COMPLETIONS, run_completions, turn);
    return common_deferred_new(loop, turn_over, turn, &turn->end);
}

void coordinator_turn_fini(struct coordinator_turn *turn)
{
    common_deferred_free(turn->end);
    turn->end = NULL;
}
