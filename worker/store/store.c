// SPDX-License-Identifier: Apache-2.0
#include "worker/store/store.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"
#include "common/memory/blob.h"
#include "common/memory/block.h"
#include "worker/memory/map.h"
#include "worker/store/backing.h"
#include "worker/store/chunk.h"
#include "worker/store/cold.h"

struct worker_store *worker_store_new(uint64_t limit_bytes, struct worker_memory *memory)
{
    struct worker_store *store = memory ? calloc(1, sizeof *store) : NULL;
    if (!store) {
        worker_memory_free(memory);
        return NULL;
    }
    store->memory = memory;
    store->limit = store->capacity = limit_bytes;
    common_list_init(&store->warm);
    return store;
}

void worker_store_free(struct worker_store *store)
{
    if (!store)
        return;
    assert(store->chunks.count == 0);
    worker_map_free(&store->chunks);
    worker_memory_free(store->memory);
    free(store);
}

void worker_store_set_name(struct worker_store *store, const char *name)
{
    store->name = name;
}

void worker_store_set_backing(struct worker_store *store, struct worker_backing *backing)
{
    store->backing = backing;
}

struct worker_backing *worker_store_backing(const struct worker_store *store)
{
    return store->backing;
}

uint64_t worker_store_limit(const struct worker_store *store)
{
    return store->limit;
}

uint64_t worker_store_refused(const struct worker_store *store)
{
    return store->refused;
}

uint64_t worker_store_used(const struct worker_store *store)
{
    return store->used + worker_memory_held(store->memory);
}

struct worker_device *worker_store_device(const struct worker_store *store)
{
    return worker_memory_device(store->memory);
}

enum common_code worker_store_check(const struct worker_store *store, struct common_error *err)
{
    return worker_memory_lost(store->memory, err) ? COMMON_UNAVAILABLE : COMMON_OK;
}

void worker_store_tidy(struct worker_store *store, uint64_t before_ns)
{
    worker_memory_tidy(store->memory, before_ns);
}

uint64_t worker_store_chunks(const struct worker_store *store)
{
    return store->chunks.count;
}

void worker_store_set_quarantined(struct worker_store *store, uint64_t bytes)
{
    store->quarantined = bytes;
}

bool worker_store_take(struct worker_store *store, uint64_t bytes)
{
    while (bytes > store->limit - worker_store_used(store))
        if (!worker_store_evict(store, NULL))
            return false;
    store->used += bytes;
    return true;
}

void worker_store_give(struct worker_store *store, uint64_t bytes)
{
    assert(bytes <= store->used);
    store->used -= bytes;
}

// For rows that were not here, or lie elsewhere.
static uint8_t *alloc(struct worker_store *store, uint64_t bytes)
{
    uint64_t taken = worker_store_used(store) + store->cold.bytes;
    if (taken > store->capacity || bytes > store->capacity - taken)
        return NULL;
    return worker_store_alloc(store, bytes, NULL);
}

// ---- chunks' lives ------------------------------------------------------------------------------

enum common_code worker_store_hold(struct worker_store *store, uint64_t id, uint64_t first,
                                   struct worker_shape *shape, struct worker_chunk **out,
                                   struct common_error *err)
{
    struct worker_chunk *chunk = worker_map_get(&store->chunks, id);
    if (chunk) {
        if (chunk->first != first || !worker_shape_equal(chunk->shape, shape))
            return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                    "chunk %" PRIu64 " is held here with another shape or position", id);
        chunk->refs++;
        *out = chunk;
        return COMMON_OK;
    }
    uint64_t bytes = worker_chunk_overhead(shape);
    if (!worker_store_take(store, bytes))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for chunk %" PRIu64, id);
    chunk = calloc(1, sizeof *chunk + shape->layers * (sizeof(struct worker_layer *) + sizeof(uint32_t)));
    if (!chunk || !worker_map_put(&store->chunks, id, chunk)) {
        free(chunk);
        worker_store_give(store, bytes);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for chunk %" PRIu64,
                                id);
    }
    chunk->memory = store->memory;
    chunk->backing = store->backing;
    chunk->forgone = (uint32_t *)(chunk->layers + shape->layers);
    chunk->id = id;
    chunk->first = first;
    chunk->shape = worker_shape_ref(shape);
    chunk->refs = 1;
    *out = chunk;
    return COMMON_OK;
}

