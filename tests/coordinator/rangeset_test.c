// SPDX-License-Identifier: Apache-2.0
// Range sets against the naive thing: a bit for each position.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"
#include "coordinator/session/rangeset.h"

#define POSITIONS 200

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
    return common_mix64(++seed) % below;
}

static void check(const struct coordinator_rangeset *set, const bool *bits)
{
    uint64_t count = 0, length = 0, end = 0;
    for (uint64_t p = 0; p < POSITIONS; p++) {
        assert_int_equal(coordinator_rangeset_contains(set, p, 1), bits[p]);
        assert_int_equal(coordinator_rangeset_intersects(set, p, 1), bits[p]);
        count += bits[p];
        length = bits[p] && length == p ? p + 1 : length;
        end = bits[p] ? p + 1 : end;
    }
    assert_int_equal(coordinator_rangeset_count(set), count);
    assert_int_equal(coordinator_rangeset_length(set), length);
    assert_int_equal(coordinator_rangeset_end(set), end);
    for (uint32_t i = 1; i < set->n; i++) // ascending, and never touching
        assert_true(set->ranges[i].first > set->ranges[i - 1].first + set->ranges[i - 1].count);
}

static void check_queries(const struct coordinator_rangeset *set, const bool *bits)
{
    uint64_t first = draw(POSITIONS - 1), n = 1 + draw(POSITIONS - first - 1), have = 0, holes = 0;
    bool with[POSITIONS];
    memcpy(with, bits, sizeof(with));
    for (uint64_t p = first; p < first + n; p++) {
        have += bits[p];
        holes += !bits[p] && (p == first || bits[p - 1]);
        with[p] = true;
    }
    assert_int_equal(coordinator_rangeset_overlap(set, first, n), have);
    assert_int_equal(coordinator_rangeset_contains(set, first, n), have == n);
    assert_int_equal(coordinator_rangeset_intersects(set, first, n), have > 0);
    uint64_t length = 0;
    while (length < POSITIONS && with[length])
        length++;
    assert_int_equal(coordinator_rangeset_length_with(set, first, n), length);
    struct proto_range out[POSITIONS];
    assert_int_equal(coordinator_rangeset_missing(set, first, n, out, POSITIONS), holes);
    uint64_t missing = 0;
    for (uint64_t i = 0; i < holes; i++) {
        for (uint64_t p = out[i].first; p < out[i].first + out[i].count; p++)
            assert_false(bits[p]);
        missing += out[i].count;
    }
    assert_int_equal(missing, n - have);
    assert_int_equal(coordinator_rangeset_missing(set, first, n, out, 0),
                     holes); // counts what it does not write
}

static void same_as_bits(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct coordinator_rangeset set = {0};
        bool bits[POSITIONS] = {false};
        for (int op = 0; op < 30; op++) {
            uint64_t first = draw(POSITIONS - 1), n = 1 + draw(op % 3 ? 8 : POSITIONS - first - 1);
            n = first + n > POSITIONS ? POSITIONS - first : n;
            if (draw(8)) {
                struct proto_range merged;
                assert_true(coordinator_rangeset_add(&set, first, n, &merged));
                memset(bits + first, true, n);
                assert_true(merged.first <= first && merged.first + merged.count >= first + n);
                assert_true(coordinator_rangeset_contains(&set, merged.first, merged.count));
            } else {
                coordinator_rangeset_clip(&set, first);
                memset(bits + first, false, POSITIONS - first);
            }
            check(&set, bits);
            check_queries(&set, bits);
        }
        coordinator_rangeset_free(&set);
    }
}

static void a_full_set_refuses(void **state)
{
    (void)state;
    struct coordinator_rangeset set = {0};
    for (uint64_t i = 0; i < COORDINATOR_RANGES_MAX; i++)
        assert_true(coordinator_rangeset_add(&set, i * 2, 1, NULL));
    assert_false(coordinator_rangeset_add(&set, COORDINATOR_RANGES_MAX * 2 + 5, 1, NULL));
    assert_int_equal(set.n, COORDINATOR_RANGES_MAX);
    assert_true(coordinator_rangeset_add(&set, 1, 1, NULL)); // fills a hole: one range fewer
    assert_int_equal(set.n, COORDINATOR_RANGES_MAX - 1);
    coordinator_rangeset_free(&set);
}

