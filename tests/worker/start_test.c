// SPDX-License-Identifier: Apache-2.0
// A start on a directory: whose it is, and what reading it costs.
#include <string.h>

#include "common/hash/hash.h"
#include "tests/worker/disk_fixture.h"
#include "worker/disk/state.h"

#define MARK "banyan-store"
#define COPY "banyan-store.copy"

// ---- whose it is --------------------------------------------------------------------------------

static void make(struct sim_files *directory, const char *name)
{
    struct process p;
    sim_files_init(directory);
    assert_int_equal(begin(&p, sim_files_open(directory), name, 1 << 22), COMMON_OK);
    set_layout(&p, 1);
    finish(&p);
}

// All of it outlives a loss of power.
static void sync_all(struct sim_files *directory)
{
    static const char *const folders[] = {".", "sessions", "chunks", "quarantine"};
    struct worker_files *files = sim_files_open(directory);
    for (size_t i = 0; i < directory->n; i++)
        assert_int_equal(files->ops->sync(files, directory->files[i].name), 0);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        assert_int_equal(files->ops->sync_folder(files, folders[i]), 0);
    files->ops->close(files);
}

static void end(struct process *p)
{
    if (p->disk) {
        finish(p);
        return;
    }
    worker_map_free(&p->sessions);
    worker_store_free(p->store);
    common_loop_free(p->loop);
}

// A start by this name. What came of it; the process has ended.
static enum common_code try_start(struct sim_files *directory, const char *name, struct process *p)
{
    enum common_code code = begin(p, sim_files_open(directory), name, 1 << 22);
    if (code == COMMON_OK)
        assert_non_null(session_of(p));
    end(p);
    return code;
}

struct text {
    uint8_t bytes[512];
    size_t len;
};

static void get(struct sim_files *directory, const char *name, struct text *out)
{
    const struct sim_file *file = sim_files_find(directory, name);
    assert_non_null(file);
    out->len = file->len;
    if (file->len)
        memcpy(out->bytes, file->bytes, file->len);
}

static void put(struct sim_files *directory, const char *name, const uint8_t *bytes, size_t len)
{
    struct worker_files *files = sim_files_open(directory);
    (void)files->ops->remove(files, name);
    assert_int_equal(files->ops->write(files, name, 0, &(struct iovec){(void *)(uintptr_t)bytes, len}, 1), 0);
    files->ops->close(files);
}

static void take_out(struct sim_files *directory, const char *name)
{
    struct worker_files *files = sim_files_open(directory);
    assert_int_equal(files->ops->remove(files, name), 0);
    files->ops->close(files);
}

static void check_is(struct sim_files *directory, const char *name, const struct text *want)
{
    struct text have;
    get(directory, name, &have);
    assert_int_equal(have.len, want->len);
    assert_memory_equal(have.bytes, want->bytes, want->len);
}

// Every end that a file may have, and every bit of it that may flip. damaged: of one such file.
static void each_damage(struct sim_files *directory, const char *name,
                        void (*damaged)(struct sim_files *directory))
{
    struct text was;
    get(directory, name, &was);
    for (size_t len = 0; len < was.len; len++) {
        put(directory, name, was.bytes, len);
        damaged(directory);
        put(directory, name, was.bytes, was.len);
    }
    for (size_t bit = 0; bit < 8 * was.len; bit++) {
        struct text now = was;
        now.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        put(directory, name, now.bytes, now.len);
        damaged(directory);
        put(directory, name, was.bytes, was.len);
    }
}

static struct text mark, copy;

static void opens_and_repairs(struct sim_files *directory)
{
    struct process p;
    enum common_code code = try_start(directory, "w", &p);
    if (code != COMMON_OK)
        fail_msg("%s", p.err.message);
    check_is(directory, MARK, &mark);
    check_is(directory, COPY, &copy);
    assert_int_equal(sim_files_count(directory, "quarantine/banyan-store"), 1);
    take_out(directory,
             sim_files_find(directory, "quarantine/" MARK) ? "quarantine/" MARK : "quarantine/" COPY);
}

static void one_of_two(void **state)
{
    struct sim_files directory;
    (void)state;
    make(&directory, "w");
    get(&directory, MARK, &mark);
    get(&directory, COPY, &copy);
    each_damage(&directory, MARK, opens_and_repairs);
    each_damage(&directory, COPY, opens_and_repairs);
    sim_files_end(&directory);
}

