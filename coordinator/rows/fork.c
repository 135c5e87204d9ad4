// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rows/reshaping.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/failpoint.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/place/forget.h"
#include "coordinator/session/keys.h"
#include "coordinator/session/spec.h"
#include "coordinator/session/states.h"
#include "coordinator/sync/dropping.h"
#include "coordinator/sync/layout_send.h"
#include "coordinator/sync/recovery.h"
#include "coordinator/sync/unavailable.h"
#include "coordinator/tenants/quota.h"
#include "proto/model/spec.h"

static void fork_undo(struct coordinator_reshape *r)
{
    struct coordinator_session *fork = r->fork;
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session_drop(batch, fork->id);
    coordinator_store_submit(r->sessions->store, batch, NULL, NULL);
    coordinator_session_drop_at_workers(fork, NULL);
    coordinator_key_settle(fork, COMMON_UNAVAILABLE, "the fork was not made: try again");
    coordinator_session_destroy(fork);
}

static void fork_alone(void *arg, struct coordinator_session *s);

// From the beginning, behind whatever waits for its origin by now.
static void fork_restart(struct coordinator_reshape *r)
{
    struct coordinator_reshape as = {.sessions = r->sessions,
                                     .length = r->length,
                                     .key = r->key,
                                     .idle_ttl_ns = r->idle_ttl_ns,
                                     .wish = r->wish};
    memcpy(as.name, r->name, sizeof(as.name));
    struct proto_request *request = r->request;
    uint64_t id = r->s->id;
    coordinator_reshape_end(r);
    coordinator_reshape_start(&as, request, id, COORDINATOR_SESSION_FORKING, fork_alone);
}

// A holder of what the fork is to share was lost since it was begun: it would be in the fork's layout, and not know of the
// fork. So it is begun again, once others hold what that one did (failover.h), or the session is known to lack it.
static bool fork_again(struct coordinator_reshape *r)
{
    const struct coordinator_layout *layout = &r->s->layout;
    bool whole = true;
    for (uint32_t i = 0;
         i < layout->n && (uint64_t)layout->chunks[i].index * layout->chunk_tokens < r->length; i++)
        whole = whole && coordinator_session_chunk_whole(&layout->chunks[i]);
    if (!whole)
        fork_restart(r);
    return !whole;
}

// What was only kept as cache has gone: the fork is begun again. It has its origin alone until then.
static void fork_has_room(void *arg, bool made)
{
    struct coordinator_reshape *r = arg;
    if (made) {
        fork_restart(r);
        return;
    }
    coordinator_reshape_fail(r, &r->refusal);
    coordinator_reshape_end(r);
}

static void fork_stored(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("fork_stored");
    struct coordinator_reshape *r = arg;
    if (code != COMMON_OK) {
        fork_undo(r);
        coordinator_reshape_fail_stored(r, code, text);
        coordinator_reshape_end(r);
        return;
    }
    coordinator_session_enter(r->fork);
    coordinator_session_note(r->fork, SESSION_FORKED, INFO,
                             "a session was forked from %016" PRIx64 " session=%016" PRIx64
                             " tokens=%" PRIu64,
                             r->s->id, r->fork->id, r->length);
    if (r->wish.made)
        r->wish.made(r->s, r->length);
    coordinator_key_answer(r->request, r->fork);
    coordinator_key_settle(r->fork, COMMON_OK, "");
    r->request = NULL;
    for (uint32_t i = 0; i < r->fork->n_members; i++)
        if (!coordinator_worker_active(r->fork->members[i]))
            coordinator_session_dirty(r->fork, r->fork->members[i]);
    coordinator_reshape_end(r);
}

