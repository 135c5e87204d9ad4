// SPDX-License-Identifier: Apache-2.0
#include "worker/store/chunk.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL // the state lives on the stack: its size must be this header's
#include <xxhash.h>

#include "common/memory/blob.h"
#include "kernels/device.h"
#include "proto/sums/rows_sum.h"
#include "worker/store/backing.h"

uint64_t worker_chunk_overhead(const struct worker_shape *shape)
{
    return common_align64(sizeof(struct worker_chunk) +
                          shape->layers * (sizeof(struct worker_layer *) + sizeof(uint32_t)));
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

struct worker_layer *worker_layer_new(const struct worker_shape *shape, uint32_t nth)
{
    struct worker_layer *layer = calloc(1, layer_bytes(shape));
    if (layer) {
        layer->form = worker_shape_form(shape, nth);
        layer->nth = nth;
        common_list_init(&layer->warm);
        layer->pages = (uint8_t **)(layer + 1);
        layer->rows = (uint8_t *)(layer->pages + shape->chunk_tokens / WORKER_PAGE_TOKENS);
    }
    return layer;
}

_Static_assert((int)KERNELS_KV_F32 == BANYAN__PB__DTYPE__DTYPE_F32 &&
                   (int)KERNELS_KV_F16 == BANYAN__PB__DTYPE__DTYPE_F16 &&
                   (int)KERNELS_KV_BF16 == BANYAN__PB__DTYPE__DTYPE_BF16 &&
                   (int)KERNELS_KV_INT8 == BANYAN__PB__DTYPE__DTYPE_INT8 &&
                   (int)KERNELS_KV_FP8 == BANYAN__PB__DTYPE__DTYPE_FP8_E4M3,
               "kernels and the wire number KV types alike");

uint8_t *worker_layer_part(const struct worker_layer *layer, enum worker_part part, uint32_t row,
                           uint32_t head)
{
    const struct worker_form *form = layer->form;
    if (layer->block)
        return layer->block + head * form->in_block.bytes + form->in_block.at[part] +
               (size_t)row * form->row[part];
    return layer->pages[row / WORKER_PAGE_TOKENS] + head * form->in_page.bytes + form->in_page.at[part] +
           (size_t)(row % WORKER_PAGE_TOKENS) * form->row[part];
}

// A page's part, of all heads, is one copy, and some pages' are one call: a device's launch takes microseconds
// of the loop's, however little it copies.
void worker_layer_copy_pages(const struct worker_layer *layer, struct worker_memory *memory, uint8_t *block,
                             uint32_t tokens)
{
    enum { MOST = 64 };
    const struct worker_form *form = layer->form;
    struct worker_copy copies[MOST];
    uint32_t n = 0;
    for (uint32_t row = 0; row < tokens; row += WORKER_PAGE_TOKENS)
        for (uint32_t i = 0; i < form->n_parts; i++) {
            enum worker_part part = form->parts[i];
            copies[n++] =
                (struct worker_copy){.to = block + form->in_block.at[part] + (size_t)row * form->row[part],
                                     .to_pitch = form->in_block.bytes,
                                     .from = worker_layer_part(layer, part, row, 0),
                                     .from_pitch = form->in_page.bytes,
                                     .width = (size_t)WORKER_PAGE_TOKENS * form->row[part],
                                     .height = form->kv_heads};
            if (n == MOST) {
                worker_memory_copy(memory, copies, n);
                n = 0;
            }
        }
    if (n > 0)
        worker_memory_copy(memory, copies, n);
}

// Where a part of a head is in a row that travels: codes of all heads, then scales of all heads.
static size_t wire_at(const struct worker_form *form, enum worker_part part, uint32_t head)
{
    size_t codes =
        part >= WORKER_PART_K_SCALE ? (size_t)form->kv_heads * form->row[part - WORKER_PART_K_SCALE] : 0;
    return codes + (size_t)head * form->row[part];
}

static bool of_k(enum worker_part part)
{
    return part == WORKER_PART_K || part == WORKER_PART_K_SCALE;
}

// As worker_layer_row_equal, for memory that only worker_memory_read reads.
static bool row_equal_there(const struct worker_chunk *chunk, const struct worker_layer *layer, uint32_t row,
                            const uint8_t *k, const uint8_t *v)
{
    enum { PIECES = 64, BYTES = 16384 }; // a head's row of a part has 4,096 at most (session.c)
    uint8_t buffer[BYTES];
    struct worker_piece pieces[PIECES];
    const uint8_t *want[PIECES];
    const struct worker_form *form = layer->form;
    uint32_t n = 0, used = 0, all = form->kv_heads * form->n_parts;
    for (uint32_t i = 0; i < all; i++) {
        enum worker_part part = form->parts[i % form->n_parts];
        uint32_t head = i / form->n_parts;
        want[n] = (of_k(part) ? k : v) + wire_at(form, part, head);
        pieces[n++] = (struct worker_piece){.memory = worker_layer_part(layer, part, row, head),
                                            .host = buffer + used,
                                            .width = form->row[part],
                                            .height = 1};
        used += form->row[part];
        if (i + 1 < all && n < PIECES && used + 4096 <= BYTES)
            continue;
        worker_memory_read(chunk->memory, pieces, n);
        for (uint32_t at = 0; at < n; at++)
            if (memcmp(pieces[at].host, want[at], pieces[at].width) != 0)
                return false;
        n = used = 0;
    }
    return true;
}

bool worker_layer_row_equal(const struct worker_chunk *chunk, const struct worker_layer *layer, uint32_t row,
                            const uint8_t *k, const uint8_t *v)
{
    if (worker_memory_device(chunk->memory))
        return row_equal_there(chunk, layer, row, k, v);
    const struct worker_form *form = layer->form;
    for (uint32_t head = 0; head < form->kv_heads; head++)
        for (uint32_t i = 0; i < form->n_parts; i++)
            if (memcmp(worker_layer_part(layer, form->parts[i], row, head),
                       (of_k(form->parts[i]) ? k : v) + wire_at(form, form->parts[i], head),
                       form->row[form->parts[i]]) != 0)
                return false;
    return true;
}

// Moves rows between a layer's memory and k, v as they travel, as rectangles: up to 16 rows that follow each
// other in memory, a part and a head at a time. So k and v stay in a cache meanwhile. A device has no use for
// that, and likes fewer.
static void move_bytes(const struct worker_chunk *chunk, const struct worker_layer *layer, uint32_t row,
                       uint32_t count, uint8_t *k, uint8_t *v,
                       void (*move)(struct worker_memory *, const struct worker_piece *, uint32_t))
{
    enum { PIECES = 32 };
    struct worker_piece pieces[PIECES];
    const struct worker_form *form = layer->form;
    const uint32_t page =
        layer->block && worker_memory_device(chunk->memory) ? chunk->shape->chunk_tokens : WORKER_PAGE_TOKENS;
    for (uint32_t at = row, n; at < row + count; at += n, k += n * form->k_wire, v += n * form->v_wire) {
        uint32_t n_pieces = 0;
        n = page - at % page < row + count - at ? page - at % page : row + count - at;
        for (uint32_t head = 0; head < form->kv_heads; head++) {
            for (uint32_t i = 0; i < form->n_parts; i++) {
                const enum worker_part part = form->parts[i];
                pieces[n_pieces++] =
                    (struct worker_piece){.memory = worker_layer_part(layer, part, at, head),
                                          .pitch = form->row[part],
                                          .host = (of_k(part) ? k : v) + wire_at(form, part, head),
                                          .host_pitch = of_k(part) ? form->k_wire : form->v_wire,
                                          .width = form->row[part],
                                          .height = n};
                if (n_pieces < PIECES)
                    continue;
                move(chunk->memory, pieces, n_pieces);
                n_pieces = 0;
            }
        }
        move(chunk->memory, pieces, n_pieces);
    }
}

void worker_layer_rows_set(const struct worker_chunk *chunk, struct worker_layer *layer, uint32_t row,
                           uint32_t count, const uint8_t *k, const uint8_t *v)
{
    move_bytes(chunk, layer, row, count, (uint8_t *)(uintptr_t)k, (uint8_t *)(uintptr_t)v,
               worker_memory_write);
}

void worker_layer_mark(const struct worker_chunk *chunk, struct worker_layer *layer, uint32_t row,
                       enum worker_row state)
{
    assert(row < chunk->shape->chunk_tokens);
    if (layer->rows[row] == WORKER_ROW_ABSENT)
        layer->present++;
    layer->rows[row] = (uint8_t)state;
}

void worker_layer_advance(const struct worker_chunk *chunk, struct worker_layer *layer)
{
    while (layer->ready < chunk->shape->chunk_tokens && layer->rows[layer->ready] >= WORKER_ROW_APPENDED)
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
    return chunk->shape;
}

struct worker_keep *worker_chunk_keep(struct worker_chunk *chunk)
{
    return &chunk->keep;
}

uint64_t worker_chunk_bytes(const struct worker_chunk *chunk)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < chunk->shape->layers; i++) {
        const struct worker_layer *layer = chunk->layers[i];
        if (layer && layer->block)
            bytes += layer->form->block_bytes;
        for (uint32_t p = 0; layer && !layer->block && p < chunk->shape->chunk_tokens / WORKER_PAGE_TOKENS;
             p++)
            bytes += layer->pages[p] ? layer->form->page_bytes : 0;
    }
    return bytes;
}

