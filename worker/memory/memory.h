// SPDX-License-Identifier: Apache-2.0
// Memory for pages and blocks of K and V: one set of functions, whatever the memory is. Belongs to the loop
// thread.
#ifndef WORKER_MEMORY_H
#define WORKER_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "worker/memory/place.h"

struct worker_arena_source;
struct worker_device;
struct worker_memory; // opaque

// A rectangle of bytes: `height` rows of `width` bytes, here and in ordinary memory, each row a pitch after
// the one before.
struct worker_piece {
    uint8_t *memory; // in this memory
    uint64_t pitch;
    uint8_t *host; // read by write, filled by read
    uint64_t host_pitch, width, height;
};

// A rectangle of bytes within this memory; `to` and `from` do not overlap.
struct worker_copy {
    uint8_t *to;
    uint64_t to_pitch;
    const uint8_t *from;
    uint64_t from_pitch, width, height;
};

struct worker_memory_ops { // of a kind of memory
    void (*write)(void *arg, const struct worker_piece *pieces, uint32_t n);
    void (*read)(void *arg, const struct worker_piece *pieces, uint32_t n);
    void (*copy)(void *arg, const struct worker_copy *copies, uint32_t n);
    bool (*lost)(void *arg, struct common_error *err); // NULL: it never is
};

// At most limit_bytes will be asked of it. device: what computes in this memory, NULL for this process.
// NULL: out of memory.
struct worker_memory *worker_memory_new(uint64_t limit_bytes, const struct worker_arena_source *source,
                                        const struct worker_memory_ops *ops, void *arg,
                                        struct worker_device *device);
// This process's: huge pages, on the place's NUMA node (kept; NULL: anywhere).
struct worker_memory *worker_memory_host(uint64_t limit_bytes, const struct worker_place *place);
// The same, all of it given by the system now and kept (worker/memory/pages.h). Blocks.
struct worker_memory *worker_memory_host_ready(uint64_t limit_bytes, const struct worker_place *place);
void worker_memory_free(struct worker_memory *memory); // nothing is allocated; NULL is allowed

struct worker_device *worker_memory_device(const struct worker_memory *memory); // NULL: the host's memory

// See arena.h.
uint8_t *worker_memory_alloc(struct worker_memory *memory, size_t bytes, uint64_t room);
void worker_memory_release(struct worker_memory *memory, uint8_t *allocated); // NULL is allowed
uint64_t worker_memory_held(const struct worker_memory *memory);
// worker_arena_clean; fn is called when there is something to clean, where there was nothing. See arena.h.
void worker_memory_on_soiled(struct worker_memory *memory, void (*fn)(void *arg), void *arg);
bool worker_memory_clean(struct worker_memory *memory, uint64_t most_bytes);
void worker_memory_tidy(struct worker_memory *memory, uint64_t before_ns);

// They take effect in order. Memory that is lost takes no bytes and gives zeros: who goes on from what was
// written or read asks for worker_memory_lost first.
void worker_memory_write(struct worker_memory *memory, const struct worker_piece *pieces, uint32_t n);
void worker_memory_read(struct worker_memory *memory, const struct worker_piece *pieces, uint32_t n);
// Of a call's copies none reads or writes what another writes. A device has few large calls rather than many.
void worker_memory_copy(struct worker_memory *memory, const struct worker_copy *copies, uint32_t n);
bool worker_memory_lost(struct worker_memory *memory, struct common_error *err); // for good; says why

#endif
