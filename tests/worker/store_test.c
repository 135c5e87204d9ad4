// SPDX-License-Identifier: Apache-2.0
// The store: pages and blocks, the account of memory, hashes, copies. What rows go through:
// store_rows_test.c; many random operations against a naive model: store_model_test.c.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"
#include "common/memory/block.h"
#include "proto/model/footprint.h"
#include "tests/worker/store_fixture.h"
#include "worker/memory/arena.h"
#include "worker/memory/memory.h"
#include "worker/store/shape.h"

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

#ifndef __SANITIZE_ADDRESS__ // where blocks are not kept
// What goes for good was in messages, too: what these leave behind is wiped then, and not before.
static void blocks_are_wiped_when_rows_have_gone(void **state)
{
    (void)state;
    enum { BYTES = 5000 };
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1);
    assert_int_equal(write_rows(store, chunk, 0, 0, 16, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    uint8_t *block = common_block_take(BYTES, COMMON_BLOCK_DAEMONS);
    assert_non_null(block);
    memset(block, 7, BYTES);
    common_block_give(block);
    assert_false(common_block_clean(SIZE_MAX, false));
    assert_int_equal(block[BYTES - 1], 7);
    worker_store_release(store, chunk);
    while (common_block_clean(SIZE_MAX, false))
        continue;
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(block[i], 0);
    end(store);
}
#endif

// Rows that are never committed go, and the pages that had nothing else; frozen, appended and committed rows
// stay.
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
    assert_int_equal(worker_store_expire(store, chunk), 0); // it is being read
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

struct counted { // memory that counts its copies
    struct worker_memory *host;
    uint32_t calls, copies;
};

static void *counted_map(void *arg, size_t bytes)
{
    (void)arg;
    void *base;
    return posix_memalign(&base, 2 << 20, bytes) == 0 ? base : NULL;
}

static void counted_unmap(void *arg, void *base, size_t bytes)
{
    (void)arg, (void)bytes;
    free(base);
}

static void counted_write(void *arg, const struct worker_piece *pieces, uint32_t n)
{
    worker_memory_write(((struct counted *)arg)->host, pieces, n);
}

static void counted_read(void *arg, const struct worker_piece *pieces, uint32_t n)
{
    worker_memory_read(((struct counted *)arg)->host, pieces, n);
}

static void counted_copy(void *arg, const struct worker_copy *copies, uint32_t n)
{
    struct counted *counted = arg;
    counted->calls++;
    counted->copies += n;
    worker_memory_copy(counted->host, copies, n);
}

// Pages become a block by one call, whose copies have all heads: a call to a device takes microseconds.
static void a_block_is_one_call(void **state)
{
    (void)state;
    static const struct worker_memory_ops ops = {.write = counted_write,
                                                 .read = counted_read,
                                                 .copy = counted_copy};
    struct counted counted = {.host = worker_memory_host(1 << 20, NULL)};
    const struct worker_arena_source source = {.map = counted_map, .unmap = counted_unmap};
    struct worker_store *store =
        worker_store_new(1 << 20, worker_memory_new(1 << 20, &source, &ops, &counted, NULL));
    struct worker_chunk *chunk = hold(store, 1);
    for (uint32_t row = 0; row < TOKENS; row++)
        assert_int_equal(write_rows(store, chunk, 0, row, 1, 0, WORKER_ROW_PUT, UINT64_MAX), COMMON_OK);
    assert_true(worker_chunk_in_block(chunk, 0));
    assert_int_equal(counted.calls, 1);
    assert_int_equal(counted.copies, TOKENS / 16 * (scale ? 4 : 2));
    for (uint32_t row = 0; row < TOKENS; row++)
        assert_row(chunk, 0, row, 0);
    worker_store_release(store, chunk);
    end(store);
    worker_memory_free(counted.host);
}

// What the coordinator counts for a chunk (proto/model/footprint.h) is enough, whatever its shape, and not
// much too much: K and V that fill extents exactly, that leave something over at a mapping's end, that need
// padding, in many layers.
static void chunks_take_no_more_than_their_footprint(void **state)
{
    (void)state;
    static const struct {
        uint32_t layers, heads, k_dim, v_dim, tokens;
        bool v_in_k;
    } specs[] = {
        {1, 8, 128, 128, 256, false},   {3, 10, 128, 96, 256, false}, {2, 2, 5, 3, 48, false},
        {1, 16, 192, 128, 4096, false}, {40, 1, 64, 64, 64, false},   {2, 1, 576, 512, 256, true},
    };
    const uint64_t limit = UINT64_C(160) << 20;
    static uint8_t nothing[4096 * 16 * 192 * 4];
    if (device)
        skip();
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
        spec.layers = specs[i].layers;
        spec.q_heads = spec.kv_heads = specs[i].heads;
        spec.k_dim = specs[i].k_dim, spec.v_dim = specs[i].v_dim, spec.v_in_k = specs[i].v_in_k;
        spec.chunk_tokens = specs[i].tokens;
        spec.kv_type = shape->kv_type;
        struct worker_shape *its = worker_shape_new(&spec);
        struct worker_store *store = store_of(limit);
        uint64_t room = limit - proto_footprint_slack(limit), each = proto_footprint_chunk(&spec),
                 n = room / each;
        n = n < 4096 ? n : 4096; // of tiny ones some
        struct worker_chunk **chunks = calloc(n, sizeof *chunks);
        assert_true(n > 0);
        for (uint64_t c = 0; c < n; c++) {
            assert_int_equal(worker_store_hold(store, c + 1, c * spec.chunk_tokens, its, &chunks[c], NULL),
                             COMMON_OK);
            for (uint32_t layer = 0; layer < spec.layers; layer++) {
                struct worker_rows piece = {chunks[c], layer, 0, spec.chunk_tokens, nothing, nothing};
                assert_int_equal(worker_store_write(store, &piece, 1, WORKER_ROW_PUT, UINT64_MAX, NULL),
                                 COMMON_OK);
            }
        }
        assert_true(worker_store_used(store) <= n * each + proto_footprint_slack(limit));
        assert_true(n * each <=
                    worker_store_used(store) + worker_store_used(store) / 8); // tiny ones have large tables
        for (uint64_t c = 0; c < n; c++)
            worker_store_release(store, chunks[c]);
        free(chunks);
        worker_shape_unref(its);
        end(store);
    }
}