bool worker_chunk_in_block(const struct worker_chunk *chunk, uint32_t layer)
{
    return chunk->layers[layer] && chunk->layers[layer]->block;
}

enum worker_row worker_chunk_row(const struct worker_chunk *chunk, uint32_t layer, uint32_t row)
{
    const struct worker_layer *l = chunk->layers[layer];
    if (worker_chunk_forgotten(chunk, layer))
        return WORKER_ROW_FORGOTTEN;
    return l ? (enum worker_row)l->rows[row] : WORKER_ROW_ABSENT;
}

bool worker_chunk_forgotten(const struct worker_chunk *chunk, uint32_t layer)
{
    return chunk->forgone[layer] == WORKER_LAYER_FORGOTTEN;
}

uint32_t worker_chunk_rows_at(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                              enum worker_row least)
{
    const struct worker_layer *l = chunk->layers[layer];
    const uint8_t *rows = l ? l->rows + row : NULL;
    uint8_t lowest = UINT8_MAX;
    uint32_t n = 0;
    if (!l)
        return least == WORKER_ROW_ABSENT || worker_chunk_forgotten(chunk, layer) ? count : 0;
    for (uint32_t i = 0; i < count; i++) // without a way out: several rows an instruction
        lowest = rows[i] < lowest ? rows[i] : lowest;
    if (lowest >= (uint8_t)least)
        return count;
    while (rows[n] >= (uint8_t)least)
        n++;
    return n;
}

