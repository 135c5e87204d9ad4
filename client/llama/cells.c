// SPDX-License-Identifier: Apache-2.0
#include "client/llama/cells.h"

#include <stdlib.h>
#include <string.h>

static const char mixed[] =
    "the mask is not that of sequences with all their cells: some were removed from the "
    "middle, or a row is of several sequences. Give --no-kv-unified, for windows "
    "--swa-full, and no context shift and no --cache-reuse";
static const char no_memory[] = "no memory";

bool cells_init(struct cells *cells, uint32_t count)
{
    *cells = (struct cells){.cells = count, .row_of = calloc(count ? count : 1, sizeof *cells->row_of)};
    return cells->row_of != NULL;
}

void cells_free(struct cells *cells)
{
    for (uint32_t i = 0; i < cells->n_lists; i++) {
        free(cells->lists[i].cell);
        free(cells->lists[i].at);
    }
    free(cells->lists);
    free(cells->parts);
    free(cells->written);
    free(cells->order);
    free(cells->row_of);
    *cells = (struct cells){0};
}

// ---- lists ----------------------------------------------------------------------------------------------

static bool in_batch(const struct cells *cells, uint32_t cell)
{
    return cells->row_of[cell] != 0;
}

static bool has_part(const struct cells *cells, uint32_t list)
{
    for (uint32_t i = 0; i < cells->n_parts; i++)
        if (cells->parts[i].list == list)
            return true;
    return false;
}

uint32_t cells_new(struct cells *cells)
{
    for (uint32_t i = 0; i < cells->n_lists; i++)
        if (cells->lists[i].length == 0 && !has_part(cells, i)) {
            cells->lists[i].ordered = true;
            return i;
        }
    struct cells_list *more = realloc(cells->lists, (cells->n_lists + 1) * sizeof *more);
    if (!more)
        return CELLS_NONE;
    cells->lists = more;
    uint32_t *at = malloc((cells->cells ? cells->cells : 1) * sizeof *at);
    if (!at)
        return CELLS_NONE;
    memset(at, 0xff, cells->cells * sizeof *at);
    more[cells->n_lists] = (struct cells_list){.at = at, .hole = CELLS_NONE, .ordered = true};
    return cells->n_lists++;
}

static bool room(struct cells_list *list, uint64_t length)
{
    if (length <= list->room)
        return true;
    if (length >= CELLS_NONE / 2)
        return false;
    uint32_t *more = realloc(list->cell, 2 * length * sizeof *more);
    if (!more)
        return false;
    list->cell = more;
    list->room = (uint32_t)(2 * length);
    return true;
}

// The position has its cell no more.
static void lose(struct cells_list *list, uint32_t position)
{
    if (list->cell[position] == CELLS_NONE)
        return;
    list->at[list->cell[position]] = CELLS_NONE;
    list->cell[position] = CELLS_NONE;
    list->live--;
}

static void cut(struct cells_list *list, uint32_t length)
{
    while (list->length > length)
        lose(list, --list->length);
}

void cells_cut(struct cells *cells, uint32_t list, uint32_t length)
{
    cut(&cells->lists[list], length);
}

// The cell is the list's at the position, and no other one's. There is room.
static void put(struct cells *cells, uint32_t number, uint32_t position, uint32_t cell)
{
    for (uint32_t i = 0; i < cells->n_lists; i++) {
        struct cells_list *list = &cells->lists[i];
        uint32_t at = list->at[cell];
        if (at == CELLS_NONE || (i == number && at == position))
            continue;
        lose(list, at);
        list->hole = at < list->hole ? at : list->hole;
    }
    struct cells_list *list = &cells->lists[number];
    if (list->at[cell] == position)
        return;
    for (; list->length <= position; list->length++)
        list->cell[list->length] = CELLS_NONE;
    lose(list, position);
    list->cell[position] = cell;
    list->at[cell] = position;
    list->live++;
}

bool cells_append(struct cells *cells, uint32_t list, uint32_t first, uint32_t count)
{
    if (first + (uint64_t)count > cells->cells ||
        !room(&cells->lists[list], (uint64_t)cells->lists[list].length + count))
        return false;
    cells->lists[list].ordered = false;
    for (uint32_t i = 0; i < count; i++)
        put(cells, list, cells->lists[list].length, first + i);
    return true;
}

