// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/frame.h"

#include <stdlib.h>

#include "common/memory/block.h"

#define SPARE_FRAMES 32

static void frame_free(struct coordinator_frame *f)
{
    free(f->step.items);
    free(f->step.appends);
    free(f->owners);
    free(f->nth);
    free(f);
}

struct coordinator_frame *coordinator_frame_new(struct coordinator_steps *steps)
{
    struct coordinator_frame *f = steps->frames;
    if (!f)
        return coordinator_alloc(sizeof(*f));
    steps->frames = f->next;
    steps->n_frames--;
    return f;
}

void coordinator_frame_recycle(struct coordinator_steps *steps, struct coordinator_frame *f)
{
    common_block_give(f->buffer);
    f->buffer = NULL;
    if (steps->n_frames >= SPARE_FRAMES) {
        frame_free(f);
        return;
    }
    f->next = steps->frames;
    steps->frames = f;
    steps->n_frames++;
}

void coordinator_frames_free(struct coordinator_steps *steps)
{
    for (struct coordinator_frame *f; (f = steps->frames);) {
        steps->frames = f->next;
        frame_free(f);
    }
}

void *coordinator_frame_grown(void *array, uint32_t cap, size_t each)
{
    void *p = realloc(array, cap * each);
    if (!p)
        abort();
    return p;
}
