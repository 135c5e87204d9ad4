// SPDX-License-Identifier: Apache-2.0
// A map from 64-bit ids (never 0) to pointers: open addressing, linear probing, no tombstones. Not
// thread-safe; belongs to the loop thread.
#ifndef WORKER_MAP_H
#define WORKER_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct worker_map { // zero it to begin with
    uint64_t *keys;
    void **values;
    size_t cap, count;
    uint64_t changes; // rises with each put and remove
};

void *worker_map_get(const struct worker_map *map, uint64_t key); // NULL: absent
// The key must be absent and neither it nor the value zero. False: out of memory, nothing changed.
bool worker_map_put(struct worker_map *map, uint64_t key, void *value);
void *worker_map_remove(struct worker_map *map, uint64_t key); // what was there, or NULL
// Goes through the entries: start with *cursor 0; false at the end. The map must not change meanwhile.
bool worker_map_next(const struct worker_map *map, size_t *cursor, void **value);
void worker_map_free(struct worker_map *map); // values are not touched; the map is empty afterwards

#endif
