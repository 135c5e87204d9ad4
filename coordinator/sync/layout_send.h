// SPDX-License-Identifier: Apache-2.0
// Telling workers which chunks of a session they hold.
#ifndef COORDINATOR_LAYOUT_SEND_H
#define COORDINATOR_LAYOUT_SEND_H

#include "coordinator/session/session.h"

struct coordinator_gather;

// Sends LayoutSet in as many calls as it takes: `n` chunks of the session to a worker that holds them.
// `incarnation` and `epoch` as given.
struct coordinator_layout_message {
    uint64_t session, incarnation, epoch;
    const Banyan__Pb__Spec *spec;
    const struct coordinator_chunk *const *chunks;
    uint32_t n;
    bool replace;
    const struct coordinator_chunk
        *copy;          // of the chunks, the one that is being made beside another (reshape.h); NULL: none
    uint32_t incoming;  // of the chunks, so many at the end: the worker is no holder of them yet
    uint64_t *lengths;  // [layers] acknowledged; NULL: nothing is said about appends
    uint64_t settled;   // with them: coordinator_session_settled
    uint64_t forgotten; // the session's floor
    uint64_t tickets;   // 0, or those with a lower number are to be refused
};
void coordinator_layout_send(struct coordinator_worker *w, const struct coordinator_layout_message *message,
                             struct coordinator_gather *gather);

// Everything of the session that the worker holds, or is being brought (move.h), or should forget: with replace.
void coordinator_layout_send_all(struct coordinator_session *s, struct coordinator_worker *w,
                                 struct coordinator_gather *gather);

// The same to every member: who is not ACTIVE is told before it is (coordinator_session_dirty). Where the gather
// ends badly what they were told has happened all the same: coordinator_session_doubt_all.
void coordinator_layout_send_members(struct coordinator_session *s, struct coordinator_gather *gather);

#endif
