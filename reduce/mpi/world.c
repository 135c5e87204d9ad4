// SPDX-License-Identifier: Apache-2.0
// A parcel, a result that is expected:
//
//     expect ──▶ POSTED ──received──▶ READY ──▶ arrived, gone
//                  │                    └─forgotten─▶ gone
//                  └──forgotten, or its time is over──▶ ORPHAN ──MPI lets go of it──▶ gone
//
// Receives are posted before the frame goes, so whatever comes unexpected is of a step that was given up: it
// is taken and thrown away, or its sender would keep it forever.
#include "reduce/mpi/world.h"

#include <assert.h>
#include <event2/event.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/memory/blob.h"
#include "reduce/mpi/launch.h"
#include "reduce/mpi/message.h"
#include "reduce/mpi/requests.h"

#define TICK_NS    COMMON_NS_PER_MS
#define LOOK_NS    (100 * COMMON_NS_PER_US) // in every turn of the loop for so long
#define RING_NS    (2 * COMMON_NS_PER_MS)   // likewise, after the doorbell
#define DRAIN_NS   (1 * COMMON_NS_PER_S)    // for so long after a step was given up
#define POSTED_MAX ((size_t)256 << 20)      // bytes of receives at a time

enum parcel_state { PARCEL_POSTED, PARCEL_READY, PARCEL_ORPHAN };

struct reduce_parcel {
    enum parcel_state state;
    struct reduce_parcel *next; // READY
    bool is_rung;               // it is on its way
    struct mpi_message_key key;
    struct common_blob *blob;
    size_t len; // READY: received
    uint32_t n_items, traces;
    size_t bytes;
    uint64_t deadline_ns;
    proto_step_done_fn arrived; // NULL: forgotten
    void *arg;
};

static struct {
    struct mpi_launch launch;
    bool lost;
    struct common_error why;
    struct event *poll;
    unsigned groups;
    struct mpi_requests receives, sends; // of struct reduce_parcel, struct common_blob
    struct reduce_parcel *ready;
    size_t posted_bytes;
    uint64_t look_until_ns, drain_until_ns;
} world;

// Until when nothing has to be looked at.
static uint64_t quiet_until(uint64_t now)
{
    uint64_t until = COMMON_NO_DEADLINE, tick = now + TICK_NS;
    if (world.receives.n + world.sends.n > 0 && now < world.look_until_ns)
        return now;
    if (world.sends.n > 0 || now < world.drain_until_ns)
        until = tick;
    for (int i = 0; i < world.receives.n; i++) {
        const struct reduce_parcel *parcel = world.receives.items[i];
        if (parcel->state != PARCEL_POSTED)
            continue;
        uint64_t due = world.lost                                      ? now
                       : parcel->is_rung && parcel->deadline_ns > tick ? tick
                                                                       : parcel->deadline_ns;
        until = due < until ? due : until;
    }
    return until;
}

static void schedule(uint64_t now)
{
    uint64_t until = quiet_until(now), left_us = until > now ? (until - now) / 1000 + 1 : 0;
    struct timeval wait = {.tv_sec = (time_t)(left_us / 1000000),
                           .tv_usec = (suseconds_t)(left_us % 1000000)};
    if (!world.poll)
        return;
    if (until == COMMON_NO_DEADLINE)
        event_del(world.poll);
    else
        event_add(world.poll, &wait);
}

static void look_now(void)
{
    struct timeval now = {0};
    if (world.poll)
        event_add(world.poll, &now);
}

static void world_lose(int mpi_code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    if (world.lost)
        return;
    MPI_Error_string(mpi_code, text, &len);
    common_error_set(&world.why, COMMON_UNAVAILABLE, "%s: %.200s", what, text);
    world.lost = true;
    look_now(); // waiters are notified from there
}

static bool worked(int mpi_code, const char *what)
{
    if (mpi_code != MPI_SUCCESS)
        world_lose(mpi_code, what);
    return mpi_code == MPI_SUCCESS;
}

// ---- receiving ----------------------------------------------------------------------------------

static void parcel_free(struct reduce_parcel *parcel)
{
    common_blob_unref(parcel->blob);
    free(parcel);
}

static enum common_code parcel_post(struct reduce_parcel *parcel, int source, int tag,
                                    struct common_error *err)
{
    MPI_Request request;
    if (world.lost)
        return common_error_set(err, COMMON_UNAVAILABLE, "the engine mpi is lost: %.200s", world.why.message);
    if (world.posted_bytes + parcel->blob->len > POSTED_MAX || !mpi_requests_reserve(&world.receives))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "too many results are expected");
    if (!worked(MPI_Irecv(parcel->blob->data, (int)parcel->blob->len, MPI_BYTE, source, tag,
                          world.launch.comm, &request),
                "a receive"))
        return common_error_set(err, COMMON_UNAVAILABLE, "the engine mpi is lost: %.200s", world.why.message);
    mpi_requests_add(&world.receives, request, parcel);
    world.posted_bytes += parcel->blob->len;
    return COMMON_OK;
}

