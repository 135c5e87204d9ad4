// SPDX-License-Identifier: Apache-2.0
#include "worker/chunk.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL // the state lives on the stack: its size must be this header's
#include <xxhash.h>

#include "common/blob.h"

uint64_t worker_chunk_overhead(const struct worker_shape *shape)
{
    return common_align64(sizeof(struct worker_chunk) + shape->layers * sizeof(struct worker_layer *));
}

static size_t layer_bytes(const struct worker_shape *shape)
{
    return sizeof(struct worker_layer) + shape->chunk_tokens / WORKER_PAGE_TOKENS * sizeof(uint8_t *) +
           shape->chunk_tokens;
}

uint64_t worker_layer_overhead(const struct worker_shape *shape)
{
    return common_align64(layer_bytes(shape));
}

struct worker_layer *worker_layer_new(const struct worker_shape *shape)
{
    struct worker_layer *layer = calloc(1, layer_bytes(shape));
    if (layer) {
        layer->pages = (uint8_t **)(layer + 1);
        layer->rows = (uint8_t *)(layer->pages + shape->chunk_tokens / WORKER_PAGE_TOKENS);
    }
    return layer;
}

void worker_chunk_measure(struct worker_chunk *chunk)
{
    const struct worker_shape *shape = &chunk->shape;
    uint32_t element = kernels_kv_bytes((enum kernels_kv_type)shape->kv_type);
    chunk->k_row = shape->k_dim * element;
    chunk->v_row = shape->v_dim * element;
    chunk->page_bytes =
        (uint64_t)shape->kv_heads * (common_align64((size_t)WORKER_PAGE_TOKENS * chunk->k_row) +
                                     common_align64((size_t)WORKER_PAGE_TOKENS * chunk->v_row));
    chunk->block_bytes =
        (uint64_t)shape->kv_heads * (common_align64((size_t)shape->chunk_tokens * chunk->k_row) +
                                     common_align64((size_t)shape->chunk_tokens * chunk->v_row));
}

// The start of a head's K in the memory that holds `row`, the rows per memory in *tokens and the row's place
// there in *at.
static uint8_t *head_base(const struct worker_chunk *chunk, const struct worker_layer *layer, uint32_t row,
                          uint32_t head, uint32_t *tokens, uint32_t *at)
{
    uint8_t *base = layer->block;
    *tokens = chunk->shape.chunk_tokens;
    *at = row;
    if (!base) {
        base = layer->pages[row / WORKER_PAGE_TOKENS];
        *tokens = WORKER_PAGE_TOKENS;
        *at = row % WORKER_PAGE_TOKENS;
    }
    return base + head * (common_align64((size_t)*tokens * chunk->k_row) +
                          common_align64((size_t)*tokens * chunk->v_row));
}

uint8_t *worker_layer_k(const struct worker_chunk *chunk, const struct worker_layer *layer, uint32_t row,
                        uint32_t head)
{
    uint32_t tokens, at;
    return head_base(chunk, layer, row, head, &tokens, &at) + (size_t)at * chunk->k_row;
}

uint8_t *worker_layer_v(const struct worker_chunk *chunk, const struct worker_layer *layer, uint32_t row,
                        uint32_t head)
{
    uint32_t tokens, at;
    uint8_t *base = head_base(chunk, layer, row, head, &tokens, &at);
    return base + common_align64((size_t)tokens * chunk->k_row) + (size_t)at * chunk->v_row;
}

bool worker_layer_row_equal(const struct worker_chunk *chunk, const struct worker_layer *layer, uint32_t row,
                            const uint8_t *k, const uint8_t *v)
{
    for (uint32_t head = 0; head < chunk->shape.kv_heads; head++) {
        if (memcmp(worker_layer_k(chunk, layer, row, head), k + (size_t)head * chunk->k_row, chunk->k_row) !=
                0 ||
            memcmp(worker_layer_v(chunk, layer, row, head), v + (size_t)head * chunk->v_row, chunk->v_row) !=
                0)
            return false;
    }
    return true;
}

