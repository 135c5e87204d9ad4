// SPDX-License-Identifier: Apache-2.0
// Which commits have frozen rows of a session, by the number that the coordinator gave each of them. Ranges
// of several commits may overlap; a row is frozen as long as one of them has it. What state a row is in:
// store.h. Belongs to the loop thread.
//
//     commit 7     ├────────────────┤
//     commit 9            ├──────────────────┤
//                         drop 9:     └─ thaw ┘   the rest is still 7's
#ifndef WORKER_FROZEN_H
#define WORKER_FROZEN_H

#include <stdbool.h>
#include <stdint.h>

#define WORKER_FROZEN_MAX 4096u // of a session

struct worker_store;

struct worker_freeze {
    uint64_t commit, first, count; // count > 0
    uint32_t layer;
    bool holes; // rows of it were not here: it comes to nothing. Not kept in files
};

struct worker_frozen_node;

struct worker_frozen {             // zeroed: none
    struct worker_freeze *entries; // [n] in no order
    struct worker_frozen_node
        *nodes; // [n] of a tree over them, by where they start, with how far each part of it reaches
    uint32_t n, cap, root; // root: an index + 1; 0: none
    uint64_t looked;       // entries looked at so far: each call looks at few (tests/worker/frozen_test.c)
};

// Called for each stretch of rows that no commit has any more.
typedef void (*worker_thaw_fn)(void *arg, uint32_t layer, uint64_t first, uint64_t count);

// Notes it; once more changes no more than whether it has holes. False: the session has as many as there may be, or memory is short (they
// count in the store's account).
bool worker_frozen_add(struct worker_frozen *frozen, struct worker_store *store,
                       const struct worker_freeze *freeze);
bool worker_frozen_has(struct worker_frozen *frozen, const struct worker_freeze *freeze);
bool worker_frozen_covers(struct worker_frozen *frozen, uint32_t layer, uint64_t position); // any commit's

// Takes this commit's range out and thaws what it leaves free: in time logarithmic in how many there are, for each stretch.
// Unknown: nothing happens.
void worker_frozen_drop(struct worker_frozen *frozen, struct worker_store *store,
                        const struct worker_freeze *freeze, worker_thaw_fn thaw, void *arg);
// The same for all commits with a number below `before`.
void worker_frozen_settle(struct worker_frozen *frozen, struct worker_store *store, uint64_t before,
                          worker_thaw_fn thaw, void *arg);

void worker_frozen_clear(struct worker_frozen *frozen,
                         struct worker_store *store); // none again; thaws nothing

#endif