enum common_code mpi_world_expect(const struct mpi_expected *what, struct reduce_parcel **out,
                                  struct common_error *err)
{
    const struct proto_step *step = what->step;
    size_t limit;
    if (!mpi_message_limit(step->n_items, what->traces, what->bytes, &limit))
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "a result of this step exceeds 2 GiB");
    struct reduce_parcel *parcel = calloc(1, sizeof *parcel);
    if (!parcel || !(parcel->blob = common_blob_new(limit))) {
        free(parcel);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a result");
    }
    mpi_message_key_of(step, &parcel->key);
    parcel->n_items = step->n_items;
    parcel->traces = what->traces;
    parcel->bytes = what->bytes;
    parcel->deadline_ns = step->deadline_ns;
    parcel->arrived = what->arrived;
    parcel->arg = what->arg;
    enum common_code code = parcel_post(parcel, what->source, mpi_message_tag(&parcel->key), err);
    if (code != COMMON_OK) {
        parcel_free(parcel);
        return code;
    }
    *out = parcel;
    schedule(common_clock_ns());
    return COMMON_OK;
}

static void parcel_received(void *item, const MPI_Status *status)
{
    struct reduce_parcel *parcel = item;
    int count = 0;
    world.posted_bytes -= parcel->blob->len;
    if (parcel->state == PARCEL_ORPHAN) {
        parcel_free(parcel);
        return;
    }
    MPI_Get_count(status, MPI_BYTE, &count);
    parcel->len = count > 0 ? (size_t)count : 0;
    parcel->state = PARCEL_READY;
    parcel->next = world.ready;
    world.ready = parcel;
}

// MPI holds on to the buffer until the cancellation has come through, or the message has.
static void orphan(struct reduce_parcel *parcel)
{
    int at = mpi_requests_find(&world.receives, parcel);
    parcel->state = PARCEL_ORPHAN;
    parcel->arrived = NULL;
    if (at >= 0 && !world.lost)
        worked(MPI_Cancel(&world.receives.requests[at]), "a cancellation");
}

void mpi_world_forget(struct reduce_parcel *parcel)
{
    uint64_t now = common_clock_ns();
    if (parcel->state == PARCEL_READY) {
        parcel->arrived = NULL; // the one that hands them out frees it
        return;
    }
    orphan(parcel);
    world.drain_until_ns = now + DRAIN_NS;
    schedule(now);
}

// What is not (or no longer) expected.
static void world_drain(void)
{
    int found = 1, count;
    MPI_Status status;
    struct common_error err;
    while (found && !world.lost) {
        if (!worked(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world.launch.comm, &found, &status), "a probe") ||
            !found || MPI_Get_count(&status, MPI_BYTE, &count) != MPI_SUCCESS)
            return;
        struct reduce_parcel *parcel = calloc(1, sizeof *parcel);
        if (parcel && (parcel->blob = common_blob_new(count > 0 ? (size_t)count : 1)))
            parcel->state = PARCEL_ORPHAN;
        if (!parcel || !parcel->blob ||
            parcel_post(parcel, status.MPI_SOURCE, status.MPI_TAG, &err) != COMMON_OK) {
            if (parcel)
                parcel_free(parcel);
            return;
        }
    }
}

// ---- handing out --------------------------------------------------------------------------------

static void parcel_tell(struct reduce_parcel *parcel)
{
    struct common_error err;
    struct proto_step_result *result = NULL;
    proto_step_done_fn arrived = parcel->arrived;
    if (!arrived) {
        parcel_free(parcel);
        return;
    }
    enum common_code code = mpi_message_decode(&parcel->key, parcel->n_items, parcel->traces, parcel->bytes,
                                               parcel->blob, parcel->len, &result, &err);
    void *arg = parcel->arg;
    parcel_free(parcel);
    arrived(arg, code, code == COMMON_OK ? "" : err.message, result);
}

static void hand_out(void)
{
    struct reduce_parcel *ready; // callbacks may forget others of the list, expect new ones, and close groups
    while ((ready = world.ready)) {
        world.ready = ready->next;
        parcel_tell(ready);
    }
}

// The first posted parcel whose time is over, or any when the engine is lost. NULL: there is none.
static struct reduce_parcel *overdue(uint64_t now)
{
    for (int i = 0; i < world.receives.n; i++) {
        struct reduce_parcel *parcel = world.receives.items[i];
        if (parcel->state == PARCEL_POSTED && (world.lost || now >= parcel->deadline_ns))
            return parcel;
    }
    return NULL;
}

