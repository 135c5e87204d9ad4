// SPDX-License-Identifier: Apache-2.0
// The arena: places, the account, what goes back to the system; and long random runs against a model that has
// every byte.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "worker/memory/pages.h"

#define MIB (UINT64_C(1) << 20)

static struct worker_arena *arena_of(uint64_t limit, uint64_t keep)
{
    struct worker_arena_options options = {.limit_bytes = limit,
                                           .keep_bytes = keep,
                                           .source = worker_pages_source(NULL)};
    struct worker_arena *arena = worker_arena_new(&options);
    assert_non_null(arena);
    return arena;
}

// Everything is free again: nothing counts, and nothing is mapped but what is kept.
static void end(struct worker_arena *arena)
{
    assert_true(worker_arena_check(arena));
    assert_int_equal(worker_arena_held(arena), 0);
    worker_arena_tidy(arena, UINT64_MAX);
    assert_int_equal(worker_arena_mapped(arena), 0);
    assert_int_equal(worker_arena_warm(arena), 0);
    worker_arena_free(arena);
}

static void pages_share_extents(void **state)
{
    (void)state;
    struct worker_arena *arena = arena_of(1024 * MIB, 0);
    void *pages[64];
    assert_int_equal(worker_arena_extent(arena), 2 * MIB);
    for (int i = 0; i < 64; i++) {
        pages[i] = worker_arena_alloc(arena, 64 << 10, UINT64_MAX);
        assert_non_null(pages[i]);
        assert_int_equal((uintptr_t)pages[i] % 64, 0);
        memset(pages[i], i, 64 << 10);
        // 32 pages of 64 KiB fill an extent: without headers nothing is lost
        assert_int_equal(worker_arena_held(arena),
                         (i / 32 + 1) * 2 * MIB + (uint64_t)(i + 1) * WORKER_ARENA_NODE);
    }
    assert_int_equal(worker_arena_mapped(arena), 64 * MIB);
    for (int i = 0; i < 64; i += 2)
        worker_arena_release(arena, pages[i]);
    assert_int_equal(worker_arena_held(arena), 4 * MIB + 32 * WORKER_ARENA_NODE); // all extents are in use
    assert_true(worker_arena_check(arena));
    for (int i = 0; i < 64; i += 2) { // holes are filled before anything else
        pages[i] = worker_arena_alloc(arena, 64 << 10, WORKER_ARENA_NODE);
        assert_non_null(pages[i]);
    }
    uintptr_t first = (uintptr_t)pages[1]; // in the first extent, as nothing moved it
    for (int i = 0; i < 64; i++)
        if ((uintptr_t)pages[i] / (2 * MIB) == first / (2 * MIB)) {
            worker_arena_release(arena, pages[i]);
            pages[i] = NULL;
        }
    assert_int_equal(worker_arena_held(arena), 2 * MIB + 32 * WORKER_ARENA_NODE); // an extent is free
    for (int i = 0; i < 64; i++)
        worker_arena_release(arena, pages[i]);
    assert_int_equal(worker_arena_mapped(arena), 0); // empty: gone at once
    end(arena);
}

// Blocks that fit no extent evenly follow each other without a gap.
static void odd_blocks_waste_nothing(void **state)
{
    (void)state;
    struct worker_arena *arena = arena_of(1024 * MIB, 0);
    const size_t bytes = MIB + 320 * 1024; // 3 in 4 MiB, less a little
    void *blocks[40];
    uint64_t used = 0;
    for (int i = 0; i < 40; i++) {
        blocks[i] = worker_arena_alloc(arena, bytes, UINT64_MAX);
        assert_non_null(blocks[i]);
        used += bytes + WORKER_ARENA_NODE;
        assert_in_range(worker_arena_held(arena), used, used + 2 * MIB);
    }
    for (int i = 39; i >= 0; i--)
        worker_arena_release(arena, blocks[i]);
    end(arena);
}

