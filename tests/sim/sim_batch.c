// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/store/restore.h"

struct coordinator_batch *coordinator_batch_new(void)
{
    struct coordinator_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        abort();
    return batch;
}

void coordinator_batch_free(struct coordinator_batch *batch)
{
    if (!batch)
        return;
    for (uint32_t i = 0; i < batch->n; i++)
        free(batch->ops[i].bytes);
    free(batch->ops);
    free(batch);
}

struct sim_op *sim_batch_add(struct coordinator_batch *batch, enum sim_op_kind kind, const char *name,
                             uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    if (batch->n == batch->cap) {
        batch->cap = batch->cap ? batch->cap * 2 : 4;
        batch->ops = realloc(batch->ops, batch->cap * sizeof(*batch->ops));
        if (!batch->ops)
            abort();
    }
    struct sim_op *op = &batch->ops[batch->n++];
    *op = (struct sim_op){.kind = kind, .a = a, .b = b, .c = c, .d = d};
    snprintf(op->name, sizeof op->name, "%s", name);
    return op;
}

void coordinator_batch_term(struct coordinator_batch *batch, uint64_t term)
{
    sim_batch_add(batch, SIM_OP_META, "term", term, 0, 0, 0);
}

void coordinator_batch_accept(struct coordinator_batch *batch)
{
    sim_batch_add(batch, SIM_OP_META, COORDINATOR_RESTORED_KEY, 0, 0, 0, 0);
}

void coordinator_batch_worker(struct coordinator_batch *batch, const char *name, uint64_t instance)
{
    sim_batch_add(batch, SIM_OP_WORKER, name, instance, 0, 0, 0);
}

void coordinator_batch_worker_drop(struct coordinator_batch *batch, const char *name)
{
    sim_batch_add(batch, SIM_OP_WORKER_DROP, name, 0, 0, 0, 0);
}

void coordinator_batch_session(struct coordinator_batch *batch, uint64_t session, const char *name,
                               const void *spec, size_t spec_bytes, uint64_t incarnation, uint64_t epoch,
                               uint32_t tenant)
{
    struct sim_op *op = sim_batch_add(batch, SIM_OP_SESSION, name, session, incarnation, epoch, tenant);
    op->bytes = malloc(spec_bytes ? spec_bytes : 1);
    if (!op->bytes)
        abort();
    memcpy(op->bytes, spec, spec_bytes);
    op->n_bytes = spec_bytes;
}

void coordinator_batch_tenant(struct coordinator_batch *batch, uint32_t id, const char *name)
{
    sim_batch_add(batch, SIM_OP_TENANT, name, id, 0, 0, 0);
}

void coordinator_batch_token(struct coordinator_batch *batch, const struct coordinator_token_row *row)
{
    struct sim_op *op = sim_batch_add(batch, SIM_OP_TOKEN, row->name, row->id, 0, 0, 0);
    op->bytes = malloc(sizeof(*row));
    if (!op->bytes)
        abort();
    memcpy(op->bytes, row, sizeof(*row));
    op->n_bytes = sizeof(*row);
}

void coordinator_batch_token_used(struct coordinator_batch *batch, uint64_t id, uint64_t used_s)
{
    sim_batch_add(batch, SIM_OP_TOKEN_USED, "", id, used_s, 0, 0);
}

void coordinator_batch_token_drop(struct coordinator_batch *batch, uint64_t id)
{
    sim_batch_add(batch, SIM_OP_TOKEN_DROP, "", id, 0, 0, 0);
}

void coordinator_batch_quota(struct coordinator_batch *batch, uint32_t tenant, const char *name, uint64_t max)
{
    sim_batch_add(batch, SIM_OP_QUOTA, name, tenant, max, 0, 0);
}

void coordinator_batch_drain(struct coordinator_batch *batch, const char *worker, const void *order,
                             size_t bytes)
{
    struct sim_op *op = sim_batch_add(batch, SIM_OP_DRAIN, worker, 0, 0, 0, 0);
    op->bytes = malloc(bytes + 1);
    if (!op->bytes)
        abort();
    memcpy(op->bytes, order, bytes);
    op->n_bytes = bytes;
}

void coordinator_batch_resume(struct coordinator_batch *batch, const char *worker)
{
    sim_batch_add(batch, SIM_OP_RESUME, worker, 0, 0, 0, 0);
}