static void fork_copied(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("fork_copied");
    struct coordinator_reshape *r = arg;
    struct coordinator_session *fork = r->fork;
    code = coordinator_reshape_copy_stands(r, code, &text);
    if (code != COMMON_OK) {
        fork_undo(r);
        if (fork_again(r))
            return;
        coordinator_reshape_fail_copy(r, code, text);
        coordinator_reshape_end(r);
        return;
    }
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_whole_session(batch, fork);
    for (uint32_t l = 0; l < fork->spec->layers && r->length; l++)
        if (proto_spec_stores(fork->spec, l))
            coordinator_batch_range(batch, fork->id, l, 0, r->length);
    coordinator_store_submit(r->sessions->store, batch, fork_stored, r);
}

// What its chunks count for: it keeps those that it shares when its origin goes.
static uint64_t fork_quota(const struct coordinator_reshape *r)
{
    const struct coordinator_session *s = r->s;
    uint64_t ct = s->layout.chunk_tokens, bytes = 0;
    for (uint32_t i = 0; i < s->layout.n && (uint64_t)s->layout.chunks[i].index * ct < r->length; i++)
        bytes += coordinator_session_index_quota(s, s->layout.chunks[i].index);
    return bytes;
}

// The new session as it will be: in no table, nobody told.
static enum common_code make_fork(struct coordinator_reshape *r, struct proto_status *status)
{
    struct coordinator_session *s = r->s;
    uint64_t ct = s->layout.chunk_tokens;
    Banyan__Pb__Spec *spec = coordinator_spec_copy(s->spec);
    spec->idle_ttl_ns = r->idle_ttl_ns || r->wish.instead ? r->idle_ttl_ns : spec->idle_ttl_ns;
    uint64_t bytes = fork_quota(r);
    enum common_code code = coordinator_quota_take(s->use, COORDINATOR_QUOTA_BYTES, bytes, status);
    if (code == COMMON_OK) {
        coordinator_quota_give(s->use, COORDINATOR_QUOTA_BYTES, bytes); // its chunks will count
        code = coordinator_session_new(r->sessions, r->name, s->tenant, spec, &r->fork, status);
    }
    if (code != COMMON_OK) {
        banyan__pb__spec__free_unpacked(spec, NULL);
        if (code == COMMON_ALREADY_EXISTS)
            proto_status_set(status, code, PROTO_REASON_NAME_TAKEN,
                             "the fork cannot be named %s: another session has this name", r->name);
        return code;
    }
    coordinator_key_enter(r->fork, r->key);
    r->fork->origin = s->id;
    const struct coordinator_session *states = coordinator_states_of(s);
    r->fork->states = states ? states->id : 0;
    coordinator_session_set_floor(r->fork, r->length ? s->floor : 0);
    for (uint32_t i = 0; i < s->n_members; i++)
        if (coordinator_worker_active(s->members[i]))
            coordinator_session_add_member(r->fork, s->members[i]);
    for (uint32_t i = 0; i < s->layout.n && ((uint64_t)s->layout.chunks[i].index + 1) * ct <= r->length;
         i++) {
        struct coordinator_chunk chunk = s->layout.chunks[i];
        chunk.moving = false;
        coordinator_chunk_call_off(&chunk);
        chunk.checking = 0;
        chunk.asked = 0;
        coordinator_chunk_counts(r->sessions, &chunk, UINT32_MAX);
        if (!coordinator_session_put_chunk(r->fork, &chunk))
            abort();
    }
    coordinator_chunk_counts(r->sessions, &r->copy, UINT32_MAX);
    if (r->copying && !coordinator_session_put_chunk(r->fork, &r->copy))
        abort();
    for (uint32_t l = 0; l < spec->layers && r->length; l++)
        if (proto_spec_stores(spec, l) && !coordinator_rangeset_add(&r->fork->layers[l], 0, r->length, NULL))
            abort();
    coordinator_session_count_tokens(r->fork);
    return COMMON_OK;
}

