// SPDX-License-Identifier: Apache-2.0
// What llama.cpp does to a cache between evaluations, through the plug-in: cells written again after a
// removal, copies of sequences, saved and restored slots, clearing. After each, answers are held to the
// bound.
//     llama_cache_test PLUGIN   (or CPU: tests the harness)
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/named.h"
#include "tests/llama/check.h"
#include "tests/llama/device.h"
#include "tests/llama/memory.h"

static const struct cache_shape plain = {.k = GGML_TYPE_F16,
                                         .v = GGML_TYPE_F16,
                                         .layers = 2,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .k_dim = 64,
                                         .v_dim = 64,
                                         .cells = 512,
                                         .streams = 1};

static struct cache_shape of_streams(int streams)
{
    struct cache_shape shape = plain;
    shape.streams = streams;
    return shape;
}

static void append_to(struct cache *cache, int stream, int rows)
{
    check_step(cache, &(struct cache_step){.first_stream = stream, .streams = 1, .rows = rows});
}

// As after llama_memory_seq_rm(stream, from, end).
static void remove_from(struct cache *cache, int stream, int from)
{
    cache->used[stream] = from;
}

static void test_written_again(void **state)
{
    struct cache_shape shape = of_streams(1);
    struct cache cache;
    (void)state;
    cache_open(&shape, device_pair(), &cache);
    check_append(&cache, 100);
    remove_from(&cache, 0, 60);
    check_append(&cache, 20);
    check_append(&cache, 1);
    remove_from(&cache, 0, 80); // the newest row alone, as a speculative token that was not taken
    check_append(&cache, 1);
    check_append(&cache, 300);
    remove_from(&cache, 0, 256);
    check_append(&cache, 7);
    remove_from(&cache, 0, 255);
    check_append(&cache, 1);
    remove_from(&cache, 0, 0);
    check_append(&cache, 10);
    check_append(&cache, 1);
    cache_close(&cache);
}

static void test_written_again_in_one_stream(void **state)
{
    struct cache_shape shape = of_streams(3);
    struct cache cache;
    (void)state;
    cache_open(&shape, device_pair(), &cache);
    check_append(&cache, 50);
    remove_from(&cache, 1, 13);
    check_append(&cache, 4);
    remove_from(&cache, 2, 0);
    check_append(&cache, 1);
    append_to(&cache, 2, 30);
    check_append(&cache, 1);
    cache_close(&cache);
}

static void test_copies(void **state)
{
    struct cache_shape shape = of_streams(3);
    struct cache cache;
    (void)state;
    cache_open(&shape, device_pair(), &cache);
    append_to(&cache, 0, 70);
    cache_copy_stream(&cache, 0, 1);
    cache_copy_stream(&cache, 0, 2);
    check_append(&cache, 1); // three sequences of one prompt
    check_append(&cache, 9);
    remove_from(&cache, 0, 40); // what the others have of it stays
    append_to(&cache, 0, 5);
    append_to(&cache, 1, 1);
    check_append(&cache, 1);
    cache_copy_stream(&cache, 1, 0); // over what is there
    check_append(&cache, 3);
    cache_copy_stream(&cache, 1, 2); // twice the same, and nothing in between but the sequence's own rows
    append_to(&cache, 2, 2);
    cache_copy_stream(&cache, 1, 2);
    append_to(&cache, 2, 3);
    append_to(&cache, 1, 3);
    cache_close(&cache);
}

static void test_copy_of_nothing(void **state)
{
    struct cache_shape shape = of_streams(2);
    struct cache cache;
    (void)state;
    cache_open(&shape, device_pair(), &cache);
    cache_copy_stream(&cache, 0, 1);
    append_to(&cache, 1, 20);
    cache_copy_stream(&cache, 0, 1);
    append_to(&cache, 1, 20);
    append_to(&cache, 0, 3);
    cache_close(&cache);
}

static void test_clear(void **state)
{
    struct cache_shape shape = of_streams(2);
    struct cache cache;
    (void)state;
    cache_open(&shape, device_pair(), &cache);
    cache_clear(&cache);
    check_append(&cache, 90);
    cache_clear(&cache);
    append_to(&cache, 1, 5);
    check_append(&cache, 60);
    cache_clear(&cache);
    cache_clear(&cache);
    check_append(&cache, 1);
    cache_close(&cache);
}

