// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rows/reshaping.h"

#include "common/base/clock.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/sync/named.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/unavailable.h"

void coordinator_reshape_fail(struct coordinator_reshape *r, const struct proto_status *status)
{
    struct proto_request *request = r->request;
    r->request = NULL;
    if (!request)
        return;
    if (r->wish.instead && !proto_request_over(request) && !r->sessions->core->stopping)
        r->wish.instead(r->wish.arg, request);
    else
        proto_request_fail_status(request, status);
}

void coordinator_reshape_fail_why(struct coordinator_reshape *r, enum common_code code,
                                  enum proto_reason reason, const char *text)
{
    struct proto_status status;
    proto_status_set(&status, code == COMMON_CANCELLED ? COMMON_UNAVAILABLE : code, reason, "%s", text);
    coordinator_reshape_fail(r, &status);
}

void coordinator_reshape_fail_code(struct coordinator_reshape *r, enum common_code code, const char *text)
{
    coordinator_reshape_fail_why(r, code, PROTO_REASON_NONE, text);
}

void coordinator_reshape_fail_stored(struct coordinator_reshape *r, enum common_code code, const char *text)
{
    coordinator_reshape_fail_why(r, code, coordinator_store_reason(code), text);
}

void coordinator_reshape_fail_copy(struct coordinator_reshape *r, enum common_code code, const char *text)
{
    bool not_there = code == COMMON_NOT_FOUND || code == COMMON_FAILED_PRECONDITION;
    coordinator_reshape_fail_code(r, not_there ? COMMON_UNAVAILABLE : code, text);
}

void coordinator_reshape_end(struct coordinator_reshape *r)
{
    struct coordinator_session *s = r->s;
    free(r);
    coordinator_session_release(s);
}

void coordinator_reshape_start(const struct coordinator_reshape *as, struct proto_request *request,
                               uint64_t id, enum coordinator_session_state state, coordinator_session_fn fn)
{
    struct coordinator_sessions *sessions = as->sessions;
    struct coordinator_session *s = coordinator_session_asked(sessions, request, id);
    if (!s) {
        struct proto_status status;
        coordinator_session_unknown(id, &status);
        struct coordinator_reshape none = *as;
        none.request = request;
        coordinator_reshape_fail(&none, &status);
        return;
    }
    struct coordinator_reshape *r = coordinator_alloc(sizeof(*r));
    *r = *as;
    r->request = request;
    if (coordinator_session_exclusive(s, state, fn, r) != COMMON_OK) {
        coordinator_reshape_fail_why(r, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                                     "too many operations are waiting for this session: try again");
        free(r);
    }
}

bool coordinator_reshape_gone(struct coordinator_reshape *r, struct coordinator_session *s)
{
    r->s = s;
    if (!s) {
        const char *text;
        enum common_code code = coordinator_gone(r->sessions->core, &text);
        coordinator_reshape_fail_why(r, code,
                                     code == COMMON_NOT_FOUND ? PROTO_REASON_NO_SESSION : PROTO_REASON_NONE,
                                     text);
        free(r);
        return true;
    }
    if (r->request && proto_request_over(r->request)) {
        coordinator_reshape_fail_code(r, COMMON_DEADLINE_EXCEEDED,
                                      "the deadline passed before the call was started");
        coordinator_reshape_end(r);
        return true;
    }
    s->last_used_ns = common_clock_ns();
    return false;
}

// ---- copying what a length cuts -----------------------------------------------------------------