uint32_t worker_chunk_ready(const struct worker_chunk *chunk, uint32_t layer)
{
    if (worker_chunk_forgotten(chunk, layer))
        return chunk->shape->chunk_tokens;
    return chunk->layers[layer] ? chunk->layers[layer]->ready : 0;
}

uint32_t worker_chunk_run_count(const struct worker_chunk *chunk, uint32_t layer, uint32_t rows)
{
    if (rows == 0)
        return 0;
    return worker_chunk_in_block(chunk, layer) ? 1 : (rows + WORKER_PAGE_TOKENS - 1) / WORKER_PAGE_TOKENS;
}

// Where a head's part begins; NULL: there is no such part.
static const void *part_of(const struct worker_form *form, const struct worker_head *head,
                           enum worker_part part, const uint8_t *base)
{
    return form->row[part] ? base + head->at[part] : NULL;
}

uint32_t worker_chunk_runs(const struct worker_chunk *chunk, uint32_t layer, uint32_t kv_head,
                           uint32_t kv_heads, uint32_t rows, size_t stride, struct kernels_run *out)
{
    const struct worker_layer *l = chunk->layers[layer];
    const struct worker_form *form = l->form;
    const struct worker_head *head = l->block ? &form->in_block : &form->in_page;
    uint32_t step = l->block ? chunk->shape->chunk_tokens : WORKER_PAGE_TOKENS, n = 0;
    for (uint32_t row = 0; row < rows; row += step, n++) {
        const uint8_t *base = (l->block ? l->block : l->pages[n]) + kv_head * head->bytes;
        for (uint32_t h = 0; h < kv_heads; h++, base += head->bytes)
            out[h * stride + n] =
                (struct kernels_run){.k = base + head->at[WORKER_PART_K],
                                     .v = part_of(form, head, WORKER_PART_V, base),
                                     .first = chunk->first + row,
                                     .rows = rows - row < step ? rows - row : step,
                                     .k_scale = part_of(form, head, WORKER_PART_K_SCALE, base),
                                     .v_scale = part_of(form, head, WORKER_PART_V_SCALE, base)};
    }
    return n;
}

