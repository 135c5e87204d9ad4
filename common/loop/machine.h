// SPDX-License-Identifier: Apache-2.0
// State machines. Each one is an enum with a drawing beside it, a table of what may follow what, and one
// function that alters the state and asks the table first.
#ifndef COMMON_MACHINE_H
#define COMMON_MACHINE_H

#define COMMON_MACHINE_STATES 12 // at most

struct common_machine {
    const char *name;
    unsigned n; // states
    const char *states[COMMON_MACHINE_STATES];
    unsigned next[COMMON_MACHINE_STATES]; // bits of the states that may follow this one
};

// A transition that the table lacks is our bug and ends the process; the log names the machine and both
// states. The simulator has another one of these, which also counts (tests/sim/sim_edges.h): every edge of
// every table of the coordinator is taken by a test.
void common_machine_move(const struct common_machine *machine, unsigned from, unsigned to);

#endif
