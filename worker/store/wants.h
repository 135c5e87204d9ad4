// SPDX-License-Identifier: Apache-2.0
// Layers of chunks that somebody needs in memory: what a wait for cold rows begins with (warm.h). Loop
// thread.
#ifndef WORKER_WANTS_H
#define WORKER_WANTS_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/store/store.h"

struct worker_wanted_layer {
    struct worker_chunk *chunk;
    uint32_t layer;
};

struct worker_wants { // zeroed: none
    struct worker_wanted_layer *layers;
    uint32_t n, cap;
    bool cold;   // one of them is
    bool failed; // there was no memory to note all of them
};

// Adds the layer where it is cold or may become so.
void worker_wants_add(struct worker_wants *wants, struct worker_chunk *chunk, uint32_t layer);
void worker_wants_add_chunk(struct worker_wants *wants, struct worker_chunk *chunk); // all of its layers
void worker_wants_free(struct worker_wants *wants);

#endif
