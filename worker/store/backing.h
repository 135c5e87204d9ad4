// SPDX-License-Identifier: Apache-2.0
// What keeps K and V beside memory: files (disk/disk.h). The store and the sessions say to it what has
// changed. They call it through this table, because it is built on them. A NULL one keeps nothing: all of
// these succeed.
#ifndef WORKER_BACKING_H
#define WORKER_BACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "worker/store/row.h"

struct worker_backing;
struct worker_chunk;
struct worker_rows;
struct worker_session;

struct worker_backing_ops { // all of them: as the function of disk/disk.h that is named
    enum common_code (*rows)(struct worker_backing *backing, const struct worker_rows *pieces, uint32_t n,
                             enum worker_row to, struct common_error *err); // worker_disk_rows
    void (*states)(struct worker_backing *backing, struct worker_chunk *chunk, uint32_t layer, uint32_t row,
                   uint32_t count, enum worker_row from, enum worker_row to); // worker_disk_states
    enum common_code (*chunk)(struct worker_backing *backing, struct worker_chunk *chunk,
                              struct common_error *err);                        // worker_disk_chunk
    void (*forget)(struct worker_backing *backing, struct worker_chunk *chunk); // worker_disk_forget
    int (*read_layer)(struct worker_backing *backing, struct worker_chunk *chunk, uint32_t layer,
                      uint8_t *block); // worker_disk_read_layer (disk/fetch.h)
    enum common_code (*layout)(struct worker_backing *backing, struct worker_session *session, bool shares,
                               struct common_error *err);                         // worker_disk_layout
    void (*drop)(struct worker_backing *backing, struct worker_session *session); // worker_disk_drop
};

struct worker_backing { // begins struct worker_disk
    const struct worker_backing_ops *ops;
};

static inline enum common_code worker_backing_rows(struct worker_backing *backing,
                                                   const struct worker_rows *pieces, uint32_t n,
                                                   enum worker_row to, struct common_error *err)
{
    return backing ? backing->ops->rows(backing, pieces, n, to, err) : COMMON_OK;
}

static inline void worker_backing_states(struct worker_backing *backing, struct worker_chunk *chunk,
                                         uint32_t layer, uint32_t row, uint32_t count, enum worker_row from,
                                         enum worker_row to)
{
    if (backing)
        backing->ops->states(backing, chunk, layer, row, count, from, to);
}

static inline enum common_code worker_backing_chunk(struct worker_backing *backing,
                                                    struct worker_chunk *chunk, struct common_error *err)
{
    return backing ? backing->ops->chunk(backing, chunk, err) : COMMON_OK;
}

static inline void worker_backing_forget(struct worker_backing *backing, struct worker_chunk *chunk)
{
    if (backing)
        backing->ops->forget(backing, chunk);
}

static inline enum common_code worker_backing_layout(struct worker_backing *backing,
                                                     struct worker_session *session, bool shares,
                                                     struct common_error *err)
{
    return backing ? backing->ops->layout(backing, session, shares, err) : COMMON_OK;
}

static inline void worker_backing_drop(struct worker_backing *backing, struct worker_session *session)
{
    if (backing)
        backing->ops->drop(backing, session);
}

#endif
