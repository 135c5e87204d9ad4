// SPDX-License-Identifier: Apache-2.0
#include "client/lib/steps/split.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct client_split_limits limits = {.rows = 10, .items = 4, .bytes = 1000};

// What every split must hold: each row once and in order, loads within the limits and without gaps.
static void check(const struct client_split_item *items, size_t n, const struct client_split *split)
{
    size_t item = 0, piece = 0;
    uint32_t row = 0;
    for (size_t b = 0; b < split->n_loads; b++) {
        uint64_t in = 0, out = 0, rows = 0;
        assert_int_equal(split->loads[b].first, piece);
        assert_in_range(split->loads[b].count, 1, limits.items);
        for (size_t i = 0; i < split->loads[b].count; i++, piece++) {
            const struct client_piece *p = &split->pieces[piece];
            while (item < n && row == items[item].rows) {
                item++;
                row = 0;
            }
            assert_int_equal(p->item, item);
            assert_int_equal(p->row, row);
            assert_in_range(p->rows, 1, limits.rows);
            row += p->rows;
            rows += p->rows;
            in += p->rows * items[item].in_row;
            out += p->rows * items[item].out_row;
        }
        if (rows > 1) {
            assert_in_range(in, 0, limits.bytes);
            assert_in_range(out, 0, limits.bytes);
        }
    }
    assert_int_equal(piece, split->n_pieces);
    while (item < n && row == items[item].rows) {
        item++;
        row = 0;
    }
    assert_int_equal(item, n);
}

static void split_one(const struct client_split_item *items, size_t n, size_t pieces, size_t loads)
{
    struct client_split split;
    assert_true(client_split_make(items, n, &limits, &split));
    check(items, n, &split);
    assert_int_equal(split.n_pieces, pieces);
    assert_int_equal(split.n_loads, loads);
    client_split_free(&split);
}

static void test_small_calls_are_one_rpc(void **state)
{
    (void)state;
    split_one((struct client_split_item[]){{1, 100, 100}}, 1, 1, 1);
    split_one((struct client_split_item[]){{1, 100, 100}, {2, 50, 10}, {3, 1, 1}}, 3, 3, 1);
    split_one((struct client_split_item[]){{10, 100, 100}}, 1, 1, 1);
}

static void test_nothing_to_send(void **state)
{
    (void)state;
    split_one((struct client_split_item[]){{0, 100, 100}, {0, 0, 0}}, 2, 0, 0);
    split_one(NULL, 0, 0, 0);
}

static void test_items_left_out_between(void **state)
{
    (void)state;
    split_one((struct client_split_item[]){{0, 1, 1}, {1, 1, 1}, {0, 1, 1}, {2, 1, 1}, {0, 1, 1}}, 5, 2, 1);
}

static void test_count_limit(void **state)
{
    (void)state;
    struct client_split_item items[9];
    for (int i = 0; i < 9; i++)
        items[i] = (struct client_split_item){1, 1, 1};
    split_one(items, 9, 9, 3);
}

static void test_row_limit(void **state)
{
    (void)state;
    split_one((struct client_split_item[]){{25, 1, 1}}, 1, 3, 1);
    split_one((struct client_split_item[]){{UINT32_C(100000), 0, 0}}, 1, 10000, 2500);
}

static void test_byte_limit_of_request_and_reply(void **state)
{
    (void)state;
    split_one((struct client_split_item[]){{10, 300, 1}}, 1, 4, 4); // 3 rows a piece
    split_one((struct client_split_item[]){{10, 1, 300}}, 1, 4, 4);
    split_one((struct client_split_item[]){{2, 300, 1}, {2, 300, 1}}, 2, 2,
              2); // the second is not cut to fill up
    split_one((struct client_split_item[]){{1, UINT64_C(1) << 32, 1}, {1, 1, 1}}, 2, 2,
              2); // a row is never cut
}

static void test_random(void **state)
{
    (void)state;
    srand(7);
    for (int round = 0; round < 2000; round++) {
        struct client_split_item items[20];
        size_t n = (size_t)rand() % 20;
        for (size_t i = 0; i < n; i++)
            items[i] = (struct client_split_item){(uint32_t)rand() % 40, (uint64_t)rand() % 600,
                                                  (uint64_t)rand() % 600};
        struct client_split split;
        assert_true(client_split_make(items, n, &limits, &split));
        check(items, n, &split);
        client_split_free(&split);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_calls_are_one_rpc),
        cmocka_unit_test(test_nothing_to_send),
        cmocka_unit_test(test_items_left_out_between),
        cmocka_unit_test(test_count_limit),
        cmocka_unit_test(test_row_limit),
        cmocka_unit_test(test_byte_limit_of_request_and_reply),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
