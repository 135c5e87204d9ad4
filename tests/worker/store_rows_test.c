// SPDX-License-Identifier: Apache-2.0
// Rows of a store: the states that they go through, who may replace which, and what stays for those who read
// them.
#include <string.h>

#include "tests/worker/store_fixture.h"

static void rows_go_through_their_states(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1);
    assert_int_equal(write_rows(store, chunk, 0, 0, 20, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    assert_int_equal(write_rows(store, chunk, 0, 0, 20, 1, WORKER_ROW_PUT, UINT64_MAX),
                     COMMON_OK); // sent again, other bytes
    assert_row(chunk, 0, 7, 1);
    assert_int_equal(worker_chunk_ready(chunk, 0), 0); // never visible before the commit
    worker_chunk_prepare(chunk, 0, 5, 10);
    assert_int_equal(write_rows(store, chunk, 0, 0, 20, 2, WORKER_ROW_PUT, UINT64_MAX),
                     COMMON_FAILED_PRECONDITION);
    assert_row(chunk, 0, 0, 1); // nothing was changed
    assert_row(chunk, 0, 19, 1);
    assert_int_equal(write_rows(store, chunk, 0, 0, 20, 1, WORKER_ROW_PUT, UINT64_MAX),
                     COMMON_OK); // the same bytes
    assert_int_equal(worker_chunk_row(chunk, 0, 5), WORKER_ROW_PREPARED);
    worker_chunk_abort(chunk, 0, 0, TOKENS);
    assert_int_equal(write_rows(store, chunk, 0, 0, 20, 2, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    worker_chunk_prepare(chunk, 0, 0, TOKENS);
    worker_chunk_commit(chunk, 0, 0, 10);
    assert_int_equal(worker_chunk_ready(chunk, 0), 10);
    worker_chunk_abort(chunk, 0, 0, TOKENS); // what is committed stays
    assert_int_equal(worker_chunk_ready(chunk, 0), 10);
    assert_int_equal(worker_chunk_row(chunk, 0, 10), WORKER_ROW_PUT);
    assert_int_equal(worker_chunk_row(chunk, 0, 20), WORKER_ROW_ABSENT);
    worker_store_release(store, chunk);
    end(store);
}

static void appended_rows_give_way_only_where_they_may(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1);
    assert_int_equal(write_rows(store, chunk, 0, 0, 4, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    assert_int_equal(worker_chunk_ready(chunk, 0), 4);
    assert_int_equal(write_rows(store, chunk, 0, 2, 2, 1, WORKER_ROW_APPENDED, 3),
                     COMMON_FAILED_PRECONDITION);
    assert_row(chunk, 0, 3, 0);
    assert_int_equal(write_rows(store, chunk, 0, 2, 2, 1, WORKER_ROW_APPENDED, 2), COMMON_OK);
    assert_row(chunk, 0, 1, 0);
    assert_row(chunk, 0, 2, 1);
    worker_chunk_commit(chunk, 0, 0, 4);
    assert_int_equal(write_rows(store, chunk, 0, 2, 2, 0, WORKER_ROW_APPENDED, 0),
                     COMMON_FAILED_PRECONDITION);
    assert_row(chunk, 0, 2, 1);
    worker_store_release(store, chunk);
    end(store);
}

// Rows are the same when all of their bytes are: each head's K, V and scales count.
static void a_byte_of_any_head_makes_other_rows(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1);
    uint8_t k[K_ROW_MAX], v[V_ROW_MAX];
    struct worker_rows row = {chunk, 0, 3, 1, k, v};
    assert_int_equal(write_rows(store, chunk, 0, 3, 1, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    row_bytes(0, 3, 0, k, v);
    assert_true(worker_store_same(store, &row, 1));
    for (uint32_t i = 0; i < k_row + v_row; i++) {
        uint8_t *byte = i < k_row ? k + i : v + i - k_row;
        *byte ^= 1;
        assert_false(worker_store_same(store, &row, 1));
        assert_int_equal(worker_store_write(store, &row, 1, WORKER_ROW_APPENDED, UINT64_MAX, NULL),
                         COMMON_FAILED_PRECONDITION);
        *byte ^= 1;
    }
    assert_int_equal(worker_store_write(store, &row, 1, WORKER_ROW_APPENDED, UINT64_MAX, NULL), COMMON_OK);
    assert_row(chunk, 0, 3, 0);
    worker_store_release(store, chunk);
    end(store);
}

// An append over rows that are prepared is acknowledged: an abort must not take them back.
static void appends_outlive_an_abort(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1);
    static struct bytes bytes;
    for (uint32_t i = 0; i < 10; i++)
        row_bytes(0, i, 0, bytes.k + i * k_row, bytes.v + i * v_row);
    struct worker_rows piece = {chunk, 0, 0, 10, bytes.k, bytes.v};
    assert_int_equal(write_rows(store, chunk, 0, 0, 10, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    worker_chunk_prepare(chunk, 0, 0, 10);
    assert_false(worker_store_same(store, &piece, 1)); // an abort may still take them
    assert_int_equal(write_rows(store, chunk, 0, 0, 10, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    assert_int_equal(worker_chunk_row(chunk, 0, 0), WORKER_ROW_PREPARED); // a put changes nothing
    assert_int_equal(write_rows(store, chunk, 0, 2, 4, 1, WORKER_ROW_APPENDED, 0),
                     COMMON_FAILED_PRECONDITION);
    assert_int_equal(write_rows(store, chunk, 0, 0, 8, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    assert_int_equal(worker_chunk_ready(chunk, 0), 8);
    piece.count = 8;
    assert_true(worker_store_same(store, &piece, 1));
    worker_chunk_abort(chunk, 0, 0, TOKENS);
    for (uint32_t row = 0; row < 10; row++) {
        assert_int_equal(worker_chunk_row(chunk, 0, row), row < 8 ? WORKER_ROW_APPENDED : WORKER_ROW_PUT);
        assert_row(chunk, 0, row, 0);
    }
    assert_int_equal(worker_chunk_ready(chunk, 0), 8);
    worker_store_release(store, chunk);
    end(store);
}

static void a_new_history_forgets_what_was_put(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1);
    assert_int_equal(write_rows(store, chunk, 0, 0, TOKENS, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    assert_int_equal(write_rows(store, chunk, 1, 0, 5, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    assert_int_equal(write_rows(store, chunk, 1, 5, 5, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    worker_chunk_prepare(chunk, 0, 0, 20);
    worker_chunk_commit(chunk, 0, 0, 10);
    hold(store, 1);
    worker_chunk_forget(chunk); // shared
    assert_int_equal(worker_chunk_row(chunk, 0, 9), WORKER_ROW_COMMITTED);
    assert_int_equal(worker_chunk_row(chunk, 0, 10), WORKER_ROW_PUT);
    worker_store_release(store, chunk);
    worker_chunk_prepare(chunk, 0, 15, 5);
    worker_chunk_forget(chunk);
    for (uint32_t row = 0; row < TOKENS; row++) {
        assert_int_equal(worker_chunk_row(chunk, 0, row),
                         row < 10 ? WORKER_ROW_COMMITTED : WORKER_ROW_ABSENT);
        assert_int_equal(worker_chunk_row(chunk, 1, row), row < 5 ? WORKER_ROW_APPENDED : WORKER_ROW_ABSENT);
    }
    // The new history writes the same places, page by page up to a block.
    assert_int_equal(write_rows(store, chunk, 0, 10, TOKENS - 10, 1, WORKER_ROW_APPENDED, UINT64_MAX),
                     COMMON_OK);
    assert_int_equal(write_rows(store, chunk, 1, 5, 6, 1, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    assert_false(worker_chunk_in_block(chunk, 1));
    assert_int_equal(write_rows(store, chunk, 1, 11, TOKENS - 11, 1, WORKER_ROW_APPENDED, UINT64_MAX),
                     COMMON_OK);
    assert_true(worker_chunk_in_block(chunk, 1));
    for (uint32_t row = 0; row < TOKENS; row++) {
        assert_row(chunk, 0, row, row >= 10);
        assert_row(chunk, 1, row, row >= 5);
    }
    worker_store_release(store, chunk);
    end(store);
}

static void pinned_bytes_stay(void **state)
{
    (void)state;
    if (device)
        skip();
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1);
    assert_int_equal(write_rows(store, chunk, 0, 0, 20, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    struct kernels_run runs[2], full;
    uint8_t before[4 * K_ROW_MAX], want_k[K_ROW_MAX], want_v[V_ROW_MAX];
    worker_chunk_runs(chunk, 0, 0, 1, 20, 0, runs);
    memcpy(before, runs[1].k, 4 * k_head);
    worker_store_pin(chunk);
    assert_int_equal(write_rows(store, chunk, 0, 16, 4, 1, WORKER_ROW_APPENDED, 16), COMMON_OK); // replaced
    assert_memory_equal(runs[1].k, before, 4 * k_head);
    assert_row(chunk, 0, 16, 1);
    assert_int_equal(write_rows(store, chunk, 0, 20, TOKENS - 20, 0, WORKER_ROW_APPENDED, UINT64_MAX),
                     COMMON_OK); // to a block
    assert_true(worker_chunk_in_block(chunk, 0));
    assert_memory_equal(runs[1].k, before, 4 * k_head);
    worker_chunk_runs(chunk, 0, 0, 1, TOKENS, 0, &full);
    assert_int_equal(write_rows(store, chunk, 0, 16, 4, 2, WORKER_ROW_APPENDED, 16),
                     COMMON_OK); // inside a block
    row_bytes(0, 16, 1, want_k, want_v);
    assert_memory_equal((const uint8_t *)full.k + 16 * k_head, want_k, k_head);
    assert_row(chunk, 0, 16, 2);
    uint64_t used = worker_store_used(store);
    worker_store_unpin(store, chunk);
    assert_true(worker_store_used(store) < used); // what was kept for the pin is gone
    worker_store_pin(chunk);
    worker_store_release(store, chunk); // lives on until the pin goes
    assert_null(worker_store_find(store, 1));
    worker_chunk_runs(chunk, 0, 0, 1, TOKENS, 0, &full);
    assert_non_null(full.k);
    assert_true(worker_store_used(store) > 0);
    worker_store_unpin(store, chunk);
    end(store);
}

// What is withdrawn under a pin keeps its bytes for its readers, in pages and in a block.
static void withdrawn_bytes_stay_under_a_pin(void **state)
{
    (void)state;
    if (device)
        skip();
    for (uint32_t rows = 20; rows <= TOKENS; rows += TOKENS - 20) {
        struct worker_store *store = store_of(1 << 20);
        struct worker_chunk *chunk = hold(store, 1);
        uint8_t before[2 * K_ROW_MAX];
        struct kernels_run runs[TOKENS / WORKER_PAGE_TOKENS];
        assert_int_equal(write_rows(store, chunk, 0, 0, rows, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
        worker_chunk_runs(chunk, 0, 0, 1, rows, 0, runs);
        const uint8_t *k = rows == 20 ? runs[1].k : (const uint8_t *)runs[0].k + 16 * k_head;
        memcpy(before, k, 2 * k_head);
        worker_store_pin(chunk);
        worker_chunk_withdraw(chunk, 0, 10, rows - 10, WORKER_ROW_ABSENT);
        assert_int_equal(worker_chunk_ready(chunk, 0), 10);
        assert_int_equal(worker_chunk_row(chunk, 0, 10), WORKER_ROW_ABSENT);
        for (uint32_t row = 10; row < 18; row += 4) { // any part of them
            assert_int_equal(write_rows(store, chunk, 0, row, 4, 1, WORKER_ROW_APPENDED, UINT64_MAX),
                             COMMON_OK);
            assert_memory_equal(k, before, 2 * k_head);
        }
        assert_int_equal(worker_chunk_ready(chunk, 0), 18);
        for (uint32_t row = 0; row < 18; row++)
            assert_row(chunk, 0, row, row < 10 ? 0 : 1);
        worker_store_unpin(store, chunk);
        assert_int_equal(write_rows(store, chunk, 0, 18, TOKENS - 18, 1, WORKER_ROW_APPENDED, UINT64_MAX),
                         COMMON_OK);
        assert_int_equal(worker_chunk_ready(chunk, 0), TOKENS);
        hold(store, 1);
        worker_chunk_withdraw(chunk, 0, 0, TOKENS, WORKER_ROW_ABSENT); // shared: nothing happens
        assert_int_equal(worker_chunk_ready(chunk, 0), TOKENS);
        worker_store_release(store, chunk);
        worker_store_release(store, chunk);
        end(store);
    }
}

int store_rows(uint32_t type)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_through_their_states),
        cmocka_unit_test(appended_rows_give_way_only_where_they_may),
        cmocka_unit_test(a_byte_of_any_head_makes_other_rows),
        cmocka_unit_test(appends_outlive_an_abort),
        cmocka_unit_test(a_new_history_forgets_what_was_put),
        cmocka_unit_test(pinned_bytes_stay),
        cmocka_unit_test(withdrawn_bytes_stay_under_a_pin),
    };
    return store_group("rows", type, tests, sizeof tests / sizeof *tests);
}
