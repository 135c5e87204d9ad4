// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sessions/drain.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/sessions/sessions.h"
#include "coordinator/store/store.h"
#include "proto/banyan.pb-c.h"
#include "proto/rpc.h"

struct drain {
    struct coordinator_sessions *sessions;
    struct proto_request *request;
    struct coordinator_worker *w; // its record stays: a visitor
    bool resume;
    char reason[129];
};

static bool anybody_else(const struct coordinator_sessions *sessions, const struct coordinator_worker *w)
{
    const struct coordinator_cluster *cluster = sessions->cluster;
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        const struct coordinator_worker *other = cluster->workers[i];
        if (other && other != w && coordinator_worker_active(other) && !other->draining)
            return true;
    }
    return false;
}

static void answer(struct coordinator_sessions *sessions, struct proto_request *request,
                   const struct coordinator_worker *w)
{
    Banyan__Pb__WorkerDrainReply m = BANYAN__PB__WORKER_DRAIN_REPLY__INIT;
    m.draining = w->draining;
    m.chunks = w->chunks;
    m.bytes = w->load_bytes;
    m.sessions = w->members;
    if (w->draining && w->chunks && !anybody_else(sessions, w))
        m.stuck = (char *)"no other worker is active and in use: start one, or resume one";
    else if (w->draining && w->chunks && !sessions->moves.n)
        m.stuck = (char *)"no chunk can move now: the other workers have no memory left for it, or its "
                          "session is not "
                          "whole (banyanctl workers, session list)";
    proto_request_reply(request, &m.base, NULL, 0, NULL, NULL);
}

static void drain_stored(void *arg, enum common_code code, const char *text)
{
    struct drain *d = arg;
    struct coordinator_worker *w = d->w;
    w->visitors--;
    if (code != COMMON_OK) {
        proto_request_fail(d->request, code, text, NULL, 0);
        free(d);
        return;
    }
    w->draining = !d->resume;
    snprintf(w->drain_reason, sizeof(w->drain_reason), "%s", d->resume ? "" : d->reason);
    common_log_info(d->resume ? "a worker is used again worker=%s chunks=%" PRIu64 "%s%s"
                              : "a worker is drained worker=%s chunks=%" PRIu64 " reason=%s%s",
                    w->name, w->chunks, w->drain_reason, "");
    d->sessions->moves.due = true;
    coordinator_turn_mark(&d->sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
    answer(d->sessions, d->request, w);
    free(d);
}

static bool printable(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            return false;
    return true;
}

void coordinator_handle_worker_drain(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    const Banyan__Pb__WorkerDrainRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_worker *w = coordinator_worker_find(sessions->cluster, m->worker);
    if (!w) {
        proto_request_fail(request, COMMON_NOT_FOUND, "there is no worker with this name", NULL, 0);
        return;
    }
    if (!printable(m->reason)) {
        proto_request_fail(request, COMMON_INVALID_ARGUMENT, "a reason must be printable", NULL, 0);
        return;
    }
    bool same =
        m->resume ? !w->draining : w->draining && (!m->reason[0] || !strcmp(m->reason, w->drain_reason));
    if (same) {
        answer(sessions, request, w);
        return;
    }
    struct drain *d = coordinator_alloc(sizeof(*d));
    *d = (struct drain){.sessions = sessions, .request = request, .w = w, .resume = m->resume};
    snprintf(d->reason, sizeof(d->reason), "%s", m->reason);
    w->visitors++;
    struct coordinator_batch *batch = coordinator_batch_new();
    if (m->resume)
        coordinator_batch_resume(batch, w->name);
    else
        coordinator_batch_drain(batch, w->name, d->reason);
    coordinator_store_submit(sessions->store, batch, drain_stored, d);
}