// As much comes by appends, a token at a time in all layers, and the next chunk only when the last one is
// full: pages, and a block beside them for a moment.
static void chunks_that_are_appended_take_no_more(void **state)
{
    (void)state;
    static const struct {
        uint32_t layers, heads, dim, tokens;
        uint64_t limit;
    } specs[] = {
        {30, 3, 64, 256, UINT64_C(42) << 20},
        {4, 8, 128, 256, UINT64_C(160) << 20},
        {2, 2, 5, 48, 1 << 20},
        {1, 1, 4, 16, 64 << 10},
        {40, 1, 64, 64, UINT64_C(20) << 20},
    };
    static uint8_t nothing[8 * 128 * 4 + 64];
    if (device)
        skip();
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
        spec.layers = specs[i].layers;
        spec.q_heads = spec.kv_heads = specs[i].heads;
        spec.k_dim = spec.v_dim = specs[i].dim;
        spec.chunk_tokens = specs[i].tokens;
        spec.kv_type = shape->kv_type;
        struct worker_shape *its = worker_shape_new(&spec);
        struct worker_store *store = store_of(specs[i].limit);
        uint64_t room = specs[i].limit - proto_footprint_slack(specs[i].limit),
                 n = room / proto_footprint_chunk(&spec);
        struct worker_chunk **chunks = calloc(n, sizeof *chunks);
        assert_true(n > 0);
        for (uint64_t c = 0; c < n; c++) {
            assert_int_equal(worker_store_hold(store, c + 1, c * spec.chunk_tokens, its, &chunks[c], NULL),
                             COMMON_OK);
            for (uint32_t row = 0; row < spec.chunk_tokens; row++)
                for (uint32_t layer = 0; layer < spec.layers; layer++) {
                    struct worker_rows piece = {chunks[c], layer, row, 1, nothing, nothing};
                    enum common_code code =
                        worker_store_write(store, &piece, 1, WORKER_ROW_APPENDED, UINT64_MAX, NULL);
                    if (code != COMMON_OK)
                        fail_msg("spec %zu: row %u of layer %u of chunk %" PRIu64 " of %" PRIu64
                                 " was refused: %" PRIu64 " of %" PRIu64 " bytes",
                                 i, row, layer, c, n, worker_store_used(store), specs[i].limit);
                }
        }
        for (uint64_t c = 0; c < n; c++)
            worker_store_release(store, chunks[c]);
        free(chunks);
        worker_shape_unref(its);
        end(store);
    }
}

