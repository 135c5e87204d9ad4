// SPDX-License-Identifier: Apache-2.0
// Which session each row of a cache with shared cells belongs to. A made-up llama.cpp gives cells to rows of
// several sequences, takes them back, copies sequences, restores states, with a window or without; the masks
// it would make are planned. What must hold: the positions of the session that a row is put into are, in
// order, the tokens that the row sees, and none else.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/llama/cells.h"

enum { CELLS = 96, SEQUENCES = 5, ROWS = 24, TOKENS = 4096, LISTS = 256 };

static uint64_t drawn;

static uint64_t below(uint64_t n)
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (drawn >> 33) % n;
}

// ---- a made-up llama.cpp --------------------------------------------------------------------------------

static struct {
    int position; // −1: empty
    unsigned sequences;
    int token; // which write it holds
} held[CELLS];
static int lengths[SEQUENCES], tokens, window, refused, collected;
static int history[SEQUENCES][TOKENS]; // the token of each position

// ---- what sessions hold: the token of each position -----------------------------------------------------

static int session[LISTS][TOKENS], session_length[LISTS];
static struct cells cells;

static void start(int of_window)
{
    for (int i = 0; i < CELLS; i++)
        held[i].position = -1, held[i].sequences = 0;
    memset(lengths, 0, sizeof lengths);
    tokens = 0;
    window = of_window;
    assert_true(cells_init(&cells, CELLS));
}

static bool masked(int cell_position, int position)
{
    return window && position - cell_position >= window;
}

// As find_slot: empty, or of one sequence and behind its window.
static bool usable(int cell)
{
    if (held[cell].sequences == 0)
        return true;
    for (int s = 0; s < SEQUENCES; s++)
        if (held[cell].sequences == 1u << s)
            return masked(held[cell].position, lengths[s]);
    return false;
}

static bool write_rows(int count, const int *sequence, int64_t *written, int *position)
{
    int cell = (int)below(3) == 0 ? (int)below(CELLS) : 0, n = 0;
    bool taken[CELLS] = {0};
    for (int tried = 0; tried < CELLS && n < count; tried++, cell = (cell + 1) % CELLS)
        if (usable(cell) && !taken[cell]) {
            taken[cell] = true;
            written[n++] = cell;
        }
    if (n < count)
        return false;
    for (int i = 0; i < count; i++) {
        held[written[i]].position = position[i] = lengths[sequence[i]]++;
        held[written[i]].sequences = 1u << sequence[i];
        held[written[i]].token = history[sequence[i]][position[i]] = tokens++;
    }
    return true;
}

static void make_mask(int count, const int *sequence, const int *position, uint16_t *out)
{
    for (int i = 0; i < count; i++)
        for (int c = 0; c < CELLS; c++)
            out[i * CELLS + c] = (held[c].sequences & 1u << sequence[i]) && held[c].position <= position[i] &&
                                         !masked(held[c].position, position[i])
                                     ? 0
                                     : MASK_HIDDEN;
}

static void remove_tail(int sequence, int from)
{
    for (int c = 0; c < CELLS; c++)
        if ((held[c].sequences & 1u << sequence) && held[c].position >= from) {
            held[c].sequences &= ~(1u << sequence);
            held[c].position = held[c].sequences ? held[c].position : -1;
        }
    lengths[sequence] = lengths[sequence] < from ? lengths[sequence] : from;
}

// Whether a row at the position would see any of the sequence. It need not see all that its window shows:
// cells were given to others.
static bool has_any(int sequence, int position)
{
    for (int c = 0; c < CELLS; c++)
        if ((held[c].sequences & 1u << sequence) && held[c].position < position &&
            !masked(held[c].position, position))
            return true;
    return position == 0;
}

static void copy_sequence(int from, int to)
{
    remove_tail(to, 0);
    for (int c = 0; c < CELLS; c++)
        if (held[c].sequences & 1u << from)
            held[c].sequences |= 1u << to;
    lengths[to] = lengths[from];
    memcpy(history[to], history[from], sizeof history[to]);
}

// ---- checks -----------------------------------------------------------------------------------------------

static int token_at(int sequence, int position)
{
    for (int c = 0; c < CELLS; c++)
        if ((held[c].sequences & 1u << sequence) && held[c].position == position)
            return held[c].token;
    return -1;
}

