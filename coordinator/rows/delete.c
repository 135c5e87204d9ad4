// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rows/reshaping.h"

#include <inttypes.h>

#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/keys.h"
#include "coordinator/session/states.h"
#include "coordinator/sync/dropping.h"

#define STATES_LEFT "the session that it has states of is gone"

static void delete_told(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("delete_told");
    struct proto_request *request = arg;
    (void)code, (void)text; // a worker that did not hear of it drops the session when it comes back
    if (!request)
        return;
    Banyan__Pb__SessionDeleteReply m = BANYAN__PB__SESSION_DELETE_REPLY__INIT;
    proto_request_reply(request, &m.base, NULL, 0, NULL, NULL);
}

static void reshape_end_discard(struct coordinator_reshape *r, enum common_code code)
{
    coordinator_discarded_fn fn = r->discarded;
    void *arg = r->discarded_arg;
    coordinator_reshape_end(r);
    if (fn)
        fn(arg, code);
}

static void delete_stored(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("delete_stored");
    struct coordinator_reshape *r = arg;
    bool stays = code != COMMON_OK && !r->sessions->core->stopping;
    coordinator_key_settle(r->s, stays ? COMMON_OK : COMMON_UNAVAILABLE,
                           "the session has been deleted meanwhile: try again");
    if (code != COMMON_OK) {
        coordinator_reshape_fail_stored(r, code, text);
        reshape_end_discard(r, code);
        return;
    }
    coordinator_session_note(r->s, SESSION_DELETED, INFO, "%s session=%016" PRIx64 " chunks=%u",
                             r->why ? r->why : "deleted by a client", r->s->id, r->s->layout.n);
    struct coordinator_gather *gather =
        coordinator_gather_new(&r->sessions->core->turn, delete_told, r->request);
    coordinator_session_drop_at_workers(r->s, gather);
    for (uint32_t i = 0; i < r->s->layout.n; i++)
        coordinator_session_memory_back(r->s, &r->s->layout.chunks[i]);
    struct coordinator_session *states = coordinator_states_of(r->s);
    if (states) // where it cannot begin now, a tick does it
        (void)coordinator_session_discard(states, STATES_LEFT, NULL, NULL);
    coordinator_session_destroy(r->s);
    if (r->discarded)
        r->discarded(r->discarded_arg, COMMON_OK);
    free(r);
    coordinator_gather_seal(gather);
}

static void delete_alone(void *arg, struct coordinator_session *s)
{
    COMMON_FAILPOINT("delete_begun");
    struct coordinator_reshape *r = arg;
    if (s && r->idle_ns && (s->last_used_ns != r->idle_ns || s->n_waiting || s->doors)) { // it is used again
        r->s = s;
        coordinator_reshape_end(r);
        return;
    }
    if (!s && r->discarded)
        r->discarded(r->discarded_arg, COMMON_NOT_FOUND);
    if (coordinator_reshape_gone(r, s))
        return;
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session_drop(batch, s->id);
    coordinator_store_submit(r->sessions->store, batch, delete_stored, r);
}

void coordinator_handle_session_delete(void *arg, struct proto_request *request)
{
    const Banyan__Pb__SessionDeleteRequest *m = (const void *)proto_request_message(request)->body;
    coordinator_reshape_start(&(struct coordinator_reshape){.sessions = arg}, request, m->session,
                              COORDINATOR_SESSION_DELETING, delete_alone);
}

void coordinator_session_reclaim_states(struct coordinator_session *s)
{
    if (coordinator_session_open(s))
        (void)coordinator_session_discard(s, STATES_LEFT, NULL, NULL);
}

void coordinator_session_reclaim(struct coordinator_session *s)
{
    struct coordinator_reshape *r = coordinator_alloc(sizeof(*r));
    *r = (struct coordinator_reshape){.sessions = s->sessions,
                                      .idle_ns = s->last_used_ns,
                                      .why = "unused for its time to live"};
    common_log_info("an idle session was deleted session=%016" PRIx64 " name=%s", s->id, s->name);
    if (coordinator_session_exclusive(s, COORDINATOR_SESSION_DELETING, delete_alone, r) != COMMON_OK)
        free(r); // it is not idle after all
}

bool coordinator_session_discard(struct coordinator_session *s, const char *why, coordinator_discarded_fn fn,
                                 void *arg)
{
    struct coordinator_reshape *r = coordinator_alloc(sizeof(*r));
    *r = (struct coordinator_reshape){
        .sessions = s->sessions, .why = why, .discarded = fn, .discarded_arg = arg};
    bool begun = coordinator_session_exclusive(s, COORDINATOR_SESSION_DELETING, delete_alone, r) == COMMON_OK;
    if (!begun)
        free(r);
    return begun;
}
