// SPDX-License-Identifier: Apache-2.0
// When the coordinator itself was running. Silence during its own absence proves nothing: a process that was
// stopped, or a machine that hung, finds on its return that all were silent for seconds, while what they
// said waits in the sockets. Pure: times come in, verdicts go out.
//
//   ticks   |   |   |   |                    |   |   |
//   ────────┴───┴───┴───┴····· absent ·······┴───┴───┴──▶ time
//                       seen_ns              back_ns: silence counts from here on
#ifndef COORDINATOR_PRESENCE_H
#define COORDINATOR_PRESENCE_H

#include <stdint.h>

struct coordinator_presence {
    uint64_t interval_ns; // between two ticks
    uint64_t seen_ns;     // when it was last known to run
    uint64_t back_ns;     // since when it has run without a gap
};

void coordinator_presence_init(struct coordinator_presence *p, uint64_t interval_ns, uint64_t now_ns);

// It runs now. Returns for how long it was away before: the time by which this is later than the tick that
// was due; 0 where that is no more than one further interval, as a loop that is busy can be. To be called at
// each tick, and before any judgement that does not come from a tick. A coordinator that is that late at
// every tick never finds anybody silent.
uint64_t coordinator_presence_note(struct coordinator_presence *p, uint64_t now_ns);

// What is left of the patience with a peer last heard from at since_ns: 0 when it is over. It begins
// again with our return.
uint64_t coordinator_presence_patience(const struct coordinator_presence *p, uint64_t since_ns,
                                       uint64_t patience_ns, uint64_t now_ns);

#endif
