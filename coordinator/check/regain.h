// SPDX-License-Identifier: Apache-2.0
// Lost chunks whose rows come back. A chunk is lost when no holder has it any more. A worker that was struck off
// before may have kept its copy (returned.h): where that is what was sealed, the chunk is not lost.
//
//   lost, and kept by an ACTIVE worker ──▶ COMPARING with the seal ──▶ WAITING for the session alone (RELAYOUT)
//                                              │ not what was sealed:      │
//                                              ▼ stays lost                ▼
//                                            OVER ◀── TELLING ◀── STORING the worker as its only holder
//
// Other copies are made from it (place/move.h).
#ifndef COORDINATOR_REGAIN_H
#define COORDINATOR_REGAIN_H

struct coordinator_sessions;
struct common_machine;

extern const struct common_machine coordinator_regain_machine;

// Begins with what can be regained, of each session as many chunks of one worker at a time as one move has.
void coordinator_regain_tick(struct coordinator_sessions *sessions);

#endif