static void save_and_restore(const char *name, const struct cache_shape *shape)
{
    struct cache cache, other;
    named_case_begin(name);
    cache_open(shape, device_pair(), &cache);
    cache_open(shape, device_pair(), &other);
    append_to(&cache, 0, 300);
    append_to(&cache, 0, 1);
    int length = cache.used[0];

    size_t bytes = cache_state_bytes(&cache, 0, length);
    char *slot = memory_make(1, bytes), *again = memory_make(1, bytes);
    cache_state_get(&cache, 0, 0, length, slot);
    assert_true(cache_state_equal(&cache, 0, 0, length, slot));

    // into an empty stream, into one with other rows, and into another cache
    cache_state_set(&cache, 1, 0, length, slot, &cache, 0);
    append_to(&cache, 1, 1);
    append_to(&other, 1, 40);
    remove_from(&other, 1, 0);
    cache_state_set(&other, 1, 0, length, slot, &cache, 0);
    cache_state_get(&other, 1, 0, length, again);
    assert_true(getenv("BANYAN_KEEP") || memcmp(slot, again, bytes) == 0); // names differ
    append_to(&other, 1, 7);
    append_to(&other, 0, 7);
    check_append(&other, 1);

    // the origin goes on, and is set back to what was saved
    append_to(&cache, 0, 20);
    remove_from(&cache, 0, 0);
    cache_clear(&other);
    append_to(&other, 0, length); // other rows in the same cells
    cache_state_get(&other, 0, 0, length, again);
    assert_true(cache_state_equal(&other, 0, 0, length, again));
    cache_state_set(&cache, 0, 0, length, again, &other, 0);
    append_to(&cache, 0, 1);

    // a piece from the middle
    cache_state_get(&cache, 1, 100, 130, slot);
    assert_true(cache_state_equal(&cache, 1, 100, 130, slot));
    free(slot);
    free(again);
    cache_close(&other);
    cache_close(&cache);
    named_cases_end();
}

static void test_states(void **state)
{
    struct cache_shape shape = of_streams(2), mla = shape;
    (void)state;
    save_and_restore("f16", &shape);
    shape.k = shape.v = GGML_TYPE_BF16;
    save_and_restore("bf16", &shape);
    shape.k = shape.v = GGML_TYPE_F32;
    save_and_restore("f32", &shape);
    shape.k = shape.v = GGML_TYPE_Q8_0;
    save_and_restore("q8_0", &shape);
    mla.kv_heads = 1;
    mla.k_dim = 576;
    mla.v_dim = 512;
    mla.v_in_k = true;
    save_and_restore("V in K", &mla);
}

static void test_state_with_a_window(void **state)
{
    struct cache_shape shape = of_streams(2);
    (void)state;
    shape.mask = CACHE_WINDOW;
    shape.span = 50;
    save_and_restore("a window", &shape);
}

// A prompt's end that a saved prefix does not have: restored, then cut.
static void test_restored_and_cut(void **state)
{
    struct cache_shape shape = of_streams(2);
    struct cache cache;
    (void)state;
    cache_open(&shape, device_pair(), &cache);
    append_to(&cache, 0, 120);
    char *slot = memory_make(1, cache_state_bytes(&cache, 0, 120));
    cache_state_get(&cache, 0, 0, 120, slot);
    cache_state_set(&cache, 1, 0, 120, slot, &cache, 0);
    remove_from(&cache, 1, 77);
    append_to(&cache, 1, 5);
    check_append(&cache, 1);
    free(slot);
    cache_close(&cache);
}

// As with a model of which every other layer has a window (--swa-full): two caches in turn.
static void test_two_caches(void **state)
{
    struct cache_shape shape = of_streams(2), narrow = shape;
    struct cache base, window;
    (void)state;
    narrow.mask = CACHE_WINDOW;
    narrow.span = 30;
    narrow.sinks = true;
    narrow.k_dim = narrow.v_dim = 128;
    cache_open(&shape, device_pair(), &base);
    cache_open(&narrow, device_pair(), &window);
    for (int i = 0; i < 5; i++) {
        check_append(&base, 12);
        check_append(&window, 12);
    }
    cache_clear(&base);
    check_append(&window, 1);
    check_append(&base, 1);
    cache_close(&base);
    check_append(&window, 1);
    cache_close(&window);
}

// A context that is made, used and freed, and another one.
static void test_one_after_another(void **state)
{
    struct cache_shape shape = of_streams(2);
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct cache cache;
        shape.layers = 1 + i % 3;
        cache_open(&shape, device_pair(), &cache);
        check_append(&cache, 30);
        check_append(&cache, 1);
        cache_close(&cache);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        named_cases_test(test_written_again),
        named_cases_test(test_written_again_in_one_stream),
        named_cases_test(test_copies),
        named_cases_test(test_copy_of_nothing),
        named_cases_test(test_clear),
        named_cases_test(test_states),
        named_cases_test(test_state_with_a_window),
        named_cases_test(test_restored_and_cut),
        named_cases_test(test_two_caches),
        named_cases_test(test_one_after_another),
    };
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: llama_cache_test PLUGIN|CPU [PATTERN]\n");
        return 2;
    }
    if (argc == 3)
        cmocka_set_test_filter(argv[2]);
    device_open(argv[1]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close();
    return failed;
}
