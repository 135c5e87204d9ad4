// SPDX-License-Identifier: Apache-2.0
// Cuts the items of an attend call into RPCs. Pure. A piece is a run of rows of one item; a load is a run of
// pieces that travel in one RPC. Pieces keep the order of items and rows.
#ifndef CLIENT_SPLIT_H
#define CLIENT_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_split_item {
    uint32_t rows;            // 0: the item is left out
    uint64_t in_row, out_row; // bytes of a row in the request and in the reply, both ≤ 2^32
};

struct client_split_limits {
    uint32_t rows;  // of a piece
    uint32_t items; // pieces of a load
    uint64_t bytes; // of a load, in the request and in the reply; a single row may be more
};

struct client_piece {
    size_t item;
    uint32_t row, rows;
};

struct client_load {
    size_t first, count; // pieces
};

struct client_split {
    struct client_piece *pieces;
    struct client_load *loads;
    size_t n_pieces, n_loads;
};

// False: out of memory. Free with client_split_free.
bool client_split_make(const struct client_split_item *items, size_t n_items,
                       const struct client_split_limits *limits, struct client_split *out);
void client_split_free(struct client_split *split); // what it points to

#endif
