// SPDX-License-Identifier: Apache-2.0
// What holders name after a restart of the coordinator: the rows that steps have appended are in no store. A row
// counts when its append was acknowledged, and an append of which nobody knows whether it was counts as a whole or
// not at all.
//
//     holder A   ├──── rows ────────────────────┤        knows of acknowledged rows up to here: ▲
//     holder B          ├──── rows ───────┤ ─ ─ ─ ┤      has its part of write W, which ends there ─┘
//                              ▲ length           ▲ end
//     0 .. length    acknowledged: the most that any of them was told
//     length .. end  of the newest append that any of them has, W: there when all its holders have their parts of W.
//                    Then it may have been acknowledged. When one has not, it never was.
//
// Rows past that are of older appends, which have failed.
//
// Of a chunk with several copies only what all of them have is named: an append was acknowledged when it was at all
// holders. So its rows count when the last of its holders has spoken. A holder that says that it may have lost rows
// (InventorySession.doubtful) does not count beside one that does not: it has what these have, or is struck off.
#ifndef COORDINATOR_NAMED_H
#define COORDINATOR_NAMED_H

#include "coordinator/session/session.h"

// What a worker says of its appends, before its rows.
void coordinator_session_name_appends(struct coordinator_session *s,
                                      const Banyan__Pb__InventorySession *held);
// The rows of one of its chunks, as the holder of a copy of `of` has them. False: a layer has too many ranges.
bool coordinator_session_name_rows(struct coordinator_session *s, const struct coordinator_chunk *of,
                                   uint32_t copy, const Banyan__Pb__InventorySession *held,
                                   const Banyan__Pb__InventoryChunk *chunk);
// Of the copies in doubt those whose holders have spoken, and lack rows that all others have. 0 until these have spoken,
// too.
uint32_t coordinator_session_named_short(const struct coordinator_session *s,
                                         const struct coordinator_chunk *chunk);
// Of the copies in doubt those that have rows which are not of the newest append, where all others have rows of it: an
// older one has left them there, and the holder's disk has lost, or never taken, that they were taken back. They must not
// count, however many they are.
uint32_t coordinator_session_named_other(const struct coordinator_session *s,
                                         const struct coordinator_chunk *chunk);
// Whether a holder has named any of these rows, while others are still to come.
bool coordinator_session_names_rows(const struct coordinator_session *s, uint64_t first, uint64_t count);
// Whether any layer has committed rows in [first, first + count), or some that may turn out to be.
bool coordinator_session_has_rows(const struct coordinator_session *s, uint64_t first, uint64_t count);
// Where the layer's newest append begins, as far as it is known, if rows of it past `length` may count yet; else `length`.
// It begins before `length` where what is durable (a commit, a seal) has covered its first rows meanwhile.
uint64_t coordinator_session_named_from(const struct coordinator_session *s, uint32_t layer, uint64_t length);
// All holders have said what they have: what does not count by now never will.
void coordinator_session_forget_named(struct coordinator_session *s);

#endif
