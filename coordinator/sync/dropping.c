// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/dropping.h"

#include <inttypes.h>

#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/moving.h"

enum {
    WAITING_MAX = 65536, // to be told again
    TICK_MAX = 256       // told again in one tick
};

struct dropping {            // of one session at one worker
    struct common_list link; // in sessions.droppings while it waits
    struct coordinator_sessions *sessions;
    struct coordinator_worker *w;      // its record stays while there are visitors
    struct coordinator_gather *gather; // NULL: nobody waits
    uint64_t session;
    uint32_t visit; // w->visit at the time: another one will find the session by itself
    bool claim;
};

static void dropping_free(struct dropping *d)
{
    common_list_remove(&d->link);
    d->w->visitors--;
    free(d);
}

static void dropping_wait(struct dropping *d, const struct proto_reply *reply)
{
    struct coordinator_sessions *sessions = d->sessions;
    bool over = reply->code == COMMON_OK || d->visit != d->w->visit || sessions->core->stopping;
    if (!over && sessions->n_droppings >= WAITING_MAX) {
        common_log_error("a worker did not drop a deleted session, and too many wait to be dropped: it will "
                         "when it registers again: %s worker=%s session=%016" PRIx64,
                         reply->text, d->w->name, d->session);
        over = true;
    }
    if (over) {
        dropping_free(d);
        return;
    }
    common_list_push(&sessions->droppings, &d->link);
    sessions->n_droppings++;
}

static void dropping_answered(void *arg, const struct proto_reply *reply)
{
    struct dropping *d = arg;
    struct coordinator_gather *gather = d->gather;
    enum common_code code = reply->code;
    d->gather = NULL;
    if (gather)
        coordinator_gather_finish(gather, code, reply->text);
    dropping_wait(d, reply);
}

static void dropping_send(struct dropping *d)
{
    struct coordinator_session *s = coordinator_session_any(d->sessions, d->session);
    if (s)
        coordinator_moves_dropped(s, d->w);
    Banyan__Pb__SessionDropRequest m = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
    m.term = d->sessions->core->term;
    m.session = d->session;
    m.life = coordinator_store_life(d->sessions->store);
    m.claim = d->claim;
    coordinator_worker_call(d->w, BANYAN__PB__METHOD__METHOD_SESSION_DROP, &m.base, dropping_answered, d);
}

static struct dropping *dropping_new(struct coordinator_sessions *sessions, uint64_t session,
                                     struct coordinator_worker *w)
{
    struct dropping *d = coordinator_alloc(sizeof(*d));
    *d = (struct dropping){.sessions = sessions,
                           .w = w,
                           .session = session,
                           .visit = w->visit,
                           .claim = coordinator_worker_listed(w, session)};
    common_list_init(&d->link);
    w->visitors++;
    return d;
}

void coordinator_session_drop_at_workers(struct coordinator_session *s, struct coordinator_gather *gather)
{
    for (uint32_t i = 0; i < s->n_members; i++) {
        struct coordinator_worker *w = s->members[i];
        if (!w->channel)
            continue; // its inventory will name a session that is unknown
        struct dropping *d = dropping_new(s->sessions, s->id, w);
        // The inventory of one that is joining may name the session, too, or the page is behind us: it is told, but
        // not waited for.
        if (gather && coordinator_worker_active(w)) {
            d->gather = gather;
            coordinator_gather_add(gather);
        }
        dropping_send(d);
    }
}

// Now, or once it is known whether the worker becomes a holder of the session's chunks.
static void dropping_begin(struct dropping *d)
{
    const struct coordinator_session *s = coordinator_session_any(d->sessions, d->session);
    if (!s || !coordinator_moves_store(s, d->w)) {
        dropping_send(d);
        return;
    }
    common_list_push(&d->sessions->droppings, &d->link);
    d->sessions->n_droppings++;
}

void coordinator_session_drop_at(struct coordinator_sessions *sessions, uint64_t session,
                                 struct coordinator_worker *w)
{
    if (w->channel)
        dropping_begin(dropping_new(sessions, session, w));
}

static bool is_member(const struct dropping *d)
{
    const struct coordinator_session *s = coordinator_session_any(d->sessions, d->session);
    return s && coordinator_session_has_member(s, d->w);
}

void coordinator_droppings_tick(struct coordinator_sessions *sessions)
{
    for (uint32_t i = sessions->n_droppings < TICK_MAX ? sessions->n_droppings : TICK_MAX; i > 0; i--) {
        struct dropping *d = common_list_entry(sessions->droppings.next, struct dropping, link);
        common_list_remove(&d->link);
        sessions->n_droppings--;
        if (d->visit != d->w->visit || is_member(d))
            dropping_free(d);
        else
            dropping_begin(d);
    }
}

void coordinator_droppings_fini(struct coordinator_sessions *sessions)
{
    while (!common_list_empty(&sessions->droppings))
        dropping_free(common_list_entry(sessions->droppings.next, struct dropping, link));
    sessions->n_droppings = 0;
}
