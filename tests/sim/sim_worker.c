// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_worker.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/sim.h"
#include "worker/core/state.h"
#include "worker/daemon/worker.h"
#include "worker/disk/state.h"
#include "worker/store/chunk.h"
#include "worker/store/cold.h"

#define BANDWIDTH UINT64_C(10000000000)

struct sim_worker *sim_worker_new(const struct sim_worker_options *options)
{
    struct sim_worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        abort();
    worker->options = *options;
    snprintf(worker->name, sizeof worker->name, "%s", options->name);
    snprintf(worker->host, sizeof worker->host, "%s", options->host);
    snprintf(worker->coordinator, sizeof worker->coordinator, "%s", options->coordinator);
    snprintf(worker->endpoint, sizeof worker->endpoint, "tcp://127.0.0.1:%u", options->port);
    sim_files_init(&worker->files);
    snprintf(worker->edge_endpoint, sizeof worker->edge_endpoint, "tcp://127.0.0.1:%u", options->port + 1);
    return worker;
}

void sim_worker_start(struct sim_worker *worker)
{
    struct common_error err;
    assert(!worker->loop);
    if (common_loop_new(&worker->loop) != COMMON_OK)
        abort();
    sim_loop_name(worker->loop, worker->name);
    struct worker_config config = {.name = worker->name,
                                   .host = worker->host,
                                   .coordinator = worker->coordinator,
                                   .listen = worker->endpoint,
                                   .edge_listen = worker->edge_endpoint,
                                   .secret = *worker->options.secret,
                                   .memory_bytes = worker->options.memory_bytes,
                                   .threads = 1,
                                   .attach_ttl_ns = worker->options.attach_ttl_ns,
                                   .inline_madds = worker->options.team ? 1 : 0,
                                   .bandwidth = BANDWIDTH};
    char boot[32];
    snprintf(boot, sizeof boot, "%u", worker->files.boots);
    if (worker->options.store) {
        config.boot = boot;
        config.store = "files";
        worker->synced = worker->options.syncs && sim_random(4) == 0;
        config.fsync = worker->synced ? WORKER_FSYNC_ALWAYS : WORKER_FSYNC_INTERVAL;
        config.scrub_ns = worker->options.scrub_ns;
        config.read_ahead = 1;
        worker->files.beside = sim_thread_yield;
        worker->files.syncing = sim_thread_sync;
        worker->files.no_reads_to = 0; // another process has all its descriptors
        config.files = sim_files_open(&worker->files);
    }
    if (worker_new(worker->loop, &config, &worker->worker, &err) != COMMON_OK) {
        fprintf(stderr, "sim: worker %s: %s\n", worker->name, err.message);
        abort();
    }
    if (worker->options.inventory_bytes)
        worker->worker->inventory_bytes = worker->options.inventory_bytes;
    if (worker->options.pace) {
        worker->worker->pace.bandwidth = worker->options.pace;
        worker->worker->pace.least_ns = 0;
        worker->worker->pace.probe_ns = 1;
    }
}

void sim_worker_slow(struct sim_worker *worker, uint64_t task_ns)
{
    if (worker->worker)
        sim_team_slow(worker->worker->team, task_ns);
}

static void drained(void *arg)
{
    *(bool *)arg = true;
}

static struct sim_cold cold; // of workers that have gone

static void count_cold(const struct sim_worker *worker)
{
    struct worker_cold_stats stats;
    worker_store_get_cold(worker->worker->store, &stats);
    cold.evicted += stats.evicted;
    cold.loaded += stats.loaded;
    struct worker_disk_stats files;
    worker_disk_get_stats(worker->worker->disk, &files);
    cold.lost += files.lost;
}

struct sim_cold sim_worker_cold(void)
{
    return cold;
}

void sim_worker_cool(const struct sim_worker *worker, uint32_t most)
{
    if (!worker->worker || !worker->worker->disk)
        return;
    (void)worker_disk_hurry(worker->worker->disk);
    while (most-- > 0 && worker_store_evict(worker->worker->store, NULL)) {
    }
}

void sim_worker_anew(const struct sim_worker *worker, uint64_t chance)
{
    struct worker_store *store = worker->worker ? worker->worker->store : NULL;
    uint64_t n = store && worker->worker->disk ? worker_store_chunks(store) : 0;
    struct worker_chunk *chunk;
    struct common_error err;
    size_t cursor = 0;
    for (n = n ? 1 + chance % n : 0; n > 0 && worker_store_next(store, &cursor, &chunk);)
        if (--n == 0)
            (void)worker_disk_chunk(worker->worker->disk, chunk, &err); // or it is written later
}

void sim_worker_kill(struct sim_worker *worker)
{
    bool done = false;
    if (!worker || !worker->loop)
        return;
    count_cold(worker);
    sim_loop_thaw(worker->loop);
    sim_worker_slow(worker, 0); // time stands still from here on
    sim_loop_mute(worker->loop);
    sim_files_kill(&worker->files);
    sim_thread_hurry(worker->loop);
    if (worker_drain(worker->worker, 0, drained, &done) != COMMON_OK)
        abort();
    sim_loop_drain(worker->loop); // what is in hand ends, and no one gets the answer
    assert(done);
    worker_free(worker->worker);
    sim_loop_drain(worker->loop);
    common_loop_free(worker->loop);
    worker->loop = NULL;
    worker->worker = NULL;
}

