// SPDX-License-Identifier: Apache-2.0
// Rows that leave memory for a worker's files (worker/store/cold.h): which may, in which order, that they
// come back with the same bytes or not at all, whatever is damaged, and that what is in use stays.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/worker/disk_fixture.h"
#include "worker/disk/fetch.h"
#include "worker/files/files.h"
#include "worker/store/cold.h"

enum { FULL = CHUNKS * TOKENS };

static struct worker_chunk *chunk_of(struct process *p, uint32_t nth)
{
    return worker_store_find(p->store, 100 + nth);
}

// A session of three full chunks, all of them sealed but those from `sealed` on.
static void make_full(struct sim_files *directory, uint32_t sealed)
{
    struct process p;
    sim_files_init(directory);
    start(&p, directory);
    (void)fill(&p, FULL);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        worker_appended_confirm(session_of(&p), layer, FULL);
    worker_disk_touch(p.disk, session_of(&p));
    finish(&p);
    for (uint32_t i = 0; i < sealed; i++)
        seal(directory, 100 + i);
}

static uint32_t cool_all(struct process *p)
{
    uint32_t n = 0;
    while (worker_store_evict(p->store, NULL))
        n++;
    return n;
}

static void check_rows(struct process *p)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_int_equal(check_layer(p, layer, WORKER_ROW_APPENDED), FULL);
}

static void leaves_and_comes_back(void **state)
{
    struct sim_files directory;
    struct process p;
    struct worker_cold_stats cold;
    uint64_t hash[CHUNKS][LAYERS], again;
    (void)state;
    make_full(&directory, CHUNKS);
    start(&p, &directory);
    uint64_t used = worker_store_used(p.store), bytes = worker_chunk_bytes(chunk_of(&p, 0));
    assert_true(bytes > 0);
    for (uint32_t i = 0; i < CHUNKS * LAYERS; i++)
        assert_true(worker_chunk_hash(chunk_of(&p, i / LAYERS), i % LAYERS, 0, TOKENS,
                                      &hash[i / LAYERS][i % LAYERS]));
    assert_int_equal(cool_all(&p), CHUNKS * LAYERS);
    worker_store_get_cold(p.store, &cold);
    assert_int_equal(cold.bytes, CHUNKS * bytes);
    assert_int_equal(cold.evicted, CHUNKS * LAYERS);
    assert_true(worker_store_used(p.store) <= used - CHUNKS * bytes);
    for (uint32_t i = 0; i < CHUNKS; i++) { // it is held as before
        assert_int_equal(worker_chunk_bytes(chunk_of(&p, i)), 0);
        assert_int_equal(worker_chunk_held_bytes(chunk_of(&p, i)), bytes);
        assert_true(worker_chunk_any_cold(chunk_of(&p, i)));
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            assert_int_equal(worker_chunk_ready(chunk_of(&p, i), layer), TOKENS);
    }
    check_rows(&p); // which loads
    worker_store_get_cold(p.store, &cold);
    assert_int_equal(cold.bytes, 0);
    assert_int_equal(cold.loaded, CHUNKS * LAYERS);
    assert_int_equal(worker_store_used(p.store), used);
    for (uint32_t i = 0; i < CHUNKS * LAYERS; i++) {
        assert_true(worker_chunk_hash(chunk_of(&p, i / LAYERS), i % LAYERS, 0, TOKENS, &again));
        assert_true(again == hash[i / LAYERS][i % LAYERS]);
    }
    assert_int_equal(p.lost, 0);
    finish(&p);
    sim_files_end(&directory);
}

static void what_is_used_stays(void **state)
{
    struct sim_files directory;
    struct process p;
    bool pinned = false;
    (void)state;
    make_full(&directory, CHUNKS);
    start(&p, &directory);
    worker_store_pin(chunk_of(&p, 0));
    worker_chunk_want(chunk_of(&p, 1), 1);
    worker_chunk_busy(chunk_of(&p, 2));
    assert_true(worker_store_evict(p.store, &pinned)); // layer 0 of the second chunk
    assert_true(pinned);
    assert_int_equal(cool_all(&p), 0);
    assert_true(worker_chunk_cold(chunk_of(&p, 1), 0));
    assert_false(worker_chunk_cold(chunk_of(&p, 1), 1));
    assert_false(worker_chunk_any_cold(chunk_of(&p, 0)));
    assert_false(worker_chunk_any_cold(chunk_of(&p, 2)));
    worker_store_unpin(p.store, chunk_of(&p, 0));
    worker_chunk_unwant(p.store, chunk_of(&p, 1), 1);
    worker_chunk_idle(chunk_of(&p, 2));
    assert_int_equal(cool_all(&p), 5);
    check_rows(&p);
    finish(&p);
    sim_files_end(&directory);
}

