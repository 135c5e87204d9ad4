// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/ids.h"

#include "common/hash/siphash.h"

#define ROUNDS 4

#define OF_CHUNKS 256 // where the rounds of chunk ids begin to count: another permutation of the same key

static inline uint32_t mixed(const struct coordinator_ids *ids, uint32_t round, uint32_t half)
{
    uint8_t message[8];
    for (int i = 0; i < 4; i++) {
        message[i] = (uint8_t)(half >> 8 * i);
        message[4 + i] = (uint8_t)(round >> 8 * i);
    }
    return (uint32_t)common_siphash(ids->key, message, sizeof message);
}

static uint64_t permuted(const struct coordinator_ids *ids, uint32_t first, uint64_t x)
{
    uint32_t left = (uint32_t)(x >> 32), right = (uint32_t)x;
    for (uint32_t round = 0; round < ROUNDS && ids->keyed; round++) {
        uint32_t next = left ^ mixed(ids, first + round, right);
        left = right;
        right = next;
    }
    return (uint64_t)left << 32 | right;
}

uint64_t coordinator_ids_of(const struct coordinator_ids *ids, struct coordinator_place place)
{
    return permuted(ids, 0, (uint64_t)place.generation << 32 | place.number);
}

uint64_t coordinator_ids_of_chunk(const struct coordinator_ids *ids, uint64_t nth)
{
    return permuted(ids, OF_CHUNKS, nth);
}

struct coordinator_place coordinator_ids_place(const struct coordinator_ids *ids, uint64_t id)
{
    uint32_t left = (uint32_t)(id >> 32), right = (uint32_t)id;
    for (uint32_t round = ROUNDS; round-- > 0 && ids->keyed;) {
        uint32_t before = right ^ mixed(ids, round, left);
        right = left;
        left = before;
    }
    return (struct coordinator_place){left, right};
}
