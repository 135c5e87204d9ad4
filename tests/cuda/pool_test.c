// SPDX-License-Identifier: Apache-2.0
// The books of the device's memory against a plain list of what was taken.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cuda/internal.h"

#define BLOCKS 300

static uint64_t random_state = 1;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)((random_state >> 33) % n);
}

static void nothing_overlaps(void **state)
{
    (void)state;
    struct cuda_pool *pool = cuda_pool_new();
    assert_non_null(pool);
    assert_int_equal(cuda_pool_take(pool, 1), 0);
    assert_true(cuda_pool_add(pool, (uint64_t)1 << 40, (uint64_t)4 << 20));
    assert_true(cuda_pool_add(pool, (uint64_t)1 << 39, (uint64_t)2 << 20));
    uint64_t at[BLOCKS] = {0}, bytes[BLOCKS] = {0}, used = 0;
    uint32_t taken = 0, full = 0;
    for (int round = 0; round < 20000; round++) {
        uint32_t i = below(BLOCKS);
        if (at[i]) {
            uint64_t start = 0, end = 0;
            assert_true(cuda_pool_block(pool, at[i] + below((uint32_t)bytes[i]), &start, &end));
            assert_true(start == at[i] && end >= at[i] + bytes[i] && end < at[i] + bytes[i] + CUDA_GRANULE);
            used -= end - start;
            cuda_pool_give(pool, at[i]);
            assert_false(cuda_pool_block(pool, at[i], &start, &end));
            at[i] = 0;
        } else {
            bytes[i] = 1 + below(round % 5 ? 20000 : 300000);
            at[i] = cuda_pool_take(pool, bytes[i]);
            full += at[i] == 0;
            taken += at[i] != 0;
            if (at[i])
                used += (bytes[i] + CUDA_GRANULE - 1) / CUDA_GRANULE * CUDA_GRANULE;
            for (uint32_t j = 0; at[i] && j < BLOCKS; j++)
                assert_true(j == i || !at[j] || at[j] + bytes[j] <= at[i] || at[i] + bytes[i] <= at[j]);
        }
        assert_int_equal(cuda_pool_used(pool), used);
    }
    assert_true(taken > 1000 && full > 100);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        if (at[i])
            cuda_pool_give(pool, at[i]);
    }
    assert_int_equal(cuda_pool_used(pool), 0);
    // All is joined again: the whole regions can be taken
    assert_true(cuda_pool_take(pool, (uint64_t)4 << 20) == (uint64_t)1 << 40);
    assert_true(cuda_pool_take(pool, (uint64_t)2 << 20) == (uint64_t)1 << 39);
    assert_int_equal(cuda_pool_take(pool, 1), 0);
    cuda_pool_free(pool);
}

static void wrong_addresses_are_in_no_block(void **state)
{
    (void)state;
    struct cuda_pool *pool = cuda_pool_new();
    uint64_t start, end;
    assert_true(cuda_pool_add(pool, (uint64_t)1 << 40, (uint64_t)1 << 20));
    uint64_t block = cuda_pool_take(pool, 3 * CUDA_GRANULE);
    assert_false(cuda_pool_block(pool, 0, &start, &end));
    assert_false(cuda_pool_block(pool, block - 1, &start, &end));
    assert_false(cuda_pool_block(pool, block + 3 * CUDA_GRANULE, &start, &end));
    assert_false(cuda_pool_block(pool, UINT64_MAX, &start, &end));
    cuda_pool_give(pool, block + CUDA_GRANULE); // not a block's start: nothing happens
    assert_int_equal(cuda_pool_used(pool), 3 * CUDA_GRANULE);
    assert_int_equal(cuda_pool_take(pool, CUDA_REGION + 1), 0);
    assert_int_equal(cuda_pool_take(pool, UINT64_MAX), 0);
    cuda_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_overlaps),
                                       cmocka_unit_test(wrong_addresses_are_in_no_block)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