enum common_code coordinator_reshape_plan_copy(struct coordinator_reshape *r, struct proto_status *status)
{
    struct coordinator_session *s = r->s;
    uint64_t ct = s->layout.chunk_tokens, start_at = r->length / ct * ct;
    const struct coordinator_chunk *cut = coordinator_layout_find(&s->layout, r->length / ct);
    if (r->length == start_at || !cut)
        return COMMON_OK;
    // After a restart its holder may have rows that steps appended: until it has said so, they are not dropped.
    if ((cut->known || cut->lost) && !coordinator_session_has_rows(s, start_at, r->length - start_at))
        return COMMON_OK;
    if (coordinator_session_missing(s, start_at, r->length - start_at, 0, status) != COMMON_OK)
        return status->code;
    r->cut = *cut;
    r->copy = (struct coordinator_chunk){.index = cut->index, .ready = true, .known = true};
    for (uint32_t i = 0; i < coordinator_chunk_copies(cut); i++)
        coordinator_chunk_add(&r->copy, coordinator_chunk_holder(cut, i), COORDINATOR_REPORT_HEARD);
    if (!coordinator_sessions_chunk_id(r->sessions, &r->copy.id))
        return proto_status_set(status, COMMON_UNAVAILABLE, PROTO_REASON_NONE,
                                "the store does not answer: try again");
    r->copying = true;
    return COMMON_OK;
}

void coordinator_reshape_send_copy(struct coordinator_reshape *r, uint64_t session, uint64_t incarnation,
                                   struct coordinator_gather *gather)
{
    Banyan__Pb__ChunkCopyRequest m = BANYAN__PB__CHUNK_COPY_REQUEST__INIT;
    m.term = r->sessions->core->term;
    m.from_chunk = r->cut.id;
    m.session = session;
    m.incarnation = incarnation;
    m.chunk = r->copy.id;
    m.rows = (uint32_t)(r->length % r->s->layout.chunk_tokens);
    for (uint32_t i = 0; i < coordinator_chunk_copies(&r->copy); i++) {
        r->instances[i] = coordinator_chunk_holder(&r->copy, i)->instance;
        coordinator_worker_call_gather(coordinator_chunk_holder(&r->copy, i),
                                       BANYAN__PB__METHOD__METHOD_CHUNK_COPY, &m.base, gather);
    }
}

enum common_code coordinator_reshape_copy_stands(const struct coordinator_reshape *r, enum common_code code,
                                                 const char **text)
{
    for (uint32_t i = 0; code == COMMON_OK && r->copying && i < coordinator_chunk_copies(&r->copy); i++)
        if (coordinator_chunk_holder(&r->copy, i)->instance != r->instances[i]) {
            *text = "a worker was restarted meanwhile: try again";
            code = COMMON_UNAVAILABLE;
        }
    return code;
}

void coordinator_reshape_copy_counts(struct coordinator_reshape *r)
{
    uint32_t made = 0;
    for (uint32_t i = 0; i < coordinator_chunk_copies(&r->copy); i++)
        made |= (uint32_t)(coordinator_chunk_holder(&r->copy, i)->instance == r->instances[i]) << i;
    coordinator_chunk_counts(r->sessions, &r->copy, made);
}

void coordinator_reshape_copy_when_right(struct coordinator_reshape *r, coordinator_checked_fn go)
{
    struct coordinator_chunk *cut = r->copying ? coordinator_layout_find(&r->s->layout, r->cut.index) : NULL;
    if (cut && cut->seal)
        coordinator_check_begin(r->s, cut, true, go, r);
    else
        go(r, COMMON_OK, "");
}

bool coordinator_reshape_copy_is_wrong(struct coordinator_reshape *r, enum common_code code, const char *text)
{
    struct proto_status status;
    if (code == COMMON_OK)
        return false;
    if (coordinator_session_missing(r->s, r->length - 1, 1, 0, &status) != COMMON_OK)
        coordinator_reshape_fail(r, &status);
    else
        coordinator_reshape_fail_code(r, COMMON_UNAVAILABLE, text);
    coordinator_reshape_end(r);
    return true;
}

void coordinator_reshape_doubt_copy(struct coordinator_reshape *r)
{
    for (uint32_t i = 0; r->copying && i < coordinator_chunk_copies(&r->copy); i++)
        coordinator_session_doubt(r->s, coordinator_chunk_holder(&r->copy, i));
}