static void the_longest_unused_goes_first(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    make_full(&directory, CHUNKS);
    start(&p, &directory);
    worker_chunk_touch(p.store, chunk_of(&p, 0), 1);
    worker_chunk_touch(p.store, chunk_of(&p, 0), 0);
    for (int i = 0; i < 4; i++)
        assert_true(worker_store_evict(p.store, NULL));
    assert_false(worker_chunk_any_cold(chunk_of(&p, 0)));
    assert_true(worker_store_evict(p.store, NULL));
    assert_true(worker_chunk_cold(chunk_of(&p, 0), 1));
    assert_false(worker_chunk_cold(chunk_of(&p, 0), 0));
    finish(&p);
    sim_files_end(&directory);
}

static void only_sealed_chunks_leave(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    make_full(&directory, 2);
    start(&p, &directory);
    assert_int_equal(cool_all(&p), 2 * LAYERS);
    assert_true(worker_chunk_any_cold(chunk_of(&p, 0)));
    assert_false(worker_chunk_any_cold(chunk_of(&p, 2)));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_int_equal(worker_store_load(p.store, chunk_of(&p, 1), layer, &p.err), COMMON_OK);
    // Rows that go make it a log again.
    worker_chunk_withdraw(chunk_of(&p, 1), 0, TOKENS - 1, 1, WORKER_ROW_ABSENT);
    assert_int_equal(cool_all(&p), 0);
    finish(&p);
    sim_files_end(&directory);
}

// ---- what is damaged ----------------------------------------------------------------------------

static void restore(struct sim_files *directory, const struct sim_files *from)
{
    sim_files_end(directory);
    sim_files_init(directory);
    struct worker_files *files = sim_files_open(directory);
    for (size_t i = 0; i < from->n; i++)
        assert_int_equal(files->ops->write(files, from->files[i].name, 0,
                                           &(struct iovec){from->files[i].bytes, from->files[i].len}, 1),
                         0);
    files->ops->close(files);
}

// Loads both layers of the first chunk. Whether all came; those that did have their bytes.
static bool load_first(struct process *p)
{
    uint8_t k[ROW], v[ROW], want_k[ROW], want_v[ROW];
    struct worker_chunk *chunk = chunk_of(p, 0);
    bool all = true;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        enum common_code code = worker_store_load(p->store, chunk, layer, &p->err);
        all = all && code == COMMON_OK;
        assert_true(code == COMMON_OK || code == COMMON_UNAVAILABLE);
        assert_int_equal(worker_chunk_cold(chunk, layer), code != COMMON_OK);
        for (uint32_t row = 0; code == COMMON_OK && row < TOKENS; row++) {
            row_of(layer, row, want_k, want_v);
            worker_chunk_read(chunk, layer, row, 1, k, v);
            assert_memory_equal(k, want_k, ROW);
            assert_memory_equal(v, want_v, ROW);
        }
    }
    return all;
}

