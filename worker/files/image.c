// SPDX-License-Identifier: Apache-2.0
#include "worker/files/image.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"
#include "worker/files/record.h"
#include "worker/session/session.h"
#include "worker/store/store.h"

#define LAYERS_MAX 65536u

static void name_of(uint64_t id, const char *kind, char out[WORKER_NAME_BYTES])
{
    snprintf(out, WORKER_NAME_BYTES, "chunks/%016" PRIx64 ".%s", id, kind);
}

void worker_name_log(uint64_t id, char out[WORKER_NAME_BYTES])
{
    name_of(id, "log", out);
}

void worker_name_sealed(uint64_t id, char out[WORKER_NAME_BYTES])
{
    name_of(id, "sealed", out);
}

void worker_name_new(uint64_t id, char out[WORKER_NAME_BYTES])
{
    name_of(id, "new", out);
}

void worker_name_seal(uint64_t id, char out[WORKER_NAME_BYTES])
{
    name_of(id, "seal", out);
}

// ---- the head -----------------------------------------------------------------------------------

// Takes the head over, and makes room for all rows. 0, -EBADMSG or -ENOMEM.
static int take_head(struct worker_image *image, const struct worker_record *record, size_t behind)
{
    struct worker_image_head *head = &image->head;
    if (record->bytes < sizeof *head)
        return -EBADMSG;
    memcpy(head, record->payload, sizeof *head);
    if (head->layers < 1 || head->layers > LAYERS_MAX || head->chunk_tokens < 1 ||
        head->chunk_tokens > WORKER_CHUNK_TOKENS_MAX ||
        record->bytes != sizeof *head + head->layers * (sizeof(struct worker_image_layer) + behind))
        return -EBADMSG;
    size_t layers = head->layers, rows = layers * head->chunk_tokens;
    uint8_t *memory = calloc(1, layers * (sizeof(struct worker_image_layer) + 3 * sizeof(void *)) +
                                    rows * (2 * sizeof(uint8_t *) + 1));
    if (!memory)
        return -ENOMEM;
    const uint8_t **at = (const uint8_t **)memory; // pointers first: they are aligned
    image->memory = memory;
    image->k = (const uint8_t ***)at;
    image->v = image->k + layers;
    image->states = (uint8_t **)(image->v + layers);
    at = (const uint8_t **)(image->states + layers);
    for (size_t l = 0; l < layers; l++, at += 2 * head->chunk_tokens) {
        image->k[l] = at;
        image->v[l] = at + head->chunk_tokens;
    }
    image->layers = (struct worker_image_layer *)at;
    uint8_t *states = (uint8_t *)(image->layers + layers);
    for (size_t l = 0; l < layers; l++, states += head->chunk_tokens)
        image->states[l] = states;
    memcpy(image->layers, record->payload + sizeof *head, layers * sizeof *image->layers);
    return 0;
}

// ---- logs ---------------------------------------------------------------------------------------

static bool row_range(const struct worker_image *image, uint32_t layer, uint32_t row, uint32_t count)
{
    uint32_t tokens = image->head.chunk_tokens;
    return layer < image->head.layers && image->layers[layer].k_wire && row < tokens && count <= tokens - row;
}

// False: it means nothing.
static bool take_rows(struct worker_image *image, const struct worker_record *record,
                      const struct worker_rows_head *head)
{
    const uint8_t *bytes = record->payload + sizeof *head;
    if (!row_range(image, head->layer, head->row, head->count) || head->state > WORKER_ROW_COMMITTED)
        return false;
    const struct worker_image_layer *layer = &image->layers[head->layer];
    uint64_t k_bytes = (uint64_t)head->count * layer->k_wire, v_bytes = (uint64_t)head->count * layer->v_wire;
    if (record->bytes != sizeof *head + k_bytes + v_bytes)
        return false;
    for (uint32_t i = 0; i < head->count; i++) {
        uint32_t row = head->row + i;
        uint8_t *state = &image->states[head->layer][row];
        bool sets = record->type == WORKER_RECORD_SET || *state <= WORKER_ROW_PUT ||
                    (*state == WORKER_ROW_PREPARED && head->state >= WORKER_ROW_APPENDED);
        *state = sets ? (uint8_t)head->state : *state; // else they were the same bytes (worker_store_write)
        image->k[head->layer][row] = bytes + (uint64_t)i * layer->k_wire;
        image->v[head->layer][row] = bytes + k_bytes + (uint64_t)i * layer->v_wire;
    }
    return true;
}