uint32_t worker_chunk_device_runs(const struct worker_chunk *chunk, uint32_t layer, uint32_t kv_head,
                                  uint32_t rows, struct kernels_device_run *out)
{
    const struct worker_layer *l = chunk->layers[layer];
    const struct worker_form *form = l->form;
    const struct worker_head *head = l->block ? &form->in_block : &form->in_page;
    uint32_t step = l->block ? chunk->shape->chunk_tokens : WORKER_PAGE_TOKENS, n = 0;
    for (uint32_t row = 0; row < rows; row += step, n++) {
        const uint8_t *base = (l->block ? l->block : l->pages[n]) + kv_head * head->bytes;
        out[n] =
            (struct kernels_device_run){.k = (uintptr_t)base + head->at[WORKER_PART_K],
                                        .v = (uintptr_t)part_of(form, head, WORKER_PART_V, base),
                                        .k_scale = (uintptr_t)part_of(form, head, WORKER_PART_K_SCALE, base),
                                        .v_scale = (uintptr_t)part_of(form, head, WORKER_PART_V_SCALE, base),
                                        .head_stride = head->bytes,
                                        .first = chunk->first + row,
                                        .rows = rows - row < step ? rows - row : step};
    }
    return n;
}

// Part by part and head by head, so that a stretch of rows is one piece of memory: a whole block's K of a
// head, or a page's. The hash is of the bytes in that order, whatever the pieces.
static void hash_rows(XXH3_state_t *state, const struct worker_layer *layer, uint32_t row, uint32_t count)
{
    const struct worker_form *form = layer->form;
    for (uint32_t p = 0; p < form->n_parts; p++)
        for (uint32_t head = 0; head < form->kv_heads; head++)
            for (uint32_t i = row, n; i < row + count; i += n) {
                n = layer->block ? row + count - i : WORKER_PAGE_TOKENS - i % WORKER_PAGE_TOKENS;
                n = n < row + count - i ? n : row + count - i;
                XXH3_64bits_update(state, worker_layer_part(layer, form->parts[p], i, head),
                                   (size_t)n * form->row[form->parts[p]]);
            }
}

// The same bytes in the same order, by a copy in the host's memory; NULL as worker_chunk_hash says. Free it.
static uint8_t *copy_there(const struct worker_chunk *chunk, const struct worker_layer *layer, uint32_t row,
                           uint32_t count)
{
    enum { PIECES = 64 };
    struct worker_piece pieces[PIECES];
    size_t bytes = count * (layer->form->k_wire + layer->form->v_wire), at = 0;
    uint32_t n_pieces = 0;
    uint8_t *copy = malloc(bytes);
    if (!copy)
        return NULL;
    const struct worker_form *form = layer->form;
    for (uint32_t p = 0; p < form->n_parts; p++)
        for (uint32_t head = 0; head < form->kv_heads; head++)
            for (uint32_t i = row, n; i < row + count; i += n) {
                n = layer->block ? row + count - i : WORKER_PAGE_TOKENS - i % WORKER_PAGE_TOKENS;
                n = n < row + count - i ? n : row + count - i;
                pieces[n_pieces++] =
                    (struct worker_piece){.memory = worker_layer_part(layer, form->parts[p], i, head),
                                          .host = copy + at,
                                          .width = (uint64_t)n * form->row[form->parts[p]],
                                          .height = 1};
                at += (size_t)n * form->row[form->parts[p]];
                if (n_pieces < PIECES && at < bytes)
                    continue;
                worker_memory_read(chunk->memory, pieces, n_pieces);
                n_pieces = 0;
            }
    struct common_error err;
    if (!worker_memory_lost(chunk->memory, &err))
        return copy;
    free(copy);
    return NULL;
}

static bool hash(const struct worker_chunk *chunk, const struct worker_layer *layer, uint32_t row,
                 uint32_t count, uint64_t *out)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    if (!worker_memory_device(chunk->memory)) {
        hash_rows(&state, layer, row, count);
    } else {
        uint8_t *copy = copy_there(chunk, layer, row, count);
        if (!copy)
            return false;
        XXH3_64bits_update(&state, copy, count * (layer->form->k_wire + layer->form->v_wire));
        free(copy);
    }
    *out = XXH3_64bits_digest(&state);
    explicit_bzero(state.buffer, sizeof state.buffer); // the last rows, on everybody's stack
    return true;
}

