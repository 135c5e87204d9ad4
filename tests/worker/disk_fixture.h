// SPDX-License-Identifier: Apache-2.0
// What tests of a worker's files share: a process with a store, its files in a directory in memory, and one
// session.
#ifndef TESTS_WORKER_DISK_FIXTURE_H
#define TESTS_WORKER_DISK_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/sim_files.h"
#include "worker/disk/disk.h"
#include "worker/session/session.h"

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
    uint64_t lost, lost_chunk; // chunks whose rows it has no more: how many, and the last one
    struct common_error err;
};

// Of the next process.
extern const char *disk_boot;
extern enum worker_fsync disk_fsync;
extern uint64_t disk_waiting;                                      // as worker_disk_options.waiting
extern void (*disk_wanted)(void *arg, struct worker_chunk *chunk); // likewise; with the process

// What came of `code` when all that was asked of the files is done: as a worker waits before it answers for a
// session.
enum common_code kept(struct process *p, uint64_t session, enum common_code code);
void finish_changes(struct process *p); // runs the loop until all that was asked of the files is done
void row_of(uint32_t layer, uint64_t position, uint8_t k[ROW], uint8_t v[ROW]);
enum common_code begin(struct process *p, struct worker_files *files, const char *name, uint64_t memory);
void finish(struct process *p);
void start(struct process *p, struct sim_files *directory);
void kill_it(struct process *p, struct sim_files *directory);
struct worker_session *session_of(struct process *p);
enum common_code tell_layout(struct process *p, uint64_t session, uint32_t chunks);
enum common_code ask_layout(struct process *p, uint64_t session, uint32_t chunks); // and does not wait
enum common_code put_rows(struct process *p, uint32_t chunk); // its rows of layer 0, and does not wait
enum common_code tell_apart(struct process *p, uint64_t session, uint32_t chunks); // chunks of its own
void set_layout(struct process *p, uint32_t chunks);                               // of SESSION
// The same of all its chunks, as a coordinator says it that has a record of where each layer ends.
void tell_settled(struct process *p, uint64_t length, uint64_t settled);
void tell_copy(struct process *p, uint64_t id, uint32_t chunk); // of that one, beside it, for a truncation
enum common_code append(struct process *p, uint32_t layer, uint64_t position);
enum common_code attach(struct process *p, uint32_t chunk, uint32_t layer);
void commit(struct process *p, uint32_t chunk, uint32_t layer);
uint64_t check_layer(struct process *p, uint32_t layer, enum worker_row least);
void check_named(struct process *p);
uint64_t fill(struct process *p, uint64_t until);
void seal(struct sim_files *directory, uint64_t id);

#endif
