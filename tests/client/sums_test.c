// SPDX-License-Identifier: Apache-2.0
// Which stretches a session's handle has the sums of, against a model of single rows.
#include "client/lib/core/sums.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash/hash.h"

enum { LAYERS = 3, ROWS = 64, ROUNDS = 20000 };

struct row { // which stretch it is of; 0: none is known
    uint32_t stretch;
    uint64_t first, count, sum;
};

static uint64_t draw(uint64_t *seed, uint64_t n)
{
    return (*seed = common_mix64(*seed)) % n;
}

static void forget(struct row *rows, uint64_t first, uint64_t end)
{
    for (uint64_t i = first; i < end && i < ROWS; i++) {
        uint32_t gone = rows[i].stretch;
        for (uint64_t k = 0; gone && k < ROWS; k++)
            if (rows[k].stretch == gone)
                rows[k].stretch = 0;
    }
}

static bool sum_of(const struct row *rows, uint64_t first, uint64_t count, uint64_t *out)
{
    *out = 0;
    for (uint64_t at = first; at < first + count; at += rows[at].count) {
        if (!rows[at].stretch || rows[at].first != at || at + rows[at].count > first + count)
            return false;
        *out += rows[at].sum;
    }
    return true;
}

static void test_against_rows(void **state)
{
    (void)state;
    struct client_sums sums;
    static struct row rows[LAYERS][ROWS];
    uint64_t seed = 7, known = 0, unknown = 0;
    client_sums_init(&sums, LAYERS);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        uint32_t layer = (uint32_t)draw(&seed, LAYERS);
        uint64_t first = draw(&seed, ROWS), count = 1 + draw(&seed, draw(&seed, 2) ? 4 : ROWS - first);
        count = count < ROWS - first ? count : ROWS - first;
        switch (draw(&seed, 12)) {
        case 0:
            forget(rows[layer], first, first + count);
            client_sums_forget(&sums, layer, first, count);
            break;
        case 1:
            if (draw(&seed, 4))
                break;
            for (uint32_t l = 0; l < LAYERS; l++)
                forget(rows[l], first, ROWS);
            client_sums_truncate(&sums, first);
            break;
        default: {
            struct client_sum sum = {first, count, common_mix64(round)};
            forget(rows[layer], first, first + count);
            for (uint64_t i = first; i < first + count; i++)
                rows[layer][i] = (struct row){round, first, count, sum.sum};
            client_sums_keep(&sums, layer, sum);
        }
        }
        for (uint32_t ask = 0; ask < 4; ask++) {
            uint64_t want, got = 0, from = draw(&seed, ROWS), n = 1 + draw(&seed, ROWS - from);
            bool there = sum_of(rows[layer], from, n, &want);
            assert_int_equal(client_sums_of(&sums, layer, from, n, &got), there);
            assert_true(got == (there ? want : 0));
            known += there;
            unknown += !there;
        }
    }
    assert_true(known > ROUNDS / 100 && unknown > ROUNDS);
    client_sums_fini(&sums);
}

// No more than there may be: what comes then is not known, and the others are.
static void test_limit(void **state)
{
    (void)state;
    struct client_sums sums;
    uint64_t sum;
    client_sums_init(&sums, 1);
    for (uint64_t i = 0; i <= CLIENT_SUMS_MAX; i++)
        client_sums_keep(&sums, 0, (struct client_sum){i, 1, i});
    assert_true(client_sums_of(&sums, 0, CLIENT_SUMS_MAX - 2, 2, &sum));
    assert_int_equal(sum, 2 * CLIENT_SUMS_MAX - 3);
    assert_false(client_sums_of(&sums, 0, CLIENT_SUMS_MAX - 1, 2, &sum));
    client_sums_forget(&sums, 0, 0, 1);
    client_sums_keep(&sums, 0, (struct client_sum){CLIENT_SUMS_MAX, 1, 9});
    assert_true(client_sums_of(&sums, 0, CLIENT_SUMS_MAX, 1, &sum));
    client_sums_fini(&sums);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_rows), cmocka_unit_test(test_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