static void runs_cover_what_is_ready(void **state)
{
    (void)state;
    if (device)
        skip();
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = NULL;
    assert_int_equal(worker_store_hold(store, 1, 480, shape, &chunk, NULL), COMMON_OK);
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
        assert_int_equal(worker_store_hold(store, 1, 0, shape, &a, NULL), COMMON_OK);
        assert_int_equal(worker_store_hold(store, 2, TOKENS, shape, &b, NULL), COMMON_OK);
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
    struct worker_shape *other = shape_of(K_DIM + 1);
    struct worker_chunk *none = NULL;
    assert_int_equal(worker_store_hold(store, 1, 0, other, &none, NULL), COMMON_FAILED_PRECONDITION);
    worker_shape_unref(other);
    assert_int_equal(worker_store_hold(store, 1, TOKENS, shape, &none, NULL), COMMON_FAILED_PRECONDITION);
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
    assert_int_equal(worker_store_copy(store, from, to, 23, &hash_again, NULL), COMMON_OK); // may be repeated
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
        assert_int_equal(worker_store_hold(store, 1, 0, shape, &from, NULL), COMMON_OK);
        assert_int_equal(worker_store_hold(store, 2, 0, shape, &to, NULL), COMMON_OK);
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

// Of a chunk that two have, a layer's rows go when both forgo them, and the other layer's stay.
static void what_all_forgo_is_given_back(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1), *to = hold(store, 2);
    uint64_t empty = worker_store_used(store), hash = 0;
    assert_int_equal(write_rows(store, chunk, 1, 0, TOKENS, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    uint64_t one = worker_store_used(store);
    assert_int_equal(write_rows(store, chunk, 0, 0, 40, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    uint64_t both = worker_store_used(store);
    assert_ptr_equal(hold(store, 1), chunk);
    worker_store_forgo(store, chunk, 0);
    assert_int_equal(worker_store_used(store), both);
    assert_row(chunk, 0, 39, 0);
    worker_store_unforgo(chunk, 0);
    worker_store_forgo(store, chunk, 0);
    assert_false(worker_chunk_forgotten(chunk, 0));
    worker_store_forgo(store, chunk, 0);
    assert_true(worker_chunk_forgotten(chunk, 0));
    assert_int_equal(worker_store_used(store), one);
    assert_int_equal(worker_chunk_ready(chunk, 0), TOKENS);
    assert_int_equal(worker_chunk_row(chunk, 0, 3), WORKER_ROW_FORGOTTEN);
    assert_int_equal(worker_chunk_rows_at(chunk, 0, 0, TOKENS, WORKER_ROW_COMMITTED), TOKENS);
    worker_store_unforgo(chunk, 0); // what is gone is gone
    worker_store_release(store, chunk);
    for (enum worker_row row = WORKER_ROW_PUT; row <= WORKER_ROW_APPENDED; row += 2)
        assert_int_equal(write_rows(store, chunk, 0, 0, 1, 0, row, row == WORKER_ROW_PUT ? UINT64_MAX : 0),
                         COMMON_FAILED_PRECONDITION);
    assert_int_equal(worker_store_copy(store, chunk, to, 4, &hash, NULL), COMMON_FAILED_PRECONDITION);
    worker_chunk_commit(chunk, 0, 0, TOKENS); // repeated
    worker_chunk_withdraw(chunk, 0, 0, TOKENS, WORKER_ROW_ABSENT);
    assert_int_equal(worker_chunk_row(chunk, 0, 0), WORKER_ROW_FORGOTTEN);
    assert_row(chunk, 1, TOKENS - 1, 0);
    assert_int_equal(worker_store_used(store), one);
    worker_store_forgo(store, chunk, 1);
    assert_int_equal(worker_store_used(store), empty);
    worker_store_release(store, chunk);
    worker_store_release(store, to);
    end(store);
}

// One of the two goes without a word: the other's decides.
static void the_last_who_does_not_forgo_goes(void **state)
{
    (void)state;
    struct worker_store *store = store_of(1 << 20);
    struct worker_chunk *chunk = hold(store, 1);
    uint64_t empty = worker_store_used(store);
    assert_int_equal(write_rows(store, chunk, 0, 0, 40, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
    assert_ptr_equal(hold(store, 1), chunk);
    worker_store_forgo(store, chunk, 0);
    assert_false(worker_chunk_forgotten(chunk, 0));
    worker_store_release(store, chunk);
    assert_true(worker_chunk_forgotten(chunk, 0));
    assert_int_equal(worker_store_used(store), empty);
    worker_store_release(store, chunk);
    end(store);
}

// Who reads goes on reading, and the memory counts meanwhile.
static void what_is_read_is_given_back_later(void **state)
{
    (void)state;
    for (int held = 0; held < 2; held++) {
        struct worker_store *store = store_of(1 << 20);
        struct worker_chunk *chunk = hold(store, 1);
        uint64_t empty = worker_store_used(store), want = 0, got = 1, bytes = 0;
        assert_int_equal(write_rows(store, chunk, 0, 0, 40, 0, WORKER_ROW_APPENDED, UINT64_MAX), COMMON_OK);
        uint64_t used = worker_store_used(store);
        assert_true(worker_chunk_hash(chunk, 0, 0, 40, &want));
        struct worker_hash *reader = worker_hash_new(chunk, 0, 0, 40, &bytes);
        worker_store_forgo(store, chunk, 0);
        assert_true(worker_chunk_forgotten(chunk, 0));
        if (!held)
            worker_store_release(store, chunk);
        assert_int_equal(worker_store_used(store), used);
        assert_true(worker_hash_run(reader, false, &got));
        assert_int_equal(got, want);
        worker_hash_free(store, reader);
        assert_int_equal(worker_store_used(store), held ? empty : 0);
        if (held)
            worker_store_release(store, chunk);
        end(store);
    }
}

int store_memory(uint32_t type)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_comes_page_by_page),
#ifndef __SANITIZE_ADDRESS__
        cmocka_unit_test(blocks_are_wiped_when_rows_have_gone),
#endif
        cmocka_unit_test(what_nobody_commits_goes),
        cmocka_unit_test(full_layers_become_blocks),
        cmocka_unit_test(a_block_is_one_call),
        cmocka_unit_test(chunks_take_no_more_than_their_footprint),
        cmocka_unit_test(chunks_that_are_appended_take_no_more),
        cmocka_unit_test(runs_cover_what_is_ready),
        cmocka_unit_test(hashes_know_no_pages),
        cmocka_unit_test(a_full_store_changes_nothing),
        cmocka_unit_test(shared_chunks_are_not_written),
        cmocka_unit_test(copies_keep_what_is_committed),
        cmocka_unit_test(a_copy_fits_or_changes_nothing),
        cmocka_unit_test(what_all_forgo_is_given_back),
        cmocka_unit_test(the_last_who_does_not_forgo_goes),
        cmocka_unit_test(what_is_read_is_given_back_later),
    };
    return store_group("memory", type, tests, sizeof tests / sizeof *tests);
}

// argv[1]: a device's module, whose memory is then used, for one type. What looks at addresses is left out.
int main(int argc, char **argv)
{
    struct worker_device_options options = {.wanted = "cuda:0", .limit_bytes = 64 << 20};
    options.module = argc > 1 ? argv[1] : NULL;
    if (argc > 1 && worker_device_open(&options, &device, NULL, NULL) != COMMON_OK)
        return 2;
    int failed = 0;
    for (uint32_t type = device ? KERNELS_KV_INT8 : KERNELS_KV_F32;
         type <= (device ? KERNELS_KV_INT8 : KERNELS_KV_FP8); type++)
        failed += store_memory(type) + store_rows(type) + store_model(type);
    worker_device_close(device);
    return failed;
}
