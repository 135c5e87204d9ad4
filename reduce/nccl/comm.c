// SPDX-License-Identifier: Apache-2.0
// The thread of a communicator:
//
//     buffers, id, join ──▶ try out, measure ──▶ serve: start what is next, end what is done ──▶ abort, give
//     back
//
// It asks the device instead of waiting in it, since an operation whose peers are gone never ends by itself,
// and nobody may be inside NCCL when the communicator is aborted.
#include "reduce/nccl/comm.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "kernels/partial.h"
#include "reduce/nccl/lane.h"

#define SPIN_NS     (100 * COMMON_NS_PER_US) // how long a thread asks without a pause
#define NAP_NS      (50 * COMMON_NS_PER_US)
#define NAP_MOST_NS COMMON_NS_PER_MS
#define WARN_NS     COMMON_NS_PER_S // an operation that takes longer is named in the log

#define TRIAL_ROUNDS 6u // of each size and variant, the first is not counted
#define TRIAL_DV     128u

struct nccl_comm {
    struct nccl_comm_options options;
    int32_t *parents;
    unsigned refs; // the thread, and what is posted
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // under lock
    bool released;
    enum nccl_comm_state state;
    struct common_error why;
    bool has_id;
    uint8_t id[PROTO_COLLECTIVE_ID_MAX];
    struct nccl_work *given; // ascending sequence
    uint32_t holders;
    bool condemned; // for `why`
    bool go, was_ready;
    uint64_t completed;
    // the thread's
    atomic_bool stop;
    struct nccl_room room;
    uint64_t gap_since_ns, gap_warned;
    uint64_t next; // sequence to be started
    struct nccl_work *running[NCCL_LANES];
    uint32_t n_running;
    struct nccl_trials trials; // written before READY
};

static pthread_mutex_t threads_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t threads_changed;
static pthread_once_t threads_once = PTHREAD_ONCE_INIT;
static unsigned threads;

// ---- memory, and the way to the loop ------------------------------------------------------------

