// SPDX-License-Identifier: Apache-2.0
// What the plug-in cannot serve: each evaluation must fail, with a sentence that names the flag that helps,
// and after a clear the cache must work again.
//     llama_refused_test PLUGIN
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/named.h"
#include "tests/llama/check.h"
#include "tests/llama/device.h"
#include "tests/llama/memory.h"

#define HAD 20 // rows of each stream before what is refused

static const struct cache_shape plain = {.k = GGML_TYPE_F16,
                                         .v = GGML_TYPE_F16,
                                         .layers = 2,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .k_dim = 64,
                                         .v_dim = 64,
                                         .cells = 512,
                                         .streams = 2};

// Two sequences take turns in one stream (a unified cache): a row sees the cells of its own.
static bool sees_every_second(const struct cache_step *step, int stream, int row, int cell)
{
    (void)step, (void)stream;
    return cell < HAD ? (cell + row) % 2 == 0 : cell <= HAD + row && (HAD + row - cell) % 2 == 0;
}

// Cells 5 to 7 were removed.
static bool sees_around_a_hole(const struct cache_step *step, int stream, int row, int cell)
{
    (void)step, (void)stream;
    return cell <= HAD + row && (cell < 5 || cell > 7);
}

// The second half of the first row's view is another sequence's, in the second stream alone.
static bool sees_less_in_one_stream(const struct cache_step *step, int stream, int row, int cell)
{
    (void)step;
    return cell <= HAD + row && !(stream == 1 && row == 0 && cell >= HAD / 2 && cell < HAD);
}

static bool sees_two_more(const struct cache_step *step, int stream, int row, int cell)
{
    (void)step, (void)stream;
    return cell <= HAD + row + 2;
}

static bool sees_all_but_itself(const struct cache_step *step, int stream, int row, int cell)
{
    (void)step, (void)stream;
    return cell < HAD + row;
}

static bool sees_nothing(const struct cache_step *step, int stream, int row, int cell)
{
    (void)step, (void)stream, (void)row, (void)cell;
    return false;
}

// A window of 10 in the first row, and of 7 from the second on.
static bool sees_two_windows(const struct cache_step *step, int stream, int row, int cell)
{
    (void)step, (void)stream;
    return cell <= HAD + row && HAD + row - cell < (row == 0 ? 10 : 7);
}

// A ring: cells 3, 4, 5 have the newest rows, and all others are still seen.
static const int ring_cells[] = {3, 4, 5, 3, 4, 5};

static bool sees_a_ring(const struct cache_step *step, int stream, int row, int cell)
{
    (void)step, (void)stream;
    return cell < HAD && (cell <= 3 + row || cell > 5);
}

static const int apart_cells[] = {HAD, HAD + 2, HAD, HAD + 2};
static const int beyond_cells[] = {HAD + 3, HAD + 3};
static const int backward_cells[] = {HAD + 1, HAD, HAD + 1, HAD};
static const int twice_cells[] = {HAD, HAD, HAD, HAD};

static bool sees_what_is_before(const struct cache_step *step, int stream, int row, int cell)
{
    (void)stream;
    return cell <= step->cells[row];
}

static const struct {
    const char *name;
    int rows;
    const int *cells;
    bool (*sees)(const struct cache_step *, int, int, int);
    const char *names; // in the sentence
} refused[] = {
    {"cells of two sequences in one stream", 4, NULL, sees_every_second, "--no-kv-unified"},
    {"cells of two sequences, one row", 1, NULL, sees_every_second, "--no-kv-unified"},
    {"a hole in the mask", 3, NULL, sees_around_a_hole, "context shift"},
    {"a hole in the mask of one row", 1, NULL, sees_around_a_hole, "context shift"},
    {"a hole in one of two streams", 2, NULL, sees_less_in_one_stream, "--no-kv-unified"},
    {"a mask that looks later", 4, NULL, sees_two_more, "--no-kv-unified"},
    {"a mask of one row that looks later", 1, NULL, sees_two_more, "--no-kv-unified"},
    {"a mask that hides a row's own cell", 3, NULL, sees_all_but_itself, "--no-kv-unified"},
    {"a mask that hides everything", 2, NULL, sees_nothing, "--no-kv-unified"},
    {"two windows in one mask", 3, NULL, sees_two_windows, "--swa-full"},
    {"a ring", 3, ring_cells, sees_a_ring, "--swa-full"},
    {"cells that do not follow each other", 2, apart_cells, sees_what_is_before, "--no-kv-unified"},
    {"a cell behind those in use", 1, beyond_cells, sees_what_is_before, "cell"},
    {"cells in backward order", 2, backward_cells, sees_what_is_before, "--no-kv-unified"},
    {"one cell twice", 2, twice_cells, sees_what_is_before, "--no-kv-unified"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct cache cache;
        named_case_begin(refused[i].name);
        cache_open(&plain, device_pair(), &cache);
        check_append(&cache, HAD);
        struct cache_step step = {
            .streams = 2, .rows = refused[i].rows, .cells = refused[i].cells, .sees = refused[i].sees};
        check_refused(&cache, &step, refused[i].names);
        check_refused(&cache, &step, ""); // it stays so
        cache_clear(&cache);
        check_append(&cache, 33);
        check_append(&cache, 1);
        cache_close(&cache);
    }
    named_cases_end();
}

