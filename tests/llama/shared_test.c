// SPDX-License-Identifier: Apache-2.0
// Several sequences in one cache (llama.cpp's default, --kv-unified): their cells lie between one another,
// are taken back, shared by copies, given to others, saved and restored. Every answer is held to the bound.
//     llama_shared_test PLUGIN   (or CPU: tests the harness)
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/named.h"
#include "tests/llama/check.h"
#include "tests/llama/device.h"
#include "tests/llama/memory.h"

enum { CELLS = 256, SEQUENCES = 4, ROWS = 40 };

static const struct cache_shape plain = {.k = GGML_TYPE_F16,
                                         .v = GGML_TYPE_F16,
                                         .layers = 2,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .k_dim = 64,
                                         .v_dim = 64,
                                         .cells = CELLS,
                                         .streams = 1};

static struct {
    unsigned sequences;
    int position;
} held[CELLS];
static int lengths[SEQUENCES], window;
static int row_sequence[ROWS], row_position[ROWS];
static uint64_t drawn;

static uint64_t below(uint64_t n)
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (drawn >> 33) % n;
}

static bool sees(const struct cache_step *step, int stream, int row, int cell)
{
    (void)step, (void)stream;
    return (held[cell].sequences & 1u << row_sequence[row]) && held[cell].position <= row_position[row] &&
           (!window || row_position[row] - held[cell].position < window);
}

static void start(int of_window)
{
    memset(held, 0, sizeof held);
    memset(lengths, 0, sizeof lengths);
    window = of_window;
}

static void take_back(int sequence, int from)
{
    for (int c = 0; c < CELLS; c++)
        if (held[c].position >= from)
            held[c].sequences &= ~(1u << sequence);
    lengths[sequence] = lengths[sequence] < from ? lengths[sequence] : from;
}

static void copy(int from, int to)
{
    take_back(to, 0);
    for (int c = 0; c < CELLS; c++)
        if (held[c].sequences & 1u << from)
            held[c].sequences |= 1u << to;
    lengths[to] = lengths[from];
}

static int free_cell(int from)
{
    for (int c = from; c < CELLS; c++)
        if (!held[c].sequences)
            return c;
    return -1;
}

// Rows of the sequences, as many of each as counts says, in turns or one sequence after the other. false:
// there is no room.
static bool rows(struct cache *cache, const int counts[SEQUENCES], bool in_turns)
{
    static int cells[ROWS];
    int left[SEQUENCES], n = 0, cell = 0;
    memcpy(left, counts, sizeof left);
    for (bool any = true; any;) {
        any = false;
        for (int s = 0; s < SEQUENCES; s++)
            for (int k = 0; left[s] > 0 && (k == 0 || !in_turns); k++, left[s]--, n++, any = true) {
                if (n == ROWS || (cell = free_cell(cell)) < 0)
                    return false;
                cells[n] = cell;
                held[cell].sequences = 1u << s;
                held[cell].position = row_position[n] = lengths[s]++;
                row_sequence[n] = s;
            }
    }
    cache->used[0] = CELLS;
    if (n > 0)
        check_step(cache, &(struct cache_step){.streams = 1, .rows = n, .cells = cells, .sees = sees});
    return true;
}

static void begin(struct cache *cache, const struct cache_shape *shape, int of_window)
{
    start(of_window);
    cache_open(shape, device_pair(), cache);
}

static void test_four_slots(void **state)
{
    const enum ggml_type types[] = {GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_Q8_0};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct cache_shape shape = plain;
        struct cache cache;
        named_case_begin(ggml_type_name(types[i]));
        shape.k = shape.v = types[i];
        begin(&cache, &shape, 0);
        rows(&cache, (int[]){17, 0, 9, 3}, false); // prompts
        for (int token = 0; token < 3; token++)
            rows(&cache, (int[]){1, 0, 1, 1}, false);
        rows(&cache, (int[]){1, 20, 1, 1}, false); // one more prompt, beside others' tokens
        rows(&cache, (int[]){1, 1, 1, 1}, false);
        rows(&cache, (int[]){5, 5, 5, 5}, true);
        take_back(2, 4);
        rows(&cache, (int[]){1, 1, 6, 1}, false);
        take_back(0, 0); // its cells become those of sequence 3
        rows(&cache, (int[]){0, 0, 0, 30}, false);
        rows(&cache, (int[]){11, 1, 1, 1}, false);
        cache_close(&cache);
    }
    named_cases_end();
}

static void test_copies(void **state)
{
    struct cache cache;
    (void)state;
    begin(&cache, &plain, 0);
    rows(&cache, (int[]){23, 0, 0, 0}, false);
    copy(0, 1);
    copy(0, 2);
    rows(&cache, (int[]){1, 1, 1, 0}, false);
    rows(&cache, (int[]){4, 4, 0, 4}, true);
    take_back(0, 0); // the copies have its cells still
    rows(&cache, (int[]){9, 1, 1, 1}, false);
    take_back(1, 10);
    rows(&cache, (int[]){0, 7, 1, 0}, false);
    cache_close(&cache);
}