static bool sum(const struct worker_chunk *chunk, const struct worker_layer *layer, uint32_t row,
                uint32_t count, uint64_t *out)
{
    bool there = worker_memory_device(chunk->memory);
    uint8_t *copy = there ? copy_there(chunk, layer, row, count) : NULL;
    const uint8_t *at = copy;
    uint64_t total = 0;
    if (there && !copy)
        return false;
    const struct worker_form *form = layer->form;
    for (uint32_t p = 0; p < form->n_parts; p++)
        for (uint32_t head = 0; head < form->kv_heads; head++)
            for (uint32_t i = row, n; i < row + count; i += n) {
                n = layer->block || there ? row + count - i : WORKER_PAGE_TOKENS - i % WORKER_PAGE_TOKENS;
                n = n < row + count - i ? n : row + count - i;
                total += proto_rows_sum(&(struct proto_rows_piece){
                    .data = there ? at : worker_layer_part(layer, form->parts[p], i, head),
                    .len = form->row[form->parts[p]],
                    .row_pitch = form->row[form->parts[p]],
                    .part = (enum proto_rows_part)form->parts[p],
                    .first_head = head,
                    .heads = 1,
                    .first = chunk->first + i,
                    .count = n,
                });
                if (there)
                    at += n * form->row[form->parts[p]];
            }
    free(copy);
    *out = total;
    return true;
}

bool worker_chunk_hash(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                       uint64_t *out)
{
    return hash(chunk, chunk->layers[layer], row, count, out);
}

bool worker_chunk_sum(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                      uint64_t *out)
{
    return sum(chunk, chunk->layers[layer], row, count, out);
}

uint64_t worker_form_sum(const struct worker_form *form, const uint8_t *const bytes[2], uint64_t first,
                         uint64_t count)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < form->n_parts; i++) {
        enum worker_part part = form->parts[i];
        bool of_v = part == WORKER_PART_V || part == WORKER_PART_V_SCALE;
        size_t codes = part < WORKER_PART_K_SCALE
                           ? 0 // scales lie behind the codes of all heads
                           : (size_t)form->kv_heads * form->row[part - WORKER_PART_K_SCALE];
        total += proto_rows_sum(&(struct proto_rows_piece){.data = bytes[of_v] + codes,
                                                           .len = form->row[part],
                                                           .row_pitch = of_v ? form->v_wire : form->k_wire,
                                                           .head_pitch = form->row[part],
                                                           .part = (enum proto_rows_part)part,
                                                           .heads = form->kv_heads,
                                                           .first = first,
                                                           .count = count});
    }
    return total;
}

struct worker_hash {
    struct worker_chunk *chunk; // pinned
    uint32_t row, count;
    struct worker_layer *layer; // where the bytes were at the time; no rows
};

struct worker_hash *worker_hash_new(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                                    uint64_t *bytes)
{
    struct worker_hash *later = malloc(sizeof *later);
    struct worker_layer *shadow = worker_layer_new(chunk->shape, layer);
    if (!later || !shadow) {
        free(later);
        free(shadow);
        return NULL;
    }
    shadow->block = chunk->layers[layer]->block;
    memcpy(shadow->pages, chunk->layers[layer]->pages,
           chunk->shape->chunk_tokens / WORKER_PAGE_TOKENS * sizeof *shadow->pages);
    *later = (struct worker_hash){chunk, row, count, shadow};
    worker_store_pin(chunk);
    *bytes += count * (shadow->form->k_wire + shadow->form->v_wire);
    return later;
}

bool worker_hash_run(const struct worker_hash *later, bool of_sum, uint64_t *out)
{
    return (of_sum ? sum : hash)(later->chunk, later->layer, later->row, later->count, out);
}

void worker_hash_free(struct worker_store *store, struct worker_hash *later)
{
    if (!later)
        return;
    worker_store_unpin(store, later->chunk);
    free(later->layer);
    free(later);
}

