// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/visit.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/dropping.h"
#include "coordinator/sync/moving.h"
#include "coordinator/sync/news.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/returned.h"

enum { WINDOW = 64, WINDOW_ONE = 4 }; // messages under way: of a visit; of one for a session

#define TO(state) (1u << COORDINATOR_VISIT_##state)
const struct common_machine coordinator_visit_machine = {
    .name = "visit",
    .n = COORDINATOR_VISIT_STATES,
    .states = {"asking", "storing", "telling", "settling", "over"},
    .next =
        {
            [COORDINATOR_VISIT_ASKING] = TO(STORING) | TO(TELLING) | TO(OVER),
            [COORDINATOR_VISIT_STORING] = TO(TELLING) | TO(OVER),
            [COORDINATOR_VISIT_TELLING] = TO(SETTLING) | TO(OVER),
            [COORDINATOR_VISIT_SETTLING] = TO(TELLING) | TO(OVER),
            [COORDINATOR_VISIT_OVER] = 0,
        },
};

void coordinator_visit_set_state(struct coordinator_visit *v, enum coordinator_visit_state state)
{
    common_machine_move(&coordinator_visit_machine, v->state, state);
    v->state = state;
}

bool coordinator_visit_counts(const struct coordinator_visit *v)
{
    return v->w->visit == v->number && (!v->one || coordinator_worker_active(v->w));
}

static void visit_free(struct coordinator_visit *v)
{
    coordinator_visit_set_state(v, COORDINATOR_VISIT_OVER);
    v->w->visitors--;
    free(v->unknown);
    free(v->refused);
    free(v);
}

void coordinator_visit_note(struct coordinator_visit *v, enum common_code code, const char *text)
{
    if (code == COMMON_OK || v->code != COMMON_OK)
        return;
    v->code = code;
    snprintf(v->text, sizeof(v->text), "%s", text);
}

void coordinator_visit_fail(struct coordinator_visit *v, const char *what)
{
    struct coordinator_visit was = *v;
    struct coordinator_worker *w = v->w;
    bool counts = coordinator_visit_counts(v);
    visit_free(v);
    if (was.one) {
        was.done(was.arg, was.code == COMMON_OK ? COMMON_UNAVAILABLE : was.code, was.text);
        return;
    }
    if (!counts || w->cluster->core->stopping || !w->channel || !proto_channel_connected(w->channel))
        return;
    common_log_error("%s: %s code=%s worker=%s", what, was.text, common_code_name(was.code), w->name);
    coordinator_worker_lose(w, what);
}

// ---- telling ------------------------------------------------------------------------------------

static void tell_more(struct coordinator_visit *v);

static void visit_told(struct coordinator_visit *v, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("visit_told");
    v->in_flight--;
    coordinator_visit_note(v, code, text);
    tell_more(v);
}

static void call_told(void *arg, const struct proto_reply *reply)
{
    visit_told(arg, reply->code, reply->text);
}

// The worker does not take what it is told of one session: that is no reason to do without the worker.
static bool is_refusal(enum common_code code)
{
    return code != COMMON_OK && code != COMMON_UNAVAILABLE && code != COMMON_CANCELLED &&
           code != COMMON_DEADLINE_EXCEEDED;
}

static void add_refused(struct coordinator_visit *v, uint64_t session)
{
    if (v->n_refused && v->refused[v->n_refused - 1] == session)
        return;
    if (!(v->n_refused & (v->n_refused + 1))) { // full: as many as a power of two, less one
        v->refused = realloc(v->refused, (v->n_refused + 1) * 2 * sizeof(*v->refused));
        if (!v->refused)
            abort();
    }
    v->refused[v->n_refused++] = session;
}

struct session_call { // one message about a session, as it was then
    struct coordinator_visit *v;
    uint64_t session, incarnation, epoch;
};

static void session_told(void *arg, enum common_code code, const char *text)
{
    struct session_call call = *(struct session_call *)arg;
    free(arg);
    if (!call.v->one && is_refusal(code)) {
        add_refused(call.v, call.session);
        code = COMMON_OK;
    }
    visit_told(call.v, code, text);
}

static void layout_told(void *arg, const struct proto_reply *reply)
{
    session_told(arg, reply->code, reply->text);
}

static void rows_told(void *arg, const struct proto_reply *reply)
{
    const struct session_call *call = arg;
    struct coordinator_session *s = coordinator_session_any(call->v->sessions, call->session);
    bool same = s && s->incarnation == call->incarnation && s->layout.epoch == call->epoch;
    if (same)
        session_told(arg, coordinator_telling_rows_code(reply, s, call->v->w), reply->text);
    else if (reply->code ==
             COMMON_FAILED_PRECONDITION) // of another layout's rows: it is asked and told again
        session_told(arg, COMMON_ABORTED, "the session has changed meanwhile");
    else
        session_told(arg, reply->code, reply->text);
}