static bool take_states(struct worker_image *image, const struct worker_record *record)
{
    struct worker_states_head head;
    if (record->bytes != sizeof head)
        return false;
    memcpy(&head, record->payload, sizeof head);
    if (!row_range(image, head.layer, head.row, head.count) || head.from > WORKER_ROW_COMMITTED ||
        head.to > WORKER_ROW_COMMITTED)
        return false;
    for (uint32_t i = head.row; i < head.row + head.count; i++)
        if (image->states[head.layer][i] == head.from)
            image->states[head.layer][i] = (uint8_t)head.to;
    return true;
}

// What one record behind the head says. False: the file is damaged. *over: it and what follows does not count.
static bool take_record(struct worker_image *image, const struct worker_record *record,
                        worker_image_fn counts, void *arg, bool *over)
{
    struct worker_rows_head head;
    if (record->type == WORKER_RECORD_STATES)
        return take_states(image, record);
    if ((record->type != WORKER_RECORD_ROWS && record->type != WORKER_RECORD_SET) ||
        record->bytes < sizeof head)
        return false;
    memcpy(&head, record->payload, sizeof head);
    *over = counts && head.write && !counts(arg, head.session, head.term, head.write);
    return *over || take_rows(image, record, &head);
}

static int read_log(struct worker_image *image, uint64_t len, worker_image_fn counts, void *arg)
{
    struct worker_record record;
    uint64_t at = 0;
    bool over = false;
    int result = 0;
    while (!over && !image->damaged && worker_record_next(image->file, len, image->id, &at, &record)) {
        if (image->bytes == 0) {
            image->damaged = record.type != WORKER_RECORD_CHUNK;
            result = image->damaged ? 0 : take_head(image, &record, 0);
            if (result == -ENOMEM)
                return result;
            image->damaged = image->damaged || result;
        } else {
            image->damaged = !take_record(image, &record, counts, arg, &over);
        }
        image->bytes = over || image->damaged ? image->bytes : at;
    }
    image->cut = image->bytes < len;
    image->damaged =
        image->damaged || (!over && worker_record_damaged(image->file, len, image->id, image->bytes));
    return 0;
}

// ---- sealed files -------------------------------------------------------------------------------

static uint64_t layer_sum(uint64_t id, uint64_t layer, const uint8_t *states, uint64_t bytes)
{
    uint64_t of[2] = {id, layer};
    const struct iovec pieces[] = {{of, sizeof of}, {(void *)(uintptr_t)states, bytes}};
    return common_xxh3_gather(pieces, 2);
}

static uint64_t layer_bytes(const struct worker_image *image, uint32_t layer)
{
    uint64_t tokens = image->head.chunk_tokens;
    return worker_padded(tokens) +
           tokens * ((uint64_t)image->layers[layer].k_wire + image->layers[layer].v_wire);
}

static bool take_layer(struct worker_image *image, uint64_t len, uint32_t layer,
                       const struct worker_sealed_layer *where)
{
    uint32_t tokens = image->head.chunk_tokens;
    if (where->bytes == 0)
        return true;
    if (where->bytes != layer_bytes(image, layer) || where->at > len || where->bytes > len - where->at)
        return false;
    const uint8_t *part = image->file + where->at, *k = part + worker_padded(tokens),
                  *v = k + (uint64_t)tokens * image->layers[layer].k_wire;
    if (layer_sum(image->id, layer, part, where->bytes) != where->sum)
        return false;
    for (uint32_t i = 0; i < tokens; i++) {
        if (part[i] > WORKER_ROW_COMMITTED)
            return false;
        image->states[layer][i] = part[i];
        image->k[layer][i] = k + (uint64_t)i * image->layers[layer].k_wire;
        image->v[layer][i] = v + (uint64_t)i * image->layers[layer].v_wire;
    }
    return true;
}

static int read_sealed(struct worker_image *image, uint64_t len)
{
    struct worker_record record;
    uint64_t at = 0;
    image->sealed = true;
    image->damaged = true;
    if (!worker_record_next(image->file, len, image->id, &at, &record) || record.type != WORKER_RECORD_SEALED)
        return 0;
    int result = take_head(image, &record, sizeof(struct worker_sealed_layer));
    if (result)
        return result == -ENOMEM ? result : 0;
    const uint8_t *table = record.payload + sizeof image->head + image->head.layers * sizeof *image->layers;
    for (uint32_t l = 0; l < image->head.layers; l++) {
        struct worker_sealed_layer where;
        memcpy(&where, table + l * sizeof where, sizeof where);
        if (!take_layer(image, len, l, &where))
            return 0;
    }
    image->bytes = len;
    image->damaged = false;
    return 0;
}

