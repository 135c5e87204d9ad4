// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cuda/device_harness.h"

static struct data keys_of(uint32_t keys, uint64_t seed)
{
    struct data d = {.name = "life",
                     .spec = {.kv_type = KERNELS_KV_F32,
                              .k_dim = 64,
                              .v_dim = 64,
                              .q_heads = 2,
                              .kv_heads = 1,
                              .scale = 0.125f},
                     .rows = 1,
                     .keys = keys,
                     .q_first = 1u << 20,
                     .visible = keys};
    data_make(&d, seed);
    data_uncut(&d);
    d.spec.kv_type = KERNELS_KV_BF16;
    return d;
}

// Up to the limit and not beyond; what is given back can be taken again, in other sizes.
void cases_pool_and_limit(void **state)
{
    (void)state;
    struct kernels_device *small = NULL;
    struct common_error err;
    const uint64_t limit = (uint64_t)8 << 20, block = 300000;
    assert_int_equal(ops->open(0, limit, &small, &err), COMMON_OK);
    uint64_t at[64], n = 0;
    enum common_code code;
    for (int round = 0; round < 3; round++) {
        for (n = 0; n < 64 && (code = ops->alloc(small, block, &at[n], &err)) == COMMON_OK; n++) {
            assert_true(at[n] != 0 && at[n] % KERNELS_DEVICE_ALIGN == 0);
            for (uint64_t i = 0; i < n; i++)
                assert_true(at[i] + block <= at[n] || at[n] + block <= at[i]);
        }
        assert_int_equal(code, COMMON_RESOURCE_EXHAUSTED);
        assert_true(strlen(err.message) > 0);
        assert_true(n >= 20 && n * block <= limit);
        assert_true(ops->used(small) >= n * block && ops->used(small) <= limit);
        uint64_t other;
        assert_int_equal(ops->alloc(small, limit, &other, &err), COMMON_RESOURCE_EXHAUSTED);
        for (uint64_t i = 0; i < n; i++)
            ops->free(small, at[n - 1 - i]);
        assert_int_equal(ops->used(small), 0);
    }
    uint64_t large;
    assert_int_equal(ops->alloc(small, limit / 2, &large, &err), COMMON_OK); // what was free is joined
    ops->free(small, large);
    ops->free(small, 0);
    // A step whose buffers do not fit
    assert_int_equal(ops->alloc(small, 4096, &large, &err), COMMON_OK);
    struct data d = keys_of(32, 1);
    d.spec.q_heads = 20000;
    float *q = calloc(20000 * 64, sizeof(float));
    assert_non_null(q);
    struct kernels_device_run run = {.k = large, .v = large, .rows = 8};
    struct kernels_device_item item = {.spec = &d.spec,
                                       .rows = 1,
                                       .visible = 8,
                                       .q = q,
                                       .q_row_stride = 20000 * 64,
                                       .q_head_stride = 64,
                                       .run_count = 1,
                                       .runs = &run,
                                       .out = data_partial(1, 20000, 64)};
    assert_int_equal(ops->submit(small, &item, 1, NULL, NULL, NULL, &err), COMMON_RESOURCE_EXHAUSTED);
    assert_false(ops->lost(small, &err));
    data_partial_free(&item.out);
    free(q);
    data_free(&d);
    ops->close(small);
    ops->close(NULL);
    assert_int_equal(ops->open(0, UINT64_MAX, &small, &err), COMMON_RESOURCE_EXHAUSTED);
    assert_int_equal(ops->open(1000, 0, &small, &err), COMMON_UNAVAILABLE);
}

