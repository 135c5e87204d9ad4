// SPDX-License-Identifier: Apache-2.0
// How a long-running process holds on to memory.
#ifndef COMMON_MEMORY_H
#define COMMON_MEMORY_H

// Makes malloc serve blocks of up to 32 MiB from its heap and keep what is freed, instead of mapping each
// block of 128 KiB and more freshly: the page faults of fresh memory cost more than the copy into it (a 4 MiB
// put, 2026-11-21, 2-core virtual machine: 40 % of the worker's time). At most 64 MiB at its end stay unused.
// Blobs of 64 KiB and more are not in it (common/memory/block.h). Once, first thing in main.
void common_memory_keep(void);

// Makes malloc overwrite what is freed, and what it gives, where it has more than some 1 KiB (smaller blocks
// are kept by each thread as they are): rows, answers and messages of one session are not found in memory
// that another one gets. What comes and goes with every step is in blocks, which are wiped when they change
// hands and not before (common/memory/block.h). Once, first thing in main; of glibc alone, not with
// sanitizers.
void common_memory_wipe(void);

#endif
