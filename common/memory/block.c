// SPDX-License-Identifier: Apache-2.0
#include "common/memory/block.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/memory/wipe.h"

#define SMALLEST   ((size_t)1 << 10)
#define MAPPED     ((size_t)64 << 10)      // from this size on blocks are mapped
#define LARGEST    (COMMON_BLOCK_KEEP / 4) // larger ones are not kept: one giant would drive out all others
#define LOOKED_AT  16                      // kept blocks of a class, for one of the same owner
#define PAGE       ((size_t)4096)
#define SMALL_BITS 10
#define BIG_BITS   24

enum { CLASSES = (BIG_BITS - SMALL_BITS) * 4 + 1, UNKEPT = CLASSES };
_Static_assert(SMALLEST == (size_t)1 << SMALL_BITS && LARGEST == (size_t)1 << BIG_BITS, "the classes' ends");

// In front of what is handed out.
struct block {
    struct block *fore, *aft;      // kept: of its class, the one given back last first
    struct block *younger, *older; // kept: of all
    size_t size;                   // with this
    size_t soiled;                 // bytes behind this that may hold something
    uint64_t owner;                // of what they hold
    uint32_t era;                  // what was over when it was handed out
    uint16_t class;
    uint16_t age; // kept: the period in which it was given back
};
_Static_assert(sizeof(struct block) == COMMON_BLOCK_ALIGN, "what is handed out is aligned");

static struct {
    pthread_mutex_t lock;
    struct block *first[CLASSES];
    struct block *youngest, *oldest;
    size_t bytes;
    uint16_t age;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static atomic_uint era; // of hand-overs
static atomic_uint_least64_t owners;

// The address sanitizer only tracks malloc's blocks; and tests that refuse memory count what is asked for.
#if defined(__SANITIZE_ADDRESS__) || defined(COMMON_BLOCK_UNKEPT)
#define KEEPS false
#else
#define KEEPS true
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, bytes)   ((void)(memory), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes) ((void)(memory), (void)(bytes))
#endif

uint64_t common_block_owner(void)
{
    return atomic_fetch_add_explicit(&owners, 1, memory_order_relaxed) + 1;
}

void common_block_hand_over(void)
{
    atomic_fetch_add_explicit(&era, 1, memory_order_relaxed);
}

// ---- sizes --------------------------------------------------------------------------------------

// The class that holds `bytes`, and its size:   1024 | 1280 1536 1792 2048 | 2560 3072 3584 4096 | ...
static uint16_t class_of(size_t bytes, size_t *size)
{
    if (bytes <= SMALLEST) {
        *size = SMALLEST;
        return 0;
    }
    if (bytes > LARGEST) {
        *size = (bytes + PAGE - 1) / PAGE * PAGE;
        return UNKEPT;
    }
    unsigned bits = 63 - (unsigned)__builtin_clzll(bytes - 1); // 2^bits < bytes <= 2^(bits + 1)
    size_t quarter = (size_t)1 << (bits - 2), nth = (bytes - 1 - ((size_t)1 << bits)) / quarter;
    *size = ((size_t)1 << bits) + (nth + 1) * quarter;
    return (uint16_t)((bits - SMALL_BITS) * 4 + nth + 1);
}

// ---- lists --------------------------------------------------------------------------------------

static void unlist(struct block *block)
{
    *(block->fore ? &block->fore->aft : &pool.first[block->class]) = block->aft;
    if (block->aft)
        block->aft->fore = block->fore;
    *(block->younger ? &block->younger->older : &pool.youngest) = block->older;
    *(block->older ? &block->older->younger : &pool.oldest) = block->younger;
    pool.bytes -= block->size;
}

static void list(struct block *block)
{
    block->fore = NULL;
    block->aft = pool.first[block->class];
    if (block->aft)
        block->aft->fore = block;
    pool.first[block->class] = block;
    block->younger = NULL;
    block->older = pool.youngest;
    *(pool.youngest ? &pool.youngest->younger : &pool.oldest) = block;
    pool.youngest = block;
    pool.bytes += block->size;
}

// ---- wiping -------------------------------------------------------------------------------------

static void wipe(struct block *block)
{
    common_wipe(block + 1, block->soiled);
    block->soiled = 0;
}