void cases_bytes_go_and_come(void **state)
{
    (void)state;
    struct common_error err;
    const uint64_t bytes = 9000001; // more than all the buffers between
    uint64_t a, b;
    uint8_t *sent = malloc(bytes), *got = malloc(bytes);
    assert_non_null(sent);
    assert_non_null(got);
    for (uint64_t i = 0; i < bytes; i++)
        sent[i] = (uint8_t)(i * 2654435761u >> 13);
    assert_int_equal(ops->alloc(device, bytes, &a, &err), COMMON_OK);
    assert_int_equal(ops->alloc(device, bytes, &b, &err), COMMON_OK);
    struct kernels_device_piece piece = {.device = a, .host = sent, .width = bytes, .height = 1};
    assert_int_equal(ops->write(device, &piece, 1, &err), COMMON_OK);
    struct kernels_device_copy whole = {.to = b, .from = a, .width = bytes, .height = 1};
    assert_int_equal(ops->copy(device, &whole, 1, &err), COMMON_OK);
    piece.device = b;
    piece.host = got;
    assert_int_equal(ops->read(device, &piece, 1, &err), COMMON_OK);
    assert_memory_equal(got, sent, bytes);
    // Rows of heads: tight on the host, apart on the device, and back with gaps
    static const uint64_t shapes[][2] = {{100, 7}, {64, 3000}, {3000000, 2}, {1, 5}};
    for (int i = 0; i < 4; i++) {
        uint64_t width = shapes[i][0], height = shapes[i][1], pitch = width + 12;
        struct kernels_device_piece out = {.device = a,
                                           .device_pitch = pitch,
                                           .host = sent,
                                           .host_pitch = width,
                                           .width = width,
                                           .height = height};
        struct kernels_device_piece in = {.device = a,
                                          .device_pitch = pitch,
                                          .host = got,
                                          .host_pitch = width + 1,
                                          .width = width,
                                          .height = height};
        memset(got, 0xee, bytes);
        assert_int_equal(ops->write(device, &out, 1, &err), COMMON_OK);
        assert_int_equal(ops->read(device, &in, 1, &err), COMMON_OK);
        for (uint64_t row = 0; row < height; row++) {
            assert_memory_equal(got + row * (width + 1), sent + row * width, width);
            assert_true(got[row * (width + 1) + width] == 0xee);
        }
    }
    ops->free(device, a);
    ops->free(device, b);
    free(sent);
    free(got);
}

// Many rectangles at once: whole words and odd bytes, rows longer than a part, more than one table holds; and
// nothing beside them.
void cases_rectangles_are_copied(void **state)
{
    (void)state;
    enum { BYTES = 6000000, MANY = 45000 };
    static const uint64_t shapes[][5] = {// width, height, pitch to, pitch from, how far apart
                                         {4096, 8, 65536, 8192, 600000},
                                         {64, 8, 1024, 128, 10000},
                                         {33, 5, 77, 40, 500},
                                         {1, 1, 0, 0, 16},
                                         {100000, 2, 100016, 100000, 250000},
                                         {8192, 3, 8192, 8192, 30000},
                                         {8193, 1, 0, 0, 9001}};
    struct common_error err;
    uint64_t a, b;
    uint8_t *sent = malloc(BYTES), *got = malloc(BYTES), *want = malloc(BYTES);
    struct kernels_device_copy *copies = malloc(MANY * sizeof *copies);
    assert_true(sent && got && want && copies);
    for (uint64_t i = 0; i < BYTES; i++)
        sent[i] = (uint8_t)(i * 2654435761u >> 13);
    assert_int_equal(ops->alloc(device, BYTES, &a, &err), COMMON_OK);
    assert_int_equal(ops->alloc(device, BYTES, &b, &err), COMMON_OK);
    struct kernels_device_piece from = {.device = a, .host = sent, .width = BYTES, .height = 1},
                                to = {.device = b, .host = want, .width = BYTES, .height = 1},
                                back = {.device = b, .host = got, .width = BYTES, .height = 1};
    assert_int_equal(ops->write(device, &from, 1, &err), COMMON_OK);
    for (int round = 0; round < 3; round++) {
        uint32_t n = 0;
        uint64_t at = 0, source = (uint64_t)round * 3;
        memset(want, 0xcc, BYTES);
        assert_int_equal(ops->write(device, &to, 1, &err), COMMON_OK);
        for (; round == 2 && n < MANY; n++) // more than a segment
            copies[n] =
                (struct kernels_device_copy){.to = b + n * 100, .from = a + n * 64, .width = 10, .height = 1};
        for (size_t s = 0; round < 2 && s < sizeof shapes / sizeof *shapes; s++) {
            copies[n++] = (struct kernels_device_copy){.to = b + at,
                                                       .to_pitch = shapes[s][2],
                                                       .from = a + source,
                                                       .from_pitch = shapes[s][3],
                                                       .width = shapes[s][0],
                                                       .height = shapes[s][1]};
            at += shapes[s][4];
        }
        for (uint32_t i = 0; i < n; i++)
            for (uint64_t row = 0; row < copies[i].height; row++)
                memcpy(want + (copies[i].to - b) + row * copies[i].to_pitch,
                       sent + (copies[i].from - a) + row * copies[i].from_pitch, copies[i].width);
        assert_int_equal(ops->copy(device, copies, n, &err), COMMON_OK);
        memset(copies, 0, n * sizeof *copies); // it may be reused
        assert_int_equal(ops->read(device, &back, 1, &err), COMMON_OK);
        assert_memory_equal(got, want, BYTES);
    }
    ops->free(device, a);
    ops->free(device, b);
    free(sent);
    free(got);
    free(want);
    free(copies);
}

