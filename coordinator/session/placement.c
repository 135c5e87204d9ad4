// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/placement.h"

#include <string.h>

// spare: beside what is open.
static bool has_room(const struct coordinator_candidate *c, uint64_t bytes, bool spare)
{
    return c->free_bytes >= bytes && (!spare || !bytes || c->free_bytes - bytes >= c->open_bytes);
}

static uint32_t best(const struct coordinator_candidate *candidates, uint32_t n, bool member, bool apart,
                     uint32_t chunk_tokens, uint64_t chunk_bytes, bool spare)
{
    uint32_t chosen = UINT32_MAX;
    double least = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct coordinator_candidate *c = &candidates[i];
        if (c->member != member || c->apart != apart || !has_room(c, chunk_bytes, spare))
            continue;
        double work = member ? (double)c->tokens + chunk_tokens : (double)c->load_bytes + (double)chunk_bytes;
        double time = work / (double)c->bandwidth;
        if (chosen == UINT32_MAX || time < least) {
            chosen = i;
            least = time;
        }
    }
    return chosen;
}

static uint32_t choose(const struct coordinator_candidate *candidates, uint32_t n, uint32_t width,
                       uint32_t chunk_tokens, uint64_t chunk_bytes, bool spare)
{
    uint32_t members = 0, chosen = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++)
        members += candidates[i].member;
    if (members < width)
        chosen = best(candidates, n, false, false, chunk_tokens, chunk_bytes, spare);
    if (chosen == UINT32_MAX)
        chosen = best(candidates, n, true, false, chunk_tokens, chunk_bytes, spare);
    // Who is apart costs more than a chunk that may come to lie elsewhere.
    for (int apart = 0; apart < (spare ? 1 : 2) && chosen == UINT32_MAX; apart++)
        chosen = best(candidates, n, false, apart, chunk_tokens, chunk_bytes, spare);
    return chosen;
}

uint32_t coordinator_placement_choose(const struct coordinator_candidate *candidates, uint32_t n,
                                      uint32_t width, uint32_t chunk_tokens, uint64_t chunk_bytes)
{
    uint32_t chosen = choose(candidates, n, width, chunk_tokens, chunk_bytes, true);
    return chosen == UINT32_MAX ? choose(candidates, n, width, chunk_tokens, chunk_bytes, false) : chosen;
}

static bool on_their_hosts(const struct coordinator_candidate *candidates, const uint32_t *has,
                           uint32_t n_has, uint32_t host)
{
    for (uint32_t i = 0; i < n_has; i++)
        if (candidates[has[i]].host == host)
            return true;
    return false;
}

static bool is_among(const uint32_t *has, uint32_t n_has, uint32_t i)
{
    for (uint32_t k = 0; k < n_has; k++)
        if (has[k] == i)
            return true;
    return false;
}

static uint32_t follow(const struct coordinator_candidate *candidates, uint32_t n, const uint32_t *has,
                       uint32_t n_has, uint32_t chunk_tokens, uint64_t chunk_bytes, bool spare)
{
    bool free_host = false;
    for (uint32_t i = 0; i < n; i++)
        free_host = free_host || !on_their_hosts(candidates, has, n_has, candidates[i].host);
    uint32_t chosen = UINT32_MAX;
    double least = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct coordinator_candidate *c = &candidates[i];
        if (is_among(has, n_has, i) || c->apart || !has_room(c, chunk_bytes, spare) ||
            (free_host && on_their_hosts(candidates, has, n_has, c->host)) ||
            (chosen != UINT32_MAX && candidates[chosen].member && !c->member))
            continue;
        double work = c->member ? (double)c->tokens + (double)c->follows + chunk_tokens
                                : (double)c->load_bytes + (double)chunk_bytes;
        double time = work / (double)c->bandwidth;
        if (chosen == UINT32_MAX || candidates[chosen].member != c->member || time < least) {
            chosen = i;
            least = time;
        }
    }
    return chosen;
}

uint32_t coordinator_placement_follow(const struct coordinator_candidate *candidates, uint32_t n,
                                      const uint32_t *has, uint32_t n_has, uint32_t chunk_tokens,
                                      uint64_t chunk_bytes)
{
    uint32_t chosen = follow(candidates, n, has, n_has, chunk_tokens, chunk_bytes, true);
    return chosen == UINT32_MAX ? follow(candidates, n, has, n_has, chunk_tokens, chunk_bytes, false)
                                : chosen;
}

// When the last worker is done.
static double longest(const uint64_t *load, const uint64_t *speeds, uint32_t workers)
{
    double most = 0;
    for (uint32_t i = 0; i < workers; i++)
        if (load[i] && (double)load[i] / (double)speeds[i] > most)
            most = (double)load[i] / (double)speeds[i];
    return most;
}

bool coordinator_placement_spread(struct coordinator_spread_chunk *chunks, uint32_t n, const uint64_t *speeds,
                                  uint64_t *load, uint32_t workers)
{
    uint32_t most_copies = 1;
    memset(load, 0, workers * sizeof(*load));
    for (uint32_t i = 0; i < n; i++) {
        load[chunks[i].holder[0]]++;
        most_copies = chunks[i].n > most_copies ? chunks[i].n : most_copies;
    }
    double now = longest(load, speeds, workers);
    memset(load, 0, workers * sizeof(*load));
    for (uint32_t copies = 1; copies <= most_copies; copies++) // who has least choice first
        for (uint32_t i = 0; i < n; i++) {
            struct coordinator_spread_chunk *chunk = &chunks[i];
            double least = 0;
            for (uint32_t k = 0; chunk->n == copies && k < copies; k++) {
                uint32_t w = chunk->holder[k];
                double time = ((double)load[w] + 1) / (double)speeds[w];
                if (k > 0 && time >= least)
                    continue;
                chunk->serves = k;
                least = time;
            }
            if (chunk->n == copies)
                load[chunk->holder[chunk->serves]]++;
        }
    bool better = longest(load, speeds, workers) <= 0.9 * now;
    for (uint32_t i = 0; i < n && !better; i++)
        chunks[i].serves = 0;
    return better && n > 0;
}