static bool is_over(const struct block *block)
{
    return block->era != atomic_load_explicit(&era, memory_order_relaxed);
}

// Gives it back to the system.
static void release(struct block *block)
{
    if (block->size >= MAPPED) {
        munmap(block, block->size);
    } else {
        wipe(block);
        free(block);
    }
}

// ---- taking and giving --------------------------------------------------------------------------

// Best the one whose pages are in a cache: of the same owner, or clean; else whatever there is of its size,
// because it is wiped in less time than fresh pages take.
static struct block *find(uint16_t class, uint64_t owner)
{
    struct block *best = NULL, *block = pool.first[class];
    for (unsigned n = 0; block && n < LOOKED_AT; block = block->aft, n++) {
        if (block->owner == owner && !is_over(block)) {
            best = block;
            break;
        }
        if (!best || (best->soiled > 0 && block->soiled == 0))
            best = block;
    }
    if (best)
        unlist(best);
    return best;
}

static struct block *map(size_t size)
{
    // cppcheck-suppress invalidFunctionArg ; no file: -1
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;                      // cppcheck-suppress memleak ; there is none
    madvise(memory, size, MADV_DONTDUMP); // what goes over links is users' data
    return memory;
}

void *common_block_take(size_t bytes, uint64_t owner)
{
    size_t size;
    if (bytes > PTRDIFF_MAX - sizeof(struct block) - PAGE)
        return NULL;
    uint16_t class = class_of(bytes + sizeof(struct block), &size);
    struct block *block = NULL;
    if (KEEPS && class < UNKEPT) {
        pthread_mutex_lock(&pool.lock);
        block = find(class, owner);
        pthread_mutex_unlock(&pool.lock);
    }
    if (block && block->soiled > 0 && (block->owner != owner || is_over(block)))
        wipe(block);
    if (!block) {
        block = KEEPS && size >= MAPPED ? map(size) : aligned_alloc(COMMON_BLOCK_ALIGN, size);
        if (!block)
            return NULL;
        block->size = size;
        block->class = class;
        block->soiled = 0;
    }
    block->owner = owner;
    block->era = atomic_load_explicit(&era, memory_order_relaxed);
    block->soiled = bytes > block->soiled ? bytes : block->soiled;
    ASAN_POISON_MEMORY_REGION((uint8_t *)(block + 1) + bytes, size - sizeof *block - bytes);
    return block + 1;
}

void *common_block_zeros(size_t bytes)
{
    void *memory = common_block_take(bytes, COMMON_BLOCK_DAEMONS);
    return memory ? memset(memory, 0, bytes) : NULL;
}

void common_block_give(void *memory)
{
    if (!memory)
        return;
    struct block *block = (struct block *)memory - 1, *gone = NULL;
    ASAN_UNPOISON_MEMORY_REGION(memory, block->size - sizeof *block);
    if (!KEEPS) {
        free(block);
        return;
    }
    if (block->class == UNKEPT) {
        release(block);
        return;
    }
    pthread_mutex_lock(&pool.lock);
    block->age = pool.age;
    list(block);
    while (pool.bytes > COMMON_BLOCK_KEEP) {
        struct block *oldest = pool.oldest;
        unlist(oldest);
        oldest->aft = gone;
        gone = oldest;
    }
    pthread_mutex_unlock(&pool.lock);
    while (gone) {
        struct block *next = gone->aft;
        release(gone);
        gone = next;
    }
}

// ---- cleaning -----------------------------------------------------------------------------------

static bool is_due(const struct block *block)
{
    return block->soiled > 0 && (is_over(block) || (uint16_t)(pool.age - block->age) > 1);
}

bool common_block_clean(size_t most, bool age)
{
    bool more = false;
    size_t done = 0;
    pthread_mutex_lock(&pool.lock);
    pool.age += age;
    for (struct block *block = pool.oldest; block && !more; block = block->younger) {
        if (!is_due(block))
            continue;
        more = done > 0 && done + block->soiled > most;
        if (more)
            break;
        done += block->soiled;
        wipe(block); // under the lock: a wipe takes less time than it takes to miss the block
    }
    pthread_mutex_unlock(&pool.lock);
    return more;
}
