// SPDX-License-Identifier: Apache-2.0
// On the stream, for one operation:
//
//     tag, arguments up ──▶ own part up, or wait for the device ──▶ graph ──▶ done
//
//     graph of a gather    rank 0: all blocks in ─▶ merge ─▶ result down         others: own block out
//     graph of a sum       agree ─▶ largest of all ─▶ scale ─▶ sum of all ─▶ rank 0: settle ─▶ result down
//
// What differs between two operations of a shape is in the tag and the arguments, so the graph is the same.
#include "reduce/nccl/lane.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/loop/machine.h"
#include "kernels/partial.h"

#define BYTES_MAX ((size_t)1 << 20) // of a step's partials
_Static_assert(sizeof(struct nccl_tag) == NCCL_TAG_BYTES, "blocks are laid out by it");

#define BLOCKS_MAX ((size_t)64 << 20) // of all ranks' blocks on rank 0

// A thread of NCCL's makes each call: started, it takes some tens of microseconds, connecting some
// milliseconds.
#define SETTLE_SPIN_NS (200 * COMMON_NS_PER_US)
#define SETTLE_NAP_US  20u
#define SETTLE_MOST_US 1000u

#define LIBRARY_BYTES ((size_t)64 << 20) // of the device, that NCCL may take for a communicator

enum common_code nccl_room_cuda(cudaError_t error, const char *what, struct common_error *err)
{
    if (error == cudaSuccess)
        return COMMON_OK;
    (void)cudaGetLastError();
    return common_error_set(err,
                            error == cudaErrorMemoryAllocation ? COMMON_RESOURCE_EXHAUSTED
                                                               : COMMON_UNAVAILABLE,
                            "%s: %s", what, cudaGetErrorString(error));
}

enum common_code nccl_room_settle(struct nccl_room *room, ncclResult_t result, const char *what,
                                  struct common_error *err)
{
    uint64_t from = common_clock_ns();
    for (unsigned nap_us = SETTLE_NAP_US; result == ncclInProgress;) {
        if (atomic_load(room->stop))
            return common_error_set(err, COMMON_CANCELLED, "%s: stopped", what);
        if (nccl.CommGetAsyncError(room->comm, &result) != ncclSuccess)
            return common_error_set(err, COMMON_UNAVAILABLE, "%s: the communicator's state cannot be read",
                                    what);
        uint64_t waited = common_clock_ns() - from;
        if (result != ncclInProgress)
            continue;
        if (waited > room->patience_ns)
            return common_error_set(err, COMMON_DEADLINE_EXCEEDED,
                                    "%s: NCCL does not finish: a member has joined, but does not connect",
                                    what);
        if (waited < SETTLE_SPIN_NS) {
            sched_yield();
            continue;
        }
        usleep(nap_us);
        nap_us = nap_us * 2 < SETTLE_MOST_US ? nap_us * 2 : SETTLE_MOST_US;
    }
    if (result == ncclSuccess)
        return COMMON_OK;
    const char *more = nccl.GetLastError(room->comm);
    return common_error_set(err, COMMON_UNAVAILABLE, "%s: %s: %.120s", what, nccl.GetErrorString(result),
                            more ? more : "");
}

// ---- buffers ------------------------------------------------------------------------------------

// The next part of a piece of memory.
static char *lane_cut(char **rest, size_t bytes)
{
    char *part = *rest;
    *rest += bytes;
    return part;
}

static cudaError_t lane_init(const struct nccl_room *room, struct nccl_lane *lane, char **device, char **host)
{
    bool root = room->rank == 0;
    lane->blocks = lane_cut(device, room->stride * (root ? room->ranks : 1));
    lane->agreed =
        lane_cut(device, room->stride); // 3 floats a pair, whose partial has m, s and at least one o
    lane->args = lane_cut(device, room->args_max);
    lane->host_block = lane_cut(host, room->stride);
    lane->host_args = lane_cut(host, room->args_max);
    lane->host_out = root ? lane_cut(host, room->stride) : NULL;
    // Its wait is a thread's sleep: attention may take long
    cudaError_t error =
        cudaEventCreateWithFlags(&lane->packed, cudaEventDisableTiming | cudaEventBlockingSync);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&lane->done, cudaEventDisableTiming);
    return error;
}

// A kernel is loaded when it is first used, which may wait for the device: behind an operation whose peer is
// gone that would be forever, inside CUDA, where nothing can abort it.
static cudaError_t load_kernels(void)
{
    const struct cuda_kernel *const all[] = {&nccl_kernel_merge, &nccl_kernel_agree, &nccl_kernel_scale,
                                             &nccl_kernel_settle};
    cudaError_t error = cudaSuccess;
    struct cudaFuncAttributes attributes;
    for (size_t i = 0; i < sizeof all / sizeof *all && error == cudaSuccess; i++)
        error = cudaFuncGetAttributes(&attributes, all[i]->function);
    return error;
}

