// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_memory.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/failing.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_event.h"

#undef malloc
#undef calloc
#undef realloc
#undef aligned_alloc
#undef strdup

const bool sim_memory_may_fail = true;

static uint32_t one_in;

void sim_memory_refuse(uint32_t n)
{
    one_in = n;
}

static bool refuses(void)
{
    const struct common_loop *loop = one_in ? sim_process_running() : NULL;
    return loop && loop->name && strncmp(loop->name, "client", 6) != 0 && !sim_random(one_in);
}

void *sim_malloc(size_t size)
{
    return refuses() ? NULL : malloc(size);
}

void *sim_calloc(size_t n, size_t size)
{
    return refuses() ? NULL : calloc(n, size);
}

void *sim_realloc(void *block, size_t size)
{
    return refuses() ? NULL : realloc(block, size);
}

void *sim_aligned_alloc(size_t align, size_t size)
{
    return refuses() ? NULL : aligned_alloc(align, size);
}

char *sim_strdup(const char *text)
{
    return refuses() ? NULL : strdup(text);
}