void coordinator_batch_key(struct coordinator_batch *batch, uint64_t session, uint64_t key)
{
    sim_batch_add(batch, SIM_OP_KEY, "", session, key, 0, 0);
}

void coordinator_batch_cut(struct coordinator_batch *batch, uint64_t session, uint64_t cut)
{
    sim_batch_add(batch, SIM_OP_CUT, "", session, cut, 0, 0);
}

void coordinator_batch_floor(struct coordinator_batch *batch, uint64_t session, uint64_t floor)
{
    sim_batch_add(batch, SIM_OP_FLOOR, "", session, floor, 0, 0);
}

void coordinator_batch_prefix(struct coordinator_batch *batch, uint64_t session,
                              const struct coordinator_prefix_row *row)
{
    struct sim_op *op = sim_batch_add(batch, SIM_OP_PREFIX, "", session, row->incarnation, row->used_ns,
                                      row->ttl_ns << 1 | row->pinned);
    op->bytes = malloc(row->bytes + 1);
    if (!op->bytes)
        abort();
    memcpy(op->bytes, row->hashes, row->bytes);
    op->n_bytes = row->bytes;
}

void coordinator_batch_prefix_used(struct coordinator_batch *batch, uint64_t session, uint64_t used_ns)
{
    sim_batch_add(batch, SIM_OP_PREFIX_USED, "", session, used_ns, 0, 0);
}

void coordinator_batch_numbers(struct coordinator_batch *batch, uint64_t session, uint64_t incarnation,
                               uint64_t epoch)
{
    sim_batch_add(batch, SIM_OP_NUMBERS, "", session, incarnation, epoch, 0);
}

void coordinator_batch_session_drop(struct coordinator_batch *batch, uint64_t session)
{
    sim_batch_add(batch, SIM_OP_SESSION_DROP, "", session, 0, 0, 0);
    sim_batch_add(batch, SIM_OP_CHUNK_DROP, "", session, 0, UINT32_MAX, 0);
}

void coordinator_batch_member(struct coordinator_batch *batch, uint64_t session, const char *worker)
{
    sim_batch_add(batch, SIM_OP_MEMBER, worker, session, 0, 0, 0);
}

void coordinator_batch_member_drop(struct coordinator_batch *batch, uint64_t session, const char *worker)
{
    sim_batch_add(batch, SIM_OP_MEMBER_DROP, worker, session, 0, 0, 0);
}

void coordinator_batch_chunk(struct coordinator_batch *batch, uint64_t session, uint32_t index, uint64_t id,
                             bool lost, const char *holder)
{
    sim_batch_add(batch, SIM_OP_CHUNK, holder, session, index, id, lost);
}

void coordinator_batch_follower(struct coordinator_batch *batch, uint64_t session, uint32_t index,
                                const char *holder)
{
    sim_batch_add(batch, SIM_OP_FOLLOWER, holder, session, index, 0, 0);
}

void coordinator_batch_copy_lost(struct coordinator_batch *batch, uint64_t session, uint32_t index,
                                 uint64_t id, const char *holder)
{
    sim_batch_add(batch, SIM_OP_COPY_LOST, holder, session, index, id, 0);
}

void coordinator_batch_seal(struct coordinator_batch *batch, uint64_t session, uint32_t index, uint64_t id,
                            uint64_t seal)
{
    sim_batch_add(batch, SIM_OP_SEAL, "", session, index, id, seal);
}

void coordinator_batch_chunk_lost(struct coordinator_batch *batch, uint64_t session, uint32_t index,
                                  uint64_t id)
{
    sim_batch_add(batch, SIM_OP_CHUNK_LOST, "", session, index, id, 0);
}

void coordinator_batch_chunk_drop(struct coordinator_batch *batch, uint64_t session, uint32_t index)
{
    sim_batch_add(batch, SIM_OP_CHUNK_DROP, "", session, index, index, 0);
}

void coordinator_batch_range(struct coordinator_batch *batch, uint64_t session, uint32_t layer,
                             uint64_t first, uint64_t count)
{
    sim_batch_add(batch, SIM_OP_RANGE, "", session, layer, first, count);
}

void coordinator_batch_clip(struct coordinator_batch *batch, uint64_t session, uint64_t length)
{
    sim_batch_add(batch, SIM_OP_CLIP, "", session, length, 0, 0);
}
