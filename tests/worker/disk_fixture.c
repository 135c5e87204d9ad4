// SPDX-License-Identifier: Apache-2.0
#include "tests/worker/disk_fixture.h"

#include <stdlib.h>
#include <string.h>

#include "worker/files/image.h"
#include "worker/memory/memory.h"
#include "worker/store/cold.h"

static const struct common_secret secret = {{1, 2, 3}};

const char *disk_boot;
enum worker_fsync disk_fsync = WORKER_FSYNC_NEVER;
uint64_t disk_waiting;
void (*disk_wanted)(void *arg, struct worker_chunk *chunk);

void row_of(uint32_t layer, uint64_t position, uint8_t k[ROW], uint8_t v[ROW])
{
    for (uint32_t i = 0; i < ROW; i++) {
        k[i] = (uint8_t)(layer * 101 + position * 7 + i);
        v[i] = (uint8_t)(layer * 53 + position * 11 + 3 * i + 1);
    }
}

static void note_lost(void *arg, struct worker_chunk *chunk)
{
    struct process *p = arg;
    p->lost++;
    p->lost_chunk = worker_chunk_id(chunk);
}

enum common_code begin(struct process *p, struct worker_files *files, const char *name, uint64_t memory)
{
    const struct worker_disk_options options = {.path = "DIR",
                                                .name = name,
                                                .secret = &secret,
                                                .fsync = disk_fsync,
                                                .waiting = disk_waiting,
                                                .boot = disk_boot,
                                                .scrub_ns = 1000000,
                                                .term = &p->term,
                                                .attach_ns = 1,
                                                .damaged = note_lost,
                                                .wanted = disk_wanted,
                                                .arg = p};
    *p = (struct process){.term = 1};
    assert_int_equal(common_loop_new(&p->loop), COMMON_OK);
    p->store = worker_store_new(memory, worker_memory_host(memory, NULL));
    assert_non_null(p->store);
    enum common_code code = worker_disk_new(p->loop, files, &options, &p->disk, &p->err);
    if (code != COMMON_OK)
        return code;
    return worker_disk_load(p->disk, p->store, &p->sessions, &p->err);
}

void finish(struct process *p)
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

void start(struct process *p, struct sim_files *directory)
{
    if (begin(p, sim_files_open(directory), "w", 1 << 22) != COMMON_OK)
        fail_msg("%s", p->err.message);
}

void kill_it(struct process *p, struct sim_files *directory)
{
    sim_files_kill(directory);
    finish(p);
}

struct worker_session *session_of(struct process *p)
{
    return worker_map_get(&p->sessions, SESSION);
}

static void go_on(void *loop)
{
    common_loop_stop(loop);
}

enum common_code kept(struct process *p, uint64_t session, enum common_code code)
{
    struct worker_disk_wait wait = {0};
    const struct worker_session *of = worker_map_get(&p->sessions, session);
    if (code != COMMON_OK || !worker_disk_wait(p->disk, &wait, go_on, p->loop))
        return code;
    common_loop_run(p->loop);
    return of ? worker_disk_took(p->disk, of, 0, UINT64_MAX, &wait, &p->err) : COMMON_OK;
}

void finish_changes(struct process *p)
{
    struct worker_disk_wait wait = {0};
    if (worker_disk_wait(p->disk, &wait, go_on, p->loop))
        common_loop_run(p->loop);
}

// As worker_kept_layout does it.
static enum common_code laid(struct process *p, uint64_t session, enum common_code code)
{
    struct worker_disk_wait wait = {0};
    if (code != COMMON_OK || !worker_disk_wait(p->disk, &wait, go_on, p->loop))
        return code;
    common_loop_run(p->loop);
    return worker_disk_took_layout(p->disk, worker_map_get(&p->sessions, session), &wait, &p->err);
}

static enum common_code ask(struct process *p, uint64_t session, uint64_t id, uint32_t chunks,
                            uint64_t *lengths, uint64_t settled)
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
        entries[i].chunk = id + i;
        entries[i].first = (uint64_t)i * TOKENS;
        entries[i].compute = true;
        pointers[i] = &entries[i];
    }
    request.term = 1;
    request.session = session;
    request.incarnation = 1;
    request.epoch = chunks;
    request.spec = &spec;
    request.replace = true;
    request.chunks = pointers;
    request.n_chunks = chunks;
    request.lengths = lengths;
    request.n_lengths = lengths ? LAYERS : 0;
    request.settled = settled;
    return worker_session_layout(&p->sessions, p->store, &request, &p->err);
}

static enum common_code tell(struct process *p, uint64_t session, uint64_t id, uint32_t chunks,
                             uint64_t *lengths, uint64_t settled)
{
    return laid(p, session, ask(p, session, id, chunks, lengths, settled));
}

enum common_code ask_layout(struct process *p, uint64_t session, uint32_t chunks)
{
    return ask(p, session, 100, chunks, NULL, 0);
}

