// SPDX-License-Identifier: Apache-2.0
#include "worker/disk/fetch.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "worker/disk/state.h"
#include "worker/store/cold.h"

struct worker_lane {
    struct worker_disk_thread *thread;
    struct worker_files *files;
    struct worker_image_room room; // the thread's
    uint32_t under_way;
};

struct target { // where the rows of a part go
    const struct worker_form *form;
    uint8_t *block;
};

static void take_rows(void *arg, bool of_v, uint32_t row, uint32_t count, const uint8_t *rows)
{
    const struct target *to = arg;
    worker_form_scatter(to->form, of_v, row, count, rows, to->block);
}

static int read_layer(struct worker_files *files, uint64_t chunk, uint64_t first,
                      const struct worker_shape *shape, uint32_t layer, struct worker_image_room *room,
                      uint8_t *block)
{
    struct target to = {worker_shape_form(shape, layer), block};
    return worker_image_layer_read(files, chunk, first, shape, layer, room, take_rows, &to);
}

static void fetch_run(void *arg, const atomic_bool *stop)
{
    struct worker_fetch *fetch = arg;
    uint64_t began_ns = common_clock_ns();
    (void)stop; // one layer
    fetch->result = read_layer(fetch->lane->files, fetch->chunk, fetch->first, fetch->shape, fetch->layer,
                               &fetch->lane->room, fetch->block);
    fetch->load_ns = common_clock_ns() - began_ns;
}

static void fetch_ended(void *arg)
{
    struct worker_fetch *fetch = arg;
    worker_lane_give(fetch->lane);
    fetch->ended(fetch->arg);
}

void worker_disk_fetch(struct worker_disk *disk, struct worker_fetch *fetch)
{
    fetch->lane = worker_lane_take(disk);
    fetch->job =
        (struct worker_disk_job){.run = fetch_run, .arg = fetch, .loop = disk->loop, .ended = fetch_ended};
    worker_lane_submit(fetch->lane, &fetch->job);
}

struct worker_lane *worker_lane_take(struct worker_disk *disk)
{
    struct worker_lane *lane = &disk->lanes[0];
    for (uint32_t i = 1; i < WORKER_FETCH_LANES; i++)
        if (disk->lanes[i].under_way < lane->under_way)
            lane = &disk->lanes[i];
    lane->under_way++;
    return lane;
}

struct worker_files *worker_lane_files(const struct worker_lane *lane)
{
    return lane->files;
}

void worker_lane_submit(struct worker_lane *lane, struct worker_disk_job *job)
{
    worker_disk_thread_submit(lane->thread, job);
}

void worker_lane_give(struct worker_lane *lane)
{
    lane->under_way--;
}

int worker_disk_read_layer(struct worker_disk *disk, struct worker_chunk *chunk, uint32_t layer,
                           uint8_t *block)
{
    if (!disk || disk->state == WORKER_DISK_CLOSED)
        return -ENOENT;
    struct worker_image_room room = {0};
    int result = read_layer(disk->reader ? disk->reader : disk->files, worker_chunk_id(chunk),
                            worker_chunk_first(chunk), worker_chunk_shape(chunk), layer, &room, block);
    free(room.bytes);
    if (worker_fetch_lost(result))
        worker_disk_lost(disk, chunk);
    return result;
}

enum common_code worker_disk_lanes_new(struct worker_disk *disk)
{
    disk->lanes = calloc(WORKER_FETCH_LANES, sizeof *disk->lanes);
    for (uint32_t i = 0; disk->lanes && i < WORKER_FETCH_LANES; i++)
        if (worker_disk_thread_new(&disk->lanes[i].thread) != COMMON_OK ||
            !(disk->lanes[i].files = disk->files->ops->again(disk->files)))
            return COMMON_RESOURCE_EXHAUSTED;
    return disk->lanes ? COMMON_OK : COMMON_RESOURCE_EXHAUSTED;
}

void worker_disk_lanes_free(struct worker_disk *disk)
{
    for (uint32_t i = 0; disk->lanes && i < WORKER_FETCH_LANES; i++) {
        worker_disk_thread_free(disk->lanes[i].thread);
        free(disk->lanes[i].room.bytes);
        if (disk->lanes[i].files)
            disk->lanes[i].files->ops->close(disk->lanes[i].files);
    }
    free(disk->lanes);
    disk->lanes = NULL;
}
