// SPDX-License-Identifier: Apache-2.0
// Which sequence each cell belongs to, where several sequences share the cells of one cache (llama.cpp's
// default, --kv-unified).
//
// llama.cpp hands over, for a batch, the cell that each row is written to and a mask. Cells of sequences lie
// between one another, a copied sequence shares its cells with the original, and nothing says which row is of
// which sequence. The mask does: what a row sees is its sequence so far. Here each sequence is a list of
// cells, in the order in which they were written; a session of Banyan holds their rows in that order.
//
//     cells          0  1  2  3  4  5  6  7      list 0: 0 1 4 6     position 2 of it is cell 4
//     of sequence    a  a  b  b  a  b  a  b      list 1: 2 3 5 7
//
// A row belongs to the list whose first n cells are all that it sees besides cells of the batch, and is its
// position n. Where the list goes on behind n and may still be in use, the row begins a copy of it (a fork).
// What is found here is a proposal: the caller compares the mask, brought into the list's order, with what
// the session computes, element by element (mask.h), and only then takes the plan over. Knows nothing of
// ggml nor of Banyan. Not thread-safe.
#ifndef BANYAN_LLAMA_CELLS_H
#define BANYAN_LLAMA_CELLS_H

#include <stdbool.h>
#include <stdint.h>

#include "client/llama/mask.h"

#define CELLS_NONE UINT32_MAX

struct cells_list {
    uint32_t *cell; // [length] of each position; CELLS_NONE: it was written by another sequence since
    uint32_t *at;   // [cells]: the position of each cell; CELLS_NONE: it is none of the list's
    uint32_t length, room;
    uint32_t live; // positions that have their cell
    uint32_t hole; // the first position that lost its cell since cells_apply; CELLS_NONE: none did
    bool ordered;  // rows were written one after the other, not restored or collected
};

// Rows of a batch that follow one another in the batch and in one list.
struct cells_part {
    uint32_t list,
        fork_of;        // fork_of: CELLS_NONE, or the list becomes a copy of that one's first `first` cells
    uint64_t first;     // the first row's position
    uint32_t row, rows; // of the batch
    uint32_t round;     // how many parts of the same list come before it
    bool certain;       // what was at `first` before has its cell, or the list ended there
};

struct cells {
    uint32_t cells;
    struct cells_list *lists; // lists of length 0 are free for the next sequence
    uint32_t n_lists;
    struct cells_part *parts; // of the last plan, in the order of rows
    uint32_t n_parts, n_rounds;
    uint32_t *written, rows; // the cell of each row of the last plan
    uint32_t *row_of;        // [cells]: 1 + the row that is written there; 0: none
    uint32_t *order;         // room for a list's cells
    uint64_t order_room;
    uint32_t parts_room, rows_room;
    uint32_t mixed; // the row for which cells_plan has found no list; CELLS_NONE: none such
};

// false: no memory. cells_free takes a half-made one.
bool cells_init(struct cells *cells, uint32_t count);
void cells_free(struct cells *cells);

// The batch's rows go to these cells: what a plan is made of, and is compared with. NULL, or what is wrong.
const char *cells_write(struct cells *cells, const int64_t *written, uint32_t rows);
// Whether the last plan is one for rows that go to these cells, and may serve another layer.
bool cells_planned(const struct cells *cells, const int64_t *written, uint32_t rows);

// Finds each row's list. windowed: rows see the newest positions of their sequence alone, so a cell that was
// written by another sequence ends nothing. NULL: parts, n_parts and n_rounds are set. Else what is wrong, as
// mask_read says it. Lists are not changed, but for new ones of length 0.
const char *cells_plan(struct cells *cells, const struct mask *mask, bool windowed);
// The plan where no mask is: rows are stored, and nothing is asked.
const char *cells_plan_blind(struct cells *cells);

// A part's rows of the mask in the order of the list: out [part->rows][part->first + part->rows]. Not NULL: a
// row sees cells that are not the list's, or there is no memory. A position that has lost its cell is hidden,
// unless the known window (or chunk) shows it: llama.cpp gives cells behind a window to others, and when it
// takes rows back, the window reaches them again. It then attends without them; the session has them. Where
// positions before the part may have been lost, too, it is not certain which they are, and they are hidden.
const char *cells_gather(struct cells *cells, const struct cells_part *part, const struct mask *mask,
                         const struct mask_seen *known, uint16_t *out);
// Whether the list's cells up to the part's end are cells 0, 1, 2, …: the mask is in its order.
bool cells_in_order(const struct cells *cells, const struct cells_part *part);

// Takes the plan over: lists grow by the batch's cells, which no other list has afterwards. Those which
// cannot be continued any more become shorter, or of length 0. false: no memory, and lists are as they were.
bool cells_apply(struct cells *cells, bool windowed);

// A new list, as a restored state makes it, or for what the caller knows. CELLS_NONE: no memory.
uint32_t cells_new(struct cells *cells);
// Cells [first, first + count) are the next positions of a list, and no other one's.
bool cells_append(struct cells *cells, uint32_t list, uint32_t first, uint32_t count);
// Cell `cell` is the list's position `position`, and no other one's. ordered: the list's positions are in the
// order in which rows were written.
bool cells_place(struct cells *cells, uint32_t list, uint32_t position, uint32_t cell, bool ordered);
// The list keeps its first `length` positions.
void cells_cut(struct cells *cells, uint32_t list, uint32_t length);
// The list that has the cell, if several, any of them but `except`, and how many cells from it on have
// following positions there, at most `most`. CELLS_NONE: none has it.
uint32_t cells_find(const struct cells *cells, uint32_t cell, uint32_t most, uint32_t except, uint32_t *run);
// A new list of all cells that a row sees, those of the batch apart, whatever lists have them: for a row that
// goes on with no list. CELLS_NONE: no list has one of them, or there is no memory.
uint32_t cells_collect(struct cells *cells, const struct mask *mask, uint32_t row);

#endif
