// SPDX-License-Identifier: Apache-2.0
// A worker of a simulation: the real one (worker/daemon/worker.h), as a process of its own, with a team that
// computes on simulated time (sim_team.c). What it is asked can be counted, held and refused: sim_serve.h,
// with its loop.
#ifndef TESTS_SIM_SIM_WORKER_H
#define TESTS_SIM_SIM_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop/loop.h"
#include "common/secure/secret.h"
#include "tests/sim/sim_files.h"

struct worker;

struct sim_worker_options { // strings are copied
    const char *name, *host;
    const char *coordinator; // endpoint
    uint32_t port;           // public on 127.0.0.1; its edge is the next one
    const struct common_secret *secret;
    uint64_t memory_bytes;  // half of it or more is for K and V
    bool team;              // even the smallest step goes to the team
    uint64_t pace;          // what pace.h counts with, of any work; 0: 10 GB/s, and work that is large
    uint64_t attach_ttl_ns; // 0: rows that are put stay until they are committed
    bool store;             // it keeps what it holds in files (--store)
    bool syncs;             // one process in four runs with --fsync always; else all sync from time to time
    uint64_t scrub_ns;      // and reads them once in this time; 0: it does not
    size_t inventory_bytes; // of a page of its inventory: 1 is one chunk a page; 0: the usual
};

struct sim_worker { // for tests to read
    struct sim_worker_options options;
    char name[65], host[65], coordinator[160], endpoint[64], edge_endpoint[64];
    struct common_loop *loop; // NULL: it is not running
    struct worker *worker;
    struct sim_files files; // of its store, while it is down, too
    bool synced; // it runs with --fsync always: a loss of power takes nothing that it has answered for
};

// A process that is not running yet.
struct sim_worker *sim_worker_new(const struct sim_worker_options *options);

// Starts it: listens, and registers when the coordinator is there. Each start is another instance, which
// holds nothing but what its store has.
void sim_worker_start(struct sim_worker *worker);

// Ends it at once, as SIGKILL does: nothing more of it goes out, nor into its files, its links close, all
// that it holds is gone. It may be started again. Free ends it, too. NULL is allowed.
void sim_worker_kill(struct sim_worker *worker);
void sim_worker_free(struct sim_worker *worker);

// From now on each task of its team takes so long (with `team`; a restarted process computes in no time).
void sim_worker_slow(struct sim_worker *worker, uint64_t task_ns);
struct worker_team;
void sim_team_slow(struct worker_team *team, uint64_t task_ns);

// The disk's threads (sim_thread.c): the loops go on for some events, between two calls of a job; a process
// that has been killed ends what it has begun now.
void sim_thread_yield(void);
void sim_thread_sync(void);
void sim_thread_hurry(const struct common_loop *loop);

// Rows of a layer that steps may see here: APPENDED or COMMITTED, from each chunk's start. 0 while it is
// down.
uint64_t sim_worker_tokens(const struct sim_worker *worker, uint64_t session, uint32_t layer);

// Chunks that are full are sealed soon, and as many layers leave memory for its files as may, `most` at most
// (worker/store/cold.h).
void sim_worker_cool(const struct sim_worker *worker, uint32_t most);
// The file of one chunk, which `chance` says, is rewritten from memory, as when a row of it goes; what is
// cold of it is loaded first.
void sim_worker_anew(const struct sim_worker *worker, uint64_t chance);
// What all workers have done so far.
struct sim_cold {
    uint64_t evicted, loaded; // layers of chunks
    uint64_t lost;            // chunks whose file was damaged meanwhile
};
struct sim_cold sim_worker_cold(void);

// Flips a bit of one row that is put here and neither committed nor being committed; `chance` says which.
// False: there is no such row.
bool sim_worker_rot(const struct sim_worker *worker, uint64_t chance);

// Flips a bit of each element of V (head 0) of a row that serves here, for all sessions that share its chunk.
// False: it is not here.
bool sim_worker_flip(const struct sim_worker *worker, uint64_t session, uint32_t layer, uint64_t position);

// Flips this bit of each element of V (float32) of one row of the chunk with this id, which steps may see; so
// the answers' dimensions stay alike. No process sees it. False: it is not here.
bool sim_worker_flip_chunk(const struct sim_worker *worker, uint64_t chunk, uint32_t layer, uint32_t row,
                           uint32_t bit);

// Whether the chunk at this position is held here.
bool sim_worker_holds(const struct sim_worker *worker, uint64_t session, uint64_t position);

// Whether a process that starts on the worker's files has it, too: a chunk without rows may not be in them
// yet.
bool sim_worker_keeps(const struct sim_worker *worker, uint64_t session, uint64_t position);

#endif
