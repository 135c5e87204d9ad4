// SPDX-License-Identifier: Apache-2.0
// Golden plans, one change at a time, and what every plan promises.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/reduce/members.h"

static struct reduce_plan *make(const struct reduce_member *members, uint32_t n,
                                const struct reduce_cost *cost)
{
    struct reduce_plan *plan = NULL;
    struct common_error err = {0};
    if (reduce_plan_make(members, n, cost, &plan, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    return plan;
}

static void assert_drawn(const struct reduce_member *members, uint32_t n, const char *want)
{
    static char text[16384];
    struct reduce_plan *plan = make(members, n, &GOLDEN_COST);
    size_t len = reduce_plan_draw(plan, members, text, sizeof text);
    assert_true(len < sizeof text);
    assert_string_equal(text, want);
    reduce_plan_free(plan);
}

// ---- golden plans -------------------------------------------------------------------------------

static void test_golden_one_host(void **state)
{
    (void)state;
    struct reduce_member m[16];
    assert_drawn(m, members_fill(m, 1, 1, 8), "a0 @ a\n");
    assert_drawn(m, members_fill(m, 1, 2, 8),
                 "a0 @ a\n"
                 "└─ a1\n");
    assert_drawn(m, members_fill(m, 1, 4, 8),
                 "a0 @ a\n"
                 "├─ a1\n"
                 "├─ a2\n"
                 "└─ a3\n");
    assert_drawn(m, members_fill(m, 1, 5, 8),
                 "a0 @ a\n"
                 "├─ a1\n"
                 "├─ a2\n"
                 "├─ a3\n"
                 "└─ a4\n");
    assert_drawn(m, members_fill(m, 1, 8, 8),
                 "a0 @ a\n"
                 "├─ a1\n"
                 "├─ a2\n"
                 "├─ a3\n"
                 "├─ a4\n"
                 "├─ a5\n"
                 "├─ a6\n"
                 "└─ a7\n");
    // Twice as many: the root would send and merge for too long.
    assert_drawn(m, members_fill(m, 1, 16, 16),
                 "a0 @ a\n"
                 "├─ a1\n"
                 "│  ├─ a2\n"
                 "│  └─ a3\n"
                 "├─ a4\n"
                 "│  ├─ a5\n"
                 "│  ├─ a6\n"
                 "│  └─ a7\n"
                 "├─ a8\n"
                 "│  ├─ a9\n"
                 "│  ├─ aa\n"
                 "│  └─ ab\n"
                 "└─ ac\n"
                 "   ├─ ad\n"
                 "   ├─ ae\n"
                 "   └─ af\n");
}

static void test_golden_two_hosts(void **state)
{
    (void)state;
    struct reduce_member m[8];
    // One frame crosses, whatever the number of members behind it.
    assert_drawn(m, members_fill(m, 2, 4, 8),
                 "a0 @ a\n"
                 "├─ a1\n"
                 "├─ a2\n"
                 "├─ a3\n"
                 "└─ b0 @ b\n"
                 "   ├─ b1\n"
                 "   ├─ b2\n"
                 "   └─ b3\n");
}

static void test_golden_unequal_hosts(void **state)
{
    (void)state;
    struct reduce_member m[8];
    // a: one fast member; b: three of which two are slow; c: two fast ones, the most bandwidth: the root.
    member_set(&m[0], 0, 0, 30, 8);
    member_set(&m[1], 1, 0, 10, 8);
    member_set(&m[2], 1, 1, 5, 8);
    member_set(&m[3], 1, 2, 5, 8);
    member_set(&m[4], 2, 0, 30, 8);
    member_set(&m[5], 2, 1, 30, 8);
    assert_drawn(m, 6,
                 "c0 @ c\n"
                 "├─ c1\n"
                 "├─ a0 @ a\n"
                 "└─ b0 @ b\n"
                 "   ├─ b1\n"
                 "   └─ b2\n");
}

static void test_golden_many_hosts(void **state)
{
    (void)state;
    static struct reduce_member m[128];
    uint32_t n = members_fill(m, 16, 8, 8);
    struct reduce_cost cost = GOLDEN_COST;
    cost.remote_latency_ns = 1000; // a rack: cheap hops, so levels between hosts pay
    struct reduce_plan *plan = make(m, n, &cost);
    // Each host's leader in the tree between hosts; in each host a star of its other seven members.
    //     a ├b (├c └d) ├e (├f ├g └h) ├i (├j ├k └l) └m (├n ├o └p)
    const char *const parents[16] = {"",   "a0", "b0", "b0", "a0", "e0", "e0", "e0",
                                     "a0", "i0", "i0", "i0", "a0", "m0", "m0", "m0"};
    for (uint32_t r = 0; r < n; r++) {
        const struct reduce_member *member = &m[plan->nodes[r].member];
        int32_t parent = plan->nodes[r].parent;
        if (r == 0)
            assert_int_equal(parent, -1);
        else if (r % 8 == 0)
            assert_string_equal(m[plan->nodes[parent].member].name, parents[r / 8]);
        else
            assert_int_equal(parent, (int32_t)(r - r % 8));
        assert_int_equal(member->host[0], 'a' + (int)(r / 8));
    }
    assert_int_equal(plan->fan_out_hosts, 4);
    assert_int_equal(plan->fan_in_host, 7);
    reduce_plan_free(plan);
}

// ---- one change at a time -----------------------------------------------------------------------

struct fans {
    uint32_t in, out;
};

static struct fans fans_of(const struct reduce_member *m, uint32_t n, const struct reduce_cost *cost)
{
    struct reduce_plan *plan = make(m, n, cost);
    struct fans fans = {plan->fan_in_host, plan->fan_out_hosts};
    reduce_plan_free(plan);
    return fans;
}

// Changing one member of the cost and nothing else gives another tree.
#define ASSERT_CHANGES(m, n, field, value, in_before, out_before, in_after, out_after)                       \
    do {                                                                                                     \
        struct reduce_cost cost = GOLDEN_COST;                                                               \
        struct fans before = fans_of(m, n, &cost);                                                           \
        cost.field = value;                                                                                  \
        struct fans after = fans_of(m, n, &cost);                                                            \
        assert_int_equal(before.in, in_before);                                                              \
        assert_int_equal(before.out, out_before);                                                            \
        assert_int_equal(after.in, in_after);                                                                \
        assert_int_equal(after.out, out_after);                                                              \
    } while (0)

static void test_local_terms_change_the_tree(void **state)
{
    (void)state;
    struct reduce_member m[16];
    uint32_t n = members_fill(m, 1, 16, 16);
    ASSERT_CHANGES(m, n, local_latency_ns, 200000, 4, 0, 15, 0); // long hops: one level
    ASSERT_CHANGES(m, n, local_bandwidth, 3e8, 4, 0, 15, 0);     // slow edges: likewise
    ASSERT_CHANGES(m, n, query_bytes, 262144, 4, 0, 15, 0);      // long frames: likewise
    ASSERT_CHANGES(m, n, frame_cpu_ns, 500, 4, 0, 12, 0);        // cheap frames: more of them a rank
    ASSERT_CHANGES(m, n, merge_bandwidth, 1e8, 4, 0, REDUCE_FAN_BINOMIAL,
                   0); // slow merges: as parallel as can be
    n = members_fill(m, 1, 8, 8);
    ASSERT_CHANGES(m, n, partial_bytes, 262144, 7, 0, 5, 0); // long merges
}

static void test_remote_terms_change_the_tree(void **state)
{
    (void)state;
    static struct reduce_member m[64];
    uint32_t n = members_fill(m, 32, 1, 2);
    ASSERT_CHANGES(m, n, remote_latency_ns, 100000, 0, 6, 0, 31);
    ASSERT_CHANGES(m, n, remote_bandwidth, 1e8, 0, 6, 0, 31);
    ASSERT_CHANGES(m, n, frame_cpu_ns, 100000, 0, 6, 0, 8);
    ASSERT_CHANGES(m, n, merge_bandwidth, 1e8, 0, 6, 0, REDUCE_FAN_BINOMIAL);
    n = members_fill(m, 16, 1, 2);
    ASSERT_CHANGES(m, n, partial_bytes, 262144, 0, 15, 0, 12);
    ASSERT_CHANGES(m, n, query_bytes, 64, 0, 15, 0, 12);
    // Terms of the other level have no say.
    ASSERT_CHANGES(m, n, local_latency_ns, 200000, 0, 15, 0, 15);
    ASSERT_CHANGES(m, n, local_bandwidth, 3e8, 0, 15, 0, 15);
    // Compute is the same for every tree: it decides widths, not shapes.
    ASSERT_CHANGES(m, n, compute_fixed_ns, 1e6, 0, 15, 0, 15);
}

static void test_cores_change_the_tree(void **state)
{
    (void)state;
    struct reduce_member m[16];
    uint32_t n = members_fill(m, 1, 16, 16);
    assert_int_equal(fans_of(m, n, &GOLDEN_COST).in, 4);
    // With a core for every fourth member, subtrees do not work side by side.
    n = members_fill(m, 1, 16, 4);
    assert_int_equal(fans_of(m, n, &GOLDEN_COST).in, 5);
    // The host has what its best informed member reports.
    m[3].cores = 16;
    assert_int_equal(fans_of(m, n, &GOLDEN_COST).in, 4);
}

static void test_bandwidth_decides_the_root(void **state)
{
    (void)state;
    struct reduce_member m[8];
    uint32_t n = members_fill(m, 2, 4, 8);
    m[6].bandwidth++; // of host b
    struct reduce_plan *plan = make(m, n, &GOLDEN_COST);
    assert_string_equal(m[plan->nodes[0].member].name, "b0");
    reduce_plan_free(plan);
}

// ---- prediction, checked by hand ----------------------------------------------------------------

static void test_predict_by_hand(void **state)
{
    (void)state;
    struct reduce_member m[3];
    struct reduce_cost cost = {.local_latency_ns = 100,
                               .remote_latency_ns = 1000,
                               .local_bandwidth = 1e9, // a byte a nanosecond
                               .remote_bandwidth = 5e8,
                               .frame_cpu_ns = 10,
                               .merge_bandwidth = 2e9,
                               .compute_fixed_ns = 7,
                               .partial_bytes = 200,
                               .query_bytes = 50};
    uint32_t n = members_fill(m, 1, 2, 2);
    struct reduce_plan *plan = make(m, n, &cost);
    // send 10, edge 100 + 50, receive 10, send 10, edge 100 + 200, receive 10, merge 100
    assert_true(plan->predicted_ns == 590);
    assert_true(reduce_plan_predict(plan, m, &cost, NULL) == 590);
    // The leaf computes 1000 bytes at 20 GB/s: 50 + 7. The root's own 7 are over long before.
    assert_true(reduce_plan_predict(plan, m, &cost, (const uint64_t[]){0, 1000}) == 590 + 57);
    // The root computes until 10 + 7 + 1000; the answer was received before, so it only merges.
    assert_true(reduce_plan_predict(plan, m, &cost, (const uint64_t[]){20000, 0}) == 10 + 1007 + 100);
    reduce_plan_free(plan);

    // Two processes on one core compute half as fast each.
    n = members_fill(m, 1, 2, 1);
    plan = make(m, n, &cost);
    assert_true(plan->predicted_ns == 590); // they never work at the same time
    assert_true(reduce_plan_predict(plan, m, &cost, (const uint64_t[]){0, 1000}) == 590 + 114);
    reduce_plan_free(plan);

    // On two hosts: send 10, edge 1000 + 100, 10, 10, edge 1000 + 400, 10, merge 100.
    n = members_fill(m, 2, 1, 1);
    plan = make(m, n, &cost);
    assert_true(plan->predicted_ns == 2640);
    reduce_plan_free(plan);

    // A star of three on one core. The root holds the core until both frames are sent (20), though the first
    // would be with its child at 160: child 1 works 160..180, child 2 (frame there at 170) waits, 180..200;
    // answers at 480 and 500: root 480..590 (receive, merge), 590..700.
    n = members_fill(m, 1, 3, 1);
    plan = make(m, n, &cost);
    assert_int_equal(plan->fan_in_host, 2);
    assert_true(plan->predicted_ns == 700);
    reduce_plan_free(plan);
}

// ---- properties ---------------------------------------------------------------------------------

static void assert_sound(const struct reduce_plan *plan, uint32_t n)
{
    bool *seen = calloc(n, sizeof *seen);
    assert_non_null(seen);
    assert_int_equal(plan->n, n);
    assert_int_equal(plan->nodes[0].parent, -1);
    for (uint32_t r = 0; r < n; r++) {
        const struct reduce_node *node = &plan->nodes[r];
        assert_true(node->member < n);
        assert_false(seen[node->member]);
        seen[node->member] = true;
        uint32_t child = node->first_child, total = 1;
        for (uint32_t i = 0; i < node->n_children; i++) {
            assert_true(child > r && child < r + node->subtree);
            assert_int_equal(plan->nodes[child].parent, (int32_t)r);
            total += plan->nodes[child].subtree;
            child += plan->nodes[child].subtree;
        }
        assert_int_equal(total, node->subtree);
    }
    assert_int_equal(plan->nodes[0].subtree, n);
    free(seen);
}

static void shuffle(struct reduce_member *m, uint32_t n, unsigned *seed)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)rand_r(seed) % i;
        struct reduce_member t = m[i - 1];
        m[i - 1] = m[j];
        m[j] = t;
    }
}

