// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/layout.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash/coverage.h"

void coordinator_layout_init(struct coordinator_layout *layout, uint32_t chunk_tokens, uint64_t epoch)
{
    *layout = (struct coordinator_layout){.epoch = epoch, .chunk_tokens = chunk_tokens};
}

void coordinator_layout_fini(struct coordinator_layout *layout)
{
    free(layout->chunks);
    free(layout->sums);
    memset(layout, 0, sizeof(*layout));
}

void coordinator_layout_set_epoch(struct coordinator_layout *layout, uint64_t epoch)
{
    layout->epoch = epoch;
    layout->n_sums = 0;
}

void coordinator_chunk_strike(struct coordinator_chunk *chunk, uint32_t struck, uint32_t serves)
{
    struct coordinator_chunk was = *chunk;
    uint32_t n = 0;
    chunk->heard = chunk->untold = chunk->gone = chunk->doubtful = chunk->wrong = chunk->leaving = 0;
    for (uint32_t round = 0; round < 2; round++) // who serves, then those who follow
        for (uint32_t i = 0; i < coordinator_chunk_copies(&was); i++) {
            if ((struck & 1u << i) || (i == serves) != (round == 0))
                continue;
            if (n == 0)
                chunk->holder = coordinator_chunk_holder(&was, i);
            else
                chunk->followers[n - 1] = coordinator_chunk_holder(&was, i);
            chunk->stamps[n] = was.stamps[i];
            chunk->heard |= (uint8_t)((was.heard >> i & 1u) << n);
            chunk->untold |= (uint8_t)((was.untold >> i & 1u) << n);
            chunk->gone |= (uint8_t)((was.gone >> i & 1u) << n);
            chunk->doubtful |= (uint8_t)((was.doubtful >> i & 1u) << n);
            chunk->wrong |= (uint8_t)((was.wrong >> i & 1u) << n);
            chunk->leaving |= (uint8_t)((was.leaving >> i & 1u) << n);
            n++;
        }
    chunk->n_followers = (uint8_t)(n - 1);
}

uint32_t coordinator_layout_lower(const struct coordinator_layout *layout, uint64_t index)
{
    uint32_t low = 0, high = layout->n;
    if (index < high && layout->chunks[index].index == index) // the usual case: no hole before it
        return (uint32_t)index;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (layout->chunks[mid].index < index)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct coordinator_chunk *coordinator_layout_find(const struct coordinator_layout *layout, uint64_t index)
{
    uint32_t at = coordinator_layout_lower(layout, index);
    return at < layout->n && layout->chunks[at].index == index ? &layout->chunks[at] : NULL;
}

static bool grow(struct coordinator_layout *layout)
{
    if (layout->n < layout->cap)
        return true;
    uint32_t cap = layout->cap ? layout->cap * 2 : 4;
    struct coordinator_chunk *chunks = realloc(layout->chunks, cap * sizeof(*chunks));
    if (!chunks)
        return false;
    layout->chunks = chunks;
    uint64_t *sums = realloc(layout->sums, ((size_t)cap + 1) * sizeof(*sums));
    if (!sums)
        return false;
    layout->sums = sums;
    layout->cap = cap;
    return true;
}

static void forget_sums_after(struct coordinator_layout *layout, uint32_t at)
{
    if (layout->n_sums > at)
        layout->n_sums = at;
}

struct coordinator_chunk *coordinator_layout_put(struct coordinator_layout *layout,
                                                 const struct coordinator_chunk *chunk)
{
    uint32_t at = coordinator_layout_lower(layout, chunk->index);
    if (at == layout->n || layout->chunks[at].index != chunk->index) {
        if (!grow(layout))
            return NULL;
        memmove(&layout->chunks[at + 1], &layout->chunks[at], (layout->n - at) * sizeof(*layout->chunks));
        layout->n++;
    }
    layout->chunks[at] = *chunk;
    forget_sums_after(layout, at);
    return &layout->chunks[at];
}

void coordinator_layout_remove(struct coordinator_layout *layout, uint32_t index)
{
    uint32_t at = coordinator_layout_lower(layout, index);
    if (at == layout->n || layout->chunks[at].index != index)
        return;
    layout->n--;
    memmove(&layout->chunks[at], &layout->chunks[at + 1], (layout->n - at) * sizeof(*layout->chunks));
    forget_sums_after(layout, at);
}

bool coordinator_layout_cover(struct coordinator_layout *layout, uint64_t visible, uint64_t *tokens,
                              uint64_t *sum)
{
    uint64_t full = visible / layout->chunk_tokens, rest = visible % layout->chunk_tokens;
    uint64_t needed = full + (rest ? 1 : 0);
    if (needed > layout->n || (needed && layout->chunks[needed - 1].index != needed - 1))
        return false;
    if (!needed) {
        *tokens = *sum = 0;
        return true;
    }
    if (!layout->n_sums)
        layout->sums[0] = 0;
    while (layout->n_sums < full) {
        uint32_t i = layout->n_sums++;
        layout->sums[i + 1] =
            layout->sums[i] + common_coverage_mix(layout->chunks[i].id, layout->chunk_tokens, layout->epoch);
    }
    *tokens = visible;
    *sum =
        layout->sums[full] + (rest ? common_coverage_mix(layout->chunks[full].id, rest, layout->epoch) : 0);
    return true;
}