void worker_layer_row_set(const struct worker_chunk *chunk, struct worker_layer *layer, uint32_t row,
                          const uint8_t *k, const uint8_t *v)
{
    for (uint32_t head = 0; head < chunk->shape.kv_heads; head++) {
        memcpy(worker_layer_k(chunk, layer, row, head), k + (size_t)head * chunk->k_row, chunk->k_row);
        memcpy(worker_layer_v(chunk, layer, row, head), v + (size_t)head * chunk->v_row, chunk->v_row);
    }
}

void worker_layer_mark(const struct worker_chunk *chunk, struct worker_layer *layer, uint32_t row,
                       enum worker_row state)
{
    assert(row < chunk->shape.chunk_tokens);
    if (layer->rows[row] == WORKER_ROW_ABSENT)
        layer->present++;
    layer->rows[row] = (uint8_t)state;
}

void worker_layer_advance(const struct worker_chunk *chunk, struct worker_layer *layer)
{
    while (layer->ready < chunk->shape.chunk_tokens && layer->rows[layer->ready] >= WORKER_ROW_APPENDED)
        layer->ready++;
}

uint64_t worker_chunk_id(const struct worker_chunk *chunk)
{
    return chunk->id;
}

uint64_t worker_chunk_first(const struct worker_chunk *chunk)
{
    return chunk->first;
}

const struct worker_shape *worker_chunk_shape(const struct worker_chunk *chunk)
{
    return &chunk->shape;
}

bool worker_chunk_in_block(const struct worker_chunk *chunk, uint32_t layer)
{
    return chunk->layers[layer] && chunk->layers[layer]->block;
}

enum worker_row worker_chunk_row(const struct worker_chunk *chunk, uint32_t layer, uint32_t row)
{
    const struct worker_layer *l = chunk->layers[layer];
    return l ? (enum worker_row)l->rows[row] : WORKER_ROW_ABSENT;
}

uint32_t worker_chunk_ready(const struct worker_chunk *chunk, uint32_t layer)
{
    return chunk->layers[layer] ? chunk->layers[layer]->ready : 0;
}

uint32_t worker_chunk_run_count(const struct worker_chunk *chunk, uint32_t layer, uint32_t rows)
{
    if (rows == 0)
        return 0;
    return worker_chunk_in_block(chunk, layer) ? 1 : (rows + WORKER_PAGE_TOKENS - 1) / WORKER_PAGE_TOKENS;
}

void worker_chunk_runs(const struct worker_chunk *chunk, uint32_t layer, uint32_t kv_head, uint32_t rows,
                       struct kernels_run *out)
{
    const struct worker_layer *l = chunk->layers[layer];
    uint32_t step = worker_chunk_in_block(chunk, layer) ? chunk->shape.chunk_tokens : WORKER_PAGE_TOKENS;
    for (uint32_t row = 0; row < rows; row += step, out++) {
        out->k = worker_layer_k(chunk, l, row, kv_head);
        out->v = worker_layer_v(chunk, l, row, kv_head);
        out->first = chunk->first + row;
        out->rows = rows - row < step ? rows - row : step;
    }
}

// Head by head, so that a stretch of rows is one piece of memory: a whole block's K of a head, or a page's.
// The hash is of the bytes in that order, whatever the pieces.
static void hash_rows(XXH3_state_t *state, const struct worker_chunk *chunk, const struct worker_layer *layer,
                      uint32_t row, uint32_t count)
{
    for (int of_v = 0; of_v < 2; of_v++)
        for (uint32_t head = 0; head < chunk->shape.kv_heads; head++)
            for (uint32_t i = row, n; i < row + count; i += n) {
                n = layer->block ? row + count - i : WORKER_PAGE_TOKENS - i % WORKER_PAGE_TOKENS;
                n = n < row + count - i ? n : row + count - i;
                XXH3_64bits_update(state,
                                   of_v ? worker_layer_v(chunk, layer, i, head)
                                        : worker_layer_k(chunk, layer, i, head),
                                   (size_t)n * (of_v ? chunk->v_row : chunk->k_row));
            }
}