struct worker_chunk *worker_store_find(const struct worker_store *store, uint64_t id)
{
    return worker_map_get(&store->chunks, id);
}

bool worker_store_next(const struct worker_store *store, size_t *cursor, struct worker_chunk **chunk)
{
    void *value;
    if (!worker_map_next(&store->chunks, cursor, &value))
        return false;
    *chunk = value;
    return true;
}

static void free_retired(struct worker_store *store, struct worker_chunk *chunk)
{
    while (chunk->retired) {
        struct worker_retired *gone = chunk->retired;
        chunk->retired = gone->next;
        worker_memory_release(store->memory, gone->memory);
        free(gone);
    }
}

void worker_layer_free(struct worker_store *store, const struct worker_chunk *chunk,
                       struct worker_layer *layer)
{
    common_block_hand_over(); // its rows go for good; messages brought them
    worker_memory_release(store->memory, layer->block);
    for (uint32_t p = 0; p < chunk->shape->chunk_tokens / WORKER_PAGE_TOKENS; p++)
        worker_memory_release(store->memory, layer->pages[p]);
    store->cold.bytes -= layer->cold ? layer->form->block_bytes : 0;
    common_list_remove(&layer->warm);
    worker_store_give(store, worker_layer_overhead(chunk->shape));
    free(layer);
}

// What only pins have kept.
static void free_unpinned(struct worker_store *store, struct worker_chunk *chunk)
{
    free_retired(store, chunk);
    while (chunk->shed) {
        struct worker_layer *layer = chunk->shed;
        chunk->shed = layer->shed;
        worker_layer_free(store, chunk, layer);
    }
}

static void free_chunk(struct worker_store *store, struct worker_chunk *chunk)
{
    free_unpinned(store, chunk);
    for (uint32_t i = 0; i < chunk->shape->layers; i++)
        if (chunk->layers[i])
            worker_layer_free(store, chunk, chunk->layers[i]);
    worker_store_give(store, worker_chunk_overhead(chunk->shape));
    worker_shape_unref(chunk->shape);
    free(chunk);
}

void worker_store_release(struct worker_store *store, struct worker_chunk *chunk)
{
    assert(chunk->refs > 0);
    if (--chunk->refs > 0) {
        for (uint32_t layer = 0; chunk->words > 0 && layer < chunk->shape->layers; layer++)
            worker_chunk_shed(store, chunk, layer);
        return;
    }
    worker_map_remove(&store->chunks, chunk->id);
    worker_backing_forget(chunk->backing, chunk);
    if (chunk->pins == 0 && chunk->holds == 0)
        free_chunk(store, chunk);
}

void worker_store_pin(struct worker_chunk *chunk)
{
    chunk->pins++;
}

void worker_store_unpin(struct worker_store *store, struct worker_chunk *chunk)
{
    assert(chunk->pins > 0);
    if (--chunk->pins > 0)
        return;
    if (chunk->refs == 0 && chunk->holds == 0)
        free_chunk(store, chunk);
    else
        free_unpinned(store, chunk);
}

void worker_store_hold_back(struct worker_chunk *chunk)
{
    chunk->holds++;
}

void worker_store_let_go(struct worker_store *store, struct worker_chunk *chunk)
{
    assert(chunk->holds > 0);
    if (--chunk->holds == 0 && chunk->refs == 0 && chunk->pins == 0)
        free_chunk(store, chunk);
}

// ---- memory of rows -----------------------------------------------------------------------------