// Attention fills the device: of what waits for room on it, operations come first.
static cudaError_t make_stream(cudaStream_t *stream)
{
    int least, greatest;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    return error == cudaSuccess ? cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest)
                                : error;
}

// Whether NCCL will find what it needs. What it does when it does not looks like a broken machine.
static enum common_code check_memory(size_t own, struct common_error *err)
{
    size_t available, total, needed = own + LIBRARY_BYTES;
    enum common_code code = nccl_room_cuda(cudaMemGetInfo(&available, &total), "the device's memory", err);
    if (code == COMMON_OK && available < needed)
        code = common_error_set(
            err, COMMON_RESOURCE_EXHAUSTED,
            "%zu MiB of the device's memory are free, and a communicator may take %zu: give this "
            "worker less --memory",
            available >> 20, needed >> 20);
    return code;
}

enum common_code nccl_room_init(struct nccl_room *room, struct common_error *err)
{
    bool root = room->rank == 0;
    room->bytes_max = BYTES_MAX;
    while (room->bytes_max > 4096 && room->bytes_max * room->ranks > BLOCKS_MAX)
        room->bytes_max /= 2;
    room->stride = NCCL_TAG_BYTES + room->bytes_max;
    room->args_max = (nccl_layout_args_most(root ? room->ranks : 1) + 255) / 256 * 256;
    size_t on_device = room->stride * (root ? room->ranks + 1 : 2) + room->args_max;
    size_t on_host = room->stride * (root ? 2 : 1) + room->args_max;
    cudaError_t error = cudaSetDevice(room->device);
    if (error == cudaSuccess)
        error = load_kernels();
    if (error == cudaSuccess)
        error = make_stream(&room->stream);
    if (error != cudaSuccess)
        return nccl_room_cuda(error, "its stream and kernels", err);
    enum common_code code = check_memory(
        nccl_memory_has(NCCL_LANES * on_device, NCCL_LANES * on_host) ? 0 : NCCL_LANES * on_device, err);
    if (code != COMMON_OK)
        return code;
    error = nccl_memory_take(NCCL_LANES * on_device, NCCL_LANES * on_host, &room->memory);
    char *device = room->memory ? room->memory->device : NULL,
         *host = room->memory ? room->memory->host : NULL;
    for (uint32_t i = 0; i < NCCL_LANES && error == cudaSuccess; i++)
        error = lane_init(room, &room->lanes[i], &device, &host);
    return nccl_room_cuda(error, "its buffers", err);
}

static void *abort_comm(void *comm)
{
    nccl.CommAbort(comm);
    return NULL;
}

void nccl_room_abort(struct nccl_room *room)
{
    pthread_t thread;
    // Abort signals the device first, then waits for graphs that hold operations; destroying these may wait
    // for the device. So both at once.
    bool aside = room->comm && pthread_create(&thread, NULL, abort_comm, room->comm) == 0;
    for (uint32_t i = 0; i < NCCL_LANES; i++) {
        for (uint32_t g = 0; g < NCCL_GRAPHS; g++) {
            if (room->lanes[i].graphs[g].exec)
                cudaGraphExecDestroy(room->lanes[i].graphs[g].exec);
            room->lanes[i].graphs[g] = (struct nccl_graph){0};
        }
    }
    if (aside)
        pthread_join(thread, NULL);
    else if (room->comm)
        nccl.CommAbort(room->comm);
    room->comm = NULL;
}

void nccl_room_fini(struct nccl_room *room)
{
    if (room->stream)
        cudaStreamSynchronize(room->stream);
    for (uint32_t i = 0; i < NCCL_LANES; i++) {
        struct nccl_lane *lane = &room->lanes[i];
        if (lane->packed) {
            cudaEventSynchronize(lane->packed); // a step that was given up may still leave its part here
            cudaEventDestroy(lane->packed);
        }
        if (lane->done)
            cudaEventDestroy(lane->done);
    }
    nccl_memory_give(room->memory);
    if (room->stream)
        cudaStreamDestroy(room->stream);
}

// ---- one operation ------------------------------------------------------------------------------

static cudaError_t lane_launch(const struct nccl_room *room, const struct nccl_lane *lane,
                               const struct cuda_kernel *kernel, uint32_t pairs)
{
    struct cuda_launch what = {.args = (uint64_t)(uintptr_t)lane->args,
                               .partials = (uint64_t)(uintptr_t)lane->blocks,
                               .out = (uint64_t)(uintptr_t)lane->agreed};
    void *arguments[] = {&what};
    const struct dim3 grid = {pairs, 1, 1}, block = {CUDA_THREADS, 1, 1};
    return cudaLaunchKernel(kernel->function, grid, block, arguments, kernel->shared_bytes, room->stream);
}

