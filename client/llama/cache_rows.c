// SPDX-License-Identifier: Apache-2.0
// Rows of a cache for llama.cpp's saved states, and from them. A state has all layers' K before their V, and
// a session takes both together: K lies in the tensor's own memory, where nothing else is, until its V has
// come.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/llama/cache.h"
#include "client/llama/cache_kept.h"

enum {
    PIECE_BYTES = 8 << 20,
    UNREAD = 0xff
}; // 0xff.. is NaN in every type: every computation with it shows it

struct place {
    uint32_t stream;
    uint64_t row, row_bytes, skip; // skip: bytes of the first row that are not wanted
};

static struct place find(const struct ggml_tensor *root, size_t offset)
{
    size_t within = offset % root->nb[2];
    return (struct place){(uint32_t)(offset / root->nb[2]), within / root->nb[1], root->nb[1],
                          within % root->nb[1]};
}

// Rows [first, first + count) of K or V of a layer, as the cache has them.
static bool read_piece(struct cache *cache, uint32_t number, const struct cache_layer *layer, bool is_k,
                       uint64_t first, uint64_t count, void *out)
{
    struct cache_stream *stream = &cache->streams[number];
    banyan_kv_type held = cache_held(cache);
    bool scaled = banyan_kv_scaled(held), alone = layer->v == layer->k;
    banyan_error error;
    if (!rows_room(&cache->k, count * rows_bytes(held, (uint64_t)layer->kv_heads * layer->k_dim)) ||
        !rows_room(&cache->v, count * rows_bytes(held, (uint64_t)layer->kv_heads * layer->v_dim)) ||
        (scaled && (!rows_room(&cache->k_scale, count * layer->kv_heads * 4) ||
                    !rows_room(&cache->v_scale, count * layer->kv_heads * 4))))
        return false;
    float *k_scale = scaled ? cache->k_scale.at : NULL,
          *v_scale = scaled && !alone ? cache->v_scale.at : NULL;
    if (banyan_read_rows(stream->session, (uint32_t)(layer - cache->layers), first, count, cache->k.at,
                         k_scale, alone ? NULL : cache->v.at, v_scale, &error) != BANYAN_OK) {
        cache_say(cache->why, "sequence %u: its rows cannot be read for a state: %s", number, error.message);
        return false;
    }
    return is_k ? rows_to_cache(cache->k.at, k_scale, count, layer->kv_heads, layer->k_dim, layer->k->type,
                                held, out)
                : rows_to_cache(cache->v.at, v_scale, count, layer->kv_heads, layer->v_dim, layer->v->type,
                                held, out);
}

// Where rows are, in the place of rows.
static bool get_names(struct cache *cache, const struct cache_layer *layer, struct place at, char *out,
                      size_t size)
{
    struct cache_stream *stream = &cache->streams[at.stream];
    if (!cache_kept_make(cache, at.stream))
        return false;
    struct cache_kept row = {.position = at.row,
                             .ordered = !cache->shared || cache->shared->lists[at.stream].ordered};
    memcpy(row.id, stream->kept, sizeof row.id);
    for (; size > 0; size -= at.row_bytes, out += at.row_bytes, row.position++) {
        if (row.position < stream->lengths[layer - cache->layers]) {
            cache_kept_write(&row, out, at.row_bytes);
        } else if (cache->shared) {
            cache_say(cache->why, "sequence %u: a row for a state is not in the cluster", at.stream);
            return false;
        }
    }
    return true;
}

// Bytes of rows of a stream, from position at.row on.
static bool get_stream(struct cache *cache, const struct cache_layer *layer, bool is_k, struct place at,
                       char *out, size_t size)
{
    struct cache_stream *stream = &cache->streams[at.stream];
    uint64_t first_row = at.row;
    if (!cache_ask(cache, at.stream))
        return false;
    if (stream->lost[0]) {
        cache_say(cache->why, "sequence %u: its rows cannot be read for a state: %s", at.stream,
                  stream->lost);
        return false;
    }
    if (!stream->session)
        return true; // llama.cpp reads cells that it has filled
    if (cache_kept_wanted(cache) && at.skip == 0 && size % at.row_bytes == 0)
        return get_names(cache, layer, at, out, size);
    uint64_t length = stream->lengths[layer - cache->layers], piece = PIECE_BYTES / at.row_bytes + 1;
    char *rows = malloc(piece * at.row_bytes);
    bool done = rows != NULL;
    while (done && size > 0 && at.row < length) {
        uint64_t count = (at.skip + size + at.row_bytes - 1) / at.row_bytes;
        count = count < piece ? count : piece;
        count = count < length - at.row ? count : length - at.row;
        done = read_piece(cache, at.stream, layer, is_k, at.row, count, rows);
        size_t bytes = count * at.row_bytes - at.skip;
        bytes = bytes < size ? bytes : size;
        if (done)
            memcpy(out, rows + at.skip, bytes);
        out += bytes;
        size -= bytes;
        at.row += count;
        at.skip = 0;
    }
    free(rows);
    // Zeros are what cells that were never written hold; of cells that were, none may be missing.
    if (done && size > 0 && length > 0 && (cache->shared || at.row > first_row)) {
        cache_say(cache->why, "sequence %u: of the rows for a state %llu are not in the cluster", at.stream,
                  (unsigned long long)(size / at.row_bytes));
        return false;
    }
    return done;
}