// What a write has allocated, so that a failure takes it back. A page without a written row is invisible.
struct journal {
    struct worker_store *store;
    struct journal_entry {
        struct worker_chunk *chunk;
        uint32_t layer;
        uint8_t **where; // page or block pointer; NULL: the layer itself
    } * entries;
    size_t n, cap;
};

static bool journal_room(struct journal *journal)
{
    if (journal->n < journal->cap)
        return true;
    size_t cap = journal->cap ? journal->cap * 2 : 64;
    struct journal_entry *entries = realloc(journal->entries, cap * sizeof *entries);
    if (!entries)
        return false;
    journal->entries = entries;
    journal->cap = cap;
    return true;
}

static bool journal_memory(struct journal *journal, struct worker_chunk *chunk, uint32_t layer,
                           uint8_t **where, uint64_t bytes)
{
    if (!journal_room(journal) || !(*where = alloc(journal->store, bytes)))
        return false;
    journal->entries[journal->n++] = (struct journal_entry){chunk, layer, where};
    return true;
}

static bool journal_layer(struct journal *journal, struct worker_chunk *chunk, uint32_t layer)
{
    if (chunk->layers[layer])
        return true;
    uint64_t bytes = worker_layer_overhead(chunk->shape);
    if (!journal_room(journal) || !worker_store_take(journal->store, bytes))
        return false;
    chunk->layers[layer] = worker_layer_new(chunk->shape, layer);
    if (!chunk->layers[layer]) {
        worker_store_give(journal->store, bytes);
        return false;
    }
    chunk->layers[layer]->chunk = chunk;
    journal->entries[journal->n++] = (struct journal_entry){chunk, layer, NULL};
    return true;
}

// Memory for a range of rows of a layer, where it is not there yet.
static bool journal_rows(struct journal *journal, struct worker_chunk *chunk, uint32_t layer, uint32_t row,
                         uint32_t count)
{
    if (!journal_layer(journal, chunk, layer))
        return false;
    struct worker_layer *l = chunk->layers[layer];
    assert(!l->cold);
    if (l->block)
        return true;
    bool fresh = l->present == 0 && count == chunk->shape->chunk_tokens;
    for (uint32_t p = 0; fresh && p < chunk->shape->chunk_tokens / WORKER_PAGE_TOKENS; p++)
        fresh = l->pages[p] == NULL;
    if (fresh)
        return journal_memory(journal, chunk, layer, &l->block, l->form->block_bytes);
    for (uint32_t p = row / WORKER_PAGE_TOKENS; p <= (row + count - 1) / WORKER_PAGE_TOKENS; p++)
        if (!l->pages[p] && !journal_memory(journal, chunk, layer, &l->pages[p], l->form->page_bytes))
            return false;
    return true;
}

static void journal_undo(struct journal *journal)
{
    while (journal->n > 0) {
        struct journal_entry *entry = &journal->entries[--journal->n];
        if (entry->where) {
            worker_memory_release(journal->store->memory, *entry->where);
            *entry->where = NULL;
        } else {
            worker_store_give(journal->store, worker_layer_overhead(entry->chunk->shape));
            free(entry->chunk->layers[entry->layer]);
            entry->chunk->layers[entry->layer] = NULL;
        }
    }
}

// Puts memory that a pin may read aside, or frees it. The node was allocated before anything changed.
static void chunk_retire(struct worker_store *store, struct worker_chunk *chunk, struct worker_retired *node,
                         uint8_t *memory)
{
    if (chunk->pins == 0) {
        worker_memory_release(store->memory, memory);
        free(node);
        return;
    }
    *node = (struct worker_retired){chunk->retired, memory};
    chunk->retired = node;
}