static void test_random_clusters(void **state)
{
    (void)state;
    static struct reduce_member m[160], other[160];
    unsigned seed = 3;
    for (int round = 0; round < 100; round++) {
        uint32_t n = 0, hosts = 1 + (uint32_t)rand_r(&seed) % 16;
        for (uint32_t h = 0; h < hosts; h++) {
            uint32_t each = 1 + (uint32_t)rand_r(&seed) % 10;
            for (uint32_t i = 0; i < each; i++)
                member_set(&m[n++], h, i, 1 + (uint64_t)rand_r(&seed) % 3, 1 + (uint32_t)rand_r(&seed) % 12);
        }
        struct reduce_plan *plan = make(m, n, &GOLDEN_COST);
        assert_sound(plan, n);
        assert_true(plan->predicted_ns == reduce_plan_predict(plan, m, &GOLDEN_COST, NULL));

        // In any order: the same tree.
        memcpy(other, m, sizeof m);
        shuffle(other, n, &seed);
        struct reduce_plan *again = make(other, n, &GOLDEN_COST);
        assert_int_equal(again->digest, plan->digest);
        assert_true(again->predicted_ns == plan->predicted_ns);
        for (uint32_t r = 0; r < n; r++) {
            assert_int_equal(again->nodes[r].parent, plan->nodes[r].parent);
            assert_string_equal(other[again->nodes[r].member].name, m[plan->nodes[r].member].name);
        }
        reduce_plan_free(again);
        reduce_plan_free(plan);
    }
}