// While the process runs, and the rows are in the file alone.
static void every_byte_while_cold(void **state)
{
    struct sim_files good, directory;
    struct process p;
    size_t lost = 0, bytes;
    (void)state;
    make_full(&good, CHUNKS);
    sim_files_init(&directory);
    restore(&directory, &good);
    bytes = sim_files_find(&good, "chunks/0000000000000064.sealed")->len;
    for (size_t at = 0; at < 2 * bytes + 1; at++) { // a bit flips there, it ends there, it is not there
        restore(&directory, &good);
        start(&p, &directory);
        (void)cool_all(&p);
        struct sim_file *file = sim_files_find(&directory, "chunks/0000000000000064.sealed");
        if (at < bytes)
            file->bytes[at] ^= (uint8_t)(1u << at % 8);
        else if (at < 2 * bytes)
            file->len = at - bytes;
        else
            snprintf(file->name, sizeof file->name, "elsewhere");
        bool all = load_first(&p);
        finish_changes(&p);
        worker_disk_tell_lost(p.disk);
        worker_disk_tell_lost(p.disk);
        assert_int_equal(p.lost, !all); // once
        assert_true(all || p.lost_chunk == 100);
        assert_int_equal(sim_files_count(&directory, "quarantine/"), !all && at < 2 * bytes);
        lost += !all;
        kill_it(&p, &directory);
    }
    assert_true(lost > 2 * bytes - 16); // what lies between the parts counts for nothing
    sim_files_end(&directory);
    sim_files_end(&good);
}

static atomic_uint looks; // of the disk's thread

static void note_look(void)
{
    atomic_fetch_add(&looks, 1);
}

struct until {
    struct common_loop *loop;
    unsigned looks;
};

static void stop_after_looks(void *arg)
{
    const struct until *until = arg;
    if (atomic_load(&looks) >= until->looks)
        common_loop_stop(until->loop);
}

// A file that cannot be opened for want of a descriptor is no damaged one: its rows, which are there alone,
// are not given up.
static void a_scrub_without_descriptors(void **state)
{
    struct sim_files directory;
    struct process p;
    struct common_timer *timer;
    struct worker_disk_stats stats;
    (void)state;
    make_full(&directory, CHUNKS);
    start(&p, &directory);
    (void)cool_all(&p);
    struct until until = {p.loop, 30}; // three for each file, so that all were looked at
    directory.no_reads_to = UINT64_MAX;
    directory.beside = note_look;
    assert_int_equal(common_timer_new(p.loop, stop_after_looks, &until, &timer), COMMON_OK);
    common_timer_start(timer, 1000000, true);
    common_loop_run(p.loop);
    common_timer_free(timer);
    worker_disk_close(p.disk); // the thread has ended
    assert_true(directory.reads >= CHUNKS);
    directory.no_reads_to = 0;
    worker_disk_get_stats(p.disk, &stats);
    assert_int_equal(stats.damaged, 0);
    assert_int_equal(p.lost, 0);
    assert_int_equal(sim_files_count(&directory, "quarantine/"), 0);
    finish(&p);
    start(&p, &directory);
    check_rows(&p);
    finish(&p);
    sim_files_end(&directory);
}

// ---- rows that change, or return ----------------------------------------------------------------

static enum common_code put_again(struct process *p, uint32_t nth, uint8_t flip)
{
    uint8_t k[TOKENS][ROW], v[TOKENS][ROW];
    struct worker_rows rows = {chunk_of(p, nth), 1, 0, TOKENS, k[0], v[0]};
    for (uint32_t i = 0; i < TOKENS; i++)
        row_of(1, (uint64_t)nth * TOKENS + i, k[i], v[i]);
    v[TOKENS - 1][3] ^= flip;
    return worker_store_write(p->store, &rows, 1, WORKER_ROW_PUT, UINT64_MAX, &p->err);
}

static void rows_come_again(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    make_full(&directory, CHUNKS);
    start(&p, &directory);
    (void)cool_all(&p);
    assert_int_equal(put_again(&p, 0, 0), COMMON_OK);
    (void)cool_all(&p);
    assert_int_equal(put_again(&p, 0, 1), COMMON_FAILED_PRECONDITION);
    (void)cool_all(&p);
    // An append of the last chunk is over before it was acknowledged: its row goes, and another one comes.
    session_of(&p)->appended[0].length = FULL - 1;
    worker_chunk_withdraw(chunk_of(&p, 2), 0, TOKENS - 1, 1, WORKER_ROW_ABSENT);
    assert_true(worker_chunk_cold(chunk_of(&p, 2), 0));
    p.write = session_of(&p)->write;
    assert_int_equal(append(&p, 0, FULL - 1), COMMON_OK);
    assert_false(worker_chunk_any_cold(chunk_of(&p, 2))); // it is a log again, made of all its rows
    assert_int_equal(sim_files_count(&directory, "0000000000000066.log"), 1);
    assert_int_equal(sim_files_count(&directory, "0000000000000066.sealed"), 0);
    kill_it(&p, &directory);
    start(&p, &directory);
    check_rows(&p);
    finish(&p);
    sim_files_end(&directory);
}

