// SPDX-License-Identifier: Apache-2.0
#include "common/memory/memory.h"

#include <malloc.h>

// mallopt(3): what is freed is filled with the low byte, which is zero here; what is given with its
// complement. Zero as a whole would turn it off.
#define WIPE 0x100

void common_memory_wipe(void)
{
    mallopt(M_PERTURB, WIPE);
}

void common_memory_keep(void)
{
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    mallopt(M_TOP_PAD, 16 << 20);
}