enum common_code tell_layout(struct process *p, uint64_t session, uint32_t chunks)
{
    return tell(p, session, 100, chunks, NULL, 0);
}

enum common_code tell_apart(struct process *p, uint64_t session, uint32_t chunks)
{
    return tell(p, session, 100 * session, chunks, NULL, 0);
}

void tell_settled(struct process *p, uint64_t length, uint64_t settled)
{
    uint64_t lengths[LAYERS];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        lengths[layer] = length;
    if (tell(p, SESSION, 100, CHUNKS, lengths, settled) != COMMON_OK)
        fail_msg("%s", p->err.message);
}

void set_layout(struct process *p, uint32_t chunks)
{
    if (tell_layout(p, SESSION, chunks) != COMMON_OK)
        fail_msg("%s", p->err.message);
}

void tell_copy(struct process *p, uint64_t id, uint32_t chunk)
{
    Banyan__Pb__LayoutSetRequest request = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    Banyan__Pb__LayoutChunk entry = BANYAN__PB__LAYOUT_CHUNK__INIT, *pointer = &entry;
    entry.chunk = id;
    entry.first = (uint64_t)chunk * TOKENS;
    entry.copy = true;
    request.term = 1;
    request.session = SESSION;
    request.incarnation = 1;
    request.epoch = CHUNKS;
    request.chunks = &pointer;
    request.n_chunks = 1;
    if (worker_session_layout(&p->sessions, p->store, &request, &p->err) != COMMON_OK)
        fail_msg("%s", p->err.message);
}

// As worker/steps/step.c does it.
enum common_code append(struct process *p, uint32_t layer, uint64_t position)
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
    code = kept(p, SESSION, code);
    if (code != COMMON_OK)
        worker_appended_settle(session, layer, p->write);
    return code;
}

enum common_code put_rows(struct process *p, uint32_t chunk)
{
    uint8_t k[TOKENS][ROW], v[TOKENS][ROW];
    struct worker_rows rows = {worker_store_find(p->store, 100 + chunk), 0, 0, TOKENS, k[0], v[0]};
    for (uint32_t i = 0; i < TOKENS; i++)
        row_of(0, (uint64_t)chunk * TOKENS + i, k[i], v[i]);
    return worker_store_write(p->store, &rows, 1, WORKER_ROW_PUT, UINT64_MAX, &p->err);
}

// Attached as worker/rows/rows.c and prepare.c do it. Whether they are frozen, and may be committed.
enum common_code attach(struct process *p, uint32_t chunk, uint32_t layer)
{
    uint8_t k[TOKENS][ROW], v[TOKENS][ROW];
    struct worker_session *session = session_of(p);
    struct worker_rows rows = {worker_store_find(p->store, 100 + chunk), layer, 0, TOKENS, k[0], v[0]};
    struct worker_freeze freeze = {9 + chunk * LAYERS + layer, (uint64_t)chunk * TOKENS, TOKENS, layer,
                                   .holes = false};
    for (uint32_t i = 0; i < TOKENS; i++)
        row_of(layer, (uint64_t)chunk * TOKENS + i, k[i], v[i]);
    enum common_code code = worker_store_write(p->store, &rows, 1, WORKER_ROW_PUT, UINT64_MAX, &p->err);
    if (code != COMMON_OK)
        return code;
    assert_true(worker_frozen_add(&session->frozen, p->store, &freeze));
    worker_chunk_prepare(rows.chunk, layer, 0, TOKENS);
    return kept(p, SESSION, worker_disk_frozen(p->disk, session, freeze.first, freeze.count, &p->err));
}

void commit(struct process *p, uint32_t chunk, uint32_t layer)
{
    worker_chunk_commit(worker_store_find(p->store, 100 + chunk), layer, 0, TOKENS);
    worker_disk_touch(p->disk, session_of(p));
}

// Rows that are there have their bytes. Returns how many from the start of the layer on are, in chunks that
// are named.
uint64_t check_layer(struct process *p, uint32_t layer, enum worker_row least)
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
            if (worker_store_load(p->store, session->chunks[i].chunk, layer, &p->err) != COMMON_OK)
                fail_msg("%s", p->err.message);
            worker_chunk_read(chunk, layer, row, 1, k, v);
            row_of(layer, position, want_k, want_v);
            assert_memory_equal(k, want_k, ROW);
            assert_memory_equal(v, want_v, ROW);
            whole += position == whole && worker_chunk_row(chunk, layer, row) >= least;
        }
    }
    return whole;
}

// A chunk that is named has all that its session has recorded as acknowledged.
void check_named(struct process *p)
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

// A session of one chunk that was attached, and others that are appended to. Returns the appended length.
uint64_t fill(struct process *p, uint64_t until)
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

void seal(struct sim_files *directory, uint64_t id)
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
