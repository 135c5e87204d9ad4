// SPDX-License-Identifier: Apache-2.0
// Which chunks move, and when: what keeps sessions at as many copies as they ask for, and empties workers that are
// being drained. It looks at sessions that were marked, in the order of move_queue.h: choosing.h says what moves.
//
//   fewer copies than replicas, and a worker that may have one ──▶ one more copy
//   a holder is being drained                                  ──▶ another worker in its place
//   more copies than replicas (a coordinator died in between)  ──▶ one is leaving (failover.h)
//   a member that is being drained, or lost, holds nothing     ──▶ it is no member any more
//   an operator has asked for a balance (rebalance.h)          ──▶ as that says
//   a worker is slow, and serves more than is its part         ──▶ likewise, by itself
//   speeds have changed, or holders                            ──▶ others serve (spread.h)
//
// Of a worker at most 16 moves to it are under way, and 2 more whose rows travel for long; of a session 4, in all 256. A turn
// looks at 64 sessions. A move that came to nothing is tried again after a second; a receiver at which moves fail one after
// the other gets none for 10 ms, 20, … 1.28 s. Rows travel between workers alone, below the rate of --move-rate at each
// that receives.
#ifndef COORDINATOR_MOVES_H
#define COORDINATOR_MOVES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"

struct common_timer;
struct coordinator_sessions;

struct coordinator_moves {
    uint32_t n;    // under way
    uint64_t turn; // of the loop, in which `left` more sessions may be looked at
    uint32_t left;
    struct common_timer *timer; // the next turn comes; NULL: it was not needed yet
    uint64_t chunks, bytes;     // moved so far
};

void coordinator_moves_init(struct coordinator_sessions *sessions);
void coordinator_moves_tick(struct coordinator_sessions *sessions);
void coordinator_moves_drain(struct coordinator_sessions *sessions); // in the phase of sessions
void coordinator_moves_fini(struct coordinator_sessions *sessions);

#endif
