// SPDX-License-Identifier: Apache-2.0
// What store.c, chunk.c and cold.c share: the inside of a store and of a chunk.
#ifndef WORKER_CHUNK_H
#define WORKER_CHUNK_H

#include <stddef.h>

#include "common/base/list.h"
#include "worker/memory/map.h"
#include "worker/memory/memory.h"
#include "worker/store/keep.h"
#include "worker/store/store.h"

struct worker_retired { // memory that a pin may still read
    struct worker_retired *next;
    uint8_t *memory;
};

struct worker_store {
    struct worker_memory *memory;   // of pages and blocks
    struct worker_backing *backing; // NULL: none
    const char *name;               // NULL: none
    uint64_t limit, used;           // used: beside what the memory counts
    uint64_t capacity;              // of memory and of what is cold together
    uint64_t refused;               // times that there was no room for rows
    uint64_t quarantined;           // of it, as far as refusals say
    struct worker_map chunks;
    struct common_list warm; // layers in memory that may become cold, the one used longest ago first (cold.h)
    struct worker_cold_stats cold;
};

struct worker_layer {
    struct worker_layer *shed; // forgotten under a pin: the next one
    struct common_list warm;   // in the store's list, or alone
    struct worker_chunk *chunk;
    uint32_t nth, wanted; // wanted: by so many who wait for it to be in memory
    bool cold, loading;   // cold: its rows' bytes are in the sealed file alone
    const struct worker_form *form;
    uint32_t present, ready;
    uint32_t read_first, read_end; // rows that were withdrawn under a pin, which may still read their bytes
    uint8_t *block;                // whole layer, or NULL
    uint8_t **pages; // [chunk_tokens / 16], entries NULL where no row is; all NULL when there is a block
    uint8_t *rows;   // [chunk_tokens] enum worker_row
};

struct worker_chunk {
    struct worker_memory *memory;   // of its pages and blocks
    struct worker_backing *backing; // NULL: it has no files
    struct worker_keep keep;        // which they are
    uint64_t id, first;
    struct worker_shape *shape; // a reference
    uint32_t refs, pins, holds; // holds: of those who want layers of it (cold.h)
    uint32_t busy;              // by so many: none of its layers becomes cold
    bool put;                   // rows may be PUT, or PREPARED
    struct worker_retired *retired;
    uint64_t words;            // of refs that forgo layers which are still there
    struct worker_layer *shed; // layers that are forgotten, whose memory a pin may still read
    uint32_t *forgone; // [shape->layers] how many of refs forgo the layer; FORGOTTEN: its rows are gone
    struct worker_layer *layers[]; // [shape->layers], NULL until a row comes
};

#define WORKER_LAYER_FORGOTTEN UINT32_MAX

uint64_t worker_chunk_overhead(const struct worker_shape *shape); // bytes of an empty chunk
uint64_t worker_layer_overhead(const struct worker_shape *shape); // bytes of a layer without pages
struct worker_layer *worker_layer_new(const struct worker_shape *shape, uint32_t layer);
void worker_layer_free(struct worker_store *store, const struct worker_chunk *chunk,
                       struct worker_layer *layer);
// Gives a layer's memory back where all who have the chunk forgo it.
void worker_chunk_shed(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer);

// Where a part of a present row of a head is.
uint8_t *worker_layer_part(const struct worker_layer *layer, enum worker_part part, uint32_t row,
                           uint32_t head);
// Copies the first `tokens` rows of a layer that lies in pages, whole pages, into a block.
void worker_layer_copy_pages(const struct worker_layer *layer, struct worker_memory *memory, uint8_t *block,
                             uint32_t tokens);

// Whether a present row has these bytes. k, v: the row as it travels.
bool worker_layer_row_equal(const struct worker_chunk *chunk, const struct worker_layer *layer, uint32_t row,
                            const uint8_t *k, const uint8_t *v);
// Writes rows whose memory is there. k, v: as they travel.
void worker_layer_rows_set(const struct worker_chunk *chunk, struct worker_layer *layer, uint32_t row,
                           uint32_t count, const uint8_t *k, const uint8_t *v);
void worker_layer_mark(const struct worker_chunk *chunk, struct worker_layer *layer, uint32_t row,
                       enum worker_row state);
// Recounts `ready` from where it stands.
void worker_layer_advance(const struct worker_chunk *chunk, struct worker_layer *layer);

#endif
