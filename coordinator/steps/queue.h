// SPDX-License-Identifier: Apache-2.0
// What waits to go down a plan's tree. Small items share frames: one such frame is in flight, the next one
// collects meanwhile. Items that were cut leave slab by slab, in frames of their own, taking turns; so do
// those that wait for rows on a worker's disk. Whose items go next, of those of several tenants: fair.h.
//
//   small: item item item ──▶ one frame in flight               plan INSTALLING: both wait
//   big:   item item      ──▶ up to 4 frames in flight          plan RETIRED: all go another way
#ifndef COORDINATOR_QUEUE_H
#define COORDINATOR_QUEUE_H

#include "coordinator/steps/fair.h"
#include "coordinator/steps/steps.h"

struct coordinator_item;
struct coordinator_plan;

struct coordinator_queue {
    struct coordinator_steps *steps;
    struct coordinator_plan *plan;      // plan->queue is this one: the plan lives as long
    struct coordinator_fair small, big; // item.link
    uint32_t small_in_flight, big_in_flight;
    struct common_list link;  // in steps.queues
    struct common_list dirty; // in steps.dirty
};

// The item is QUEUED: it goes with the plan's next frame.
void coordinator_queue_push(struct coordinator_steps *steps, struct coordinator_plan *plan,
                            struct coordinator_item *item);
// The same, of one that was taken out and has slabs left, while the queue is being looked at.
void coordinator_queue_put(struct coordinator_queue *queue, struct coordinator_item *item);
// An item that is QUEUED leaves its plan's queue, unsent or with slabs unsent.
void coordinator_queue_leave(struct coordinator_item *item);

// There may be something to send: looked at in the phase of frames.
void coordinator_queue_mark(struct coordinator_queue *queue);

#endif
