// SPDX-License-Identifier: Apache-2.0
// K and V that leave memory for the disk, and come back.
//
//     in memory ──room is needed, longest not used──▶ cold ──wanted: a block, read (disk/fetch.h)──▶ in memory
//
// A layer of a chunk may become cold when the chunk's sealed file has all of its rows and none reads, writes
// or waits for it. What the store says of its rows stays: it is held, counted and named as before. Only its
// bytes are gone: to use them, load them first. Loop thread; host memory alone.
#ifndef WORKER_COLD_H
#define WORKER_COLD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "worker/store/store.h"

struct worker_layer;

// As much may be held in memory and in files together: at least the limit, which it is without this call.
void worker_store_set_capacity(struct worker_store *store, uint64_t bytes);
uint64_t worker_store_capacity(const struct worker_store *store);
uint64_t worker_store_total(const struct worker_store *store); // in use, and cold
void worker_store_get_cold(const struct worker_store *store, struct worker_cold_stats *out);

// Makes the layer cold that was used longest ago of all that may be. False: there is none; *pinned, where it
// is asked for: because of one that is being read.
bool worker_store_evict(struct worker_store *store, bool *pinned);
// Memory for a block, for which others become cold. NULL: as above, or the system has none.
uint8_t *worker_store_alloc(struct worker_store *store, uint64_t bytes, bool *pinned);
void worker_store_dealloc(struct worker_store *store, uint8_t *memory);

// The chunk's sealed file has all that its memory has, from now on: its layers may become cold.
void worker_store_sealed(struct worker_store *store, struct worker_chunk *chunk);
// Rows of a layer that has none yet, which only the sealed file has. RESOURCE_EXHAUSTED.
enum common_code worker_store_put_cold(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer,
                                       const uint8_t *rows, struct common_error *err);

bool worker_chunk_cold(const struct worker_chunk *chunk, uint32_t layer);
bool worker_chunk_may_cool(const struct worker_chunk *chunk, uint32_t layer); // or is cold
bool worker_chunk_any_cold(const struct worker_chunk *chunk);
uint64_t worker_chunk_held_bytes(const struct worker_chunk *chunk); // as worker_chunk_bytes, and what is cold
// It is being used: others go first.
void worker_chunk_touch(struct worker_store *store, const struct worker_chunk *chunk, uint32_t layer);

// Between these two none of the chunk's layers becomes cold.
void worker_chunk_busy(struct worker_chunk *chunk);
void worker_chunk_idle(struct worker_chunk *chunk);
// Nor does this one, and the chunk's memory stays whoever releases it. Once more for each one more.
void worker_chunk_want(struct worker_chunk *chunk, uint32_t layer);
void worker_chunk_unwant(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer);

// A cold layer is being loaded: once at a time.
bool worker_chunk_loading(const struct worker_chunk *chunk, uint32_t layer);
void worker_chunk_set_loading(struct worker_chunk *chunk, uint32_t layer, bool loading);
// Its rows are in this block, of worker_store_alloc, which is taken over. Where the layer is not cold any more the block
// is freed.
void worker_store_loaded(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer,
                         uint8_t *block, uint64_t load_ns);
// Loads it here and now, and the caller waits for the disk: serving code has it loaded before
// (worker/core/warm.h). Nothing where it is not cold. RESOURCE_EXHAUSTED: no memory; UNAVAILABLE: the file
// cannot be read, or is damaged.
enum common_code worker_store_load(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer,
                                   struct common_error *err);

// A block of a layer out of rows as they travel: [count] of K, or of V, from row `row` on.
void worker_form_scatter(const struct worker_form *form, bool of_v, uint32_t row, uint32_t count,
                         const uint8_t *rows, uint8_t *block);

#endif
