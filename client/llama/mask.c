// SPDX-License-Identifier: Apache-2.0
#include "client/llama/mask.h"

enum { SEEN = 0, HIDDEN = MASK_HIDDEN };

static const char mixed[] = "the mask is not that of one sequence with its cells in order: cells of other "
                            "sequences are in between, or some were removed. Give --no-kv-unified, for "
                            "windows --swa-full, and no context shift and no --cache-reuse";

// float16 of -distance, as llama.cpp makes it: rounded to nearest, ties to even.
static uint16_t alibi_value(uint64_t distance)
{
    if (distance == 0)
        return 0x8000;
    if (distance >= 65520)
        return HIDDEN;
    int exponent = 63 - __builtin_clzll(distance);
    uint64_t mantissa = distance << 10; // in units of 2^-10
    uint64_t unit = 1ull << exponent, half = unit >> 1, rest = mantissa & (unit - 1);
    mantissa >>= exponent;
    mantissa += rest > half || (rest == half && half && (mantissa & 1));
    return (uint16_t)(0x8000 | (((uint64_t)(exponent + 15) << 10) + (mantissa - 1024)));
}

// All of [first, end) have the value. In blocks that the compiler makes vectors of.
static bool all(const uint16_t *row, uint64_t first, uint64_t end, uint16_t value)
{
    while (first < end) {
        uint64_t stop = end - first > 512 ? first + 512 : end;
        unsigned wrong = 0;
        for (; first < stop; first++)
            wrong |= (unsigned)row[first] ^ value;
        if (wrong)
            return false;
    }
    return true;
}

static bool seen(const struct mask *mask, const uint16_t *row, uint64_t first, uint64_t end,
                 uint64_t position)
{
    if (!mask->alibi)
        return all(row, first, end, SEEN);
    for (uint64_t j = first; j < end; j++) {
        uint16_t want = alibi_value(j < position ? position - j : j - position);
        if (row[j] != want && !(want == 0x8000 && row[j] == 0))
            return false;
    }
    return true;
}

uint64_t mask_low(const struct mask_seen *seen_so_far, uint64_t position)
{
    if (seen_so_far->window)
        return position + 1 > seen_so_far->window ? position + 1 - seen_so_far->window : 0;
    return seen_so_far->chunk ? position - position % seen_so_far->chunk : 0;
}

static bool row_is(const struct mask *mask, const uint16_t *row, uint64_t low, uint64_t end,
                   uint64_t position)
{
    return all(row, end, mask->cells, HIDDEN) && all(row, 0, low, HIDDEN) &&
           seen(mask, row, low, end, position);
}

static uint64_t first_seen(const struct mask *mask, const uint16_t *row)
{
    uint64_t j = 0;
    while (j < mask->cells && row[j] == HIDDEN)
        j++;
    return j;
}

// One past the last cell that the row sees; 0: none.
static uint64_t end_of(const struct mask *mask, const uint16_t *row)
{
    uint64_t j = mask->cells;
    while (j > 0 && row[j - 1] == HIDDEN)
        j--;
    return j;
}

const char *mask_read(const struct mask *mask, uint64_t first, const struct mask_seen *known,
                      struct mask_seen *out)
{
    *out = (struct mask_seen){.first = first, .window = known->window, .chunk = known->chunk};
    if (mask->rows == 0 || mask->cells == 0)
        return "the mask is empty";
    uint64_t end = end_of(mask, mask->at);
    if (first == UINT64_MAX) {
        // A block ends behind its last row; where rows see no later ones, the last row sees further than the
        // first.
        uint64_t last = end_of(mask, mask->at + (mask->rows - 1) * mask->stride);
        if (end == 0 || last < mask->rows)
            return mixed;
        out->first = first = last - mask->rows;
    }
    if (first + mask->rows > mask->cells)
        return "the batch ends beyond the mask";
    out->block = mask->rows > 1 && end == first + mask->rows;
    for (uint64_t i = 0; i < mask->rows; i++) {
        const uint16_t *row = mask->at + i * mask->stride;
        uint64_t position = first + i, row_end = out->block ? first + mask->rows : position + 1;
        if (row_is(mask, row, mask_low(out, position), row_end, position))
            continue;
        // A window or a chunk that shows for the first time: what the rows before have shown must hold with
        // it, too.
        uint64_t low = first_seen(mask, row);
        if (known->window || known->chunk || out->window || out->chunk || low == 0 || low > position)
            return mixed;
        if (low == position && position > 1)
            out->chunk = position;
        else
            out->window = position + 1 - low;
        for (uint64_t before = 0; before < i; before++)
            if (mask_low(out, first + before) != 0)
                return mixed;
        if (!row_is(mask, row, mask_low(out, position), row_end, position))
            return mixed;
    }
    if (out->block && (out->window || out->chunk))
        return "rows that see later ones and a window together are not served: process such a batch (an "
               "image) in a model without windows";
    return NULL;
}