// Cells that several sequences share: those of each run, from the sequence that has it.
static bool get_shared(struct cache *cache, const struct cache_layer *layer, bool is_k, struct place at,
                       char *out, size_t size)
{
    while (size > 0) {
        uint32_t most = (uint32_t)((at.skip + size + at.row_bytes - 1) / at.row_bytes), run;
        uint32_t found = cells_find(cache->shared, (uint32_t)at.row, most, CELLS_NONE, &run);
        if (found == CELLS_NONE) {
            cache_say(cache->why, "cell %llu, which a state needs, is not a sequence's",
                      (unsigned long long)at.row);
            return false;
        }
        size_t bytes = run * at.row_bytes - at.skip;
        bytes = bytes < size ? bytes : size;
        struct place there = {found, cache->shared->lists[found].at[at.row], at.row_bytes, at.skip};
        if (!get_stream(cache, layer, is_k, there, out, bytes))
            return false;
        out += bytes;
        size -= bytes;
        at.row += run;
        at.skip = 0;
    }
    return true;
}

static bool get(struct cache *cache, const struct ggml_tensor *root, char *out, size_t offset, size_t size)
{
    const struct cache_layer *layer = cache_layer_of(cache, root);
    struct place at = find(root, offset);
    memset(out, 0, size);
    if (!layer)
        return true; // nothing was ever written
    if (cache->shared)
        return cache->n_streams == 0 || get_shared(cache, layer, root == layer->k, at, out, size);
    return at.stream >= cache->n_streams || get_stream(cache, layer, root == layer->k, at, out, size);
}

bool cache_get_rows(struct cache *cache, const struct ggml_tensor *root, void *out, size_t offset,
                    size_t size)
{
    pthread_mutex_lock(&cache->lock);
    cache_say(cache->why, "no memory to read rows for a state");
    bool read = get(cache, root, out, offset, size);
    if (!read)
        memset(out, UNREAD, size);
    pthread_mutex_unlock(&cache->lock);
    return read;
}

// Whether one of the rows is what cache_get_rows leaves where it could not read.
static bool unread(const char *data, size_t size, size_t row)
{
    for (size_t first = 0; first + row <= size; first += row) {
        size_t i = 0;
        while (i < row && (unsigned char)data[first + i] == UNREAD)
            i++;
        if (i == row)
            return true;
    }
    return false;
}

static void lose(struct cache_stream *stream, const char *why)
{
    if (!stream->lost[0])
        cache_say(stream->lost, "its state could not be restored: %s", why);
    stream->staged_first = stream->staged_end = 0;
}

