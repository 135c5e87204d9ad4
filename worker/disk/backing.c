// SPDX-License-Identifier: Apache-2.0
// The disk as the store and the sessions see it (worker/store/backing.h).
#include "worker/disk/fetch.h"
#include "worker/disk/state.h"

static struct worker_disk *disk_of(struct worker_backing *backing)
{
    return (struct worker_disk *)backing; // its first member
}

static enum common_code take_rows(struct worker_backing *backing, const struct worker_rows *pieces,
                                  uint32_t n, enum worker_row to, struct common_error *err)
{
    return worker_disk_rows(disk_of(backing), pieces, n, to, err);
}

static void take_states(struct worker_backing *backing, struct worker_chunk *chunk, uint32_t layer,
                        uint32_t row, uint32_t count, enum worker_row from, enum worker_row to)
{
    worker_disk_states(disk_of(backing), chunk, layer, row, count, from, to);
}

static enum common_code take_chunk(struct worker_backing *backing, struct worker_chunk *chunk,
                                   struct common_error *err)
{
    return worker_disk_chunk(disk_of(backing), chunk, err);
}

static void forget_chunk(struct worker_backing *backing, struct worker_chunk *chunk)
{
    worker_disk_forget(disk_of(backing), chunk);
}

static int read_layer(struct worker_backing *backing, struct worker_chunk *chunk, uint32_t layer,
                      uint8_t *block)
{
    return worker_disk_read_layer(disk_of(backing), chunk, layer, block);
}

static enum common_code take_layout(struct worker_backing *backing, struct worker_session *session,
                                    bool shares, struct common_error *err)
{
    return worker_disk_layout(disk_of(backing), session, shares, err);
}

static void drop_session(struct worker_backing *backing, struct worker_session *session)
{
    worker_disk_drop(disk_of(backing), session);
}

const struct worker_backing_ops worker_disk_backing_ops = {
    .rows = take_rows,
    .states = take_states,
    .chunk = take_chunk,
    .forget = forget_chunk,
    .read_layer = read_layer,
    .layout = take_layout,
    .drop = drop_session,
};
