// SPDX-License-Identifier: Apache-2.0
#include "common/loop/machine.h"

#include <assert.h>

#include "common/log/log.h"

void common_machine_move(const struct common_machine *machine, unsigned from, unsigned to)
{
    if (machine->next[from] & (1u << to))
        return;
    common_log_error("internal error, which ends the process: a %s went from %s to %s", machine->name,
                     machine->states[from], machine->states[to]);
    assert(!"a state machine took an edge that its table lacks");
}
