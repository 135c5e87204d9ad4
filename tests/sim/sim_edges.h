// SPDX-License-Identifier: Apache-2.0
// Which edges of the coordinator's state machines were taken: in the place of common/loop/machine.c, which
// only asks the tables. A state is named as in its machine's table.
#ifndef TESTS_SIM_SIM_EDGES_H
#define TESTS_SIM_SIM_EDGES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop/machine.h"

void sim_edges_begin(void); // a new world: no edge was taken in it yet

// How often this world took the edge. The edge counts as shown from then on: a test looks at it. An edge that
// the table lacks ends the process.
uint32_t sim_edge_taken(const struct common_machine *machine, const char *from, const char *to);

// Prints the edges of the table that no world has taken, and those that no test has asked for. Returns how
// many.
uint32_t sim_edges_missing(const struct common_machine *machine);

#endif