// Gives a pinned chunk's row other memory with the same contents, so that it may be changed.
static bool chunk_unshare(struct worker_store *store, struct worker_chunk *chunk, struct worker_layer *layer,
                          uint32_t row)
{
    uint8_t **where = layer->block ? &layer->block : &layer->pages[row / WORKER_PAGE_TOKENS];
    uint64_t bytes = layer->block ? layer->form->block_bytes : layer->form->page_bytes;
    struct worker_retired *node = malloc(sizeof *node);
    uint8_t *memory = node ? alloc(store, bytes) : NULL;
    if (!memory) {
        free(node);
        return false;
    }
    worker_memory_copy(store->memory,
                       &(struct worker_copy){.to = memory, .from = *where, .width = bytes, .height = 1}, 1);
    chunk_retire(store, chunk, node, *where);
    *where = memory;
    return true;
}

// Turns the pages of a full layer into one block. When memory is short it stays as it is, which only costs
// speed.
static void make_block(struct worker_store *store, struct worker_chunk *chunk, struct worker_layer *layer)
{
    uint32_t pages = chunk->shape->chunk_tokens / WORKER_PAGE_TOKENS;
    if (layer->block || layer->cold || layer->present < chunk->shape->chunk_tokens)
        return;
    uint8_t *block = alloc(store, layer->form->block_bytes);
    struct worker_retired *nodes[4096 / WORKER_PAGE_TOKENS]; // chunk_tokens <= 4096 (session.c)
    uint32_t n_nodes = 0;
    while (block && n_nodes < pages && (nodes[n_nodes] = malloc(sizeof **nodes)))
        n_nodes++;
    if (n_nodes < pages) {
        while (n_nodes > 0)
            free(nodes[--n_nodes]);
        worker_memory_release(store->memory, block);
        return;
    }
    worker_layer_copy_pages(layer, store->memory, block, chunk->shape->chunk_tokens);
    for (uint32_t p = 0; p < pages; p++) {
        chunk_retire(store, chunk, nodes[p], layer->pages[p]);
        layer->pages[p] = NULL;
    }
    layer->block = block;
}

// ---- writing ------------------------------------------------------------------------------------

static void piece_row(const struct worker_rows *piece, uint32_t i, const uint8_t **k, const uint8_t **v)
{
    const struct worker_form *form = worker_shape_form(piece->chunk->shape, piece->layer);
    *k = piece->k + i * form->k_wire;
    *v = piece->v + i * form->v_wire;
}

// What writing a row would mean.
enum verdict { VERDICT_WRITE, VERDICT_REPLACE, VERDICT_SAME, VERDICT_REFUSE };

static enum verdict row_judge(const struct worker_chunk *chunk, uint32_t layer, uint32_t row,
                              const uint8_t *k, const uint8_t *v, uint64_t replace_from)
{
    enum worker_row state = worker_chunk_row(chunk, layer, row);
    if (state <= WORKER_ROW_PUT)
        return VERDICT_WRITE;
    if (state == WORKER_ROW_FORGOTTEN) // what they were is unknown
        return VERDICT_REFUSE;
    if (worker_layer_row_equal(chunk, chunk->layers[layer], row, k, v))
        return VERDICT_SAME;
    return state == WORKER_ROW_APPENDED && chunk->first + row >= replace_from ? VERDICT_REPLACE
                                                                              : VERDICT_REFUSE;
}

static enum common_code check_piece(const struct worker_rows *piece, enum worker_row to,
                                    uint64_t replace_from, struct common_error *err)
{
    assert(piece->count > 0 && piece->row + piece->count <= piece->chunk->shape->chunk_tokens);
    for (uint32_t i = 0; i < piece->count; i++) {
        const uint8_t *k, *v;
        piece_row(piece, i, &k, &v);
        enum verdict verdict = row_judge(piece->chunk, piece->layer, piece->row + i, k, v, replace_from);
        if (worker_chunk_forgotten(piece->chunk, piece->layer))
            return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                    "position %" PRIu64 " of layer %u is forgotten",
                                    piece->chunk->first + piece->row + i, piece->layer);
        if (verdict == VERDICT_REFUSE)
            return common_error_set(
                err, COMMON_FAILED_PRECONDITION,
                "position %" PRIu64
                " of layer %u already holds different bytes, committed or being committed",
                piece->chunk->first + piece->row + i, piece->layer);
        if (verdict != VERDICT_SAME && piece->chunk->refs > 1 && to != WORKER_ROW_COMMITTED)
            return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                    "position %" PRIu64 " is in a chunk that several sessions share",
                                    piece->chunk->first + piece->row + i);
    }
    return COMMON_OK;
}

