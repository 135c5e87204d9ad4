// SPDX-License-Identifier: Apache-2.0
// The first half of frame.h: a frame is put together and sent.
#ifndef COORDINATOR_SENDING_H
#define COORDINATOR_SENDING_H

#include "coordinator/steps/queue.h"

// Sends what is at the head of a queue that has something of its kind. Never comes back on this stack.
void coordinator_frame_send_small(struct coordinator_queue *queue);
void coordinator_frame_send_big(struct coordinator_queue *queue);

// Cancels the frames all of whose calls are over: nobody waits for what they compute, and what waits for the plan
// may go. They come back on this stack. Drain.
void coordinator_frames_cancel(struct coordinator_steps *steps);

#endif