bool cells_place(struct cells *cells, uint32_t list, uint32_t position, uint32_t cell, bool ordered)
{
    if (cell >= cells->cells || !room(&cells->lists[list], (uint64_t)position + 1))
        return false;
    cells->lists[list].ordered = ordered;
    put(cells, list, position, cell);
    return true;
}

uint32_t cells_find(const struct cells *cells, uint32_t cell, uint32_t most, uint32_t except, uint32_t *run)
{
    for (uint32_t i = 0; i < cells->n_lists; i++) {
        const uint32_t *at = cells->lists[i].at;
        if (i == except || at[cell] == CELLS_NONE)
            continue;
        uint32_t n = 1;
        while (n < most && at[cell + n] == at[cell] + n)
            n++;
        *run = n;
        return i;
    }
    return CELLS_NONE;
}

// ---- a plan -----------------------------------------------------------------------------------------------

bool cells_planned(const struct cells *cells, const int64_t *written, uint32_t rows)
{
    if (cells->n_parts == 0 || cells->rows != rows)
        return false;
    for (uint32_t i = 0; i < rows; i++)
        if (cells->written[i] != (uint64_t)written[i])
            return false;
    return true;
}

const char *cells_write(struct cells *cells, const int64_t *written, uint32_t rows)
{
    for (uint32_t i = 0; i < cells->rows; i++)
        cells->row_of[cells->written[i]] = 0;
    cells->rows = cells->n_parts = 0;
    if (rows > cells->rows_room) {
        uint32_t *more = realloc(cells->written, rows * sizeof *more);
        if (!more)
            return no_memory;
        cells->written = more;
        cells->rows_room = rows;
    }
    for (uint32_t i = 0; i < rows; i++) {
        if (written[i] < 0 || written[i] >= cells->cells)
            return "a row goes beyond the cache's end";
        if (cells->row_of[written[i]])
            return "two rows go to one cell: give --no-kv-unified";
        cells->written[i] = (uint32_t)written[i];
        cells->row_of[written[i]] = i + 1;
        cells->rows = i + 1;
    }
    return NULL;
}

static bool sees(const struct mask *mask, const uint16_t *row, uint32_t cell)
{
    return cell < mask->cells && row[cell] != MASK_HIDDEN;
}

static uint64_t count_seen(const struct mask *mask, const uint16_t *row)
{
    uint64_t seen = 0;
    for (uint64_t first = 0; first < mask->cells; first += 4096) {
        uint64_t end = mask->cells - first > 4096 ? first + 4096 : mask->cells;
        uint16_t some = 0;
        for (uint64_t j = first; j < end; j++)
            some = (uint16_t)(some + (row[j] != MASK_HIDDEN));
        seen += some;
    }
    return seen;
}

static bool is_old(const struct cells *cells, const struct mask *mask, const uint16_t *row, uint32_t cell)
{
    return cell != CELLS_NONE && !in_batch(cells, cell) && sees(mask, row, cell);
}

// The row sees the list's newest cells before position n, `seen` in number, and those of the batch. Positions
// that have lost their cell are passed over.
static bool matches(const struct cells *cells, const struct cells_list *list, uint32_t n,
                    const struct mask *mask, const uint16_t *row, uint64_t seen)
{
    for (uint32_t j = n; seen > 0 && j-- > 0;) {
        uint32_t cell = list->cell[j];
        if (cell == CELLS_NONE || in_batch(cells, cell))
            continue;
        if (!sees(mask, row, cell))
            return false;
        seen--;
    }
    return seen == 0;
}

// Nothing from position n on is in use, but what the batch writes.
static bool ends_at(const struct cells *cells, const struct cells_list *list, uint32_t n)
{
    for (uint32_t j = n; j < list->length; j++)
        if (list->cell[j] != CELLS_NONE && !in_batch(cells, list->cell[j]))
            return false;
    return true;
}

