// SPDX-License-Identifier: Apache-2.0
// Attention through the llama.cpp plug-in, in the graphs that llama.cpp makes: types, head shapes, groups,
// batches, masks, sinks, soft cap, streams. Every answer is held to the bound of docs/internals/precision.md;
// beside it stands what ggml's own CPU backend has.
//     llama_attention_test PLUGIN   (or CPU: tests the harness)
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/named.h"
#include "tests/llama/check.h"
#include "tests/llama/device.h"

#define BATCHES 8

struct attention_case {
    const char *name;
    struct cache_shape shape;
    int batches[BATCHES]; // rows of one evaluation after another, in every stream
};

static const struct cache_shape plain = {.k = GGML_TYPE_F16,
                                         .v = GGML_TYPE_F16,
                                         .layers = 1,
                                         .heads = 8,
                                         .kv_heads = 2,
                                         .k_dim = 64,
                                         .v_dim = 64,
                                         .cells = 512,
                                         .streams = 1};

static const int usual[BATCHES] = {64, 7, 2, 1};

static void run_case(const char *name, const struct cache_shape *shape, const int *batches)
{
    struct cache cache;
    named_case_begin(name);
    check_begin();
    cache_open(shape, device_pair(), &cache);
    for (int i = 0; i < BATCHES && batches[i] > 0; i++)
        check_append(&cache, batches[i]);
    cache_close(&cache);
    struct check_errors errors = check_errors();
    printf("%-44s %8.3g of the bound; ggml's CPU in float32 %8.3g, in the type %8.3g\n", name, errors.own,
           errors.single, errors.typed);
    named_cases_end();
}

static void run_cases(const struct attention_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++)
        run_case(cases[i].name, &cases[i].shape, cases[i].batches);
}

static void test_types_and_dimensions(void **state)
{
    static const enum ggml_type types[] = {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32, GGML_TYPE_Q8_0};
    static const struct {
        int k, v;
        bool v_in_k;
    } dims[] = {{64, 64, false},   {80, 80, false},   {96, 96, false}, {128, 128, false},
                {192, 128, false}, {256, 256, false}, {576, 512, true}};
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
            struct cache_shape shape = plain;
            static char name[64]; // a report after a failure reads it
            shape.k = shape.v = types[t];
            shape.k_dim = dims[d].k;
            shape.v_dim = dims[d].v;
            shape.v_in_k = dims[d].v_in_k;
            if (shape.v_in_k)
                shape.kv_heads = 1;
            if (shape.k_dim % ggml_blck_size(types[t]) != 0)
                continue; // ggml has no views of such heads
            snprintf(name, sizeof name, "%s, %d/%d%s", ggml_type_name(types[t]), shape.k_dim, shape.v_dim,
                     shape.v_in_k ? ", V in K" : "");
            run_case(name, &shape, usual);
        }
}

static void test_groups(void **state)
{
    static const int groups[] = {1, 2, 3, 4, 8, 16};
    (void)state;
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (int kv_heads = 1; kv_heads <= 3; kv_heads++) {
            struct cache_shape shape = plain;
            static char name[64]; // a report after a failure reads it
            shape.kv_heads = kv_heads;
            shape.heads = kv_heads * groups[g];
            snprintf(name, sizeof name, "%d heads over %d", shape.heads, shape.kv_heads);
            run_case(name, &shape, usual);
        }
}