static void give_up(uint64_t now)
{
    struct reduce_parcel *parcel;
    while ((parcel = overdue(now))) {
        proto_step_done_fn arrived = parcel->arrived;
        void *arg = parcel->arg;
        orphan(parcel);
        world.drain_until_ns = now + DRAIN_NS;
        if (world.lost)
            arrived(arg, COMMON_UNAVAILABLE, "the engine mpi is lost", NULL);
        else
            arrived(arg, COMMON_DEADLINE_EXCEEDED, "its result did not arrive in time", NULL);
    }
}

// ---- sending ------------------------------------------------------------------------------------

static void parcel_sent(void *item, const MPI_Status *status)
{
    (void)status;
    common_blob_unref(item);
}

enum common_code mpi_world_send(const struct proto_step *step, int to, const struct proto_step_result *result,
                                const struct common_blob *partials, struct common_error *err)
{
    struct mpi_message_key key;
    MPI_Request request;
    int done = 0;
    if (world.lost)
        return common_error_set(err, COMMON_UNAVAILABLE, "the engine mpi is lost: %.200s", world.why.message);
    mpi_message_key_of(step, &key);
    struct common_blob *blob = mpi_message_encode(&key, result, partials);
    if (!blob || !mpi_requests_reserve(&world.sends)) {
        common_blob_unref(blob);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a result");
    }
    if (!worked(MPI_Isend(blob->data, (int)blob->len, MPI_BYTE, to, mpi_message_tag(&key), world.launch.comm,
                          &request),
                "a send") ||
        !worked(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "a send"))
        return common_error_set(err, COMMON_UNAVAILABLE, "the engine mpi is lost: %.200s", world.why.message);
    if (done) {
        common_blob_unref(blob);
        return COMMON_OK;
    }
    mpi_requests_add(&world.sends, request, blob);
    mpi_world_look();
    schedule(common_clock_ns());
    return COMMON_OK;
}

// ---- looking ------------------------------------------------------------------------------------

static void world_take(void)
{
    if (!world.lost)
        worked(mpi_requests_test(&world.receives, parcel_received), "a receive");
    if (!world.lost)
        worked(mpi_requests_test(&world.sends, parcel_sent), "a send");
    hand_out();
}

static void on_poll(evutil_socket_t fd, short what, void *arg)
{
    uint64_t now = common_clock_ns();
    (void)fd, (void)what, (void)arg;
    world_take();
    if (now < world.drain_until_ns)
        world_drain();
    give_up(now);
    schedule(now);
}

void mpi_world_look(void)
{
    if (world.launch.crowded)
        return; // a spinning thread keeps others from computing: the doorbell wakes us
    world.look_until_ns = common_clock_ns() + LOOK_NS;
    if (world.receives.n + world.sends.n > 0)
        look_now();
}

void mpi_world_ring(struct reduce_parcel *parcel)
{
    uint64_t now = common_clock_ns();
    parcel->is_rung = true;
    world.look_until_ns = now + RING_NS; // if it is not there yet, it must be close
    world_take();
    schedule(now);
}

enum common_code mpi_world_acquire(struct common_loop *loop)
{
    if (!world.poll && !(world.poll = event_new(common_loop_base(loop), -1, 0, on_poll, NULL)))
        return COMMON_RESOURCE_EXHAUSTED;
    world.groups++;
    return COMMON_OK;
}

void mpi_world_release(void)
{
    assert(world.groups > 0);
    if (--world.groups > 0)
        return;
    event_free(world.poll); // what MPI still holds on to is looked at with the next group
    world.poll = NULL;
}

// ---- the group ----------------------------------------------------------------------------------

enum common_code mpi_world_join(const char *worker, struct reduce_module_group *out, struct common_error *err)
{
    enum common_code code = mpi_launch_join(worker, &world.launch, err);
    if (code != COMMON_OK)
        return code;
    memcpy(out->id, world.launch.id, sizeof out->id);
    out->rank = (uint32_t)world.launch.rank;
    out->size = (uint32_t)world.launch.size;
    return COMMON_OK;
}

int mpi_world_rank_of(const char *worker)
{
    for (int i = 0; i < world.launch.size; i++)
        if (strcmp(world.launch.names[i], worker) == 0)
            return i;
    return -1;
}

bool mpi_world_lost(struct common_error *err)
{
    if (world.lost)
        common_error_set(err, COMMON_UNAVAILABLE, "%s", world.why.message);
    return world.lost;
}

void mpi_world_leave(int exit_code)
{
    mpi_launch_leave(&world.launch, world.lost, exit_code);
}