static void is_refused(struct sim_files *directory)
{
    struct process p;
    struct text was_mark, was_copy;
    get(directory, MARK, &was_mark);
    get(directory, COPY, &was_copy);
    assert_int_equal(try_start(directory, "w", &p), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(p.err.message, "--name other"));
    assert_null(strstr(p.err.message, "damaged"));
    check_is(directory, MARK, &was_mark); // nothing has changed
    check_is(directory, COPY, &was_copy);
    assert_int_equal(sim_files_count(directory, "quarantine/"), 0);
}

static void of_another(void **state)
{
    struct sim_files directory;
    (void)state;
    make(&directory, "other");
    is_refused(&directory);
    each_damage(&directory, MARK, is_refused);
    sim_files_end(&directory);
}

static void is_not_adopted(struct sim_files *directory)
{
    struct process p;
    assert_int_equal(try_start(directory, "w", &p), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(p.err.message, "is damaged"));
    assert_int_equal(sim_files_count(directory, "quarantine/"), 0);
}

// A store of an older build, which has no copy: what is damaged is not taken for another's.
static void without_copy(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    make(&directory, "w");
    take_out(&directory, COPY);
    each_damage(&directory, MARK, is_not_adopted);
    take_out(&directory, MARK); // as the error says
    assert_int_equal(try_start(&directory, "w", &p), COMMON_OK);
    check_is(&directory, MARK, &mark);
    check_is(&directory, COPY, &copy);
    sim_files_end(&directory);
}

static void both_damaged(void **state)
{
    struct sim_files directory;
    (void)state;
    make(&directory, "w");
    put(&directory, COPY, copy.bytes, copy.len / 2);
    each_damage(&directory, MARK, is_not_adopted);
    sim_files_end(&directory);
}

// A loss of power at any moment of a repair leaves what the next start repairs.
static void ends_in_between(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    for (uint64_t moves = 1; moves < 12; moves++)
        for (uint64_t chance = 1; chance < 20; chance++) {
            make(&directory, "w");
            put(&directory, MARK, mark.bytes, mark.len / 2);
            sync_all(&directory);
            directory.moves = 0;
            directory.dies_at = moves;
            (void)try_start(&directory, "w", &p);
            directory.dies_at = 0;
            sim_files_power(&directory, common_mix64(chance));
            if (try_start(&directory, "w", &p) != COMMON_OK)
                fail_msg("after %d moves: %s", (int)moves, p.err.message);
            check_is(&directory, MARK, &mark);
            check_is(&directory, COPY, &copy);
            sim_files_end(&directory);
        }
}

// ---- what it costs ------------------------------------------------------------------------------

// So many sessions with a chunk each, whose logs have torn ends. What a start does.
struct costs {
    uint64_t looks, reads, calls;
};

static struct costs costs_of(uint32_t sessions)
{
    struct sim_files directory;
    struct process p;
    uint8_t k[ROW], v[ROW];
    sim_files_init(&directory);
    start(&p, &directory);
    for (uint64_t id = 1; id <= sessions; id++) {
        assert_int_equal(tell_apart(&p, id, 1), COMMON_OK);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            struct worker_rows rows = {worker_store_find(p.store, 100 * id), layer, 0, 1, k, v};
            row_of(layer, 0, k, v);
            assert_int_equal(worker_store_write(p.store, &rows, 1, WORKER_ROW_COMMITTED, UINT64_MAX, &p.err),
                             COMMON_OK);
        }
    }
    finish(&p);
    for (size_t i = 0; i < directory.n; i++) // half a record
        if (strncmp(directory.files[i].name, "chunks/", 7) == 0)
            directory.files[i].len -= 8;
    directory.reads = directory.calls = 0;
    start(&p, &directory);
    struct costs costs = {p.disk->looks, directory.reads, directory.calls};
    assert_int_equal(p.sessions.count, sessions);
    finish(&p);
    sim_files_end(&directory);
    return costs;
}

// As many again cost as much again: nothing is compared with all others.
static void is_linear(void **state)
{
    (void)state;
    const struct costs one = costs_of(1), half = costs_of(50), all = costs_of(100);
    assert_int_equal(half.looks, 50 * one.looks);
    assert_int_equal(all.looks, 100 * one.looks);
    assert_int_equal(all.reads - half.reads, 50 * (one.reads - costs_of(0).reads));
    assert_true(all.calls - half.calls <= 50 * 8); // of a session and its chunk: size, read, and the torn end
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_of_two),   cmocka_unit_test(of_another),      cmocka_unit_test(without_copy),
        cmocka_unit_test(both_damaged), cmocka_unit_test(ends_in_between), cmocka_unit_test(is_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
