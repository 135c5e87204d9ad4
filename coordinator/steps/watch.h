// SPDX-License-Identifier: Apache-2.0
// What the last steps of a session looked at and where their time went, for callers other than the client
// that makes them. While a SessionWatch waits, the session's next steps are looked at: their frames carry
// traces, and once a step is answered its last row's masses are asked for, beside it. What was seen is kept,
// a few steps a session, of a few sessions; so are the traces and masses that clients ask for themselves. A
// session that is not watched pays for one comparison a step.
//
//   SessionWatch ──▶ watcher waits ──▶ steps are looked at ──▶ seen, kept ──▶ enough, or its time is over:
//                                      (item, landing)         (watch.c)      answered (watchers.c)
#ifndef COORDINATOR_WATCH_H
#define COORDINATOR_WATCH_H

#include "coordinator/steps/item.h"
#include "coordinator/steps/mass.h"
#include "proto/model/mass.h"

struct coordinator_lane;
struct coordinator_use;

#define COORDINATOR_WATCHES_MAX  64            // sessions with a memory; the one longest untouched gives way
#define COORDINATOR_WATCHERS_MAX 16            // calls that wait, of one session
#define COORDINATOR_LOOKS_MAX    8             // without a call, of all sessions
#define COORDINATOR_WATCH_BYTES  (1024 * 1024) // kept of one session
#define COORDINATOR_WATCH_PROBES                                                                             \
    8 // masses being computed for watchers of one session; a step beyond has none

struct coordinator_seen { // a step
    uint64_t step, incarnation, first, visible, at_ns, total_ns, tree_ns, mass_ns;
    uint32_t layer, rows, attempts, n_traces;
    bool append;
    uint64_t left_out;                 // tokens that its rows would have seen
    struct proto_trace *traces;        // [n_traces]
    struct coordinator_masses *masses; // of its last row; NULL: none
};

struct coordinator_watcher { // a call that waits
    struct coordinator_watcher *next;
    struct coordinator_session *s;
    struct proto_request *request; // NULL: none waits, what is seen is kept (coordinator_watchers_look)
    struct coordinator_use *use;   // of whose tenant it counts as a watch; NULL: nobody's
    struct common_timer *timer;
    uint32_t steps, left; // wanted; still to come, of this incarnation
    uint64_t incarnation;
    uint32_t layer, mass_bins;
    bool trace, mass_heads;
};

struct coordinator_watch {          // of one session
    struct coordinator_watch *next; // in steps.watches
    struct coordinator_steps *steps;
    struct coordinator_session *s; // s->lane->watch is this one
    struct coordinator_watcher *watchers;
    uint32_t n_watchers;
    // What they want together:
    bool trace, mass_heads;
    uint32_t mass_bins, layer;                            // layer 0: any; else only layer - 1
    struct coordinator_seen *seen[PROTO_WATCH_STEPS_MAX]; // oldest first
    uint32_t n_seen, probes;
    size_t bytes;
    uint64_t touched_ns;
};

// Whether a step of this layer is to be looked at.
static inline bool coordinator_watch_wants(const struct coordinator_watch *watch, uint32_t layer)
{
    return watch && watch->n_watchers && (!watch->layer || watch->layer == layer + 1);
}

// The session's, made when there is none. NULL: too many sessions are being watched.
struct coordinator_watch *coordinator_watch_of(struct coordinator_steps *steps,
                                               struct coordinator_session *s);
// A step has succeeded and is about to be answered: it is kept if requested. Its session still
// counts it in `shared`.
void coordinator_watch_step(struct coordinator_item *item, struct coordinator_session *s);
void coordinator_watch_lane_gone(struct coordinator_lane *lane); // forgets; who waits gets NOT_FOUND

#endif
