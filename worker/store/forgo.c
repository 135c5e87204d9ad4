// SPDX-License-Identifier: Apache-2.0
// Layers of chunks that are no longer asked for.
#include <assert.h>

#include "worker/store/chunk.h"

void worker_chunk_shed(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer)
{
    struct worker_layer *gone = chunk->layers[layer];
    if (chunk->forgone[layer] != chunk->refs)
        return;
    chunk->words -= chunk->refs;
    chunk->forgone[layer] = WORKER_LAYER_FORGOTTEN;
    chunk->layers[layer] = NULL;
    if (gone && chunk->pins > 0) {
        gone->shed = chunk->shed;
        chunk->shed = gone;
    } else if (gone) {
        worker_layer_free(store, chunk, gone);
    }
}

void worker_store_forgo(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer)
{
    if (worker_chunk_forgotten(chunk, layer))
        return;
    assert(chunk->forgone[layer] < chunk->refs);
    chunk->forgone[layer]++;
    chunk->words++;
    worker_chunk_shed(store, chunk, layer);
}

void worker_store_unforgo(struct worker_chunk *chunk, uint32_t layer)
{
    if (worker_chunk_forgotten(chunk, layer))
        return;
    assert(chunk->forgone[layer] > 0);
    chunk->forgone[layer]--;
    chunk->words--;
}

void worker_store_recall(struct worker_chunk *chunk, uint32_t layer)
{
    if (!worker_chunk_forgotten(chunk, layer))
        return;
    assert(chunk->refs > 0);
    chunk->forgone[layer] = chunk->refs - 1; // all others
    chunk->words += chunk->refs - 1;
}
