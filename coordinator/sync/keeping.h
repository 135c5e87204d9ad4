// SPDX-License-Identifier: Apache-2.0
// How often a worker keeps a chunk, counted over sessions (returned.h): forks share chunks. A hash table, so that asking
// costs the same however many sessions keep something.
#ifndef COORDINATOR_KEEPING_H
#define COORDINATOR_KEEPING_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator_kept_chunk {
    uint64_t chunk;         // its id
    uint32_t worker, times; // the slot; times 0: a free place
};

struct coordinator_keeping {
    struct coordinator_kept_chunk *places; // [cap], owned; cap: 0 or a power of two
    uint32_t cap, used;
};

void coordinator_keeping_add(struct coordinator_keeping *keeping, uint32_t worker, uint64_t chunk);
void coordinator_keeping_remove(struct coordinator_keeping *keeping, uint32_t worker,
                                uint64_t chunk); // what was added
bool coordinator_keeping_has(const struct coordinator_keeping *keeping, uint32_t worker, uint64_t chunk);
void coordinator_keeping_fini(struct coordinator_keeping *keeping);

#endif
