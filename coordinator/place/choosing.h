// SPDX-License-Identifier: Apache-2.0
// Which chunks of a session go where with its next move. It costs a look at the session's chunks and at the workers, and
// does not depend on how many sessions there are.
#ifndef COORDINATOR_CHOOSING_H
#define COORDINATOR_CHOOSING_H

#include "coordinator/cluster/cluster.h"
#include "coordinator/session/placement.h"
#include "coordinator/sync/moving.h"

struct coordinator_choice { // of one move
    struct coordinator_session *s;
    struct coordinator_candidate *candidates; // [n]
    uint32_t n;
    struct coordinator_worker *to; // NULL: none
    struct coordinator_move_item items[COORDINATOR_MOVE_CHUNKS];
    uint32_t n_items;
    bool big;                        // its rows travel for long (move_queue.h)
    bool more;                       // other chunks are left, for the next move
    bool tidied;                     // copies were marked as leaving, or no longer
    bool refused;                    // there is one that cannot move now
    bool any;                        // another one than `busy` would do as well, and has no room either
    struct coordinator_worker *busy; // a receiver that has no room for the move; NULL: none was
    struct coordinator_worker *active[COORDINATOR_WORKERS_MAX]; // [n]
};

// The caller's to free. Copies too many are marked as leaving.
struct coordinator_choice *coordinator_choose(struct coordinator_session *s);
// The move begins: what an operator or a slow worker wished of it is being done.
void coordinator_choice_begun(const struct coordinator_choice *choice);
void coordinator_choice_free(struct coordinator_choice *choice);

#endif