// Sessions of which the worker may not have been told everything: it has refused, or more came while it was told. The
// list is the caller's.
static uint64_t *untold_sessions(const struct coordinator_visit *v, size_t *n)
{
    const struct coordinator_sessions *sessions = v->sessions;
    uint64_t *ids = coordinator_alloc((v->n_refused + sessions->n_slots + 1) * sizeof(*ids));
    *n = 0;
    for (uint32_t i = 0; i < v->n_refused; i++)
        ids[(*n)++] = v->refused[i];
    for (uint32_t i = 0; i < sessions->n_slots; i++)
        if (sessions->slots[i] && sessions->slots[i]->dirtied > v->passed)
            ids[(*n)++] = sessions->slots[i]->id;
    return ids;
}

// Comes after every RowsCommit has been answered: only then do rows that are still frozen belong to nobody. Where not
// all of them have been, they may be a durable commit's.
static void tell_settled(struct coordinator_visit *v)
{
    const struct coordinator_sessions *sessions = v->sessions;
    Banyan__Pb__RowsAbortRequest m = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
    const struct coordinator_session *s = coordinator_session_any(sessions, v->one);
    if (s && s->dirtied > v->passed) {
        coordinator_visit_note(v, COMMON_ABORTED, "the session has changed meanwhile");
        coordinator_visit_fail(v, "");
        return;
    }
    uint64_t *except = v->one ? NULL : untold_sessions(v, &m.n_except);
    m.except = except;
    m.term = sessions->core->term;
    m.session = v->one;
    m.before = v->settled = coordinator_commits_settled(&sessions->commits, sessions->core->term, v->one);
    coordinator_visit_set_state(v, COORDINATOR_VISIT_SETTLING);
    v->in_flight++;
    if (m.n_except <= PROTO_ABORT_EXCEPT_MAX) {
        coordinator_worker_call(v->w, BANYAN__PB__METHOD__METHOD_ROWS_ABORT, &m.base, call_told, v);
    } else { // they stay frozen until the next visit, or their sessions'
        common_log_warn("a worker rejects updates of many sessions worker=%s sessions=%zu", v->w->name,
                        m.n_except);
        visit_told(v, COMMON_OK, "");
    }
    free(except);
}

static bool is_part_of(const struct coordinator_session *s, const struct coordinator_worker *w)
{
    return coordinator_session_has_member(s, w) || coordinator_returned_any(s, w);
}

// The next session that it holds and should not.
static void tell_drop(struct coordinator_visit *v)
{
    Banyan__Pb__SessionDropRequest m = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
    m.term = v->sessions->core->term;
    m.session = v->unknown[--v->n_unknown];
    m.life = coordinator_store_life(v->sessions->store);
    m.claim = true;
    const struct coordinator_session *s = coordinator_session_any(v->sessions, m.session);
    if (s && (is_part_of(s, v->w) || coordinator_moves_store(s, v->w)))
        return; // it has become a member since, or is about to, or a later page named what it keeps
    v->in_flight++;
    coordinator_worker_call(v->w, BANYAN__PB__METHOD__METHOD_SESSION_DROP, &m.base, call_told, v);
}

bool coordinator_visit_tells(const struct coordinator_visit *v, const struct coordinator_session *s)
{
    return s && (!v->again || s->dirtied > v->since) && is_part_of(s, v->w) &&
           !coordinator_quarantine_has(&v->w->quarantine, s->id);
}

// The next session that it should hold. False: there is none.
static bool next_session(struct coordinator_visit *v)
{
    struct coordinator_sessions *sessions = v->sessions;
    const struct coordinator_session *s = NULL;
    if (v->one) {
        s = v->slot++ ? NULL : coordinator_session_any(sessions, v->one);
        s = coordinator_visit_tells(v, s) ? s : NULL;
    }
    while (!v->one && !s && v->slot < sessions->n_slots) {
        s = sessions->slots[v->slot++];
        s = coordinator_visit_tells(v, s) ? s : NULL;
    }
    if (s)
        coordinator_telling_begin(&v->telling, s);
    return s != NULL;
}

// Who is no member is dirty only if we say so.
static void told_half(struct coordinator_visit *v)
{
    struct coordinator_session *s = coordinator_session_any(v->sessions, v->telling.session);
    if (s && coordinator_returned_any(s, v->w))
        coordinator_session_dirty(s, v->w);
}

// It has not taken what it was told. Who is a member is told again; of another one nobody knows what it has now.
static void not_taken(struct coordinator_visit *v, struct coordinator_session *s)
{
    struct coordinator_worker *w = v->w;
    if (coordinator_session_has_member(s, w)) {
        coordinator_session_doubt(s, w);
    } else if (coordinator_returned_any(s, w)) {
        coordinator_returned_forget(s, w, NULL);
        coordinator_session_drop_at(s->sessions, s->id, w);
    }
}

