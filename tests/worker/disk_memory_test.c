// SPDX-License-Identifier: Apache-2.0
// A worker's files while the system has no memory: what was refused is taken later, and no work is forgotten.
// What the worker allocates is counted, and refused from one allocation on, so many of them (failing.h).
#include "tests/sim/failing.h"
#include "tests/worker/disk_fixture.h"
#include "worker/disk/state.h"

static uint64_t allocated, refuse_from = UINT64_MAX, refuse_to;

bool failing_refuses(void)
{
    uint64_t at = allocated++;
    return at >= refuse_from && at < refuse_to;
}

static void refuse(uint64_t from, uint64_t n)
{
    allocated = 0;
    refuse_from = from;
    refuse_to = from + n;
}

// What the worker does while memory is short. How many allocations that were. Some of it is refused, and its
// caller tries again when there is memory.
static uint64_t trouble(struct process *p, uint64_t from, uint64_t n, bool *told, uint64_t *length)
{
    refuse(from, n);
    (void)tell_apart(p, SESSION + 1, CHUNKS);
    *told = tell_layout(p, SESSION, CHUNKS) == COMMON_OK;
    for (*length = 0; *told && *length < TOKENS + 5 && append(p, 0, *length) == COMMON_OK;)
        ++*length;
    uint64_t all = allocated;
    refuse(UINT64_MAX, 0);
    return all;
}

static void memory_again(void **state)
{
    static const uint64_t stretches[] = {1, 2, 5, 1 << 20};
    struct sim_files directory;
    struct process p;
    struct worker_disk_stats stats;
    (void)state;
    for (size_t i = 0; i < sizeof stretches / sizeof *stretches; i++) {
        uint64_t all = UINT64_MAX, refused = 0, length; // all: that there are when none is refused
        bool told;
        for (uint64_t from = UINT64_MAX; from == UINT64_MAX || from < all; from++) {
            sim_files_init(&directory);
            start(&p, &directory);
            set_layout(&p, 1); // known to the files
            assert_int_equal(tell_apart(&p, SESSION + 1, 1), COMMON_OK);
            uint64_t n = trouble(&p, from, stretches[i], &told, &length);
            all = from == UINT64_MAX ? n : all;
            worker_disk_get_stats(p.disk, &stats);
            refused += stats.refused;
            if (!told)
                set_layout(&p, CHUNKS);
            for (; length < TOKENS + 9; length++)
                if (append(&p, 0, length) != COMMON_OK)
                    fail_msg("%d allocations from %d on were refused: append %d: %s", (int)stretches[i],
                             (int)from, (int)length, p.err.message);
            assert_true(worker_disk_catch_up(p.disk));
            kill_it(&p, &directory);
            start(&p, &directory);
            assert_int_equal(session_of(&p)->n_chunks, CHUNKS);
            (void)check_layer(&p, 0, WORKER_ROW_APPENDED);
            assert_int_equal(worker_chunk_ready(worker_store_find(p.store, 100), 0), TOKENS);
            assert_int_equal(worker_chunk_ready(worker_store_find(p.store, 101), 0), 9);
            kill_it(&p, &directory);
            sim_files_end(&directory);
        }
        assert_true(refused > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
