// SPDX-License-Identifier: Apache-2.0
// Which sessions are looked at for moves (moves.h), and in which order. A session that wants a move is in one of these
// places, or has moves under way; whoever changes what it wants marks it. So nothing walks all sessions to find work.
//
//            mark                        the receiver is busy
//   IDLE ─────────▶ READY ──look at it──────────────────────────▶ BEHIND a worker, or any
//    ▲                ▲  └──a move begins, or nothing is wanted──▶ IDLE
//    │                ├─────── it settles, or a second ◀───────── BUSY     others work on it
//    └── (its moves)  └─────── 1, 2, 4, 8 s, or another cluster ◀ RESTING  a move failed, or nobody can take a copy
//
// BEHIND lasts until a move to the worker ends, a second at most. READY and BEHIND are in the order of need: chunks with one copy left go first, then those with too few, then what is only
// to lie elsewhere. Among equals it is first come, first served, and a session gets one move a turn: a large one does not
// hold up thousands of small ones. Who would wait for a busy receiver gets another one where that is as good
// (choosing.c). So a busy or failing receiver delays only sessions that need it.
#ifndef COORDINATOR_MOVE_QUEUE_H
#define COORDINATOR_MOVE_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"
#include "coordinator/session/move_ticket.h"

struct coordinator_session;
struct coordinator_sessions;
struct coordinator_worker;

#define COORDINATOR_RESTS 4 // 1, 2, 4, 8 s

struct coordinator_move_queue {
    struct common_list ready[COORDINATOR_NEEDS], resting[COORDINATOR_RESTS];
    struct common_list waiting[2 * COORDINATOR_NEEDS]; // BEHIND any receiver: several would do
    uint32_t room[2];                                  // so many of these may try: moves have ended
    uint32_t n_ready, behind;                          // sessions in READY; that wait for a receiver
    uint32_t next;                                     // whose turn it is among receivers: a slot
    uint64_t looks;                                    // at sessions, so far
    uint64_t strays; // sessions that wanted a move and that nobody had marked: 0, or there is a defect
    uint32_t cursor; // the next slot to be searched for such
};

void coordinator_move_queue_init(struct coordinator_sessions *sessions);
void coordinator_move_queue_fini(struct coordinator_sessions *sessions); // no session is in it
void coordinator_move_queue_enter(struct coordinator_session *s);        // IDLE
void coordinator_move_queue_leave(struct coordinator_session *s);        // it goes: IDLE for ever

// Whether any chunk of it is to get another holder or lose one, or a member to leave it.
bool coordinator_session_wants_moves(const struct coordinator_session *s);
// The worker has no part in the session any more: it is drained or lost, and holds nothing of it.
bool coordinator_session_without(const struct coordinator_session *s, const struct coordinator_worker *w);

// What the session wants may have changed. It stays where it is while it rests.
void coordinator_move_queue_mark(struct coordinator_session *s);
// What it waited for may have come, be it a rest: other workers are there, rows are committed, a move is over.
void coordinator_move_queue_wake(struct coordinator_session *s);
void coordinator_move_queue_wake_all(struct coordinator_sessions *sessions);
// Nobody works on it now: no more BUSY.
void coordinator_move_queue_settled(struct coordinator_session *s);

// The next one to be looked at, which is IDLE then; NULL: none.
struct coordinator_session *coordinator_move_queue_pop(struct coordinator_sessions *sessions);
// Takes it from where it is, and puts it there.
void coordinator_move_queue_again(struct coordinator_session *s); // READY, behind all of its need
// w: the one that it needs; NULL: any that has room.
void coordinator_move_queue_behind(struct coordinator_session *s, struct coordinator_worker *w, bool big);
void coordinator_move_queue_busy(struct coordinator_session *s);
void coordinator_move_queue_rest(struct coordinator_session *s, bool longer); // longer: than the last time

// A move is over: there is room at its receiver.
void coordinator_move_queue_room(struct coordinator_sessions *sessions);
// Lets those that wait for receivers try as far as these have room, some of them, and all whose receiver is not one any
// more.
void coordinator_move_queue_advance(struct coordinator_sessions *sessions);
// Ends rests that are over, and looks for strays among a few sessions.
void coordinator_move_queue_tick(struct coordinator_sessions *sessions);

// ---- room at a receiver ----
// Of one worker at most so many moves to it are under way: of those whose rows travel for long, and of others.
#define COORDINATOR_BIG_MOVES   2
#define COORDINATOR_SMALL_MOVES 16
bool coordinator_worker_takes_move(const struct coordinator_worker *w, bool big);

#endif