static void room_is_kept(void **state)
{
    (void)state;
    struct coordinator_rangeset set = {0};
    uint64_t first = 7, count = 3;
    assert_false(coordinator_rangeset_join(&set, &first, &count));
    for (uint64_t i = 1; i < COORDINATOR_RANGES_MAX - 1; i++)
        assert_true(coordinator_rangeset_add(&set, i * 10, 2, NULL));
    assert_true(coordinator_rangeset_room(&set, 5, 1));
    assert_true(coordinator_rangeset_reserve(&set)); // another one is on its way
    assert_false(coordinator_rangeset_room(&set, 5, 1));
    assert_true(coordinator_rangeset_room(&set, 0, 1)); // the one that starts the set
    assert_true(coordinator_rangeset_room(&set, 9, 1)); // touches
    assert_true(coordinator_rangeset_room(&set, 12, 1));
    assert_false(coordinator_rangeset_room(&set, 8, 1));
    assert_false(coordinator_rangeset_room(&set, 13, 6));
    assert_true(coordinator_rangeset_reserve(&set));
    assert_false(coordinator_rangeset_room(&set, 0, 1));
    first = 12, count = 8; // between two: all three
    assert_true(coordinator_rangeset_join(&set, &first, &count));
    assert_true(first == 10 && count == 12);
    first = 9, count = 23; // over several
    assert_true(coordinator_rangeset_join(&set, &first, &count));
    assert_true(first == 9 && count == 23);
    for (uint64_t i = 0; i < COORDINATOR_RANGES_MAX; i++) // what a file holds is taken, whatever it is
        assert_true(coordinator_rangeset_load(&set, 200000 + i * 10, 2));
    assert_int_equal(set.n, 2 * COORDINATOR_RANGES_MAX - 2);
    assert_false(coordinator_rangeset_add(&set, 5, 1, NULL));
    coordinator_rangeset_free(&set);
}

// What is reserved has its memory, whatever is added meanwhile: to keep it takes none.
static void what_is_reserved_has_its_place(void **state)
{
    (void)state;
    for (uint32_t reserved = 1; reserved <= 70; reserved++) {
        struct coordinator_rangeset set = {0};
        for (uint32_t i = 0; i < reserved; i++)
            assert_true(coordinator_rangeset_reserve(&set));
        for (uint32_t i = 0; i < 40; i++)
            assert_true(coordinator_rangeset_add(&set, 1000 + i * 2, 1, NULL));
        const struct proto_range *where = set.ranges;
        uint32_t cap = set.cap;
        assert_true(cap >= 40 + reserved);
        coordinator_rangeset_unreserve(&set);
        for (uint32_t i = 1; i < reserved; i++)
            coordinator_rangeset_keep(&set, i * 2, 1);
        assert_true(set.ranges == where && set.cap == cap);
        assert_int_equal(set.n, 40 + reserved - 1);
        assert_int_equal(set.pending, 0);
        coordinator_rangeset_free(&set);
    }
}

static void what_follows_a_position(void **state)
{
    (void)state;
    struct coordinator_rangeset set = {0};
    struct proto_range range;
    assert_false(coordinator_rangeset_next(&set, 0, &range));
    assert_true(coordinator_rangeset_add(&set, 2, 3, NULL));
    assert_true(coordinator_rangeset_add(&set, 7, 1, NULL));
    static const struct {
        uint64_t from, first, count;
    } want[] = {{0, 2, 3}, {2, 2, 3}, {4, 4, 1}, {5, 7, 1}, {7, 7, 1}};
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        assert_true(coordinator_rangeset_next(&set, want[i].from, &range));
        assert_int_equal(range.first, want[i].first);
        assert_int_equal(range.count, want[i].count);
    }
    assert_false(coordinator_rangeset_next(&set, 8, &range));
    coordinator_rangeset_free(&set);
}

static void far_positions(void **state)
{
    (void)state;
    struct coordinator_rangeset set = {0};
    uint64_t far = UINT64_C(1) << 60;
    assert_true(coordinator_rangeset_add(&set, far, 10, NULL));
    assert_int_equal(coordinator_rangeset_length(&set), 0);
    assert_int_equal(coordinator_rangeset_end(&set), far + 10);
    assert_true(coordinator_rangeset_contains(&set, far + 9, 1));
    assert_false(coordinator_rangeset_contains(&set, far + 9, 2));
    assert_true(coordinator_rangeset_contains(&set, 5, 0)); // nothing is everywhere
    coordinator_rangeset_free(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_bits),
        cmocka_unit_test(a_full_set_refuses),
        cmocka_unit_test(room_is_kept),
        cmocka_unit_test(what_is_reserved_has_its_place),
        cmocka_unit_test(what_follows_a_position),
        cmocka_unit_test(far_positions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