void sim_worker_free(struct sim_worker *worker)
{
    sim_worker_kill(worker);
    if (worker)
        sim_files_end(&worker->files);
    free(worker);
}

static const struct worker_session *session_of(const struct sim_worker *worker, uint64_t id)
{
    return worker->worker ? worker_map_get(&worker->worker->sessions, id) : NULL;
}

uint64_t sim_worker_tokens(const struct sim_worker *worker, uint64_t id, uint32_t layer)
{
    const struct worker_session *session = session_of(worker, id);
    uint64_t n = 0;
    for (uint32_t i = 0; session && i < session->n_chunks; i++)
        n += worker_chunk_ready(session->chunks[i].chunk, layer);
    return n;
}

// The nth row that is only put; NULL: there are fewer, and *n are left.
static uint8_t *put_row(const struct worker_session *session, uint64_t *n, uint32_t *len)
{
    for (uint32_t i = 0; i < session->n_chunks; i++) {
        const struct worker_chunk *chunk = session->chunks[i].chunk;
        for (uint32_t layer = 0; layer < chunk->shape->layers; layer++)
            for (uint32_t row = 0; chunk->layers[layer] && row < chunk->shape->chunk_tokens; row++) {
                if (worker_chunk_row(chunk, layer, row) != WORKER_ROW_PUT || (*n)-- > 0)
                    continue;
                *len = chunk->layers[layer]->form->row[WORKER_PART_V];
                return worker_layer_part(chunk->layers[layer], WORKER_PART_V, row, 0);
            }
    }
    return NULL;
}

bool sim_worker_rot(const struct sim_worker *worker, uint64_t chance)
{
    void *session = NULL;
    uint64_t rows = 0;
    uint32_t len;
    for (int round = 0; round < 2 && worker->worker; round++) { // counts, then goes there
        uint64_t n = round && rows ? chance % rows : UINT64_MAX;
        for (size_t cursor = 0; worker_map_next(&worker->worker->sessions, &cursor, &session);) {
            uint8_t *bytes = put_row(session, &n, &len);
            if (bytes) {
                bytes[(chance >> 3) % len] ^= (uint8_t)(1u << (chance & 7));
                return true;
            }
        }
        rows = UINT64_MAX - n;
        if (!rows)
            return false;
    }
    return false;
}

bool sim_worker_flip(const struct sim_worker *worker, uint64_t id, uint32_t layer, uint64_t position)
{
    const struct worker_session *session = session_of(worker, id);
    uint32_t n = 0, at = session ? worker_session_span(session, position, 1, &n) : 0;
    if (!n)
        return false;
    const struct worker_chunk *chunk = session->chunks[at].chunk;
    uint32_t row = (uint32_t)(position - chunk->first);
    if (worker_chunk_ready(chunk, layer) <= row || worker_chunk_cold(chunk, layer))
        return false;
    const struct worker_layer *l = chunk->layers[layer];
    for (uint32_t i = 2; i < l->form->row[WORKER_PART_V]; i += sizeof(float)) // 1 becomes 1.5
        worker_layer_part(l, WORKER_PART_V, row, 0)[i] ^= 0x40;
    return true;
}

bool sim_worker_flip_chunk(const struct sim_worker *worker, uint64_t id, uint32_t layer, uint32_t row,
                           uint32_t bit)
{
    const struct worker_chunk *chunk = worker->worker ? worker_store_find(worker->worker->store, id) : NULL;
    if (!chunk || !chunk->layers[layer] || worker_chunk_forgotten(chunk, layer) ||
        worker_chunk_cold(chunk, layer) || worker_chunk_row(chunk, layer, row) < WORKER_ROW_APPENDED)
        return false;
    uint8_t *bytes = worker_layer_part(chunk->layers[layer], WORKER_PART_V, row, 0);
    for (uint32_t at = 0; at < chunk->layers[layer]->form->row[WORKER_PART_V]; at += sizeof(float))
        bytes[at + bit / 8] ^= (uint8_t)(1u << bit % 8);
    return true;
}

bool sim_worker_holds(const struct sim_worker *worker, uint64_t id, uint64_t position)
{
    const struct worker_session *session = session_of(worker, id);
    uint32_t n = 0;
    if (session)
        worker_session_span(session, position, 1, &n);
    return n > 0;
}

bool sim_worker_keeps(const struct sim_worker *worker, uint64_t id, uint64_t position)
{
    const struct worker_session *session = session_of(worker, id);
    uint32_t n = 0, at = session ? worker_session_span(session, position, 1, &n) : 0;
    const struct worker_disk *disk = worker->worker->disk;
    bool done =
        !disk || !disk->queue || worker_queue_idle(disk->queue); // else its files may have heard nothing yet
    bool keeps = n > 0 && !session->logged.layout;
    for (uint32_t l = 0; n && l < session->spec->shape->layers; l++)
        keeps = keeps || worker_chunk_ready(session->chunks[at].chunk, l) > 0;
    return keeps && done;
}