static bool is_edge(const struct reduce_plan *plan, uint32_t from, uint32_t to)
{
    for (uint32_t r = 1; r < plan->n; r++)
        if (plan->nodes[r].member == to && plan->nodes[plan->nodes[r].parent].member == from)
            return true;
    return false;
}

// One edge after another of a tree is down: as long as they are few, all can be avoided, in both directions.
static void test_edges_are_avoided(void **state)
{
    (void)state;
    static struct reduce_member m[160];
    unsigned seed = 5;
    for (int round = 0; round < 100; round++) {
        uint32_t n = 0, hosts = 1 + (uint32_t)rand_r(&seed) % 16, n_avoid = 0, left = 99;
        for (uint32_t h = 0; h < hosts; h++)
            for (uint32_t i = 0, each = 1 + (uint32_t)rand_r(&seed) % 10; i < each; i++)
                member_set(&m[n++], h, i, 1 + (uint64_t)rand_r(&seed) % 3, 1 + (uint32_t)rand_r(&seed) % 12);
        uint32_t most = n / 8 + 1; // of n (n - 1) edges
        struct reduce_avoid avoid[32];
        for (; n > 2 && n_avoid < most; n_avoid++) {
            struct reduce_plan *plan = make(m, n, &GOLDEN_COST), *before = make(m, n, &GOLDEN_COST);
            assert_int_equal(reduce_plan_avoid(plan, m, avoid, n_avoid, &left), COMMON_OK);
            assert_int_equal(left, 0);
            assert_sound(plan, n);
            for (uint32_t i = 0; i < n_avoid; i++)
                assert_false(is_edge(plan, avoid[i].from, avoid[i].to) ||
                             is_edge(plan, avoid[i].to, avoid[i].from));
            for (uint32_t r = 0; r < n; r++)
                assert_int_equal(plan->nodes[r].parent, before->nodes[r].parent); // the shape stays
            assert_true((plan->digest == before->digest) == (n_avoid == 0));
            uint32_t rank = 1 + (uint32_t)rand_r(&seed) % (n - 1);
            avoid[n_avoid].from = plan->nodes[plan->nodes[rank].parent].member;
            avoid[n_avoid].to = plan->nodes[rank].member;
            reduce_plan_free(before);
            reduce_plan_free(plan);
        }
    }
}

