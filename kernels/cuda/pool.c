// SPDX-License-Identifier: Apache-2.0
// Blocks of device memory, cut from few large regions; the books are on the host.
//
// A region is an array of granules. A node (one a granule, used only at the first granule of a block or of a
// free stretch, and by free stretches at their last one, too) says how long it is. Free stretches hang in
// lists by the power of two of their length; a block comes from a list whose stretches all fit, after a short
// look at those of the next lower one. Neighbours that are free are joined at once.
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/internal.h"

#define LISTS 32u
#define LOOKS 16u

struct node {
    uint32_t length;     // granules of the stretch that starts here; at a free stretch's end: the same
    uint32_t start;      // of a block's granules: its first one + 1; 0 = free
    uint64_t next, prev; // free stretches: (region << 32 | granule), UINT64_MAX = none
};

struct region {
    uint64_t base;
    uint32_t granules;
    struct node *nodes;
};

struct cuda_pool {
    struct region *regions;
    uint32_t count;
    uint64_t lists[LISTS];
    uint64_t used;
};

#define END UINT64_MAX

static struct node *node_at(const struct cuda_pool *pool, uint64_t id)
{
    return &pool->regions[id >> 32].nodes[(uint32_t)id];
}

static uint32_t list_of(uint32_t length)
{
    return 31u - (uint32_t)__builtin_clz(length);
}

static void list_add(struct cuda_pool *pool, uint64_t id, uint32_t length)
{
    struct node *node = node_at(pool, id);
    uint64_t *head = &pool->lists[list_of(length)];
    node->length = length;
    node->start = 0;
    node->prev = END;
    node->next = *head;
    if (*head != END)
        node_at(pool, *head)->prev = id;
    *head = id;
    struct node *last = node_at(pool, id + length - 1);
    last->length = length;
    last->start = 0;
}

static void list_remove(struct cuda_pool *pool, uint64_t id)
{
    struct node *node = node_at(pool, id);
    if (node->prev == END)
        pool->lists[list_of(node->length)] = node->next;
    else
        node_at(pool, node->prev)->next = node->next;
    if (node->next != END)
        node_at(pool, node->next)->prev = node->prev;
}

struct cuda_pool *cuda_pool_new(void)
{
    struct cuda_pool *pool = calloc(1, sizeof(*pool));
    if (pool)
        memset(pool->lists, 0xff, sizeof(pool->lists));
    return pool;
}

void cuda_pool_free(struct cuda_pool *pool)
{
    if (!pool)
        return;
    for (uint32_t i = 0; i < pool->count; i++)
        free(pool->regions[i].nodes);
    free(pool->regions);
    free(pool);
}

bool cuda_pool_add(struct cuda_pool *pool, uint64_t base, uint64_t bytes)
{
    uint32_t granules = (uint32_t)(bytes / CUDA_GRANULE);
    struct region *grown = realloc(pool->regions, (pool->count + 1) * sizeof(*grown));
    if (!grown)
        return false;
    pool->regions = grown;
    struct node *nodes = calloc(granules, sizeof(*nodes));
    if (!nodes)
        return false;
    pool->regions[pool->count] = (struct region){.base = base, .granules = granules, .nodes = nodes};
    list_add(pool, (uint64_t)pool->count << 32, granules);
    pool->count++;
    return true;
}

uint64_t cuda_pool_take(struct cuda_pool *pool, uint64_t bytes)
{
    if (bytes == 0 || bytes > CUDA_REGION)
        return 0;
    uint32_t length = (uint32_t)((bytes + CUDA_GRANULE - 1) / CUDA_GRANULE), list = list_of(length);
    uint64_t id = pool->lists[list];
    for (uint32_t i = 0; i < LOOKS && id != END && node_at(pool, id)->length < length; i++)
        id = node_at(pool, id)->next;
    if (id != END && node_at(pool, id)->length < length)
        id = END;
    while (id == END && ++list < LISTS)
        id = pool->lists[list];
    if (id == END)
        return 0;
    uint32_t rest = node_at(pool, id)->length - length, first = (uint32_t)id;
    list_remove(pool, id);
    if (rest > 0)
        list_add(pool, id + length, rest);
    struct region *region = &pool->regions[id >> 32];
    region->nodes[first].length = length;
    for (uint32_t i = 0; i < length; i++)
        region->nodes[first + i].start = first + 1;
    pool->used += (uint64_t)length * CUDA_GRANULE;
    return region->base + (uint64_t)first * CUDA_GRANULE;
}

static struct region *region_of(const struct cuda_pool *pool, uint64_t address)
{
    for (uint32_t i = pool->count; i-- > 0;) { // the newest is asked for most
        struct region *region = &pool->regions[i];
        if (address >= region->base && address - region->base < (uint64_t)region->granules * CUDA_GRANULE)
            return region;
    }
    return NULL;
}

bool cuda_pool_block(const struct cuda_pool *pool, uint64_t address, uint64_t *start, uint64_t *end)
{
    const struct region *region = region_of(pool, address);
    if (!region)
        return false;
    uint32_t first = region->nodes[(address - region->base) / CUDA_GRANULE].start;
    if (first == 0)
        return false;
    *start = region->base + (uint64_t)(first - 1) * CUDA_GRANULE;
    *end = *start + (uint64_t)region->nodes[first - 1].length * CUDA_GRANULE;
    return true;
}

void cuda_pool_give(struct cuda_pool *pool, uint64_t address)
{
    struct region *region = region_of(pool, address);
    if (!region)
        return;
    uint32_t first = (uint32_t)((address - region->base) / CUDA_GRANULE);
    if (region->nodes[first].start != first + 1 || (address - region->base) % CUDA_GRANULE != 0)
        return;
    uint32_t length = region->nodes[first].length;
    uint64_t id = (uint64_t)(region - pool->regions) << 32 | first;
    pool->used -= (uint64_t)length * CUDA_GRANULE;
    for (uint32_t i = 0; i < length; i++)
        region->nodes[first + i].start = 0;
    uint32_t after = first + length;
    if (after < region->granules && region->nodes[after].start == 0) {
        uint32_t more = region->nodes[after].length;
        list_remove(pool, id + length);
        length += more;
    }
    if (first > 0 && region->nodes[first - 1].start == 0) {
        uint32_t more = region->nodes[first - 1].length;
        id -= more;
        list_remove(pool, id);
        length += more;
    }
    list_add(pool, id, length);
}

uint64_t cuda_pool_used(const struct cuda_pool *pool)
{
    return pool->used;
}

uint32_t cuda_pool_regions(const struct cuda_pool *pool)
{
    return pool->count;
}

uint64_t cuda_pool_region(const struct cuda_pool *pool, uint32_t i)
{
    return pool->regions[i].base;
}