int worker_image_seal(struct worker_files *files, const struct worker_image *image, const char *name)
{
    const struct worker_image_head *head = &image->head;
    struct worker_log log = {.owner = image->id};
    struct worker_sealed_layer *table = calloc(head->layers, sizeof *table);
    uint64_t most = 0, states = worker_padded(head->chunk_tokens);
    for (uint32_t l = 0; l < head->layers; l++)
        most = layer_bytes(image, l) > most ? layer_bytes(image, l) : most;
    uint8_t *part = calloc(1, most + 1);
    int result = table && part ? 0 : -ENOMEM;
    snprintf(log.name, sizeof log.name, "%s", name);
    const struct iovec top[] = {
        {(void *)(uintptr_t)head, sizeof *head},
        {image->layers, head->layers * sizeof *image->layers},
        {table, head->layers * sizeof *table},
    };
    uint64_t at = worker_record_bytes(top, 3);
    for (uint32_t l = 0; l < head->layers && result == 0; l++) {
        uint64_t bytes = layer_bytes(image, l);
        if (!image->layers[l].k_wire || image->states[l][0] == WORKER_ROW_ABSENT)
            continue; // of a layer that is full, or forgotten
        memset(part, 0, states);
        memcpy(part, image->states[l], head->chunk_tokens);
        worker_image_rows(image, l, part + states,
                          part + states + (uint64_t)head->chunk_tokens * image->layers[l].k_wire);
        table[l] = (struct worker_sealed_layer){at, bytes, layer_sum(image->id, l, part, bytes)};
        result = files->ops->write(files, name, at, &(struct iovec){part, bytes}, 1);
        at += worker_padded(bytes);
    }
    bool broken;
    if (result == 0)
        result = worker_record_write(files, &log, WORKER_RECORD_SEALED, top, 3, &broken);
    free(part);
    free(table);
    return result;
}

// ---- both ---------------------------------------------------------------------------------------

int worker_image_read(struct worker_files *files, uint64_t id, worker_image_fn counts, void *arg,
                      struct worker_image *out)
{
    struct worker_image image = {.id = id};
    char name[WORKER_NAME_BYTES];
    uint64_t len;
    bool log = true;
    worker_name_log(id, name);
    int result = worker_file_read(files, name, &image.file, &len);
    if (result == -ENOENT) {
        worker_name_sealed(id, name);
        log = false;
        result = worker_file_read(files, name, &image.file, &len);
    }
    if (result == 0)
        result = log ? read_log(&image, len, counts, arg) : read_sealed(&image, len);
    for (uint32_t l = 0; result == 0 && image.memory && l < image.head.layers; l++)
        for (uint32_t i = 0; i < image.head.chunk_tokens; i++)
            image.rows += image.states[l][i] != WORKER_ROW_ABSENT;
    if (result == 0)
        *out = image;
    else
        worker_image_end(&image);
    return result;
}

void worker_image_end(struct worker_image *image)
{
    free(image->memory);
    free(image->file);
    *image = (struct worker_image){0};
}

void worker_image_rows(const struct worker_image *image, uint32_t layer, uint8_t *k, uint8_t *v)
{
    const struct worker_image_layer *of = &image->layers[layer];
    for (uint32_t i = 0; i < image->head.chunk_tokens; i++, k += of->k_wire, v += of->v_wire) {
        bool there = image->states[layer][i] != WORKER_ROW_ABSENT;
        if (there)
            memcpy(k, image->k[layer][i], of->k_wire);
        else
            memset(k, 0, of->k_wire);
        if (there)
            memcpy(v, image->v[layer][i], of->v_wire);
        else
            memset(v, 0, of->v_wire);
    }
}

bool worker_image_full(const struct worker_image *image)
{
    for (uint32_t l = 0; l < image->head.layers; l++)
        for (uint32_t i = 0; image->layers[l].k_wire && i < image->head.chunk_tokens; i++)
            if (image->states[l][i] < WORKER_ROW_APPENDED)
                return false;
    return image->head.layers > 0;
}

bool worker_image_fits(const struct worker_image *image, uint64_t first, const struct worker_shape *shape)
{
    if (image->head.first != first || image->head.layers != shape->layers ||
        image->head.chunk_tokens != shape->chunk_tokens || image->head.kv_type != shape->kv_type)
        return false;
    for (uint32_t l = 0; l < shape->layers; l++) {
        const struct worker_form *form = worker_shape_form(shape, l);
        if (image->layers[l].k_wire != (form ? form->k_wire : 0) ||
            image->layers[l].v_wire != (form ? form->v_wire : 0))
            return false;
    }
    return true;
}
