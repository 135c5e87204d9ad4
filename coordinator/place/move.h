// SPDX-License-Identifier: Apache-2.0
// A move gives chunks of a session one more copy at a worker, or puts that worker in the place of another holder. The
// session is worked on meanwhile; only the end needs it alone, for some round trips and one write of the store.
//
//   COPYING   the worker is told of the chunks, which count for nothing yet, and fetches their rows (ChunkPull) from a
//      │      holder, one pull after the other; of a sealed chunk its memory must then have what was sealed (seals.h);
//      │      steps append, attaches commit
//   WAITING   for the session alone (RELAYOUT)
//      │
//   CLOSING   holders refuse tickets of before (where one has not ended); it is told again, and fetches what has come since: now it has every acknowledged row
//      │
//   STORING   its copies, its membership, the epoch + 1: one write
//      │
//   TELLING   layouts to all members; holders whose place it takes are leaving, and are struck off next (failover.h)
//      ▼
//   OVER ◀──── from each of the first three, when something has gone wrong: the worker forgets the chunks
//
// A chunk is left out at CLOSING when it has changed since the move began: it was replaced, a holder was struck off, or
// nobody who has it is there. So is one with rows that are put and not committed: they are at the holders that a ticket
// named, and travel with no move. That a ticket has not ended is no reason to wait: 2 s after it was given its holders are
// asked what is put, and refuse it from then on.
#ifndef COORDINATOR_MOVE_H
#define COORDINATOR_MOVE_H

#include "coordinator/sync/moving.h"

extern const struct common_machine coordinator_move_machine;

// Begins. All items may move; they are copied. `done` runs once, never on this stack. big: it counts as such
// there (move_queue.h).
void coordinator_move_begin(struct coordinator_session *s, struct coordinator_worker *to, bool big,
                            const struct coordinator_move_item *items, uint32_t n, coordinator_moved_fn done,
                            void *arg);
void coordinator_moves_session_gone(struct coordinator_session *s);

#endif
