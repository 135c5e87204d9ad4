// SPDX-License-Identifier: Apache-2.0
// What each session carries for its moves: its place in the queue of sessions that want some (move_queue.h),
// and how the last ones went (place/moves.h).
#ifndef COORDINATOR_MOVE_TICKET_H
#define COORDINATOR_MOVE_TICKET_H

#include <stdbool.h>
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

struct coordinator_move_tries {
    uint64_t again_ns;     // none is begun before: the last one failed
    uint64_t put_again_ns; // nor of a chunk that is being put: rows of one were put
    uint32_t at;           // in layout.chunks, where the next choice begins
    uint32_t failed;       // in a row
    uint32_t halved;       // how often the chunks of one move, since moves failed
    uint32_t copied;       // chunks since `copying`
    bool copying;          // that copies are made was told
    bool wished;           // a balance wants chunks of the session elsewhere
};

#endif
