// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_edges.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINES = 32, STATES = COMMON_MACHINE_STATES };

struct taken {
    const struct common_machine *machine;
    uint32_t here[STATES][STATES]; // in this world
    bool ever[STATES][STATES], shown[STATES][STATES];
};

static struct taken machines[MACHINES];

static struct taken *taken_of(const struct common_machine *machine)
{
    int i = 0;
    while (i < MACHINES && machines[i].machine && machines[i].machine != machine)
        i++;
    if (i == MACHINES)
        abort();
    machines[i].machine = machine;
    return &machines[i];
}

void sim_edges_begin(void)
{
    for (int i = 0; i < MACHINES; i++)
        memset(machines[i].here, 0, sizeof machines[i].here);
}

void common_machine_move(const struct common_machine *machine, unsigned from, unsigned to)
{
    struct taken *taken = taken_of(machine);
    if (!(machine->next[from] & (1u << to))) {
        fprintf(stderr, "sim: a %s goes from %s to %s\n", machine->name, machine->states[from],
                machine->states[to]);
        abort();
    }
    taken->here[from][to]++;
    taken->ever[from][to] = true;
}

static unsigned state_of(const struct common_machine *machine, const char *name)
{
    for (unsigned i = 0; i < machine->n; i++)
        if (!strcmp(machine->states[i], name))
            return i;
    fprintf(stderr, "sim: a %s has no state %s\n", machine->name, name);
    abort();
}

uint32_t sim_edge_taken(const struct common_machine *machine, const char *from, const char *to)
{
    struct taken *taken = taken_of(machine);
    unsigned f = state_of(machine, from), t = state_of(machine, to);
    if (!(machine->next[f] & (1u << t))) {
        fprintf(stderr, "sim: a %s has no edge from %s to %s\n", machine->name, from, to);
        abort();
    }
    taken->shown[f][t] = true;
    return taken->here[f][t];
}

uint32_t sim_edges_missing(const struct common_machine *machine)
{
    const struct taken *taken = taken_of(machine);
    uint32_t missing = 0;
    for (unsigned f = 0; f < machine->n; f++)
        for (unsigned t = 0; t < machine->n; t++) {
            if (!(machine->next[f] & (1u << t)) || (taken->ever[f][t] && taken->shown[f][t]))
                continue;
            missing++;
            fprintf(stderr, "%s: %s to %s: %s\n", machine->name, machine->states[f], machine->states[t],
                    taken->ever[f][t] ? "no test asks for it" : "was never taken");
        }
    return missing;
}