// The list of a row that sees nothing but what the batch writes.
static const char *begin(struct cells *cells, uint32_t cell, bool windowed, struct cells_part *out)
{
    out->first = 0;
    out->list = CELLS_NONE;
    for (uint32_t i = 0; i < cells->n_lists && out->list == CELLS_NONE; i++)
        if (cells->lists[i].at[cell] == 0 && !has_part(cells, i) &&
            (!windowed || ends_at(cells, &cells->lists[i], 0)))
            out->list = i;
    if (out->list == CELLS_NONE)
        out->list = cells_new(cells);
    return out->list == CELLS_NONE ? no_memory : NULL;
}

// The list of a row that no part of the plan goes on with.
static const char *find(struct cells *cells, const struct mask *mask, uint32_t i, bool windowed,
                        struct cells_part *out)
{
    const uint16_t *row = mask->at + i * mask->stride;
    uint32_t cell = cells->written[i];
    uint64_t seen = count_seen(mask, row);
    for (uint32_t k = 0; k < cells->rows; k++)
        seen -= sees(mask, row, cells->written[k]);
    if (seen == 0)
        return begin(cells, cell, windowed, out);
    enum { NO, FORK, TAIL_UNUSED, END, SAME_CELL, ALL = 8 } best = NO; // ALL: and it sees the first cell, too
    for (uint32_t s = 0; s < cells->n_lists && best != (ALL | SAME_CELL); s++) {
        const struct cells_list *list = &cells->lists[s];
        bool taken = has_part(cells, s);
        uint32_t n = list->at[cell], rank = SAME_CELL;
        if (taken || n == CELLS_NONE || n == 0 || !is_old(cells, mask, row, list->cell[n - 1]) ||
            !matches(cells, list, n, mask, row, seen)) {
            n = list->length;
            while (n > 0 && !is_old(cells, mask, row, list->cell[n - 1]))
                n--;
            if (n == 0 || !matches(cells, list, n, mask, row, seen))
                continue;
            rank = taken ? FORK : n == list->length ? END : ends_at(cells, list, n) ? TAIL_UNUSED : FORK;
        }
        // A window that shows for the first time hides one position. More, or one of a list whose order is
        // another than llama.cpp's, are rows that were taken back.
        if (!windowed && n != seen && !(list->ordered && n == seen + 1))
            continue;
        rank |= n == seen ? ALL : 0;
        if (rank <= best)
            continue;
        best = rank;
        out->list = s;
        out->first = n;
        out->certain = n == list->length || list->cell[n] != CELLS_NONE;
    }
    if (best == NO) {
        cells->mixed = i;
        return mixed;
    }
    if ((best & ~ALL) == FORK) {
        out->fork_of = out->list;
        out->list = cells_new(cells);
    }
    return out->list == CELLS_NONE ? no_memory : NULL;
}

static struct cells_part *add_part(struct cells *cells)
{
    if (cells->n_parts == cells->parts_room) {
        uint32_t more = 2 * cells->parts_room + 8;
        struct cells_part *parts = realloc(cells->parts, more * sizeof *parts);
        if (!parts)
            return NULL;
        cells->parts = parts;
        cells->parts_room = more;
    }
    return &cells->parts[cells->n_parts];
}

// The plan's part whose last row the row sees, the latest of its list; n_parts: none. More than one:
// *several.
static uint32_t goes_on(const struct cells *cells, const struct mask *mask, uint32_t i, bool *several)
{
    const uint16_t *row = mask->at + i * mask->stride;
    uint32_t found = cells->n_parts;
    for (uint32_t p = cells->n_parts; p-- > 0;) {
        const struct cells_part *part = &cells->parts[p];
        if (found < cells->n_parts && cells->parts[found].list == part->list)
            continue;
        if (!sees(mask, row, cells->written[part->row + part->rows - 1]))
            continue;
        *several = *several || found < cells->n_parts;
        found = p;
    }
    return found;
}

