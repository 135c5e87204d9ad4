// SPDX-License-Identifier: Apache-2.0
// The room of steps: clients' calls, the items in them, and the frames that carry the items to workers and
// back (docs/internals/architecture.md, "A step"). It stands on sessions, cluster and store; nothing below uses it.
//
//   room.c      the start and the end of the room, and its drains
//   attend.c    an Attend call comes, is taken apart into items, ends      call.c    the call
//   answer.c    its answer                                                 item.c    the states of an item
//   run.c       an item's way through them                                 admit.c   may it go?
//   lane.c      items of one session that wait for their turn; lanes.c     sight.c   what an item's rows see
//   queue.c     items that wait for a plan's next frame; fair.c: whose go  slab.c    cutting
//   dispatch.c  which queues send                                          frame.c   a frame
//   sending.c   it is put together and sent; landing.c: it comes back and is taken apart
//   mass.c      attention masses of a step; mass_message.c; watch.c, watchers.c: who watches sessions
//   spans.c     spans of steps that are traced
//   keep.c      a step of each session, as it was answered; audit.c, audit_sum.c: computed again in float64
#ifndef COORDINATOR_STEPS_H
#define COORDINATOR_STEPS_H

#include "common/base/list.h"
#include "common/base/status.h"
#include "common/metrics/buckets.h"
#include "common/metrics/exemplars.h"
#include "coordinator/core.h"

struct coordinator_auditing;
struct coordinator_cluster;
struct coordinator_frame;
struct coordinator_sessions;
struct coordinator_watch;

struct coordinator_keep {   // steps that are kept (keep.h)
    struct common_list all; // coordinator_kept.link
    uint32_t n;
    uint64_t bytes, seen, last_ns; // seen: items that went; last_ns: when one was kept last
};

struct coordinator_steps {
    struct coordinator_core *core;
    struct coordinator_sessions *sessions;
    struct coordinator_cluster *cluster;
    struct common_list calls;   // under way: coordinator_call.link
    struct common_list fresh;   // items that are NEW: item.link
    struct common_list retries; // items that are RETRYING: item.link
    struct common_list lanes;   // with items that may go now: lane.moved
    struct common_list queues;  // all: queue.link
    struct common_list dirty;   // queues with something to send, or whose plan has retired: queue.dirty
    struct common_list flying;  // frames that have not come back: frame.link
    bool some_over; // a call ended that frames may carry: they are looked at in the phase of frames
    struct coordinator_frame *frames; // spare
    uint32_t n_frames;
    struct common_timer *deadlines, *retry; // of calls; of items that are RETRYING
    bool deadlines_run, retry_runs;
    uint32_t items; // under way
    struct coordinator_watch *watches;
    uint32_t n_watches, n_looks;
    struct coordinator_keep keep;
    struct coordinator_auditing *auditing; // audit.h
    uint64_t bytes;                        // of replies being gathered, and of what they declare as missing
    uint64_t landed_ns;                    // when the last frame came back
    uint64_t count_steps, count_frames, count_retries, count_collective, count_partial, step_ids;
    struct common_buckets took, tree, own; // of attend calls: from arrival to answer, and what of it they
                                           // waited for trees, and did not
    struct common_exemplars took_last, tree_last, own_last; // of those that were traced
    uint64_t failures[COMMON_CODE_COUNT];                   // of their items
    uint64_t count_audited, count_audit_differences, count_audit_skipped;
};

// Of the time inside the coordinator, what it did not wait for a tree or for masses.
static inline uint64_t coordinator_own_ns(uint64_t inside_ns, uint64_t tree_ns, uint64_t mass_ns)
{
    return inside_ns > tree_ns + mass_ns ? inside_ns - tree_ns - mass_ns : 0;
}

#endif
