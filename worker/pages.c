// SPDX-License-Identifier: Apache-2.0
#include "worker/pages.h"

#include <sys/mman.h>
#include <unistd.h>

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
    madvise(base, bytes, MADV_DONTDUMP); // K and V are large, and somebody's data
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
    if ((uintptr_t)base % page == 0 && bytes % page == 0) // else too little to mind
        madvise(base, bytes, MADV_DONTNEED);
}

struct worker_arena_source worker_pages_source(const struct worker_place *place)
{
    return (struct worker_arena_source){.map = pages_map,
                                        .unmap = pages_unmap,
                                        .discard = pages_discard,
                                        .addressable = true,
                                        .arg = (void *)(uintptr_t)place};
}
