// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/keeping.h"

#include <assert.h>
#include <stdlib.h>

#include "coordinator/core.h"

#define CAP_FIRST 64

static uint32_t home_of(const struct coordinator_keeping *keeping, uint32_t worker, uint64_t chunk)
{
    uint64_t mixed = (chunk ^ (uint64_t)worker << 48) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mixed >> 32) & (keeping->cap - 1);
}

// Where it is, or the free place where it would be.
static uint32_t place_of(const struct coordinator_keeping *keeping, uint32_t worker, uint64_t chunk)
{
    uint32_t at = home_of(keeping, worker, chunk);
    while (keeping->places[at].times &&
           (keeping->places[at].chunk != chunk || keeping->places[at].worker != worker))
        at = (at + 1) & (keeping->cap - 1);
    return at;
}

static void grow(struct coordinator_keeping *keeping)
{
    struct coordinator_keeping bigger = {.cap = keeping->cap ? 2 * keeping->cap : CAP_FIRST,
                                         .used = keeping->used};
    bigger.places = coordinator_alloc(bigger.cap * sizeof(*bigger.places));
    for (uint32_t i = 0; i < keeping->cap; i++) {
        const struct coordinator_kept_chunk *kept = &keeping->places[i];
        if (kept->times)
            bigger.places[place_of(&bigger, kept->worker, kept->chunk)] = *kept;
    }
    free(keeping->places);
    *keeping = bigger;
}

void coordinator_keeping_add(struct coordinator_keeping *keeping, uint32_t worker, uint64_t chunk)
{
    if (2 * keeping->used >= keeping->cap)
        grow(keeping);
    struct coordinator_kept_chunk *kept = &keeping->places[place_of(keeping, worker, chunk)];
    keeping->used += !kept->times;
    *kept = (struct coordinator_kept_chunk){.chunk = chunk, .worker = worker, .times = kept->times + 1};
}

// Those behind it that its place kept from theirs move up.
static void close_gap(struct coordinator_keeping *keeping, uint32_t gap)
{
    uint32_t mask = keeping->cap - 1;
    for (uint32_t at = (gap + 1) & mask; keeping->places[at].times; at = (at + 1) & mask) {
        uint32_t home = home_of(keeping, keeping->places[at].worker, keeping->places[at].chunk);
        if (((at - home) & mask) < ((at - gap) & mask))
            continue; // it would stand before its home
        keeping->places[gap] = keeping->places[at];
        gap = at;
    }
    keeping->places[gap] = (struct coordinator_kept_chunk){0};
}

void coordinator_keeping_remove(struct coordinator_keeping *keeping, uint32_t worker, uint64_t chunk)
{
    uint32_t at = place_of(keeping, worker, chunk);
    assert(keeping->places[at].times > 0);
    if (--keeping->places[at].times)
        return;
    keeping->used--;
    close_gap(keeping, at);
}

bool coordinator_keeping_has(const struct coordinator_keeping *keeping, uint32_t worker, uint64_t chunk)
{
    return keeping->used && keeping->places[place_of(keeping, worker, chunk)].times > 0;
}

void coordinator_keeping_fini(struct coordinator_keeping *keeping)
{
    free(keeping->places);
    *keeping = (struct coordinator_keeping){0};
}