static void fork_copy(void *arg, enum common_code checked, const char *text)
{
    struct coordinator_reshape *r = arg;
    struct proto_status status;
    if (coordinator_reshape_copy_is_wrong(r, checked, text) || fork_again(r))
        return;
    if (make_fork(r, &status) != COMMON_OK) {
        r->refusal = status;
        if (status.code == COMMON_RESOURCE_EXHAUSTED &&
            r->sessions->hooks->make_room(r->sessions, &status, r->s->tenant, r->s, fork_has_room, r))
            return;
        coordinator_reshape_fail(r, &status);
        coordinator_reshape_end(r);
        return;
    }
    struct coordinator_gather *gather = coordinator_gather_new(&r->sessions->core->turn, fork_copied, r);
    for (uint32_t i = 0; i < r->fork->n_members; i++)
        coordinator_layout_send_all(r->fork, r->fork->members[i], gather);
    if (r->copying)
        coordinator_reshape_send_copy(r, r->fork->id, r->fork->incarnation, gather);
    coordinator_gather_seal(gather);
}

static void fork_alone(void *arg, struct coordinator_session *s)
{
    COMMON_FAILPOINT("fork_begun");
    struct coordinator_reshape *r = arg;
    struct proto_status status;
    if (coordinator_reshape_gone(r, s))
        return;
    if (coordinator_key_known(r->sessions, s->tenant, r->key, r->request)) { // made while this one waited
        coordinator_reshape_end(r);
        return;
    }
    uint64_t shortest = coordinator_session_length(s);
    enum common_code code = coordinator_session_missing(s, 0, r->length ? r->length : 1, 0, &status);
    if (code == COMMON_OK && r->length > shortest)
        code = coordinator_session_unsettled_any(s, r->length, &status);
    if (code == COMMON_OK && r->length > shortest)
        code = proto_status_set(&status, COMMON_OUT_OF_RANGE, PROTO_REASON_PAST_END,
                                "a fork at %" PRIu64 " is past the end: the shortest layer has %" PRIu64
                                " tokens",
                                r->length, shortest);
    if (code == COMMON_OK)
        code = coordinator_forget_check(s, r->length, "a fork", &status);
    if (code == COMMON_OK)
        code = coordinator_reshape_plan_copy(r, &status);
    if (code != COMMON_OK) {
        coordinator_reshape_fail(r, &status);
        coordinator_reshape_end(r);
        return;
    }
    coordinator_reshape_copy_when_right(r, fork_copy);
}

void coordinator_handle_session_fork(void *arg, struct proto_request *request)
{
    const Banyan__Pb__SessionForkRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = coordinator_session_asked(arg, request, m->session);
    struct proto_status status;
    // A fork is its origin's tenant's, whoever asks.
    uint32_t tenant = s ? s->tenant : proto_request_identity(request)->tenant;
    if (coordinator_key_known(arg, tenant, m->key, request) ||
        (s && coordinator_park(s, request, coordinator_handle_session_fork, arg)))
        return;
    if (coordinator_name_check(m->name, &status) != COMMON_OK ||
        coordinator_states_check(arg, tenant, m->name, &status) != COMMON_OK) {
        proto_request_fail_status(request, &status);
        return;
    }
    struct coordinator_reshape as = {
        .sessions = arg, .length = m->length, .key = m->key, .idle_ttl_ns = m->idle_ttl_ns};
    snprintf(as.name, sizeof(as.name), "%s", m->name);
    coordinator_reshape_start(&as, request, m->session, COORDINATOR_SESSION_FORKING, fork_alone);
}

void coordinator_session_fork_for(struct coordinator_session *s, struct proto_request *request,
                                  const struct coordinator_fork_wish *wish)
{
    struct coordinator_reshape as = {.sessions = s->sessions,
                                     .length = wish->length,
                                     .key = wish->key,
                                     .idle_ttl_ns = wish->idle_ttl_ns,
                                     .wish = *wish};
    snprintf(as.name, sizeof(as.name), "%s", wish->name);
    as.wish.name = NULL; // the caller's
    coordinator_reshape_start(&as, request, s->id, COORDINATOR_SESSION_FORKING, fork_alone);
}