// Whether a pin may be reading the bytes that writing a row alters.
static bool may_be_read(const struct worker_layer *layer, uint32_t row, enum verdict verdict)
{
    return verdict == VERDICT_REPLACE ||
           (verdict == VERDICT_WRITE && row >= layer->read_first && row < layer->read_end);
}

// Memory for everything that a piece writes.
static bool reserve_piece(struct journal *journal, const struct worker_rows *piece, uint64_t replace_from)
{
    struct worker_chunk *chunk = piece->chunk;
    if (!journal_rows(journal, chunk, piece->layer, piece->row, piece->count))
        return false;
    if (chunk->pins == 0)
        return true;
    for (uint32_t i = 0; i < piece->count; i++) {
        const uint8_t *k, *v;
        piece_row(piece, i, &k, &v);
        enum verdict verdict = row_judge(chunk, piece->layer, piece->row + i, k, v, replace_from);
        if (!may_be_read(chunk->layers[piece->layer], piece->row + i, verdict))
            continue;
        if (!chunk_unshare(journal->store, chunk, chunk->layers[piece->layer], piece->row + i))
            return false;
        if (chunk->layers[piece->layer]->block)
            break;
        i += WORKER_PAGE_TOKENS - (piece->row + i) % WORKER_PAGE_TOKENS -
             1; // the rest of the page is fresh now
    }
    return true;
}

static void write_piece(struct worker_store *store, const struct worker_rows *piece, enum worker_row to,
                        uint64_t replace_from)
{
    struct worker_chunk *chunk = piece->chunk;
    struct worker_layer *layer = chunk->layers[piece->layer];
    uint32_t fresh = 0; // rows before i, up to it, that must be written together
    for (uint32_t i = 0; i <= piece->count; i++) {
        const uint8_t *k, *v;
        enum verdict verdict = VERDICT_SAME;
        piece_row(piece, i, &k, &v);
        if (i < piece->count)
            verdict = row_judge(chunk, piece->layer, piece->row + i, k, v, replace_from);
        if (verdict != VERDICT_SAME) {
            fresh++;
        } else if (fresh > 0) { // what is the same may be frozen bytes, which someone may be hashing
            worker_layer_rows_set(chunk, layer, piece->row + i - fresh, fresh,
                                  k - fresh * layer->form->k_wire, v - fresh * layer->form->v_wire);
            fresh = 0;
        }
        if (i < piece->count &&
            (verdict != VERDICT_SAME ||
             (to >= WORKER_ROW_APPENDED && layer->rows[piece->row + i] == WORKER_ROW_PREPARED)))
            worker_layer_mark(chunk, layer, piece->row + i, to);
    }
    chunk->put = chunk->put || to == WORKER_ROW_PUT;
    if (piece->row <= layer->read_first && piece->row + piece->count >= layer->read_end)
        layer->read_first = layer->read_end = 0;
    worker_layer_advance(chunk, layer);
    make_block(store, chunk, layer);
}

static enum common_code refuse_for_memory(const struct worker_store *store, struct common_error *err)
{
    const char *name = store->name ? store->name : "";
    if (store->quarantined)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "worker %s has no memory for these rows: %" PRIu64 " of %" PRIu64
                                " bytes are in use, %" PRIu64
                                " of them in quarantine (banyanctl quarantine list)",
                                name, worker_store_used(store), store->limit, store->quarantined);
    return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                            "worker %s has no memory for these rows: %" PRIu64 " of %" PRIu64
                            " bytes are in use: raise its --memory, or start more workers",
                            name, worker_store_used(store), store->limit);
}

