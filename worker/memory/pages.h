// SPDX-License-Identifier: Apache-2.0
// Mappings of the host's memory for an arena: huge pages where the system has them, on the worker's NUMA
// node.
#ifndef WORKER_PAGES_H
#define WORKER_PAGES_H

#include "worker/memory/arena.h"
#include "worker/memory/place.h"

// place, kept: where the memory goes; NULL: anywhere.
struct worker_arena_source worker_pages_source(const struct worker_place *place);

// `bytes` of memory that the system has given before anything needs it, and that stays: whole mappings of an arena. Blocks
// while the system clears it, some 0.1 s a GiB, or 2 to 3 s where a virtual machine's host has to find it first. NULL: the
// system does not have so much; nothing of it is kept.
struct worker_pages *worker_pages_new(uint64_t bytes, const struct worker_place *place);
void worker_pages_free(struct worker_pages *pages); // after the arena; NULL is allowed
// What an arena needs beyond these, or in other sizes, it gets as from worker_pages_source.
struct worker_arena_source worker_pages_ready_source(struct worker_pages *pages);

#endif
