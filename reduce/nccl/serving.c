// SPDX-License-Identifier: Apache-2.0
// How a communicator's thread runs operations: it starts what is next in the sequence, gives back what is
// done, and says what is late.
//
//     start ──▶ own part is there? ──▶ other ranks' parts, the merge ──▶ give back
//                 │ it sleeps in the       │ it asks the device, since that may never end:
//                 │ device: attention      │ rank 0 without a pause at first, then with pauses that are
//                 │ always ends            │ an eighth of the wait so far
#include <inttypes.h>
#include <string.h>
#include <sys/prctl.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "reduce/nccl/comm_private.h"

#define SPIN_NS                                                                                              \
    (200 * COMMON_NS_PER_US) // how long rank 0 asks without a pause, from when its own part is there
#define NAP_NS      (20 * COMMON_NS_PER_US)
#define NAP_MOST_NS COMMON_NS_PER_MS
#define NAP_SHARE   8u     // of the wait so far: by how much an operation's end may be seen later
#define SLACK_NS    1000ul // of this thread's timers; the kernel's 50 µs are as long as an operation
#define WARN_NS     COMMON_NS_PER_S // an operation that takes longer is named in the log

// The next operation, if it was given and a lane is free. Takes it out of the list.
static struct nccl_work *take_next(struct nccl_comm *comm, bool *condemned)
{
    struct nccl_work *work = NULL;
    pthread_mutex_lock(&comm->lock);
    *condemned = comm->condemned;
    if (!comm->condemned && comm->given && comm->given->sequence == comm->next &&
        comm->n_running < NCCL_LANES) {
        work = comm->given;
        comm->given = work->next;
        work->next = NULL;
    }
    pthread_mutex_unlock(&comm->lock);
    return work;
}

static enum common_code start_next(struct nccl_comm *comm, bool *any, struct common_error *err)
{
    bool condemned;
    struct nccl_work *work = take_next(comm, &condemned);
    *any = work != NULL;
    if (condemned)
        return common_error_set(err, COMMON_UNAVAILABLE, "%s", comm->why.message);
    if (!work)
        return COMMON_OK;
    work->lane = &comm->room.lanes[comm->next % NCCL_LANES];
    comm->running[comm->n_running++] = work;
    comm->next++;
    nccl_comm_count(comm, true);
    work->since_ns = common_clock_ns();
    return nccl_lane_start(&comm->room, work->lane, work, err);
}

// Gives back the oldest that runs, if it has ended.
static enum common_code end_first(struct nccl_comm *comm, bool *any, struct common_error *err)
{
    struct nccl_work *work = comm->running[0];
    *any = false;
    if (comm->n_running == 0)
        return COMMON_OK;
    cudaError_t error = cudaEventQuery(work->lane->done);
    if (error == cudaErrorNotReady)
        return COMMON_OK;
    enum common_code code = nccl_room_cuda(error, "an operation", err);
    if (code != COMMON_OK)
        return code;
    nccl_lane_finish(&comm->room, work->lane, work);
    *any = true;
    comm->n_running--;
    memmove(comm->running, comm->running + 1, comm->n_running * sizeof *comm->running);
    if (comm->n_running > 0)
        comm->running[0]->since_ns = common_clock_ns();
    else
        nccl_comm_count(comm, false);
    if (work->code == COMMON_INTERNAL)
        code = common_error_set(err, COMMON_INTERNAL, "%s", work->text);
    pthread_mutex_lock(&comm->lock);
    comm->completed = work->sequence;
    nccl_comm_hand_back(comm, work);
    pthread_mutex_unlock(&comm->lock);
    return code;
}

// An operation that was given, but not the one before it: the frame that named that one may have been lost
// on its way here.
static void watch_gap(struct nccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const struct nccl_work *given = comm->given;
    bool gap = comm->n_running == 0 && given && given->sequence > comm->next;
    uint64_t now = common_clock_ns(), missing = comm->next, step = gap ? given->step : 0;
    if (!gap)
        comm->gap_since_ns = 0;
    else if (comm->gap_since_ns == 0)
        comm->gap_since_ns = now;
    bool late = gap && now - comm->gap_since_ns > WARN_NS && comm->gap_warned != missing;
    if (late)
        comm->gap_warned = missing;
    pthread_mutex_unlock(&comm->lock);
    if (late)
        common_log_warn("nccl: this rank never received an operation plan=%016" PRIx64
                        " rank=%u sequence=%" PRIu64 ": step=%" PRIu64 " waits for it",
                        comm->options.plan, comm->room.rank, missing, step);
}

