// SPDX-License-Identifier: Apache-2.0
// A chunk's memory is rewritten from its file: only where that is right, not while a step reads it, a little
// at a time, and the loop waits for no file.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "proto/sums/rows_sum.h"
#include "tests/worker/disk_fixture.h"
#include "worker/disk/reread.h"
#include "worker/store/chunk.h"
#include "worker/store/cold.h"

enum { NTH = 1, ID = 100 + NTH };

static struct process p;
static struct sim_files directory;
static uint32_t reads_of_the_loop;
static const struct worker_files_ops *inner;

static int64_t count_read(struct worker_files *files, const char *name, uint64_t at, void *out, size_t len)
{
    reads_of_the_loop++;
    return inner->read(files, name, at, out, len);
}

static struct worker_chunk *the_chunk(void)
{
    return worker_store_find(p.store, ID);
}

// Three full chunks, read again from their logs, or from sealed files. Reads by the loop's own handle are
// counted from then on.
static void begin_full(bool sealed)
{
    static struct worker_files_ops counting;
    sim_files_init(&directory);
    start(&p, &directory);
    (void)fill(&p, ROOM);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        worker_appended_confirm(session_of(&p), layer, ROOM);
    worker_disk_touch(p.disk, session_of(&p));
    finish(&p);
    for (uint32_t i = 0; i < CHUNKS && sealed; i++)
        seal(&directory, 100 + i);
    struct worker_files *files = sim_files_open(&directory);
    assert_int_equal(begin(&p, files, "w", 1 << 22), COMMON_OK);
    inner = files->ops;
    counting = *files->ops;
    counting.read = count_read;
    files->ops = &counting;
}

static void end(void)
{
    finish(&p);
    sim_files_end(&directory);
}

static uint64_t memory_seal(void)
{
    uint64_t seal = 0, sum;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_true(worker_chunk_sum(the_chunk(), layer, 0, TOKENS, &sum));
        seal = proto_seal_add(seal, layer, sum);
    }
    return proto_seal_done(seal);
}

static void flip(uint32_t layer, uint32_t row)
{
    worker_layer_part(the_chunk()->layers[layer], WORKER_PART_V, row, 1)[3] ^= 0x10;
}

static uint32_t wrong_rows(void)
{
    uint8_t k[ROW], v[ROW], right_k[ROW], right_v[ROW];
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t row = 0; row < TOKENS; row++) {
            worker_chunk_read(the_chunk(), layer, row, 1, k, v);
            row_of(layer, NTH * TOKENS + row, right_k, right_v);
            n += memcmp(k, right_k, ROW) != 0 || memcmp(v, right_v, ROW) != 0;
        }
    return n;
}

static void on_ended(void *arg)
{
    *(bool *)arg = true;
    common_loop_stop(p.loop);
}

static struct worker_reread *reread(uint64_t seal)
{
    bool ended = false;
    uint32_t before = wrong_rows();
    reads_of_the_loop = 0;
    struct worker_reread *r =
        worker_disk_reread(p.disk, the_chunk(), session_of(&p)->spec, seal, on_ended, &ended);
    assert_non_null(r);
    assert_false(ended);
    common_loop_run(p.loop);
    assert_true(ended);
    assert_int_equal(reads_of_the_loop, 0);
    assert_int_equal(wrong_rows(), before); // nothing is written before it must be
    return r;
}

static void written_a_little_at_a_time(void **state)
{
    (void)state;
    for (int sealed = 0; sealed < 2; sealed++) {
        begin_full(sealed);
        uint64_t right = memory_seal();
        for (uint32_t i = 0; i < LAYERS * TOKENS; i++)
            flip(i / TOKENS, i % TOKENS);
        assert_int_equal(wrong_rows(), LAYERS * TOKENS);
        struct worker_reread *r = reread(right);
        for (uint32_t wrong = LAYERS * TOKENS; wrong > 0; wrong -= 2) {
            worker_store_pin(the_chunk()); // a step reads it
            assert_int_equal(worker_reread_write(r, the_chunk(), 4 * ROW), WORKER_REREAD_PINNED);
            assert_int_equal(wrong_rows(), wrong);
            worker_store_unpin(p.store, the_chunk());
            assert_int_equal(worker_reread_write(r, the_chunk(), 4 * ROW),
                             wrong > 2 ? WORKER_REREAD_MORE : WORKER_REREAD_DONE);
            assert_int_equal(wrong_rows(), wrong - 2);
        }
        assert_true(memory_seal() == right);
        worker_reread_free(r);
        end();
    }
}

// What the file has is something else, or nothing, or damaged.
static void only_what_is_right(void **state)
{
    (void)state;
    for (int what = 0; what < 3; what++) {
        begin_full(true);
        uint64_t right = memory_seal();
        flip(1, 5);
        uint64_t wrong = memory_seal();
        struct sim_file *file = sim_files_find(&directory, "chunks/0000000000000065.sealed");
        assert_non_null(file);
        if (what == 1)
            file->bytes[file->len - 9] ^= 1;
        if (what == 2)
            file->name[0] = 'x';
        struct worker_reread *r = reread(what == 0 ? wrong : right);
        assert_int_equal(worker_reread_write(r, the_chunk(), UINT64_MAX), WORKER_REREAD_NONE);
        assert_int_equal(wrong_rows(), 1);
        worker_reread_free(r);
        end();
    }
}

// Rows that are on the disk alone are left there; and a chunk that lacks rows by now is left as it is.
static void what_is_not_there(void **state)
{
    (void)state;
    begin_full(true);
    uint64_t right = memory_seal();
    flip(0, 3);
    flip(1, 3);
    struct worker_reread *r = reread(right);
    while (!worker_chunk_cold(the_chunk(), 0))
        assert_true(worker_store_evict(p.store, NULL));
    bool both = worker_chunk_cold(the_chunk(), 1);
    assert_int_equal(worker_reread_write(r, the_chunk(), UINT64_MAX), WORKER_REREAD_DONE);
    assert_true(worker_chunk_cold(the_chunk(), 0) && worker_chunk_cold(the_chunk(), 1) == both);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_int_equal(check_layer(&p, layer, WORKER_ROW_APPENDED), ROOM); // all right, once loaded
    worker_reread_free(r);
    r = reread(right);
    worker_chunk_withdraw(the_chunk(), 1, 0, TOKENS, WORKER_ROW_ABSENT);
    assert_int_equal(worker_reread_write(r, the_chunk(), UINT64_MAX), WORKER_REREAD_NONE);
    worker_reread_free(r);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_a_little_at_a_time),
        cmocka_unit_test(only_what_is_right),
        cmocka_unit_test(what_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
