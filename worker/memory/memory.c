// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/memory.h"

#include <stdlib.h>
#include <string.h>

#include "worker/memory/pages.h"

#define KEEP_BYTES (UINT64_C(256) << 20) // of empty mappings, and at most a quarter of the limit

struct worker_memory {
    const struct worker_memory_ops *ops;
    void *arg;
    struct worker_device *device;
    struct worker_arena *arena;
    void (*soiled)(void *arg);
    void *soiled_arg;
    struct worker_pages *pages; // that the arena has; NULL: of the system as it needs them
};

static void memory_soiled(void *arg)
{
    const struct worker_memory *memory = arg;
    if (memory->soiled)
        memory->soiled(memory->soiled_arg);
}

struct worker_memory *worker_memory_new(uint64_t limit_bytes, const struct worker_arena_source *source,
                                        const struct worker_memory_ops *ops, void *arg,
                                        struct worker_device *device)
{
    struct worker_memory *memory = calloc(1, sizeof *memory);
    struct worker_arena_options options = {.limit_bytes = limit_bytes,
                                           .keep_bytes =
                                               limit_bytes / 4 < KEEP_BYTES ? limit_bytes / 4 : KEEP_BYTES,
                                           .soiled = memory_soiled,
                                           .soiled_arg = memory,
                                           .source = *source};
    if (source->keeps)
        options.keep_bytes = UINT64_MAX; // they are cleaned where they are
    if (memory)
        memory->arena = worker_arena_new(&options);
    if (!memory || !memory->arena) {
        free(memory);
        return NULL;
    }
    memory->ops = ops;
    memory->arg = arg;
    memory->device = device;
    return memory;
}

void worker_memory_free(struct worker_memory *memory)
{
    if (!memory)
        return;
    worker_arena_free(memory->arena);
    worker_pages_free(memory->pages);
    free(memory);
}

struct worker_device *worker_memory_device(const struct worker_memory *memory)
{
    return memory->device;
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

void worker_memory_on_soiled(struct worker_memory *memory, void (*fn)(void *arg), void *arg)
{
    memory->soiled = fn;
    memory->soiled_arg = arg;
}

bool worker_memory_clean(struct worker_memory *memory, uint64_t most_bytes)
{
    return worker_arena_clean(memory->arena, most_bytes);
}

void worker_memory_tidy(struct worker_memory *memory, uint64_t before_ns)
{
    worker_arena_tidy(memory->arena, before_ns);
}

void worker_memory_write(struct worker_memory *memory, const struct worker_piece *pieces, uint32_t n)
{
    memory->ops->write(memory->arg, pieces, n);
}

void worker_memory_read(struct worker_memory *memory, const struct worker_piece *pieces, uint32_t n)
{
    memory->ops->read(memory->arg, pieces, n);
}

void worker_memory_copy(struct worker_memory *memory, const struct worker_copy *copies, uint32_t n)
{
    memory->ops->copy(memory->arg, copies, n);
}

bool worker_memory_lost(struct worker_memory *memory, struct common_error *err)
{
    return memory->ops->lost && memory->ops->lost(memory->arg, err);
}

// ---- the host's ---------------------------------------------------------------------------------

static void host_write(void *arg, const struct worker_piece *pieces, uint32_t n)
{
    (void)arg;
    for (const struct worker_piece *piece = pieces; piece < pieces + n; piece++)
        for (uint64_t i = 0; i < piece->height; i++)
            memcpy(piece->memory + i * piece->pitch, piece->host + i * piece->host_pitch, piece->width);
}

static void host_read(void *arg, const struct worker_piece *pieces, uint32_t n)
{
    (void)arg;
    for (const struct worker_piece *piece = pieces; piece < pieces + n; piece++)
        for (uint64_t i = 0; i < piece->height; i++)
            memcpy(piece->host + i * piece->host_pitch, piece->memory + i * piece->pitch, piece->width);
}

static void host_copy(void *arg, const struct worker_copy *copies, uint32_t n)
{
    (void)arg;
    for (const struct worker_copy *copy = copies; copy < copies + n; copy++)
        for (uint64_t i = 0; i < copy->height; i++)
            memcpy(copy->to + i * copy->to_pitch, copy->from + i * copy->from_pitch, copy->width);
}

static const struct worker_memory_ops host_ops = {.write = host_write, .read = host_read, .copy = host_copy};

struct worker_memory *worker_memory_host(uint64_t limit_bytes, const struct worker_place *place)
{
    struct worker_arena_source source = worker_pages_source(place);
    return worker_memory_new(limit_bytes, &source, &host_ops, NULL, NULL);
}

struct worker_memory *worker_memory_host_ready(uint64_t limit_bytes, const struct worker_place *place)
{
    struct worker_pages *pages = worker_pages_new(limit_bytes, place);
    if (!pages)
        return NULL;
    struct worker_arena_source source = worker_pages_ready_source(pages);
    struct worker_memory *memory = worker_memory_new(limit_bytes, &source, &host_ops, NULL, NULL);
    if (memory)
        memory->pages = pages;
    else
        worker_pages_free(pages);
    return memory;
}