static int compare(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

// What is in no order: the session has the tokens that the row sees, in whatever order.
static void check_unordered(const struct cells_part *part, int end, int sequence, int position)
{
    int has[TOKENS], want[TOKENS];
    memcpy(has, session[part->list], (size_t)end * sizeof(int));
    memcpy(want, history[sequence], (size_t)(position + 1) * sizeof(int));
    assert_int_equal(end, position + 1);
    qsort(has, (size_t)end, sizeof(int), compare);
    qsort(want, (size_t)end, sizeof(int), compare);
    assert_memory_equal(has, want, (size_t)end * sizeof(int));
}

// The tokens that a row should see, in the order of positions, are the session's newest ones up to the row;
// where it is not certain which were lost, those which the mask shows.
static void check_row(const struct cells_part *part, int row, int sequence, int position)
{
    int end = (int)part->first + row - (int)part->row + 1;
    assert_true(end <= session_length[part->list]);
    if (!cells.lists[part->list].ordered && !window) {
        check_unordered(part, end, sequence, position);
        return;
    }
    for (int p = position, at = end - 1; p >= 0 && !masked(p, position); p--) {
        int token = part->certain ? history[sequence][p] : token_at(sequence, p);
        if (token < 0)
            continue;
        assert_true(at >= 0);
        assert_int_equal(session[part->list][at--], token);
    }
    if (!window)
        assert_int_equal(end, position + 1);
}

// Whether all that the sequence's window shows has its cell.
static bool is_whole(int sequence, int position)
{
    for (int p = position; p >= 0 && !masked(p, position); p--)
        if (token_at(sequence, p) < 0)
            return false;
    return true;
}

static void follow(void)
{
    for (uint32_t i = 0; i < cells.n_parts; i++) {
        const struct cells_part *part = &cells.parts[i];
        assert_true(part->list < LISTS && part->first + part->rows <= TOKENS);
        if (part->fork_of != CELLS_NONE) {
            assert_true((int)part->first <= session_length[part->fork_of]);
            memcpy(session[part->list], session[part->fork_of], part->first * sizeof(int));
            session_length[part->list] = (int)part->first;
        }
        if (part->round == 0) // a session keeps what it has below the first row
            assert_true(session_length[part->list] >= (int)part->first);
        for (uint32_t k = 0; k < part->rows; k++)
            session[part->list][part->first + k] = held[cells.written[part->row + k]].token;
        session_length[part->list] = (int)(part->first + part->rows);
    }
    assert_true(cells_apply(&cells, window > 0));
    for (uint32_t i = 0; i < cells.n_lists; i++)
        if (session_length[i] > (int)cells.lists[i].length)
            session_length[i] = (int)cells.lists[i].length;
}

// The mask in the order of each list is that of one sequence. false: one is not.
static bool check_masks(const struct mask *mask)
{
    bool right = true;
    uint16_t *ordered = malloc(sizeof *ordered * ROWS * TOKENS);
    for (uint32_t i = 0; i < cells.n_parts; i++) {
        const struct cells_part *part = &cells.parts[i];
        struct mask_seen known = {.window = (uint64_t)window}, seen;
        assert_null(cells_gather(&cells, part, mask, &known, ordered));
        struct mask part_mask = {.at = ordered,
                                 .cells = part->first + part->rows,
                                 .rows = part->rows,
                                 .stride = part->first + part->rows};
        if (mask_read(&part_mask, part->first, &known, &seen)) {
            right = false;
            continue;
        }
        assert_true(seen.window == (uint64_t)window && seen.chunk == 0);
        if (cells_in_order(&cells, part))
            for (uint32_t k = 0; k < part->rows; k++)
                assert_memory_equal(ordered + k * part_mask.cells, mask->at + (part->row + k) * mask->stride,
                                    part_mask.cells * sizeof *ordered);
    }
    free(ordered);
    return right;
}

// As attend.c: what goes on with no list is copied to one of its own.
static const char *plan(const struct mask *mask)
{
    const char *wrong = cells_plan(&cells, mask, window > 0);
    for (int copies = 0; wrong && !window && copies < ROWS; copies++) {
        uint32_t list = cells_collect(&cells, mask, cells.mixed);
        assert_true(list < LISTS);
        session_length[list] = (int)cells.lists[list].length;
        for (int j = 0; j < session_length[list]; j++)
            session[list][j] = held[cells.lists[list].cell[j]].token;
        wrong = cells_plan(&cells, mask, false);
        collected++;
    }
    return wrong;
}

static bool step(void)
{
    int count = 1 + (int)below(ROWS), sequence[ROWS], position[ROWS], kind = (int)below(3);
    int64_t written[ROWS];
    uint16_t at[ROWS * CELLS];
    for (int i = 0; i < count; i++) // of one, in blocks, in turns
        sequence[i] = kind == 0   ? (i ? sequence[0] : (int)below(SEQUENCES))
                      : kind == 1 ? i * SEQUENCES / count
                                  : (int)below(SEQUENCES);
    if (!write_rows(count, sequence, written, position))
        return false;
    make_mask(count, sequence, position, at);
    const struct mask mask = {.at = at, .cells = CELLS, .rows = (uint64_t)count, .stride = CELLS};
    assert_null(cells_write(&cells, written, (uint32_t)count));
    if (plan(&mask) || !check_masks(&mask)) {
        bool whole = true; // refused: then llama.cpp lacks what the window shows
        for (int i = 0; i < count; i++)
            whole = whole && is_whole(sequence[i], position[i]);
        assert_false(whole);
        for (int i = 0; i < count; i++)
            remove_tail(sequence[i], 0);
        cells.n_parts = 0;
        refused++;
        return true;
    }
    follow();
    assert_true(cells_planned(&cells, written, (uint32_t)count));
    assert_true(check_masks(&mask)); // as the next layer does
    for (uint32_t i = 0; i < cells.n_parts; i++)
        for (uint32_t k = 0; k < cells.parts[i].rows; k++) {
            int row = (int)(cells.parts[i].row + k);
            check_row(&cells.parts[i], row, sequence[row], position[row]);
        }
    follow(); // and again: nothing changes
    return true;
}

static void restore(int sequence)
{
    remove_tail(sequence, 0);
    int count = 1 + (int)below(ROWS), of[ROWS], position[ROWS];
    int64_t written[ROWS];
    for (int i = 0; i < count; i++)
        of[i] = sequence;
    if (!write_rows(count, of, written, position))
        return;
    cells.n_parts = 0;
    uint32_t list = cells_new(&cells);
    assert_true(list < LISTS);
    session_length[list] = 0;
    bool backwards = !window && below(2); // as a state has them: in the order of its cells then
    for (int i = 0; i < count; i++) {
        int row = backwards ? count - 1 - i : i;
        assert_true(cells_append(&cells, list, (uint32_t)written[row], 1));
        session[list][session_length[list]++] = held[written[row]].token;
    }
}

static void run(int of_window, unsigned seed)
{
    drawn = seed;
    uint32_t most = 0;
    start(of_window);
    for (int i = 0; i < 400; i++) {
        int s = (int)below(SEQUENCES);
        for (int tried = 0; !step() && tried < 3 * SEQUENCES; tried++)
            remove_tail((int)below(SEQUENCES), 0);
        int from = lengths[s] - (int)below((uint64_t)lengths[s] + 1) / 2;
        if (below(4) == 0 && has_any(s, from))
            remove_tail(s, from);
        if (below(8) == 0)
            remove_tail(s, 0);
        if (below(8) == 0 && !window)
            copy_sequence(s, (s + 1 + (int)below(SEQUENCES - 1)) % SEQUENCES);
        if (below(16) == 0)
            restore(s);
        for (int q = 0; q < SEQUENCES; q++)
            if (lengths[q] > TOKENS / 2)
                remove_tail(q, 0);
        most = cells.n_lists > most ? cells.n_lists : most;
    }
    assert_true(most <= 64); // what cannot be continued is given to the next
    cells_free(&cells);
}

static void sessions_hold_what_rows_see(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 40; seed++)
        run(0, seed);
    assert_true(refused == 0 && collected > 0);
}