// K and V of rows [first, first + count) to the session.
static bool send(struct cache *cache, struct cache_stream *stream, const struct cache_layer *layer,
                 uint64_t first, uint64_t count, const char *k_cells, const char *v_cells)
{
    banyan_kv_type held = cache_held(cache);
    uint32_t at = (uint32_t)(layer - cache->layers);
    bool scaled = banyan_kv_scaled(held), alone = layer->v == layer->k;
    size_t k_row = rows_bytes(held, (uint64_t)layer->kv_heads * layer->k_dim),
           v_row = rows_bytes(held, (uint64_t)layer->kv_heads * layer->v_dim);
    uint64_t piece = PIECE_BYTES / (k_row + v_row) + 1;
    banyan_error error;
    for (uint64_t done = 0; done < count; done += piece) {
        uint64_t n = count - done < piece ? count - done : piece;
        if (!rows_room(&cache->k, n * k_row) || !rows_room(&cache->v, n * v_row) ||
            (scaled && (!rows_room(&cache->k_scale, n * layer->kv_heads * 4) ||
                        !rows_room(&cache->v_scale, n * layer->kv_heads * 4)))) {
            lose(stream, "no memory");
            return false;
        }
        float *k_scale = scaled ? cache->k_scale.at : NULL,
              *v_scale = scaled && !alone ? cache->v_scale.at : NULL;
        bool made = rows_from_cache(k_cells + done * layer->k->nb[1], n, layer->kv_heads, layer->k_dim,
                                    layer->k->type, held, cache->k.at, k_scale) &&
                    (alone || rows_from_cache(v_cells + done * layer->v->nb[1], n, layer->kv_heads,
                                              layer->v_dim, layer->v->type, held, cache->v.at, v_scale));
        const void *v = alone ? NULL : cache->v.at;
        if (!made ||
            (scaled ? banyan_attach_scaled(stream->session, at, first + done, n, cache->k.at, k_scale, v,
                                           v_scale, &error)
                    : banyan_attach(stream->session, at, first + done, n, cache->k.at, v, &error)) !=
                BANYAN_OK ||
            banyan_commit(stream->session, at, first + done, n, &error) != BANYAN_OK) {
            lose(stream, made ? error.message : "no memory");
            stream->unsure = true;
            return false;
        }
    }
    stream->lengths[at] = first + count;
    stream->changes++;
    return true;
}

static char *cell_in(const struct ggml_tensor *root, uint32_t stream, uint64_t cell)
{
    return (char *)root->data + stream * root->nb[2] + cell * root->nb[1];
}

// Their memory, as far as it is whole pages.
static void release(char *cells, size_t bytes)
{
    uintptr_t first = ((uintptr_t)cells + 4095) / 4096 * 4096, end = ((uintptr_t)cells + bytes) / 4096 * 4096;
    if (end > first)
        (void)madvise((void *)first, end - first, MADV_DONTNEED);
}

// Rows of cells that several sequences share come in many short runs: K and V lie in the tensors' memory
// until the last position's V has come, and are sent together in the order of the list.
static void stage_shared(struct cache *cache, struct cache_layer *layer, bool is_k, struct place at,
                         char *cells, const char *data, uint64_t count)
{
    struct cache_stream *stream = &cache->streams[at.stream];
    const struct cells_list *list = &cache->shared->lists[at.stream];
    memcpy(cells, data, count * at.row_bytes);
    if (is_k || at.row + count < list->length)
        return;
    size_t k_row = layer->k->nb[1], v_row = layer->v->nb[1];
    char *k = malloc(list->length * (k_row + v_row)), *v = k ? k + list->length * k_row : NULL;
    for (uint32_t j = 0; k && j < list->length; j++) {
        memcpy(k + j * k_row, cell_in(layer->k, 0, list->cell[j]), k_row);
        memcpy(v + j * v_row, cell_in(layer->v, 0, list->cell[j]), v_row);
    }
    if (!k)
        lose(stream, "no memory");
    else
        (void)send(cache, stream, layer, 0, list->length, k, v);
    free(k);
    for (uint32_t first = 0, n; first < list->length; first += n) {
        for (n = 1; first + n < list->length && list->cell[first + n] == list->cell[first] + n;)
            n++;
        release(cell_in(layer->k, 0, list->cell[first]), n * k_row);
        release(cell_in(layer->v, 0, list->cell[first]), n * v_row);
    }
}

// Rows of K or V for cells from `cells` on: positions from at.row on of the stream.
static void put_stream(struct cache *cache, struct cache_layer *layer, bool is_k, struct place at,
                       char *cells, const char *data, uint64_t count)
{
    struct cache_stream *stream = &cache->streams[at.stream];
    bool alone = layer->v == layer->k;
    if (is_k && layer == cache->layers && at.row == 0)
        stream->lost[0] = '\0';
    if (stream->lost[0])
        return; // what failed for one layer is not begun by the next
    bool goes_on = is_k && ((cache->shared && at.row > 0 && !alone) ||
                            (stream->staged_end > stream->staged_first && at.row == stream->staged_end));
    if (is_k && !goes_on && !cache_begin(cache, at.stream, layer, at.row)) {
        lose(stream, cache->why);
        return;
    }
    if (cache->shared && !alone) {
        stage_shared(cache, layer, is_k, at, cells, data, count);
    } else if (is_k && alone) {
        (void)send(cache, stream, layer, at.row, count, data, NULL);
    } else if (is_k) {
        memcpy(cells, data, count * at.row_bytes);
        stream->staged_first = stream->staged_end == at.row ? stream->staged_first : at.row;
        stream->staged_end = at.row + count;
    } else if (at.row < stream->staged_first || at.row + count > stream->staged_end) {
        lose(stream, "values came without their keys");
    } else if (send(cache, stream, layer, at.row, count, cells, data)) {
        release(cells, count * layer->k->nb[1]);
    }
}

