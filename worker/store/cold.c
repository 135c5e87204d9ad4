// SPDX-License-Identifier: Apache-2.0
#include "worker/store/cold.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "worker/store/backing.h"
#include "worker/store/chunk.h"

void worker_store_set_capacity(struct worker_store *store, uint64_t bytes)
{
    store->capacity = bytes > store->limit ? bytes : store->limit;
}

uint64_t worker_store_capacity(const struct worker_store *store)
{
    return store->capacity;
}

uint64_t worker_store_total(const struct worker_store *store)
{
    return worker_store_used(store) + store->cold.bytes;
}

void worker_store_get_cold(const struct worker_store *store, struct worker_cold_stats *out)
{
    *out = store->cold;
}

// ---- leaving memory -----------------------------------------------------------------------------

// Whether the file has all of its rows. Not: it has changed since, and is listed again when it is sealed
// again.
static bool is_in_file(const struct worker_layer *layer)
{
    const struct worker_chunk *chunk = layer->chunk;
    return chunk->keep.sealed && !chunk->keep.naming && !chunk->keep.behind &&
           layer->present == chunk->shape->chunk_tokens && layer->ready == chunk->shape->chunk_tokens;
}

static void make_cold(struct worker_store *store, struct worker_layer *layer)
{
    uint32_t pages = layer->chunk->shape->chunk_tokens / WORKER_PAGE_TOKENS;
    common_list_remove(&layer->warm);
    worker_memory_release(store->memory, layer->block);
    layer->block = NULL;
    for (uint32_t p = 0; p < pages; p++) {
        worker_memory_release(store->memory, layer->pages[p]);
        layer->pages[p] = NULL;
    }
    layer->cold = true;
    store->cold.bytes += layer->form->block_bytes;
    store->cold.evicted++;
    COMMON_FAILPOINT("cold_left");
}

bool worker_store_evict(struct worker_store *store, bool *pinned)
{
    for (struct common_list *at = store->warm.next, *next; at != &store->warm; at = next) {
        struct worker_layer *layer = common_list_entry(at, struct worker_layer, warm);
        const struct worker_chunk *chunk = layer->chunk;
        next = at->next;
        if (!is_in_file(layer)) {
            common_list_remove(at);
            continue;
        }
        if (pinned && chunk->pins > 0)
            *pinned = true;
        if (chunk->pins > 0 || chunk->busy > 0 || layer->wanted > 0)
            continue;
        make_cold(store, layer);
        return true;
    }
    return false;
}

uint8_t *worker_store_alloc(struct worker_store *store, uint64_t bytes, bool *pinned)
{
    uint8_t *memory;
    do
        memory = worker_memory_alloc(store->memory, bytes, store->limit - worker_store_used(store));
    while (!memory && worker_store_evict(store, pinned));
    return memory;
}

void worker_store_dealloc(struct worker_store *store, uint8_t *memory)
{
    worker_memory_release(store->memory, memory);
}

// ---- what may leave it --------------------------------------------------------------------------

static void list_layer(struct worker_store *store, struct worker_layer *layer)
{
    common_list_remove(&layer->warm);
    common_list_push(&store->warm, &layer->warm);
}

void worker_store_sealed(struct worker_store *store, struct worker_chunk *chunk)
{
    if (worker_memory_device(store->memory)) // whose memory no thread of the disk's can write
        return;
    for (uint32_t l = 0; l < chunk->shape->layers; l++)
        if (chunk->layers[l] && !chunk->layers[l]->cold && is_in_file(chunk->layers[l]))
            list_layer(store, chunk->layers[l]);
}

enum common_code worker_store_put_cold(struct worker_store *store, struct worker_chunk *chunk, uint32_t nth,
                                       const uint8_t *rows, struct common_error *err)
{
    uint64_t bytes = worker_layer_overhead(chunk->shape);
    struct worker_layer *layer = NULL;
    assert(!chunk->layers[nth]);
    if (worker_store_take(store, bytes) && !(layer = worker_layer_new(chunk->shape, nth)))
        worker_store_give(store, bytes);
    if (!layer)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for a layer of chunk %" PRIu64,
                                chunk->id);
    layer->chunk = chunk;
    memcpy(layer->rows, rows, chunk->shape->chunk_tokens);
    layer->present = chunk->shape->chunk_tokens;
    worker_layer_advance(chunk, layer);
    assert(layer->ready == layer->present);
    layer->cold = true;
    store->cold.bytes += layer->form->block_bytes;
    chunk->layers[nth] = layer;
    return COMMON_OK;
}

bool worker_chunk_cold(const struct worker_chunk *chunk, uint32_t layer)
{
    return chunk->layers[layer] && chunk->layers[layer]->cold;
}

bool worker_chunk_may_cool(const struct worker_chunk *chunk, uint32_t layer)
{
    const struct worker_layer *l = chunk->layers[layer];
    return l && (l->cold || !common_list_empty(&l->warm));
}