static void with_a_window(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 40; seed++)
        run(7 + (int)(seed % 3), seed);
    assert_true(refused < 40 * 400 / 20);
}

// A row that sees cells of two sequences, or one sequence without its middle, is refused.
static void what_is_no_sequence_is_refused(void **state)
{
    (void)state;
    static const int64_t a[] = {0, 2, 4}, b[] = {1, 3, 5}, next[] = {6};
    uint16_t at[3][CELLS];
    const struct mask mask = {.at = at[0], .cells = CELLS, .rows = 3, .stride = CELLS};
    start(0);
    for (int sequence = 0; sequence < 2; sequence++) {
        for (int i = 0; i < 3; i++)
            for (int c = 0; c < CELLS; c++)
                at[i][c] = c % 2 == sequence && c <= 2 * i + sequence ? 0 : MASK_HIDDEN;
        assert_null(cells_write(&cells, sequence ? b : a, 3));
        assert_null(cells_plan(&cells, &mask, false));
        assert_int_equal(cells.n_parts, 1);
        assert_true(cells_apply(&cells, false));
    }
    const struct mask one = {.at = at[0], .cells = CELLS, .rows = 1, .stride = CELLS};
    for (int c = 0; c < CELLS; c++)
        at[0][c] = c <= 6 ? 0 : MASK_HIDDEN;
    assert_null(cells_write(&cells, next, 1));
    assert_non_null(cells_plan(&cells, &one, false));
    for (int c = 0; c < CELLS; c++)
        at[0][c] = c == 0 || c == 4 || c == 6 ? 0 : MASK_HIDDEN;
    const char *wrong = cells_plan(&cells, &one, false);
    if (!wrong) { // its last cell is a sequence's: the order shows the hole
        struct mask_seen known = {0}, seen;
        uint16_t ordered[CELLS];
        assert_null(cells_gather(&cells, &cells.parts[0], &one, &known, ordered));
        struct mask part = {.at = ordered, .cells = 4, .rows = 1, .stride = 4};
        wrong = mask_read(&part, cells.parts[0].first, &known, &seen);
    }
    assert_non_null(wrong);
    static const int64_t twice[] = {7, 7}, beyond[] = {CELLS};
    assert_non_null(cells_write(&cells, twice, 2));
    assert_non_null(cells_write(&cells, beyond, 1));
    cells_free(&cells);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_hold_what_rows_see),
        cmocka_unit_test(with_a_window),
        cmocka_unit_test(what_is_no_sequence_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
