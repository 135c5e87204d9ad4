// SPDX-License-Identifier: Apache-2.0
// Frames: what waits on a plan is put together, sent to the root (sending.c), and taken apart again when it
// is
// back (landing.c). The hot path: no allocation once frames have grown, no copy of q, k, v or o when a frame is
// exactly what one client sent.
#ifndef COORDINATOR_FRAME_H
#define COORDINATOR_FRAME_H

#include "coordinator/steps/queue.h"
#include "proto/rpc/step.h"

#define COORDINATOR_FRAME_ITEMS  1024
#define COORDINATOR_FRAME_HEADER (48 * 1024)       // bytes of packed header, estimated from above
#define COORDINATOR_FRAME_BYTES  (4 * 1024 * 1024) // q, k and v; a single slab may be more

struct coordinator_frame {
    struct coordinator_frame *next; // spare
    struct common_list link;        // in steps.flying until it comes back
    struct coordinator_queue *queue;
    bool big, traced;                 // traced: a slab's trace is sampled
    struct proto_step step;           // items and appends are ours
    struct coordinator_item **owners; // [step.n_items]
    uint32_t *nth;                    // [step.n_items] which slab of its owner
    uint32_t cap_items, cap_appends;
    uint8_t *buffer; // a block with q, k and v, when they had to be copied
    uint64_t sent_ns;
    uint64_t call;                        // of the root's channel; 0: it could not be sent
    struct coordinator_completion unsent; // it could not be sent: comes back at the end of the turn
    enum common_code unsent_code;
    char unsent_text[128];
};

struct coordinator_frame *coordinator_frame_new(struct coordinator_steps *steps); // a spare one, or made
void coordinator_frame_recycle(struct coordinator_steps *steps, struct coordinator_frame *frame);
void coordinator_frames_free(struct coordinator_steps *steps); // spare ones

// Array of a frame or of traces with room for `cap` elements of `each` bytes. Their number is bounded.
void *coordinator_frame_grown(void *array, uint32_t cap, size_t each);

#endif
