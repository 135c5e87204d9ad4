// SPDX-License-Identifier: Apache-2.0
// What may move, and what moves: the moves under way of each session, and questions about them from those who
// may not disturb them. How a move goes: move.h.
#ifndef COORDINATOR_MOVING_H
#define COORDINATOR_MOVING_H

#include "coordinator/session/session.h"

#define COORDINATOR_MOVE_CHUNKS 64 // of one move, at most

struct coordinator_move_item {
    uint32_t index;                      // of the chunk
    uint64_t id;                         // filled in
    uint64_t seal;                       // likewise: what the copy was found to have; 0: it was not compared
    struct coordinator_worker *replaces; // whose copy it will be; NULL: one more
    bool put;                            // rows of it are put and not committed: it is left out
    bool suspect;  // what another copy has was found to be wrong since the rows were asked for the last time
    bool returned; // the worker has come back with it (returned.h), be it for another session
};

// The end of a move: `moved` of the chunks have their copy now, and so many bytes of the session have
// travelled; refused: `to` did not do what it was asked.
typedef void (*coordinator_moved_fn)(void *arg, uint64_t session, struct coordinator_worker *to, bool refused,
                                     uint32_t moved, uint64_t bytes);

// The inside of a move: for move.c and moving.c alone.
struct coordinator_move {
    struct coordinator_move *next; // of the session's
    struct coordinator_sessions *sessions;
    struct coordinator_session *s; // NULL: gone
    uint64_t session;
    struct coordinator_worker *to; // its record stays: a visitor
    struct coordinator_move_item items[COORDINATOR_MOVE_CHUNKS];
    uint32_t n;
    uint8_t state;  // an enum move_state (move.c)
    uint32_t visit; // CLOSING and on: of the worker when it was told
    bool storing;   // the batch that makes it a holder is under way
    bool dropped;   // it was told to drop the session since the move began
    bool repaired;  // CLOSING and on: it was sent the session's layout, without what comes
    bool big;       // it counts as such at `to`
    bool refused;   // by `to`
    bool put;       // rows of some of its chunks are put and not committed
    uint64_t promised, bytes;
    uint32_t at, layer; // COPYING: the next row to be fetched
    uint64_t position;
    coordinator_moved_fn done;
    void *arg;
};

// Whether a move could begin now: nobody is being asked about the session, and all its rows are known.
bool coordinator_session_may_move(struct coordinator_session *s);
// Whether this chunk of it may go into a move to this worker.
bool coordinator_chunk_may_move(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                                const struct coordinator_worker *to,
                                const struct coordinator_worker *replaces);

// Whether rows of the chunk may be on their way that no layer has.
bool coordinator_chunk_being_put(const struct coordinator_session *s, const struct coordinator_chunk *chunk);

uint32_t coordinator_moves_of(const struct coordinator_session *s); // under way
// Chunks that moves bring to this worker, which it does not have yet: a layout that leaves them out would take them away
// from it. At most COORDINATOR_MOVE_CHUNKS for each move.
uint32_t coordinator_moves_incoming(const struct coordinator_session *s, const struct coordinator_worker *to,
                                    const struct coordinator_chunk **out);
bool coordinator_moves_go_to(const struct coordinator_session *s, const struct coordinator_worker *to);
// A copy of the chunk was found to be wrong: what moves bring of it may be that.
void coordinator_moves_suspect(struct coordinator_session *s, const struct coordinator_chunk *chunk);
// Whether it is being made a holder. The store may have it as one already, so nothing is dropped there now: a
// coordinator that started again would not know.
bool coordinator_moves_store(const struct coordinator_session *s, const struct coordinator_worker *to);
// The worker is being told to drop the session: what moves have brought there does not count.
void coordinator_moves_dropped(struct coordinator_session *s, const struct coordinator_worker *at);
// The worker was sent the session's whole layout, without what moves bring there: rows that it was not asked
// for since do not count.
void coordinator_moves_repaired(struct coordinator_session *s, const struct coordinator_worker *at);

#endif
