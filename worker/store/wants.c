// SPDX-License-Identifier: Apache-2.0
#include "worker/store/wants.h"

#include <stdlib.h>

#include "worker/store/cold.h"

void worker_wants_add(struct worker_wants *wants, struct worker_chunk *chunk, uint32_t layer)
{
    if (!worker_chunk_may_cool(chunk, layer))
        return;
    if (wants->n == wants->cap) {
        uint32_t cap = wants->cap ? 2 * wants->cap : 64;
        struct worker_wanted_layer *layers = realloc(wants->layers, cap * sizeof *layers);
        wants->failed = wants->failed || !layers;
        if (!layers)
            return;
        wants->layers = layers;
        wants->cap = cap;
    }
    wants->layers[wants->n++] = (struct worker_wanted_layer){chunk, layer};
    wants->cold = wants->cold || worker_chunk_cold(chunk, layer);
}

void worker_wants_add_chunk(struct worker_wants *wants, struct worker_chunk *chunk)
{
    for (uint32_t l = 0; l < worker_chunk_shape(chunk)->layers; l++)
        worker_wants_add(wants, chunk, l);
}

void worker_wants_free(struct worker_wants *wants)
{
    free(wants->layers);
    *wants = (struct worker_wants){0};
}