static void never(void *arg, enum common_code code, const struct common_error *err)
{
    (void)arg;
    (void)code;
    (void)err;
    abort();
}

// CASE(what is wrong, whether the spec alone is, the change of a good item whose keys are in a block of 8
// KiB)
#define BAD_ITEMS(CASE)                                                                                      \
    CASE(k_not_aligned, false, run->k += 1)                                                                  \
    CASE(v_ends_past_the_block, false, run->v = block + 8192 - 64)                                           \
    CASE(run_without_rows, false, run->rows = 0)                                                             \
    CASE(run_past_the_block, false, run->rows = UINT32_MAX)                                                  \
    CASE(run_past_all_positions, false, run->first = UINT64_MAX - 3)                                         \
    CASE(v_of_the_second_head_ends_past_the_block, false,                                                    \
         (spec->kv_heads = 2, spec->q_heads = 2, run->head_stride = 8192 - 2048))                            \
    CASE(head_stride_that_wraps, false, (spec->kv_heads = 2, run->head_stride = UINT64_MAX - 63))            \
    CASE(k_dim_too_large, true, spec->k_dim = 1025)                                                          \
    CASE(unknown_kv_type, true, spec->kv_type = (enum kernels_kv_type)9)                                     \
    CASE(more_rows_than_q, false, item->rows = 2)                                                            \
    CASE(q_past_all_positions, false, item->q_first = UINT64_MAX)                                            \
    CASE(int8_without_scales, false, spec->kv_type = KERNELS_KV_INT8)

#define DEFINE(name, bad_spec, change)                                                                       \
    static void item_##name(struct kernels_device_item *item, struct kernels_device_run *run,                \
                            struct kernels_spec *spec, uint64_t block)                                       \
    {                                                                                                        \
        (void)item, (void)run, (void)spec, (void)block;                                                      \
        change;                                                                                              \
    }
BAD_ITEMS(DEFINE)
#undef DEFINE

static const struct {
    const char *name;
    bool bad_spec;
    void (*spoil)(struct kernels_device_item *item, struct kernels_device_run *run, struct kernels_spec *spec,
                  uint64_t block);
} bad_items[] = {
#define ROW(name, bad_spec, change) {#name, bad_spec, item_##name},
    BAD_ITEMS(ROW)
#undef ROW
};

