// SPDX-License-Identifier: Apache-2.0
#include "client/lib/steps/split.h"

#include <assert.h>
#include <stdlib.h>

// Where the next piece goes.
struct cursor {
    struct client_split *out; // NULL arrays: count only
    uint64_t in, reply;       // bytes of the open load
    size_t in_load;           // pieces of the open load
};

static void add_piece(struct cursor *c, const struct client_split_item *item, size_t nth, uint32_t row,
                      uint32_t rows)
{
    struct client_split *out = c->out;
    if (c->in_load == 0) {
        if (out->loads)
            out->loads[out->n_loads] = (struct client_load){.first = out->n_pieces};
        out->n_loads++;
    }
    if (out->pieces) {
        out->pieces[out->n_pieces] = (struct client_piece){.item = nth, .row = row, .rows = rows};
        out->loads[out->n_loads - 1].count++;
    }
    out->n_pieces++;
    c->in_load++;
    c->in += rows * item->in_row;
    c->reply += rows * item->out_row;
}

static void close_load(struct cursor *c)
{
    c->in_load = 0;
    c->in = c->reply = 0;
}

static uint32_t rows_that_fit(uint64_t used, uint64_t row, uint64_t limit, uint32_t rows)
{
    if (row == 0)
        return rows;
    uint64_t room = used < limit ? (limit - used) / row : 0;
    return room < rows ? (uint32_t)room : rows;
}

static void cut(const struct client_split_item *items, size_t n_items,
                const struct client_split_limits *limits, struct client_split *out)
{
    struct cursor c = {.out = out};
    out->n_pieces = out->n_loads = 0;
    for (size_t i = 0; i < n_items; i++) {
        const struct client_split_item *item = &items[i];
        for (uint32_t row = 0; row < item->rows;) {
            uint32_t left = item->rows - row;
            uint32_t rows = left < limits->rows ? left : limits->rows;
            uint32_t fit = rows_that_fit(c.in, item->in_row, limits->bytes, rows);
            fit = rows_that_fit(c.reply, item->out_row, limits->bytes, fit);
            // What fits into an empty load is not cut to fill up another.
            if (c.in_load > 0 && (fit < rows || c.in_load == limits->items)) {
                close_load(&c);
                continue;
            }
            if (fit == 0)
                fit = 1; // a row is never cut
            add_piece(&c, item, i, row, fit);
            row += fit;
        }
    }
}

bool client_split_make(const struct client_split_item *items, size_t n_items,
                       const struct client_split_limits *limits, struct client_split *out)
{
    assert(limits->rows > 0 && limits->items > 0 && limits->bytes > 0);
    struct client_split split = {0};
    cut(items, n_items, limits, &split);
    if (split.n_pieces > 0) {
        split.pieces = calloc(split.n_pieces, sizeof *split.pieces);
        split.loads = calloc(split.n_loads, sizeof *split.loads);
        if (!split.pieces || !split.loads) {
            client_split_free(&split);
            return false;
        }
        cut(items, n_items, limits, &split);
    }
    *out = split;
    return true;
}

void client_split_free(struct client_split *split)
{
    free(split->pieces);
    free(split->loads);
}
