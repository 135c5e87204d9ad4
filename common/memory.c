// SPDX-License-Identifier: Apache-2.0
#include "common/memory.h"

#include <malloc.h>

void common_memory_keep(void)
{
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    mallopt(M_TOP_PAD, 16 << 20);
}
