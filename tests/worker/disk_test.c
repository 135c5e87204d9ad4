// SPDX-License-Identifier: Apache-2.0
// A worker's files (worker/disk), over a directory in memory and a real one: whatever byte of them changes, wherever
// they end, and whichever write fails, a process that starts on them has what was acknowledged or does not name the
// chunk, and never other bytes.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/sim/sim_files.h"
#include "worker/disk/disk.h"
#include "worker/disk/image.h"
#include "worker/memory.h"
#include "worker/session.h"

enum {
    LAYERS = 2,
    TOKENS = 16,
    HEADS = 2,
    DIM = 4,
    ROW = HEADS * DIM * 4,
    SESSION = 7,
    CHUNKS = 3,
    ROOM = CHUNKS * TOKENS
};

struct process { // a worker's, as far as its files are concerned
    struct common_loop *loop;
    struct worker_store *store;
    struct worker_map sessions;
    struct worker_disk *disk;
    uint64_t term, write;
    struct common_error err;
};

static const struct common_secret secret = {{1, 2, 3}};

static void row_of(uint32_t layer, uint64_t position, uint8_t k[ROW], uint8_t v[ROW])
{
    for (uint32_t i = 0; i < ROW; i++) {
        k[i] = (uint8_t)(layer * 101 + position * 7 + i);
        v[i] = (uint8_t)(layer * 53 + position * 11 + 3 * i + 1);
    }
}

static enum common_code begin(struct process *p, struct worker_files *files, const char *name,
                              uint64_t memory)
{
    const struct worker_disk_options options = {.path = "DIR",
                                                .name = name,
                                                .secret = &secret,
                                                .fsync = WORKER_FSYNC_NEVER,
                                                .term = &p->term,
                                                .attach_ns = 1};
    *p = (struct process){.term = 1};
    assert_int_equal(common_loop_new(&p->loop), COMMON_OK);
    p->store = worker_store_new(memory, worker_memory_host(memory, NULL));
    assert_non_null(p->store);
    enum common_code code = worker_disk_new(p->loop, files, &options, &p->disk, &p->err);
    if (code != COMMON_OK)
        return code;
    worker_store_set_disk(p->store, p->disk);
    return worker_disk_load(p->disk, p->store, &p->sessions, &p->err);
}

static void finish(struct process *p)
{
    void *session;
    worker_disk_close(p->disk);
    for (size_t cursor = 0; worker_map_next(&p->sessions, &cursor, &session); cursor = 0)
        worker_session_drop(&p->sessions, p->store, ((struct worker_session *)session)->id);
    worker_map_free(&p->sessions);
    worker_store_free(p->store);
    worker_disk_free(p->disk);
    common_loop_free(p->loop);
}

static void start(struct process *p, struct sim_files *directory)
{
    if (begin(p, sim_files_open(directory), "w", 1 << 22) != COMMON_OK)
        fail_msg("%s", p->err.message);
}

static void kill_it(struct process *p, struct sim_files *directory)
{
    sim_files_kill(directory);
    finish(p);
}

static struct worker_session *session_of(struct process *p)
{
    return worker_map_get(&p->sessions, SESSION);
}

static void set_layout(struct process *p, uint32_t chunks)
{
    Banyan__Pb__LayoutSetRequest request = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
    Banyan__Pb__LayoutChunk entries[CHUNKS], *pointers[CHUNKS];
    spec.layers = LAYERS;
    spec.q_heads = spec.kv_heads = HEADS;
    spec.k_dim = spec.v_dim = DIM;
    spec.scale = 0.5f;
    spec.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    spec.chunk_tokens = TOKENS;
    for (uint32_t i = 0; i < chunks; i++) {
        entries[i] = (Banyan__Pb__LayoutChunk)BANYAN__PB__LAYOUT_CHUNK__INIT;
        entries[i].chunk = 100 + i;
        entries[i].first = (uint64_t)i * TOKENS;
        entries[i].compute = true;
        pointers[i] = &entries[i];
    }
    request.term = 1;
    request.session = SESSION;
    request.incarnation = 1;
    request.epoch = chunks;
    request.spec = &spec;
    request.replace = true;
    request.chunks = pointers;
    request.n_chunks = chunks;
    if (worker_session_layout(&p->sessions, p->store, &request, &p->err) != COMMON_OK)
        fail_msg("%s", p->err.message);
}