void cases_bad_calls(void **state)
{
    (void)state;
    struct common_error err;
    uint64_t block;
    uint8_t byte[16] = {0};
    assert_int_equal(ops->alloc(device, 0, &block, &err), COMMON_INVALID_ARGUMENT);
    assert_int_equal(ops->alloc(device, 8192, &block, &err), COMMON_OK);
    const struct kernels_device_piece pieces[] = {
        {.device = block, .host = byte, .width = 8193, .height = 1},
        {.device = block + 8190, .host = byte, .width = 4, .height = 1},
        {.device = block - 1, .host = byte, .width = 2, .height = 1},
        {.device = 0, .host = byte, .width = 1, .height = 1},
        {.device = block, .host = byte, .width = 0, .height = 1},
        {.device = block,
         .device_pitch = UINT64_MAX / 2,
         .host = byte,
         .host_pitch = 8,
         .width = 8,
         .height = 3},
        {.device = block, .device_pitch = 4096, .host = byte, .host_pitch = 8, .width = 8, .height = 3},
        {.device = block, .device_pitch = 4, .host = byte, .host_pitch = 8, .width = 8, .height = 2},
    };
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        assert_int_equal(ops->write(device, &pieces[i], 1, &err), COMMON_INVALID_ARGUMENT);
        assert_int_equal(ops->read(device, &pieces[i], 1, &err), COMMON_INVALID_ARGUMENT);
    }
    const struct kernels_device_copy copies[] = {
        {.to = block, .from = block + 4096, .width = 100, .height = 1},
        {.to = block, .from = block + 4096, .width = 8192, .height = 1},
        {.to = block + 8000, .from = block, .width = 200, .height = 1},
        {.to = block, .to_pitch = 64, .from = block + 4096, .from_pitch = 4096, .width = 64, .height = 2},
        {.to = block, .to_pitch = 32, .from = block + 4096, .from_pitch = 64, .width = 64, .height = 2},
        {.to = 0, .from = block, .width = 1, .height = 1},
        {.to = block, .from = block + 4096, .width = 0, .height = 1},
    };
    for (size_t i = 1; i < sizeof(copies) / sizeof(copies[0]); i++) {
        const struct kernels_device_copy both[] = {copies[0], copies[i]};
        assert_int_equal(ops->copy(device, &copies[i], 1, &err), COMMON_INVALID_ARGUMENT);
        assert_int_equal(ops->copy(device, both, 2, &err), COMMON_INVALID_ARGUMENT);
    }

    struct data d = keys_of(16, 1);
    struct kernels_device_run run = {.k = block, .v = block + 2048, .head_stride = 4096, .rows = 16};
    struct kernels_spec spec = d.spec;
    const struct kernels_device_item good = {.spec = &spec,
                                             .rows = 1,
                                             .visible = 16,
                                             .q = d.q,
                                             .q_row_stride = 128,
                                             .q_head_stride = 64,
                                             .run_count = 1,
                                             .runs = &run,
                                             .out = data_partial(1, 2, 64)};
    for (size_t i = 0; i < sizeof bad_items / sizeof *bad_items; i++) {
        struct kernels_device_item bad = good;
        struct kernels_device_run other = run;
        struct kernels_spec wrong = d.spec;
        bad.runs = &other;
        bad.spec = &wrong;
        bad_items[i].spoil(&bad, &other, &wrong, block);
        enum common_code code = ops->submit(device, &bad, 1, NULL, never, NULL, &err);
        if (code != COMMON_INVALID_ARGUMENT)
            fail_msg("%s: code %d", bad_items[i].name, code);
        if (bad_items[i].bad_spec && !ops->spec_problem(&wrong))
            fail_msg("%s: the spec is taken", bad_items[i].name);
    }
    assert_null(ops->spec_problem(&spec));
    assert_int_equal(ops->submit(device, &good, 0, NULL, never, NULL, &err), COMMON_INVALID_ARGUMENT);
    struct kernels_device_item freed = good;
    ops->free(device, block);
    assert_int_equal(ops->submit(device, &freed, 1, NULL, never, NULL, &err), COMMON_INVALID_ARGUMENT);
    freed = good;
    data_partial_free(&freed.out);
    data_free(&d);
}

// The same addresses, written over between steps, with no wait between write and step.
void cases_steps_read_what_was_written(void **state)
{
    (void)state;
    static const uint32_t pages[] = {16};
    for (int round = 0; round < 12; round++) {
        struct data d = keys_of(64, (uint64_t)round);
        struct placed p = harness_place(&d, 1, pages, 1);
        struct kernels_device_item item = harness_item(&p);
        assert_int_equal(harness_run(&item, 1, NULL), COMMON_OK);
        harness_judge(&p, &item.out, "just written");
        harness_item_free(&item);
        harness_remove(&p);
        data_free(&d);
    }
}

struct around { // what was called around a submission
    int before, after;
};

static bool before(void *arg, void *stream)
{
    struct around *around = arg;
    assert_non_null(stream);
    assert_int_equal(around->before++, around->after);
    return true;
}

static bool after(void *arg, void *stream)
{
    struct around *around = arg;
    assert_non_null(stream);
    assert_int_equal(++around->after, around->before);
    return true;
}

