// SPDX-License-Identifier: Apache-2.0
// The store: pages and blocks, rows' states, the account of memory, hashes, copies; and many random
// operations against a naive model. All of it over each KV type.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "worker/device.h"
#include "worker/memory.h"
#include "worker/store.h"

enum {
    LAYERS = 2,
    HEADS = 2,
    K_DIM = 5,
    V_DIM = 3,
    TOKENS = 48,
    K_ROW_MAX = HEADS * K_DIM * 4,
    V_ROW_MAX = HEADS * V_DIM * 4
};

static struct worker_shape shape = {
    .layers = LAYERS, .kv_heads = HEADS, .k_dim = K_DIM, .v_dim = V_DIM, .chunk_tokens = TOKENS};

// Bytes of the type under test: of a head's elements or codes, of its scale, of a whole row.
static size_t k_head, v_head, scale, k_row, v_row;

static int take_type(void **state)
{
    shape.kv_type = *(const uint32_t *)*state;
    size_t element = shape.kv_type == KERNELS_KV_F32                                       ? 4
                     : shape.kv_type == KERNELS_KV_F16 || shape.kv_type == KERNELS_KV_BF16 ? 2
                                                                                           : 1;
    scale = element == 1 ? 4 : 0;
    k_head = K_DIM * element;
    v_head = V_DIM * element;
    k_row = HEADS * (k_head + scale);
    v_row = HEADS * (v_head + scale);
    return 0;
}

// What row `row` of a layer holds in its version `version`.
static void row_bytes(uint32_t layer, uint32_t row, uint32_t version, uint8_t *k, uint8_t *v)
{
    uint64_t seed = common_mix64((uint64_t)layer << 40 | (uint64_t)row << 8 | version);
    for (uint32_t i = 0; i < k_row; i++)
        k[i] = (uint8_t)(common_mix64(seed + i));
    for (uint32_t i = 0; i < v_row; i++)
        v[i] = (uint8_t)(common_mix64(seed + 1000 + i));
}

struct bytes {
    uint8_t k[TOKENS * K_ROW_MAX], v[TOKENS * V_ROW_MAX];
};

static enum common_code write_rows(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer,
                                   uint32_t row, uint32_t count, uint32_t version, enum worker_row to,
                                   uint64_t replace_from)
{
    static struct bytes bytes;
    for (uint32_t i = 0; i < count; i++)
        row_bytes(layer, row + i, version, bytes.k + (size_t)i * k_row, bytes.v + (size_t)i * v_row);
    struct worker_rows piece = {chunk, layer, row, count, bytes.k, bytes.v};
    return worker_store_write(store, &piece, 1, to, replace_from, NULL);
}

static void assert_row(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t version)
{
    uint8_t k[K_ROW_MAX], v[V_ROW_MAX], want_k[K_ROW_MAX], want_v[V_ROW_MAX];
    worker_chunk_read(chunk, layer, row, 1, k, v);
    row_bytes(layer, row, version, want_k, want_v);
    assert_memory_equal(k, want_k, k_row);
    assert_memory_equal(v, want_v, v_row);
}

static struct worker_device *device; // NULL: the host's memory

static struct worker_store *store_of(uint64_t limit)
{
    return worker_store_new(limit, device ? worker_memory_of_device(limit, device)
                                          : worker_memory_host(limit, NULL));
}

static struct worker_chunk *hold(struct worker_store *store, uint64_t id)
{
    struct worker_chunk *chunk = NULL;
    assert_int_equal(worker_store_hold(store, id, 0, &shape, &chunk, NULL), COMMON_OK);
    return chunk;
}

// Everything released: the account is at zero.
static void end(struct worker_store *store)
{
    assert_int_equal(worker_store_used(store), 0);
    assert_int_equal(worker_store_chunks(store), 0);
    worker_store_free(store);
}

