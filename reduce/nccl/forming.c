// SPDX-License-Identifier: Apache-2.0
// How a communicator comes to be, on its thread:
//
//     buffers ──▶ id ──▶ go ──▶ join ──▶ try out
//                 │      │       │          └─ both variants at three sizes: makes the connections, and
//                 │      │       │             measures them on rank 0
//                 │      │       └─ all ranks, in any order, within patience; NCCL connects within the first
//                 │      │          calls, so a member may be missed there, too
//                 │      └─ rank 0: once the id has been sent to the others
//                 └─ rank 0 makes it, the others have it from a frame
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "kernels/partial.h"
#include "reduce/nccl/comm_private.h"
#include "reduce/nccl/quiet.h"

#define TRIAL_ROUNDS  6u // of each size and variant, the first is not counted
#define TRIAL_DV      128u
#define TRIAL_SPIN_NS COMMON_NS_PER_MS // longer than that a measured operation takes where it matters

static enum common_code make_id(struct nccl_comm *comm, struct common_error *err)
{
    ncclUniqueId id;
    ncclResult_t result = nccl.GetUniqueId(&id);
    if (result != ncclSuccess)
        return common_error_set(err, COMMON_UNAVAILABLE, "no id: %s", nccl.GetErrorString(result));
    pthread_mutex_lock(&comm->lock);
    memcpy(comm->id, id.internal, sizeof comm->id);
    comm->has_id = true;
    nccl_comm_tell(comm);
    pthread_mutex_unlock(&comm->lock);
    return COMMON_OK;
}

static enum common_code await_go(struct nccl_comm *comm, struct common_error *err)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->room.rank == 0 && !comm->go && !comm->released)
        pthread_cond_wait(&comm->changed, &comm->lock);
    bool released = comm->released;
    pthread_mutex_unlock(&comm->lock);
    return released ? common_error_set(err, COMMON_CANCELLED, "it is no longer needed") : COMMON_OK;
}

static enum common_code comm_join(struct nccl_comm *comm, struct common_error *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    struct nccl_room *room = &comm->room;
    memcpy(id.internal, comm->id, sizeof id.internal);
    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = 4;        // messages are small, and attention needs the multiprocessors
    config.cgaClusterSize = 0; // each block where there is room, not all of them beside each other at once
    ncclResult_t result =
        nccl.CommInitRankConfig(&room->comm, (int)room->ranks, id, (int)room->rank, &config);
    if (!room->comm)
        return common_error_set(err, COMMON_UNAVAILABLE, "joining: %s", nccl.GetErrorString(result));
    uint64_t until = common_clock_after(comm->options.patience_ns);
    while (result == ncclInProgress && !atomic_load(&comm->stop)) {
        if (common_clock_ns() > until)
            return common_error_set(err, COMMON_DEADLINE_EXCEEDED, "not all members joined in time");
        usleep(1000);
        if (nccl.CommGetAsyncError(room->comm, &result) != ncclSuccess)
            return common_error_set(err, COMMON_UNAVAILABLE, "joining: its state cannot be read");
    }
    return nccl_room_settle(room, result, "joining", err);
}

// Waits for an event, as long as patience lasts.
static enum common_code await(struct nccl_comm *comm, cudaEvent_t event, struct common_error *err)
{
    uint64_t from = common_clock_ns(), until = common_clock_after(comm->options.patience_ns);
    cudaError_t error;
    ncclResult_t result = ncclSuccess;
    while ((error = cudaEventQuery(event)) == cudaErrorNotReady) {
        if (atomic_load(&comm->stop))
            return common_error_set(err, COMMON_CANCELLED, "stopped");
        if (nccl.CommGetAsyncError(comm->room.comm, &result) != ncclSuccess ||
            (result != ncclSuccess && result != ncclInProgress))
            return common_error_set(err, COMMON_UNAVAILABLE, "%s", nccl.GetErrorString(result));
        uint64_t now = common_clock_ns();
        if (now > until)
            return common_error_set(err, COMMON_DEADLINE_EXCEEDED, "an operation does not finish");
        if (now - from > TRIAL_SPIN_NS)
            usleep(100);
    }
    return nccl_room_cuda(error, "an operation", err);
}

// One operation of a made-up step; all ranks run the same ones in the same order.
static enum common_code try_one(struct nccl_comm *comm, struct nccl_work *work, struct common_error *err)
{
    struct nccl_lane *lane = &comm->room.lanes[0];
    enum common_code code = nccl_lane_start(&comm->room, lane, work, err);
    if (code == COMMON_OK)
        code = await(comm, lane->done, err);
    if (code != COMMON_OK)
        return code;
    nccl_lane_finish(&comm->room, lane, work);
    if (work->code != COMMON_OK)
        return common_error_set(err, COMMON_UNAVAILABLE, "testing it: %s", work->text);
    return COMMON_OK;
}

