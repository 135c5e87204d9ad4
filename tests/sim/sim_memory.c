// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_memory.h"

#include <string.h>

#include "tests/sim/failing.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_event.h"

const bool sim_memory_may_fail = true;

static uint32_t one_in;

void sim_memory_refuse(uint32_t n)
{
    one_in = n;
}

bool failing_refuses(void)
{
    const struct common_loop *loop = one_in ? sim_process_running() : NULL;
    return loop && loop->name && strncmp(loop->name, "client", 6) != 0 && !sim_random(one_in);
}
