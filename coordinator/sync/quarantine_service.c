// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/quarantine_service.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/repair.h"
#include "proto/model/limits.h"

#define DROP_CALLS 256 // at a time

static void count_newer(struct coordinator_sessions *sessions, struct coordinator_worker *w, uint32_t by)
{
    for (uint32_t i = 0; i < w->quarantine.n; i++) {
        const struct coordinator_quarantined *entry = &w->quarantine.entries[i];
        struct coordinator_session *s =
            entry->newer ? coordinator_session_any(sessions, entry->session) : NULL;
        if (!s)
            continue; // deleted meanwhile: ids do not come again
        s->withheld += by;
        coordinator_session_recount(s);
        coordinator_session_settle(s); // it waits for its holders, or does not any more
    }
}

void coordinator_quarantine_set(struct coordinator_sessions *sessions, struct coordinator_worker *w,
                                struct coordinator_quarantine *list)
{
    count_newer(sessions, w, UINT32_MAX); // one less
    coordinator_quarantine_fini(&w->quarantine);
    w->quarantine = *list;
    *list = (struct coordinator_quarantine){0};
    count_newer(sessions, w, 1);
}

// ---- QuarantineList -----------------------------------------------------------------------------

void coordinator_handle_quarantine_list(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    const Banyan__Pb__QuarantineListRequest *m = (const void *)proto_request_message(request)->body;
    Banyan__Pb__QuarantinedSession *entries = coordinator_alloc(PROTO_QUARANTINE_PAGE_MAX * sizeof(*entries)),
                                   **pointers =
                                       coordinator_alloc(PROTO_QUARANTINE_PAGE_MAX * sizeof(*pointers));
    Banyan__Pb__QuarantineListReply reply = BANYAN__PB__QUARANTINE_LIST_REPLY__INIT;
    uint64_t skip = m->after;
    for (uint32_t i = 0; i < sessions->cluster->n_workers && !reply.next; i++) {
        struct coordinator_worker *w = sessions->cluster->workers[i];
        if (!w || (m->worker[0] && strcmp(w->name, m->worker) != 0))
            continue;
        uint32_t from = skip < w->quarantine.n ? (uint32_t)skip : w->quarantine.n;
        skip -= from;
        for (uint32_t k = from; k < w->quarantine.n && !reply.next; k++) {
            const struct coordinator_quarantined *q = &w->quarantine.entries[k];
            if (reply.n_sessions == PROTO_QUARANTINE_PAGE_MAX) {
                reply.next = m->after + PROTO_QUARANTINE_PAGE_MAX;
                break;
            }
            Banyan__Pb__QuarantinedSession *out = &entries[reply.n_sessions];
            *out = (Banyan__Pb__QuarantinedSession)BANYAN__PB__QUARANTINED_SESSION__INIT;
            out->worker = w->name;
            out->session = q->session;
            out->life = q->life;
            out->bytes = q->bytes;
            out->incarnation = q->incarnation;
            out->epoch = q->epoch;
            out->newer = q->newer;
            pointers[reply.n_sessions++] = out;
        }
    }
    reply.sessions = pointers;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
    free(entries);
    free(pointers);
}

// ---- QuarantineDrop -----------------------------------------------------------------------------

struct quarantine_drop {
    struct coordinator_sessions *room;
    struct proto_request *request;
    uint32_t slot, life;                 // of the worker
    struct coordinator_quarantine going; // a copy
    uint32_t at, told;                   // of `going`: the next; past the last that was told
    uint64_t sessions, bytes;
};

static void drop_some(struct quarantine_drop *d);

static struct coordinator_worker *drop_worker(const struct quarantine_drop *d)
{
    struct coordinator_worker *w = d->room->cluster->workers[d->slot];
    return w && w->life == d->life && coordinator_worker_active(w) ? w : NULL;
}

static void drop_end(struct quarantine_drop *d)
{
    coordinator_quarantine_fini(&d->going);
    free(d);
}

