// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/named.h"

#include "proto/model/spec.h"

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

// Cuts a range of a chunk down to what the set has of it, which is one stretch.
static struct proto_range cut_to(struct proto_range range, const struct coordinator_rangeset *set)
{
    uint64_t first = range.first, end = first + range.count;
    for (uint32_t i = 0; i < set->n; i++) {
        const struct proto_range *at = &set->ranges[i];
        uint64_t stop = at->first + at->count < end ? at->first + at->count : end;
        uint64_t from = at->first > first ? at->first : first;
        if (from < stop)
            return (struct proto_range){from, stop - from};
    }
    return (struct proto_range){first, 0};
}

// What the copies that count have of the newest append, in this range of a chunk.
static struct proto_range counted_part(const struct coordinator_named *named,
                                       const struct coordinator_chunk *of, struct proto_range range)
{
    uint32_t doubted = coordinator_chunk_doubted(of);
    for (uint32_t i = 0; i < coordinator_chunk_copies(of) && range.count; i++)
        if (!(doubted & 1u << i))
            range = cut_to(range, &named->copy_parts[i]);
    return range;
}

static bool add_range(struct coordinator_rangeset *set, uint64_t first, uint64_t count)
{
    return !count || coordinator_rangeset_add(set, first, count, NULL);
}

// What the holder of a copy has, and which rows of that may be its part of the newest append: of a chunk with one copy at
// once; else once all that count have said so.
static bool add_rows(struct coordinator_named *named, const struct coordinator_chunk *of, uint32_t copy,
                     const struct proto_range *chunk, uint32_t rows, struct proto_range part)
{
    uint64_t whole = rows;
    bool ok = true;
    if (coordinator_chunk_copies(of) > 1) {
        ok = add_range(&named->copy_rows[copy], chunk->first, rows) &&
             add_range(&named->copy_parts[copy], part.first, part.count);
        whole = counted_rows(named->copy_rows, of, chunk->first, (uint32_t)chunk->count);
        part = counted_part(named, of, *chunk);
    }
    return ok && add_range(&named->rows, chunk->first, whole) &&
           add_range(&named->parts, part.first, part.count);
}

// Which of these rows, the first of a chunk, may be of the newest append, as their holder says. unconfirmed: the append of
// the layer that the holder knows; NULL: none.
static struct proto_range part_of(const struct coordinator_named *named, struct proto_range rows,
                                  const Banyan__Pb__Unconfirmed *unconfirmed, bool full_in_doubt)
{
    uint64_t end = rows.first + rows.count, from = rows.first;
    if (unconfirmed && unconfirmed->write == named->write)
        return rows;
    // Its file says of a full chunk which rows there are, and not any more whose they are: but those of an older append,
    // which its session's log knows, are that one's.
    if (unconfirmed && unconfirmed->end > from)
        from = unconfirmed->end < end ? unconfirmed->end : end;
    return (struct proto_range){from, full_in_doubt ? end - from : 0};
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
        // Forgotten rows were acknowledged: they count, though a holder that shares the chunk with a session that has not
        // forgotten them may wait for them, or have missed the floor.
        rows = rows < ct && !coordinator_session_given_back(s, l, of->index) ? rows : ct;
        while (u < held->n_unconfirmed && held->unconfirmed[u]->layer < l)
            u++;
        const Banyan__Pb__Unconfirmed *unconfirmed =
            u < held->n_unconfirmed && held->unconfirmed[u]->layer == l ? held->unconfirmed[u] : NULL;
        struct proto_range part = part_of(&named[l], (struct proto_range){all.first, rows}, unconfirmed,
                                          held->doubtful && rows == ct);
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

uint32_t coordinator_session_named_other(const struct coordinator_session *s,
                                         const struct coordinator_chunk *chunk)
{
    uint32_t ct = s->layout.chunk_tokens, doubted = coordinator_chunk_doubted(chunk), other = 0;
    uint64_t first = (uint64_t)chunk->index * ct;
    for (uint32_t l = 0; doubted && s->named && l < s->spec->layers; l++) {
        const struct coordinator_named *named = &s->named[l];
        uint64_t from = named->length > first ? named->length : first;
        if (!named->write || from >= first + ct)
            continue;
        struct proto_range part = counted_part(named, chunk, (struct proto_range){from, first + ct - from});
        for (uint32_t i = 0; part.count && i < coordinator_chunk_copies(chunk); i++) {
            struct proto_range own = cut_to(part, &named->copy_rows[i]);
            if ((doubted & 1u << i) && own.count &&
                !coordinator_rangeset_contains(&named->copy_parts[i], own.first, own.count))
                other |= 1u << i;
        }
    }
    return other;
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

bool coordinator_session_has_rows(const struct coordinator_session *s, uint64_t first, uint64_t count)
{
    for (uint32_t l = 0; l < s->spec->layers; l++)
        if (coordinator_rangeset_intersects(&s->layers[l], first, count))
            return true;
    return coordinator_session_names_rows(s, first, count);
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
