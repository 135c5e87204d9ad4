// SPDX-License-Identifier: Apache-2.0
// What every room of the coordinator may use: the loop, the options, the term, the turn. A room is a folder with
// a struct of its own inside struct coordinator (state.h); it knows the rooms below it by pointers, and none
// above it.
//
//   steps ──▶ sessions ──▶ rows ──▶ place ──▶ check ──▶ sync ──▶ session ──▶ cluster ──▶ store
//                                                                       each ──▶ core, turn
#ifndef COORDINATOR_CORE_H
#define COORDINATOR_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/loop/loop.h"
#include "common/secure/secret.h"
#include "coordinator/events.h"
#include "coordinator/options.h"
#include "coordinator/presence.h"
#include "coordinator/turn.h"

// What the rooms may have at once. How much is used: limits.c.
enum coordinator_limit {
    COORDINATOR_LIMIT_WORKERS,
    COORDINATOR_LIMIT_SESSIONS,
    COORDINATOR_LIMIT_STEPS,
    COORDINATOR_LIMIT_ANSWERS, // bytes of answers that are being put together
    COORDINATOR_LIMIT_PLANS,
    COORDINATOR_LIMIT_EVENT_READERS, // calls that wait for events
    COORDINATOR_LIMITS
};

struct proto_request;

struct coordinator_core {
    struct common_loop *loop;
    struct coordinator_options options; // strings owned
    struct common_secret secret;
    uint64_t term, started_ns;
    uint64_t clock_zero_ns; // coordinator_clock_ns when common_clock_ns was 0
    uint64_t term_asked;    // the highest that the store was asked to keep; not above `term` when none is
    bool stopping;          // nothing new is begun
    struct coordinator_turn turn;
    struct coordinator_presence presence;
    struct coordinator_events *events;    // what has happened, for people (events.h)
    uint64_t reached[COORDINATOR_LIMITS]; // times that something was refused for it
    // A client has named a session of another tenant; it is answered that there is none. For the audit log;
    // may be NULL.
    void (*strange)(void *arg, const struct proto_request *request, uint64_t session);
    void *strange_arg;
    void *scratch; // memory to build replies in
    size_t scratch_bytes;
};

// The process runs now: says so to `presence`, and to the log when it was away. To be called before anybody
// is judged by silence.
void coordinator_here(struct coordinator_core *core, uint64_t now_ns);

// What is said to those who wait for a session that is gone from memory: NOT_FOUND, it was deleted; while the coordinator
// stops UNAVAILABLE: the next one has it. text: a literal.
enum common_code coordinator_gone(const struct coordinator_core *core, const char **text);

// What the lives of tickets and passes are counted by: since 1970, as the wall clock was when this process began, and by
// the monotonic clock from then on. So no life changes when the wall clock is set. Workers are told it with each
// heartbeat (docs/reference/wire.md, "Lives").
uint64_t coordinator_clock_ns(const struct coordinator_core *core);

// Room to build one message in: valid until the next call, grows only. NULL: out of memory.
static inline void *coordinator_scratch(struct coordinator_core *core, size_t bytes)
{
    if (bytes > core->scratch_bytes) {
        void *scratch = realloc(core->scratch, bytes);
        if (!scratch)
            return NULL;
        core->scratch = scratch;
        core->scratch_bytes = bytes;
    }
    return core->scratch;
}

// Objects of fixed size that our own operations need. What a peer sizes is checked and may fail; these abort
// when memory is gone.
static inline void *coordinator_alloc(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p)
        abort();
    return p;
}

#endif
