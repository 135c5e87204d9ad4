// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "reduce/topology.h"

static void assert_fill(uint32_t n, uint32_t fan, const uint32_t *want)
{
    uint32_t got[64];
    reduce_topology_fill(n, fan, got);
    for (uint32_t r = 0; r < n; r++)
        assert_int_equal(got[r], want[r]);
}

static void test_shapes_as_drawn(void **state)
{
    (void)state;
    // 0─1─2─3
    assert_fill(4, 1, (const uint32_t[]){4, 3, 2, 1});
    // 0 ├1 ├2 └3
    assert_fill(4, 3, (const uint32_t[]){4, 1, 1, 1});
    assert_fill(4, 100, (const uint32_t[]){4, 1, 1, 1});
    // 0 ├1 (├2 └3) └4 (├5 └6 └7): the larger half last
    assert_fill(8, 2, (const uint32_t[]){8, 3, 1, 1, 4, 1, 2, 1});
    // 0 ├1 ├2─3 └4 (├5 └6─7)
    assert_fill(8, REDUCE_FAN_BINOMIAL, (const uint32_t[]){8, 1, 2, 1, 4, 1, 2, 1});
    assert_fill(1, 1, (const uint32_t[]){1});
    assert_fill(1, REDUCE_FAN_BINOMIAL, (const uint32_t[]){1});
}

// Walks nodes and checks all that a pre-order tree promises.
static void assert_tree(const struct reduce_node *nodes, uint32_t n)
{
    assert_int_equal(nodes[0].parent, -1);
    assert_int_equal(nodes[0].subtree, n);
    uint32_t edges = 0;
    for (uint32_t r = 0; r < n; r++) {
        uint32_t child = nodes[r].first_child;
        if (nodes[r].n_children > 0)
            assert_int_equal(child, r + 1);
        uint32_t total = 1;
        for (uint32_t i = 0; i < nodes[r].n_children; i++) {
            assert_true(child < n);
            assert_int_equal(nodes[child].parent, (int32_t)r);
            total += nodes[child].subtree;
            child = reduce_topology_next(nodes, child);
            edges++;
        }
        assert_int_equal(nodes[r].subtree, total);
    }
    assert_int_equal(edges, n - 1);
}

static void test_every_size_and_fan_is_a_tree(void **state)
{
    (void)state;
    const uint32_t fans[] = {1, 2, 3, 5, 7, 16, 63, REDUCE_FAN_BINOMIAL};
    struct reduce_node nodes[64];
    uint32_t scratch[128];
    for (uint32_t n = 1; n <= 64; n++) {
        for (size_t f = 0; f < sizeof fans / sizeof *fans; f++) {
            reduce_topology_join(1, &n, fans[f], 1, nodes, scratch);
            assert_tree(nodes, n);
            for (uint32_t r = 0; r < n; r++)
                assert_true(nodes[r].n_children <= fans[f]);
            uint32_t ones[64];
            for (uint32_t h = 0; h < n; h++)
                ones[h] = 1;
            reduce_topology_join(n, ones, 1, fans[f], nodes, scratch);
            assert_tree(nodes, n);
        }
    }
}

static void test_hosts_are_joined_by_their_leaders(void **state)
{
    (void)state;
    const uint32_t sizes[] = {3, 2, 3, 1};
    struct reduce_node nodes[9];
    uint32_t scratch[7];
    reduce_topology_join(4, sizes, 2, 2, nodes, scratch);
    assert_tree(nodes, 9);
    // The picture in topology.c: A0 A1 A2 B0 B1 C0 C1 C2 D0
    const int32_t parents[] = {-1, 0, 0, 0, 3, 0, 5, 5, 5};
    for (uint32_t r = 0; r < 9; r++)
        assert_int_equal(nodes[r].parent, parents[r]);
}

static void test_joined_trees_are_trees(void **state)
{
    (void)state;
    struct reduce_node nodes[200];
    uint32_t scratch[200], sizes[20];
    unsigned seed = 7;
    for (int round = 0; round < 500; round++) {
        uint32_t n_hosts = 1 + (uint32_t)rand_r(&seed) % 20, n = 0;
        for (uint32_t h = 0; h < n_hosts; h++)
            n += sizes[h] = 1 + (uint32_t)rand_r(&seed) % 10;
        uint32_t in = 1 + (uint32_t)rand_r(&seed) % 6, out = 1 + (uint32_t)rand_r(&seed) % 6;
        reduce_topology_join(n_hosts, sizes, in == 6 ? REDUCE_FAN_BINOMIAL : in,
                             out == 6 ? REDUCE_FAN_BINOMIAL : out, nodes, scratch);
        assert_tree(nodes, n);
        // Only leaders have parents elsewhere.
        uint32_t first = 0;
        for (uint32_t h = 0; h < n_hosts; first += sizes[h++]) {
            for (uint32_t r = first + 1; r < first + sizes[h]; r++)
                assert_true(nodes[r].parent >= (int32_t)first);
        }
    }
}

static void test_heights_and_order_of_sending(void **state)
{
    (void)state;
    //  0 ├1 ├2─3 ├4 └5─6─7
    const int32_t parents[] = {-1, 0, 0, 2, 0, 0, 5, 6};
    const uint32_t want[] = {3, 0, 1, 0, 0, 2, 1, 0};
    uint32_t heights[8], order[4];
    reduce_topology_heights(parents, 8, heights);
    assert_memory_equal(heights, want, sizeof want);
    const uint32_t children[] = {1, 2, 4, 5};
    reduce_topology_send_order(children, 4, heights, order);
    const uint32_t sent[] = {3, 1, 0, 2}; // deepest first, equals by rank
    assert_memory_equal(order, sent, sizeof sent);
    reduce_topology_send_order(children, 0, heights, order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes_as_drawn),
        cmocka_unit_test(test_every_size_and_fan_is_a_tree),
        cmocka_unit_test(test_hosts_are_joined_by_their_leaders),
        cmocka_unit_test(test_joined_trees_are_trees),
        cmocka_unit_test(test_heights_and_order_of_sending),
    };
    return cmocka_run_group_tests_name("reduce/topology", tests, NULL, NULL);
}