static void copies_of_cold_rows(void **state)
{
    struct sim_files directory;
    struct process p;
    struct worker_chunk *to;
    uint64_t hash, warm;
    (void)state;
    make_full(&directory, CHUNKS);
    start(&p, &directory);
    struct worker_shape *shape = (struct worker_shape *)(uintptr_t)worker_chunk_shape(chunk_of(&p, 1));
    assert_int_equal(worker_store_hold(p.store, 200, TOKENS, shape, &to, &p.err), COMMON_OK);
    assert_int_equal(worker_store_copy(p.store, chunk_of(&p, 1), to, TOKENS - 3, &warm, &p.err), COMMON_OK);
    worker_store_release(p.store, to);
    (void)cool_all(&p);
    assert_int_equal(worker_store_hold(p.store, 201, TOKENS, shape, &to, &p.err), COMMON_OK);
    assert_int_equal(worker_store_copy(p.store, chunk_of(&p, 1), to, TOKENS - 3, &hash, &p.err), COMMON_OK);
    assert_true(hash == warm);
    worker_store_release(p.store, to);
    finish(&p);
    sim_files_end(&directory);
}

// ---- memory -------------------------------------------------------------------------------------

// A start needs no more than what is not sealed, and all is named.
static void a_start_with_little_memory(void **state)
{
    struct sim_files directory;
    struct process p;
    struct worker_cold_stats cold;
    (void)state;
    make_full(&directory, CHUNKS);
    assert_int_equal(begin(&p, sim_files_open(&directory), "w", 1 << 16), COMMON_OK); // extents are small
    uint64_t all = worker_store_used(p.store), bytes = worker_chunk_bytes(chunk_of(&p, 0));
    finish(&p);
    for (uint64_t less = 0; less <= CHUNKS * bytes + bytes / 2; less += bytes / 4) {
        uint64_t memory = all + 2 * bytes - less;
        if (begin(&p, sim_files_open(&directory), "w", memory) != COMMON_OK)
            fail_msg("%s", p.err.message);
        assert_int_equal(session_of(&p)->n_chunks, CHUNKS);
        worker_store_get_cold(p.store, &cold);
        assert_true(worker_store_used(p.store) <= memory);
        assert_true(less < 5 * bytes / 2 || cold.bytes > 0);
        check_rows(&p);
        finish(&p);
    }
    sim_files_end(&directory);
}

static void no_memory_to_load(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    make_full(&directory, CHUNKS);
    start(&p, &directory);
    (void)cool_all(&p);
    uint64_t left = worker_store_limit(p.store) - worker_store_used(p.store);
    assert_true(worker_store_take(p.store, left - 100));
    assert_int_equal(worker_store_load(p.store, chunk_of(&p, 0), 0, &p.err), COMMON_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(p.err.message, "--memory"));
    assert_true(worker_chunk_cold(chunk_of(&p, 0), 0));
    assert_int_equal(put_again(&p, 0, 0), COMMON_RESOURCE_EXHAUSTED);
    assert_int_equal(p.lost, 0);
    worker_store_give(p.store, left - 100);
    check_rows(&p);
    finish(&p);
    sim_files_end(&directory);
}

// What comes needs room: what has not been used goes for it, and no more than that.
static void what_comes_makes_room(void **state)
{
    struct sim_files directory;
    struct process p;
    struct worker_cold_stats cold;
    (void)state;
    make_full(&directory, 2);
    start(&p, &directory);
    worker_store_set_capacity(p.store, UINT64_MAX);
    uint64_t left = worker_store_limit(p.store) - worker_store_used(p.store);
    assert_true(worker_store_take(p.store, left));
    worker_store_get_cold(p.store, &cold);
    assert_int_equal(cold.evicted, 0);
    assert_true(worker_store_take(p.store, 64));
    worker_store_get_cold(p.store, &cold);
    assert_int_equal(cold.evicted, 1);
    worker_store_give(p.store, left + 64);
    check_rows(&p);
    // In files and memory together there may be so much, and no more.
    worker_store_set_capacity(p.store, 0);
    (void)cool_all(&p);
    assert_int_equal(worker_store_capacity(p.store), worker_store_limit(p.store));
    assert_true(worker_store_total(p.store) > worker_store_used(p.store));
    finish(&p);
    sim_files_end(&directory);
}

