// SPDX-License-Identifier: Apache-2.0
// Windows that forget: rows of K and V that no row can see any more are given back, where the session's spec says so
// (Spec.forget, a margin in tokens; docs/WIRE.md, "Windows that forget").
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
#ifndef COORDINATOR_FORGET_H
#define COORDINATOR_FORGET_H

#include "coordinator/sessions/session.h"

// Rows of the layer from `first` on were acknowledged, or a commit of them: the floor may rise.
void coordinator_forget_wrote(struct coordinator_session *s, uint32_t layer, uint64_t first);

// The session has been truncated.
void coordinator_forget_cut(struct coordinator_session *s, uint64_t length);

// Whether a truncate or a fork (what) may go back to `length`. FAILED_PRECONDITION, reason FORGOTTEN.
enum common_code coordinator_forget_check(const struct coordinator_session *s, uint64_t length,
                                          const char *what, struct proto_status *status);

#endif
