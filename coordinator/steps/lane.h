// SPDX-License-Identifier: Apache-2.0
// A lane: the items of one session that wait, in order, and what is watched of it. Appends of a session go one
// after the other, and whoever looks at rows that are still to come goes behind them; all wait while somebody
// has the session alone.
//
//   lane ── appending: the one append under way
//        └─ waiting:   append ── read of its rows ── append ── …        ▲ a read of what is there passes by
#ifndef COORDINATOR_LANE_H
#define COORDINATOR_LANE_H

#include "coordinator/steps/steps.h"

#define COORDINATOR_WAITING_MAX 4096 // items that may wait for one session

struct coordinator_item;
struct coordinator_session;

struct coordinator_lane {
    struct coordinator_session *s; // s->lane is this one
    struct common_list waiting;    // item.link; s->n_waiting counts them
    struct coordinator_item *appending;
    struct coordinator_watch *watch; // what its last steps looked at (watch.h); NULL: not requested
    struct coordinator_kept *kept;   // a step of it, as it was answered (keep.h); NULL: none
    uint64_t kept_ns;                // when one was kept last; 0: never
    struct common_list moved;        // in steps.lanes: items may go that could not
};

// The session's, made when there is none.
struct coordinator_lane *coordinator_lane_of(struct coordinator_steps *steps, struct coordinator_session *s);

// Whether an item that is ready must wait for those before it.
bool coordinator_lane_behind(const struct coordinator_lane *lane, const struct coordinator_item *item);

// The item is WAITING from now on, behind the others; one whose append has had its turn goes first. False: too
// many wait (nothing has changed).
bool coordinator_lane_wait(struct coordinator_lane *lane, struct coordinator_item *item);
void coordinator_lane_leave(struct coordinator_lane *lane, struct coordinator_item *item);

// The append is over, or does not go on: the next one may come.
void coordinator_lane_append_over(struct coordinator_steps *steps, struct coordinator_lane *lane,
                                  struct coordinator_item *item);

// Items of it may go that could not: looked at in the phase of steps.
void coordinator_lane_moved(struct coordinator_steps *steps, struct coordinator_lane *lane);

#endif
