// SPDX-License-Identifier: Apache-2.0
// Memory for pages and blocks of K and V: one set of functions, whatever the memory is. Belongs to the loop
// thread.
#ifndef WORKER_MEMORY_H
#define WORKER_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "worker/place.h"

struct worker_memory; // opaque

// A rectangle of bytes: `height` rows of `width` bytes, here and in ordinary memory, each row a pitch after
// the one before.
struct worker_piece {
    uint8_t *memory; // in this memory
    uint64_t pitch;
    uint8_t *host; // read by write, filled by read
    uint64_t host_pitch, width, height;
};

// This process's: huge pages, on the place's NUMA node (kept; NULL: anywhere). At most limit_bytes will be
// asked of it. NULL: out of memory.
struct worker_memory *worker_memory_host(uint64_t limit_bytes, const struct worker_place *place);
void worker_memory_free(struct worker_memory *memory); // nothing is allocated; NULL is allowed

// See worker/arena.h.
uint8_t *worker_memory_alloc(struct worker_memory *memory, size_t bytes, uint64_t room);
void worker_memory_release(struct worker_memory *memory, uint8_t *allocated); // NULL is allowed
uint64_t worker_memory_held(const struct worker_memory *memory);
void worker_memory_tidy(struct worker_memory *memory, uint64_t before_ns);

void worker_memory_write(struct worker_memory *memory, const struct worker_piece *pieces, uint32_t n);
void worker_memory_read(struct worker_memory *memory, const struct worker_piece *pieces, uint32_t n);
void worker_memory_copy(struct worker_memory *memory, uint8_t *to, const uint8_t *from, size_t bytes);

#endif
