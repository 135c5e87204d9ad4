// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sessions/named.h"

#include "proto/spec.h"

struct coordinator_named {             // of a layer
    struct coordinator_rangeset rows;  // that all holders have
    uint64_t length;                   // acknowledged
    uint64_t write, end;               // the newest append that may not be; write 0: none
    struct coordinator_rangeset parts; // of rows: those whose holders have their parts of that append
    // The same as each copy's holder has said it: of chunks with several copies.
    struct coordinator_rangeset copy_rows[COORDINATOR_COPIES_MAX], copy_parts[COORDINATOR_COPIES_MAX];
};

static struct coordinator_named *named_of(struct coordinator_session *s)
{
    if (!s->named)
        s->named = coordinator_alloc(s->spec->layers * sizeof(*s->named));
    return s->named;
}

void coordinator_session_name_appends(struct coordinator_session *s, const Banyan__Pb__InventorySession *held)
{
    struct coordinator_named *named = named_of(s);
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        uint64_t length =
            l < held->n_lengths ? held->lengths[l] : UINT64_MAX; // an older build: it cannot tell
        named[l].length = length > named[l].length ? length : named[l].length;
    }
    for (size_t i = 0; i < held->n_unconfirmed; i++) {
        const Banyan__Pb__Unconfirmed *u = held->unconfirmed[i];
        if (u->layer >= s->spec->layers || !proto_spec_stores(s->spec, u->layer) ||
            u->write <= named[u->layer].write)
            continue;
        named[u->layer].write = u->write;
        named[u->layer].end = u->end;
        coordinator_rangeset_free(&named[u->layer].parts);
        for (uint32_t copy = 0; copy < COORDINATOR_COPIES_MAX; copy++)
            coordinator_rangeset_free(&named[u->layer].copy_parts[copy]);
    }
}

// Where the rows of a layer that count end, however far they reach.
static uint64_t named_end(const struct coordinator_named *named)
{
    bool whole = named->write && named->end > named->length &&
                 coordinator_rangeset_contains(&named->parts, named->length, named->end - named->length);
    return whole ? named->end : named->length;
}

// Rows count once the layer leads up to them, as every append did. False: too many ranges.
static bool count_rows(struct coordinator_session *s, uint32_t layer)
{
    const struct coordinator_named *named = &s->named[layer];
    struct coordinator_rangeset *set = &s->layers[layer];
    uint64_t end = named_end(named);
    for (uint32_t i = 0; i < named->rows.n; i++) { // ascending: each may lead up to the next
        const struct proto_range *range = &named->rows.ranges[i];
        uint64_t stop = range->first + range->count < end ? range->first + range->count : end;
        if (range->first < stop && range->first <= coordinator_rangeset_length(set) &&
            !coordinator_rangeset_add(set, range->first, stop - range->first, NULL))
            return false;
    }
    coordinator_session_count_tokens(s);
    return true;
}

// How many rows of [first, first + most) the set has from first on.
static uint32_t run_from(const struct coordinator_rangeset *set, uint64_t first, uint32_t most)
{
    struct proto_range hole = {.first = first + most};
    if (most)
        coordinator_rangeset_missing(set, first, most, &hole, 1);
    return (uint32_t)(hole.first - first);
}

// What the copies that count have, of this many rows from the first on.
static uint32_t counted_rows(const struct coordinator_rangeset *copies, const struct coordinator_chunk *of,
                             uint64_t first, uint32_t most)
{
    uint32_t doubted = coordinator_chunk_doubted(of);
    for (uint32_t i = 0; i < coordinator_chunk_copies(of); i++)
        if (!(doubted & 1u << i))
            most = run_from(&copies[i], first, most);
    return most;
}

// What the holder of a copy has, and whether that is its part of the newest append: of a chunk with one copy at once;
// else once all that count have said so.
static bool add_rows(struct coordinator_named *named, const struct coordinator_chunk *of, uint32_t copy,
                     const struct proto_range *chunk, uint32_t rows, bool part)
{
    uint32_t whole = rows, parts = part ? rows : 0, ct = (uint32_t)chunk->count;
    uint64_t first = chunk->first;
    bool ok = true;
    if (coordinator_chunk_copies(of) > 1) {
        ok = (!rows || coordinator_rangeset_add(&named->copy_rows[copy], first, rows, NULL)) &&
             (!parts || coordinator_rangeset_add(&named->copy_parts[copy], first, parts, NULL));
        whole = counted_rows(named->copy_rows, of, first, ct);
        parts = counted_rows(named->copy_parts, of, first, ct);
    }
    ok = ok && (!whole || coordinator_rangeset_add(&named->rows, first, whole, NULL));
    return ok && (!parts || coordinator_rangeset_add(&named->parts, first, parts, NULL));
}

