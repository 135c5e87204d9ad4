// SPDX-License-Identifier: Apache-2.0
// Layouts: sparse chunks in order, and coverage by prefix sums against the sum that anybody would write down.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "common/hash/coverage.h"
#include "common/hash/hash.h"
#include "coordinator/session/layout.h"

#define INDICES 40
#define TOKENS  16

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
    return common_mix64(++seed) % below;
}

static void check(struct coordinator_layout *layout, const uint64_t *ids)
{
    uint32_t n = 0, dense = 0;
    for (uint32_t i = 0; i < INDICES; i++) {
        struct coordinator_chunk *chunk = coordinator_layout_find(layout, i);
        assert_int_equal(chunk != NULL, ids[i] != 0);
        assert_int_equal(coordinator_layout_lower(layout, i), n);
        if (!chunk)
            continue;
        assert_int_equal(chunk->id, ids[i]);
        assert_int_equal(chunk->index, i);
        n++;
    }
    assert_int_equal(layout->n, n);
    while (dense < INDICES && ids[dense])
        dense++;
    for (int k = 0; k < 12; k++) {
        uint64_t visible = draw(INDICES * TOKENS + 1), tokens = 1, sum = 1, want = 0;
        bool placed = visible <= (uint64_t)dense * TOKENS;
        for (uint64_t at = 0; at < visible && placed; at += TOKENS)
            want += common_coverage_mix(ids[at / TOKENS], visible - at < TOKENS ? visible - at : TOKENS,
                                        layout->epoch);
        assert_int_equal(coordinator_layout_cover(layout, visible, &tokens, &sum), placed);
        if (placed) {
            assert_int_equal(tokens, visible);
            assert_true(sum == want);
        }
    }
}

static void same_as_an_array(void **state)
{
    (void)state;
    for (int round = 0; round < 100; round++) {
        struct coordinator_layout layout;
        uint64_t ids[INDICES] = {0}, next = 1;
        coordinator_layout_init(&layout, TOKENS, 1);
        for (int op = 0; op < 80; op++) {
            uint32_t index = (uint32_t)(round % 2 ? draw(INDICES) : draw(op / 2 + 1));
            uint64_t what = draw(10);
            if (what < 7) {
                struct coordinator_chunk chunk = {.id = next, .index = index};
                assert_non_null(coordinator_layout_put(&layout, &chunk));
                ids[index] = next++;
            } else if (what < 9) {
                coordinator_layout_remove(&layout, index);
                ids[index] = 0;
            } else {
                coordinator_layout_set_epoch(&layout, layout.epoch + 1);
            }
            check(&layout, ids);
        }
        coordinator_layout_fini(&layout);
    }
}

// What coverage is for: each of these must differ from the right layout.
static void what_is_wrong_shows(void **state)
{
    (void)state;
    struct coordinator_layout layout;
    coordinator_layout_init(&layout, TOKENS, 7);
    for (uint32_t i = 0; i < 4; i++) {
        struct coordinator_chunk chunk = {.id = 100 + i, .index = i};
        assert_non_null(coordinator_layout_put(&layout, &chunk));
    }
    uint64_t tokens, right, other;
    assert_true(coordinator_layout_cover(&layout, 60, &tokens, &right));
    uint64_t removed = right - common_coverage_mix(101, TOKENS, 7),
             doubled = right + common_coverage_mix(101, TOKENS, 7);
    uint64_t aged = removed + common_coverage_mix(101, TOKENS, 6),
             cut = removed + common_coverage_mix(101, TOKENS - 1, 7);
    assert_true(right != removed && right != doubled && right != aged && right != cut);
    assert_true(coordinator_layout_cover(&layout, 59, &tokens, &other) && other != right && tokens == 59);
    assert_true(coordinator_layout_cover(&layout, 0, &tokens, &other) && other == 0 && tokens == 0);
    coordinator_layout_set_epoch(&layout, 8);
    assert_true(coordinator_layout_cover(&layout, 60, &tokens, &other) && other != right);
    coordinator_layout_fini(&layout);
}

// Who serves comes first, the others keep their order, and what is known of each goes with it.
static void copies_are_struck_off(void **state)
{
    (void)state;
    struct coordinator_worker *a = (void *)1, *b = (void *)2, *c = (void *)3; // never looked into
    const struct coordinator_chunk all = {.holder = a,
                                          .followers = {b, c},
                                          .n_followers = 2,
                                          .heard = 1u << 1,
                                          .untold = 1u << 2,
                                          .gone = 1u << 0,
                                          .stamps = {10, 20, 30}};
    struct coordinator_chunk chunk = all;
    assert_int_equal(coordinator_chunk_copy_at(&chunk, c), 2);
    assert_true(coordinator_chunk_held_by(&chunk, b) && !coordinator_chunk_held_by(&chunk, a));
    coordinator_chunk_strike(&chunk, 1u << 0, 2);
    assert_true(chunk.holder == c && chunk.followers[0] == b && coordinator_chunk_copies(&chunk) == 2);
    assert_true(chunk.heard == 1u << 1 && chunk.untold == 1u << 0 && !chunk.gone);
    assert_true(chunk.stamps[0] == 30 && chunk.stamps[1] == 20);
    assert_int_equal(coordinator_chunk_copy_at(&chunk, a), COORDINATOR_COPIES_MAX);
    chunk = all;
    coordinator_chunk_strike(&chunk, 1u << 1, 0);
    assert_true(chunk.holder == a && chunk.followers[0] == c && chunk.n_followers == 1);
    assert_true(!chunk.heard && chunk.untold == 1u << 1 && chunk.gone == 1u << 0);
    chunk = all;
    coordinator_chunk_strike(&chunk, 1u << 0 | 1u << 2, 1);
    assert_true(chunk.holder == b && !chunk.n_followers && chunk.heard == 1 && chunk.stamps[0] == 20);
    chunk.lost = true;
    assert_false(coordinator_chunk_held_by(&chunk, b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_as_an_array),
                                       cmocka_unit_test(what_is_wrong_shows),
                                       cmocka_unit_test(copies_are_struck_off)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