static void test_two_members_can_only_change_places(void **state)
{
    (void)state;
    struct reduce_member m[2];
    members_fill(m, 2, 1, 8);
    struct reduce_plan *plan = make(m, 2, &GOLDEN_COST);
    uint32_t root = plan->nodes[0].member, left;
    struct reduce_avoid both[2] = {{root, 1 - root}, {1 - root, root}};
    assert_int_equal(reduce_plan_avoid(plan, m, both, 1, &left), COMMON_OK);
    assert_int_equal(left, 0);
    assert_int_equal(plan->nodes[0].member, 1 - root);
    assert_int_equal(reduce_plan_avoid(plan, m, both, 2, &left), COMMON_OK);
    assert_int_equal(left, 1);
    reduce_plan_free(plan);
}

// In a plain way: whether there is a member from which all can be reached.
static bool has_tree(uint32_t n, const struct reduce_avoid *avoid, uint32_t n_avoid)
{
    for (uint32_t root = 0; root < n; root++) {
        uint32_t in = 1u << root;
        for (uint32_t pass = 0; pass < n; pass++)
            for (uint32_t from = 0; from < n; from++)
                for (uint32_t to = 0; to < n && in >> from & 1; to++) {
                    bool reaches = true;
                    for (uint32_t i = 0; i < n_avoid; i++)
                        reaches = reaches && (avoid[i].from != from || avoid[i].to != to);
                    in |= reaches ? 1u << to : 0;
                }
        if (in == (1u << n) - 1)
            return true;
    }
    return false;
}