// Rows that were refused must not be there: the same cells with the right mask are answered from what is sent
// now, or refused.
static void test_the_right_mask_after_a_wrong_one(void **state)
{
    struct cache cache;
    struct cache_answer answer;
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        named_case_begin(refused[i].name);
        cache_open(&plain, device_pair(), &cache);
        check_append(&cache, HAD);
        struct cache_step step = {
            .streams = 2, .rows = refused[i].rows, .cells = refused[i].cells, .sees = refused[i].sees};
        check_refused(&cache, &step, refused[i].names);
        if (cache_append(&cache, 3, &answer) == GGML_STATUS_SUCCESS)
            check_answer(&cache, &answer);
        cache.used[0] = cache.used[1] = 0;
        check_append(&cache, 12); // cell 0 is written again
        cache_close(&cache);
    }
    named_cases_end();
}

// A state that was saved while some rows could not be read holds 0xff in their place: whichever they are, it
// is refused, until the sequence starts again.
static void test_a_state_with_unread_rows(void **state)
{
    const struct cache_shape shape = plain;
    struct cache cache;
    (void)state;
    cache_open(&shape, device_pair(), &cache);
    check_step(&cache, &(struct cache_step){.first_stream = 0, .streams = 1, .rows = 64});
    size_t bytes = cache_state_bytes(&cache, 0, 64), row = (size_t)shape.kv_heads * shape.k_dim * 2;
    char *whole = memory_make(1, bytes), *slot = memory_make(1, bytes);
    cache_state_get(&cache, 0, 0, 64, whole);
    // K of the first layer, and one row of it; the last row of the state, a V
    const size_t unread[][2] = {{0, 64 * row}, {5 * row, row}, {bytes - row, row}};
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++) {
        memcpy(slot, whole, bytes);
        memset(slot + unread[i][0], 0xff, unread[i][1]);
        cache_state_set(&cache, 1, 0, 64, slot, &cache, 0);
        check_refused(&cache, &(struct cache_step){.first_stream = 1, .streams = 1, .rows = 1},
                      "state could not be restored");
        cache.used[1] = 0;
        check_step(&cache, &(struct cache_step){.first_stream = 1, .streams = 1, .rows = 3});
        cache.used[1] = 0;
        cache_state_set(&cache, 1, 0, 64, whole, &cache, 0);
        check_step(&cache, &(struct cache_step){.first_stream = 1, .streams = 1, .rows = 1});
    }
    free(whole);
    free(slot);
    cache_close(&cache);
}

static void shift_is_refused(const char *name, enum ggml_type type)
{
    struct cache_shape shape = plain;
    struct cache cache;
    named_case_begin(name);
    shape.k = shape.v = type;
    cache_open(&shape, device_pair(), &cache);
    check_append(&cache, HAD);
    device_log_clear();
    // llama.cpp tries again before each batch until it succeeds: that would be the end of all other
    // sequences.
    assert_int_equal(cache_shift(&cache), GGML_STATUS_SUCCESS);
    if (!strstr(device_log(), "context-shift") && !strstr(device_log(), "context shift"))
        fail_msg("no sentence about the context shift: '%s'", device_log());
    check_refused(&cache, &(struct cache_step){.streams = 2, .rows = 1}, "context");
    cache_clear(&cache);
    check_append(&cache, 40);
    check_append(&cache, 1);
    cache_close(&cache);
    named_cases_end();
}

static void test_shift(void **state)
{
    (void)state;
    shift_is_refused("f16", GGML_TYPE_F16);
    shift_is_refused("q8_0", GGML_TYPE_Q8_0);
}

// A window becomes another one: rows that an earlier mask has shown.
static void test_a_window_that_changes(void **state)
{
    struct cache_shape shape = plain;
    struct cache cache;
    (void)state;
    shape.mask = CACHE_WINDOW;
    shape.span = 10;
    cache_open(&shape, device_pair(), &cache);
    check_append(&cache, HAD);
    cache.shape.span = 15;
    check_refused(&cache, &(struct cache_step){.streams = 2, .rows = 1}, "--swa-full");
    cache_close(&cache);
}

// Rows that see later ones, while earlier rows of the cache have shown a window.
static void test_a_block_with_a_window(void **state)
{
    struct cache_shape shape = plain;
    struct cache cache;
    (void)state;
    shape.mask = CACHE_WINDOW;
    shape.span = 10;
    cache_open(&shape, device_pair(), &cache);
    check_append(&cache, HAD);
    check_refused(&cache, &(struct cache_step){.streams = 2, .rows = 4, .not_causal = true}, "window");
    cache_close(&cache);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        named_cases_test(test_refused),
        named_cases_test(test_the_right_mask_after_a_wrong_one),
        named_cases_test(test_a_state_with_unread_rows),
        named_cases_test(test_shift),
        named_cases_test(test_a_window_that_changes),
        named_cases_test(test_a_block_with_a_window),
    };
    if (argc < 2 || argc > 3 || strcmp(argv[1], "CPU") == 0) {
        fprintf(stderr, "usage: llama_refused_test PLUGIN [PATTERN]\n");
        return 2;
    }
    if (argc == 3)
        cmocka_set_test_filter(argv[2]);
    device_open(argv[1]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close();
    return failed;
}