static void memory_comes_page_by_page(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1);
    uint64_t empty = worker_store_used(store);
    assert_int_equal(write_rows(store, chunk, 0, 3, 1, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    uint64_t one = worker_store_used(store);
    assert_true(one > empty);
    assert_int_equal(write_rows(store, chunk, 0, 0, 16, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    assert_int_equal(worker_store_used(store), one); // same page
    assert_int_equal(write_rows(store, chunk, 0, 15, 2, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    uint64_t page = worker_store_used(store) - one;
    assert_true(page >= WORKER_PAGE_TOKENS * (k_row + v_row));
    assert_true(page <= HEADS * 4 * 64 + WORKER_PAGE_TOKENS * (k_row + v_row));
    worker_store_release(store, chunk);
    end(store);
}

// Rows that nobody commits go, and the pages that had nothing else; frozen, appended and committed rows stay.
static void what_nobody_commits_goes(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1);
    uint64_t empty = worker_store_used(store);
    assert_false(worker_chunk_has_put(chunk));
    assert_int_equal(write_rows(store, chunk, 0, 0, 8, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    assert_false(worker_chunk_has_put(chunk));
    uint64_t appended = worker_store_used(store);
    assert_int_equal(write_rows(store, chunk, 0, 8, 24, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    assert_int_equal(write_rows(store, chunk, 1, 0, TOKENS, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    assert_true(worker_chunk_has_put(chunk));
    worker_chunk_prepare(chunk, 0, 30, 1);
    worker_store_pin(chunk);
    assert_int_equal(worker_store_expire(store, chunk), 0); // somebody reads it
    worker_store_unpin(store, chunk);
    assert_int_equal(worker_store_expire(store, chunk), 23 + TOKENS);
    assert_true(worker_chunk_has_put(chunk)); // one is frozen
    assert_int_equal(worker_chunk_row(chunk, 0, 30), WORKER_ROW_PREPARED);
    assert_int_equal(worker_chunk_row(chunk, 0, 8), WORKER_ROW_ABSENT);
    assert_int_equal(worker_chunk_row(chunk, 1, 0), WORKER_ROW_ABSENT);
    assert_row(chunk, 0, 7, 0);
    assert_row(chunk, 0, 30, 0);
    worker_chunk_abort(chunk, 0, 30, 1);
    assert_int_equal(worker_store_expire(store, chunk), 1);
    assert_false(worker_chunk_has_put(chunk));
    assert_int_equal(worker_store_used(store), appended);
    for (uint32_t layer = 0; layer < LAYERS; layer++) // other bytes may come in their place
        assert_int_equal(write_rows(store, chunk, layer, 8, TOKENS - 8, 1, WORKER_ROW_PUT, UINT64_MAX),
                         COMMON_OK);
    assert_row(chunk, 0, TOKENS - 1, 1);
    worker_chunk_prepare(chunk, 0, 8, TOKENS - 8);
    worker_chunk_commit(chunk, 0, 8, TOKENS - 8);
    assert_int_equal(worker_store_expire(store, chunk), TOKENS - 8); // of the other layer
    assert_int_equal(worker_chunk_ready(chunk, 0), TOKENS);
    assert_int_equal(worker_store_expire(store, chunk), 0);
    assert_true(appended > empty);
    worker_store_release(store, chunk);
    end(store);
}

static void full_layers_become_blocks(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1);
    assert_int_equal(write_rows(store, chunk, 0, 0, TOKENS, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    assert_true(worker_chunk_in_block(chunk, 0)); // at once
    for (uint32_t row = TOKENS; row > 0; row--) {
        assert_false(worker_chunk_in_block(chunk, 1));
        assert_int_equal(write_rows(store, chunk, 1, row - 1, 1, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    }
    assert_true(worker_chunk_in_block(chunk, 1)); // by and by
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t row = 0; row < TOKENS; row++)
            assert_row(chunk, layer, row, 0);
    worker_store_release(store, chunk);
    end(store);
}

static void runs_cover_what_is_ready(void **state)
{
    (void)state;
    if (device)
        skip();
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = NULL;
    assert_int_equal(worker_store_hold(store, 1, 480, &shape, &chunk, NULL), COMMON_OK);
    assert_int_equal(write_rows(store, chunk, 0, 0, 40, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    assert_int_equal(worker_chunk_ready(chunk, 0), 40);
    assert_int_equal(worker_chunk_ready(chunk, 1), 0);
    for (int block = 0; block < 2; block++) {
        struct kernels_run runs[3];
        uint32_t n = worker_chunk_run_count(chunk, 0, 35), rows = 0;
        assert_int_equal(n, block ? 1 : 3);
        for (uint32_t head = 0; head < HEADS; head++) {
            worker_chunk_runs(chunk, 0, head, 1, 35, 0, runs);
            rows = 0;
            for (uint32_t i = 0; i < n; i++) {
                assert_int_equal((uintptr_t)runs[i].k % KERNELS_ALIGN, 0);
                assert_int_equal((uintptr_t)runs[i].v % KERNELS_ALIGN, 0);
                assert_int_equal((uintptr_t)runs[i].k_scale % KERNELS_ALIGN, 0);
                assert_int_equal((uintptr_t)runs[i].v_scale % KERNELS_ALIGN, 0);
                assert_int_equal(!runs[i].k_scale, !scale);
                assert_int_equal(!runs[i].v_scale, !scale);
                assert_int_equal(runs[i].first, 480 + rows);
                for (uint32_t r = 0; r < runs[i].rows; r++, rows++) {
                    uint8_t k[K_ROW_MAX], v[V_ROW_MAX];
                    row_bytes(0, rows, 0, k, v);
                    assert_memory_equal((const uint8_t *)runs[i].k + r * k_head, k + head * k_head, k_head);
                    assert_memory_equal((const uint8_t *)runs[i].v + r * v_head, v + head * v_head, v_head);
                    if (!scale)
                        continue;
                    assert_memory_equal(runs[i].k_scale + r, k + HEADS * k_head + head * 4, 4);
                    assert_memory_equal(runs[i].v_scale + r, v + HEADS * v_head + head * 4, 4);
                }
            }
            assert_int_equal(rows, 35);
        }
        assert_int_equal(write_rows(store, chunk, 0, 40, 8, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    }
    assert_int_equal(worker_chunk_run_count(chunk, 1, 0), 0);
    worker_store_release(store, chunk);
    end(store);
}

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
    assert_false(worker_store_same(&piece, 1)); // an abort may still take them
    assert_int_equal(write_rows(store, chunk, 0, 0, 10, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    assert_int_equal(worker_chunk_row(chunk, 0, 0), WORKER_ROW_PREPARED); // a put changes nothing
    assert_int_equal(write_rows(store, chunk, 0, 2, 4, 1, WORKER_ROW_APPENDED, 0),
                     COMMON_FAILED_PRECONDITION);
    assert_int_equal(write_rows(store, chunk, 0, 0, 8, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    assert_int_equal(worker_chunk_ready(chunk, 0), 8);
    piece.count = 8;
    assert_true(worker_store_same(&piece, 1));
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

// What is withdrawn under a pin keeps its bytes for who reads them, in pages and in a block.
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

static void hashes_know_no_pages(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *whole = hold(store, 1), *pieces = hold(store, 2);
    static struct bytes bytes;
    for (uint32_t i = 0; i < TOKENS; i++)
        row_bytes(0, i, 0, bytes.k + i * k_row, bytes.v + i * v_row);
    assert_int_equal(write_rows(store, whole, 0, 0, TOKENS, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    for (uint32_t i = 0; i < TOKENS - 1; i++) { // 47 rows in a scrambled order: 7 and 47 are coprime
        uint32_t row = i * 7 % (TOKENS - 1);
        assert_int_equal(write_rows(store, pieces, 0, row, 1, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    }
    assert_true(worker_chunk_in_block(whole, 0) && !worker_chunk_in_block(pieces, 0));
    for (uint32_t row = 0; row < TOKENS - 1; row += 5) {
        uint32_t count = TOKENS - 1 - row;
        static uint8_t flat[TOKENS * (K_ROW_MAX + V_ROW_MAX)];
        uint8_t *to = flat; // part by part, and in it head after head
        for (uint32_t head = 0; head < HEADS; head++)
            for (uint32_t i = row; i < row + count; i++, to += k_head)
                memcpy(to, bytes.k + i * k_row + head * k_head, k_head);
        for (uint32_t head = 0; head < HEADS; head++)
            for (uint32_t i = row; i < row + count; i++, to += v_head)
                memcpy(to, bytes.v + i * v_row + head * v_head, v_head);
        for (uint32_t head = 0; head < HEADS; head++)
            for (uint32_t i = row; i < row + count; i++, to += scale)
                memcpy(to, bytes.k + i * k_row + HEADS * k_head + head * scale, scale);
        for (uint32_t head = 0; head < HEADS; head++)
            for (uint32_t i = row; i < row + count; i++, to += scale)
                memcpy(to, bytes.v + i * v_row + HEADS * v_head + head * scale, scale);
        uint64_t hash = 0, want = common_xxh3(flat, count * (k_row + v_row), 0);
        assert_true(worker_chunk_hash(whole, 0, row, count, &hash));
        assert_int_equal(hash, want);
        assert_true(worker_chunk_hash(pieces, 0, row, count, &hash));
        assert_int_equal(hash, want);
    }
    worker_store_release(store, whole);
    worker_store_release(store, pieces);
    end(store);
}

// Whatever the limit, a write either fits or changes nothing.
static void a_full_store_changes_nothing(void **state)
{
    (void)state;
    bool refused = false, fitted = false;
    for (uint64_t limit = 1024; limit < 24576; limit += 64) {
        struct worker_store *store = store_of(limit);
        struct worker_chunk *a = NULL, *b = NULL;
        assert_int_equal(worker_store_hold(store, 1, 0, &shape, &a, NULL), COMMON_OK);
        assert_int_equal(worker_store_hold(store, 2, TOKENS, &shape, &b, NULL), COMMON_OK);
        static struct bytes bytes;
        struct worker_rows pieces[3] = {{a, 0, 10, 20, bytes.k, bytes.v},
                                        {a, 1, 0, TOKENS, bytes.k, bytes.v},
                                        {b, 1, 5, 30, bytes.k, bytes.v}};
        uint64_t before = worker_store_used(store);
        struct common_error err;
        enum common_code code = worker_store_write(store, pieces, 3, WORKER_ROW_PUT, UINT64_MAX, &err);
        assert_true(worker_store_used(store) <= limit);
        if (code != COMMON_OK) {
            assert_int_equal(code, COMMON_RESOURCE_EXHAUSTED);
            assert_int_equal(worker_store_used(store), before);
            for (uint32_t row = 0; row < TOKENS; row++)
                assert_true(worker_chunk_row(a, 0, row) == WORKER_ROW_ABSENT &&
                            worker_chunk_row(a, 1, row) == WORKER_ROW_ABSENT &&
                            worker_chunk_row(b, 1, row) == WORKER_ROW_ABSENT);
            refused = true;
        } else {
            assert_int_equal(worker_chunk_row(b, 1, 34), WORKER_ROW_PUT);
            fitted = true;
        }
        worker_store_release(store, a);
        worker_store_release(store, b);
        end(store);
    }
    assert_true(refused && fitted);
}

static void shared_chunks_are_not_written(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1), *again = hold(store, 1);
    assert_ptr_equal(chunk, again);
    assert_int_equal(write_rows(store, chunk, 0, 0, 1, 0, WORKER_ROW_PUT, UINT64_MAX),
                     COMMON_FAILED_PRECONDITION);
    worker_store_release(store, again);
    assert_int_equal(write_rows(store, chunk, 0, 0, 1, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    hold(store, 1);
    assert_int_equal(write_rows(store, chunk, 0, 0, 1, 0, WORKER_ROW_APPENDED, UINT64_MAX),
                     COMMON_OK); // the same bytes
    assert_int_equal(write_rows(store, chunk, 0, 0, 1, 1, WORKER_ROW_APPENDED, 0),
                     COMMON_FAILED_PRECONDITION);
    struct worker_shape other = shape;
    other.k_dim++;
    struct worker_chunk *none = NULL;
    assert_int_equal(worker_store_hold(store, 1, 0, &other, &none, NULL), COMMON_FAILED_PRECONDITION);
    assert_int_equal(worker_store_hold(store, 1, TOKENS, &shape, &none, NULL), COMMON_FAILED_PRECONDITION);
    worker_store_release(store, chunk);
    worker_store_release(store, chunk);
    end(store);
}

static void copies_keep_what_is_committed(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *from = hold(store, 1), *to = hold(store, 2), *twin = hold(store, 3);
    assert_int_equal(write_rows(store, from, 0, 0, TOKENS, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    assert_int_equal(write_rows(store, from, 1, 0, 30, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    worker_chunk_prepare(from, 1, 0, 10);
    worker_chunk_commit(from, 1, 0, 10);
    worker_chunk_prepare(from, 1, 20, 5);
    worker_chunk_commit(from, 1, 20, 5); // beyond a hole
    uint64_t hash = 0, hash_again = 0, hash_twin = 0, hash_less = 0;
    assert_int_equal(worker_store_copy(store, from, to, 23, &hash, NULL), COMMON_OK);
    assert_int_equal(worker_chunk_ready(to, 0), 23);
    assert_int_equal(worker_chunk_ready(to, 1), 10);
    assert_int_equal(worker_chunk_row(to, 1, 10), WORKER_ROW_ABSENT); // what was merely put stays behind
    assert_int_equal(worker_chunk_row(to, 1, 22), WORKER_ROW_COMMITTED);
    assert_int_equal(worker_chunk_row(to, 0, 23), WORKER_ROW_ABSENT);
    for (uint32_t row = 0; row < 23; row++)
        assert_row(to, 0, row, 0);
    assert_int_equal(worker_store_copy(store, from, to, 23, &hash_again, NULL), COMMON_OK); // may come again
    assert_int_equal(worker_store_copy(store, from, twin, 23, &hash_twin, NULL), COMMON_OK);
    assert_int_equal(hash, hash_again);
    assert_int_equal(hash, hash_twin);
    assert_int_equal(worker_store_copy(store, from, twin, 20, &hash_less, NULL), COMMON_OK);
    assert_int_not_equal(hash, hash_less);
    assert_int_equal(worker_store_copy(store, from, to, TOKENS + 1, &hash, NULL), COMMON_INVALID_ARGUMENT);
    assert_int_equal(worker_store_copy(store, from, from, 1, &hash, NULL), COMMON_INVALID_ARGUMENT);
    struct worker_chunk *other = hold(store, 4);
    assert_int_equal(write_rows(store, other, 0, 5, 1, 9, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    assert_int_equal(worker_store_copy(store, from, other, 23, &hash, NULL), COMMON_FAILED_PRECONDITION);
    assert_int_equal(worker_chunk_row(other, 0, 0), WORKER_ROW_ABSENT);
    worker_store_release(store, from);
    worker_store_release(store, to);
    worker_store_release(store, twin);
    worker_store_release(store, other);
    end(store);
}

static void a_copy_fits_or_changes_nothing(void **state)
{
    (void)state;
    bool refused = false, fitted = false;
    for (uint64_t limit = 2048; limit < 24576; limit += 64) {
        struct worker_store *store = store_of(limit);
        struct worker_chunk *from = NULL, *to = NULL;
        uint64_t hash = 0;
        assert_int_equal(worker_store_hold(store, 1, 0, &shape, &from, NULL), COMMON_OK);
        assert_int_equal(worker_store_hold(store, 2, 0, &shape, &to, NULL), COMMON_OK);
        if (write_rows(store, from, 0, 0, TOKENS, 0, WORKER_ROW_APPENDED, UINT64_MAX) == COMMON_OK &&
            write_rows(store, from, 1, 0, 33, 0, WORKER_ROW_APPENDED, UINT64_MAX) == COMMON_OK) {
            uint64_t before = worker_store_used(store);
            enum common_code code = worker_store_copy(store, from, to, TOKENS, &hash, NULL);
            if (code == COMMON_OK) {
                fitted = true;
                assert_int_equal(worker_chunk_ready(to, 1), 33);
            } else {
                refused = true;
                assert_int_equal(code, COMMON_RESOURCE_EXHAUSTED);
                assert_int_equal(worker_store_used(store), before);
                assert_int_equal(worker_chunk_row(to, 0, 0), WORKER_ROW_ABSENT);
            }
        }
        worker_store_release(store, from);
        worker_store_release(store, to);
        end(store);
    }
    assert_true(refused && fitted);
}

// ---- the model ----------------------------------------------------------------------------------

struct model_row {
    enum worker_row state;
    uint32_t version;
};

static uint64_t random_state;

static uint32_t pick(uint32_t below)
{
    random_state = common_mix64(random_state);
    return (uint32_t)(random_state % below);
}

static void model_write(struct worker_store *store, struct worker_chunk *chunk,
                        struct model_row (*model)[TOKENS])
{
    uint32_t layer = pick(LAYERS), row = pick(TOKENS), count = 1 + pick(TOKENS - row), version = pick(3),
             from = pick(TOKENS);
    enum worker_row to = pick(2) ? WORKER_ROW_PUT : WORKER_ROW_APPENDED;
    uint64_t replace_from = to == WORKER_ROW_PUT ? UINT64_MAX : from;
    bool allowed = true;
    for (uint32_t i = row; i < row + count; i++) {
        const struct model_row *m = &model[layer][i];
        bool replaceable = m->state == WORKER_ROW_APPENDED && i >= replace_from;
        if (m->state > WORKER_ROW_PUT && m->version != version && !replaceable)
            allowed = false;
    }
    assert_int_equal(write_rows(store, chunk, layer, row, count, version, to, replace_from),
                     allowed ? COMMON_OK : COMMON_FAILED_PRECONDITION);
    for (uint32_t i = row; allowed && i < row + count; i++) {
        struct model_row *m = &model[layer][i];
        bool frozen = to == WORKER_ROW_APPENDED && m->state == WORKER_ROW_PREPARED;
        if (m->state <= WORKER_ROW_PUT || m->version != version || frozen)
            *m = (struct model_row){to, version};
    }
}

static void model_mark(struct worker_chunk *chunk, struct model_row (*model)[TOKENS])
{
    uint32_t layer = pick(LAYERS), row = pick(TOKENS), count = 1 + pick(TOKENS - row), what = pick(3);
    (what == 0   ? worker_chunk_prepare
     : what == 1 ? worker_chunk_abort
                 : worker_chunk_commit)(chunk, layer, row, count);
    for (uint32_t i = row; i < row + count; i++) {
        enum worker_row *at = &model[layer][i].state;
        if (what == 0 && *at == WORKER_ROW_PUT)
            *at = WORKER_ROW_PREPARED;
        else if (what == 1 && *at == WORKER_ROW_PREPARED)
            *at = WORKER_ROW_PUT;
        else if (what == 2 && (*at == WORKER_ROW_PREPARED || *at == WORKER_ROW_APPENDED))
            *at = WORKER_ROW_COMMITTED;
    }
}

static void model_compare(const struct worker_chunk *chunk, struct model_row (*model)[TOKENS])
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint32_t ready = 0;
        for (uint32_t row = 0; row < TOKENS; row++) {
            assert_int_equal(worker_chunk_row(chunk, layer, row), model[layer][row].state);
            if (model[layer][row].state != WORKER_ROW_ABSENT)
                assert_row(chunk, layer, row, model[layer][row].version);
            if (ready == row && model[layer][row].state >= WORKER_ROW_APPENDED)
                ready++;
        }
        assert_int_equal(worker_chunk_ready(chunk, layer), ready);
    }
}

static void many_operations_match_a_model(void **state)
{
    (void)state;
    random_state = 20261121;
    for (int life = 0; life < 60; life++) {
        struct worker_store *store = store_of(1 << 20);
        struct worker_chunk *chunk = hold(store, 77);
        struct model_row model[LAYERS][TOKENS] = {{{WORKER_ROW_ABSENT, 0}}};
        uint32_t pins = 0;
        for (int i = 0; i < 120; i++) {
            uint32_t what = pick(10);
            if (what < 6) {
                model_write(store, chunk, model);
            } else if (what < 8) {
                model_mark(chunk, model);
            } else if (what == 8) {
                worker_store_pin(chunk);
                pins++;
            } else if (pins > 0) {
                worker_store_unpin(store, chunk);
                pins--;
            }
            model_compare(chunk, model);
        }
        while (pins-- > 0)
            worker_store_unpin(store, chunk);
        worker_store_release(store, chunk);
        end(store);
    }
}

// argv[1]: a device's module, whose memory is then used, for one type. What looks at addresses is left out.
int main(int argc, char **argv)
{
    struct worker_device_options options = {.wanted = "cuda:0", .limit_bytes = 64 << 20};
    options.module = argc > 1 ? argv[1] : NULL;
    if (argc > 1 && worker_device_open(&options, &device, NULL) != COMMON_OK)
        return 2;
    static const char *const names[] = {"", "f32", "f16", "bf16", "int8", "fp8"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_comes_page_by_page),
        cmocka_unit_test(what_nobody_commits_goes),
        cmocka_unit_test(full_layers_become_blocks),
        cmocka_unit_test(runs_cover_what_is_ready),
        cmocka_unit_test(rows_go_through_their_states),
        cmocka_unit_test(appended_rows_give_way_only_where_they_may),
        cmocka_unit_test(appends_outlive_an_abort),
        cmocka_unit_test(a_new_history_forgets_what_was_put),
        cmocka_unit_test(pinned_bytes_stay),
        cmocka_unit_test(withdrawn_bytes_stay_under_a_pin),
        cmocka_unit_test(hashes_know_no_pages),
        cmocka_unit_test(a_full_store_changes_nothing),
        cmocka_unit_test(shared_chunks_are_not_written),
        cmocka_unit_test(copies_keep_what_is_committed),
        cmocka_unit_test(a_copy_fits_or_changes_nothing),
        cmocka_unit_test(many_operations_match_a_model),
    };
    int failed = 0;
    for (uint32_t type = device ? KERNELS_KV_INT8 : KERNELS_KV_F32;
         type <= (device ? KERNELS_KV_INT8 : KERNELS_KV_FP8); type++) {
        struct CMUnitTest of_type[sizeof tests / sizeof *tests];
        for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
            of_type[i] = tests[i];
            of_type[i].setup_func = take_type;
            of_type[i].initial_state = &type;
        }
        failed += cmocka_run_group_tests_name(names[type], of_type, NULL, NULL);
    }
    worker_device_close(device);
    return failed;
}
