// SPDX-License-Identifier: Apache-2.0
#include "common/base/handle.h"

#include <stdlib.h>

// handle = | life: 20 bits | uses: 12 bits | slot + 1: 32 bits |
// `uses` counts how often the slot was given out in this life. A slot whose count is used up is retired,
// which costs one slot (16 bytes) in 4096 handles; `limit` bounds the live objects, not the slots.
#define USE_BITS 12
#define USES_MAX ((1u << USE_BITS) - 1)
#define NO_SLOT  UINT32_MAX

struct slot {
    void *object; // NULL: free or retired
    uint32_t generation;
    uint32_t next_free;
};

struct common_handle_table {
    struct slot *slots;
    uint32_t n_slots, cap_slots;
    uint32_t free_slot; // list through next_free
    uint32_t count, limit;
    uint32_t first_generation;
};

struct common_handle_table *common_handle_table_new(uint32_t limit, uint32_t first_generation)
{
    struct common_handle_table *table = calloc(1, sizeof *table);
    if (!table)
        return NULL;
    table->limit = limit;
    table->first_generation = first_generation << USE_BITS;
    table->free_slot = NO_SLOT;
    return table;
}

void common_handle_table_free(struct common_handle_table *table)
{
    if (!table)
        return;
    free(table->slots);
    free(table);
}

static enum common_code grow(struct common_handle_table *table)
{
    if (table->n_slots < table->cap_slots)
        return COMMON_OK;
    uint32_t cap = table->cap_slots ? table->cap_slots * 2 : 16;
    if (table->cap_slots >= UINT32_C(1) << 30)
        return COMMON_RESOURCE_EXHAUSTED;
    struct slot *slots = reallocarray(table->slots, cap, sizeof *slots);
    if (!slots)
        return COMMON_RESOURCE_EXHAUSTED;
    table->slots = slots;
    table->cap_slots = cap;
    return COMMON_OK;
}

enum common_code common_handle_add(struct common_handle_table *table, void *object, uint64_t *out)
{
    if (!object)
        return COMMON_INVALID_ARGUMENT;
    if (table->count >= table->limit)
        return COMMON_RESOURCE_EXHAUSTED;
    uint32_t i = table->free_slot;
    if (i != NO_SLOT) {
        table->free_slot = table->slots[i].next_free;
    } else {
        if (grow(table) != COMMON_OK)
            return COMMON_RESOURCE_EXHAUSTED;
        i = table->n_slots++;
        table->slots[i] = (struct slot){.generation = table->first_generation};
    }
    table->slots[i].object = object;
    table->count++;
    *out = (uint64_t)table->slots[i].generation << 32 | (i + 1);
    return COMMON_OK;
}

static struct slot *slot_find(const struct common_handle_table *table, uint64_t handle)
{
    uint32_t i = (uint32_t)handle - 1; // slot 0 of a zero handle wraps to the largest number
    if (i >= table->n_slots)
        return NULL;
    struct slot *slot = &table->slots[i];
    return slot->object && slot->generation == handle >> 32 ? slot : NULL;
}

void *common_handle_get(const struct common_handle_table *table, uint64_t handle)
{
    struct slot *slot = slot_find(table, handle);
    return slot ? slot->object : NULL;
}

void *common_handle_remove(struct common_handle_table *table, uint64_t handle)
{
    struct slot *slot = slot_find(table, handle);
    if (!slot)
        return NULL;
    void *object = slot->object;
    slot->object = NULL;
    table->count--;
    if ((slot->generation & USES_MAX) != USES_MAX) {
        slot->generation++;
        slot->next_free = table->free_slot;
        table->free_slot = (uint32_t)(slot - table->slots);
    }
    return object;
}
