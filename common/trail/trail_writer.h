// SPDX-License-Identifier: Apache-2.0
// A thread that writes an audit log (common/trail/trail.h), and the bounded queue before it: a disk that
// hangs holds up this thread, and no loop. Records are written in the order in which they were put; each has
// a number.
//
//   loop ── put ──▶ records, at most RECORDS and BYTES ──▶ thread: common_trail_write ──▶ file
//     ▲                        │ no room: lost, and counted; the next record in the file says how many
//     └──────── done(number, written), in order ◀──────────────────┘
//
// Everything is for the loop's thread.
#ifndef COMMON_TRAIL_WRITER_H
#define COMMON_TRAIL_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop/loop.h"
#include "common/trail/trail.h"

#define COMMON_TRAIL_RECORDS 4096                // that wait
#define COMMON_TRAIL_BYTES   (UINT64_C(4) << 20) // of what they say

struct common_trail_writer;

// Once for each record that was put, in order: whether it is in the file.
typedef void (*common_trail_done_fn)(void *arg, uint64_t number, bool written);

// Takes `file`, also where it fails: RESOURCE_EXHAUSTED.
enum common_code common_trail_writer_new(struct common_loop *loop, struct common_trail *file,
                                         common_trail_done_fn done, void *arg,
                                         struct common_trail_writer **out);

// Its number, from 1 on; 0: there is no room, and the record counts as lost. `done` is never called on this
// stack. Never blocks.
uint64_t common_trail_writer_put(struct common_trail_writer *writer, const struct common_trail_body *body);

uint64_t common_trail_writer_waiting(struct common_trail_writer *writer); // records that are not written yet
// Of the queue, in percent of the larger of its two bounds.
unsigned common_trail_writer_full(const struct common_trail_writer *writer);
// For how long the oldest record that is not written yet has waited; 0: none waits.
uint64_t common_trail_writer_waits_ns(struct common_trail_writer *writer, uint64_t now_ns);

// As common_trail_reopen, behind what has been put by now; the log says how it went. As common_trail_retry,
// soon.
void common_trail_writer_reopen(struct common_trail_writer *writer);
void common_trail_writer_retry(struct common_trail_writer *writer);

struct common_trail_state {            // as the thread has left it with the last record
    struct common_trail_counts counts; // lost: also those that had no room
    char head[COMMON_TRAIL_HASH + 1];  // counts.head
    bool works;
    char trouble[128]; // where it does not work
};
void common_trail_writer_state(struct common_trail_writer *writer, struct common_trail_state *out);

// Waits until all is written, at most until until_ns (monotonic), and calls `done` for what is. False:
// something is not.
bool common_trail_writer_flush(struct common_trail_writer *writer, uint64_t until_ns);

// Ends the thread where nothing waits any more; `done` is not called. Where a disk still hangs the thread is
// left behind with the file, and ends by itself or with the process. NULL is allowed.
void common_trail_writer_free(struct common_trail_writer *writer);

#endif
