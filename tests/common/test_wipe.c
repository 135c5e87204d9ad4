// SPDX-License-Identifier: Apache-2.0
// Wipes zero what they are given, and nothing beside it.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/memory/wipe.h"

static uint8_t *filled(size_t bytes, uint8_t with)
{
    uint8_t *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, with, bytes);
    return memory;
}

static bool all(const uint8_t *memory, size_t from, size_t to, uint8_t value)
{
    for (size_t i = from; i < to; i++)
        if (memory[i] != value)
            return false;
    return true;
}

// Small and large, at places on a line and beside one.
static void wipes_what_it_is_given(void **state)
{
    (void)state;
    const size_t sizes[] = {0, 1, 63, 4096, COMMON_WIPE_LARGE - 1, COMMON_WIPE_LARGE, COMMON_WIPE_LARGE + 77};
    const size_t all_bytes = COMMON_WIPE_LARGE + 512;
    uint8_t *memory = filled(all_bytes, 7);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t at = 64; at < 132; at += 33) {
            memset(memory, 7, all_bytes);
            common_wipe(memory + at, sizes[i]);
            assert_true(all(memory, 0, at, 7) && all(memory, at, at + sizes[i], 0) &&
                        all(memory, at + sizes[i], all_bytes, 7));
        }
    free(memory);
}

static void large_wipes_are_counted(void **state)
{
    (void)state;
    uint8_t *memory = filled(COMMON_WIPE_LARGE, 7);
    size_t before = atomic_load(&common_wiped_past);
    common_wipe(memory, COMMON_WIPE_LARGE - 1);
    assert_true(atomic_load(&common_wiped_past) == before);
    common_wipe(memory, COMMON_WIPE_LARGE);
#ifdef __SSE2__
    assert_true(atomic_load(&common_wiped_past) == before + COMMON_WIPE_LARGE);
#endif
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wipes_what_it_is_given),
        cmocka_unit_test(large_wipes_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