static void test_batches_and_lengths(void **state)
{
    struct cache_shape two = plain, three = plain, long_one = plain, odd = plain;
    (void)state;
    two.layers = 2;
    three.layers = 3;
    three.cells = 768;
    three.shared = true;
    long_one.cells = 2560;
    odd.cells = 300;
    const struct attention_case cases[] = {
        {"one row at a time", plain, {1, 1, 1, 1, 1, 1, 1, 1}},
        {"two layers", two, {1, 2, 7, 64, 1, 1}},
        {"512 rows at once", two, {512}},
        {"three layers and one that shares K and V", three, {512, 64, 7, 1}},
        {"a block that crosses 256 cells", plain, {200, 100, 100, 1}},
        {"300 cells, all of them", odd, {256, 43, 1}},
        {"2,180 cells", long_one, {512, 512, 512, 512, 64, 66, 1, 1}},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

static void test_streams(void **state)
{
    struct cache_shape two = plain, four = plain, mla = plain, coded = plain, biased = plain;
    (void)state;
    two.streams = 2;
    four.streams = 4;
    four.layers = 2;
    mla.streams = 3;
    mla.k_dim = 576;
    mla.v_dim = 512;
    mla.v_in_k = true;
    mla.kv_heads = 1;
    coded.streams = 2;
    coded.k = coded.v = GGML_TYPE_Q8_0;
    biased.streams = 2;
    biased.max_bias = 8;
    const struct attention_case cases[] = {
        {"two streams", two, {64, 7, 1, 1}},           {"four streams, two layers", four, {1, 2, 100, 1, 1}},
        {"three streams, V in K", mla, {64, 7, 1}},    {"two streams, q8_0", coded, {64, 7, 1}},
        {"two streams, ALiBi", biased, {64, 7, 1, 1}},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

// As llama.cpp's slots come and go: runs of some of the streams, of unlike lengths.
static void test_some_streams(void **state)
{
    struct cache_shape shape = plain;
    struct cache cache;
    (void)state;
    shape.streams = 4;
    shape.layers = 2;
    named_case_begin("some of four streams");
    cache_open(&shape, device_pair(), &cache);
    check_step(&cache, &(struct cache_step){.first_stream = 2, .streams = 1, .rows = 40});
    check_step(&cache, &(struct cache_step){.first_stream = 0, .streams = 1, .rows = 300});
    check_step(&cache, &(struct cache_step){.first_stream = 1, .streams = 2, .rows = 5});
    check_step(&cache, &(struct cache_step){.first_stream = 0, .streams = 4, .rows = 1});
    check_step(&cache, &(struct cache_step){.first_stream = 1, .streams = 3, .rows = 17});
    check_step(&cache, &(struct cache_step){.first_stream = 3, .streams = 1, .rows = 1});
    cache_close(&cache);
    named_cases_end();
}

static void test_logits(void **state)
{
    struct cache_shape capped = plain, sinks = plain, both = plain, scaled = plain;
    (void)state;
    capped.soft_cap = 20;
    capped.layers = 2;
    sinks.sinks = true;
    sinks.layers = 3;
    both.sinks = true;
    both.soft_cap = 5;
    both.k = both.v = GGML_TYPE_BF16;
    scaled.scale = 0.7f;
    const struct attention_case cases[] = {
        {"soft cap", capped, {64, 7, 1}},
        {"sinks, other ones in each layer", sinks, {1, 64, 7, 1}},
        {"sinks and soft cap", both, {64, 7, 1}},
        {"a scale that is not 1/sqrt(dim)", scaled, {64, 7, 1}},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

static void test_alibi(void **state)
{
    static const int heads[] = {8, 12, 4, 6};
    struct cache_shape shape = plain;
    (void)state;
    shape.max_bias = 8;
    shape.layers = 2;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        static char name[64];
        shape.heads = heads[i];
        snprintf(name, sizeof name, "ALiBi, %d heads", heads[i]);
        run_case(name, &shape, (const int[BATCHES]){1, 64, 7, 300, 1, 1});
    }
    // From 2,048 on float16 has not every distance: the mask says them rounded, the device takes what they
    // are.
    shape.layers = 1;
    shape.max_bias = 11;
    shape.cells = 4608;
    run_case("ALiBi over 4,360 cells", &shape, (const int[BATCHES]){512, 1024, 1024, 1024, 768, 7, 1});
}

static void test_masks(void **state)
{
    struct cache_shape window = plain, narrow = plain, chunk = plain, capped = plain, streams = plain, wide;
    (void)state;
    window.mask = CACHE_WINDOW;
    window.span = 100;
    window.layers = 2;
    narrow.mask = CACHE_WINDOW;
    narrow.span = 5;
    chunk.mask = CACHE_CHUNK;
    chunk.span = 64;
    chunk.layers = 2;
    capped = window;
    capped.sinks = true;
    capped.soft_cap = 15;
    streams = window;
    streams.streams = 2;
    wide = window;
    wide.cells = 768;
    wide.span = 511;
    const struct attention_case cases[] = {
        {"a window that shows in the third block", window, {40, 40, 40, 1, 1}},
        {"a window that shows at a single row", window, {100, 1, 1, 7}},
        {"a window that shows in the first block", window, {256, 1, 64, 1}},
        {"a window of 5 tokens", narrow, {1, 1, 1, 1, 1, 1, 64}},
        {"a window, sinks and soft cap", capped, {90, 20, 1, 1}},
        {"a window in two streams", streams, {60, 60, 1, 1}},
        {"a window over 600 cells, two layers", wide, {512, 88, 1, 1}},
        {"a mask in chunks of 64", chunk, {64, 40, 40, 1}},
        {"a mask in chunks of 64 that shows at once", chunk, {200, 1, 1}},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

static void test_not_causal(void **state)
{
    struct cache_shape all = plain;
    (void)state;
    all.mask = CACHE_ALL;
    all.layers = 2;
    const struct attention_case cases[] = {
        {"blocks that see all of themselves", all, {64, 30, 7}},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

// As with an image: a block that sees all of itself between rows that see what is before them.
static void test_a_block_between_causal_rows(void **state)
{
    struct cache_shape shape = plain;
    struct cache cache;
    (void)state;
    shape.layers = 2;
    cache_open(&shape, device_pair(), &cache);
    check_append(&cache, 20);
    check_step(&cache, &(struct cache_step){.streams = 1, .rows = 64, .not_causal = true});
    check_append(&cache, 9);
    check_step(&cache, &(struct cache_step){.streams = 1, .rows = 2, .not_causal = true});
    check_append(&cache, 1);
    cache_close(&cache);
}

// Types of a cache that llama.cpp itself hands over as a copy in float16.
static void test_float32_as_llama_casts_it(void **state)
{
    struct cache_shape shape = plain;
    (void)state;
    shape.k = shape.v = GGML_TYPE_F32;
    shape.cast = true;
    shape.layers = 2;
    run_case("f32, cast to f16 in the graph", &shape, usual);
}

static void test_mixed_types(void **state)
{
    struct cache_shape first = plain, second = plain;
    (void)state;
    first.k = GGML_TYPE_Q8_0;
    second.v = GGML_TYPE_Q8_0;
    run_case("K q8_0, V f16", &first, usual);
    run_case("K f16, V q8_0", &second, usual);
}

// The window shows in one stream while others are still short of it, or empty.
static void test_a_window_in_streams_of_unlike_lengths(void **state)
{
    struct cache_shape shape = plain;
    struct cache cache;
    (void)state;
    shape.streams = 4;
    shape.layers = 2;
    shape.mask = CACHE_WINDOW;
    shape.span = 33;
    cache_open(&shape, device_pair(), &cache);
    check_step(&cache, &(struct cache_step){.first_stream = 0, .streams = 2, .rows = 20});
    check_step(&cache, &(struct cache_step){.first_stream = 1, .streams = 1, .rows = 30});
    check_step(&cache, &(struct cache_step){.first_stream = 0, .streams = 3, .rows = 5});
    check_step(&cache, &(struct cache_step){.first_stream = 0, .streams = 4, .rows = 1});
    check_step(&cache, &(struct cache_step){.first_stream = 0, .streams = 4, .rows = 40});
    cache_close(&cache);
}

// Rows that are stored while no attention asks for anything.
static void test_stored_alone(void **state)
{
    struct cache_shape shape = plain;
    struct cache cache;
    struct cache_answer answer;
    (void)state;
    shape.streams = 2;
    shape.layers = 2;
    cache_open(&shape, device_pair(), &cache);
    check_append(&cache, 9);
    for (int rows = 1; rows <= 50; rows += 49) {
        struct cache_step store = {.streams = 2, .rows = rows, .no_attention = true};
        assert_int_equal(cache_run(&cache, &store, &answer), GGML_STATUS_SUCCESS);
        cache_answer_free(&answer);
        check_append(&cache, 1);
        check_append(&cache, 1);
    }
    cache.used[1] = 13;
    assert_int_equal(
        cache_run(&cache,
                  &(struct cache_step){.first_stream = 1, .streams = 1, .rows = 4, .no_attention = true},
                  &answer),
        GGML_STATUS_SUCCESS);
    cache_answer_free(&answer);
    check_append(&cache, 1);
    cache_close(&cache);
}

// Two caches in one graph, one of them with a window.
static void test_two_caches_in_one_graph(void **state)
{
    static const int batches[] = {20, 1, 1, 40, 7, 1};
    struct cache_shape base = plain, narrow = plain;
    struct cache caches[2];
    struct cache_answer answers[2];
    (void)state;
    base.streams = narrow.streams = 2;
    base.layers = 2;
    narrow.layers = 3;
    narrow.mask = CACHE_WINDOW;
    narrow.span = 30;
    narrow.kv_heads = 4;
    cache_open(&base, device_pair(), &caches[0]);
    cache_open(&narrow, device_pair(), &caches[1]);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        struct cache_step step = {.streams = 2, .rows = batches[i]};
        device_log_clear();
        if (cache_run_both((struct cache *const[]){&caches[0], &caches[1]}, &step, answers) !=
            GGML_STATUS_SUCCESS)
            fail_msg("%d rows: %s", batches[i], device_log());
        check_answer(&caches[0], &answers[0]);
        check_answer(&caches[1], &answers[1]);
    }
    cache_close(&caches[1]);
    cache_close(&caches[0]);
}

// q comes from the CPU's operation, and is multiplied there.
static void test_q_of_an_operation(void **state)
{
    struct cache cache;
    (void)state;
    cache_open(&plain, device_pair(), &cache);
    check_step(&cache, &(struct cache_step){.streams = 1, .rows = 20, .q_scale = 4});
    check_step(&cache, &(struct cache_step){.streams = 1, .rows = 1, .q_scale = 0.25f});
    cache_close(&cache);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        named_cases_test(test_types_and_dimensions),
        named_cases_test(test_groups),
        named_cases_test(test_batches_and_lengths),
        named_cases_test(test_streams),
        named_cases_test(test_some_streams),
        named_cases_test(test_logits),
        named_cases_test(test_alibi),
        named_cases_test(test_masks),
        named_cases_test(test_not_causal),
        named_cases_test(test_a_block_between_causal_rows),
        named_cases_test(test_float32_as_llama_casts_it),
        named_cases_test(test_mixed_types),
        named_cases_test(test_a_window_in_streams_of_unlike_lengths),
        named_cases_test(test_stored_alone),
        named_cases_test(test_two_caches_in_one_graph),
        named_cases_test(test_q_of_an_operation),
    };
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: llama_attention_test PLUGIN|CPU [PATTERN]\n");
        return 2;
    }
    if (argc == 3)
        cmocka_set_test_filter(argv[2]);
    device_open(argv[1]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close();
    return failed;
}
