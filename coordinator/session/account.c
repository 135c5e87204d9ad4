// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/account.h"

#include <stdlib.h>

#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/sessions.h"
#include "proto/model/spec.h"

// What a range adds to each chunk, as differences between chunks that follow each other: a long range costs as much as a
// short one. Committed rows have chunks.
static void add_range(const struct coordinator_layout *layout, uint64_t first, uint64_t end, uint64_t row,
                      uint64_t *differences)
{
    uint64_t ct = layout->chunk_tokens, from = first / ct, to = (end - 1) / ct;
    uint32_t a = coordinator_layout_lower(layout, from), b = coordinator_layout_lower(layout, to);
    differences[a] += ct * row;
    differences[b + 1] -= ct * row;
    differences[a] -= first % ct * row; // of the first chunk alone
    differences[a + 1] += first % ct * row;
    differences[b] -= ((to + 1) * ct - end) * row; // of the last one
    differences[b + 1] += ((to + 1) * ct - end) * row;
}

// [layout.n] bytes of each chunk that are committed and held; free it. NULL: out of memory.
static uint64_t *chunk_bytes(const struct coordinator_session *s)
{
    uint64_t ct = s->layout.chunk_tokens, *bytes = calloc(s->layout.n + UINT64_C(2), sizeof(*bytes));
    for (uint32_t l = 0; bytes && l < s->spec->layers; l++) {
        const struct coordinator_rangeset *set = &s->layers[l];
        struct proto_layer layer = proto_spec_layer(s->spec, l);
        uint64_t back = s->floor ? proto_spec_forgotten(s->spec, l, s->floor) / ct * ct : 0;
        for (uint32_t i = 0; i < set->n; i++) {
            uint64_t first = set->ranges[i].first, end = first + set->ranges[i].count;
            if (end > back)
                add_range(&s->layout, first > back ? first : back, end, layer.k_row + layer.v_row, bytes);
        }
    }
    for (uint32_t i = 1; bytes && i < s->layout.n; i++)
        bytes[i] += bytes[i - 1];
    return bytes;
}

static bool has_too(const struct coordinator_session *other, const struct coordinator_chunk *chunk)
{
    const struct coordinator_chunk *same = coordinator_layout_find(&other->layout, chunk->index);
    return same && same->id == chunk->id;
}

// How many of its first chunks another session has. A fork shares the chunks in front: whoever has one has those before.
static uint32_t shared_chunks(const struct coordinator_session *s)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->sessions->n_slots; i++) {
        const struct coordinator_session *other = s->sessions->slots[i];
        if (!other || other == s || most == s->layout.n || !has_too(other, &s->layout.chunks[most]))
            continue;
        uint32_t has = most, lacks = s->layout.n;
        while (lacks - has > 1) {
            uint32_t middle = has + (lacks - has) / 2;
            if (has_too(other, &s->layout.chunks[middle]))
                has = middle;
            else
                lacks = middle;
        }
        most = has + 1;
    }
    return most;
}

uint64_t coordinator_session_account(const struct coordinator_session *s, uint64_t *by_member)
{
    uint64_t *bytes = chunk_bytes(s),
             *by_slot = calloc(s->sessions->cluster->n_workers + UINT64_C(1), sizeof(*by_slot)), shared = 0;
    uint32_t n_shared = shared_chunks(s);
    if (!bytes || !by_slot) {
        free(bytes);
        free(by_slot);
        return UINT64_MAX;
    }
    for (uint32_t i = 0; i < s->layout.n; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        shared += i < n_shared ? bytes[i] : 0;
        for (uint32_t copy = 0; !chunk->lost && copy < coordinator_chunk_copies(chunk); copy++)
            by_slot[coordinator_chunk_holder(chunk, copy)->slot] += bytes[i];
    }
    for (uint32_t i = 0; i < s->n_members; i++)
        by_member[i] = by_slot[s->members[i]->slot];
    free(bytes);
    free(by_slot);
    return shared;
}