static enum common_code write_pieces(struct worker_store *store, const struct worker_rows *pieces, uint32_t n,
                                     enum worker_row to, uint64_t replace_from, struct common_error *err)
{
    enum common_code code = COMMON_OK;
    assert(to == WORKER_ROW_APPENDED || replace_from == UINT64_MAX);
    for (uint32_t i = 0; i < n; i++) {
        code = worker_store_load(store, pieces[i].chunk, pieces[i].layer, err);
        if (code != COMMON_OK)
            return code;
    }
    for (uint32_t i = 0; i < n; i++) {
        code = check_piece(&pieces[i], to, replace_from, err);
        if (code != COMMON_OK && worker_store_check(store, err) != COMMON_OK)
            return COMMON_UNAVAILABLE; // what was compared was nothing
        if (code != COMMON_OK)
            return code;
    }
    struct journal journal = {.store = store};
    for (uint32_t i = 0; i < n; i++) {
        if (!reserve_piece(&journal, &pieces[i], replace_from)) {
            journal_undo(&journal);
            free(journal.entries);
            store->refused++;
            return refuse_for_memory(store, err);
        }
    }
    code = worker_backing_rows(store->backing, pieces, n, to, err);
    if (code != COMMON_OK) {
        journal_undo(&journal);
        free(journal.entries);
        return code;
    }
    for (uint32_t i = 0; i < n; i++)
        write_piece(store, &pieces[i], to, replace_from);
    free(journal.entries);
    return worker_store_check(store, err);
}

enum common_code worker_store_write(struct worker_store *store, const struct worker_rows *pieces, uint32_t n,
                                    enum worker_row to, uint64_t replace_from, struct common_error *err)
{
    for (uint32_t i = 0; i < n; i++)
        worker_chunk_busy(pieces[i].chunk); // what is compared and written stays
    enum common_code code = write_pieces(store, pieces, n, to, replace_from, err);
    for (uint32_t i = 0; i < n; i++)
        worker_chunk_idle(pieces[i].chunk);
    return code;
}

bool worker_store_same(struct worker_store *store, const struct worker_rows *pieces, uint32_t n)
{
    struct common_error err;
    for (uint32_t i = 0; i < n; i++) {
        if (worker_store_load(store, pieces[i].chunk, pieces[i].layer, &err) != COMMON_OK)
            return false;
        for (uint32_t r = 0; r < pieces[i].count; r++) {
            const uint8_t *k, *v;
            piece_row(&pieces[i], r, &k, &v);
            if (worker_chunk_row(pieces[i].chunk, pieces[i].layer, pieces[i].row + r) < WORKER_ROW_APPENDED ||
                row_judge(pieces[i].chunk, pieces[i].layer, pieces[i].row + r, k, v, UINT64_MAX) !=
                    VERDICT_SAME)
                return false;
        }
    }
    return true;
}

bool worker_store_differs(struct worker_store *store, const struct worker_rows *pieces, uint32_t n)
{
    struct common_error err;
    for (uint32_t i = 0; i < n; i++) {
        if (worker_store_load(store, pieces[i].chunk, pieces[i].layer, &err) != COMMON_OK)
            continue;
        for (uint32_t r = 0; r < pieces[i].count; r++) {
            const uint8_t *k, *v;
            uint32_t row = pieces[i].row + r;
            piece_row(&pieces[i], r, &k, &v);
            if (worker_chunk_row(pieces[i].chunk, pieces[i].layer, row) != WORKER_ROW_FORGOTTEN &&
                row_judge(pieces[i].chunk, pieces[i].layer, row, k, v, UINT64_MAX) == VERDICT_REFUSE)
                return true;
        }
    }
    return false;
}

// ---- uncommitted rows ---------------------------------------------------------------------------

