// SPDX-License-Identifier: Apache-2.0
// Of programs whose memory is never refused.
#include "tests/sim/sim_memory.h"

const bool sim_memory_may_fail = false;

void sim_memory_refuse(uint32_t one_in)
{
    (void)one_in;
}