// As worker/step.c does it.
static enum common_code append(struct process *p, uint32_t layer, uint64_t position)
{
    uint8_t k[ROW], v[ROW];
    struct worker_session *session = session_of(p);
    struct worker_rows rows = {
        worker_store_find(p->store, 100 + position / TOKENS), layer, (uint32_t)(position % TOKENS), 1, k, v};
    row_of(layer, position, k, v);
    session->write_term = p->term;
    session->write = ++p->write;
    worker_appended_confirm(session, layer, position); // the one before was acknowledged
    worker_appended_begin(session, layer, p->write);
    enum common_code code = worker_disk_append(p->disk, session, layer, p->write, position + 1, &p->err);
    if (code == COMMON_OK)
        code = worker_store_write(p->store, &rows, 1, WORKER_ROW_APPENDED, UINT64_MAX, &p->err);
    if (code == COMMON_OK)
        worker_appended_stored(session, layer, p->write, position + 1);
    else
        worker_appended_settle(session, layer, p->write);
    return code;
}

// Attached as worker/rows.c and prepare.c do it. Whether they are frozen, and may be committed.
static enum common_code attach(struct process *p, uint32_t chunk, uint32_t layer)
{
    uint8_t k[TOKENS][ROW], v[TOKENS][ROW];
    struct worker_session *session = session_of(p);
    struct worker_rows rows = {worker_store_find(p->store, 100 + chunk), layer, 0, TOKENS, k[0], v[0]};
    struct worker_freeze freeze = {9 + chunk * LAYERS + layer, (uint64_t)chunk * TOKENS, TOKENS, layer};
    for (uint32_t i = 0; i < TOKENS; i++)
        row_of(layer, (uint64_t)chunk * TOKENS + i, k[i], v[i]);
    enum common_code code = worker_store_write(p->store, &rows, 1, WORKER_ROW_PUT, UINT64_MAX, &p->err);
    if (code != COMMON_OK)
        return code;
    assert_true(worker_frozen_add(&session->frozen, p->store, &freeze));
    worker_chunk_prepare(rows.chunk, layer, 0, TOKENS);
    return worker_disk_frozen(p->disk, session, freeze.first, freeze.count, &p->err);
}

static void commit(struct process *p, uint32_t chunk, uint32_t layer)
{
    worker_chunk_commit(worker_store_find(p->store, 100 + chunk), layer, 0, TOKENS);
    worker_disk_touch(p->disk, session_of(p));
}

// Rows that are there have their bytes. Returns how many from the start of the layer on are, in chunks that are named.
static uint64_t check_layer(struct process *p, uint32_t layer, enum worker_row least)
{
    uint8_t k[ROW], v[ROW], want_k[ROW], want_v[ROW];
    const struct worker_session *session = session_of(p);
    uint64_t whole = 0;
    for (uint32_t i = 0; session && i < session->n_chunks; i++) {
        const struct worker_chunk *chunk = session->chunks[i].chunk;
        for (uint32_t row = 0; row < TOKENS; row++) {
            uint64_t position = worker_chunk_first(chunk) + row;
            if (worker_chunk_row(chunk, layer, row) == WORKER_ROW_ABSENT)
                continue;
            worker_chunk_read(chunk, layer, row, 1, k, v);
            row_of(layer, position, want_k, want_v);
            assert_memory_equal(k, want_k, ROW);
            assert_memory_equal(v, want_v, ROW);
            whole += position == whole && worker_chunk_row(chunk, layer, row) >= least;
        }
    }
    return whole;
}

