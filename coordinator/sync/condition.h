// SPDX-License-Identifier: Apache-2.0
// What people are told of a session's chunks: an event when the worst that is so of them is another than before. It is
// looked at with each tick, and told once it was so at two ticks: a link that breaks and is back at once is none.
//
//   whole ──▶ degraded (too few copies) ──▶ unavailable (nobody who is there has some) ──▶ lost (nobody has some any more)
//     ▲            │                             │                                              │
//     └────────────┴─────────────────────────────┴─────────────── and back ─────────────────────┘
#ifndef COORDINATOR_CONDITION_H
#define COORDINATOR_CONDITION_H

struct coordinator_sessions;

void coordinator_conditions_tick(struct coordinator_sessions *sessions);

#endif
