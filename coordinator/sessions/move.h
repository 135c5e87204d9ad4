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

#include "coordinator/sessions/session.h"

extern const struct coordinator_machine coordinator_move_machine;

#define COORDINATOR_MOVE_CHUNKS 64 // of one move, at most

struct coordinator_move_item {
    uint32_t index;                      // of the chunk
    uint64_t id;                         // filled in
    uint64_t seal;                       // likewise: what the copy was found to have; 0: it was not compared
    struct coordinator_worker *replaces; // whose copy it will be; NULL: one more
    bool put;                            // rows of it are put and not committed: it is left out
    bool returned; // the worker has come back with it (returned.h), be it for another session
};

// Whether a move could begin now: nobody is being asked about the session, and all its rows are known.
bool coordinator_session_may_move(struct coordinator_session *s);
// Whether this chunk of it may go into a move to this worker.
bool coordinator_chunk_may_move(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                                const struct coordinator_worker *to,
                                const struct coordinator_worker *replaces);

// Whether rows of the chunk may be on their way that no layer has.
bool coordinator_chunk_being_put(const struct coordinator_session *s, const struct coordinator_chunk *chunk);

// Begins. All items may move; they are copied. `done` runs once, never on this stack: `moved` of them have their copy
// now, and so many bytes of the session have travelled; refused: `to` did not do what it was asked. big: it counts as such
// there (move_queue.h).
typedef void (*coordinator_moved_fn)(void *arg, uint64_t session, struct coordinator_worker *to, bool refused,
                                     uint32_t moved, uint64_t bytes);
void coordinator_move_begin(struct coordinator_session *s, struct coordinator_worker *to, bool big,
                            const struct coordinator_move_item *items, uint32_t n, coordinator_moved_fn done,
                            void *arg);

uint32_t coordinator_moves_of(const struct coordinator_session *s); // under way
// Chunks that moves bring to this worker, which it does not have yet: a layout that leaves them out would take them away
// from it. At most COORDINATOR_MOVE_CHUNKS for each move.
uint32_t coordinator_moves_incoming(const struct coordinator_session *s, const struct coordinator_worker *to,
                                    const struct coordinator_chunk **out);
bool coordinator_moves_go_to(const struct coordinator_session *s, const struct coordinator_worker *to);
// The worker is being told to drop the session: what moves have brought there does not count.
void coordinator_moves_dropped(struct coordinator_session *s, const struct coordinator_worker *at);
void coordinator_moves_session_gone(struct coordinator_session *s);

#endif
