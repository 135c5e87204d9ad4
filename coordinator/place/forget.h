// SPDX-License-Identifier: Apache-2.0
// Windows that forget: rows of K and V that no row can see any more are given back, where the session's spec says so
// (Spec.forget, a margin in tokens; docs/reference/wire.md, "Windows that forget").
//
// A session has one number, its floor. Nobody goes back behind it: no step with a row that sees less than what rows at
// or past the floor see, no truncate, no fork. What of a layer such rows do not see is forgotten.
//
//      layer with a window            │◀── window ──▶│
//      ├──── forgotten ───────────────┤              │
//      0                              forgotten      floor       newest          length
//                                                      │◀ margin ▶│
//
// newest: where the newest append or commit of the layer began that is furthest behind, so that each of them can be sent
// again, and what was attached can be attended; or the hole before it. The floor rises by a chunk at least:
//
//      a row is acknowledged ──▶ the store has the new floor ──▶ holders are told ──▶ they free memory
//                           from here on nothing goes behind it
//
// It falls only with a truncate to 0. Forgotten rows count as committed: the layer's length and coverage are as before.
//
// A session may be born with a floor, one that a snapshot had. Of each layer the chunks that are forgotten as a whole
// count as committed from the start. Where the forgotten end inside a chunk, whoever makes the session puts its rows
// below that place as well, zeros, so that every holder has whole chunks:
//
//      ├── forgotten from the start ──┼─ zeros ──┤── what is attached ──
//      0                              a chunk    forgotten      floor
#ifndef COORDINATOR_FORGET_H
#define COORDINATOR_FORGET_H

#include "coordinator/session/session.h"

struct coordinator_batch;

#define COORDINATOR_FORGET_CHUNKS (UINT32_C(1) << 18) // below the floor that a session is born with

// Whether a session of this spec, which has been checked, may be born with this floor. INVALID_ARGUMENT, OUT_OF_RANGE.
enum common_code coordinator_forget_born_check(const Banyan__Pb__Spec *spec, uint64_t floor,
                                               uint64_t max_tokens, struct proto_status *status);
// It is being made by this batch, with its floor, and has nothing yet: what is forgotten of it is added to both.
void coordinator_forget_born(struct coordinator_session *s, struct coordinator_batch *batch);
// Chunks below this index have rows that are forgotten, of some layer.
uint64_t coordinator_forget_chunks(const struct coordinator_session *s);

// Rows of the layer from `first` on were acknowledged, or a commit of them: the floor may rise.
void coordinator_forget_wrote(struct coordinator_session *s, uint32_t layer, uint64_t first);

// The session has been truncated.
void coordinator_forget_cut(struct coordinator_session *s, uint64_t length);

// Whether a truncate or a fork (what) may go back to `length`. FAILED_PRECONDITION, reason FORGOTTEN.
enum common_code coordinator_forget_check(const struct coordinator_session *s, uint64_t length,
                                          const char *what, struct proto_status *status);

#endif
