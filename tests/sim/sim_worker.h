// SPDX-License-Identifier: Apache-2.0
// A scripted worker: a process (a loop of its own) that registers with the coordinator by the real membership
// (worker/membership.c), serves the worker's methods, and keeps states and tags of rows in the place of bytes
// (sim_rows.h). By default it answers as a healthy worker: coverage is counted from what it holds, o is 0 and lse
// is 0. Frames travel down the tree over its own links to its children. What it is to do otherwise, rules say.
#ifndef TESTS_SIM_SIM_WORKER_H
#define TESTS_SIM_SIM_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop.h"
#include "common/secret.h"
#include "proto/rpc.h"
#include "tests/sim/sim_rows.h"

struct sim_worker_options { // strings are copied
    const char *name, *host;
    const char *coordinator; // endpoint
    uint32_t port;           // of its edge endpoint on 127.0.0.1
    const struct common_secret *secret;
    uint64_t capacity_bytes, bandwidth;
};

enum sim_verdict {
    SIM_DO,   // as a healthy worker
    SIM_FAIL, // answers the rule's code, does nothing
    SIM_HOLD, // keeps the request, does nothing until sim_worker_let_go
};

struct sim_rule {
    enum sim_verdict verdict;
    uint32_t times; // then healthy again; 0: always
    enum common_code code;
    const char *reason; // "" for none
};

struct sim_held { // a request that was kept
    struct sim_held *next;
    struct proto_request *request;
};

enum { SIM_METHODS = 128 }; // PROTO_METHOD_LIMIT of proto/codec.h

struct sim_plan;

// Fields are for tests to read.
struct sim_worker {
    struct sim_worker_options options;
    char name[65], host[65], coordinator[160], endpoint[160];
    struct common_loop *loop; // NULL: it is not running
    struct proto_server *server;
    struct worker_membership *membership;
    uint64_t term, plans_term;
    struct sim_rows rows;
    struct sim_plan *plans;
    struct sim_held *held, **held_tail;
    uint32_t n_held;
    struct sim_rule rules[SIM_METHODS];
    uint64_t seen[SIM_METHODS]; // requests, by method
    uint64_t steps;
};

// A new process, not running yet.
struct sim_worker *sim_worker_new(const struct sim_worker_options *options);

// Starts it: listens, and registers when the coordinator is there. Each start is another instance.
void sim_worker_start(struct sim_worker *worker);

// Ends it at once: nothing more of it goes out, its links close, all that it holds is gone. It may be started
// again. sim_worker_free ends it, too. NULL is allowed.
void sim_worker_kill(struct sim_worker *worker);
void sim_worker_free(struct sim_worker *worker);

// How it treats the next requests of a method.
void sim_worker_rule(struct sim_worker *worker, uint32_t method, struct sim_rule rule);

// Handles what was held, oldest first, as a healthy worker does, or fails it. Requests whose callers have gone
// meanwhile are handled, too: the worker does not know.
void sim_worker_let_go(struct sim_worker *worker);
void sim_worker_fail_held(struct sim_worker *worker, enum common_code code, const char *text);

// Rows that are held here of [first, first + count), as a client's ChunkPut would store them: the tag of each is
// tag + position. Returns how many are held.
uint64_t sim_worker_put(struct sim_worker *worker, uint64_t session, uint32_t layer, uint64_t first,
                        uint64_t count, uint64_t tag);

// The rows of a layer that are visible to steps here (APPENDED or COMMITTED from each chunk's start).
uint64_t sim_worker_tokens(const struct sim_worker *worker, uint64_t session, uint32_t layer);

#endif