static void room_is_a_limit(void **state)
{
    (void)state;
    struct worker_arena *arena = arena_of(256 * MIB, 64 * MIB);
    assert_null(worker_arena_alloc(arena, 1, 2 * MIB)); // no room for its node
    assert_null(worker_arena_alloc(arena, 0, UINT64_MAX));
    assert_null(worker_arena_alloc(arena, 257 * MIB, UINT64_MAX)); // beyond the limit
    assert_null(worker_arena_alloc(arena, SIZE_MAX, UINT64_MAX));
    assert_int_equal(worker_arena_held(arena), 0);
    void *one = worker_arena_alloc(arena, 1, 2 * MIB + WORKER_ARENA_NODE);
    assert_non_null(one);
    assert_int_equal(worker_arena_held(arena), 2 * MIB + WORKER_ARENA_NODE);
    assert_null(worker_arena_alloc(arena, 2 * MIB, MIB)); // needs another extent
    void *rest = worker_arena_alloc(arena, 2 * MIB - 64, WORKER_ARENA_NODE);
    assert_non_null(rest); // and this does not
    assert_true(worker_arena_check(arena));
    worker_arena_release(arena, one);
    worker_arena_release(arena, rest);
    worker_arena_release(arena, NULL);
    assert_int_equal(worker_arena_mapped(arena), 64 * MIB); // kept
    assert_int_equal(worker_arena_warm(arena), 2 * MIB);
    end(arena);
}

static void larger_than_a_mapping(void **state)
{
    (void)state;
    struct worker_arena *arena = arena_of(1024 * MIB, 0);
    void *large = worker_arena_alloc(arena, 200 * MIB + 64, UINT64_MAX);
    assert_non_null(large);
    assert_int_equal(worker_arena_mapped(arena), 202 * MIB);
    void *page = worker_arena_alloc(arena, MIB, WORKER_ARENA_NODE); // in its last extent
    assert_non_null(page);
    worker_arena_release(arena, large);
    assert_int_equal(worker_arena_held(arena), 2 * MIB + WORKER_ARENA_NODE);
    worker_arena_release(arena, page);
    end(arena);
}

static uint64_t resident(const uint8_t *memory, size_t bytes)
{
    unsigned char pages[1024];
    uint64_t n = 0;
    assert_in_range(bytes / 4096, 1, sizeof pages);
    assert_int_equal(mincore((void *)(uintptr_t)memory, bytes, pages), 0);
    for (size_t i = 0; i < bytes / 4096; i++)
        n += pages[i] & 1;
    return n;
}

// Free extents stay warm while there is room; where there is none, the system gets them back before more is
// taken.
static void warm_frames_give_way(void **state)
{
    (void)state;
    const uint64_t limit = 128 * MIB;
    struct worker_arena *arena = arena_of(limit, 0);
    void *blocks[60];
    for (int i = 0; i < 60; i++) {
        blocks[i] = worker_arena_alloc(arena, 2 * MIB, limit - worker_arena_held(arena));
        assert_non_null(blocks[i]);
        memset(blocks[i], 1, 2 * MIB);
    }
    uint8_t *first = blocks[0];
    for (int i = 0; i < 60; i += 2) // both mappings stay
        worker_arena_release(arena, blocks[i]);
    assert_int_equal(worker_arena_warm(arena), 60 * MIB);
    // No stretch of BARE extents is long enough, so this takes new ones: the old must go.
    void *large = worker_arena_alloc(arena, 60 * MIB, limit - worker_arena_held(arena));
    assert_non_null(large);
    assert_true(worker_arena_held(arena) + worker_arena_warm(arena) <= limit);
    assert_true(worker_arena_check(arena));
#ifndef __SANITIZE_ADDRESS__
    assert_int_equal(resident(first, 2 * MIB), 0);
#else
    (void)first;
    (void)resident;
#endif
    worker_arena_release(arena, large);
    for (int i = 1; i < 60; i += 2)
        worker_arena_release(arena, blocks[i]);
    end(arena);
}

