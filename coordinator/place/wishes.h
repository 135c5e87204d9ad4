// SPDX-License-Identifier: Apache-2.0
// Chunks that are to lie elsewhere: a balance (rebalance.h) makes the list, moves take from it (choosing.h).
#ifndef COORDINATOR_WISHES_H
#define COORDINATOR_WISHES_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator_sessions;
struct coordinator_worker;

struct coordinator_wish { // that a chunk goes from one worker to another
    uint64_t session, id;
    uint32_t index;
    bool slow;                            // because `from` is: nothing once it is well
    struct coordinator_worker *from, *to; // it is nothing where they are not what they were any more
};

struct coordinator_wishes {        // of the room
    struct coordinator_wish *list; // [n], owned
    uint32_t n;
    bool balancing;      // they are carried out, and no event has said yet that none is left
    uint64_t relieve_ns; // slow workers are not relieved of chunks before
    uint64_t relieved;   // how often so far
};

void coordinator_wishes_init(struct coordinator_sessions *sessions);
void coordinator_wishes_tick(struct coordinator_sessions *sessions); // drops those of sessions that are gone
void coordinator_wishes_fini(struct coordinator_sessions *sessions);

#endif
