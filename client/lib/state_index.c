// SPDX-License-Identifier: Apache-2.0
#include "client/lib/state_index.h"

#include <stdlib.h>
#include <string.h>

#include "client/lib/core/error.h"
#include "common/hash/hash.h"

#define NAMED_MAX 63u // states in one row

// As it lies in a row, little endian.
struct packed_state {
    uint32_t layer, zero;
    uint64_t position, bytes, first_row, sum;
    uint8_t digest[BANYAN_STATE_DIGEST];
    uint64_t more; // 0
};

struct packed_index {
    char magic[8];
    uint32_t version, n;
    uint64_t row, older;
    uint64_t sum; // xxh3 of the row, with 0 here
    uint64_t more[3];
    struct packed_state states[NAMED_MAX];
};

_Static_assert(sizeof(struct packed_index) == CLIENT_STATE_ROW, "an index is a row");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are read as they lie");

static const char magic[8] = {'s', 't', 'a', 't', 'e', 's', '\r', '\n'};

uint64_t client_state_rows(uint64_t bytes)
{
    return bytes / CLIENT_STATE_ROW + (bytes % CLIENT_STATE_ROW != 0);
}

uint64_t client_state_end(const struct client_state *state)
{
    return state->first_row + client_state_rows(state->bytes) + 1;
}

// Of the states that an index in this row names.
static bool is_right(const struct packed_index *p, uint64_t row)
{
    struct packed_index copy = *p;
    copy.sum = 0;
    bool right = memcmp(p->magic, magic, sizeof magic) == 0 && p->version == 1 && p->row == row &&
                 p->n >= 1 && p->n <= NAMED_MAX && (p->older == UINT64_MAX || p->older < row) &&
                 common_xxh3(&copy, sizeof copy, 0) == p->sum;
    for (uint32_t i = 0; right && i < p->n; i++) {
        const struct packed_state *s = &p->states[i];
        right = s->bytes > 0 && s->first_row < row && client_state_rows(s->bytes) <= row - s->first_row &&
                (i == 0 || s->position >= p->states[i - 1].position);
    }
    return right && p->states[p->n - 1].first_row + client_state_rows(p->states[p->n - 1].bytes) == row;
}

// Those of an older index come before those that are there.
static bool prepend(struct client_state_index *index, const struct packed_index *p)
{
    struct client_state *grown = realloc(index->states, (index->n + p->n) * sizeof *grown);
    if (!grown)
        return false;
    memmove(grown + p->n, grown, index->n * sizeof *grown);
    for (uint32_t i = 0; i < p->n; i++) {
        const struct packed_state *s = &p->states[i];
        grown[i] = (struct client_state){.layer = s->layer,
                                         .position = s->position,
                                         .bytes = s->bytes,
                                         .sum = s->sum,
                                         .first_row = s->first_row};
        memcpy(grown[i].digest, s->digest, sizeof grown[i].digest);
    }
    index->states = grown;
    index->n += p->n;
    return true;
}

static banyan_code read_older(banyan_session *held, struct client_state_index *out, uint64_t row,
                              uint64_t *older, banyan_error *error)
{
    struct packed_index p;
    banyan_code code = banyan_read_rows(held, 0, row, 1, &p, NULL, NULL, NULL, error);
    if (code != BANYAN_OK)
        return code;
    uint64_t before = out->n ? out->states[0].position : UINT64_MAX;
    if (!is_right(&p, row) || p.states[p.n - 1].position > before)
        return client_error_set(error, BANYAN_DATA_LOSS,
                                "session 0x%016llx should hold states, and row %llu of it is not their index",
                                (unsigned long long)banyan_session_id(held), (unsigned long long)row);
    if (!prepend(out, &p))
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    out->n_last = out->n_last ? out->n_last : p.n;
    *older = p.older;
    return BANYAN_OK;
}

banyan_code client_state_index_read(banyan_session *held, struct client_state_index *out, banyan_error *error)
{
    banyan_session_info info;
    *out = (struct client_state_index){.older = UINT64_MAX};
    banyan_code code = banyan_session_get_info(held, &info, error);
    if (code != BANYAN_OK)
        return code;
    out->rows = info.length;
    banyan_session_info_free(&info);
    uint64_t at = out->rows ? out->rows - 1 : UINT64_MAX;
    for (bool last = true; code == BANYAN_OK && at != UINT64_MAX; last = false) { // each one lies before
        code = read_older(held, out, at, &at, error);
        if (last)
            out->older = at;
    }
    return code;
}

void client_state_index_free(struct client_state_index *index)
{
    free(index->states);
    *index = (struct client_state_index){0};
}

const struct client_state *client_state_last(const struct client_state_index *index, uint32_t layer,
                                             uint64_t position)
{
    for (size_t i = index->n; i > 0; i--) {
        const struct client_state *s = &index->states[i - 1];
        if (s->position <= position && (layer == UINT32_MAX || s->layer == layer))
            return s;
    }
    return NULL;
}

void client_state_index_row(const struct client_state_index *index, const struct client_state *more,
                            uint8_t row[CLIENT_STATE_ROW])
{
    struct packed_index p = {.version = 1, .older = index->older};
    size_t kept = index->n_last;
    if (kept == NAMED_MAX) {
        kept = 0;
        p.older = index->rows - 1;
    }
    memcpy(p.magic, magic, sizeof magic);
    p.row = more->first_row + client_state_rows(more->bytes);
    for (size_t i = 0; i <= kept; i++) {
        const struct client_state *s = i < kept ? &index->states[index->n - kept + i] : more;
        struct packed_state *to = &p.states[p.n++];
        *to = (struct packed_state){.layer = s->layer,
                                    .position = s->position,
                                    .bytes = s->bytes,
                                    .first_row = s->first_row,
                                    .sum = s->sum};
        memcpy(to->digest, s->digest, sizeof to->digest);
    }
    p.sum = common_xxh3(&p, sizeof p, 0);
    memcpy(row, &p, sizeof p);
}
