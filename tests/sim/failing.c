// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/failing.h"

#include <stdlib.h>
#include <string.h>

#undef malloc
#undef calloc
#undef realloc
#undef aligned_alloc
#undef strdup

void *sim_malloc(size_t size)
{
    return failing_refuses() ? NULL : malloc(size);
}

void *sim_calloc(size_t n, size_t size)
{
    return failing_refuses() ? NULL : calloc(n, size);
}

void *sim_realloc(void *block, size_t size)
{
    return failing_refuses() ? NULL : realloc(block, size);
}

void *sim_aligned_alloc(size_t align, size_t size)
{
    return failing_refuses() ? NULL : aligned_alloc(align, size);
}

char *sim_strdup(const char *text)
{
    return failing_refuses() ? NULL : strdup(text);
}
