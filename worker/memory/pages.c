// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/pages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct worker_pages {
    const struct worker_place *place;
    uint32_t n, max;
    void *ready[]; // of WORKER_ARENA_MAPPING bytes each
};

// madvise's answers are not looked at: a system without huge pages serves small ones.
static void *pages_map(void *arg, size_t bytes)
{
    const struct worker_place *place = arg;
    const size_t huge = WORKER_ARENA_HUGE;
    size_t extra = bytes % huge == 0 ? huge : 0; // to find a place that is aligned
    if (bytes > SIZE_MAX - extra)
        return NULL;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // cppcheck-suppress invalidFunctionArg ; no file: -1
    void *whole = mmap(NULL, bytes + extra, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (whole == MAP_FAILED)
        return NULL;
    uint8_t *base = whole;
    if (extra > 0) {
        size_t before = (huge - (uintptr_t)whole % huge) % huge;
        base += before;
        if (before > 0)
            munmap(whole, before);
        if (extra > before)
            munmap(base + bytes, extra - before);
        madvise(base, bytes, MADV_HUGEPAGE);
    }
    madvise(base, bytes, MADV_DONTDUMP); // K and V are large, and users' data
    if (place)
        worker_place_bind_memory(place, base, bytes);
    return base;
}

static void pages_unmap(void *arg, void *base, size_t bytes)
{
    (void)arg;
    munmap(base, bytes);
}

static void pages_discard(void *arg, void *base, size_t bytes)
{
    (void)arg;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bool whole = (uintptr_t)base % page == 0 && bytes % page == 0; // else too little to mind
    if (!whole || madvise(base, bytes, MADV_DONTNEED) != 0)
        memset(base, 0, bytes);
}

struct worker_arena_source worker_pages_source(const struct worker_place *place)
{
    return (struct worker_arena_source){.map = pages_map,
                                        .unmap = pages_unmap,
                                        .discard = pages_discard,
                                        .zeros = true,
                                        .addressable = true,
                                        .arg = (void *)(uintptr_t)place};
}

// ---- ready ones ---------------------------------------------------------------------------------

// False: the system has no memory for them.
static bool pages_populate(uint8_t *base, size_t bytes)
{
    if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno != EINVAL)
        return false;
    size_t page = (size_t)sysconf(_SC_PAGESIZE); // Linux before 5.14
    for (size_t at = 0; at < bytes; at += page)
        *(volatile uint8_t *)(base + at) = 0;
    return true;
}

struct worker_pages *worker_pages_new(uint64_t bytes, const struct worker_place *place)
{
    uint64_t max = bytes / WORKER_ARENA_MAPPING + (bytes % WORKER_ARENA_MAPPING != 0);
    if (bytes < WORKER_ARENA_MAPPING) // an arena of this size has smaller mappings
        max = 0;
    if (max > UINT32_MAX)
        return NULL;
    struct worker_pages *pages = calloc(1, sizeof *pages + max * sizeof *pages->ready);
    if (!pages)
        return NULL;
    pages->place = place;
    pages->max = (uint32_t)max;
    while (pages->n < pages->max) {
        void *base = pages_map((void *)(uintptr_t)place, WORKER_ARENA_MAPPING);
        if (base)
            pages->ready[pages->n++] = base;
        if (!base || !pages_populate(base, WORKER_ARENA_MAPPING)) {
            worker_pages_free(pages);
            return NULL;
        }
    }
    return pages;
}

void worker_pages_free(struct worker_pages *pages)
{
    if (!pages)
        return;
    while (pages->n > 0)
        munmap(pages->ready[--pages->n], WORKER_ARENA_MAPPING);
    free(pages);
}

static void *ready_map(void *arg, size_t bytes)
{
    struct worker_pages *pages = arg;
    if (bytes == WORKER_ARENA_MAPPING && pages->n > 0)
        return pages->ready[--pages->n];
    return pages_map((void *)(uintptr_t)pages->place, bytes);
}

static void ready_unmap(void *arg, void *base, size_t bytes)
{
    struct worker_pages *pages = arg;
    if (bytes == WORKER_ARENA_MAPPING && pages->n < pages->max)
        pages->ready[pages->n++] = base;
    else
        munmap(base, bytes);
}

static void ready_discard(void *arg, void *base, size_t bytes)
{
    (void)arg;
    (void)base;
    (void)bytes; // it stays, for what comes next
}

struct worker_arena_source worker_pages_ready_source(struct worker_pages *pages)
{
    return (struct worker_arena_source){.map = ready_map,
                                        .unmap = ready_unmap,
                                        .discard = ready_discard,
                                        .addressable = true,
                                        .keeps = true,
                                        .arg = pages};
}
