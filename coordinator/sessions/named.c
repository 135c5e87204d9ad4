// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sessions/named.h"

#include "proto/spec.h"

struct coordinator_named {             // of a layer
    struct coordinator_rangeset rows;  // that holders have
    uint64_t length;                   // acknowledged
    uint64_t write, end;               // the newest append that may not be; write 0: none
    struct coordinator_rangeset parts; // of rows: those whose holder has its part of that append
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

bool coordinator_session_name_rows(struct coordinator_session *s, uint64_t first,
                                   const Banyan__Pb__InventorySession *held,
                                   const Banyan__Pb__InventoryChunk *chunk)
{
    struct coordinator_named *named = named_of(s);
    uint32_t ct = s->layout.chunk_tokens;
    size_t u = 0; // unconfirmed are by layer, too
    bool ok = true;
    for (uint32_t l = 0; l < chunk->n_layer_rows && l < s->spec->layers; l++) {
        uint32_t rows = chunk->layer_rows[l] < ct ? chunk->layer_rows[l] : ct;
        while (u < held->n_unconfirmed && held->unconfirmed[u]->layer < l)
            u++;
        bool part = u < held->n_unconfirmed && held->unconfirmed[u]->layer == l &&
                    held->unconfirmed[u]->write == named[l].write;
        if (!rows || !proto_spec_stores(s->spec, l))
            continue;
        ok = ok && coordinator_rangeset_add(&named[l].rows, first, rows, NULL);
        if (part)
            ok = ok && coordinator_rangeset_add(&named[l].parts, first, rows, NULL);
        ok = ok && count_rows(s, l);
    }
    return ok;
}

bool coordinator_session_names_rows(const struct coordinator_session *s, uint64_t first, uint64_t count)
{
    for (uint32_t l = 0; s->named && l < s->spec->layers; l++)
        if (coordinator_rangeset_intersects(&s->named[l].rows, first, count))
            return true;
    return false;
}

void coordinator_session_forget_named(struct coordinator_session *s)
{
    if (!s->named)
        return;
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        struct coordinator_named *named = &s->named[l];
        for (uint32_t i = 0; i < named->rows.n; i++) {
            const struct proto_range *range = &named->rows.ranges[i];
            s->untidy =
                s->untidy || !coordinator_rangeset_contains(&s->layers[l], range->first, range->count);
        }
        coordinator_rangeset_free(&named->rows);
        coordinator_rangeset_free(&named->parts);
    }
    free(s->named);
    s->named = NULL;
}