// Where sequences share their cells, a state becomes a new one: its keys of the first layer name its cells.
static bool restore_list(struct cache *cache, bool names_cells, bool has_names, struct place at,
                         uint64_t count)
{
    struct cells *shared = cache->shared;
    if (names_cells) {
        bool goes_on =
            cache->restored != CELLS_NONE && shared->lists[cache->restored].length > 0 && cache->restoring;
        if (!goes_on) {
            shared->n_parts = 0;
            cache->restored = cells_new(shared);
        }
        if (cache->restored == CELLS_NONE || !cache_room(cache))
            return false;
        struct cache_stream *stream = &cache->streams[cache->restored];
        if (!goes_on) {
            stream->staged_first = stream->staged_end = 0;
            stream->from_kept = false;
            stream->lost[0] = '\0';
        }
        if (!has_names && !cells_append(shared, cache->restored, (uint32_t)at.row, (uint32_t)count))
            return false;
    }
    cache->restoring = names_cells;
    return cache->restored != CELLS_NONE &&
           (has_names || shared->lists[cache->restored].at[at.row] != CELLS_NONE);
}

// A state of names. The first layer's keys take up the session that they name; all others name the same.
static void put_names(struct cache *cache, bool begins, uint32_t number, uint64_t cell, const char *data,
                      size_t row_bytes, uint64_t count)
{
    struct cache_stream *stream = &cache->streams[number];
    struct cache_kept row;
    for (uint64_t i = 0; i < count && !stream->lost[0]; i++) {
        if (!cache_kept_read(data + i * row_bytes, row_bytes, &row)) {
            lose(stream, "it has rows, and names of rows");
            return;
        }
        if (begins && !stream->from_kept) {
            if (!cache_kept_open(cache, number, &row)) {
                lose(stream, cache->why);
                return;
            }
            stream->from_kept = true;
            memcpy(stream->kept, row.id, sizeof row.id);
        }
        const struct cells_list *list = cache->shared ? &cache->shared->lists[number] : NULL;
        if (begins && list &&
            !cells_place(cache->shared, number, (uint32_t)row.position, (uint32_t)(cell + i), row.ordered))
            lose(stream, "no memory");
        uint64_t position = list ? cache->shared->lists[number].at[cell + i] : cell + i;
        if (!stream->from_kept || memcmp(stream->kept, row.id, sizeof row.id) != 0 ||
            row.position != position || position >= stream->lengths[0])
            lose(stream, "it names other rows than those that it began with");
    }
}

static void put(struct cache *cache, const struct ggml_tensor *root, const char *data, size_t offset,
                size_t size)
{
    struct cache_layer *layer = cache_layer_of(cache, root);
    struct place at = find(root, offset);
    uint64_t count = size / at.row_bytes;
    bool is_k = layer && root == layer->k, whole = layer && !at.skip && size % at.row_bytes == 0;
    uint64_t cell = at.row;
    bool begins = whole && is_k && layer == cache->layers;
    struct cache_kept first;
    bool names = whole && count > 0 && cache_kept_read(data, at.row_bytes, &first);
    if (cache->shared) {
        if (!restore_list(cache, begins, names, at, count))
            return; // the mask will show cells that no sequence has
        at.stream = cache->restored;
        at.row = cache->shared->lists[cache->restored].at[cell];
    } else if (begins && at.row == 0 && at.stream < cache->n_streams) {
        cache->streams[at.stream].from_kept = false;
        cache->streams[at.stream].lost[0] = '\0';
    }
    if (at.stream >= cache->n_streams)
        return;
    if (!whole)
        lose(&cache->streams[at.stream], "parts of rows, or rows of a layer that no attention has read");
    else if (unread(data, size, at.row_bytes))
        lose(&cache->streams[at.stream], "it was saved while the cluster could not be read");
    else if (names)
        put_names(cache, begins, at.stream, cell, data, at.row_bytes, count);
    else
        put_stream(cache, layer, is_k, at,
                   cell_in(cache->shared ? root : layer->k, cache->shared ? 0 : at.stream, cell), data,
                   count);
}

void cache_put_rows(struct cache *cache, const struct ggml_tensor *root, const void *data, size_t offset,
                    size_t size)
{
    pthread_mutex_lock(&cache->lock);
    put(cache, root, data, offset, size);
    pthread_mutex_unlock(&cache->lock);
}