bool coordinator_session_name_rows(struct coordinator_session *s, const struct coordinator_chunk *of,
                                   uint32_t copy, const Banyan__Pb__InventorySession *held,
                                   const Banyan__Pb__InventoryChunk *chunk)
{
    struct coordinator_named *named = named_of(s);
    uint32_t ct = s->layout.chunk_tokens;
    const struct proto_range all = {(uint64_t)of->index * ct, ct};
    size_t u = 0; // unconfirmed are by layer, too
    bool ok = true;
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        uint32_t rows = l < chunk->n_layer_rows ? chunk->layer_rows[l] : 0;
        rows = rows < ct ? rows : ct;
        while (u < held->n_unconfirmed && held->unconfirmed[u]->layer < l)
            u++;
        bool part = u < held->n_unconfirmed && held->unconfirmed[u]->layer == l &&
                    held->unconfirmed[u]->write == named[l].write;
        // Its file says of a full chunk which rows there are, and not any more whose they are.
        part = part || (held->doubtful && rows == ct);
        if (proto_spec_stores(s->spec, l))
            ok = ok && add_rows(&named[l], of, copy, &all, rows, part) && count_rows(s, l);
    }
    return ok;
}

uint32_t coordinator_session_named_short(const struct coordinator_session *s,
                                         const struct coordinator_chunk *chunk)
{
    uint32_t ct = s->layout.chunk_tokens, doubted = coordinator_chunk_doubted(chunk), lacking = 0,
             sure = ((1u << coordinator_chunk_copies(chunk)) - 1) & ~(doubted | chunk->gone);
    uint64_t first = (uint64_t)chunk->index * ct;
    if (!doubted || !s->named || (chunk->heard & sure) != sure)
        return 0;
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        const struct coordinator_named *named = &s->named[l];
        uint32_t rows = counted_rows(named->copy_rows, chunk, first, ct);
        for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
            if ((doubted & chunk->heard & 1u << i) && run_from(&named->copy_rows[i], first, rows) < rows)
                lacking |= 1u << i;
    }
    return lacking;
}

bool coordinator_session_names_rows(const struct coordinator_session *s, uint64_t first, uint64_t count)
{
    for (uint32_t l = 0; s->named && l < s->spec->layers; l++) {
        const struct coordinator_named *named = &s->named[l];
        bool any = coordinator_rangeset_intersects(&named->rows, first, count);
        for (uint32_t copy = 0; copy < COORDINATOR_COPIES_MAX; copy++)
            any = any || coordinator_rangeset_intersects(&named->copy_rows[copy], first, count);
        if (any)
            return true;
    }
    return false;
}

uint64_t coordinator_session_named_from(const struct coordinator_session *s, uint32_t layer, uint64_t length)
{
    const struct coordinator_named *named = s->named ? &s->named[layer] : NULL;
    return named && named->write && named->end > length && named->length < length ? named->length : length;
}

// Whether a holder has rows that do not count.
static bool has_others(const struct coordinator_rangeset *rows, const struct coordinator_rangeset *counted)
{
    for (uint32_t i = 0; i < rows->n; i++)
        if (!coordinator_rangeset_contains(counted, rows->ranges[i].first, rows->ranges[i].count))
            return true;
    return false;
}

void coordinator_session_forget_named(struct coordinator_session *s)
{
    if (!s->named)
        return;
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        struct coordinator_named *named = &s->named[l];
        s->untidy = s->untidy || has_others(&named->rows, &s->layers[l]);
        coordinator_rangeset_free(&named->rows);
        coordinator_rangeset_free(&named->parts);
        for (uint32_t copy = 0; copy < COORDINATOR_COPIES_MAX; copy++) {
            s->untidy = s->untidy || has_others(&named->copy_rows[copy], &s->layers[l]);
            coordinator_rangeset_free(&named->copy_rows[copy]);
            coordinator_rangeset_free(&named->copy_parts[copy]);
        }
    }
    free(s->named);
    s->named = NULL;
}
