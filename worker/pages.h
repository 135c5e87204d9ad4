// SPDX-License-Identifier: Apache-2.0
// Mappings of the host's memory for an arena: huge pages where the system has them, on the worker's NUMA
// node.
#ifndef WORKER_PAGES_H
#define WORKER_PAGES_H

#include "worker/arena.h"
#include "worker/place.h"

// place, kept: where the memory goes; NULL: anywhere.
struct worker_arena_source worker_pages_source(const struct worker_place *place);

#endif