// Makes one call. False: all has been told.
static bool tell_one(struct coordinator_visit *v)
{
    if (v->n_unknown) {
        tell_drop(v);
        return true;
    }
    do {
        struct session_call *call = coordinator_alloc(sizeof(*call));
        *call = (struct session_call){.v = v,
                                      .session = v->telling.session,
                                      .incarnation = v->telling.incarnation,
                                      .epoch = v->telling.epoch};
        enum coordinator_told told =
            coordinator_telling_next(&v->telling, v->sessions, v->w, layout_told, rows_told, call);
        if (told == COORDINATOR_TOLD) {
            v->in_flight++;
            return true;
        }
        free(call);
        // Told again: a worker that is JOINING is dirty by then.
        if (told == COORDINATOR_TOLD_CHANGED && v->one)
            coordinator_visit_note(v, COMMON_ABORTED, "the session has changed meanwhile");
        else if (told == COORDINATOR_TOLD_CHANGED)
            told_half(v);
    } while (next_session(v));
    return false;
}

// A visit for all sessions says of all at once which commits are over: those below the oldest that is under way in any of them,
// and nothing of sessions that have changed meanwhile. The worker may have rows of later ones frozen, from its files too, and of
// sessions that have changed those of any commit, also of an earlier life of the coordinator.
static bool may_be_frozen(const struct coordinator_visit *v, const struct coordinator_session *s)
{
    return s->last_commit >= v->settled || s->dirtied > v->passed;
}

// A visit for the session alone says the rest, now and, where one of its own is under way, after that one (attach.c).
static void settle_rest(const struct coordinator_visit *v, struct coordinator_session *s)
{
    const struct coordinator_sessions *sessions = v->sessions;
    if (coordinator_commits_settled(&sessions->commits, sessions->core->term, s->id) <= s->last_commit)
        s->frozen_to = s->last_commit;
    coordinator_session_doubt(s, v->w);
}

static void visit_succeed(struct coordinator_visit *v)
{
    struct coordinator_sessions *sessions = v->sessions;
    struct coordinator_worker *w = v->w;
    if (v->one) {
        struct coordinator_visit was = *v;
        visit_free(v);
        was.done(was.arg, COMMON_OK, "");
        return;
    }
    w->fresh = false;
    coordinator_worker_set_state(w, COORDINATOR_WORKER_ACTIVE);
    coordinator_news_store_process(sessions, w); // before anything that it is given from now on
    for (uint32_t i = 0; i < v->n_refused; i++) {
        struct coordinator_session *s = coordinator_session_any(sessions, v->refused[i]);
        if (s)
            not_taken(v, s);
    }
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        struct coordinator_session *s = sessions->slots[i];
        bool part = s && is_part_of(s, w); // also one that keeps returned copies: it may be a member again
        if (part && may_be_frozen(v, s))
            settle_rest(v, s);
        else if (part && coordinator_session_has_member(s, w) && v->stamp <= s->relearned)
            coordinator_session_doubt(s, w); // what it said then has been forgotten
        if (s && !coordinator_session_in_doubt(s, w))
            coordinator_session_told(s, w);
    }
    coordinator_worker_tell(w, WORKER_ACTIVE, INFO, "a worker is active worker=%s chunks=%" PRIu64, w->name,
                            w->chunks);
    visit_free(v);
}

static void tell_more(struct coordinator_visit *v)
{
    uint32_t window = v->one ? WINDOW_ONE : WINDOW;
    while (v->state == COORDINATOR_VISIT_TELLING && v->code == COMMON_OK && coordinator_visit_counts(v) &&
           v->in_flight < window)
        if (!tell_one(v))
            break;
    if (v->in_flight)
        return;
    if (!coordinator_visit_counts(v) || v->code != COMMON_OK) {
        coordinator_visit_fail(v, "cannot send a worker its layouts");
    } else if (v->state == COORDINATOR_VISIT_TELLING) {
        tell_settled(v);
    } else if (!v->one && v->w->dirty) { // layouts have changed meanwhile: these again
        v->w->dirty = false;
        v->slot = 0;
        v->again = true;
        v->since = v->passed;
        v->passed = v->sessions->dirties;
        coordinator_visit_set_state(v, COORDINATOR_VISIT_TELLING);
        tell_more(v);
    } else {
        visit_succeed(v);
    }
}

void coordinator_visit_tell(struct coordinator_visit *v)
{
    coordinator_visit_set_state(v, COORDINATOR_VISIT_TELLING);
    v->passed = v->sessions->dirties;
    v->telling.stage = COORDINATOR_TELLING_OVER;
    tell_more(v);
}