// They are gone at the worker: out of its list, too.
static void drop_forget(struct quarantine_drop *d, struct coordinator_worker *w)
{
    struct coordinator_quarantine left = {0}, gone = {.n = d->at - d->told};
    if (gone.n > 0) // else there may be no list at all
        gone.entries = d->going.entries + d->told;
    for (uint32_t i = 0; i < w->quarantine.n; i++) {
        const struct coordinator_quarantined *entry = &w->quarantine.entries[i];
        if (!coordinator_quarantine_has(&gone, entry->session)) {
            coordinator_quarantine_add(&left, entry);
            continue;
        }
        d->sessions++;
        d->bytes += entry->bytes;
    }
    coordinator_quarantine_set(d->room, w, &left);
    for (uint32_t i = 0; i < gone.n; i++) { // what is left of these is the store's: who holds what of it?
        struct coordinator_session *s = coordinator_session_any(d->room, gone.entries[i].session);
        if (s && gone.entries[i].newer && coordinator_session_has_member(s, w))
            coordinator_session_doubt(s, w);
    }
    d->told = d->at;
}

static void drop_told(void *arg, enum common_code code, const char *text)
{
    struct quarantine_drop *d = arg;
    struct coordinator_worker *w = drop_worker(d);
    if (code != COMMON_OK ||
        !w) { // what it has dropped of these is dropped once more when it is asked for again
        proto_request_fail(d->request, COMMON_UNAVAILABLE,
                           code != COMMON_OK ? text : "the worker was lost meanwhile", NULL, 0);
        drop_end(d);
        return;
    }
    COMMON_FAILPOINT("quarantine_dropped");
    drop_forget(d, w);
    if (d->at < d->going.n) {
        drop_some(d);
        return;
    }
    coordinator_worker_tell(w, QUARANTINE_DROPPED, WARN,
                            "dropped from quarantine on an operator's request worker=%s sessions=%" PRIu64
                            " bytes=%" PRIu64,
                            w->name, d->sessions, d->bytes);
    COMMON_FAILPOINT("quarantine_forgotten");
    Banyan__Pb__QuarantineDropReply reply = BANYAN__PB__QUARANTINE_DROP_REPLY__INIT;
    reply.sessions = d->sessions;
    reply.bytes = d->bytes;
    proto_request_reply(d->request, &reply.base, NULL, 0, NULL, NULL);
    drop_end(d);
}

static void drop_some(struct quarantine_drop *d)
{
    struct coordinator_worker *w = drop_worker(d);
    struct coordinator_gather *gather = coordinator_gather_new(&d->room->core->turn, drop_told, d);
    for (uint32_t i = 0; i < DROP_CALLS && d->at < d->going.n; i++) {
        Banyan__Pb__SessionDropRequest m = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
        m.term = d->room->core->term;
        m.session = d->going.entries[d->at++].session;
        m.life = coordinator_store_life(d->room->store);
        m.claim = true;
        coordinator_worker_call_gather(w, BANYAN__PB__METHOD__METHOD_SESSION_DROP, &m.base, gather);
    }
    coordinator_gather_seal(gather);
}

void coordinator_handle_quarantine_drop(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    COMMON_FAILPOINT("quarantine_asked");
    const Banyan__Pb__QuarantineDropRequest *m = (const void *)proto_request_message(request)->body;
    const struct coordinator_worker *w = coordinator_worker_find(sessions->cluster, m->worker);
    if (!w) {
        proto_request_fail(request, COMMON_NOT_FOUND, "there is no worker with this name", NULL, 0);
        return;
    }
    if (m->session && !coordinator_quarantine_has(&w->quarantine, m->session)) {
        proto_request_fail(request, COMMON_NOT_FOUND, "this worker has no such session in quarantine", NULL,
                           0);
        return;
    }
    if (!coordinator_worker_active(w)) {
        proto_request_fail(request, COMMON_UNAVAILABLE, "this worker is not active now: try again when it is",
                           NULL, 0);
        return;
    }
    struct quarantine_drop *d = coordinator_alloc(sizeof(*d));
    *d = (struct quarantine_drop){.room = sessions, .request = request, .slot = w->slot, .life = w->life};
    for (uint32_t i = 0; i < w->quarantine.n; i++)
        if (!m->session || m->session == w->quarantine.entries[i].session)
            coordinator_quarantine_add(&d->going, &w->quarantine.entries[i]);
    drop_some(d);
}