void worker_chunk_read(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                       uint8_t *k, uint8_t *v)
{
    move_bytes(chunk, chunk->layers[layer], row, count, k, v, worker_memory_read);
}

void worker_chunk_read_head(const struct worker_chunk *chunk, uint32_t layer, uint32_t kv_head, uint32_t rows,
                            uint8_t *const parts[WORKER_PARTS])
{
    const struct worker_layer *l = chunk->layers[layer];
    const struct worker_form *form = l->form;
    const uint32_t step = l->block ? chunk->shape->chunk_tokens : WORKER_PAGE_TOKENS;
    for (uint32_t row = 0; row < rows; row += step) {
        const uint32_t n = rows - row < step ? rows - row : step;
        struct worker_piece pieces[WORKER_PARTS];
        for (uint32_t i = 0; i < form->n_parts; i++) {
            const enum worker_part part = form->parts[i];
            pieces[i] = (struct worker_piece){.memory = worker_layer_part(l, part, row, kv_head),
                                              .pitch = form->row[part],
                                              .host = parts[part] + (size_t)row * form->row[part],
                                              .host_pitch = form->row[part],
                                              .width = form->row[part],
                                              .height = n};
        }
        worker_memory_read(chunk->memory, pieces, form->n_parts);
    }
}

// Moves rows of a range from one state to another.
static void move_rows(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                      enum worker_row from, enum worker_row to)
{
    struct worker_layer *l = chunk->layers[layer];
    bool any = false;
    if (!l)
        return;
    for (uint32_t i = row; i < row + count; i++) {
        if (l->rows[i] != from)
            continue;
        l->rows[i] = (uint8_t)to;
        any = true;
    }
    worker_layer_advance(chunk, l);
    if (any)
        worker_backing_states(chunk->backing, chunk, layer, row, count, from, to);
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
    if (worker_chunk_rows_at(chunk, layer, row, count, WORKER_ROW_COMMITTED) == count)
        return;
    move_rows(chunk, layer, row, count, WORKER_ROW_PREPARED, WORKER_ROW_COMMITTED);
    move_rows(chunk, layer, row, count, WORKER_ROW_APPENDED, WORKER_ROW_COMMITTED);
}

void worker_chunk_withdraw(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                           enum worker_row to)
{
    struct worker_layer *l = chunk->layers[layer];
    bool any = false;
    assert(to == WORKER_ROW_ABSENT || to == WORKER_ROW_PREPARED);
    chunk->put = chunk->put || to == WORKER_ROW_PREPARED;
    for (uint32_t i = row; l && chunk->refs == 1 && i < row + count; i++) {
        if (l->rows[i] != WORKER_ROW_APPENDED)
            continue;
        l->rows[i] = (uint8_t)to;
        any = true;
        l->ready = i < l->ready ? i : l->ready;
        l->present -= to == WORKER_ROW_ABSENT; // its page stays for what comes next
        if (chunk->pins == 0 || to != WORKER_ROW_ABSENT)
            continue;
        bool none = l->read_first == l->read_end;
        l->read_first = none || i < l->read_first ? i : l->read_first;
        l->read_end = none || i + 1 > l->read_end ? i + 1 : l->read_end;
    }
    if (any)
        worker_backing_states(chunk->backing, chunk, layer, row, count, WORKER_ROW_APPENDED, to);
}

void worker_chunk_discard(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count)
{
    struct worker_layer *l = chunk->layers[layer];
    bool any = false;
    for (uint32_t i = row; l && chunk->refs == 1 && i < row + count; i++) {
        if (l->rows[i] != WORKER_ROW_PUT)
            continue;
        l->rows[i] = WORKER_ROW_ABSENT; // its page stays for what comes next
        l->present--;
        any = true;
    }
    if (any)
        worker_backing_states(chunk->backing, chunk, layer, row, count, WORKER_ROW_PUT, WORKER_ROW_ABSENT);
}

bool worker_chunk_has_put(const struct worker_chunk *chunk)
{
    return chunk->put;
}

void worker_chunk_forget(struct worker_chunk *chunk)
{
    for (uint32_t layer = 0; layer < chunk->shape->layers; layer++) {
        worker_chunk_abort(chunk, layer, 0, chunk->shape->chunk_tokens);
        worker_chunk_discard(chunk, layer, 0, chunk->shape->chunk_tokens);
    }
}
