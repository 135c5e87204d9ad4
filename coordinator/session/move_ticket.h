// SPDX-License-Identifier: Apache-2.0
// A session's place in the queue of sessions that want moves: the part of move_queue.h that each session
// carries.
#ifndef COORDINATOR_MOVE_TICKET_H
#define COORDINATOR_MOVE_TICKET_H

#include <stdint.h>

#include "common/base/list.h"

struct coordinator_worker;

enum coordinator_move_need {
    COORDINATOR_NEED_LAST,  // a chunk has one copy, and should have more
    COORDINATOR_NEED_COPY,  // chunks have too few copies
    COORDINATOR_NEED_PLACE, // chunks are to lie elsewhere
    COORDINATOR_NEEDS
};

enum coordinator_move_place {
    COORDINATOR_MOVE_IDLE,
    COORDINATOR_MOVE_READY,
    COORDINATOR_MOVE_BEHIND,
    COORDINATOR_MOVE_BUSY,
    COORDINATOR_MOVE_RESTING
};

struct coordinator_move_ticket { // of a session: its place in the queue
    struct common_list link;
    struct coordinator_worker *behind; // its record stays: a visitor
    uint64_t until_ns;                 // BEHIND, BUSY, RESTING
    uint8_t place, need, rests;        // rests: one after the other
};

#endif