static void tidy_takes_what_was_empty_long(void **state)
{
    (void)state;
    struct worker_arena *arena = arena_of(1024 * MIB, 256 * MIB);
    void *a = worker_arena_alloc(arena, 60 * MIB, UINT64_MAX),
         *b = worker_arena_alloc(arena, 60 * MIB, UINT64_MAX);
    assert_int_equal(worker_arena_mapped(arena), 128 * MIB);
    uint64_t before = common_clock_ns();
    worker_arena_release(arena, a);
    assert_int_equal(worker_arena_mapped(arena), 128 * MIB);
    worker_arena_tidy(arena, before); // too early
    assert_int_equal(worker_arena_mapped(arena), 128 * MIB);
    worker_arena_tidy(arena, UINT64_MAX);
    assert_int_equal(worker_arena_mapped(arena), 64 * MIB);
    worker_arena_release(arena, b);
    end(arena);
}

// ---- a source that counts, without lazily given memory, as a device's ---------------------------

struct counted {
    uint64_t bytes, most;
    bool refuse;
};

static void *counted_map(void *arg, size_t bytes)
{
    struct counted *counted = arg;
    if (counted->refuse)
        return NULL;
    counted->bytes += bytes;
    counted->most = counted->bytes > counted->most ? counted->bytes : counted->most;
    return aligned_alloc(64, bytes); // never touched: such memory may be no address here
}

static void counted_unmap(void *arg, void *base, size_t bytes)
{
    struct counted *counted = arg;
    counted->bytes -= bytes;
    free(base);
}

static void a_mapping_that_is_all_there_counts_at_once(void **state)
{
    (void)state;
    struct counted counted = {0};
    struct worker_arena_options options = {
        .limit_bytes = 150 * MIB,
        .keep_bytes = 64 * MIB,
        .source = {.map = counted_map, .unmap = counted_unmap, .arg = &counted}};
    struct worker_arena *arena = worker_arena_new(&options);
    void *blocks[80];
    uint32_t n = 0;
    while ((blocks[n] = worker_arena_alloc(arena, 2 * MIB, 150 * MIB - worker_arena_held(arena))))
        n++;
    assert_int_equal(n, 74); // 75 extents, less the tables
    assert_true(counted.most <= 150 * MIB);
    worker_arena_release(arena, blocks[n - 1]);
    // What others took of the limit meanwhile does not lock up what has been mapped.
    assert_non_null(blocks[n - 1] = worker_arena_alloc(arena, 2 * MIB, 2 * MIB + WORKER_ARENA_NODE));
    for (uint32_t i = 0; i < n; i++)
        worker_arena_release(arena, blocks[i]);
    void *other = worker_arena_alloc(arena, 140 * MIB, 150 * MIB); // what was kept gives way
    assert_non_null(other);
    assert_true(counted.most <= 150 * MIB);
    worker_arena_release(arena, other);
    worker_arena_tidy(arena, UINT64_MAX);
    counted.refuse = true;
    assert_null(worker_arena_alloc(arena, 64, 150 * MIB));
    end(arena);
    assert_int_equal(counted.bytes, 0);
}

// ---- random runs --------------------------------------------------------------------------------

struct piece {
    uint8_t *memory;
    size_t bytes;
    uint8_t fill;
};

static uint64_t next_random(uint64_t *seed)
{
    return common_mix64((*seed)++);
}

// Ends of a piece only: whole ones would measure memset.
static void fill(struct piece *piece, uint8_t value)
{
    size_t part = piece->bytes < 256 ? piece->bytes : 256;
    piece->fill = value;
    memset(piece->memory, value, part);
    memset(piece->memory + piece->bytes - part, value, part);
}

static void assert_filled(const struct piece *piece)
{
    size_t part = piece->bytes < 256 ? piece->bytes : 256;
    for (size_t i = 0; i < part; i++) {
        assert_int_equal(piece->memory[i], piece->fill);
        assert_int_equal(piece->memory[piece->bytes - 1 - i], piece->fill);
    }
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct piece *)a)->memory,
              y = (uintptr_t)((const struct piece *)b)->memory;
    return x < y ? -1 : x > y;
}

