// SPDX-License-Identifier: Apache-2.0
// A copy of a chunk at one worker: its state, and what the worker has said about its rows. Pure.
//
//   a move begins                     placed, or loaded from the store
//        │                                       │
//        ▼               stored                  ▼    replaced, or one too many
//     COMING ─────────────────────────────────▶ SYNC ◀──────────────────────────▶ LEAVING
//      │  │                                     │ ▲   no copy that stays is usable   │
//      │  └──────▶ WRONG ◀── its memory is not ─┤ │                                  │
//      │             │       what was sealed ◀──┼─┼──────────────────────────────────┤
//      ▼             ▼                          │ │                                  │
//     GONE ◀─────────┴── its worker came back ──┘ │                                  │
//      │                 without it ◀─────────────┼──────────────────────────────────┘
//      └── no worker has it, and it was empty ────┘
//
// A copy ends in any state: it is struck off (sync/failover.h), its chunk is removed, or its move fails.
// COMING is not in the chunk's list. Workers that were struck off may keep sealed chunks: these have no state
// here (sync/returned.h).
//
// The report is what the worker has said since the coordinator started (sync/named.h). It does not depend on
// the state, and counts until the chunk is `known`. A copy made in this life of the coordinator is HEARD.
//
//    its inventory lacks nothing:    SILENT ──── visit complete ───▶ HEARD
//                                     │  ▲ ◀── all report again ──   │  ▲
//                                     ▼  │                           ▼  │
//    its files may lack rows:       DOUBTING ─── visit complete ─▶ DOUBTFUL
//                                        ◀── all report again ──
//
// All report again when a holder was struck off.
#ifndef COORDINATOR_COPY_H
#define COORDINATOR_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop/machine.h"

struct coordinator_worker;

enum coordinator_copy_state {
    COORDINATOR_COPY_COMING,  // a move brings it (place/move.h): it is not in the list yet
    COORDINATOR_COPY_SYNC,    // it has every acknowledged row
    COORDINATOR_COPY_LEAVING, // the same; it is struck off once a copy that stays is usable
    COORDINATOR_COPY_WRONG,   // not used; the worker holds it until it is struck off (check/seals.h)
    COORDINATOR_COPY_GONE,    // the worker is without it, and it is to be struck off
    COORDINATOR_COPY_STATES
};
extern const struct common_machine coordinator_copy_machine;

enum coordinator_copy_report {
    COORDINATOR_REPORT_SILENT,   // the worker has not said yet which rows it has
    COORDINATOR_REPORT_DOUBTING, // it is saying so, and its files may lack some
    COORDINATOR_REPORT_HEARD,    // it has said so
    COORDINATOR_REPORT_DOUBTFUL, // it has said so, and its files may lack some
    COORDINATOR_REPORTS
};
extern const struct common_machine coordinator_report_machine;

struct coordinator_copy {
    struct coordinator_worker *worker; // not owned
    uint64_t stamp : 48;               // what visits of the worker may say of it: sync/reconcile.h
    uint64_t state : 8;                // an enum coordinator_copy_state
    uint64_t report : 7;               // an enum coordinator_copy_report
    uint64_t untold : 1;               // a commit of its rows is durable, and the worker may not know
};

// Sets of states, for coordinator_chunk_where (layout.h).
#define COORDINATOR_IN(state) (1u << COORDINATOR_COPY_##state)
#define COORDINATOR_UNFIT     (COORDINATOR_IN(GONE) | COORDINATOR_IN(WRONG))

static inline bool coordinator_copy_is(const struct coordinator_copy *copy, uint32_t states)
{
    return states >> copy->state & 1;
}

static inline bool coordinator_copy_heard(const struct coordinator_copy *copy)
{
    return copy->report == COORDINATOR_REPORT_HEARD || copy->report == COORDINATOR_REPORT_DOUBTFUL;
}

static inline bool coordinator_copy_doubtful(const struct coordinator_copy *copy)
{
    return copy->report == COORDINATOR_REPORT_DOUBTING || copy->report == COORDINATOR_REPORT_DOUBTFUL;
}

// The only ways to change the state and the report. Setting the same one again does nothing; an edge that the
// drawing lacks is our bug, and ends the process (common/loop/machine.h).
void coordinator_copy_set_state(struct coordinator_copy *copy, enum coordinator_copy_state state);
void coordinator_copy_set_heard(struct coordinator_copy *copy, bool heard);
void coordinator_copy_set_doubtful(struct coordinator_copy *copy, bool doubtful);

#endif
