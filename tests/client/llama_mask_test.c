// SPDX-License-Identifier: Apache-2.0
// client/llama/mask.c: whatever it accepts, the mask says exactly that; and what llama.cpp makes for one
// sequence is accepted.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/llama/mask.h"
#include "common/hash/hash.h"
#include "common/tensor/float16.h"

enum { CELLS = 512, ROWS = 40, HIDDEN = 0xfc00 };

static uint64_t drawn; // of the pseudorandom numbers

static uint64_t below(uint64_t n)
{
    return common_mix64(++drawn) % n;
}

static uint16_t cells[ROWS][CELLS];
static const struct mask_seen nothing;

// What row i at its position is to see, in plain words.
static bool sees(const struct mask_seen *seen, uint64_t rows, uint64_t position, uint64_t cell)
{
    if (seen->block)
        return cell < seen->first + rows;
    return cell <= position && (!seen->window || cell + seen->window > position) &&
           (!seen->chunk || cell >= position - position % seen->chunk);
}

static void draw(const struct mask_seen *seen, uint64_t rows, bool alibi)
{
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < CELLS; j++) {
            uint64_t position = seen->first + i, distance = j < position ? position - j : j - position;
            cells[i][j] = !sees(seen, rows, position, j) ? HIDDEN
                          : alibi                        ? common_f16_from_float(-(float)distance)
                                                         : 0;
        }
}

static bool is_drawn(const struct mask_seen *seen, uint64_t rows, bool alibi)
{
    static uint16_t kept[ROWS][CELLS];
    memcpy(kept, cells, sizeof cells);
    draw(seen, rows, alibi);
    bool same = true;
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < CELLS; j++)
            same = same && (kept[i][j] == cells[i][j] || ((kept[i][j] | cells[i][j]) == 0x8000)); // -0 is 0
    memcpy(cells, kept, sizeof cells);
    return same;
}

static struct mask all_of(uint64_t rows, bool alibi)
{
    return (struct mask){.at = cells[0], .cells = CELLS, .rows = rows, .stride = CELLS, .alibi = alibi};
}

static void accepts(struct mask_seen want, uint64_t rows, bool alibi)
{
    struct mask_seen seen, known = {.window = want.window, .chunk = want.chunk};
    draw(&want, rows, alibi);
    struct mask mask = all_of(rows, alibi);
    assert_null(mask_read(&mask, want.first, &known, &seen));
    assert_int_equal(seen.first, want.first);
    assert_true(is_drawn(&seen, rows, alibi));
    assert_null(mask_read(&mask, UINT64_MAX, &known, &seen));
    assert_int_equal(seen.first, want.first);
    assert_null(mask_read(&mask, want.first, &nothing, &seen));
    assert_true(is_drawn(&seen, rows, alibi));
}

static void one_sequence_is_accepted(void **state)
{
    (void)state;
    for (int alibi = 0; alibi < 2; alibi++)
        for (uint64_t rows = 1; rows <= ROWS; rows += 13) {
            accepts((struct mask_seen){.first = 0}, rows, alibi);
            accepts((struct mask_seen){.first = 300}, rows, alibi);
            accepts((struct mask_seen){.first = CELLS - rows}, rows, alibi);
            accepts((struct mask_seen){.first = 90, .window = 100}, rows, alibi);
            accepts((struct mask_seen){.first = 0, .window = 7}, rows, alibi);
            accepts((struct mask_seen){.first = 0, .chunk = 8}, rows, alibi);
        }
    accepts((struct mask_seen){.first = 64, .block = true}, 30, false);
    accepts((struct mask_seen){.first = 64, .block = true}, 30, true);
}

static void a_window_is_found_when_it_shows(void **state)
{
    (void)state;
    struct mask_seen seen, want = {.first = 0, .window = 16};
    struct mask mask = all_of(20, false);
    draw(&want, 20, false);
    mask.rows = 16; // not yet
    assert_null(mask_read(&mask, 0, &nothing, &seen));
    assert_int_equal(seen.window, 0);
    mask.rows = 17;
    assert_null(mask_read(&mask, 0, &nothing, &seen));
    assert_int_equal(seen.window, 16);
    want = (struct mask_seen){.first = 0, .chunk = 16};
    draw(&want, 40, false);
    mask.rows = 40;
    assert_null(mask_read(&mask, 0, &nothing, &seen));
    assert_int_equal(seen.chunk, 16);
    assert_int_equal(seen.window, 0);
    struct mask_seen other = {.window = 12};
    assert_non_null(mask_read(&mask, 0, &other, &seen));
}

static void ends_of_float16_are_those_of_llama_cpp(void **state)
{
    (void)state;
    // Distances that float16 rounds, to even at the half.
    enum { FAR = 70000 };
    uint16_t *row = malloc(FAR * sizeof *row);
    assert_non_null(row);
    for (uint64_t j = 0; j < FAR; j++)
        row[j] = common_f16_from_float(-(float)(FAR - 1 - j));
    struct mask mask = {.at = row, .cells = FAR, .rows = 1, .stride = FAR, .alibi = true};
    struct mask_seen seen;
    const char *wrong = mask_read(&mask, FAR - 1, &nothing, &seen);
    assert_null(
        wrong); // from 65520 on it is -inf in float16; the session has the number itself, whose weight is as good as none
    for (uint64_t j = 60000; j < FAR; j += 997) {
        uint16_t kept = row[j];
        row[j] = (uint16_t)(kept ^ 1);
        assert_non_null(mask_read(&mask, FAR - 1, &nothing, &seen));
        row[j] = kept;
    }
    free(row);
}

static void what_is_accepted_is_so(void **state)
{
    (void)state;
    uint64_t accepted = 0, refused = 0;
    for (int round = 0; round < 4000; round++) {
        bool alibi = below(4) == 0;
        uint64_t rows = 1 + below(ROWS), kind = below(4);
        struct mask_seen made = {.first = below(CELLS - rows + 1)}, seen, known = {0};
        if (kind == 1)
            made.window = 1 + below(64);
        if (kind == 2)
            made.chunk = 1 + below(64);
        if (kind == 3)
            made.block = true;
        if (below(2))
            known = (struct mask_seen){.window = made.window, .chunk = made.chunk};
        draw(&made, rows, alibi);
        for (uint64_t flips = below(3); flips > 0; flips--) {
            uint16_t *cell = &cells[below(rows)][below(CELLS)];
            *cell = *cell == HIDDEN ? 0 : below(2) ? HIDDEN : 0xb800; // -0.5
        }
        struct mask mask = all_of(rows, alibi);
        if (mask_read(&mask, below(2) ? made.first : UINT64_MAX, &known, &seen)) {
            refused++;
            continue;
        }
        accepted++;
        assert_true(is_drawn(&seen, rows, alibi));
    }
    assert_true(accepted > 500 && refused > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_sequence_is_accepted),
        cmocka_unit_test(a_window_is_found_when_it_shows),
        cmocka_unit_test(ends_of_float16_are_those_of_llama_cpp),
        cmocka_unit_test(what_is_accepted_is_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