static const char *plan_row(struct cells *cells, const struct mask *mask, uint32_t i, bool windowed)
{
    bool several = false;
    uint32_t before = goes_on(cells, mask, i, &several);
    if (several || !sees(mask, mask->at + i * mask->stride, cells->written[i]))
        return mixed;
    if (before < cells->n_parts && cells->parts[before].row + cells->parts[before].rows == i) {
        cells->parts[before].rows++;
        return NULL;
    }
    struct cells_part *part = add_part(cells), made = {.fork_of = CELLS_NONE, .row = i, .rows = 1};
    if (!part)
        return no_memory;
    if (before < cells->n_parts) {
        const struct cells_part *last = &cells->parts[before];
        made.list = last->list;
        made.first = last->first + last->rows;
        made.round = last->round + 1;
        made.certain = last->certain;
    } else {
        const char *wrong = find(cells, mask, i, windowed, &made);
        if (wrong)
            return wrong;
    }
    cells->parts[cells->n_parts++] = made;
    cells->n_rounds = made.round + 1 > cells->n_rounds ? made.round + 1 : cells->n_rounds;
    return NULL;
}

const char *cells_plan(struct cells *cells, const struct mask *mask, bool windowed)
{
    const char *wrong = NULL;
    cells->n_parts = cells->n_rounds = 0;
    cells->mixed = CELLS_NONE;
    for (uint32_t i = 0; !wrong && i < cells->rows; i++)
        wrong = plan_row(cells, mask, i, windowed);
    if (wrong)
        cells->n_parts = 0;
    return wrong;
}

uint32_t cells_collect(struct cells *cells, const struct mask *mask, uint32_t row)
{
    const uint16_t *at = mask->at + row * mask->stride;
    uint64_t seen = count_seen(mask, at);
    for (uint32_t k = 0; k < cells->rows; k++)
        seen -= sees(mask, at, cells->written[k]);
    cells->n_parts = 0;
    uint32_t number = cells_new(cells);
    if (number == CELLS_NONE || !room(&cells->lists[number], seen))
        return CELLS_NONE;
    struct cells_list *to = &cells->lists[number];
    to->ordered = false;
    for (uint32_t s = 0; s < cells->n_lists; s++) {
        const struct cells_list *list = &cells->lists[s];
        for (uint32_t j = 0; s != number && j < list->length; j++) {
            if (!is_old(cells, mask, at, list->cell[j]) || to->at[list->cell[j]] != CELLS_NONE)
                continue;
            to->at[list->cell[j]] = to->length;
            to->cell[to->length++] = list->cell[j];
            to->live++;
        }
    }
    if (to->length == seen)
        return number;
    cut(to, 0);
    return CELLS_NONE;
}

const char *cells_plan_blind(struct cells *cells)
{
    uint32_t cell = cells->rows ? cells->written[0] : 0;
    struct cells_part made = {.fork_of = CELLS_NONE, .list = CELLS_NONE, .rows = cells->rows};
    cells->n_parts = 0;
    for (uint32_t i = 0; i < cells->n_lists; i++) {
        const struct cells_list *list = &cells->lists[i];
        bool behind = list->length > 0 && list->cell[list->length - 1] + 1 == cell;
        if (list->at[cell] == CELLS_NONE && !behind)
            continue;
        if (made.list != CELLS_NONE)
            return "keys and values of several sequences that no attention reads: give --no-kv-unified";
        made.list = i;
        made.first = behind ? list->length : list->at[cell];
    }
    if (made.list == CELLS_NONE)
        made.list = cells_new(cells);
    if (made.list == CELLS_NONE || !add_part(cells))
        return no_memory;
    cells->parts[0] = made;
    cells->n_parts = cells->n_rounds = 1;
    return NULL;
}

// ---- what a plan's parts are ------------------------------------------------------------------------------

// The cells of the part's list up to its last row, as they are with the batch: CELLS_NONE where the batch
// writes an old one for another row. NULL: no memory.
static const uint32_t *order_of(struct cells *cells, const struct cells_part *part)
{
    uint64_t end = part->first + part->rows, at = 0;
    if (end > cells->order_room) {
        uint32_t *more = realloc(cells->order, 2 * end * sizeof *more);
        if (!more)
            return NULL;
        cells->order = more;
        cells->order_room = 2 * end;
    }
    for (const struct cells_part *of = cells->parts; of <= part; of++) {
        if (of->list != part->list)
            continue;
        const struct cells_list *list = &cells->lists[of->fork_of == CELLS_NONE ? of->list : of->fork_of];
        for (; at < of->first; at++) {
            uint32_t cell = at < list->length ? list->cell[at] : CELLS_NONE;
            cells->order[at] = cell != CELLS_NONE && in_batch(cells, cell) ? CELLS_NONE : cell;
        }
        for (uint32_t i = 0; i < of->rows; i++)
            cells->order[at++] = cells->written[of->row + i];
    }
    return cells->order;
}

