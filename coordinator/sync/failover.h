// SPDX-License-Identifier: Apache-2.0
// What becomes of a session's chunks when one of their holders is lost. A chunk with another copy loses nothing: the
// holder is struck off, and one of the others serves.
//
//   a holder is not ACTIVE ──▶ the session waits: nothing new is begun on it (session.awaited)
//        │                            ▲
//        ├── it is back, as it was ───┤ goes on
//        │                            │
//        └── it is LOST, or back      │
//            without the chunk        │
//               │                     │
//               ▼                     │
//      alone (RELAYOUT) ──▶ store: struck off, who serves, the epoch + 1 ──▶ memory, layouts to all members
//
// So whoever works on the session finds all copies of a chunk there, or none, and what is acknowledged is at all that
// the store counts. Steps that were under way when the holder went fail at their plan and wait with the session, for as
// long as their deadline allows. A link that broke has its grace to come back (--grace, 250 ms), unless nobody
// listens at its other end any more; a holder that has not been seen since a restart of the coordinator has the
// time that calls are parked (recovery.h).
//
// The last copy is never struck off: its session is UNAVAILABLE until the holder is back, or DATA_LOSS when it comes
// without. Nor is any as long as none of the others is ACTIVE: of those that are away the first that comes back serves.
//
// One that was struck off and comes back is told the session's layout, in which it has no part any more.
#ifndef COORDINATOR_FAILOVER_H
#define COORDINATOR_FAILOVER_H

#include "coordinator/session/session.h"

// Begins to strike off what is to be, when nobody works on the session.
void coordinator_failover_pump(struct coordinator_session *s);

// The worker lacks rows of [first, first + count) that it should have: its copies of these chunks are to be struck off.
// False: one of them is the only one that is left, and stays.
bool coordinator_failover_without(struct coordinator_session *s, const struct coordinator_worker *w,
                                  uint64_t first, uint64_t count);

// The same of a new process that has a part of what the one before it had (--store): those chunks are lost of which it
// has the last copy. False: it has the last one of some.
bool coordinator_failover_cut_short(struct coordinator_session *s, struct coordinator_worker *w,
                                    uint64_t first, uint64_t count);

// Looks again at sessions that wait.
void coordinator_failovers_tick(struct coordinator_sessions *sessions);

#endif
