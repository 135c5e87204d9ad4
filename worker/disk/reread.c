// SPDX-License-Identifier: Apache-2.0
#include "worker/disk/reread.h"

#include <stdlib.h>

#include "proto/model/spec.h"
#include "proto/sums/rows_sum.h"
#include "worker/disk/fetch.h"
#include "worker/disk/queue.h"
#include "worker/disk/state.h"
#include "worker/store/chunk.h"
#include "worker/store/cold.h"

struct worker_reread {
    struct worker_lane *lane;
    struct worker_disk_job job;
    struct worker_spec *spec;
    struct worker_disk *disk;
    uint64_t chunk, first, seal;
    uint64_t serial; // of the file
    bool unsure;     // when it began the file had perhaps not all that was asked for (queue.h)
    struct worker_image image;
    bool right;          // the image is what it should be
    uint32_t layer, row; // that is written next
    void (*ended)(void *arg);
    void *arg;
};

// What the file has. 0: not all of the rows that count.
static uint64_t image_seal(const struct worker_reread *r)
{
    const struct worker_image *image = &r->image;
    const struct worker_shape *shape = r->spec->shape;
    uint64_t seal = 0;
    for (uint32_t l = 0; l < shape->layers; l++) {
        uint64_t sum = 0;
        if (!proto_spec_keeps(r->spec->pb, l))
            continue;
        for (uint32_t row = 0; row < shape->chunk_tokens; row++) {
            if (!image->states[l] || image->states[l][row] < WORKER_ROW_PREPARED)
                return 0;
            const uint8_t *const bytes[2] = {image->k[l][row], image->v[l][row]};
            sum += worker_form_sum(worker_shape_form(shape, l), bytes, r->first + row, 1);
        }
        seal = proto_seal_add(seal, l, sum);
    }
    return proto_seal_done(seal);
}

static void reread_run(void *arg, const atomic_bool *stop)
{
    struct worker_reread *r = arg;
    (void)stop; // one chunk
    r->right = worker_image_read(worker_lane_files(r->lane), r->chunk, NULL, NULL, &r->image) == 0 &&
               !r->image.damaged && worker_image_fits(&r->image, r->first, r->spec->shape) &&
               image_seal(r) == r->seal;
}

static void reread_ended(void *arg)
{
    struct worker_reread *r = arg;
    worker_lane_give(r->lane);
    r->ended(r->arg);
}

struct worker_reread *worker_disk_reread(struct worker_disk *disk, const struct worker_chunk *chunk,
                                         struct worker_spec *spec, uint64_t seal, void (*ended)(void *arg),
                                         void *arg)
{
    if (!disk || disk->state != WORKER_DISK_OPEN)
        return NULL;
    struct worker_reread *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    *r = (struct worker_reread){.lane = worker_lane_take(disk),
                                .spec = worker_spec_ref(spec),
                                .disk = disk,
                                .chunk = chunk->id,
                                .first = chunk->first,
                                .seal = seal,
                                .serial = chunk->keep.serial,
                                .unsure = disk->queue && !worker_queue_idle(disk->queue),
                                .ended = ended,
                                .arg = arg};
    r->job = (struct worker_disk_job){.run = reread_run, .arg = r, .loop = disk->loop, .ended = reread_ended};
    worker_lane_submit(r->lane, &r->job);
    return r;
}

// Rows of the layer that is next, as many as there are bytes for.
static uint32_t write_some(struct worker_reread *r, struct worker_chunk *chunk, uint64_t *bytes)
{
    const struct worker_form *form = worker_shape_form(r->spec->shape, r->layer);
    uint64_t each = form->k_wire + form->v_wire;
    uint32_t n = 0;
    for (; r->row < chunk->shape->chunk_tokens && (*bytes >= each || !n); r->row++, n++) {
        worker_layer_rows_set(chunk, chunk->layers[r->layer], r->row, 1, r->image.k[r->layer][r->row],
                              r->image.v[r->layer][r->row]);
        *bytes -= *bytes < each ? *bytes : each;
    }
    return n;
}

// Whether memory has all rows of the layer, so that there is something to put right.
static bool has_rows(const struct worker_chunk *chunk, uint32_t layer)
{
    return chunk->layers[layer] && !worker_chunk_forgotten(chunk, layer) &&
           worker_chunk_rows_at(chunk, layer, 0, chunk->shape->chunk_tokens, WORKER_ROW_PREPARED) ==
               chunk->shape->chunk_tokens;
}

enum worker_reread_result worker_reread_write(struct worker_reread *r, struct worker_chunk *chunk,
                                              uint64_t bytes)
{
    bool wrote = false;
    if (!r->right || chunk->id != r->chunk || !worker_shape_equal(chunk->shape, r->spec->shape))
        return WORKER_REREAD_NONE;
    if (chunk->pins)
        return WORKER_REREAD_PINNED;
    for (; r->layer < chunk->shape->layers; r->layer++, r->row = 0) {
        if (!proto_spec_keeps(r->spec->pb, r->layer) || worker_chunk_cold(chunk, r->layer))
            continue;
        if (!has_rows(chunk, r->layer))
            return WORKER_REREAD_NONE;
        if (!bytes && wrote)
            return WORKER_REREAD_MORE;
        wrote = write_some(r, chunk, &bytes) > 0 || wrote;
        if (r->row < chunk->shape->chunk_tokens)
            return WORKER_REREAD_MORE;
    }
    if (chunk->keep.serial != r->serial ||
        r->unsure) // another file may have been made since, of the memory as it was
        worker_disk_later(r->disk, chunk);
    return WORKER_REREAD_DONE;
}

void worker_reread_free(struct worker_reread *r)
{
    if (!r)
        return;
    worker_image_end(&r->image);
    worker_spec_unref(r->spec);
    free(r);
}