static enum common_code issue_gather(struct nccl_room *room, const struct nccl_lane *lane, size_t block_bytes,
                                     uint32_t pairs, struct common_error *err)
{
    if (room->rank > 0)
        return nccl_room_settle(room,
                                nccl.Send(lane->blocks, block_bytes, ncclInt8, 0, room->comm, room->stream),
                                "sending", err);
    ncclResult_t result = nccl.GroupStart();
    for (uint32_t r = 1; r < room->ranks && (result == ncclSuccess || result == ncclInProgress); r++)
        result = nccl.Recv(lane->blocks + r * room->stride, block_bytes, ncclInt8, (int)r, room->comm,
                           room->stream);
    ncclResult_t ended = nccl.GroupEnd();
    if (result == ncclSuccess || result == ncclInProgress)
        result = ended;
    enum common_code code = nccl_room_settle(room, result, "gathering", err);
    if (code != COMMON_OK)
        return code;
    return nccl_room_cuda(lane_launch(room, lane, &nccl_kernel_merge, pairs), "merging", err);
}

static enum common_code issue_sum(struct nccl_room *room, const struct nccl_lane *lane, size_t block_bytes,
                                  uint32_t pairs, struct common_error *err)
{
    float *agreed = (float *)lane->agreed, *own = (float *)(lane->blocks + NCCL_TAG_BYTES);
    size_t own_n = (block_bytes - NCCL_TAG_BYTES) / sizeof(float);
    enum common_code code =
        nccl_room_cuda(lane_launch(room, lane, &nccl_kernel_agree, pairs), "agreeing", err);
    if (code == COMMON_OK)
        code = nccl_room_settle(room,
                                nccl.AllReduce(agreed, agreed, 3 * (size_t)pairs + NCCL_PROOFS, ncclFloat,
                                               ncclMax, room->comm, room->stream),
                                "agreeing", err);
    if (code == COMMON_OK)
        code = nccl_room_cuda(lane_launch(room, lane, &nccl_kernel_scale, pairs), "scaling", err);
    if (code == COMMON_OK)
        code = nccl_room_settle(room,
                                nccl.AllReduce(own, own, own_n, ncclFloat, ncclSum, room->comm, room->stream),
                                "adding", err);
    if (code == COMMON_OK && room->rank == 0)
        code = nccl_room_cuda(lane_launch(room, lane, &nccl_kernel_settle, pairs), "settling", err);
    return code;
}

static enum common_code lane_issue(struct nccl_room *room, const struct nccl_lane *lane,
                                   const struct nccl_work *work, struct common_error *err)
{
    size_t block_bytes = NCCL_TAG_BYTES + work->layout.bytes;
    enum common_code code =
        (work->variant == NCCL_VARIANT_SUM ? issue_sum : issue_gather)(room, lane, block_bytes,
                                                                       work->layout.pairs, err);
    if (code != COMMON_OK || room->rank > 0)
        return code;
    return nccl_room_cuda(cudaMemcpyAsync(lane->host_out, lane->blocks, block_bytes, cudaMemcpyDeviceToHost,
                                          room->stream),
                          "taking the result", err);
}

// Names all that issue() passes on.
static uint64_t key_of(const struct nccl_work *work)
{
    return ((uint64_t)work->layout.bytes << 34) ^ ((uint64_t)work->layout.pairs << 2) ^ work->variant;
}

static enum common_code lane_capture(struct nccl_room *room, const struct nccl_lane *lane,
                                     const struct nccl_work *work, cudaGraphExec_t *exec,
                                     struct common_error *err)
{
    cudaGraph_t graph = NULL;
    struct common_error why;
    enum common_code code =
        nccl_room_cuda(cudaStreamBeginCapture(room->stream, cudaStreamCaptureModeThreadLocal), "capturing",
                       err);
    if (code != COMMON_OK)
        return code;
    code = lane_issue(room, lane, work, err);
    enum common_code ended = nccl_room_cuda(cudaStreamEndCapture(room->stream, &graph), "capturing", &why);
    if (code == COMMON_OK && ended != COMMON_OK)
        code = common_error_set(err, ended, "%.200s", why.message);
    if (code == COMMON_OK)
        code = nccl_room_cuda(cudaGraphInstantiate(exec, graph, 0), "capturing", err);
    if (graph)
        cudaGraphDestroy(graph);
    return code;
}