// Pages and blocks without a row, and a layer without any.
static void free_empty(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer)
{
    struct worker_layer *l = chunk->layers[layer];
    for (uint32_t p = 0; !l->block && p < chunk->shape->chunk_tokens / WORKER_PAGE_TOKENS; p++) {
        uint32_t row = p * WORKER_PAGE_TOKENS, end = row + WORKER_PAGE_TOKENS;
        while (row < end && l->rows[row] == WORKER_ROW_ABSENT)
            row++;
        if (row < end)
            continue;
        worker_memory_release(store->memory, l->pages[p]);
        l->pages[p] = NULL;
    }
    if (l->present > 0)
        return;
    worker_layer_free(store, chunk, l);
    chunk->layers[layer] = NULL;
}

uint64_t worker_store_expire(struct worker_store *store, struct worker_chunk *chunk)
{
    uint64_t rows = 0;
    if (chunk->pins > 0 || chunk->refs > 1)
        return 0;
    chunk->put = false;
    for (uint32_t layer = 0; layer < chunk->shape->layers; layer++) {
        struct worker_layer *l = chunk->layers[layer];
        uint64_t before = rows;
        for (uint32_t row = 0; l && row < chunk->shape->chunk_tokens; row++) {
            chunk->put = chunk->put || l->rows[row] == WORKER_ROW_PREPARED;
            if (l->rows[row] != WORKER_ROW_PUT)
                continue;
            l->rows[row] = WORKER_ROW_ABSENT;
            l->present--;
            rows++;
        }
        if (rows == before)
            continue;
        worker_backing_states(chunk->backing, chunk, layer, 0, chunk->shape->chunk_tokens, WORKER_ROW_PUT,
                              WORKER_ROW_ABSENT);
        free_empty(store, chunk, layer);
    }
    return rows;
}

// ---- copying ------------------------------------------------------------------------------------

static bool copied(const struct worker_chunk *chunk, uint32_t layer, uint32_t row)
{
    return worker_chunk_row(chunk, layer, row) >= WORKER_ROW_APPENDED;
}

#define COPY_ROWS 64u // at a time

// Goes through the rows to copy twice: first to see whether it may (write false), then to do it. k and v have
// room for COPY_ROWS.
static enum common_code copy_rows(struct journal *journal, const struct worker_chunk *from,
                                  struct worker_chunk *to, uint32_t rows, bool write, uint8_t *k, uint8_t *v,
                                  struct common_error *err)
{
    for (uint32_t layer = 0; layer < from->shape->layers; layer++) {
        uint32_t end = rows;
        while (end > 0 && !copied(from, layer, end - 1))
            end--;
        if (write && end == from->shape->chunk_tokens && !journal_rows(journal, to, layer, 0, end))
            return COMMON_RESOURCE_EXHAUSTED; // a block at once
        for (uint32_t row = 0, n; row < end; row += n) {
            n = 1;
            if (!copied(from, layer, row))
                continue;
            bool fresh = worker_chunk_row(to, layer, row) <= WORKER_ROW_PUT;
            while (fresh && n < COPY_ROWS && row + n < end && copied(from, layer, row + n) &&
                   worker_chunk_row(to, layer, row + n) <= WORKER_ROW_PUT)
                n++;
            if (write || !fresh)
                worker_chunk_read(from, layer, row, n, k, v);
            enum verdict verdict = fresh ? VERDICT_WRITE : row_judge(to, layer, row, k, v, UINT64_MAX);
            if (verdict == VERDICT_SAME)
                continue;
            if (verdict == VERDICT_REFUSE || to->refs > 1)
                return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                        "row %u of layer %u of the copy holds different bytes or is shared",
                                        row, layer);
            if (!write)
                continue;
            if (!journal_rows(journal, to, layer, row, n))
                return COMMON_RESOURCE_EXHAUSTED;
            worker_layer_rows_set(to, to->layers[layer], row, n, k, v);
        }
    }
    return COMMON_OK;
}

