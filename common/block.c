// SPDX-License-Identifier: Apache-2.0
#include "common/block.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { KEPT_MAX = 64 };

struct block {
    void *mem;
    size_t cap;
};

static struct {
    pthread_mutex_t lock;
    struct block kept[KEPT_MAX]; // the one given back first comes first
    unsigned n;
    size_t bytes;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct block pool_remove(unsigned i)
{
    struct block block = pool.kept[i];
    pool.n--;
    pool.bytes -= block.cap;
    memmove(pool.kept + i, pool.kept + i + 1, (pool.n - i) * sizeof *pool.kept);
    return block;
}

// The smallest that fits and wastes no more than a quarter; the latest of those, whose pages are in a cache.
static struct block pool_find(size_t bytes)
{
    unsigned best = KEPT_MAX;
    for (unsigned i = 0; i < pool.n; i++) {
        size_t cap = pool.kept[i].cap;
        if (cap >= bytes && cap - bytes <= bytes / 4 && (best == KEPT_MAX || cap <= pool.kept[best].cap))
            best = i;
    }
    return best < KEPT_MAX ? pool_remove(best) : (struct block){0};
}

void *common_block_take(size_t bytes, size_t *cap)
{
    if (bytes > PTRDIFF_MAX - COMMON_BLOCK_MIN)
        return NULL;
    pthread_mutex_lock(&pool.lock);
    struct block block = pool_find(bytes);
    pthread_mutex_unlock(&pool.lock);
    if (!block.mem) {
        block.cap = (bytes + COMMON_BLOCK_MIN - 1) / COMMON_BLOCK_MIN * COMMON_BLOCK_MIN;
        // cppcheck-suppress invalidFunctionArg ; no file: -1
        block.mem = mmap(NULL, block.cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block.mem == MAP_FAILED)
            return NULL;                              // cppcheck-suppress memleak ; there is none
        madvise(block.mem, block.cap, MADV_DONTDUMP); // what goes over links is somebody's data
    }
    *cap = block.cap;
    return block.mem;
}

void common_block_give(void *mem, size_t cap)
{
    if (mem && cap <= COMMON_BLOCK_KEEP / 4) // it is kept, for somebody else
        memset(mem, 0, cap);
    while (mem) { // this one, or those that have to go for it
        struct block gone = {mem, cap};
        pthread_mutex_lock(&pool.lock);
        if (cap <= COMMON_BLOCK_KEEP / 4) { // one giant would drive out all others
            if (pool.n < KEPT_MAX && pool.bytes + cap <= COMMON_BLOCK_KEEP) {
                pool.kept[pool.n++] = gone;
                pool.bytes += cap;
                gone.mem = NULL;
            } else {
                gone = pool_remove(0);
            }
        }
        pthread_mutex_unlock(&pool.lock);
        if (!gone.mem)
            return;
        munmap(gone.mem, gone.cap);
        if (gone.mem == mem)
            return;
    }
}
