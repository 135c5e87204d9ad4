// SPDX-License-Identifier: Apache-2.0
// One layer of a sealed file, without the others.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL // the state lives on the stack: its size must be this header's
#include <xxhash.h>

#include "worker/files/image.h"
#include "worker/files/record.h"

#define SLICE_BYTES                                                                                          \
    (UINT64_C(256) << 10) // read at a time, or one row: it stays in a cache until it is where it belongs

struct part { // that is being read
    struct worker_files *files;
    char name[WORKER_NAME_BYTES];
    uint64_t at, end; // what is left of it in the file
    struct worker_image_room *room;
    XXH3_state_t sum;
};

static bool head_fits(const struct worker_image_head *head, const struct worker_image_layer *layers,
                      uint64_t first, const struct worker_shape *shape)
{
    if (head->first != first || head->layers != shape->layers || head->chunk_tokens != shape->chunk_tokens ||
        head->kv_type != shape->kv_type)
        return false;
    for (uint32_t l = 0; l < shape->layers; l++) {
        const struct worker_form *form = worker_shape_form(shape, l);
        if (layers[l].k_wire != (form ? form->k_wire : 0) || layers[l].v_wire != (form ? form->v_wire : 0))
            return false;
    }
    return true;
}

// Where the layer's part is. 0 or a negative errno.
static int find_part(struct worker_files *files, const char *name, uint64_t id, uint64_t first,
                     const struct worker_shape *shape, uint32_t layer, struct worker_sealed_layer *out)
{
    struct worker_image_head head;
    size_t of_layers = shape->layers * sizeof(struct worker_image_layer),
           bytes = sizeof head + of_layers + shape->layers * sizeof *out;
    const struct iovec like = {NULL, bytes};
    uint64_t len = worker_record_bytes(&like, 1), at = 0;
    uint8_t *top = malloc(len);
    struct worker_record record;
    if (!top)
        return -ENOMEM;
    int64_t n = files->ops->read(files, name, 0, top, len);
    int result = n < 0 ? (int)n : -EBADMSG;
    if (n == (int64_t)len && worker_record_next(top, len, id, &at, &record) &&
        record.type == WORKER_RECORD_SEALED && record.bytes == bytes) {
        memcpy(&head, record.payload, sizeof head);
        struct worker_image_layer *layers = malloc(of_layers);
        if (layers)
            memcpy(layers, record.payload + sizeof head, of_layers);
        result = !layers ? -ENOMEM : head_fits(&head, layers, first, shape) ? 0 : -EBADMSG;
        free(layers);
        memcpy(out, record.payload + sizeof head + of_layers + layer * sizeof *out, sizeof *out);
    }
    free(top);
    return result;
}

// The next bytes of the part, into the buffer, and into the sum.
static int next_bytes(struct part *part, uint64_t bytes)
{
    if (bytes > part->room->n || bytes > part->end - part->at)
        return -EBADMSG;
    int64_t n = part->files->ops->read(part->files, part->name, part->at, part->room->bytes, bytes);
    if (n < 0)
        return (int)n;
    part->at += bytes;
    XXH3_64bits_update(&part->sum, part->room->bytes, bytes);
    return n == (int64_t)bytes ? 0 : -EBADMSG;
}

static int take_rows(struct part *part, bool of_v, uint32_t tokens, uint64_t wire, worker_image_rows_fn take,
                     void *arg)
{
    int result = 0;
    uint64_t most = wire ? part->room->n / wire : 0;
    for (uint32_t row = 0, n; wire && row < tokens && result == 0; row += n) {
        n = tokens - row < most ? tokens - row : (uint32_t)most;
        result = next_bytes(part, n * wire);
        if (result == 0)
            take(arg, of_v, row, n, part->room->bytes);
    }
    return result;
}

static int make_room(struct worker_image_room *room, uint64_t bytes)
{
    if (bytes <= room->n)
        return 0;
    free(room->bytes);
    room->bytes = malloc(bytes);
    room->n = room->bytes ? bytes : 0;
    return room->bytes ? 0 : -ENOMEM;
}

int worker_image_layer_read(struct worker_files *files, uint64_t id, uint64_t first,
                            const struct worker_shape *shape, uint32_t layer, struct worker_image_room *room,
                            worker_image_rows_fn take, void *arg)
{
    const struct worker_form *form = worker_shape_form(shape, layer);
    uint64_t of[2] = {id, layer}, states = worker_padded(shape->chunk_tokens), most = SLICE_BYTES;
    struct worker_sealed_layer where;
    struct part part = {.files = files, .room = room};
    worker_name_sealed(id, part.name);
    int result = find_part(files, part.name, id, first, shape, layer, &where);
    if (result != 0)
        return result;
    if (!form || where.bytes != states + shape->chunk_tokens * (form->k_wire + form->v_wire) ||
        where.at > UINT64_MAX - where.bytes)
        return -EBADMSG;
    part.at = where.at;
    part.end = where.at + where.bytes;
    most = most > states ? most : states;
    most = most > form->k_wire ? most : form->k_wire;
    most = most > form->v_wire ? most : form->v_wire;
    result = make_room(room, most);
    if (result != 0)
        return result;
    if (files->ops->ahead)
        files->ops->ahead(files, part.name, where.at, where.bytes);
    XXH3_INITSTATE(&part.sum);
    XXH3_64bits_reset(&part.sum);
    XXH3_64bits_update(&part.sum, of, sizeof of);
    result = next_bytes(&part, states);
    if (result == 0)
        result = take_rows(&part, false, shape->chunk_tokens, form->k_wire, take, arg);
    if (result == 0)
        result = take_rows(&part, true, shape->chunk_tokens, form->v_wire, take, arg);
    if (result == 0 && XXH3_64bits_digest(&part.sum) != where.sum)
        result = -EBADMSG;
    explicit_bzero(part.sum.buffer, sizeof part.sum.buffer); // the last rows, on everybody's stack
    return result;
}
