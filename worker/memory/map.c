// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/map.h"

#include <stdlib.h>

#include "common/hash/hash.h"

#define MAP_FIRST_CAP 64u // a power of two

static size_t slot_of(const struct worker_map *map, uint64_t key)
{
    return (size_t)common_mix64(key) & (map->cap - 1);
}

// The key's slot, or the free one where it would go. The map has a free slot.
static size_t probe(const struct worker_map *map, uint64_t key)
{
    size_t i = slot_of(map, key);
    while (map->keys[i] != 0 && map->keys[i] != key)
        i = (i + 1) & (map->cap - 1);
    return i;
}

void *worker_map_get(const struct worker_map *map, uint64_t key)
{
    if (map->cap == 0 || key == 0)
        return NULL;
    size_t i = probe(map, key);
    return map->keys[i] == key ? map->values[i] : NULL;
}

static bool grow(struct worker_map *map)
{
    struct worker_map next = {.cap = map->cap ? map->cap * 2 : MAP_FIRST_CAP,
                              .count = map->count,
                              .changes = map->changes};
    next.keys = calloc(next.cap, sizeof *next.keys);
    next.values = calloc(next.cap, sizeof *next.values);
    if (!next.keys || !next.values) {
        free(next.keys);
        free(next.values);
        return false;
    }
    for (size_t i = 0; i < map->cap; i++) {
        if (map->keys[i] == 0)
            continue;
        size_t to = probe(&next, map->keys[i]);
        next.keys[to] = map->keys[i];
        next.values[to] = map->values[i];
    }
    free(map->keys);
    free(map->values);
    *map = next;
    return true;
}

bool worker_map_put(struct worker_map *map, uint64_t key, void *value)
{
    if ((map->count + 1) * 4 > map->cap * 3 && !grow(map))
        return false;
    size_t i = probe(map, key);
    map->keys[i] = key;
    map->values[i] = value;
    map->count++;
    map->changes++;
    return true;
}

void *worker_map_remove(struct worker_map *map, uint64_t key)
{
    if (map->cap == 0 || key == 0)
        return NULL;
    size_t hole = probe(map, key);
    if (map->keys[hole] != key)
        return NULL;
    void *value = map->values[hole];
    // Close the gap: entries pushed past the hole by it move back (Knuth 6.4, algorithm R).
    for (size_t i = (hole + 1) & (map->cap - 1); map->keys[i] != 0; i = (i + 1) & (map->cap - 1)) {
        size_t home = slot_of(map, map->keys[i]);
        if (((i - home) & (map->cap - 1)) < ((i - hole) & (map->cap - 1)))
            continue;
        map->keys[hole] = map->keys[i];
        map->values[hole] = map->values[i];
        hole = i;
    }
    map->keys[hole] = 0;
    map->values[hole] = NULL;
    map->count--;
    map->changes++;
    return value;
}

bool worker_map_next(const struct worker_map *map, size_t *cursor, void **value)
{
    for (; *cursor < map->cap; (*cursor)++) {
        if (map->keys[*cursor] != 0) {
            *value = map->values[(*cursor)++];
            return true;
        }
    }
    return false;
}

void worker_map_free(struct worker_map *map)
{
    free(map->keys);
    free(map->values);
    *map = (struct worker_map){0};
}
