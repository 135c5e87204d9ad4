// SPDX-License-Identifier: Apache-2.0
// Telling one worker all that it should know of one session, a message at a time: its layout, then the rows whose
// commit is durable. The caller decides how many messages are under way; they travel on one link, in order.
//
//   LAYOUT: LayoutSet, 1,024 chunks each ──▶ ROWS: RowsCommit, 4,096 ranges of any layers each ──▶ OVER
//              │                               │
//              └──── the session has another incarnation or epoch, or is gone ────▶ CHANGED: told anew, or not at all
#ifndef COORDINATOR_TELLING_H
#define COORDINATOR_TELLING_H

#include "coordinator/session/session.h"
#include "proto/rpc/rpc.h"

enum coordinator_telling_stage {
    COORDINATOR_TELLING_LAYOUT,
    COORDINATOR_TELLING_ROWS,
    COORDINATOR_TELLING_OVER
};

struct coordinator_telling { // how far it has come
    enum coordinator_telling_stage stage;
    uint64_t session, incarnation, epoch;
    uint64_t cursor; // LAYOUT: 2 × the index of the next chunk; odd: the copy beside the chunk before
    uint32_t told;   // LAYOUT: chunks so far
    bool holds;      // the worker has chunks of it
    uint32_t layer;  // ROWS: where the next range starts
    uint64_t from;
};

enum coordinator_told {
    COORDINATOR_TOLD,         // a call was made: `done` will run
    COORDINATOR_TOLD_ALL,     // there was nothing left to tell
    COORDINATOR_TOLD_CHANGED, // the session is not the one that the telling began with
};

void coordinator_telling_begin(struct coordinator_telling *telling, const struct coordinator_session *s);

// Makes the next call, whose reply one of the two gets, with arg: as of coordinator_worker_call.
enum coordinator_told coordinator_telling_next(struct coordinator_telling *telling,
                                               const struct coordinator_sessions *sessions,
                                               struct coordinator_worker *w, proto_reply_fn layout_told,
                                               proto_reply_fn rows_told, void *arg);

// What a reply to RowsCommit means. A worker that lacks rows whose commit is durable has been told: its copies are
// struck off (failover.h). Where it has the only one it is logged, and steps over these rows will say DATA_LOSS; where
// it is a new process, or had not heard of the commit, it lacks them for good, and the chunks are lost.
// s: its layout is still the one that the worker was told.
enum common_code coordinator_telling_rows_code(const struct proto_reply *reply, struct coordinator_session *s,
                                               struct coordinator_worker *w);

#endif