static void unref(struct nccl_comm *comm)
{
    if (__atomic_sub_fetch(&comm->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    pthread_mutex_destroy(&comm->lock);
    pthread_cond_destroy(&comm->changed);
    free(comm->parents);
    free(comm);
}

struct nccl_work *nccl_work_new(const struct nccl_layout *layout)
{
    struct nccl_work *work = calloc(1, sizeof *work);
    if (work)
        work->layout = *layout;
    return work;
}

void nccl_work_free(struct nccl_work *work)
{
    if (!work)
        return;
    nccl_layout_free(&work->layout);
    common_blob_unref(work->image);
    common_blob_unref(work->out);
    free(work);
}

static void work_over(void *arg) // on the loop
{
    struct nccl_work *work = arg;
    struct nccl_comm *comm = work->comm;
    if (work->done)
        work->done(work->arg, work);
    nccl_work_free(work);
    unref(comm);
}

static void tell_change(void *arg) // on the loop
{
    struct nccl_comm *comm = arg;
    if (!comm->released && comm->options.changed)
        comm->options.changed(comm->options.arg);
    unref(comm);
}

// Under lock: nothing is posted once it is released.
static void post(struct nccl_comm *comm, common_loop_fn fn, void *arg)
{
    __atomic_add_fetch(&comm->refs, 1, __ATOMIC_RELAXED);
    common_loop_post(comm->options.loop, fn, arg);
}

// The work is finished with. Under lock.
static void hand_back(struct nccl_comm *comm, struct nccl_work *work)
{
    work->comm = comm;
    if (comm->released && comm->holders == 0)
        nccl_work_free(work); // whoever gave it is gone, and perhaps the loop
    else
        post(comm, work_over, work);
}

static void fail_work(struct nccl_comm *comm, struct nccl_work *work)
{
    work->code = COMMON_UNAVAILABLE;
    snprintf(work->text, sizeof work->text, "the communicator is broken: %.150s", comm->why.message);
    hand_back(comm, work);
}

static void set_state(struct nccl_comm *comm, enum nccl_comm_state state, const struct common_error *why)
{
    pthread_mutex_lock(&comm->lock);
    comm->state = state;
    comm->was_ready |= state == NCCL_COMM_READY;
    if (why)
        comm->why = *why;
    if (!comm->released)
        post(comm, tell_change, comm);
    pthread_mutex_unlock(&comm->lock);
}

// ---- forming ------------------------------------------------------------------------------------

static enum common_code make_id(struct nccl_comm *comm, struct common_error *err)
{
    ncclUniqueId id;
    ncclResult_t result = nccl.GetUniqueId(&id);
    if (result != ncclSuccess)
        return common_error_set(err, COMMON_UNAVAILABLE, "no id: %s", nccl.GetErrorString(result));
    pthread_mutex_lock(&comm->lock);
    memcpy(comm->id, id.internal, sizeof comm->id);
    comm->has_id = true;
    if (!comm->released)
        post(comm, tell_change, comm);
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

static enum common_code join(struct nccl_comm *comm, struct common_error *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    struct nccl_room *room = &comm->room;
    memcpy(id.internal, comm->id, sizeof id.internal);
    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = 4; // messages are small, and attention wants the multiprocessors
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
            return common_error_set(err, COMMON_UNAVAILABLE, "joining: it cannot be asked");
    }
    return nccl_room_settle(room, result, "joining", err);
}

// Waits for an event, as long as patience lasts.
static enum common_code await(struct nccl_comm *comm, cudaEvent_t event, struct common_error *err)
{
    uint64_t until = common_clock_after(comm->options.patience_ns);
    cudaError_t error;
    ncclResult_t result = ncclSuccess;
    while ((error = cudaEventQuery(event)) == cudaErrorNotReady) {
        if (atomic_load(&comm->stop))
            return common_error_set(err, COMMON_CANCELLED, "stopped");
        if (nccl.CommGetAsyncError(comm->room.comm, &result) != ncclSuccess ||
            (result != ncclSuccess && result != ncclInProgress))
            return common_error_set(err, COMMON_UNAVAILABLE, "%s", nccl.GetErrorString(result));
        if (common_clock_ns() > until)
            return common_error_set(err, COMMON_DEADLINE_EXCEEDED, "an operation does not end");
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
        return common_error_set(err, COMMON_UNAVAILABLE, "trying it out: %s", work->text);
    return COMMON_OK;
}

// Runs both variants, which also makes the connections, and measures them on rank 0.
static enum common_code try_out(struct nccl_comm *comm, struct common_error *err)
{
    static const uint32_t heads[NCCL_TRIALS] = {8, 32, 128};
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
                return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory to try it out");
            struct nccl_work work = {.variant = (enum nccl_variant)v,
                                     .layout = layout,
                                     .source = NCCL_SOURCE_HOST,
                                     .image = common_blob_new(bytes),
                                     .out = common_blob_new(bytes)};
            enum common_code code = COMMON_OK;
            double best = 0;
            if (!work.image || !work.out)
                code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory to try it out");
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

static enum common_code form(struct nccl_comm *comm, struct common_error *err)
{
    uint64_t began = common_clock_ns();
    enum common_code code = nccl_room_init(&comm->room, err);
    if (code == COMMON_OK && !comm->has_id)
        code = make_id(comm, err);
    if (code == COMMON_OK)
        code = await_go(comm, err);
    if (code == COMMON_OK)
        code = join(comm, err);
    if (code == COMMON_OK)
        code = try_out(comm, err);
    if (code == COMMON_OK)
        log_ready(comm, common_clock_ns() - began);
    return code;
}

// ---- serving ------------------------------------------------------------------------------------

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
    if (work->code == COMMON_INTERNAL)
        code = common_error_set(err, COMMON_INTERNAL, "%s", work->text);
    pthread_mutex_lock(&comm->lock);
    comm->completed = work->sequence;
    hand_back(comm, work);
    pthread_mutex_unlock(&comm->lock);
    return code;
}

// An operation that was given, but not the one before it: another rank's frame may have been lost on its way
// here.
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
        common_log_warn("nccl: this rank was never told of an operation plan=%016" PRIx64
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
    if (work->source == NCCL_SOURCE_DEVICE && cudaEventQuery(work->lane->packed) == cudaErrorNotReady) {
        work->since_ns = now; // its own attention is under way: that others wait for it they will say
        return COMMON_OK;
    }
    bool over = late_ns >= comm->options.patience_ns;
    if (!over && (late_ns < WARN_NS || work->warned))
        return COMMON_OK;
    work->warned = true;
    common_log_warn("nccl: an operation is stuck plan=%016" PRIx64 " rank=%u step=%" PRIu64
                    " sequence=%" PRIu64 " late_ms=%" PRIu64
                    ": its own part is there, it waits for other ranks",
                    comm->options.plan, comm->room.rank, work->step, work->sequence,
                    late_ns / COMMON_NS_PER_MS);
    return over ? common_error_set(err, COMMON_DEADLINE_EXCEEDED,
                                   "step %" PRIu64 " is stuck since %" PRIu64 " ms: rank %u waits for others",
                                   work->step, late_ns / COMMON_NS_PER_MS, comm->room.rank)
                : COMMON_OK;
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

// Until it is released (OK) or broken.
static enum common_code serve(struct nccl_comm *comm, struct common_error *err)
{
    uint64_t busy_ns = 0, nap_ns = NAP_NS;
    for (;;) {
        bool started, ended;
        if (atomic_load(&comm->stop))
            return COMMON_OK;
        enum common_code code = start_next(comm, &started, err);
        if (code == COMMON_OK)
            code = end_first(comm, &ended, err);
        if (code == COMMON_OK)
            code = watch(comm, err);
        if (code != COMMON_OK)
            return code;
        if (started || ended) {
            busy_ns = common_clock_ns();
            nap_ns = NAP_NS;
        } else if (comm->n_running == 0) {
            watch_gap(comm);
            nap(comm, comm->gap_since_ns ? WARN_NS : 0);
        } else if (common_clock_ns() - busy_ns > SPIN_NS) {
            nap(comm, nap_ns);
            nap_ns = nap_ns * 2 < NAP_MOST_NS ? nap_ns * 2 : NAP_MOST_NS;
        }
    }
}

// ---- ending -------------------------------------------------------------------------------------

static void break_up(struct nccl_comm *comm, const struct common_error *why)
{
    struct nccl_work *rest;
    if (!atomic_load(&comm->stop))
        common_log_warn("nccl: a communicator is given up plan=%016" PRIx64 " rank=%u: %s",
                        comm->options.plan, comm->room.rank, why->message);
    set_state(comm, NCCL_COMM_BROKEN, why);
    nccl_room_abort(&comm->room);
    pthread_mutex_lock(&comm->lock);
    for (uint32_t i = 0; i < comm->n_running; i++)
        fail_work(comm, comm->running[i]);
    comm->n_running = 0;
    while ((rest = comm->given)) {
        comm->given = rest->next;
        fail_work(comm, rest);
    }
    pthread_mutex_unlock(&comm->lock);
}

static void *comm_main(void *arg)
{
    struct nccl_comm *comm = arg;
    struct common_error err = {.code = COMMON_OK};
    enum common_code code = form(comm, &err);
    if (code == COMMON_OK) {
        set_state(comm, NCCL_COMM_READY, NULL);
        code = serve(comm, &err);
    }
    if (code == COMMON_OK)
        common_error_set(&err, COMMON_CANCELLED, "it is no longer needed");
    break_up(comm, &err);
    pthread_mutex_lock(&comm->lock);
    while (!comm->released || comm->holders > 0)
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
    nccl_room_fini(&comm->room);
    unref(comm);
    pthread_mutex_lock(&threads_lock);
    threads--;
    pthread_cond_broadcast(&threads_changed);
    pthread_mutex_unlock(&threads_lock);
    return NULL;
}

// ---- the loop's side ----------------------------------------------------------------------------

static void cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

static void threads_init(void)
{
    cond_init(&threads_changed);
}

static bool start_thread(struct nccl_comm *comm)
{
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&threads_lock);
    bool ok = threads < NCCL_COMMS_MAX && pthread_create(&thread, &attr, comm_main, comm) == 0;
    threads += ok;
    pthread_mutex_unlock(&threads_lock);
    pthread_attr_destroy(&attr);
    return ok;
}

struct nccl_comm *nccl_comm_new(const struct nccl_comm_options *options)
{
    pthread_once(&threads_once, threads_init);
    struct nccl_comm *comm = calloc(1, sizeof *comm);
    int32_t *parents = calloc(options->ranks, sizeof *parents);
    if (!comm || !parents) {
        free(comm);
        free(parents);
        return NULL;
    }
    memcpy(parents, options->parents, options->ranks * sizeof *parents);
    comm->options = *options;
    comm->parents = parents;
    comm->options.parents = parents;
    comm->options.id = NULL;
    comm->refs = 1;
    comm->next = 1;
    pthread_mutex_init(&comm->lock, NULL);
    cond_init(&comm->changed);
    if (options->id) {
        memcpy(comm->id, options->id, sizeof comm->id);
        comm->has_id = true;
    }
    comm->room.device = (int)options->device;
    comm->room.rank = options->rank;
    comm->room.ranks = options->ranks;
    comm->room.stop = &comm->stop;
    if (!start_thread(comm)) {
        unref(comm);
        return NULL;
    }
    return comm;
}

void nccl_comm_go(struct nccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->go = true;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

void nccl_comm_release(struct nccl_comm *comm)
{
    if (!comm)
        return;
    atomic_store(&comm->stop, true);
    pthread_mutex_lock(&comm->lock);
    comm->released = true;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

enum nccl_comm_state nccl_comm_state_get(const struct nccl_comm *comm, struct common_error *why)
{
    struct nccl_comm *c = (struct nccl_comm *)comm; // its lock alone is written
    pthread_mutex_lock(&c->lock);
    enum nccl_comm_state state = c->state;
    if (why)
        *why = c->why;
    pthread_mutex_unlock(&c->lock);
    return state;
}

uint64_t nccl_comm_generation(const struct nccl_comm *comm)
{
    return comm->options.generation;
}

const uint8_t *nccl_comm_id(const struct nccl_comm *comm)
{
    struct nccl_comm *c = (struct nccl_comm *)comm;
    pthread_mutex_lock(&c->lock);
    bool has = c->has_id;
    pthread_mutex_unlock(&c->lock);
    return has ? comm->id : NULL;
}

size_t nccl_comm_bytes_max(const struct nccl_comm *comm)
{
    return comm->room.bytes_max;
}

uint64_t nccl_comm_completed(const struct nccl_comm *comm)
{
    struct nccl_comm *c = (struct nccl_comm *)comm;
    pthread_mutex_lock(&c->lock);
    uint64_t completed = c->completed;
    pthread_mutex_unlock(&c->lock);
    return completed;
}

bool nccl_comm_was_ready(const struct nccl_comm *comm)
{
    struct nccl_comm *c = (struct nccl_comm *)comm;
    pthread_mutex_lock(&c->lock);
    bool was = c->was_ready;
    pthread_mutex_unlock(&c->lock);
    return was;
}

void nccl_comm_trials(const struct nccl_comm *comm, struct nccl_trials *out)
{
    *out = comm->trials;
}

enum nccl_variant nccl_trials_faster(const struct nccl_trials *trials, size_t bytes)
{
    uint32_t s = 0;
    while (s + 1 < NCCL_TRIALS && trials->bytes[s + 1] > 0 && bytes > trials->bytes[s])
        s++;
    const double *us = trials->us[s];
    return us[NCCL_VARIANT_SUM] > 0 && us[NCCL_VARIANT_SUM] < us[NCCL_VARIANT_GATHER] ? NCCL_VARIANT_SUM
                                                                                      : NCCL_VARIANT_GATHER;
}

static bool before_work(void *arg, void *stream)
{
    struct nccl_work *work = arg;
    struct nccl_lane *lane = work->lane;
    if (cudaSetDevice(work->comm->room.device) != cudaSuccess)
        return false;
    if (!work->image)
        return true;
    memcpy(lane->host_block + NCCL_TAG_BYTES, work->image->data, work->layout.bytes);
    return cudaMemcpyAsync(lane->blocks + NCCL_TAG_BYTES, lane->host_block + NCCL_TAG_BYTES,
                           work->layout.bytes, cudaMemcpyHostToDevice, stream) == cudaSuccess;
}

static bool after_work(void *arg, void *stream)
{
    struct nccl_work *work = arg;
    struct nccl_comm *comm = work->comm;
    if (cudaEventRecord(work->lane->packed, stream) != cudaSuccess)
        return false;
    work->source = NCCL_SOURCE_DEVICE;
    nccl_comm_give(comm, work);
    return true;
}

const struct kernels_device_sink *nccl_comm_sink(struct nccl_comm *comm, struct nccl_work *work,
                                                 const void *base, struct common_blob *image)
{
    pthread_mutex_lock(&comm->lock);
    bool is_free =
        comm->state == NCCL_COMM_READY && !comm->released && comm->completed + NCCL_LANES >= work->sequence;
    pthread_mutex_unlock(&comm->lock);
    if (!is_free) {
        common_blob_unref(image);
        return NULL;
    }
    work->comm = comm;
    work->lane = &comm->room.lanes[work->sequence % NCCL_LANES];
    work->image = image;
    work->sink = (struct kernels_device_sink){.out = (uint64_t)(uintptr_t)work->lane->blocks + NCCL_TAG_BYTES,
                                              .base = base,
                                              .bytes = work->layout.bytes,
                                              .before = before_work,
                                              .after = after_work,
                                              .arg = work};
    return &work->sink;
}

void nccl_comm_hold(struct nccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->holders++;
    pthread_mutex_unlock(&comm->lock);
}

void nccl_comm_drop(struct nccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->holders--;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

void nccl_comm_break(struct nccl_comm *comm, const char *why)
{
    pthread_mutex_lock(&comm->lock);
    if (comm->state == NCCL_COMM_READY && !comm->condemned) {
        common_error_set(&comm->why, COMMON_UNAVAILABLE, "%s", why);
        comm->condemned = true;
        pthread_cond_broadcast(&comm->changed);
    }
    pthread_mutex_unlock(&comm->lock);
}

void nccl_comm_give(struct nccl_comm *comm, struct nccl_work *work)
{
    pthread_mutex_lock(&comm->lock);
    work->given = true;
    if (comm->released || comm->state == NCCL_COMM_BROKEN) {
        fail_work(comm, work);
    } else {
        struct nccl_work **at = &comm->given;
        while (*at && (*at)->sequence < work->sequence)
            at = &(*at)->next;
        work->next = *at;
        *at = work;
        pthread_cond_broadcast(&comm->changed);
    }
    pthread_mutex_unlock(&comm->lock);
}

bool nccl_comm_drain(uint64_t time_ns)
{
    uint64_t until_ns = common_clock_after(time_ns);
    struct timespec until = {(time_t)(until_ns / COMMON_NS_PER_S), (long)(until_ns % COMMON_NS_PER_S)};
    pthread_once(&threads_once, threads_init);
    pthread_mutex_lock(&threads_lock);
    while (threads > 0 && pthread_cond_timedwait(&threads_changed, &threads_lock, &until) == 0)
        continue;
    bool gone = threads == 0;
    pthread_mutex_unlock(&threads_lock);
    return gone;
}
