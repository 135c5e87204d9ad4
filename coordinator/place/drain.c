// SPDX-License-Identifier: Apache-2.0
#include "coordinator/place/drain.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/place/moves.h"
#include "coordinator/session/move_queue.h"
#include "coordinator/session/session.h"
#include "coordinator/session/sessions.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/moving.h"
#include "proto/banyan.pb-c.h"
#include "proto/rpc/rpc.h"

struct drain {
    struct coordinator_sessions *sessions;
    struct proto_request *request;
    struct coordinator_worker *w; // its record stays: a visitor
    bool resume;
    struct coordinator_order order;
};

static bool anybody_else(const struct coordinator_sessions *sessions, const struct coordinator_worker *w)
{
    const struct coordinator_cluster *cluster = sessions->cluster;
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        const struct coordinator_worker *other = cluster->workers[i];
        if (other && other != w && coordinator_worker_takes(other))
            return true;
    }
    return false;
}

// Of the first chunk that it holds: the others wait for the same, mostly.
static const char *why_chunk_stays(const struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    const struct coordinator_cluster *cluster = s->sessions->cluster;
    bool without = false, room = false;
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        const struct coordinator_worker *to = cluster->workers[i];
        if (!to || !coordinator_worker_takes(to) || coordinator_chunk_held_by(chunk, to))
            continue;
        without = true;
        room = room || coordinator_worker_free_bytes(to) >= coordinator_session_index_room(s, chunk->index);
    }
    if (!without)
        return "every other worker already has a copy of its chunks: start another worker";
    if (!room)
        return "no other worker has memory for its chunks: start one, raise --memory, or delete sessions";
    if (coordinator_chunk_being_put(s, chunk) || s->move_tries.put_again_ns > common_clock_ns())
        return "its chunks have attached rows that are not committed: commit them, or wait until "
               "--attach-ttl drops them";
    return "its chunks belong to sessions that are being changed or lack copies: 'banyanctl doctor' says "
           "more";
}

static const char *why_none_moves(const struct coordinator_sessions *sessions,
                                  const struct coordinator_worker *w)
{
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        const struct coordinator_session *s = sessions->slots[i];
        for (uint32_t k = 0; s && k < s->layout.n; k++)
            if (coordinator_chunk_held_by(&s->layout.chunks[k], w))
                return why_chunk_stays(s, &s->layout.chunks[k]);
    }
    return "its last chunks are being released";
}

// Why nothing of it moves, for people; NULL: it does, or there is nothing.
static const char *why_stuck(const struct coordinator_sessions *sessions, const struct coordinator_worker *w)
{
    if (!w->draining || !w->chunks)
        return NULL;
    if (!anybody_else(sessions, w))
        return "no other worker is active and takes chunks: start one, or resume one";
    if (sessions->moves->n)
        return NULL;
    if (!coordinator_worker_active(w))
        return "it is not connected, and its chunks have no other copy: start it again";
    return why_none_moves(sessions, w);
}

static void answer(struct coordinator_sessions *sessions, struct proto_request *request,
                   const struct coordinator_worker *w)
{
    Banyan__Pb__WorkerDrainReply m = BANYAN__PB__WORKER_DRAIN_REPLY__INIT;
    const char *stuck = why_stuck(sessions, w);
    m.draining = w->draining;
    m.chunks = w->chunks;
    m.bytes = w->load_bytes;
    m.sessions = w->members;
    m.stuck = (char *)(stuck ? stuck : "");
    proto_request_reply(request, &m.base, NULL, 0, NULL, NULL);
}

// What was decided counts from here on.
static void set_drain(struct coordinator_sessions *sessions, struct coordinator_worker *w, bool ordered,
                      bool leaving, const struct coordinator_order *order)
{
    bool was = w->draining || w->cordoned;
    w->drain_ordered = ordered;
    w->leaving = leaving;
    w->draining = ordered || leaving;
    w->cordoned = order->cordon;
    w->order = *order;
    if (w->draining)
        coordinator_worker_tell(w, WORKER_DRAINING, INFO,
                                "draining worker worker=%s chunks=%" PRIu64 " reason=%s by=%s", w->name,
                                w->chunks, w->order.reason, w->order.by);
    else if (w->cordoned)
        coordinator_worker_tell(w, WORKER_CORDONED, INFO,
                                "a worker gets no new chunks worker=%s chunks=%" PRIu64 " reason=%s by=%s",
                                w->name, w->chunks, w->order.reason, w->order.by);
    else if (was)
        coordinator_worker_tell(w, WORKER_RESUMED, INFO, "a worker is in use again worker=%s chunks=%" PRIu64,
                                w->name, w->chunks);
    w->drain_told = w->drain_told && w->draining;
    coordinator_move_queue_wake_all(sessions);
}