const char *cells_gather(struct cells *cells, const struct cells_part *part, const struct mask *mask,
                         const struct mask_seen *known, uint16_t *out)
{
    const uint32_t *order = order_of(cells, part);
    uint64_t end = part->first + part->rows;
    if (!order)
        return no_memory;
    for (uint32_t i = 0; i < part->rows; i++, out += end) {
        const uint16_t *row = mask->at + (part->row + i) * mask->stride;
        uint64_t position = part->first + i, low = mask_low(known, position), seen = 0;
        bool fills = part->certain && (known->window || known->chunk) && !mask->alibi;
        for (uint64_t j = 0; j < end; j++) {
            bool lost = order[j] == CELLS_NONE && j >= low && j < position && fills;
            out[j] = order[j] < mask->cells ? row[order[j]] : lost ? 0 : MASK_HIDDEN;
            seen += out[j] != MASK_HIDDEN && !lost;
        }
        if (seen != count_seen(mask, row))
            return mixed;
    }
    return NULL;
}

bool cells_in_order(const struct cells *cells, const struct cells_part *part)
{
    const struct cells_list *list = &cells->lists[part->fork_of == CELLS_NONE ? part->list : part->fork_of];
    if (part->round > 0 || list->length < part->first)
        return false;
    for (uint64_t j = 0; j < part->first; j++)
        if (list->cell[j] != j)
            return false;
    for (uint32_t i = 0; i < part->rows; i++)
        if (cells->written[part->row + i] != part->first + i)
            return false;
    return true;
}

// ---- apply ------------------------------------------------------------------------------------------------

static bool is_last(const struct cells *cells, uint32_t part)
{
    for (uint32_t i = part + 1; i < cells->n_parts; i++)
        if (cells->parts[i].list == cells->parts[part].list)
            return false;
    return true;
}

static bool make_room(struct cells *cells)
{
    for (uint32_t i = 0; i < cells->n_parts; i++)
        if (!room(&cells->lists[cells->parts[i].list], cells->parts[i].first + cells->parts[i].rows))
            return false;
    return true;
}

static void copy(struct cells_list *to, const struct cells_list *from, uint64_t length)
{
    for (uint32_t j = 0; j < length; j++) {
        to->cell[j] = from->cell[j];
        if (to->cell[j] == CELLS_NONE)
            continue;
        to->at[to->cell[j]] = j;
        to->live++;
    }
    to->length = (uint32_t)length;
    to->ordered = from->ordered;
}

bool cells_apply(struct cells *cells, bool windowed)
{
    if (!make_room(cells))
        return false;
    for (uint32_t i = 0; i < cells->n_parts; i++) {
        struct cells_part *part = &cells->parts[i];
        if (part->fork_of != CELLS_NONE && cells->lists[part->list].length == 0)
            copy(&cells->lists[part->list], &cells->lists[part->fork_of], part->first);
        part->fork_of = CELLS_NONE;
    }
    for (uint32_t i = 0; i < cells->n_parts; i++) {
        const struct cells_part *part = &cells->parts[i];
        for (uint32_t k = 0; k < part->rows; k++)
            put(cells, part->list, (uint32_t)part->first + k, cells->written[part->row + k]);
    }
    for (uint32_t i = 0; i < cells->n_parts; i++) // what was behind a sequence that was shortened
        if (is_last(cells, i))
            cut(&cells->lists[cells->parts[i].list],
                (uint32_t)(cells->parts[i].first + cells->parts[i].rows));
    for (uint32_t i = 0; i < cells->n_lists; i++) {
        struct cells_list *list = &cells->lists[i];
        if (!windowed && list->ordered && list->hole < list->length && !has_part(cells, i))
            cut(list, list->hole);
        if (list->live == 0 && !has_part(cells, i))
            list->length = 0;
        list->hole = CELLS_NONE;
    }
    return true;
}
