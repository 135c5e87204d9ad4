// SPDX-License-Identifier: Apache-2.0
// What a mask of llama.cpp says, as positions: which cells each row of a batch sees.
//
// llama.cpp hands an attention the cells of its cache and a mask of float16: 0 where a row sees the cell,
// -inf where it does not (with ALiBi -|i - j| where it does). A Banyan session has positions, and its rows
// see all earlier ones, or those of a window, or those of a chunk. Here a mask is compared with that, element
// by element: what is not the same is an error, never an answer. Any thread; nothing is kept.
#ifndef BANYAN_LLAMA_MASK_H
#define BANYAN_LLAMA_MASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MASK_HIDDEN = 0xfc00 }; // -inf

// One stream's part of a mask: `rows` rows of `cells` float16 each, `stride` elements from a row to the next.
struct mask {
    const uint16_t *at;
    uint64_t cells, rows, stride;
    bool alibi; // what is seen is -|i - j|
};

// What the rows see. `first` is the position (the cell) of the first row; the others follow it.
struct mask_seen {
    uint64_t first;
    uint64_t window; // 0: none. Else row i sees (i - window, i]
    uint64_t chunk;  // 0: none. Else row i sees [i - i % chunk, i]
    bool block;      // all rows see each other, later ones too
};

// The first position that a row at `position` sees.
uint64_t mask_low(const struct mask_seen *seen, uint64_t position);

// Reads the mask. `first`: where the batch was written, or UINT64_MAX: the mask says it (of a layer that
// reads another's rows). known: the window and chunk that were seen before; what is found is compared with
// them where they are set, and where they are not, they are found as soon as they hide something. Returns
// NULL and fills *out, or a sentence without its end: what is wrong and which flag helps.
const char *mask_read(const struct mask *mask, uint64_t first, const struct mask_seen *known,
                      struct mask_seen *out);

#endif