static uint32_t used(const struct reduce_plan *plan, const struct reduce_avoid *avoid, uint32_t n)
{
    uint32_t edges = 0;
    for (uint32_t i = 0; i < n; i++)
        edges += is_edge(plan, avoid[i].from, avoid[i].to);
    return edges;
}

// No order of three members in a star avoids all of these, and a chain does.
static void test_a_shape_gives_way_to_edges_that_are_down(void **state)
{
    (void)state;
    struct reduce_member m[3];
    members_fill(m, 3, 1, 8);
    struct reduce_plan *plan = make(m, 3, &GOLDEN_COST);
    assert_int_equal(plan->nodes[0].n_children, 2);
    struct reduce_avoid avoid[] = {{0, 2}, {1, 2}, {2, 0}};
    uint64_t digest = plan->digest;
    uint32_t left = 99;
    assert_int_equal(reduce_plan_avoid(plan, m, avoid, 3, &left), COMMON_OK);
    assert_int_equal(left, 0);
    assert_sound(plan, 3);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(plan->nodes[r].member, 2 - r);
    assert_int_equal(plan->nodes[2].parent, 1);
    assert_true(plan->digest != digest);
    assert_non_null(strstr(plan->why, "3 edges"));
    reduce_plan_free(plan);
}

// Where there is a tree without the edges that are down, it is found.
static void test_a_tree_is_found_where_there_is_one(void **state)
{
    (void)state;
    unsigned seed = 11;
    uint32_t with = 0, without = 0;
    for (int round = 0; round < 20000; round++) {
        struct reduce_member m[7];
        uint32_t n = 2 + (uint32_t)rand_r(&seed) % 6, hosts = 1 + (uint32_t)rand_r(&seed) % n, left = 99;
        for (uint32_t i = 0; i < n; i++)
            member_set(&m[i], i % hosts, i, 1 + (uint64_t)rand_r(&seed) % 3, 1 + (uint32_t)rand_r(&seed) % 4);
        struct reduce_avoid avoid[24];
        uint32_t n_avoid = 1 + (uint32_t)rand_r(&seed) % 24;
        for (uint32_t i = 0; i < n_avoid; i++) { // many of them of the same pairs
            avoid[i].from = (uint32_t)rand_r(&seed) % n;
            avoid[i].to = (avoid[i].from + 1 + (uint32_t)rand_r(&seed) % (n - 1)) % n;
        }
        struct reduce_plan *plan = make(m, n, &GOLDEN_COST), *again = make(m, n, &GOLDEN_COST);
        assert_int_equal(reduce_plan_avoid(plan, m, avoid, n_avoid, &left), COMMON_OK);
        assert_sound(plan, n);
        bool has = has_tree(n, avoid, n_avoid);
        assert_int_equal(left == 0, has);
        assert_int_equal(used(plan, avoid, n_avoid) == 0, has);
        assert_int_equal(reduce_plan_avoid(again, m, avoid, n_avoid, &left), COMMON_OK);
        assert_int_equal(again->digest, plan->digest);
        with += has;
        without += !has;
        reduce_plan_free(plan);
        reduce_plan_free(again);
    }
    assert_true(with > 1000 && without > 1000);
}