// Runs both variants, which also makes the connections, and measures them on rank 0.
static enum common_code try_out(struct nccl_comm *comm, struct common_error *err)
{
    static const uint32_t heads[NCCL_TRIALS] = {8, 32, 128};
    nccl_comm_count(comm, true);
    for (uint32_t s = 0; s < NCCL_TRIALS; s++) {
        struct proto_step_item item = {.rows = 1, .q_heads = heads[s], .v_dim = TRIAL_DV};
        struct proto_step step = {.items = &item, .n_items = 1};
        size_t bytes = kernels_partial_bytes(1, heads[s], TRIAL_DV);
        step.collective.generation = comm->options.generation;
        if (bytes > comm->room.bytes_max)
            continue;
        comm->trials.bytes[s] = bytes;
        for (int v = 0; v < NCCL_VARIANTS; v++) {
            struct nccl_layout layout;
            if (!nccl_layout_make(&layout, &step, bytes, comm->parents,
                                  comm->room.rank == 0 ? comm->room.ranks : 1))
                return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for its test");
            struct nccl_work work = {.variant = (enum nccl_variant)v,
                                     .layout = layout,
                                     .source = NCCL_SOURCE_HOST,
                                     .image = common_blob_new(bytes),
                                     .out = common_blob_new(bytes)};
            enum common_code code = COMMON_OK;
            double best = 0;
            if (!work.image || !work.out)
                code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for its test");
            else
                memset(work.image->data, 0, bytes);
            for (uint32_t i = 0; code == COMMON_OK && i < TRIAL_ROUNDS; i++) {
                uint64_t from = common_clock_ns();
                code = try_one(comm, &work, err);
                double us = (double)(common_clock_ns() - from) / 1e3;
                best = i > 0 && (best == 0 || us < best) ? us : best;
            }
            comm->trials.us[s][v] = best;
            nccl_layout_free(&work.layout);
            common_blob_unref(work.image);
            common_blob_unref(work.out);
            if (code != COMMON_OK)
                return code;
        }
    }
    return COMMON_OK;
}

static void log_ready(const struct nccl_comm *comm, uint64_t took_ns)
{
    char table[160] = "";
    for (uint32_t s = 0, at = 0; comm->room.rank == 0 && s < NCCL_TRIALS && at < sizeof table; s++)
        at += (uint32_t)snprintf(table + at, sizeof table - at, " trial_%zu=gather:%.1fus,sum:%.1fus",
                                 comm->trials.bytes[s], comm->trials.us[s][NCCL_VARIANT_GATHER],
                                 comm->trials.us[s][NCCL_VARIANT_SUM]);
    common_log_info("nccl: communicator ready plan=%016" PRIx64 " rank=%u ranks=%u took_ms=%" PRIu64 "%s",
                    comm->options.plan, comm->room.rank, comm->room.ranks, took_ns / COMMON_NS_PER_MS, table);
}

// Inside of what others' operations keep out of (quiet.h).
static enum common_code join_and_try(struct nccl_comm *comm, struct common_error *err)
{
    enum common_code code = comm_join(comm, err);
    if (code == COMMON_OK)
        code = try_out(comm, err);
    nccl_comm_count(comm, false);
    return code;
}

static enum common_code make_room(struct nccl_comm *comm, struct common_error *err)
{
    return nccl_room_init(&comm->room, err);
}

static enum common_code quietly(struct nccl_comm *comm,
                                enum common_code (*run)(struct nccl_comm *comm, struct common_error *err),
                                struct common_error *err)
{
    enum common_code code;
    if (nccl_quiet_enter(common_clock_after(comm->options.patience_ns), &comm->stop))
        code = run(comm, err);
    else if (atomic_load(&comm->stop))
        code = common_error_set(err, COMMON_CANCELLED, "it is no longer needed");
    else
        code = common_error_set(err, COMMON_DEADLINE_EXCEEDED, "operations of other plans do not finish");
    nccl_quiet_leave();
    return code;
}

enum common_code nccl_comm_form(struct nccl_comm *comm, struct common_error *err)
{
    uint64_t began = common_clock_ns();
    enum common_code code = quietly(comm, make_room, err);
    if (code == COMMON_OK && !comm->has_id)
        code = make_id(comm, err);
    if (code == COMMON_OK)
        code = await_go(comm, err);
    if (code == COMMON_OK)
        code = quietly(comm, join_and_try, err);
    if (code == COMMON_OK)
        log_ready(comm, common_clock_ns() - began);
    return code;
}