static bool copy_hash(const struct worker_chunk *chunk, uint32_t rows, uint64_t *out)
{
    *out = 0;
    for (uint32_t layer = 0; layer < chunk->shape->layers; layer++) {
        for (uint32_t row = 0; row < rows; row++) { // each stretch by itself: holes count
            uint32_t end = row;
            while (end < rows && copied(chunk, layer, end))
                end++;
            if (end == row)
                continue;
            uint64_t parts[5] = {*out, layer, row, end - row, 0};
            if (!worker_chunk_hash(chunk, layer, row, end - row, &parts[4]))
                return false;
            *out = common_xxh3(parts, sizeof parts, 0);
            row = end;
        }
    }
    return true;
}

static enum common_code load_all(struct worker_store *store, struct worker_chunk *chunk,
                                 struct common_error *err)
{
    enum common_code code = COMMON_OK;
    for (uint32_t layer = 0; layer < chunk->shape->layers && code == COMMON_OK; layer++)
        code = worker_store_load(store, chunk, layer, err);
    return code;
}

static enum common_code copy_chunk(struct worker_store *store, struct worker_chunk *from,
                                   struct worker_chunk *to, uint32_t rows, uint64_t *hash,
                                   struct common_error *err)
{
    if (from == to || !worker_shape_equal(from->shape, to->shape) || rows > from->shape->chunk_tokens)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "a chunk can only be copied to one of the same shape");
    for (uint32_t layer = 0; layer < from->shape->layers; layer++)
        if (rows > 0 && worker_chunk_forgotten(from, layer))
            return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                    "rows of layer %u of chunk %" PRIu64 " are forgotten", layer, from->id);
    enum common_code loaded = rows > 0 ? load_all(store, from, err) : COMMON_OK;
    if (loaded == COMMON_OK)
        loaded = load_all(store, to, err);
    if (loaded != COMMON_OK)
        return loaded;
    uint8_t *k = malloc(COPY_ROWS * from->shape->k_wire), *v = malloc(COPY_ROWS * from->shape->v_wire + 1);
    struct journal journal = {.store = store};
    enum common_code code = COMMON_RESOURCE_EXHAUSTED;
    if (k && v)
        code = copy_rows(&journal, from, to, rows, false, k, v, err);
    if (code == COMMON_OK)
        code = copy_rows(&journal, from, to, rows, true, k, v, err);
    if (code == COMMON_OK) {
        for (uint32_t layer = 0; layer < from->shape->layers; layer++) {
            if (!to->layers[layer])
                continue;
            for (uint32_t row = 0; row < rows; row++)
                if (copied(from, layer, row) && !copied(to, layer, row))
                    worker_layer_mark(to, to->layers[layer], row, worker_chunk_row(from, layer, row));
            worker_layer_advance(to, to->layers[layer]);
            make_block(store, to, to->layers[layer]);
        }
        code = worker_store_check(store, err);
        if (code == COMMON_OK)
            code = worker_backing_chunk(store->backing, to, err);
        if (code == COMMON_OK && !copy_hash(to, rows, hash))
            code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory to hash the copy");
    } else {
        journal_undo(&journal);
        if (code == COMMON_RESOURCE_EXHAUSTED)
            common_error_set(err, code, "no memory for the copy: %" PRIu64 " of %" PRIu64 " bytes are in use",
                             worker_store_used(store), store->limit);
    }
    free(journal.entries);
    free(k);
    free(v);
    return code;
}

enum common_code worker_store_copy(struct worker_store *store, struct worker_chunk *from,
                                   struct worker_chunk *to, uint32_t rows, uint64_t *hash,
                                   struct common_error *err)
{
    worker_chunk_busy(from);
    worker_chunk_busy(to);
    enum common_code code = copy_chunk(store, from, to, rows, hash, err);
    worker_chunk_idle(from);
    worker_chunk_idle(to);
    return code;
}
