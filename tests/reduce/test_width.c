// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "tests/reduce/members.h"

#define KIB UINT64_C(1024)
#define GIB (KIB * KIB * KIB)

static void test_one_chunk_stays_on_one_member(void **state)
{
    (void)state;
    static struct reduce_member m[64];
    struct reduce_cost cost;
    // 256 tokens of K and V in bfloat16: 2 heads of 64, and 8 heads of 128 where the next member is on
    // another host.
    reduce_cost_default(&cost, 8, 64, 64, 1);
    assert_int_equal(reduce_plan_width(m, members_fill(m, 1, 4, 8), &cost, 256 * 2 * 64 * 2 * 2), 1);
    assert_int_equal(reduce_plan_width(m, members_fill(m, 16, 4, 8), &cost, 256 * 2 * 64 * 2 * 2), 1);
    reduce_cost_default(&cost, 32, 128, 128, 1);
    assert_int_equal(reduce_plan_width(m, members_fill(m, 16, 1, 8), &cost, 256 * 8 * 128 * 2 * 2), 1);
}

static void test_large_sessions_take_all(void **state)
{
    (void)state;
    static struct reduce_member m[128];
    struct reduce_cost cost;
    reduce_cost_default(&cost, 32, 128, 128, 1);
    assert_int_equal(reduce_plan_width(m, members_fill(m, 1, 4, 8), &cost, GIB), 4);
    assert_int_equal(reduce_plan_width(m, members_fill(m, 16, 8, 8), &cost, 16 * GIB), 128);
}

static void test_never_falls_with_size(void **state)
{
    (void)state;
    static struct reduce_member m[160];
    unsigned seed = 11;
    for (int round = 0; round < 40; round++) {
        uint32_t n = 0, hosts = 1 + (uint32_t)rand_r(&seed) % 8;
        for (uint32_t h = 0; h < hosts; h++) {
            uint32_t each = 1 + (uint32_t)rand_r(&seed) % 8, cores = 1 + (uint32_t)rand_r(&seed) % 8;
            for (uint32_t i = 0; i < each; i++)
                member_set(&m[n++], h, i, UINT64_C(1000000000) * (1 + (uint64_t)rand_r(&seed) % 20), cores);
        }
        struct reduce_widths *widths = NULL;
        assert_int_equal(reduce_widths_make(m, n, &GOLDEN_COST, &widths, NULL), COMMON_OK);
        uint32_t before = 1;
        assert_int_equal(reduce_widths_best(widths, 0), 1);
        for (uint64_t bytes = KIB; bytes < 64 * GIB; bytes += bytes / 3) {
            uint32_t width = reduce_widths_best(widths, bytes);
            assert_true(width >= before && width <= n);
            before = width;
        }
        assert_int_equal(reduce_plan_width(m, n, &GOLDEN_COST, 5000 * KIB),
                         reduce_widths_best(widths, 5000 * KIB));
        reduce_widths_free(widths);
    }
}

// Members that share two cores compute no more than two of them: wider costs and brings nothing.
static void test_shared_cores_bound_the_width(void **state)
{
    (void)state;
    struct reduce_member m[8];
    assert_int_equal(reduce_plan_width(m, members_fill(m, 1, 4, 2), &GOLDEN_COST, GIB), 2);
    assert_int_equal(reduce_plan_width(m, members_fill(m, 2, 4, 2), &GOLDEN_COST, GIB), 4);
}

// Each term of the cost that widths can feel, changed alone.
static void test_terms_change_the_width(void **state)
{
    (void)state;
    struct reduce_member m[16];
    uint32_t n = members_fill(m, 4, 4, 2); // two cores for four members
    const uint64_t bytes = 64 * KIB * KIB;
    uint32_t before = reduce_plan_width(m, n, &GOLDEN_COST, bytes);
#define ASSERT_WIDTH(field, value, relation)                                                                 \
    do {                                                                                                     \
        struct reduce_cost cost = GOLDEN_COST;                                                               \
        cost.field = value;                                                                                  \
        assert_true(reduce_plan_width(m, n, &cost, bytes) relation before);                                  \
    } while (0)
    ASSERT_WIDTH(remote_latency_ns, 1e7, <);
    ASSERT_WIDTH(remote_bandwidth, 1e6, <);
    ASSERT_WIDTH(local_latency_ns, 1e7, <);
    ASSERT_WIDTH(local_bandwidth, 1e6, <);
    ASSERT_WIDTH(frame_cpu_ns, 1e7, <);
    ASSERT_WIDTH(merge_bandwidth, 1e6, <);
    ASSERT_WIDTH(partial_bytes, 64 * KIB * KIB, <);
    ASSERT_WIDTH(query_bytes, 64 * KIB * KIB, <);
    ASSERT_WIDTH(compute_fixed_ns, 1e9, ==); // as long with one member as with many
}

static void test_fastest(void **state)
{
    (void)state;
    struct reduce_member m[5];
    uint32_t order[5];
    member_set(&m[0], 1, 0, 10, 4); // b0
    member_set(&m[1], 0, 1, 10, 4); // a1
    member_set(&m[2], 2, 0, 30, 4); // c0
    member_set(&m[3], 0, 0, 10, 4); // a0
    member_set(&m[4], 1, 1, 20, 4); // b1
    assert_int_equal(reduce_plan_fastest(m, 5, order, NULL), COMMON_OK);
    // Host b has as much as c; among members of 10 it comes before a, and a0 before a1.
    const uint32_t want[] = {2, 4, 0, 3, 1};
    assert_memory_equal(order, want, sizeof want);
    m[0].cores = m[4].cores = 1; // b1 has the core, b0 would have to share it
    assert_int_equal(reduce_plan_fastest(m, 5, order, NULL), COMMON_OK);
    const uint32_t shared[] = {2, 4, 3, 1, 0};
    assert_memory_equal(order, shared, sizeof shared);
    m[1] = m[0];
    assert_int_equal(reduce_plan_fastest(m, 5, order, NULL), COMMON_INVALID_ARGUMENT);
    assert_int_equal(reduce_plan_width(m, 5, &GOLDEN_COST, 1), 5); // refused members: all
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_chunk_stays_on_one_member),
        cmocka_unit_test(test_large_sessions_take_all),
        cmocka_unit_test(test_never_falls_with_size),
        cmocka_unit_test(test_shared_cores_bound_the_width),
        cmocka_unit_test(test_terms_change_the_width),
        cmocka_unit_test(test_fastest),
    };
    return cmocka_run_group_tests_name("reduce/width", tests, NULL, NULL);
}