bool worker_chunk_any_cold(const struct worker_chunk *chunk)
{
    for (uint32_t l = 0; l < chunk->shape->layers; l++)
        if (worker_chunk_cold(chunk, l))
            return true;
    return false;
}

uint64_t worker_chunk_held_bytes(const struct worker_chunk *chunk)
{
    uint64_t bytes = worker_chunk_bytes(chunk);
    for (uint32_t l = 0; l < chunk->shape->layers; l++)
        bytes += worker_chunk_cold(chunk, l) ? chunk->layers[l]->form->block_bytes : 0;
    return bytes;
}

void worker_chunk_touch(struct worker_store *store, const struct worker_chunk *chunk, uint32_t nth)
{
    struct worker_layer *layer = chunk->layers[nth];
    if (layer && !common_list_empty(&layer->warm))
        list_layer(store, layer);
}

void worker_chunk_busy(struct worker_chunk *chunk)
{
    chunk->busy++;
}

void worker_chunk_idle(struct worker_chunk *chunk)
{
    assert(chunk->busy > 0);
    chunk->busy--;
}

void worker_chunk_want(struct worker_chunk *chunk, uint32_t layer)
{
    worker_store_hold_back(chunk);
    if (chunk->layers[layer])
        chunk->layers[layer]->wanted++;
}

// The layer may be another one by now, which is not needed (forgotten, and recalled).
void worker_chunk_unwant(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer)
{
    if (chunk->layers[layer] && chunk->layers[layer]->wanted > 0)
        chunk->layers[layer]->wanted--;
    worker_store_let_go(store, chunk);
}

// ---- coming back --------------------------------------------------------------------------------

bool worker_chunk_loading(const struct worker_chunk *chunk, uint32_t layer)
{
    return chunk->layers[layer] && chunk->layers[layer]->loading;
}

void worker_chunk_set_loading(struct worker_chunk *chunk, uint32_t layer, bool loading)
{
    if (chunk->layers[layer])
        chunk->layers[layer]->loading = loading;
}

void worker_store_loaded(struct worker_store *store, struct worker_chunk *chunk, uint32_t nth, uint8_t *block,
                         uint64_t load_ns)
{
    struct worker_layer *layer = chunk->layers[nth];
    if (!layer || !layer->cold) {
        worker_memory_release(store->memory, block);
        return;
    }
    COMMON_FAILPOINT("cold_loaded");
    layer->block = block;
    layer->cold = false;
    list_layer(store, layer);
    store->cold.bytes -= layer->form->block_bytes;
    store->cold.loaded++;
    store->cold.loaded_bytes += layer->form->block_bytes;
    store->cold.load_ns += load_ns;
}

enum common_code worker_store_load(struct worker_store *store, struct worker_chunk *chunk, uint32_t nth,
                                   struct common_error *err)
{
    struct worker_layer *layer = chunk->layers[nth];
    if (!layer || !layer->cold)
        return COMMON_OK;
    uint64_t began_ns = common_clock_ns();
    worker_chunk_busy(chunk);
    uint8_t *block = worker_store_alloc(store, layer->form->block_bytes, NULL);
    worker_chunk_idle(chunk);
    if (!block)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "no memory to load rows of chunk %" PRIu64
                                " from --store: try again, or raise the worker's --memory",
                                chunk->id);
    int result = store->backing->ops->read_layer(store->backing, chunk, nth, block);
    if (result == 0) {
        worker_store_loaded(store, chunk, nth, block, common_clock_ns() - began_ns);
        return COMMON_OK;
    }
    worker_memory_release(store->memory, block);
    return common_error_set(err, COMMON_UNAVAILABLE,
                            "rows of chunk %" PRIu64 " cannot be read from --store: %s", chunk->id,
                            strerror(-result));
}

void worker_form_scatter(const struct worker_form *form, bool of_v, uint32_t row, uint32_t count,
                         const uint8_t *rows, uint8_t *block)
{
    size_t wire = of_v ? form->v_wire : form->k_wire, codes = 0;
    for (uint32_t i = 0; i < form->n_parts; i++) { // codes of all heads, then scales of all heads
        enum worker_part part = form->parts[i];
        if ((part == WORKER_PART_V || part == WORKER_PART_V_SCALE) != of_v)
            continue;
        size_t bytes = form->row[part];
        for (uint32_t head = 0; head < form->kv_heads; head++) {
            uint8_t *to = block + head * form->in_block.bytes + form->in_block.at[part] + row * bytes;
            const uint8_t *from = rows + codes + head * bytes;
            for (uint32_t r = 0; r < count; r++, to += bytes, from += wire)
                memcpy(to, from, bytes);
        }
        codes += form->kv_heads * bytes;
    }
}
