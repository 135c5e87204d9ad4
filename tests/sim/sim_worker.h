// SPDX-License-Identifier: Apache-2.0
// A worker of a simulation: the real one (worker/worker.h), as a process of its own, with a team that computes on
// simulated time (sim_team.c). What it is asked can be counted, held and refused: sim_serve.h, with its loop.
#ifndef TESTS_SIM_SIM_WORKER_H
#define TESTS_SIM_SIM_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop.h"
#include "common/secret.h"
#include "tests/sim/sim_files.h"

struct worker;

struct sim_worker_options { // strings are copied
    const char *name, *host;
    const char *coordinator; // endpoint
    uint32_t port;           // public on 127.0.0.1; its edge is the next one
    const struct common_secret *secret;
    uint64_t memory_bytes;  // half of it or more is for K and V
    bool team;              // even the smallest step goes to the team
    uint64_t attach_ttl_ns; // 0: rows that are put stay until they are committed
    bool store;             // it keeps what it holds in files (--store)
    uint64_t scrub_ns;      // and reads them once in this time; 0: it does not
};

struct sim_worker { // for tests to read
    struct sim_worker_options options;
    char name[65], host[65], coordinator[160], endpoint[64], edge_endpoint[64];
    struct common_loop *loop; // NULL: it is not running
    struct worker *worker;
    struct sim_files files; // of its store, while it is down, too
};

// A process that is not running yet.
struct sim_worker *sim_worker_new(const struct sim_worker_options *options);

// Starts it: listens, and registers when the coordinator is there. Each start is another instance, which holds
// nothing but what its store has.
void sim_worker_start(struct sim_worker *worker);

// Ends it at once, as SIGKILL does: nothing more of it goes out, nor into its files, its links close, all that it holds
// is gone. It may be started again. Free ends it, too. NULL is allowed.
void sim_worker_kill(struct sim_worker *worker);
void sim_worker_free(struct sim_worker *worker);

// Rows of a layer that steps may see here: APPENDED or COMMITTED, from each chunk's start. 0 while it is down.
uint64_t sim_worker_tokens(const struct sim_worker *worker, uint64_t session, uint32_t layer);

// Flips a bit of one row that is put here and neither committed nor being committed; `chance` says which. False: there is
// no such row.
bool sim_worker_rot(const struct sim_worker *worker, uint64_t chance);

// Whether the chunk at this position is held here.
bool sim_worker_holds(const struct sim_worker *worker, uint64_t session, uint64_t position);

#endif