uint64_t worker_chunk_hash(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    hash_rows(&state, chunk, chunk->layers[layer], row, count);
    return XXH3_64bits_digest(&state);
}

struct worker_hash {
    struct worker_chunk *chunk; // pinned
    uint32_t row, count;
    struct worker_layer *layer; // where the bytes were at the time; no rows
};

struct worker_hash *worker_hash_new(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                                    uint64_t *bytes)
{
    struct worker_hash *hash = malloc(sizeof *hash);
    struct worker_layer *shadow = worker_layer_new(&chunk->shape);
    if (!hash || !shadow) {
        free(hash);
        free(shadow);
        return NULL;
    }
    shadow->block = chunk->layers[layer]->block;
    memcpy(shadow->pages, chunk->layers[layer]->pages,
           chunk->shape.chunk_tokens / WORKER_PAGE_TOKENS * sizeof *shadow->pages);
    *hash = (struct worker_hash){chunk, row, count, shadow};
    worker_store_pin(chunk);
    *bytes += (uint64_t)count * chunk->shape.kv_heads * (chunk->k_row + chunk->v_row);
    return hash;
}

uint64_t worker_hash_run(const struct worker_hash *hash)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    hash_rows(&state, hash->chunk, hash->layer, hash->row, hash->count);
    return XXH3_64bits_digest(&state);
}

void worker_hash_free(struct worker_store *store, struct worker_hash *hash)
{
    if (!hash)
        return;
    worker_store_unpin(store, hash->chunk);
    free(hash->layer);
    free(hash);
}

void worker_chunk_read(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                       uint8_t *k, uint8_t *v)
{
    for (uint32_t i = row; i < row + count; i++) {
        for (uint32_t head = 0; head < chunk->shape.kv_heads; head++) {
            memcpy(k, worker_layer_k(chunk, chunk->layers[layer], i, head), chunk->k_row);
            memcpy(v, worker_layer_v(chunk, chunk->layers[layer], i, head), chunk->v_row);
            k += chunk->k_row;
            v += chunk->v_row;
        }
    }
}

// Moves rows of a range from one state to another.
static void move_rows(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                      enum worker_row from, enum worker_row to)
{
    struct worker_layer *l = chunk->layers[layer];
    if (!l)
        return;
    for (uint32_t i = row; i < row + count; i++)
        if (l->rows[i] == from)
            l->rows[i] = (uint8_t)to;
    worker_layer_advance(chunk, l);
}

void worker_chunk_prepare(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count)
{
    move_rows(chunk, layer, row, count, WORKER_ROW_PUT, WORKER_ROW_PREPARED);
}

void worker_chunk_abort(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count)
{
    move_rows(chunk, layer, row, count, WORKER_ROW_PREPARED, WORKER_ROW_PUT);
}

void worker_chunk_commit(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count)
{
    move_rows(chunk, layer, row, count, WORKER_ROW_PREPARED, WORKER_ROW_COMMITTED);
    move_rows(chunk, layer, row, count, WORKER_ROW_APPENDED, WORKER_ROW_COMMITTED);
}

void worker_chunk_forget(struct worker_chunk *chunk)
{
    for (uint32_t layer = 0; layer < chunk->shape.layers; layer++) {
        struct worker_layer *l = chunk->layers[layer];
        worker_chunk_abort(chunk, layer, 0, chunk->shape.chunk_tokens);
        for (uint32_t row = 0; l && chunk->refs == 1 && row < chunk->shape.chunk_tokens; row++) {
            if (l->rows[row] != WORKER_ROW_PUT)
                continue;
            l->rows[row] = WORKER_ROW_ABSENT; // its page stays for what comes next
            l->present--;
        }
    }
}
