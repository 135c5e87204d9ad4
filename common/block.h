// SPDX-License-Identifier: Apache-2.0
// Large blocks of memory for what comes and goes: buffers of messages, results of steps. Each is mapped apart from malloc's
// heap. There an aligned block leaves a hole that the next one of its size does not fit into (glibc before 2.38, bug 14581),
// and small, lasting allocations settle in it: a worker that took puts of 1 MiB occupied twice what it accounted for. Fresh
// pages cost more than the copy into them, so some blocks are kept for the next who asks.
#ifndef COMMON_BLOCK_H
#define COMMON_BLOCK_H

#include <stddef.h>

#define COMMON_BLOCK_MIN  ((size_t)64 << 10) // smaller ones belong to malloc
#define COMMON_BLOCK_KEEP ((size_t)64 << 20) // kept at most, of a process

// A block of at least `bytes`, of whole pages, and at most a quarter more; *cap says how many it has. NULL when memory is short: *cap is as it was.
// Contents are zeros. Any thread.
void *common_block_take(size_t bytes, size_t *cap);
// cap as take has said it. Any thread. NULL is allowed.
void common_block_give(void *block, size_t cap);

#endif
