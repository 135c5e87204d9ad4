// SPDX-License-Identifier: Apache-2.0
// A communicator: its state, its thread from start to end, and the loop's side. The thread:
//
//     form (forming.c) ──▶ READY: serve (serving.c) ──▶ BROKEN: abort ──▶ give works back ──▶ released: gone
//          └──────────────── it fails, or is released ───────▲
//
// It asks the device instead of waiting in it, since an operation whose peers are gone never ends by itself,
// and no thread may be inside NCCL when the communicator is aborted.
#include "reduce/nccl/comm_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/loop/machine.h"
#include "reduce/nccl/quiet.h"

static pthread_mutex_t threads_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t threads_changed;
static pthread_once_t threads_once = PTHREAD_ONCE_INIT;
static unsigned threads;

// ---- memory, and the way to the loop ------------------------------------------------------------

static void comm_unref(struct nccl_comm *comm)
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
    comm_unref(comm);
}

static void tell_change(void *arg) // on the loop
{
    struct nccl_comm *comm = arg;
    pthread_mutex_lock(&comm->lock);
    comm->telling = false; // a change from here on is reported again
    pthread_mutex_unlock(&comm->lock);
    if (!comm->released && comm->options.changed)
        comm->options.changed(comm->options.arg);
    comm_unref(comm);
}

// Under lock. The communicator lives until fn has run.
static void mail_to_loop(struct nccl_comm *comm, struct common_mail *mail, common_loop_fn fn, void *arg)
{
    __atomic_add_fetch(&comm->refs, 1, __ATOMIC_RELAXED);
    common_loop_mail(comm->options.loop, mail, fn, arg);
}

void nccl_comm_tell(struct nccl_comm *comm)
{
    if (comm->released || comm->telling) // nothing is posted once it is released
        return;
    comm->telling = true;
    mail_to_loop(comm, &comm->change, tell_change, comm);
}

void nccl_comm_hand_back(struct nccl_comm *comm, struct nccl_work *work)
{
    work->comm = comm;
    if (comm->released && comm->holders == 0)
        nccl_work_free(work); // its giver is gone, and perhaps the loop
    else
        mail_to_loop(comm, &work->mail, work_over, work);
}

static void fail_work(struct nccl_comm *comm, struct nccl_work *work)
{
    work->code = COMMON_UNAVAILABLE;
    snprintf(work->text, sizeof work->text, "the communicator is broken: %.150s", comm->why.message);
    nccl_comm_hand_back(comm, work);
}

// ---- state --------------------------------------------------------------------------------------

#define TO(state) (1u << NCCL_COMM_##state)
static const struct common_machine comm_machine = {
    .name = "communicator",
    .n = NCCL_COMM_STATES,
    .states = {"forming", "ready", "broken"},
    .next = {[NCCL_COMM_FORMING] = TO(READY) | TO(BROKEN),
             [NCCL_COMM_READY] = TO(BROKEN),
             [NCCL_COMM_BROKEN] = 0},
};
#undef TO

static void set_state(struct nccl_comm *comm, enum nccl_comm_state state, const struct common_error *why)
{
    pthread_mutex_lock(&comm->lock);
    common_machine_move(&comm_machine, comm->state, state);
    comm->state = state;
    comm->was_ready |= state == NCCL_COMM_READY;
    if (why)
        comm->why = *why;
    nccl_comm_tell(comm);
    pthread_mutex_unlock(&comm->lock);
}

// ---- ending -------------------------------------------------------------------------------------

static void break_up(struct nccl_comm *comm, const struct common_error *why)
{
    struct nccl_work *rest;
    if (!atomic_load(&comm->stop))
        common_log_warn("nccl: a communicator was abandoned plan=%016" PRIx64 " rank=%u: %s",
                        comm->options.plan, comm->room.rank, why->message);
    set_state(comm, NCCL_COMM_BROKEN, why);
    pthread_mutex_lock(&comm->lock); // their steps go on by another way, however long the abort takes
    for (uint32_t i = 0; i < comm->n_running; i++)
        fail_work(comm, comm->running[i]);
    comm->n_running = 0;
    while ((rest = comm->given)) {
        comm->given = rest->next;
        fail_work(comm, rest);
    }
    pthread_mutex_unlock(&comm->lock);
    nccl_comm_count(comm, false); // others need not wait for what is about to be aborted
    if (comm->room.comm) {
        (void)nccl_quiet_enter(common_clock_after(comm->options.patience_ns), NULL);
        nccl_room_abort(&comm->room);
        nccl_quiet_leave();
    }
}

void nccl_comm_count(struct nccl_comm *comm, bool running)
{
    if (running && !comm->counted)
        nccl_quiet_begin();
    if (!running && comm->counted)
        nccl_quiet_end();
    comm->counted = running;
}

static void *comm_main(void *arg)
{
    struct nccl_comm *comm = arg;
    struct common_error err = {.code = COMMON_OK};
    enum common_code code = nccl_comm_form(comm, &err);
    if (code == COMMON_OK) {
        set_state(comm, NCCL_COMM_READY, NULL);
        code = nccl_comm_serve(comm, &err);
    }
    if (code == COMMON_OK)
        common_error_set(&err, COMMON_CANCELLED, "it is no longer needed");
    break_up(comm, &err);
    pthread_mutex_lock(&comm->lock);
    while (!comm->released || comm->holders > 0)
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
    nccl_room_fini(&comm->room);
    comm_unref(comm);
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
    comm->room.patience_ns = options->patience_ns;
    comm->room.stop = &comm->stop;
    if (!start_thread(comm)) {
        comm_unref(comm);
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

bool nccl_comm_condemned(const struct nccl_comm *comm)
{
    struct nccl_comm *c = (struct nccl_comm *)comm; // its lock alone is written
    pthread_mutex_lock(&c->lock);
    bool condemned = c->condemned;
    pthread_mutex_unlock(&c->lock);
    return condemned;
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