static void assert_disjoint(const struct piece *pieces, uint32_t n)
{
    static struct piece sorted[512];
    uint32_t live = 0;
    for (uint32_t i = 0; i < n; i++)
        if (pieces[i].memory)
            sorted[live++] = pieces[i];
    qsort(sorted, live, sizeof *sorted, by_address);
    for (uint32_t i = 1; i < live; i++)
        assert_true(sorted[i - 1].memory + sorted[i - 1].bytes <= sorted[i].memory);
}

static size_t random_size(uint64_t *seed, uint64_t limit)
{
    static const size_t usual[] = {64,      640,    8 << 10, 64 << 10, 66560, 1 << 20, (1 << 20) + 16384,
                                   2 << 20, 5 << 20};
    uint64_t kind = next_random(seed) % 10;
    size_t bytes = kind < 8 ? usual[next_random(seed) % (sizeof usual / sizeof *usual)]
                            : 1 + next_random(seed) % (6 << 20);
    while (bytes > limit / 4)
        bytes /= 8;
    return bytes ? bytes : 1;
}

// Free memory is looked at, too.
__attribute__((no_sanitize_address)) static bool is_zero(const void *memory, size_t bytes)
{
    const uint64_t *words = memory;
    for (size_t i = 0; i < bytes / 8; i++)
        if (words[i])
            return false;
    return true;
}

static void anything_goes(uint64_t limit, uint64_t keep, uint64_t seed)
{
    static struct piece pieces[512];
    struct worker_arena *arena = arena_of(limit, keep);
    uint64_t live = 0, refused = 0, served = 0;
    memset(pieces, 0, sizeof pieces);
    for (uint32_t step = 0; step < 6000; step++) {
        // It fills up, empties, fills up, ...
        bool more = next_random(&seed) % 8 < (step / 1000 % 2 ? 3 : 5);
        struct piece *piece = &pieces[next_random(&seed) % 512];
        if (piece->memory && !more) {
            assert_filled(piece);
            worker_arena_release(arena, piece->memory);
            live -= piece->bytes;
            piece->memory = NULL;
        } else if (!piece->memory && more) {
            size_t bytes = random_size(&seed, limit);
            uint64_t held = worker_arena_held(arena);
            piece->memory = worker_arena_alloc(arena, bytes, limit - held);
            if (!piece->memory) {
                assert_int_equal(worker_arena_held(arena), held);
                // Refused only where what is held leaves too little.
                assert_true(limit - held < bytes + 2 * worker_arena_extent(arena) + WORKER_ARENA_NODE);
                refused++;
                continue;
            }
            served++;
            assert_int_equal((uintptr_t)piece->memory % 64, 0);
            piece->bytes = bytes;
            live += bytes;
            assert_true(is_zero(piece->memory, bytes)); // no matter whose it was before
            fill(piece, (uint8_t)next_random(&seed));
        }
        assert_true(worker_arena_held(arena) >= live && worker_arena_held(arena) <= limit);
        assert_true(worker_arena_held(arena) + worker_arena_warm(arena) <= limit + 512 * WORKER_ARENA_NODE);
        if (step % 200 == 0) {
            assert_true(worker_arena_check(arena));
            assert_disjoint(pieces, 512);
        }
        if (step % 16 == 0) {
            worker_arena_clean(arena, 1 + next_random(&seed) % (8 * MIB));
            assert_true(worker_arena_soiled(arena) <= worker_arena_mapped(arena));
        }
        if (step % 1500 == 0)
            worker_arena_tidy(arena, UINT64_MAX);
    }
    assert_true(served > 500);
    assert_true(refused > 0 || limit > 1024 * MIB);
    for (uint32_t i = 0; i < 512; i++) {
        if (!pieces[i].memory)
            continue;
        assert_filled(&pieces[i]);
        worker_arena_release(arena, pieces[i].memory);
    }
    end(arena);
}

static void count_call(void *arg)
{
    ++*(uint32_t *)arg;
}