// To a sink: the same bits as to the host, where they belong and nowhere else, also as a graph (the third
// time), beside steps to the host of the same shape.
void cases_to_a_sink(void **state)
{
    (void)state;
    enum { FIRST = 3 * 64, GAP = 5 * 64 };
    static const uint32_t pages[] = {256};
    struct data d = keys_of(300, 11);
    struct placed p = harness_place(&d, 1, pages, 1);
    struct kernels_device_item items[2] = {harness_item(&p), harness_item(&p)}, sunk[2];
    uint64_t each = kernels_partial_bytes(items[0].out.rows, items[0].out.heads, items[0].out.dv);
    uint64_t bytes = FIRST + each + GAP + each, address;
    uint8_t *block = aligned_alloc(64, bytes), *got = aligned_alloc(64, bytes);
    struct common_error err;
    struct around around = {0, 0};
    assert_true(block && got);
    assert_int_equal(ops->alloc(device, bytes, &address, &err), COMMON_OK);
    struct kernels_device_sink sink = {
        .out = address, .base = block, .bytes = bytes, .before = before, .after = after, .arg = &around};
    struct kernels_device_piece all = {.device = address, .host = got, .width = bytes, .height = 1};
    for (int i = 0; i < 2; i++) {
        sunk[i] = items[i];
        kernels_partial_view(block + (i ? FIRST + each + GAP : FIRST), items[i].out.rows, items[i].out.heads,
                             items[i].out.dv, &sunk[i].out);
    }
    for (int round = 0; round < 4; round++) {
        memset(block, 0x11, bytes);
        memset(got, 0x22, bytes);
        assert_int_equal(ops->write(device, &all, 1, &err), COMMON_OK);
        assert_int_equal(harness_run_to(&sink, sunk, 2, &err), COMMON_OK);
        assert_int_equal(around.after, round + 1);
        assert_int_equal(harness_run(items, 2, &err), COMMON_OK);
        assert_int_equal(ops->read(device, &all, 1, &err), COMMON_OK);
        for (int i = 0; i < 2; i++) {
            struct kernels_partial view;
            uint64_t n = (uint64_t)items[i].out.rows * items[i].out.heads;
            kernels_partial_view(got + (i ? FIRST + each + GAP : FIRST), items[i].out.rows,
                                 items[i].out.heads, items[i].out.dv, &view);
            assert_memory_equal(view.m, items[i].out.m, n * sizeof(float));
            assert_memory_equal(view.s, items[i].out.s, n * sizeof(float));
            assert_memory_equal(view.o, items[i].out.o, n * items[i].out.dv * sizeof(float));
        }
        for (uint64_t i = 0; i < bytes; i++) {
            assert_int_equal(block[i], 0x11);
            if (i < FIRST || (i >= FIRST + each && i < FIRST + each + GAP))
                assert_int_equal(got[i], 0x22);
        }
    }
    harness_judge(&p, &items[1].out, "beside a sink");
    sunk[1].out.s++; // no packed block
    assert_int_equal(harness_run_to(&sink, sunk, 2, &err), COMMON_INVALID_ARGUMENT);
    sunk[1].out = sunk[0].out;
    sink.bytes = FIRST + each - 64; // out of the sink
    assert_int_equal(harness_run_to(&sink, sunk, 2, &err), COMMON_INVALID_ARGUMENT);
    assert_int_equal(around.before, 4);
    ops->free(device, address);
    free(block);
    free(got);
    harness_item_free(&items[0]);
    harness_item_free(&items[1]);
    harness_remove(&p);
    data_free(&d);
}

struct many {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int next, wrong;
};

struct ticket {
    struct many *many;
    int number;
};

static void in_order(void *arg, enum common_code code, const struct common_error *err)
{
    (void)err;
    struct ticket *t = arg;
    pthread_mutex_lock(&t->many->lock);
    t->many->wrong += code != COMMON_OK || t->number != t->many->next;
    t->many->next++;
    pthread_cond_signal(&t->many->changed);
    pthread_mutex_unlock(&t->many->lock);
}

