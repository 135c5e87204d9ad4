// SPDX-License-Identifier: Apache-2.0
// Which commits have frozen which rows: against a table of rows, and how many entries are looked at for it.
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
#include "worker/memory/memory.h"
#include "worker/session/frozen.h"
#include "worker/store/store.h"

enum { LAYERS = 3, ROWS = 96, MEMORY = 16 << 20, DEPTH = 64 };

static struct worker_store *store_new(void)
{
    struct worker_store *store = worker_store_new(MEMORY, worker_memory_host(MEMORY, NULL));
    assert_non_null(store);
    return store;
}

static uint64_t drawn(uint64_t *seed, uint64_t below)
{
    *seed = common_mix64(*seed + 1);
    return *seed % below;
}

// ---- the same as a table ------------------------------------------------------------------------

struct table {
    struct worker_freeze all[200];
    uint32_t n;
    uint8_t thawed[LAYERS][ROWS]; // by the last call
};

static bool table_has(const struct table *table, uint32_t layer, uint64_t row)
{
    for (uint32_t i = 0; i < table->n; i++)
        if (table->all[i].layer == layer && row - table->all[i].first < table->all[i].count)
            return true;
    return false;
}

static void thaw(void *arg, uint32_t layer, uint64_t first, uint64_t count)
{
    struct table *table = arg;
    assert_true(count > 0 && first + count <= ROWS);
    for (uint64_t row = first; row < first + count; row++)
        table->thawed[layer][row]++;
}

// What was released and is no other's was thawed, once; nothing else was.
static void check(struct worker_frozen *frozen, struct table *table, const uint8_t before[LAYERS][ROWS])
{
    assert_int_equal(frozen->n, table->n);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t row = 0; row < ROWS; row++) {
            bool now = table_has(table, l, row);
            assert_int_equal(worker_frozen_covers(frozen, l, row), now);
            assert_int_equal(table->thawed[l][row], before[l][row] && !now);
        }
    for (uint32_t i = 0; i < table->n; i++)
        assert_true(worker_frozen_has(frozen, &table->all[i]));
    memset(table->thawed, 0, sizeof table->thawed);
}

static void same_as_a_table(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct worker_store *store = store_new();
        struct worker_frozen frozen = {0};
        struct table table = {0};
        uint64_t random = seed * 1000, commit = 1, used = worker_store_used(store);
        for (int step = 0; step < 150; step++) {
            uint8_t before[LAYERS][ROWS];
            for (uint32_t l = 0; l < LAYERS; l++)
                for (uint32_t row = 0; row < ROWS; row++)
                    before[l][row] = table_has(&table, l, row);
            uint64_t what = drawn(&random, 20);
            if (what < 11) {
                struct worker_freeze f = {.commit = commit++, .layer = (uint32_t)drawn(&random, LAYERS)};
                f.first = drawn(&random, ROWS);
                f.count = 1 + drawn(&random, ROWS - f.first);
                assert_true(worker_frozen_add(&frozen, store, &f));
                assert_true(worker_frozen_add(&frozen, store, &f)); // twice is once
                table.all[table.n++] = f;
            } else if (what < 19 && table.n) {
                uint32_t nth = (uint32_t)drawn(&random, table.n);
                struct worker_freeze f = table.all[nth], other = f;
                table.all[nth] = table.all[--table.n];
                other.count++;
                worker_frozen_drop(&frozen, store, &other, thaw, &table); // there is none
                worker_frozen_drop(&frozen, store, &f, thaw, &table);
            } else if (what == 19) {
                uint64_t over = commit - drawn(&random, 8);
                uint32_t kept = 0;
                for (uint32_t i = 0; i < table.n; i++)
                    if (table.all[i].commit >= over)
                        table.all[kept++] = table.all[i];
                table.n = kept;
                worker_frozen_settle(&frozen, store, over, thaw, &table);
            }
            check(&frozen, &table, (const uint8_t(*)[ROWS])before);
        }
        worker_frozen_clear(&frozen, store);
        assert_int_equal(worker_store_used(store), used);
        worker_store_free(store);
    }
}

// ---- how much is looked at ----------------------------------------------------------------------

static void no_thaw(void *arg, uint32_t layer, uint64_t first, uint64_t count)
{
    (void)layer, (void)first, (void)count;
    ++*(uint32_t *)arg;
}

// As many commits as there may be, in shapes that make a search through a list of them look at all each time.
static struct worker_freeze shaped(int shape, uint32_t i)
{
    struct worker_freeze f = {.commit = 10 + i, .count = 8};
    switch (shape) {
    case 0: // all the same rows
        break;
    case 1: // side by side
        f.first = UINT64_C(8) * i;
        break;
    case 2: // each in the one before
        f.first = i;
        f.count = UINT64_C(3) * WORKER_FROZEN_MAX - 2 * i;
        break;
    case 3: // each reaches into the next thousand
        f.first = i;
        f.count = 1000;
        break;
    default: // one over all, and the others with gaps
        f.first = i ? UINT64_C(16) * i : 0;
        f.count = i ? 8 : UINT64_C(16) * WORKER_FROZEN_MAX;
    }
    return f;
}

// A call for each commit looks at some dozens of entries a stretch: thousands would be all of them.
static void few_are_looked_at(void **state)
{
    (void)state;
    for (int shape = 0; shape < 5; shape++)
        for (int way = 0; way < 3; way++) {
            struct worker_store *store = store_new();
            struct worker_frozen frozen = {0};
            uint32_t thawed = 0, held = 0;
            for (uint32_t i = 0; i < WORKER_FROZEN_MAX; i++) {
                struct worker_freeze f = shaped(shape, i);
                assert_true(worker_frozen_add(&frozen, store, &f));
                held += worker_frozen_has(&frozen, &f) && worker_frozen_covers(&frozen, 0, f.first);
            }
            assert_int_equal(held, WORKER_FROZEN_MAX);
            struct worker_freeze more = shaped(1, WORKER_FROZEN_MAX);
            assert_false(worker_frozen_add(&frozen, store, &more));
            if (way == 2)
                worker_frozen_settle(&frozen, store, UINT64_MAX, no_thaw, &thawed);
            for (uint32_t i = 0; way < 2 && i < WORKER_FROZEN_MAX; i++) {
                struct worker_freeze f = shaped(shape, way ? WORKER_FROZEN_MAX - 1 - i : i);
                worker_frozen_drop(&frozen, store, &f, no_thaw, &thawed);
            }
            assert_int_equal(frozen.n, 0);
            assert_true(thawed > 0 && thawed <= 2 * WORKER_FROZEN_MAX);
            if (frozen.looked > UINT64_C(8) * WORKER_FROZEN_MAX * DEPTH)
                fail_msg("shape %d, way %d: %u entries were looked at %llu times", shape, way,
                         WORKER_FROZEN_MAX, (unsigned long long)frozen.looked);
            worker_store_free(store);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_a_table),
        cmocka_unit_test(few_are_looked_at),
    };
    return cmocka_run_group_tests_name("frozen", tests, NULL, NULL);
}