// Also of memory that stays mapped when it is given back (--prefault).
static void what_was_released_is_cleaned(void **state)
{
    const bool *ready = *state;
    uint32_t told = 0;
    struct worker_pages *pages = *ready ? worker_pages_new(128 * MIB, NULL) : NULL;
    assert_int_equal(pages != NULL, *ready);
    struct worker_arena_options options = {.limit_bytes = 256 * MIB,
                                           .keep_bytes = 256 * MIB,
                                           .soiled = count_call,
                                           .soiled_arg = &told,
                                           .source = *ready ? worker_pages_ready_source(pages)
                                                            : worker_pages_source(NULL)};
    struct worker_arena *arena = worker_arena_new(&options);
    uint8_t *blocks[9];
    for (int i = 0; i < 9; i++) {
        assert_non_null(blocks[i] = worker_arena_alloc(arena, MIB + 4096, UINT64_MAX));
        assert_true(is_zero(blocks[i], MIB + 4096));
        memset(blocks[i], 0xa5, MIB + 4096);
    }
    assert_false(worker_arena_clean(arena, UINT64_MAX)); // nothing was released yet
    assert_int_equal(told, 0);
    for (int i = 0; i < 8; i += 2)
        worker_arena_release(arena, blocks[i]);
    assert_int_equal(told, 1);
    assert_true(worker_arena_soiled(arena) > 0);
    uint8_t *again = worker_arena_alloc(arena, MIB, UINT64_MAX); // in a soiled extent: zeroed for it
    assert_true(is_zero(again, MIB));
    memset(again, 0x5a, MIB);
    assert_true(worker_arena_clean(arena, 1)); // one extent, and there are others
    while (worker_arena_clean(arena, 2 * MIB))
        ;
    assert_int_equal(worker_arena_soiled(arena), 0);
    for (int i = 0; i < 8; i++)
        if (blocks[i] != again && i % 2 == 0)
            assert_true(is_zero(blocks[i], MIB + 4096));
    for (int i = 1; i < 8; i += 2) // what is used is as it was
        assert_true(blocks[i][0] == 0xa5 && blocks[i][MIB + 4095] == 0xa5);
    assert_true(again[0] == 0x5a && again[MIB - 1] == 0x5a);
    worker_arena_release(arena, again);
    assert_int_equal(told, 2);
    for (int i = 1; i < 8; i += 2)
        worker_arena_release(arena, blocks[i]);
    worker_arena_release(arena, blocks[8]);
    worker_arena_tidy(arena, UINT64_MAX); // unmapped; what keeps it has it clean
    assert_true(worker_arena_soiled(arena) == 0);
    for (int i = 0; i < 8 && *ready; i++) {
        uint8_t *whole = worker_arena_alloc(arena, 8 * MIB, UINT64_MAX);
        assert_non_null(whole);
        assert_true(is_zero(whole, 8 * MIB));
        worker_arena_release(arena, whole);
    }
    end(arena);
    worker_pages_free(pages);
}

static void random_runs(void **state)
{
    (void)state;
    anything_goes(256 * MIB, 0, 1);
    anything_goes(256 * MIB, 64 * MIB, 2);
    anything_goes(4096 * MIB, 256 * MIB, 3);
    anything_goes(32 * MIB, 0, 4);  // extents of 64 KiB
    anything_goes(1 * MIB, MIB, 5); // extents of 64 bytes
    anything_goes(130 * MIB, 130 * MIB, 6);
}

int main(void)
{
    static bool fresh = false, ready = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_share_extents),
        cmocka_unit_test(odd_blocks_waste_nothing),
        cmocka_unit_test(room_is_a_limit),
        cmocka_unit_test(larger_than_a_mapping),
        cmocka_unit_test(warm_frames_give_way),
        cmocka_unit_test(tidy_takes_what_was_empty_long),
        cmocka_unit_test(a_mapping_that_is_all_there_counts_at_once),
        cmocka_unit_test_prestate(what_was_released_is_cleaned, &fresh),
        cmocka_unit_test_prestate(what_was_released_is_cleaned, &ready),
        cmocka_unit_test(random_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