// Rows are removed from the middle, or in another order than they were written: they are copied.
static void test_parts_of_sequences(void **state)
{
    struct cache cache;
    (void)state;
    begin(&cache, &plain, 0);
    rows(&cache, (int[]){20, 20, 0, 0}, true);
    for (int c = 0; c < CELLS; c++)
        if (held[c].position >= 5 && held[c].position < 9)
            held[c].sequences &= ~1u;
    rows(&cache, (int[]){1, 1, 0, 0}, false);
    rows(&cache, (int[]){6, 1, 0, 0}, false);
    for (int c = 0; c < CELLS; c++) // a sequence of two others' rows
        if (held[c].sequences && held[c].position < 4)
            held[c].sequences |= 4;
    lengths[2] = 9;
    rows(&cache, (int[]){1, 1, 3, 0}, false);
    cache_close(&cache);
}

static void test_windows(void **state)
{
    struct cache cache;
    (void)state;
    begin(&cache, &plain, 12);
    rows(&cache, (int[]){9, 3, 0, 0}, false);
    for (int i = 0; i < 12; i++) {
        rows(&cache, (int[]){7, 1 + i % 3, 0, i == 4 ? 20 : 0}, i % 2);
        for (int c = 0; c < CELLS; c++) // cells behind the window are given to any
            for (int s = 0; s < SEQUENCES; s++)
                if (held[c].sequences == 1u << s && lengths[s] - held[c].position >= window)
                    held[c].sequences = 0;
    }
    cache_close(&cache);
}

static void test_layers_that_share(void **state)
{
    struct cache_shape shape = plain;
    struct cache cache;
    (void)state;
    shape.v_in_k = true;
    shape.shared = true;
    begin(&cache, &shape, 0);
    rows(&cache, (int[]){7, 9, 0, 0}, false);
    rows(&cache, (int[]){1, 1, 1, 0}, false);
    rows(&cache, (int[]){3, 3, 0, 3}, true);
    cache_close(&cache);
}

static void test_random(void **state)
{
    (void)state;
    for (drawn = 1; drawn <= 3;) {
        struct cache cache;
        uint64_t seed = drawn;
        begin(&cache, &plain, 0);
        for (int i = 0; i < 25; i++) {
            int counts[SEQUENCES], s = (int)below(SEQUENCES);
            for (int k = 0; k < SEQUENCES; k++)
                counts[k] = below(2) ? (int)below(ROWS / SEQUENCES) : 0;
            int in_use = 0;
            for (int c = 0; c < CELLS; c++)
                in_use += held[c].sequences != 0;
            if (in_use > CELLS - ROWS)
                take_back(s, 0), copy(s, (s + 1) % SEQUENCES), copy(s, (s + 2) % SEQUENCES);
            assert_true(rows(&cache, counts, below(2)));
            if (below(3) == 0)
                take_back(s, (int)below((uint64_t)lengths[s] + 1));
            if (below(6) == 0)
                copy(s, (s + 1) % SEQUENCES);
        }
        cache_close(&cache);
        drawn = seed + 1;
    }
}

// Cells from `at` on get the state of cells 0, 1, …
static void restore(struct cache *cache, const char *saved, int at, int count)
{
    size_t k = (size_t)cache->shape.kv_heads * cache->shape.k_dim,
           v = (size_t)cache->shape.kv_heads * cache->shape.v_dim;
    cache_state_set(cache, 0, at, at + count, saved, cache, 0);
    for (int l = 0; l < cache->shape.layers; l++) {
        memcpy(cache->k_held[l] + (size_t)at * k, cache->k_held[l], (size_t)count * k * sizeof(float));
        memcpy(cache->v_held[l] + (size_t)at * v, cache->v_held[l], (size_t)count * v * sizeof(float));
    }
}

// A saved sequence becomes another one, behind it.
static void test_states(void **state)
{
    struct cache cache;
    (void)state;
    begin(&cache, &plain, 0);
    rows(&cache, (int[]){30, 0, 0, 0}, false);
    size_t bytes = cache_state_bytes(&cache, 0, 30);
    char *saved = memory_make(1, bytes);
    cache_state_get(&cache, 0, 0, 30, saved);
    if (!cache_state_equal(&cache, 0, 0, 30, saved))
        fail_msg("the state is not what the cache holds");
    rows(&cache, (int[]){2, 5, 0, 0}, true);
    restore(&cache, saved, 60, 30);
    for (int c = 60; c < 90; c++)
        held[c].sequences = 4, held[c].position = c - 60;
    lengths[2] = 30;
    rows(&cache, (int[]){1, 1, 1, 0}, false);
    take_back(2, 17);
    rows(&cache, (int[]){3, 0, 8, 0}, true);
    restore(&cache, saved, 100, 30); // its cells in another order than its positions
    for (int c = 100; c < 130; c++)
        held[c].sequences = 8, held[c].position = c < 110 ? c - 80 : c - 110;
    lengths[3] = 30;
    rows(&cache, (int[]){1, 0, 1, 4}, false);
    take_back(3, 8);
    rows(&cache, (int[]){1, 0, 1, 4}, false);
    free(saved);
    cache_close(&cache);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        named_cases_test(test_four_slots),
        named_cases_test(test_copies),
        named_cases_test(test_parts_of_sequences),
        named_cases_test(test_windows),
        named_cases_test(test_layers_that_share),
        named_cases_test(test_random),
        named_cases_test(test_states),
    };
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: llama_shared_test PLUGIN|CPU [PATTERN]\n");
        return 2;
    }
    if (argc == 3)
        cmocka_set_test_filter(argv[2]);
    device_open(argv[1]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close();
    return failed;
}
