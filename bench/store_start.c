// SPDX-License-Identifier: Apache-2.0
// What a start on a worker's --store costs: a directory with so many sessions is made, and read as a worker that starts
// reads it, in one thread. Processor time of this process, so that others on the machine count little.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench/main.h"
#include "bench/report.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "worker/disk/disk.h"
#include "worker/files/files.h"
#include "worker/memory/memory.h"
#include "worker/session/session.h"

enum { HEADS = 2, DIM = 32, CHUNK = 256, ROW_BYTES = HEADS * DIM * 4, LAYERS_MAX = 1024 };

static bool json, forgets;
static uint64_t sessions = 1000, layers = 16, rows = 16, n_chunks = 1;
static const char *folder = ".";
static const struct common_secret secret = {{1}};

struct start { // a process on the directory, as far as its files are concerned
    struct common_loop *loop;
    struct worker_store *store;
    struct worker_map sessions;
    struct worker_disk *disk;
    uint64_t term;
    struct common_error err;
};

static uint64_t processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * COMMON_NS_PER_S + (uint64_t)t.tv_nsec;
}

static bool open_store(struct start *s, const char *path)
{
    struct worker_files *files;
    *s = (struct start){.term = 1};
    uint64_t memory = (UINT64_C(64) << 20) + sessions * n_chunks * layers * (16 << 10);
    const struct worker_disk_options options = {
        .path = path, .name = "w", .secret = &secret, .fsync = WORKER_FSYNC_NEVER, .term = &s->term};
    if (common_loop_new(&s->loop) != COMMON_OK)
        return false;
    s->store = worker_store_new(memory, worker_memory_host(memory, NULL));
    if (!s->store || worker_files_open(path, &files, &s->err) != COMMON_OK ||
        worker_disk_new(s->loop, files, &options, &s->disk, &s->err) != COMMON_OK)
        return false;
    return worker_disk_load(s->disk, s->store, &s->sessions, &s->err) == COMMON_OK;
}

static void close_store(struct start *s, bool remove)
{
    void *session;
    if (!remove)
        worker_disk_close(s->disk);
    for (size_t cursor = 0; worker_map_next(&s->sessions, &cursor, &session); cursor = 0)
        worker_session_drop(&s->sessions, s->store, ((struct worker_session *)session)->id);
    worker_disk_close(s->disk);
    worker_map_free(&s->sessions);
    worker_store_free(s->store);
    worker_disk_free(s->disk);
    common_loop_free(s->loop);
}

static bool add_session(struct start *s, uint64_t id)
{
    static uint8_t bytes[CHUNK * ROW_BYTES];
    Banyan__Pb__LayoutSetRequest request = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
    spec.layers = (uint32_t)layers;
    spec.q_heads = spec.kv_heads = HEADS;
    spec.k_dim = spec.v_dim = DIM;
    spec.scale = 1;
    spec.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    spec.chunk_tokens = CHUNK;
    spec.window = forgets ? CHUNK : 0;
    spec.forget = forgets ? 1 : 0;
    Banyan__Pb__LayoutChunk *chunks = calloc(n_chunks, sizeof *chunks),
                            **pointers = calloc(n_chunks, sizeof(*pointers));
    for (uint64_t i = 0; i < n_chunks; i++) {
        banyan__pb__layout_chunk__init(&chunks[i]);
        chunks[i].chunk = id * n_chunks + i;
        chunks[i].first = i * CHUNK;
        chunks[i].compute = true;
        pointers[i] = &chunks[i];
    }
    request.term = request.incarnation = request.epoch = 1;
    request.session = id;
    request.spec = &spec;
    request.replace = true;
    request.chunks = pointers;
    request.n_chunks = n_chunks;
    bool ok = worker_session_layout(&s->sessions, s->store, &request, &s->err) == COMMON_OK;
    for (uint64_t i = 0; ok && i < n_chunks; i++)
        for (uint32_t l = 0; ok && l < layers; l++) {
            struct worker_rows piece = {
                worker_store_find(s->store, chunks[i].chunk), l, 0, (uint32_t)rows, bytes, bytes};
            ok = worker_store_write(s->store, &piece, 1, WORKER_ROW_COMMITTED, UINT64_MAX, &s->err) ==
                 COMMON_OK;
        }
    free(chunks);
    free(pointers);
    return ok;
}

static bool run(void)
{
    char path[4096];
    struct start s;
    snprintf(path, sizeof path, "%s/banyan-store-start-%d", folder, (int)getpid());
    bool ok = open_store(&s, path);
    for (uint64_t i = 1; ok && i <= sessions; i++)
        ok = add_session(&s, i);
    if (ok) {
        close_store(&s, false);
        uint64_t cpu = processor_ns(), wall = common_clock_ns();
        ok = open_store(&s, path);
        cpu = processor_ns() - cpu;
        wall = common_clock_ns() - wall;
        const struct report_field fields[] = {
            {"sessions", NULL, (double)s.sessions.count},
            {"chunks", NULL, (double)worker_store_chunks(s.store)},
            {"processor_s", NULL, (double)cpu / (double)COMMON_NS_PER_S},
            {"wall_s", NULL, (double)wall / (double)COMMON_NS_PER_S},
            {NULL, NULL, 0},
        };
        report_line(json, fields);
    }
    if (!ok) {
        fprintf(stderr, "store_start: %s\n", s.err.message);
        return false;
    }
    close_store(&s, true); // drops all, and their files
    static const char *const left[] = {"banyan-store", "banyan-store.copy", "boot", "lock", "sessions",
                                       "chunks",       "quarantine",        ""};
    char name[4200];
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        snprintf(name, sizeof name, "%s/%s", path, left[i]);
        (void)remove(name);
    }
    return true;
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {"sessions", 's', COMMON_OPTION_U64, &sessions, "N", "in the store (default 1000)", 1, 1000000},
        {"layers", 'l', COMMON_OPTION_U64, &layers, "N", "of each (default 16)", 1, LAYERS_MAX},
        {"chunks", 'c', COMMON_OPTION_U64, &n_chunks, "N", "of each (default 1)", 1, 1024},
        {"rows", 'r', COMMON_OPTION_U64, &rows, "N", "of each chunk and layer (default 16)", 1, CHUNK},
        {"forgets", 'f', COMMON_OPTION_FLAG, &forgets, NULL, "sessions forget what no row can see", 0, 0},
        {"folder", 'd', COMMON_OPTION_STRING, &folder, "DIR", "folder for the store (default .)", 0, 0},
        {0},
    };
    const struct bench_program program = {
        .name = "store_start",
        .about = "Measures a start on a worker's --store in one thread: a directory is written, then read.",
        .options = options,
        .json = &json,
        .measure = run,
    };
    return bench_main(&program, argc, argv);
}