// A chunk that is named has all that its session knows to be acknowledged.
static void check_named(struct process *p)
{
    const struct worker_session *session = session_of(p);
    for (uint32_t i = 0; session && i < session->n_chunks; i++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint64_t first = worker_chunk_first(session->chunks[i].chunk),
                     length = session->appended[layer].length;
            uint64_t n = length > first ? length - first : 0;
            n = n < TOKENS ? n : TOKENS;
            assert_int_equal(worker_chunk_rows_at(session->chunks[i].chunk, layer, 0, (uint32_t)n,
                                                  WORKER_ROW_PREPARED),
                             n);
        }
}

// ---- what comes back ----------------------------------------------------------------------------

// A session of one chunk that was attached, and others that are appended to. Returns the appended length.
static uint64_t fill(struct process *p, uint64_t until)
{
    set_layout(p, CHUNKS);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_int_equal(attach(p, 0, layer), COMMON_OK);
        commit(p, 0, layer);
    }
    for (uint64_t position = TOKENS; position < until; position++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            assert_int_equal(append(p, layer, position), COMMON_OK);
    return until;
}

static void seal(struct sim_files *directory, uint64_t id)
{
    struct worker_files *files = sim_files_open(directory);
    struct worker_image image;
    char name[WORKER_NAME_BYTES];
    assert_int_equal(worker_image_read(files, id, NULL, NULL, &image), 0);
    assert_true(worker_image_full(&image));
    worker_name_sealed(id, name);
    assert_int_equal(worker_image_seal(files, &image, name), 0);
    worker_image_end(&image);
    worker_name_log(id, name);
    assert_int_equal(files->ops->remove(files, name), 0);
    files->ops->close(files);
}

static void killed(void **state)
{
    struct sim_files directory;
    struct process p;
    struct worker_disk_stats stats;
    (void)state;
    sim_files_init(&directory);
    start(&p, &directory);
    uint64_t length = fill(&p, 2 * TOKENS + 5);
    for (int round = 0; round < 3; round++) {
        kill_it(&p, &directory);
        if (round == 1)
            seal(&directory, 100);
        start(&p, &directory);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            assert_int_equal(check_layer(&p, layer, WORKER_ROW_APPENDED), length);
        const struct worker_session *session = session_of(&p);
        assert_int_equal(session->n_chunks, CHUNKS);
        assert_int_equal(session->appended[0].length, length - 1);
        assert_int_equal(session->appended[0].end, length); // not known to be acknowledged
        assert_true(session->appended[0].write > 0);
        p.write = session->write;
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            assert_int_equal(append(&p, layer, length), COMMON_OK);
        length++;
    }
    worker_disk_get_stats(p.disk, &stats);
    assert_int_equal(stats.damaged, 0);
    // An append that is over before it was acknowledged is not there when the next process starts.
    worker_appended_settle(session_of(&p), 0, p.write);
    kill_it(&p, &directory);
    start(&p, &directory);
    assert_int_equal(check_layer(&p, 0, WORKER_ROW_APPENDED), length - 1);
    // Nor is a session that was dropped, nor its chunks.
    worker_session_drop(&p.sessions, p.store, SESSION);
    kill_it(&p, &directory);
    assert_int_equal(sim_files_count(&directory, "chunks/"), 0);
    assert_int_equal(sim_files_count(&directory, "sessions/"), 0);
    sim_files_end(&directory);
}

