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

#include "common/memory/block.h"

#define MIB ((size_t)1 << 20)

enum { OURS = COMMON_BLOCK_DAEMONS };

static void *take(size_t bytes)
{
    void *block = common_block_take(bytes, OURS);
    assert_non_null(block);
    return block;
}

static bool is_zero(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i])
            return false;
    return true;
}

static void test_a_block_has_what_was_asked_for(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,        1,        959,         960,           961,      4096,
                                   64 << 10, 64 * MIB, 3 * MIB + 5, 16 * MIB - 64, 16 * MIB, 80 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t *block = take(sizes[i]);
        assert_int_equal((uintptr_t)block % COMMON_BLOCK_ALIGN, 0);
        memset(block, 1, sizes[i]);
        common_block_give(block);
    }
    common_block_give(NULL);
}

static void test_impossible_sizes_are_refused(void **state)
{
    (void)state;
    assert_null(common_block_take(SIZE_MAX, OURS));
    assert_null(common_block_take(PTRDIFF_MAX, OURS));
}

static void test_zeros_are_zeros(void **state)
{
    (void)state;
    uint8_t *block = take(5000);
    memset(block, 7, 5000);
    common_block_give(block);
    block = common_block_zeros(4900);
    assert_non_null(block);
    assert_true(is_zero(block, 4900));
    common_block_give(block);
}

#ifndef __SANITIZE_ADDRESS__ // which has malloc's blocks alone
// A daemon that does the same again asks the system for nothing, and nothing is wiped: whatever the size.
static void test_what_was_given_back_is_taken_again_as_it_is(void **state)
{
    (void)state;
    for (size_t bytes = 1; bytes < 12 * MIB; bytes += bytes / 7 + 1) {
        uint8_t *block = take(bytes);
        memset(block, 5, bytes);
        common_block_give(block);
        uint8_t *again = take(bytes);
        assert_ptr_equal(again, block);
        assert_int_equal(again[0], 5);
        assert_int_equal(again[bytes - 1], 5);
        common_block_give(again);
    }
    common_block_hand_over(); // for the tests below
    while (common_block_clean(SIZE_MAX, false))
        continue;
}

static void test_the_last_one_given_back_is_taken_first(void **state)
{
    (void)state;
    void *a = take(MIB), *b = take(MIB);
    assert_ptr_not_equal(a, b);
    common_block_give(a);
    common_block_give(b);
    assert_ptr_equal(take(MIB), b);
    assert_ptr_equal(take(MIB + 1000), a); // of the same class
    common_block_give(a);
    void *much_smaller = take(MIB / 4); // would waste what is kept for large ones
    assert_ptr_not_equal(much_smaller, a);
    common_block_give(much_smaller);
    common_block_give(b);
}

// One that is not kept is unmapped: the next one of its size has fresh pages, which are zero.
static void test_a_giant_is_not_kept(void **state)
{
    (void)state;
    uint8_t *giant = take(COMMON_BLOCK_KEEP);
    giant[0] = 7;
    common_block_give(giant);
    giant = take(COMMON_BLOCK_KEEP);
    assert_int_equal(giant[0], 0);
    common_block_give(giant);
}

// Whether the system has given the memory: fresh mappings have none until they are used.
static bool is_resident(const uint8_t *block)
{
    unsigned char has;
    assert_int_equal(mincore((void *)((uintptr_t)(block + 4096) & ~(uintptr_t)4095), 4096, &has), 0);
    return has & 1;
}

static void test_what_is_kept_is_bounded_and_the_oldest_goes(void **state)
{
    (void)state;
    enum { BLOCKS = 80 }; // of 1 MiB
    static uint8_t *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = take(MIB);
        memset(blocks[i], 7, MIB);
    }
    for (int i = 0; i < BLOCKS; i++)
        common_block_give(blocks[i]);
    int kept = 0;
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = take(MIB);
        kept += is_resident(blocks[i]);
    }
    assert_true(kept > 0 && (size_t)kept * MIB <= COMMON_BLOCK_KEEP);
    for (int i = 0; i < BLOCKS; i++)
        common_block_give(blocks[i]);
}

// ---- who wipes ----------------------------------------------------------------------------------

static void test_another_owner_finds_nothing(void **state)
{
    (void)state;
    uint64_t one = common_block_owner(), other = common_block_owner();
    assert_int_not_equal(one, other);
    assert_int_not_equal(one, OURS);
    uint8_t *block = common_block_take(MIB + 4096, one);
    assert_non_null(block);
    memset(block, 7, MIB + 4096);
    common_block_give(block);
    uint8_t *ours = common_block_take(MIB, other); // less than was written to
    assert_ptr_equal(ours, block);
    assert_true(is_zero(block, MIB + 4096));
    memset(block, 8, 100);
    common_block_give(ours);
    assert_ptr_equal(common_block_take(MIB, other), block);
    assert_int_equal(block[0], 8); // its own
    common_block_give(block);
}

