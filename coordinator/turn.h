// SPDX-License-Identifier: Apache-2.0
// Turns. All of the coordinator runs in handlers: a request, a reply, a timer, a link that comes or goes, a
// write of the store that ended. A handler changes its own room, calls the rooms below it, and marks what it
// changed. It never acts on a room above its own. When all handlers that are ready have run, the turn ends: the
// drains act on the marks, from the bottom to the top, until nothing is marked.
//
//   handler ─┐             ┌──────────────────── again, from the lowest mark ─────────────────────────┐
//   handler ─┼── marks ──▶ │ completions ▶ workers ▶ plans ▶ sessions ▶ steps ▶ frames ▶ events ── no mark ──▶ wait
//   handler ─┘             └────────────────────────────────────────────────────────────────────────────┘
//
// So there is no re-entrancy: no function of a lower room runs one of a higher room on its own stack, what waits
// is started by a drain, and objects are freed by the drain of their own room. Requests that arrive together
// share frames. Counters (who is active, how much is shared) are changed at once; only actions wait.
//
// An operation of a lower room that takes time ends by a completion: a function of the caller's, which the
// first phase of a drain runs on an empty stack.
//
// Everything is for the loop thread.
#ifndef COORDINATOR_TURN_H
#define COORDINATOR_TURN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/base/status.h"
#include "common/loop/loop.h"

enum coordinator_phase {
    COORDINATOR_PHASE_COMPLETIONS, // of gathers, of calls that could not be made
    COORDINATOR_PHASE_WORKERS,     // became active, or ceased to be
    COORDINATOR_PHASE_PLANS,       // to be installed, dropped, freed
    COORDINATOR_PHASE_SESSIONS,    // settled: waiters may come in; workers whose layouts must be sent
    COORDINATOR_PHASE_STEPS,       // new items, items whose turn it is, items to be sent again
    COORDINATOR_PHASE_FRAMES,      // queues with something to send
    COORDINATOR_PHASE_EVENTS,      // events came: their waiters are notified
    COORDINATOR_PHASES
};

struct coordinator_turn {
    struct common_deferred *end; // NULL until the loop is known: marks wait for coordinator_turn_drain
    unsigned marked;             // bits of phases
    bool draining;
    struct {
        void (*drain)(void *arg);
        void *arg;
    } phases[COORDINATOR_PHASES];
    struct common_list completions;
    uint64_t turns; // drains that had something to do
};

// Something of this phase is to be done at the end of the turn.
void coordinator_turn_mark(struct coordinator_turn *turn, enum coordinator_phase phase);

// What a phase does. Set before the first mark of the phase is drained.
void coordinator_turn_set(struct coordinator_turn *turn, enum coordinator_phase phase,
                          void (*drain)(void *arg), void *arg);

struct coordinator_completion {
    struct common_list link;
    void (*fn)(void *arg);
    void *arg;
};

// Runs completion->fn(arg) in the next COMPLETIONS phase. The object belongs to the caller, fn may free it; it is
// not queued twice.
void coordinator_turn_complete(struct coordinator_turn *turn, struct coordinator_completion *completion);

enum common_code coordinator_turn_init(struct coordinator_turn *turn, struct common_loop *loop);
void coordinator_turn_fini(struct coordinator_turn *turn); // what is marked is forgotten

// Drains now: for the start and the stop of a coordinator. Nothing when it runs inside a drain.
void coordinator_turn_drain(struct coordinator_turn *turn);

#endif
