// SPDX-License-Identifier: Apache-2.0
// How the states of a session lie in the rows of another one, which holds nothing else (states.c).
//
//   rows   │ state 1 …  │ index │ state 2 …       │ index │ state 3 │ index │
//                           1                         2                 3     the last row says what there is
//
// A row is 4 KiB. A state takes as many rows as it needs; behind it stands an index: a row that names the
// states up to this one, by ascending positions, 63 of them at most, and where the index with those before
// them is. A state and its index are committed as one range: it is there whole, or not at all. What is
// removed is removed from the end.
//
// Everything in an index is a peer's word: it is checked before it is used.
#ifndef CLIENT_LIB_STATE_INDEX_H
#define CLIENT_LIB_STATE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/banyan.h"

#define CLIENT_STATE_ROW 4096u

struct client_state {
    uint32_t layer;
    uint64_t position, bytes, sum; // sum: xxh3
    uint64_t first_row;
    uint8_t digest[BANYAN_STATE_DIGEST];
};

struct client_state_index {
    struct client_state *states; // [n] by ascending positions
    size_t n;
    size_t n_last;  // of these, how many the last index names
    uint64_t older; // the row of the one before it; UINT64_MAX: none
    uint64_t rows;  // in the session
};

uint64_t client_state_rows(uint64_t bytes);                  // without its index
uint64_t client_state_end(const struct client_state *state); // the row behind its index

// Reads all of it, from the end. DATA_LOSS: what is there is no index. Free it in any case.
banyan_code client_state_index_read(banyan_session *held, struct client_state_index *out,
                                    banyan_error *error);
void client_state_index_free(struct client_state_index *index);

// The last one at or before a position, of a layer or of any (UINT32_MAX); NULL: none.
const struct client_state *client_state_last(const struct client_state_index *index, uint32_t layer,
                                             uint64_t position);

// The row that stands behind one more state.
void client_state_index_row(const struct client_state_index *index, const struct client_state *more,
                            uint8_t row[CLIENT_STATE_ROW]);

#endif
