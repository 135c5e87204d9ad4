// SPDX-License-Identifier: Apache-2.0
// The files of a worker's store (worker/disk): what it begins with, logs of sessions and chunks, sealed
// chunks. Input: files, each
//
//   | what u8 | name, ended by 0 | bytes u16 | bytes |        what, bit 0: the sums of its records are put right
//
// A process starts on them, works for some seconds, ends, and another one starts: it can, and has nothing
// that the first had not. (It may have less: files that contradict each other, whose sums are right all the
// same, no process writes. The first names what it has given up, and what is left may lack rows, too.)
#include <string.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "common/log/log.h"
#include "common/memory/blob.h"
#include "tests/fuzz/fuzz.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_files.h"
#include "tests/sim/sim_worker.h"
#include "worker/disk/disk.h"
#include "worker/files/image.h"
#include "worker/memory/memory.h"
#include "worker/session/session.h"

#define MEMORY (UINT64_C(1) << 20)

enum { RECORD = 40, SUM_AT = 32, BYTES_AT = 24, FILES_MAX = 32 };

struct process {
    struct common_loop *loop;
    struct worker_store *store;
    struct worker_map sessions;
    struct worker_disk *disk;
    uint64_t term;
};

struct told { // what a process says that it holds
    uint64_t chunks;
    size_t sessions;
};

// ---- files ----------------------------------------------------------------------------------------------

static uint64_t get(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void put(uint8_t *at, uint64_t value)
{
    memcpy(at, &value, sizeof value);
}

// A sealed file's table: after the head and the rows' widths there is, of each layer, where its part is.
static void right_parts(uint8_t *file, size_t len)
{
    struct worker_image_head head;
    size_t at = RECORD + sizeof head;
    if (len < at)
        return;
    memcpy(&head, file + RECORD, sizeof head);
    uint64_t id = get(file + 8);
    if (head.layers > 64)
        return;
    at += head.layers * sizeof(struct worker_image_layer);
    for (uint64_t layer = 0; layer < head.layers; layer++, at += sizeof(struct worker_sealed_layer)) {
        struct worker_sealed_layer part;
        if (at + sizeof part > len)
            return;
        memcpy(&part, file + at, sizeof part);
        if (part.bytes == 0 || part.at > len || part.bytes > len - part.at)
            continue;
        const uint64_t of[2] = {id, layer};
        const struct iovec pieces[] = {{(void *)of, sizeof of}, {file + part.at, part.bytes}};
        part.sum = common_xxh3_gather(pieces, 2);
        memcpy(file + at, &part, sizeof part);
    }
}

static void right_sums(uint8_t *file, size_t len)
{
    uint32_t type;
    if (len >= RECORD && (memcpy(&type, file + 4, sizeof type), type == WORKER_RECORD_SEALED))
        right_parts(file, len);
    for (size_t at = 0; at + RECORD <= len;) {
        uint64_t bytes = get(file + at + BYTES_AT);
        if (bytes > len)
            return;
        size_t whole = RECORD + (size_t)((bytes + 7) & ~UINT64_C(7));
        if (whole > len - at)
            return;
        put(file + at + SUM_AT, 0);
        put(file + at + SUM_AT, common_xxh3(file + at, whole, 0));
        at += whole;
    }
}

static void make_files(struct sim_files *directory, struct fuzz_input *in)
{
    struct worker_files *files = sim_files_open(directory);
    for (unsigned i = 0; i < FILES_MAX && in->left > 0; i++) {
        uint8_t what = fuzz_u8(in);
        char *name = fuzz_text(in, 40);
        size_t len = fuzz_u16(in);
        const uint8_t *bytes = fuzz_bytes(in, len, &len);
        uint8_t *copy = malloc(len + 1);
        FUZZ_CHECK(copy);
        if (len > 0)
            memcpy(copy, bytes, len);
        if (what & 1)
            right_sums(copy, len);
        if (name[0]) {
            const struct iovec piece = {copy, len};
            files->ops->write(files, name, 0, &piece, 1);
        }
        free(copy);
        free(name);
    }
    files->ops->close(files);
}

// ---- processes ------------------------------------------------------------------------------------------

static bool start(struct process *p, struct sim_files *directory)
{
    struct common_secret secret; // and the name: those of a simulated cluster's first worker (seeds_disk.c)
    memset(secret.bytes, 7, sizeof secret.bytes);
    const struct worker_disk_options options = {.path = "DIR",
                                                .name = "w0",
                                                .secret = &secret,
                                                .fsync = WORKER_FSYNC_INTERVAL,
                                                .boot = "0",
                                                .scrub_ns = COMMON_NS_PER_S,
                                                .term = &p->term,
                                                .attach_ns = 1};
    struct common_error err;
    *p = (struct process){.term = 1};
    FUZZ_CHECK(common_loop_new(&p->loop) == COMMON_OK);
    p->store = worker_store_new(MEMORY, worker_memory_host(MEMORY, NULL));
    FUZZ_CHECK(p->store);
    enum common_code code = worker_disk_new(p->loop, sim_files_open(directory), &options, &p->disk, &err);
    if (code == COMMON_OK) {
        code = worker_disk_load(p->disk, p->store, &p->sessions, &err);
    } else {
        p->disk = NULL;
    }
    FUZZ_CHECK(code == COMMON_OK || err.message[0]);
    return code == COMMON_OK;
}

static struct told ask(const struct process *p)
{
    return (struct told){worker_store_chunks(p->store), p->sessions.count};
}

static void read_all(struct process *p)
{
    size_t cursor = 0;
    struct worker_chunk *chunk;
    while (worker_store_next(p->store, &cursor, &chunk))
        FUZZ_CHECK(worker_store_find(p->store, worker_chunk_id(chunk)) == chunk);
}

static void end(struct process *p)
{
    void *session;
    if (p->disk)
        worker_disk_close(p->disk);
    for (size_t cursor = 0; worker_map_next(&p->sessions, &cursor, &session); cursor = 0)
        worker_session_drop(&p->sessions, p->store, ((struct worker_session *)session)->id);
    worker_map_free(&p->sessions);
    worker_store_free(p->store);
    worker_disk_free(p->disk);
    sim_loop_drain(p->loop);
    common_loop_free(p->loop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct sim_files directory;
    struct process p;
    common_log_set_level(COMMON_LOG_ERROR);
    sim_begin(1);
    sim_files_init(&directory);
    make_files(&directory, &in);
    bool taken = start(&p, &directory);
    struct told before = {0}, after;
    if (taken) {
        before = ask(&p);
        read_all(&p);
        sim_advance(4 * COMMON_NS_PER_S);
        before = ask(&p);
    }
    end(&p);
    if (taken) {
        FUZZ_CHECK(start(&p, &directory));
        after = ask(&p);
        FUZZ_CHECK(after.chunks <= before.chunks && after.sessions <= before.sessions);
        end(&p);
    }
    sim_files_end(&directory);
    sim_end();
    return 0;
}