// The one that has its own things in it is found behind those of others.
static void test_an_owner_finds_its_own_again(void **state)
{
    (void)state;
    uint64_t one = common_block_owner(), other = common_block_owner();
    uint8_t *a = common_block_take(2 * MIB, one), *b = common_block_take(2 * MIB, other);
    assert_true(a && b);
    *a = 1, *b = 2;
    common_block_give(a);
    common_block_give(b);
    assert_ptr_equal(common_block_take(2 * MIB, one), a);
    assert_int_equal(*a, 1);
    common_block_give(a);
}

static void test_what_a_session_leaves_is_wiped_once(void **state)
{
    (void)state;
    uint8_t *kept = take(3 * MIB), *held = take(3 * MIB);
    memset(kept, 7, 3 * MIB);
    memset(held, 7, 3 * MIB);
    common_block_give(kept);
    common_block_hand_over();
    common_block_give(held); // in hand while the session ended
    while (common_block_clean(MIB, false))
        continue;
    assert_true(is_zero(kept, 3 * MIB));
    assert_true(is_zero(held, 3 * MIB));
    assert_ptr_equal(take(3 * MIB), held);
    memset(held, 9, 3 * MIB);
    common_block_give(held);
    assert_false(common_block_clean(SIZE_MAX, false));
    assert_int_equal(held[5], 9); // of a session that goes on
}

// It has not been cleaned yet: its next owner finds nothing all the same.
static void test_what_a_session_leaves_is_not_handed_out(void **state)
{
    (void)state;
    uint8_t *block = take(20000);
    memset(block, 7, 20000);
    common_block_give(block);
    common_block_hand_over();
    assert_ptr_equal(take(19000), block);
    assert_true(is_zero(block, 20000));
    common_block_give(block);
}

static void test_what_nobody_asks_for_is_wiped(void **state)
{
    (void)state;
    uint8_t *block = take(700 << 10);
    memset(block, 7, 700 << 10);
    common_block_give(block);
    common_block_clean(SIZE_MAX, true); // it was given back in the period that ends here
    assert_int_equal(block[0], 7);
    common_block_clean(SIZE_MAX, true);
    assert_true(is_zero(block, 700 << 10));
}

static void test_cleaning_is_done_a_little_at_a_time(void **state)
{
    (void)state;
    enum { BLOCKS = 8 };
    uint8_t *blocks[BLOCKS];
    int rounds = 1;
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = take(MIB);
        memset(blocks[i], 7, MIB);
    }
    for (int i = 0; i < BLOCKS; i++)
        common_block_give(blocks[i]);
    common_block_hand_over();
    for (; common_block_clean(2 * MIB, false); rounds++)
        continue;
    assert_int_equal(rounds, BLOCKS / 2);
    for (int i = 0; i < BLOCKS; i++)
        assert_true(is_zero(blocks[i], MIB));
}
#endif

static void *taker(void *arg)
{
    const uint8_t mark = *(const uint8_t *)arg;
    for (int i = 0; i < 2000; i++) {
        size_t bytes = (size_t)40000 * (1 + (size_t)i % 7);
        uint8_t *block = common_block_take(bytes, mark % 2);
        if (!block)
            return NULL;
        memset(block, mark, 64);
        block[bytes - 1] = mark;
        if (i % 100 == 0) {
            common_block_hand_over();
            common_block_clean(MIB, true);
        }
        if (block[0] != mark || block[63] != mark || block[bytes - 1] != mark)
            return NULL;
        common_block_give(block);
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
        cmocka_unit_test(test_zeros_are_zeros),
#ifndef __SANITIZE_ADDRESS__
        cmocka_unit_test(test_what_was_given_back_is_taken_again_as_it_is),
        cmocka_unit_test(test_the_last_one_given_back_is_taken_first),
        cmocka_unit_test(test_a_giant_is_not_kept),
        cmocka_unit_test(test_what_is_kept_is_bounded_and_the_oldest_goes),
        cmocka_unit_test(test_another_owner_finds_nothing),
        cmocka_unit_test(test_an_owner_finds_its_own_again),
        cmocka_unit_test(test_what_a_session_leaves_is_wiped_once),
        cmocka_unit_test(test_what_a_session_leaves_is_not_handed_out),
        cmocka_unit_test(test_what_nobody_asks_for_is_wiped),
        cmocka_unit_test(test_cleaning_is_done_a_little_at_a_time),
#endif
        cmocka_unit_test(test_threads_do_not_share_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
