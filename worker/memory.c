// SPDX-License-Identifier: Apache-2.0
#include "worker/memory.h"

#include <stdlib.h>
#include <string.h>

#include "worker/pages.h"

#define KEEP_BYTES (UINT64_C(256) << 20) // of empty mappings, and at most a quarter of the limit

struct worker_memory {
    struct worker_arena *arena;
};

struct worker_memory *worker_memory_host(uint64_t limit_bytes, const struct worker_place *place)
{
    struct worker_memory *memory = calloc(1, sizeof *memory);
    struct worker_arena_options options = {.limit_bytes = limit_bytes,
                                           .keep_bytes =
                                               limit_bytes / 4 < KEEP_BYTES ? limit_bytes / 4 : KEEP_BYTES,
                                           .source = worker_pages_source(place)};
    if (memory)
        memory->arena = worker_arena_new(&options);
    if (memory && memory->arena)
        return memory;
    free(memory);
    return NULL;
}

void worker_memory_free(struct worker_memory *memory)
{
    if (!memory)
        return;
    worker_arena_free(memory->arena);
    free(memory);
}

uint8_t *worker_memory_alloc(struct worker_memory *memory, size_t bytes, uint64_t room)
{
    return worker_arena_alloc(memory->arena, bytes, room);
}

void worker_memory_release(struct worker_memory *memory, uint8_t *allocated)
{
    worker_arena_release(memory->arena, allocated);
}

uint64_t worker_memory_held(const struct worker_memory *memory)
{
    return worker_arena_held(memory->arena);
}

void worker_memory_tidy(struct worker_memory *memory, uint64_t before_ns)
{
    worker_arena_tidy(memory->arena, before_ns);
}

void worker_memory_write(struct worker_memory *memory, const struct worker_piece *pieces, uint32_t n)
{
    (void)memory;
    for (const struct worker_piece *piece = pieces; piece < pieces + n; piece++)
        for (uint64_t i = 0; i < piece->height; i++)
            memcpy(piece->memory + i * piece->pitch, piece->host + i * piece->host_pitch, piece->width);
}

void worker_memory_read(struct worker_memory *memory, const struct worker_piece *pieces, uint32_t n)
{
    (void)memory;
    for (const struct worker_piece *piece = pieces; piece < pieces + n; piece++)
        for (uint64_t i = 0; i < piece->height; i++)
            memcpy(piece->host + i * piece->host_pitch, piece->memory + i * piece->pitch, piece->width);
}

void worker_memory_copy(struct worker_memory *memory, uint8_t *to, const uint8_t *from, size_t bytes)
{
    (void)memory;
    memcpy(to, from, bytes);
}