static uint64_t digest_of(const struct reduce_member *m, uint32_t n, const struct reduce_cost *cost)
{
    struct reduce_plan *plan = make(m, n, cost);
    uint64_t digest = plan->digest;
    reduce_plan_free(plan);
    return digest;
}

static void test_digest_names_the_tree(void **state)
{
    (void)state;
    struct reduce_member m[16];
    uint32_t n = members_fill(m, 1, 16, 16);
    uint64_t digest = digest_of(m, n, &GOLDEN_COST);
    for (uint32_t i = 0; i < n; i++) {
        struct reduce_member saved = m[i];
        strcat(m[i].kernel, "2");
        assert_true(digest_of(m, n, &GOLDEN_COST) != digest);
        m[i] = saved;
        strcat(m[i].name, "x"); // the order of names stays
        assert_true(digest_of(m, n, &GOLDEN_COST) != digest);
        m[i] = saved;
    }
    // A letter that moves from one member's kernel to the next one's name.
    struct reduce_member pair[2];
    members_fill(pair, 1, 2, 2);
    strcpy(pair[0].name, "a"); // stays first
    strcpy(pair[0].kernel, "ka");
    strcpy(pair[1].name, "b");
    uint64_t before = digest_of(pair, 2, &GOLDEN_COST);
    strcpy(pair[0].kernel, "k");
    strcpy(pair[1].name, "ab");
    assert_true(digest_of(pair, 2, &GOLDEN_COST) != before);
    // And from a member's kernel to its own name.
    strcpy(pair[0].name, "a");
    strcpy(pair[0].kernel, "bc");
    before = digest_of(pair, 1, &GOLDEN_COST);
    strcpy(pair[0].name, "ab");
    strcpy(pair[0].kernel, "c");
    assert_true(digest_of(pair, 1, &GOLDEN_COST) != before);
    // Another tree over the same members.
    struct reduce_cost cost = GOLDEN_COST;
    cost.local_latency_ns = 200000;
    assert_true(digest_of(m, n, &cost) != digest);
    // What does not decide bits is not in it: speeds of members on one host.
    m[3].bandwidth *= 2;
    assert_true(digest_of(m, n, &GOLDEN_COST) == digest);
}

static void test_4096_members(void **state)
{
    (void)state;
    struct reduce_member *m = calloc(4096, sizeof *m);
    assert_non_null(m);
    const unsigned hosts[] = {1, 64, 512, 4096};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        struct reduce_plan *plan = make(m, members_fill(m, hosts[i], 4096 / hosts[i], 32), &GOLDEN_COST);
        assert_sound(plan, 4096);
        reduce_plan_free(plan);
    }
    free(m);
}

// The sum of a host's bandwidths stops at the largest number: the fastest host leads.
static void test_boundless_bandwidths(void **state)
{
    (void)state;
    struct reduce_member m[4];
    uint32_t n = members_fill(m, 2, 2, 8);
    m[2].bandwidth = m[3].bandwidth = UINT64_C(1) << 63;
    struct reduce_plan *plan = make(m, n, &GOLDEN_COST);
    assert_true(plan->nodes[0].member >= 2);
    reduce_plan_free(plan);
}