#define TO(state) (1u << NCCL_GRAPH_##state)
static const struct common_machine graph_machine = {
    .name = "graph",
    .n = NCCL_GRAPH_STATES,
    .states = {"free", "seen", "captured"},
    .next = {[NCCL_GRAPH_FREE] = TO(SEEN),
             [NCCL_GRAPH_SEEN] = TO(CAPTURED) | TO(SEEN),
             [NCCL_GRAPH_CAPTURED] = TO(SEEN)},
};
#undef TO

static void graph_set_state(struct nccl_graph *graph, enum nccl_graph_state state)
{
    common_machine_move(&graph_machine, graph->state, state);
    graph->state = state;
}

static enum common_code issue_or_replay(struct nccl_room *room, struct nccl_lane *lane,
                                        const struct nccl_work *work, struct common_error *err)
{
    uint64_t key = key_of(work);
    struct nccl_graph *graph = NULL, *oldest = &lane->graphs[0];
    for (uint32_t i = 0; i < NCCL_GRAPHS; i++) {
        if (lane->graphs[i].state != NCCL_GRAPH_FREE && lane->graphs[i].key == key)
            graph = &lane->graphs[i];
        if (lane->graphs[i].used < oldest->used)
            oldest = &lane->graphs[i];
    }
    if (!graph) {
        if (oldest->state == NCCL_GRAPH_CAPTURED)
            cudaGraphExecDestroy(oldest->exec);
        graph_set_state(oldest, NCCL_GRAPH_SEEN);
        oldest->exec = NULL;
        oldest->key = key;
        oldest->used = ++room->clock;
        return lane_issue(room, lane, work, err);
    }
    graph->used = ++room->clock;
    if (graph->state == NCCL_GRAPH_SEEN) {
        enum common_code code = lane_capture(room, lane, work, &graph->exec, err);
        if (code != COMMON_OK)
            return code;
        graph_set_state(graph, NCCL_GRAPH_CAPTURED);
    }
    return nccl_room_cuda(cudaGraphLaunch(graph->exec, room->stream), "an operation", err);
}

enum common_code nccl_lane_start(struct nccl_room *room, struct nccl_lane *lane, const struct nccl_work *work,
                                 struct common_error *err)
{
    struct nccl_args *args = (struct nccl_args *)lane->host_args;
    size_t up = NCCL_TAG_BYTES;
    memcpy(args, work->layout.args, work->layout.args_bytes);
    args->stride = room->stride;
    args->tag.rank = room->rank;
    args->tag.present = work->source != NCCL_SOURCE_ABSENT;
    memcpy(lane->host_block, &args->tag, sizeof args->tag);
    if (work->source == NCCL_SOURCE_HOST) {
        memcpy(lane->host_block + NCCL_TAG_BYTES, work->image->data, work->layout.bytes);
        up += work->layout.bytes;
    }
    cudaError_t error =
        cudaMemcpyAsync(lane->blocks, lane->host_block, up, cudaMemcpyHostToDevice, room->stream);
    if (error == cudaSuccess && (room->rank == 0 || work->variant == NCCL_VARIANT_SUM))
        error = cudaMemcpyAsync(lane->args, lane->host_args, work->layout.args_bytes, cudaMemcpyHostToDevice,
                                room->stream);
    if (error == cudaSuccess && work->source == NCCL_SOURCE_DEVICE)
        error = cudaStreamWaitEvent(room->stream, lane->packed, 0);
    enum common_code code = nccl_room_cuda(error, "an operation", err);
    if (code == COMMON_OK)
        code = issue_or_replay(room, lane, work, err);
    if (code == COMMON_OK)
        code = nccl_room_cuda(cudaEventRecord(lane->done, room->stream), "an operation", err);
    return code;
}

void nccl_lane_finish(const struct nccl_room *room, const struct nccl_lane *lane, struct nccl_work *work)
{
    work->code = COMMON_OK;
    if (room->rank > 0)
        return;
    const struct nccl_tag *tag = (const struct nccl_tag *)lane->host_out;
    if (tag->verdict) {
        work->code = COMMON_INTERNAL;
        if (tag->verdict == NCCL_SOME_RANK)
            snprintf(work->text, sizeof work->text, "some rank sent numbers of another step");
        else
            snprintf(work->text, sizeof work->text, "rank %llu sent numbers of another step",
                     (unsigned long long)tag->verdict - 1);
    } else if (tag->absentee) {
        work->code = COMMON_FAILED_PRECONDITION;
        snprintf(work->text, sizeof work->text, "a rank had no part in the step");
    } else {
        memcpy(work->out->data, lane->host_out + NCCL_TAG_BYTES, work->layout.bytes);
    }
}