static void drain_stored(void *arg, enum common_code code, const char *text)
{
    struct drain *d = arg;
    struct coordinator_worker *w = d->w;
    w->visitors--;
    if (code != COMMON_OK) {
        proto_request_fail_why(d->request, code, coordinator_store_reason(code), text);
        free(d);
        return;
    }
    COMMON_FAILPOINT("drain_stored");
    if (d->resume && w->leaving)
        snprintf(d->order.reason, sizeof(d->order.reason), "its process is shutting down");
    set_drain(d->sessions, w, !d->resume && !d->order.cordon, w->leaving, &d->order);
    answer(d->sessions, d->request, w);
    COMMON_FAILPOINT("drain_answered");
    free(d);
}

void coordinator_drains_tick(const struct coordinator_sessions *sessions)
{
    for (uint32_t i = 0; i < sessions->cluster->n_workers; i++) {
        struct coordinator_worker *w = sessions->cluster->workers[i];
        if (!w || !w->draining || w->drain_told || w->chunks || w->members)
            continue;
        w->drain_told = true;
        if (!w->life) // it was so before this coordinator's time
            continue;
        coordinator_worker_tell(w, WORKER_DRAINED, INFO, "a worker is drained and can be stopped worker=%s",
                                w->name);
    }
}

static bool printable(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            return false;
    return true;
}

// A worker's word for its own process. It says that it wants to leave again and again: a coordinator that has
// restarted hears it, too. That it ends it says once.
static void drain_itself(struct coordinator_sessions *sessions, struct proto_request *request,
                         struct coordinator_worker *w, const Banyan__Pb__WorkerDrainRequest *m)
{
    if (m->instance != w->instance) {
        proto_request_fail(request, COMMON_FAILED_PRECONDITION, "another process now has this name", NULL, 0);
        return;
    }
    if (m->ends) {
        // Nothing moves now: its store brings its chunks back, or others have copies.
        w->farewell = true;
        if (!w->chunks) // and until it is gone it gets none
            w->leaving = w->draining = w->drain_told = true;
    } else if (w->leaving == m->resume) {
        struct coordinator_order order = w->order; // an operator's stays
        if (!w->drain_ordered && !w->cordoned)
            order = (struct coordinator_order){0};
        if (!w->drain_ordered && !w->cordoned && !m->resume)
            snprintf(order.reason, sizeof(order.reason), "%s", m->reason);
        set_drain(sessions, w, w->drain_ordered, !m->resume, &order);
    }
    answer(sessions, request, w);
}

void coordinator_handle_worker_drain(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    const Banyan__Pb__WorkerDrainRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_worker *w = coordinator_worker_find(sessions->cluster, m->worker);
    if (!w) {
        proto_request_fail_why(request, COMMON_NOT_FOUND, PROTO_REASON_UNKNOWN_WORKER,
                               "there is no worker with this name");
        return;
    }
    if (!printable(m->reason)) {
        proto_request_fail(request, COMMON_INVALID_ARGUMENT, "a reason must be printable", NULL, 0);
        return;
    }
    if (!m->instance && !m->ask && proto_request_is_daemon(request)) {
        proto_request_fail(
            request, COMMON_PERMISSION_DENIED,
            "a worker may drain only itself, by its instance: operators drain workers as clients", NULL, 0);
        return;
    }
    if (m->instance && !m->ask) {
        drain_itself(sessions, request, w, m);
        return;
    }
    bool same = m->resume ? !w->drain_ordered && !w->cordoned
                          : (m->cordon ? w->cordoned : w->drain_ordered) &&
                                (!m->reason[0] || !strcmp(m->reason, w->order.reason));
    if (m->ask || same) {
        answer(sessions, request, w);
        return;
    }
    struct drain *d = coordinator_alloc(sizeof(*d));
    *d = (struct drain){.sessions = sessions, .request = request, .w = w, .resume = m->resume};
    w->visitors++;
    struct coordinator_batch *batch = coordinator_batch_new();
    if (m->resume) {
        coordinator_batch_resume(batch, w->name);
    } else {
        char bytes[COORDINATOR_ORDER_BYTES];
        d->order.cordon = m->cordon;
        d->order.at_s = common_clock_wall_ns() / COMMON_NS_PER_S;
        snprintf(d->order.reason, sizeof(d->order.reason), "%s", m->reason);
        snprintf(d->order.by, sizeof(d->order.by), "%s", proto_request_identity(request)->name);
        coordinator_batch_drain(batch, w->name, bytes, coordinator_order_pack(&d->order, bytes));
    }
    coordinator_store_submit(sessions->store, batch, drain_stored, d);
}