// Rows that a commit has frozen stay so, and thaw when it is over; those that were only put may be put again.
static void frozen(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    sim_files_init(&directory);
    start(&p, &directory);
    set_layout(&p, CHUNKS);
    assert_int_equal(attach(&p, 0, 0), COMMON_OK);
    kill_it(&p, &directory);
    start(&p, &directory);
    assert_int_equal(check_layer(&p, 0, WORKER_ROW_PREPARED), TOKENS);
    assert_int_equal(check_layer(&p, 0, WORKER_ROW_APPENDED), 0);
    assert_int_equal(session_of(&p)->frozen.n, 1);
    assert_int_equal(session_of(&p)->frozen.entries[0].commit, 9);
    worker_chunk_abort(worker_store_find(p.store, 100), 0, 0, TOKENS);
    kill_it(&p, &directory);
    start(&p, &directory);
    assert_int_equal(worker_chunk_row(worker_store_find(p.store, 100), 0, 3), WORKER_ROW_PUT);
    assert_true(session_of(&p)->put_at_ns > 0);
    kill_it(&p, &directory);
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

// With a sealed chunk, one that is full, and one that grows; the last appends are acknowledged.
static void make(struct sim_files *directory)
{
    struct process p;
    sim_files_init(directory);
    start(&p, directory);
    uint64_t length = fill(&p, 2 * TOKENS + 3);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        worker_appended_confirm(session_of(&p), layer, length);
    worker_disk_touch(p.disk, session_of(&p));
    finish(&p); // writes what is behind
    seal(directory, 100);
}

static void look(struct sim_files *directory, uint64_t most)
{
    struct process p;
    start(&p, directory);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_true(check_layer(&p, layer, WORKER_ROW_PREPARED) <= most);
    check_named(&p);
    kill_it(&p, directory);
}

static void every_byte(void **state)
{
    struct sim_files good, bad;
    (void)state;
    make(&good);
    sim_files_init(&bad);
    size_t damaged = 0, bytes = 0;
    for (size_t f = 0; f < good.n; f++) {
        if (!strchr(good.files[f].name, '/')) // whose directory it is: another test
            continue;
        for (size_t at = 0; at < good.files[f].len; at++) {
            restore(&bad, &good);
            sim_files_find(&bad, good.files[f].name)->bytes[at] ^= (uint8_t)(1u << at % 8);
            look(&bad, 2 * TOKENS + 3);
            damaged += sim_files_count(&bad, "quarantine/") > 0;
            bytes++;
        }
    }
    assert_true(damaged > bytes / 2); // the others are in the last record of a log
    sim_files_end(&bad);
    sim_files_end(&good);
}

static void every_end(void **state)
{
    struct sim_files good, bad;
    (void)state;
    make(&good);
    sim_files_init(&bad);
    for (size_t f = 0; f < good.n; f++)
        for (size_t len = 0; strchr(good.files[f].name, '/') && len < good.files[f].len; len++) {
            restore(&bad, &good);
            struct sim_file *file = sim_files_find(&bad, good.files[f].name);
            file->len = len;
            look(&bad, 2 * TOKENS + 3);
            look(&bad, 2 * TOKENS + 3); // what it has cut off
        }
    sim_files_end(&bad);
    sim_files_end(&good);
}

// ---- what does not fit --------------------------------------------------------------------------

// Each write in turn fails, in part, and those after it. What was acknowledged is there all the same; and when there
// is room again, everything goes on.
static void a_full_disk(void **state)
{
    (void)state;
    bool failed = true;
    for (uint64_t room = 300; failed; room += 37) {
        struct sim_files directory;
        struct process p;
        uint64_t length[LAYERS] = {TOKENS, TOKENS};
        sim_files_init(&directory);
        start(&p, &directory);
        directory.room = room;
        set_layout(&p, CHUNKS); // which it takes later, if it has to
        bool attached = attach(&p, 0, 0) == COMMON_OK && attach(&p, 0, 1) == COMMON_OK;
        for (uint32_t layer = 0; attached && layer < LAYERS; layer++)
            while (length[layer] < 2 * TOKENS + 5 && append(&p, layer, length[layer]) == COMMON_OK)
                length[layer]++;
        failed = length[0] < 2 * TOKENS + 5 || length[1] < 2 * TOKENS + 5;
        if (failed)
            assert_non_null(strstr(p.err.message, "--store DIR does not take it"));
        kill_it(&p, &directory);
        directory.room = UINT64_MAX;
        start(&p, &directory);
        const struct worker_session *session = session_of(&p);
        if (attached)
            assert_int_equal(worker_chunk_rows_at(worker_store_find(p.store, 100), 0, 0, TOKENS,
                                                  WORKER_ROW_PREPARED),
                             TOKENS);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint64_t n = 0;
            for (uint32_t i = 0; session && i < session->n_chunks; i++) // but the one that is attached
                n += worker_chunk_first(session->chunks[i].chunk) == 0
                         ? 0
                         : worker_chunk_ready(session->chunks[i].chunk, layer);
            (void)check_layer(&p, layer, WORKER_ROW_PUT);
            assert_true(n >= length[layer] - TOKENS);
            assert_true(n <= length[layer] - TOKENS + 1); // one that nobody was told of
        }
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

// The same, without an end of the process in between.
static void room_again(void **state)
{
    struct sim_files directory;
    struct process p;
    struct worker_disk_stats stats;
    (void)state;
    for (uint64_t fail_at = 1; fail_at < 60; fail_at++) {
        sim_files_init(&directory);
        start(&p, &directory);
        directory.fail_at = directory.writes + fail_at;
        set_layout(&p, CHUNKS);
        uint64_t at = TOKENS;
        while (at < 2 * TOKENS + 5 && append(&p, 0, at) == COMMON_OK)
            at++;
        worker_disk_get_stats(p.disk, &stats);
        assert_true(at == 2 * TOKENS + 5 || (stats.refused > 0 && stats.failing));
        assert_int_equal(worker_chunk_ready(worker_store_find(p.store, 100 + at / TOKENS), 0), at % TOKENS);
        directory.fail_at = 0;
        for (; at < 2 * TOKENS + 9; at++)
            assert_int_equal(append(&p, 0, at), COMMON_OK);
        kill_it(&p, &directory);
        start(&p, &directory);
        (void)check_layer(&p, 0, WORKER_ROW_APPENDED);
        assert_int_equal(worker_chunk_ready(worker_store_find(p.store, 101), 0), TOKENS);
        assert_int_equal(worker_chunk_ready(worker_store_find(p.store, 102), 0), 9);
        kill_it(&p, &directory);
        sim_files_end(&directory);
    }
}

static void little_memory(void **state)
{
    struct sim_files directory;
    struct process p;
    (void)state;
    make(&directory);
    assert_int_equal(begin(&p, sim_files_open(&directory), "w", 4096), COMMON_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(p.err.message, "--memory"));
    kill_it(&p, &directory);
    look(&directory, 2 * TOKENS + 3); // nothing of it has gone
    assert_int_equal(sim_files_count(&directory, "quarantine/"), 0);
    sim_files_end(&directory);
}

// ---- a real directory ---------------------------------------------------------------------------

static void a_real_directory(void **state)
{
    char path[64], command[128];
    struct worker_files *files, *other;
    struct process p;
    struct common_error err;
    (void)state;
    snprintf(path, sizeof path, "/tmp/banyan-disk-test-%ld", (long)getpid());
    assert_int_equal(worker_files_open(path, &files, &err), COMMON_OK);
    assert_int_equal(worker_files_open(path, &other, &err), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "in use by another worker process"));
    assert_int_equal(begin(&p, files, "w", 1 << 22), COMMON_OK);
    uint64_t length = fill(&p, 2 * TOKENS + 5);
    finish(&p);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(worker_files_open(path, &files, &err), COMMON_OK);
        assert_int_equal(begin(&p, files, "w", 1 << 22), COMMON_OK);
        assert_int_equal(check_layer(&p, 1, WORKER_ROW_APPENDED), length);
        finish(&p);
    }
    assert_int_equal(worker_files_open(path, &files, &err), COMMON_OK);
    assert_int_equal(begin(&p, files, "x", 1 << 22), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(p.err.message, "belongs to another worker"));
    finish(&p);
    assert_int_equal(chmod(path, 0755), 0);
    assert_int_equal(worker_files_open(path, &files, &err), COMMON_PERMISSION_DENIED);
    assert_non_null(strstr(err.message, "chmod 700"));
    snprintf(command, sizeof command, "rm -r -- '%s'", path);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed),        cmocka_unit_test(frozen),           cmocka_unit_test(every_byte),
        cmocka_unit_test(every_end),     cmocka_unit_test(a_full_disk),      cmocka_unit_test(room_again),
        cmocka_unit_test(little_memory), cmocka_unit_test(a_real_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
