// SPDX-License-Identifier: Apache-2.0
// Steps in their order. Frames come in the order in which they were sent, and rows that a step appends are stored before the
// steps after it look at them. A step that waits, for memory or for the disk, has not stored its rows yet: those of the
// steps after it that would see them wait behind it.
//
//   frame 1: rows [0, 250) ── waits for memory ──────────▶ stored ─▶ computed
//   frame 2: sees [0, 250)      └ waits behind it ───────────────────▶ goes on at the end of the turn
//   frame 3: another session ─▶ computed
//
// Belongs to the loop thread.
#ifndef WORKER_FOLLOW_H
#define WORKER_FOLLOW_H

#include <stdbool.h>

#include "common/base/list.h"
#include "common/loop/loop.h"
#include "proto/rpc/step.h"
#include "worker/memory/map.h"

struct worker_follower { // a step; part of the object that carries it out
    const struct proto_step *step;
    struct proto_step_result *result; // [step's items] not contributed yet
    void (*go)(void *arg);
    void *arg;
    struct common_list behind; // those that wait behind it
    struct common_list link;   // in another one's `behind`, or among those that may go on
    bool brings;               // it waits, and has rows for those after it
};

struct worker_follows {           // a worker's
    struct worker_map bringing;   // by session: the last step that waits with rows for it
    struct common_list ready;     // may go on
    struct common_deferred *turn; // does that
    const struct worker_map *sessions;
    const char *name; // the worker's, for people
};

// What it points to is the worker's, and stays.
enum common_code worker_follows_init(struct worker_follows *follows, struct common_loop *loop,
                                     const struct worker_map *sessions, const char *name);
void worker_follows_fini(struct worker_follows *follows); // no step is left

void worker_follower_init(struct worker_follower *f, const struct proto_step *step,
                          struct proto_step_result *result, void (*go)(void *arg), void *arg);

// True: it looks at rows of a step that waits. `go` runs once that one has stored them, or will not: never on this stack. Items that
// look at rows which were not stored have failed by then, ABORTED: whoever brings them says why.
bool worker_follow(struct worker_follows *follows, struct worker_follower *f);

// The step waits from now on, with what it appends. No memory: those after it do not wait behind it.
void worker_follow_bring(struct worker_follows *follows, struct worker_follower *f);

// It has stored what it appends, as f->result says, or never will, and does not wait behind another one. stored: it has tried.
void worker_follow_over(struct worker_follows *follows, struct worker_follower *f, bool stored);

#endif