// ---- beside the loop, in a real directory -------------------------------------------------------

static void stop(void *arg)
{
    common_loop_stop(arg);
}

// Full chunks are sealed as soon as memory is short, and not only when they have been quiet.
static void seal_in_a_hurry(struct process *p)
{
    struct worker_disk_stats stats;
    struct common_timer *timer;
    assert_int_equal(common_timer_new(p->loop, stop, p->loop, &timer), COMMON_OK);
    assert_true(worker_disk_hurry(p->disk));
    for (int i = 0; i < 1000; i++) {
        common_timer_start(timer, 5000000, false);
        common_loop_run(p->loop);
        worker_disk_get_stats(p->disk, &stats);
        if (stats.sealed == CHUNKS)
            break;
    }
    assert_int_equal(stats.sealed, CHUNKS);
    assert_false(worker_disk_hurry(p->disk)); // nothing is left to be sealed
    common_timer_free(timer);
}

struct loading {
    struct worker_fetch fetch;
    struct process *p;
    uint32_t *left;
};

static void fetched(void *arg)
{
    struct loading *l = arg;
    assert_int_equal(l->fetch.result, 0);
    worker_store_loaded(l->p->store, worker_store_find(l->p->store, l->fetch.chunk), l->fetch.layer,
                        l->fetch.block, 1);
    if (--*l->left == 0)
        common_loop_stop(l->p->loop);
}

static void load_by_threads(struct process *p)
{
    struct loading all[CHUNKS * LAYERS];
    uint32_t left = CHUNKS * LAYERS;
    assert_int_equal(cool_all(p), CHUNKS * LAYERS);
    for (uint32_t i = 0; i < CHUNKS * LAYERS; i++) {
        struct worker_chunk *chunk = chunk_of(p, i / LAYERS);
        struct worker_shape *shape = (struct worker_shape *)(uintptr_t)worker_chunk_shape(chunk);
        all[i] = (struct loading){.p = p, .left = &left};
        all[i].fetch = (struct worker_fetch){
            .chunk = worker_chunk_id(chunk),
            .first = worker_chunk_first(chunk),
            .shape = shape,
            .layer = i % LAYERS,
            .block = worker_store_alloc(p->store, worker_shape_form(shape, i % LAYERS)->block_bytes, NULL),
            .ended = fetched,
            .arg = &all[i]};
        assert_non_null(all[i].fetch.block);
        worker_disk_fetch(p->disk, &all[i].fetch);
    }
    common_loop_run(p->loop);
    assert_int_equal(left, 0);
}

static void by_threads(void **state)
{
    char path[] = "/tmp/banyan-cold-test-XXXXXX", command[64];
    struct worker_files *files;
    struct process p;
    (void)state;
    assert_non_null(mkdtemp(path));
    assert_int_equal(worker_files_open(path, &files, &p.err), COMMON_OK);
    assert_int_equal(begin(&p, files, "w", 1 << 22), COMMON_OK);
    (void)fill(&p, FULL);
    seal_in_a_hurry(&p);
    for (int round = 0; round < 20; round++) {
        load_by_threads(&p);
        check_rows(&p);
    }
    finish(&p);
    snprintf(command, sizeof command, "rm -r -- '%s'", path);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_and_comes_back),
        cmocka_unit_test(what_is_used_stays),
        cmocka_unit_test(the_longest_unused_goes_first),
        cmocka_unit_test(only_sealed_chunks_leave),

        cmocka_unit_test(every_byte_while_cold),
        cmocka_unit_test(a_scrub_without_descriptors),
        cmocka_unit_test(rows_come_again),
        cmocka_unit_test(copies_of_cold_rows),
        cmocka_unit_test(a_start_with_little_memory),
        cmocka_unit_test(no_memory_to_load),
        cmocka_unit_test(what_comes_makes_room),
        cmocka_unit_test(by_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