// As many as go, each done once and in order; beyond that, IN_PROGRESS until one is done.
void cases_many_under_way(void **state)
{
    (void)state;
    enum { STEPS = 40 };
    static const uint32_t pages[] = {256};
    struct data d = keys_of(500, 3);
    struct placed p = harness_place(&d, 1, pages, 1);
    struct many many = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct kernels_device_item items[STEPS];
    struct ticket tickets[STEPS];
    struct kernels_device_info info;
    ops->info(device, &info);
    int refused = 0;
    for (int i = 0; i < STEPS; i++) {
        items[i] = harness_item(&p);
        tickets[i] = (struct ticket){&many, i};
        struct common_error err;
        enum common_code code;
        while ((code = ops->submit(device, &items[i], 1, NULL, in_order, &tickets[i], &err)) ==
               COMMON_IN_PROGRESS) {
            refused++;
            pthread_mutex_lock(&many.lock);
            assert_true(i - many.next <= (int)info.in_flight);
            int seen = many.next;
            while (many.next == seen && seen < i)
                pthread_cond_wait(&many.changed, &many.lock);
            pthread_mutex_unlock(&many.lock);
        }
        assert_int_equal(code, COMMON_OK);
        // The query may be reused at once
        memset((void *)(uintptr_t)items[i].q, 0xff, 128 * sizeof(float));
    }
    pthread_mutex_lock(&many.lock);
    while (many.next < STEPS)
        pthread_cond_wait(&many.changed, &many.lock);
    pthread_mutex_unlock(&many.lock);
    assert_int_equal(many.wrong, 0);
    (void)refused; // as fast as the device is
    for (int i = 0; i < STEPS; i++) {
        harness_judge(&p, &items[i].out, "one of many");
        assert_memory_equal(items[i].out.o, items[0].out.o, 128 * sizeof(float));
    }
    for (int i = 0; i < STEPS; i++)
        harness_item_free(&items[i]);
    harness_remove(&p);
    data_free(&d);
}

void cases_bandwidth(void **state)
{
    (void)state;
    struct common_error err;
    double bytes_per_s = 0;
    uint64_t before = ops->used(device);
    assert_int_equal(ops->bandwidth(device, &bytes_per_s, &err), COMMON_OK);
    assert_true(bytes_per_s > 0 && isfinite(bytes_per_s));
    assert_int_equal(ops->used(device), before);
}

// Bytes of blocks that fit now.
static uint64_t room(struct kernels_device *of)
{
    enum { BLOCK = 1 << 20, MOST = 512 };
    uint64_t at[MOST];
    uint32_t n = 0;
    struct common_error err;
    while (n < MOST && ops->alloc(of, BLOCK, &at[n], &err) == COMMON_OK)
        n++;
    assert_true(n < MOST);
    for (uint32_t i = 0; i < n; i++)
        ops->free(of, at[i]);
    return (uint64_t)n * BLOCK;
}

// Bytes that the device has free: the largest limit that it can be opened with.
static uint64_t available(void)
{
    uint64_t low = 0, high = UINT64_C(1) << 31;
    while (high - low > 64 << 10) {
        struct kernels_device *probe = NULL;
        struct common_error err;
        uint64_t middle = low + (high - low) / 2;
        bool fits = ops->open(0, middle, &probe, &err) == COMMON_OK;
        ops->close(probe);
        *(fits ? &low : &high) = middle;
    }
    return low;
}

static void run_on(struct kernels_device *of, uint32_t q_heads, uint64_t block)
{
    struct kernels_device *other = device;
    struct data d = keys_of(16, 1);
    d.spec.q_heads = q_heads;
    float *q = calloc((size_t)q_heads * 64, sizeof(float));
    assert_non_null(q);
    struct kernels_device_run run = {.k = block, .v = block + 4096, .rows = 16};
    struct kernels_device_item item = {.spec = &d.spec,
                                       .rows = 1,
                                       .q_first = 16,
                                       .visible = 16,
                                       .q = q,
                                       .q_row_stride = (uint64_t)q_heads * 64,
                                       .q_head_stride = 64,
                                       .run_count = 1,
                                       .runs = &run,
                                       .out = data_partial(1, q_heads, 64)};
    struct common_error err;
    device = of;
    if (harness_run(&item, 1, &err) != COMMON_OK)
        fail_msg("%u heads: %s", q_heads, err.message);
    device = other;
    data_partial_free(&item.out);
    free(q);
    data_free(&d);
}

