// SPDX-License-Identifier: Apache-2.0
// Reading a layer's part of a chunk's sealed file into a block of memory, with its checksum compared: beside the loop, by
// a few threads, so that the disk has enough to do at a time; or at once.
#ifndef WORKER_DISK_FETCH_H
#define WORKER_DISK_FETCH_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/loop/loop.h"
#include "worker/files/thread.h"

#define WORKER_FETCH_LANES                                                                                   \
    4u // threads: more than an NVMe disk or a RAID needs for its rate with parts of 1 MiB

struct worker_chunk;
struct worker_disk;
struct worker_lane;
struct worker_shape;

struct worker_fetch { // one layer of one chunk; the caller's, until `ended` has begun
    uint64_t chunk, first;
    struct worker_shape *shape; // a reference of the caller's
    uint32_t layer;
    uint8_t *block;           // that it fills, in the host's memory; what it has after a failure is anything
    void (*ended)(void *arg); // on the loop
    void *arg;
    int result;       // 0, -EBADMSG: the file is damaged, or lacks the rows; or another negative errno
    uint64_t load_ns; // that it took
    // The disk's
    struct worker_disk_job job;
    struct worker_lane *lane;
};

void worker_disk_fetch(struct worker_disk *disk, struct worker_fetch *fetch);

// One of these threads for another job: the one with the least to do; its handle of the directory, for the job alone; and
// back when the job has ended.
struct worker_files;
struct worker_lane *worker_lane_take(struct worker_disk *disk);
struct worker_files *worker_lane_files(const struct worker_lane *lane);
void worker_lane_submit(struct worker_lane *lane, struct worker_disk_job *job);
void worker_lane_give(struct worker_lane *lane);

// Whether such a result says that the disk has lost the rows: other errors may pass.
static inline bool worker_fetch_lost(int result)
{
    return result == -EBADMSG || result == -ENOENT || result == -EIO;
}

// The same here and now. 0 or a negative errno; rows that are lost are noted (worker_disk_lost).
int worker_disk_read_layer(struct worker_disk *disk, struct worker_chunk *chunk, uint32_t layer,
                           uint8_t *block);

#endif