static void test_refusals(void **state)
{
    (void)state;
    struct reduce_member m[4];
    struct reduce_plan *plan = NULL;
    struct common_error err;
    uint32_t n = members_fill(m, 2, 2, 8);
    assert_int_equal(reduce_plan_make(m, 0, &GOLDEN_COST, &plan, &err), COMMON_INVALID_ARGUMENT);
    assert_int_equal(reduce_plan_make(m, 4097, &GOLDEN_COST, &plan, &err), COMMON_INVALID_ARGUMENT);
    strcpy(m[3].name, "a0"); // on another host
    assert_int_equal(reduce_plan_make(m, n, &GOLDEN_COST, &plan, &err), COMMON_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "have the same name"));
    n = members_fill(m, 2, 2, 8);
    m[1].name[0] = 0;
    assert_int_equal(reduce_plan_make(m, n, &GOLDEN_COST, &plan, NULL), COMMON_INVALID_ARGUMENT);
    n = members_fill(m, 2, 2, 8);
    memset(m[2].host, 'x', sizeof m[2].host);
    assert_int_equal(reduce_plan_make(m, n, &GOLDEN_COST, &plan, NULL), COMMON_INVALID_ARGUMENT);
    n = members_fill(m, 2, 2, 8);
    memset(m[2].kernel, 'x', sizeof m[2].kernel);
    assert_int_equal(reduce_plan_make(m, n, &GOLDEN_COST, &plan, NULL), COMMON_INVALID_ARGUMENT);
    n = members_fill(m, 2, 2, 0);
    assert_int_equal(reduce_plan_make(m, n, &GOLDEN_COST, &plan, NULL), COMMON_INVALID_ARGUMENT);
    n = members_fill(m, 2, 2, 8);
    m[0].bandwidth = 0;
    assert_int_equal(reduce_plan_make(m, n, &GOLDEN_COST, &plan, NULL), COMMON_INVALID_ARGUMENT);
    n = members_fill(m, 2, 2, 8);
    struct reduce_cost cost = GOLDEN_COST;
    cost.merge_bandwidth = 0;
    assert_int_equal(reduce_plan_make(m, n, &cost, &plan, NULL), COMMON_INVALID_ARGUMENT);
    cost = GOLDEN_COST;
    cost.frame_cpu_ns = NAN;
    assert_int_equal(reduce_plan_make(m, n, &cost, &plan, NULL), COMMON_INVALID_ARGUMENT);
    assert_null(plan);
    reduce_plan_free(NULL);
}

static void test_draw_is_bounded(void **state)
{
    (void)state;
    struct reduce_member m[4];
    struct reduce_plan *plan = make(m, members_fill(m, 1, 4, 8), &GOLDEN_COST);
    char whole[256], part[12];
    size_t len = reduce_plan_draw(plan, m, whole, sizeof whole);
    assert_int_equal(len, strlen(whole));
    assert_int_equal(reduce_plan_draw(plan, m, NULL, 0), len);
    assert_int_equal(reduce_plan_draw(plan, m, part, sizeof part), len);
    assert_int_equal(part[sizeof part - 1], 0);
    assert_memory_equal(part, whole, sizeof part - 1);
    reduce_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_one_host),
        cmocka_unit_test(test_golden_two_hosts),
        cmocka_unit_test(test_golden_unequal_hosts),
        cmocka_unit_test(test_golden_many_hosts),
        cmocka_unit_test(test_local_terms_change_the_tree),
        cmocka_unit_test(test_remote_terms_change_the_tree),
        cmocka_unit_test(test_cores_change_the_tree),
        cmocka_unit_test(test_bandwidth_decides_the_root),
        cmocka_unit_test(test_predict_by_hand),
        cmocka_unit_test(test_random_clusters),
        cmocka_unit_test(test_digest_names_the_tree),
        cmocka_unit_test(test_4096_members),
        cmocka_unit_test(test_boundless_bandwidths),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_draw_is_bounded),
        cmocka_unit_test(test_edges_are_avoided),
        cmocka_unit_test(test_a_shape_gives_way_to_edges_that_are_down),
        cmocka_unit_test(test_a_tree_is_found_where_there_is_one),
        cmocka_unit_test(test_two_members_can_only_change_places),
    };
    return cmocka_run_group_tests_name("reduce/plan", tests, NULL, NULL);
}
