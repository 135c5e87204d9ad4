// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "common/block.h"

#define MIB ((size_t)1 << 20)

static void test_a_block_has_what_was_asked_for(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4096, COMMON_BLOCK_MIN, COMMON_BLOCK_MIN + 1, 3 * MIB + 5, 80 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t cap = 0;
        uint8_t *block = common_block_take(sizes[i], &cap);
        assert_non_null(block);
        assert_true(cap >= sizes[i]);
        assert_int_equal((uintptr_t)block % 4096, 0);
        block[0] = block[cap - 1] = 1;
        common_block_give(block, cap);
    }
    common_block_give(NULL, 0);
}

static void test_impossible_sizes_are_refused(void **state)
{
    (void)state;
    size_t cap = 99;
    assert_null(common_block_take(SIZE_MAX, &cap));
    assert_null(common_block_take(PTRDIFF_MAX, &cap));
    assert_int_equal(cap, 99);
}

static void test_the_last_one_given_back_is_taken_again(void **state)
{
    (void)state;
    size_t a_cap, b_cap, cap;
    void *a = common_block_take(MIB, &a_cap), *b = common_block_take(MIB, &b_cap);
    assert_ptr_not_equal(a, b);
    common_block_give(a, a_cap);
    common_block_give(b, b_cap);
    assert_ptr_equal(common_block_take(MIB, &cap), b);
    assert_ptr_equal(common_block_take(MIB - 1000, &cap), a);
    assert_int_equal(cap, a_cap);
    common_block_give(a, a_cap);
    void *much_smaller = common_block_take(MIB / 4, &cap); // would waste what is kept for large ones
    assert_ptr_not_equal(much_smaller, a);
    common_block_give(much_smaller, cap);
    common_block_give(b, b_cap);
}

// One that is not kept is unmapped: the next one of its size has fresh pages, which are zero.
static void test_a_giant_is_not_kept(void **state)
{
    (void)state;
    size_t cap;
    uint8_t *giant = common_block_take(COMMON_BLOCK_KEEP, &cap);
    assert_non_null(giant);
    giant[0] = 7;
    common_block_give(giant, cap);
    giant = common_block_take(COMMON_BLOCK_KEEP, &cap);
    assert_non_null(giant);
    assert_int_equal(giant[0], 0);
    common_block_give(giant, cap);
}

// Whether the system has given the memory: fresh mappings have none until they are used.
static bool is_resident(void *block)
{
    unsigned char has;
    assert_int_equal(mincore(block, 4096, &has), 0);
    return has & 1;
}

static void test_what_is_kept_is_bounded_and_the_oldest_goes(void **state)
{
    (void)state;
    enum { BLOCKS = 80 }; // of 1 MiB
    static uint8_t *blocks[BLOCKS];
    size_t caps[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        assert_non_null(blocks[i] = common_block_take(MIB, &caps[i]));
        blocks[i][0] = 7;
    }
    for (int i = 0; i < BLOCKS; i++)
        common_block_give(blocks[i], caps[i]);
    int kept = 0;
    for (int i = 0; i < BLOCKS; i++) {
        assert_non_null(blocks[i] = common_block_take(MIB, &caps[i]));
        kept += is_resident(blocks[i]);
        assert_int_equal(blocks[i][0], 0); // nothing of who had it before
    }
    assert_true(kept > 0 && (size_t)kept * MIB <= COMMON_BLOCK_KEEP);
    for (int i = 0; i < BLOCKS; i++)
        common_block_give(blocks[i], caps[i]);
}

static void *taker(void *arg)
{
    const uint8_t mark = *(const uint8_t *)arg;
    for (int i = 0; i < 2000; i++) {
        size_t cap;
        uint8_t *block = common_block_take(COMMON_BLOCK_MIN * (1 + (size_t)i % 7), &cap);
        if (!block)
            return NULL;
        memset(block, mark, 64);
        block[cap - 1] = mark;
        if (block[0] != mark || block[63] != mark || block[cap - 1] != mark)
            return NULL;
        common_block_give(block, cap);
    }
    return arg;
}

static void test_threads_do_not_share_one(void **state)
{
    (void)state;
    pthread_t threads[4];
    uint8_t marks[4] = {1, 2, 3, 4};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, taker, &marks[i]), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, &marks[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_block_has_what_was_asked_for),
        cmocka_unit_test(test_impossible_sizes_are_refused),
        cmocka_unit_test(test_the_last_one_given_back_is_taken_again),
        cmocka_unit_test(test_a_giant_is_not_kept),
        cmocka_unit_test(test_what_is_kept_is_bounded_and_the_oldest_goes),
        cmocka_unit_test(test_threads_do_not_share_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
