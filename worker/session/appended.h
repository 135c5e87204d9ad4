// SPDX-License-Identifier: Apache-2.0
// Which appended rows of a session are acknowledged, as far as this worker has learnt. An append is stored by
// several workers, and acknowledged when all have their parts; only the coordinator sees that. It says so
// with every step that follows (StepItem.length). A restarted coordinator asks for both:
//
//     0                       length                end
//     ├── acknowledged ────────┼── of one append ────┤        this worker's chunks may have a part of it only
//
// There is one unconfirmed append in a layer at most: a newer one takes the rows of the one before back first.
// Belongs to the loop thread.
#ifndef WORKER_APPENDED_H
#define WORKER_APPENDED_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/banyan.pb-c.h"

struct worker_session;

struct worker_appended { // of a layer
    uint64_t length;     // acknowledged
    uint64_t write, end; // the append of which rows past it are stored here; write 0: none
};

// All below `length` is acknowledged. It never falls within an incarnation.
void worker_appended_confirm(struct worker_session *session, uint32_t layer, uint64_t length);

// A part of an append comes that is not older than what was seen: what another one has left goes.
void worker_appended_begin(struct worker_session *session, uint32_t layer, uint64_t write);
// It is stored. end: of the whole append.
void worker_appended_stored(struct worker_session *session, uint32_t layer, uint64_t write, uint64_t end);

// Appends up to `write` are over: of what they left in this layer only what is acknowledged stays, and no part of
// them is stored any more.
void worker_appended_settle(struct worker_session *session, uint32_t layer, uint64_t write);

// Whether the chunk has not all rows that are acknowledged, as far as this worker has learnt.
struct worker_chunk;
bool worker_appended_lacks(const struct worker_session *session, const struct worker_chunk *chunk);
// Whether an append that may have been acknowledged has a part in it.
bool worker_appended_reaches(const struct worker_session *session, const struct worker_chunk *chunk);

// All that is acknowledged is known, and was not while files were read: of appended rows past it only the unconfirmed
// append's stay. Others were taken back, and what said so in the chunk's file has gone with its end.
void worker_appended_tidy(struct worker_session *session);

// What a layout says about all layers. newer: it begins a new incarnation, which no append outlives.
void worker_appended_layout(struct worker_session *session, const Banyan__Pb__LayoutSetRequest *request,
                            bool newer);

#endif
