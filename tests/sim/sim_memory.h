// SPDX-License-Identifier: Apache-2.0
// Memory that is refused: of what a coordinator or a worker of chaos_memory_test asks for (failing.h), one in
// so many allocations.
#ifndef TESTS_SIM_SIM_MEMORY_H
#define TESTS_SIM_SIM_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

extern const bool sim_memory_may_fail;   // in this program
void sim_memory_refuse(uint32_t one_in); // 0: none any more

#endif