// Is what runs late? Names the operation, and ends the communicator when patience is over.
static enum common_code watch(struct nccl_comm *comm, struct common_error *err)
{
    struct nccl_work *work = comm->running[0];
    ncclResult_t result = ncclSuccess;
    if (comm->n_running == 0)
        return COMMON_OK;
    uint64_t now = common_clock_ns(), late_ns = now - work->since_ns;
    if (late_ns < NAP_MOST_NS)
        return COMMON_OK;
    if (nccl.CommGetAsyncError(comm->room.comm, &result) != ncclSuccess ||
        (result != ncclSuccess && result != ncclInProgress)) {
        const char *more = nccl.GetLastError(comm->room.comm);
        return common_error_set(err, COMMON_UNAVAILABLE, "%s: %.120s", nccl.GetErrorString(result),
                                more ? more : "");
    }
    bool over = late_ns >= comm->options.patience_ns;
    if (!over && (late_ns < WARN_NS || work->warned))
        return COMMON_OK;
    work->warned = true;
    common_log_warn("nccl: an operation is stuck plan=%016" PRIx64 " rank=%u step=%" PRIu64
                    " sequence=%" PRIu64 " late_ms=%" PRIu64
                    ": its own part is ready, and it waits for other ranks",
                    comm->options.plan, comm->room.rank, work->step, work->sequence,
                    late_ns / COMMON_NS_PER_MS);
    return over ? common_error_set(err, COMMON_DEADLINE_EXCEEDED,
                                   "step %" PRIu64 " has been stuck for %" PRIu64
                                   " ms: rank %u waits for others",
                                   work->step, late_ns / COMMON_NS_PER_MS, comm->room.rank)
                : COMMON_OK;
}

// Until the device has left the own part of the first that runs: it depends on no other rank. While its own
// attention is under way this rank is late, not stuck; that others wait for it they will say.
static enum common_code await_own(struct nccl_comm *comm, struct common_error *err)
{
    struct nccl_work *work = comm->running[0];
    if (comm->n_running == 0 || work->packed)
        return COMMON_OK;
    work->packed = true;
    if (work->source != NCCL_SOURCE_DEVICE)
        return COMMON_OK;
    cudaError_t error = cudaEventSynchronize(work->lane->packed);
    work->since_ns = common_clock_ns();
    return nccl_room_cuda(error, "its own part", err);
}

static void nap(struct nccl_comm *comm, uint64_t ns) // 0: until something changes
{
    struct timespec until;
    pthread_mutex_lock(&comm->lock);
    bool more = comm->given && comm->given->sequence == comm->next && comm->n_running < NCCL_LANES;
    if (!comm->released && !comm->condemned && !more) {
        if (ns == 0) {
            pthread_cond_wait(&comm->changed, &comm->lock);
        } else {
            uint64_t at = common_clock_after(ns);
            until = (struct timespec){(time_t)(at / COMMON_NS_PER_S), (long)(at % COMMON_NS_PER_S)};
            pthread_cond_timedwait(&comm->changed, &comm->lock, &until);
        }
    }
    pthread_mutex_unlock(&comm->lock);
}

// What runs waits for other ranks.
static void nap_over_running(struct nccl_comm *comm)
{
    uint64_t waited = common_clock_ns() - comm->running[0]->since_ns, ns = waited / NAP_SHARE;
    if (comm->room.rank == 0 && waited < SPIN_NS)
        return;
    ns = ns > NAP_NS ? ns : NAP_NS;
    nap(comm, ns < NAP_MOST_NS ? ns : NAP_MOST_NS);
}

enum common_code nccl_comm_serve(struct nccl_comm *comm, struct common_error *err)
{
    prctl(PR_SET_TIMERSLACK, SLACK_NS);
    for (;;) {
        bool started, ended = false;
        if (atomic_load(&comm->stop))
            return COMMON_OK;
        enum common_code code = start_next(comm, &started, err);
        if (code == COMMON_OK && !started)
            code = await_own(comm, err);
        if (code == COMMON_OK)
            code = end_first(comm, &ended, err);
        if (code == COMMON_OK)
            code = watch(comm, err);
        if (code != COMMON_OK)
            return code;
        if (started || ended)
            continue;
        if (comm->n_running > 0) {
            nap_over_running(comm);
        } else {
            watch_gap(comm);
            nap(comm, comm->gap_since_ns ? WARN_NS : 0);
        }
    }
}
