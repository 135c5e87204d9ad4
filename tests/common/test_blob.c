// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/memory/blob.h"
#include "common/memory/block.h"
#include "common/memory/memory.h"

static void test_new_is_aligned_and_writable(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct common_blob *blob = common_blob_new(sizes[i]);
        assert_non_null(blob);
        assert_int_equal((uintptr_t)blob->data % COMMON_BLOB_ALIGN, 0);
        assert_int_equal(blob->len, sizes[i]);
        assert_true(blob->cap >= blob->len);
        memset(blob->data, 0xab, blob->cap); // the address sanitizer watches the end
        common_blob_unref(blob);
    }
}

static void test_impossible_sizes_are_refused(void **state)
{
    (void)state;
    assert_null(common_blob_new(SIZE_MAX));
    assert_null(common_blob_new(SIZE_MAX - 63)); // would wrap to a small block when rounded
    assert_null(common_blob_new(PTRDIFF_MAX));
}

static void test_references(void **state)
{
    (void)state;
    struct common_blob *blob = common_blob_new(8);
    assert_ptr_equal(common_blob_ref(blob), blob);
    assert_int_equal(blob->refs, 2);
    common_blob_unref(blob);
    memcpy(blob->data, "still ok", 8);
    common_blob_unref(blob);
    assert_null(common_blob_ref(NULL));
    common_blob_unref(NULL);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // they keep what was freed
static uint64_t resident_bytes(void)
{
    unsigned long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &size, &resident), 2);
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

// What is freed, and what is given, has nothing of its earlier owner.
static void test_memory_is_wiped(void **state)
{
    (void)state;
    static const char marker[] = "a row of somebody";
    common_memory_wipe();
    for (size_t bytes = 1200; bytes < 3 << 20; bytes *= 3) {
        uint8_t *block = malloc(bytes), *lasting = malloc(64);
        assert_true(block && lasting);
        for (size_t at = 0; at + sizeof marker < bytes; at += sizeof marker)
            memcpy(block + at, marker, sizeof marker);
        free(block);
        uint8_t *again = malloc(bytes);
        assert_non_null(again);
        assert_null(memmem(again, bytes, marker, sizeof marker));
        free(again);
        free(lasting);
    }
    for (size_t len = 64; len < 1 << 20; len *= 2) { // to another's, and where a session has ended
        for (uint64_t to = COMMON_BLOCK_DAEMONS; to < 2; to++) {
            struct common_blob *blob = common_blob_new(len);
            assert_non_null(blob);
            memcpy(blob->data + len - sizeof marker, marker, sizeof marker);
            common_blob_unref(blob);
            if (to == COMMON_BLOCK_DAEMONS)
                common_block_hand_over();
            blob = common_blob_new_of(len, to);
            assert_non_null(blob);
            assert_null(memmem(blob->data, len, marker, sizeof marker));
            common_blob_unref(blob);
        }
    }
}

// As a worker does it: while one message is worked on the next one comes; something small is made of each,
// and stays.
static void test_what_stays_between_large_ones_takes_no_room_from_them(void **state)
{
    (void)state;
    enum { MESSAGES = 512, BYTES = 1 << 20, SIZES = 5 };
    static const size_t sizes[SIZES] = {24, 24, 40, 56, 200};
    static void *lasting[MESSAGES][SIZES];
    struct common_blob *before_it = NULL;
    common_memory_keep();
    uint64_t before = resident_bytes();
    for (int i = 0; i < MESSAGES; i++) {
        struct common_blob *blob = common_blob_new(BYTES);
        assert_non_null(blob);
        memset(blob->data, i, blob->len);
        for (int k = 0; k < SIZES; k++)
            assert_non_null(lasting[i][k] = malloc(sizes[k]));
        common_blob_unref(before_it);
        before_it = blob;
    }
    common_blob_unref(before_it);
    uint64_t grown = resident_bytes() - before;
    for (int i = 0; i < MESSAGES; i++)
        for (int k = 0; k < SIZES; k++)
            free(lasting[i][k]);
    assert_true(grown < (uint64_t)MESSAGES * BYTES / 4);
}
#endif

static void test_checked_sizes(void **state)
{
    (void)state;
    size_t out = 99;
    assert_true(common_size_mul(SIZE_MAX / 2, 2, &out));
    assert_true(out == SIZE_MAX - 1);
    out = 99;
    assert_false(common_size_mul(SIZE_MAX / 2 + 1, 2, &out));
    assert_false(common_size_mul((size_t)1 << 32, (size_t)1 << 32, &out));
    assert_false(common_size_add(SIZE_MAX, 1, &out));
    assert_int_equal(out, 99); // untouched by a refusal
    assert_true(common_size_add(SIZE_MAX - 1, 1, &out));
    assert_true(out == SIZE_MAX);
    assert_true(common_size_mul(0, SIZE_MAX, &out));
    assert_int_equal(out, 0);
}

static void test_align64(void **state)
{
    (void)state;
    assert_int_equal(common_align64(0), 0);
    assert_int_equal(common_align64(1), 64);
    assert_int_equal(common_align64(64), 64);
    assert_int_equal(common_align64(65), 128);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_is_aligned_and_writable),
        cmocka_unit_test(test_impossible_sizes_are_refused),
        cmocka_unit_test(test_references),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(test_memory_is_wiped),
        cmocka_unit_test(test_what_stays_between_large_ones_takes_no_room_from_them),
#endif
        cmocka_unit_test(test_checked_sizes),
        cmocka_unit_test(test_align64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
