// SPDX-License-Identifier: Apache-2.0
// Slabs cover an item exactly once, are as few as the rule allows, and depend on its shape alone.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdbool.h>
#include <stdlib.h>

#include "coordinator/steps/slab.h"
#include "kernels/partial.h"

static void check(uint32_t rows, uint32_t kv_heads, uint32_t group, uint32_t v_dim, uint64_t limit)
{
    struct coordinator_slabs slabs;
    coordinator_slabs_cut(rows, kv_heads, group, v_dim, limit, &slabs);
    uint8_t *seen = calloc(rows, kv_heads);
    assert_non_null(seen);
    assert_true(slabs.n > 0);
    for (uint32_t i = 0; i < slabs.n; i++) {
        struct coordinator_slab slab;
        coordinator_slabs_at(&slabs, i, &slab);
        assert_true(slab.rows > 0 && slab.kv_heads > 0);
        assert_true(slab.row + slab.rows <= rows && slab.kv_head + slab.kv_heads <= kv_heads);
        bool single = slab.rows == 1 && slab.kv_heads == 1;
        assert_true(single || kernels_partial_bytes(slab.rows, slab.kv_heads * group, v_dim) <= limit);
        for (uint32_t r = slab.row; r < slab.row + slab.rows; r++)
            for (uint32_t h = slab.kv_head; h < slab.kv_head + slab.kv_heads; h++)
                assert_int_equal(seen[r * kv_heads + h]++, 0);
        // Rows are cut only when one KV head of all of them is too much
        if (slab.rows < rows)
            assert_true(coordinator_slab_partial_bytes(rows, group, v_dim) > limit);
    }
    for (uint32_t i = 0; i < rows * kv_heads; i++)
        assert_int_equal(seen[i], 1);
    free(seen);
    if (coordinator_slab_partial_bytes(rows, (uint64_t)kv_heads * group, v_dim) <= limit)
        assert_int_equal(slabs.n, 1);
}

// A slab is as large as what workers make of it: m, s and o, each padded to a cache line.
static void a_slab_has_the_bytes_of_a_packed_partial(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 40; rows++)
        for (uint32_t heads = 1; heads <= 9; heads++)
            for (uint32_t dim = 1; dim <= 33; dim++)
                assert_int_equal(coordinator_slab_partial_bytes(rows, heads, dim),
                                 kernels_partial_bytes(rows, heads, dim));
    // Two KV heads of one value take 12 bytes each and three lines together: one line less is too few for
    // one.
    struct coordinator_slabs slabs;
    coordinator_slabs_cut(1, 2, 1, 1, 3 * 64, &slabs);
    assert_int_equal(slabs.n, 1);
    coordinator_slabs_cut(1, 2, 1, 1, 2 * 64, &slabs);
    assert_int_equal(slabs.n, 2);
}

static void every_shape(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 2, 7, 64, 127, 128, 500, 4096}, heads[] = {1, 2, 3, 8, 32},
                          groups[] = {1, 4, 7}, dims[] = {1, 64, 128, 1024};
    for (size_t r = 0; r < 8; r++)
        for (size_t h = 0; h < 5; h++)
            for (size_t g = 0; g < 3; g++)
                for (size_t d = 0; d < 4; d++)
                    check(rows[r], heads[h], groups[g], dims[d], COORDINATOR_SLAB_BYTES);
}

static void known_cuts(void **state)
{
    (void)state;
    struct coordinator_slabs slabs;
    struct coordinator_slab slab;
    // One row of a large model: whole
    coordinator_slabs_cut(1, 8, 4, 128, COORDINATOR_SLAB_BYTES, &slabs);
    assert_int_equal(slabs.n, 1);
    // 32 rows × 32 heads × 128: 520 KiB, so half of the KV heads each
    coordinator_slabs_cut(32, 8, 4, 128, COORDINATOR_SLAB_BYTES, &slabs);
    assert_int_equal(slabs.slab_rows, 32);
    assert_true(slabs.n >= 3 && slabs.n <= 4);
    // Even parts: 3 KV heads of which 2 fit become 2 and 1, 4 of which 3 fit become 2 and 2
    coordinator_slabs_cut(1, 4, 1, 1024, coordinator_slab_partial_bytes(1, 3, 1024), &slabs);
    assert_int_equal(slabs.slab_kv_heads, 2);
    coordinator_slabs_at(&slabs, 1, &slab);
    assert_true(slab.kv_head == 2 && slab.kv_heads == 2 && slab.row == 0 && slab.rows == 1);
    // A single row of a single KV head is never cut, however large
    coordinator_slabs_cut(1, 1, 1024, 1024, COORDINATOR_SLAB_BYTES, &slabs);
    assert_int_equal(slabs.n, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_slab_has_the_bytes_of_a_packed_partial),
                                       cmocka_unit_test(every_shape), cmocka_unit_test(known_cuts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
