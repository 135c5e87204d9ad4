// SPDX-License-Identifier: Apache-2.0
// How a long-running process holds on to memory.
#ifndef COMMON_MEMORY_H
#define COMMON_MEMORY_H

// Makes malloc serve blocks of up to 32 MiB from its heap and keep what is freed, instead of mapping each
// block of 128 KiB and more anew: the page faults of fresh memory cost more than the copy into it (a 4 MiB
// put, 2026-11-21, 2-core virtual machine: 40 % of the worker's time). At most 64 MiB at its end stay unused. Blobs of 64 KiB
// and more are not in it (common/block.h). Once, first thing in main.
void common_memory_keep(void);

#endif