// What steps hold comes out of what the pool leaves for them; a workspace that one large step needed goes
// back when many small ones have not.
void cases_workspace_shrinks(void **state)
{
    (void)state;
    uint64_t fits[2] = {0}, left[3] = {0};
    for (int large = 0; large < 2; large++) {
        struct kernels_device *small = NULL;
        struct common_error err;
        uint64_t block;
        uint8_t zeros[8192] = {0};
        assert_int_equal(ops->open(0, UINT64_C(400) << 20, &small, &err), COMMON_OK);
        assert_int_equal(ops->alloc(small, 8192, &block, &err), COMMON_OK);
        struct kernels_device_piece piece = {.device = block, .host = zeros, .width = 8192, .height = 1};
        assert_int_equal(ops->write(small, &piece, 1, &err), COMMON_OK);
        run_on(small, 8, block);
        left[0] = available();
        if (large) {
            run_on(small, 40000, block); // 10 MiB of partials, and as much of queries
            left[1] = available();
            for (int i = 0; i < 200; i++)
                run_on(small, 8, block);
            left[2] = available();
            run_on(small, 40000, block); // and it grows again
        }
        ops->free(small, block);
        fits[large] = room(small);
        ops->close(small);
    }
    assert_true(left[1] + (UINT64_C(20) << 20) <= left[0]);
    assert_true(left[2] >= left[1] + (UINT64_C(8) << 20));
    assert_int_equal(fits[0], fits[1]);
}

void cases_driver_too_old(void **state)
{
    (void)state;
    struct common_error err;
    struct kernels_device *none = NULL;
    assert_int_equal(ops->count(&err), 0);
    assert_int_equal(err.code, COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "12.4"));
    assert_non_null(strstr(err.message, "13.0"));
    assert_int_equal(ops->open(0, 0, &none, &err), COMMON_FAILED_PRECONDITION);
    assert_null(none);
}

static int ended;
static enum common_code ended_with;

static void end(void *arg, enum common_code code, const struct common_error *err)
{
    (void)arg;
    ended_with = code == COMMON_UNAVAILABLE && strstr(err->message, "lost") ? code : COMMON_UNKNOWN;
    __atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
}

// The third kernel faults: the first step (two kernels) has its answer, all that comes later is UNAVAILABLE
// for good.
void cases_fault_loses_the_device(void **state)
{
    (void)state;
    static const uint32_t pages[] = {256};
    struct common_error err;
    struct data d = keys_of(100, 3);
    struct placed p = harness_place(&d, 1, pages, 1);
    struct kernels_device_item items[3];
    for (int i = 0; i < 3; i++)
        items[i] = harness_item(&p);
    assert_int_equal(harness_run(&items[0], 1, &err), COMMON_OK);
    harness_judge(&p, &items[0].out, "before the fault");
    int sent = 0;
    for (int i = 1; i < 3; i++) {
        enum common_code code = ops->submit(device, &items[i], 1, NULL, end, NULL, &err);
        assert_true(code == COMMON_OK || code == COMMON_UNAVAILABLE); // the fault may be faster
        sent += code == COMMON_OK;
    }
    while (__atomic_load_n(&ended, __ATOMIC_SEQ_CST) < sent)
        usleep(1000);
    assert_true(sent == 0 || ended_with == COMMON_UNAVAILABLE);
    for (uint32_t i = 0; i < 128; i++)
        assert_true(isnan(items[1].out.o[i])); // as harness_item() left it: no numbers
    assert_true(ops->lost(device, &err));
    assert_non_null(strstr(err.message, "illegal memory access"));
    uint64_t block;
    double speed;
    uint8_t byte = 0;
    struct kernels_device_piece piece = {.device = p.blocks[0], .host = &byte, .width = 1, .height = 1};
    assert_int_equal(ops->submit(device, &items[0], 1, NULL, end, NULL, &err), COMMON_UNAVAILABLE);
    assert_int_equal(ops->alloc(device, 100, &block, &err), COMMON_UNAVAILABLE);
    assert_int_equal(ops->write(device, &piece, 1, &err), COMMON_UNAVAILABLE);
    assert_int_equal(ops->read(device, &piece, 1, &err), COMMON_UNAVAILABLE);
    assert_int_equal(ops->bandwidth(device, &speed, &err), COMMON_UNAVAILABLE);
    for (int i = 0; i < 3; i++)
        harness_item_free(&items[i]);
    harness_remove(&p); // free goes on
    data_free(&d);
    assert_int_equal(ops->used(device), 0);
    ops->close(device);
    assert_int_equal(ended, sent);
}
