// SPDX-License-Identifier: Apache-2.0
// Truncates, and the state of a session, which says what became of them.
//
// A truncate that has failed may still be on its way, or done without an answer: it is in doubt. It is
// settled by a call that takes its place in the session's chain of truncates, if it has not been done by
// then; else the answer names it.
//
//     none in doubt ──sent──▶ in doubt ──an answer, or settled──▶ none in doubt
#include "client/lib/session/truncate.h"

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/session/info.h"
#include "common/base/random.h"
#include "common/hash/hash.h"

#define SETTLE_TIMEOUT_NS COMMON_NS_PER_S // after an answer that says no: the coordinator is there

banyan_code client_draw_key(uint64_t *key, banyan_error *error)
{
    do
        if (!common_random(key, sizeof *key))
            return client_error_set(error, BANYAN_INTERNAL, "cannot get random numbers");
    while (*key == 0);
    return BANYAN_OK;
}

void client_cuts_init(struct client_cuts *cuts, uint64_t last)
{
    pthread_mutex_init(&cuts->lock, NULL);
    cuts->last = last;
}

void client_cuts_fini(struct client_cuts *cuts)
{
    pthread_mutex_destroy(&cuts->lock);
}

banyan_code client_cuts_may_write(const struct banyan_session *session, banyan_error *error)
{
    if (!atomic_load_explicit(&session->cuts.doubted, memory_order_relaxed))
        return BANYAN_OK;
    return client_error_set(
        error, BANYAN_ABORTED,
        "a truncate has failed and may still take effect: read the session's state first");
}

#define STATES_KNOWN   1 // SessionTruncateRequest.states: nothing is to happen while there are some
#define STATES_SEEN_TO 2

struct cut_reply {
    uint64_t incarnation, cut, states;
};

static banyan_code take_cut(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    (void)error;
    const Banyan__Pb__SessionTruncateReply *reply = (const Banyan__Pb__SessionTruncateReply *)body;
    *(struct cut_reply *)arg = (struct cut_reply){reply->incarnation, reply->cut, reply->states};
    return BANYAN_OK;
}

// The lock is held. Sees to it that the truncate in doubt, if there is one, has been done or never will be.
static banyan_code settle(struct banyan_session *session, uint64_t timeout_ns, banyan_error *error)
{
    struct client_cuts *cuts = &session->cuts;
    uint64_t doubted = atomic_load(&cuts->doubted);
    if (!doubted)
        return BANYAN_OK;
    Banyan__Pb__SessionTruncateRequest request = BANYAN__PB__SESSION_TRUNCATE_REQUEST__INIT;
    request.session = session->id;
    request.length = UINT64_MAX; // past any end: a coordinator that does not know `settle` refuses it
    request.after = cuts->last;
    request.cut = common_mix64(doubted) | 1; // the same in each try to settle this one
    request.settle = true;
    struct cut_reply reply;
    banyan_code code = client_unary(session->client, BANYAN__PB__METHOD__METHOD_SESSION_TRUNCATE,
                                    &request.base, true, timeout_ns, take_cut, &reply, error);
    if (code == BANYAN_NOT_FOUND) // the session is gone, and the truncate with it
        atomic_store(&cuts->doubted, 0);
    if (code != BANYAN_OK)
        return code;
    if (reply.cut == doubted) // it was done
        atomic_store(&session->incarnation, reply.incarnation);
    if (reply.cut == doubted || reply.cut == request.cut)
        cuts->last = reply.cut; // else another client has truncated, as this handle's next calls report
    cuts->ended++;
    atomic_store(&cuts->doubted, 0);
    return BANYAN_OK;
}

// The lock is held, nothing is in doubt.
static banyan_code truncate_once(struct banyan_session *session, uint64_t length, bool seen_to,
                                 uint64_t *states, banyan_error *error)
{
    struct client_cuts *cuts = &session->cuts;
    Banyan__Pb__SessionTruncateRequest request = BANYAN__PB__SESSION_TRUNCATE_REQUEST__INIT;
    request.session = session->id;
    request.length = length;
    request.states = seen_to ? STATES_SEEN_TO : STATES_KNOWN;
    banyan_code code = BANYAN_OK;
    if (cuts->last) { // else the coordinator is of an older build
        request.after = cuts->last;
        code = client_draw_key(&request.cut, error);
    }
    if (code != BANYAN_OK)
        return code;
    struct cut_reply reply;
    code = client_unary(session->client, BANYAN__PB__METHOD__METHOD_SESSION_TRUNCATE, &request.base, true, 0,
                        take_cut, &reply, error);
    *states = code == BANYAN_OK ? reply.states : 0;
    if (*states) // nothing has happened
        return code;
    if (code == BANYAN_OK) {
        atomic_store(&session->incarnation, reply.incarnation);
        cuts->last = reply.cut;
        cuts->ended++;
        return code;
    }
    atomic_store(&cuts->doubted, request.cut);
    if (code != BANYAN_DEADLINE_EXCEEDED && code != BANYAN_CANCELLED)
        settle(session, SETTLE_TIMEOUT_NS, NULL); // it was refused; but a copy of it may be on its way
    return code;
}

banyan_code client_truncate(banyan_session *session, uint64_t length, bool seen_to, uint64_t *states,
                            banyan_error *error)
{
    client_sums_truncate(&session->sums, length);
    pthread_mutex_lock(&session->cuts.lock);
    banyan_code code = settle(session, 0, error);
    if (code == BANYAN_OK)
        code = truncate_once(session, length, seen_to, states, error);
    pthread_mutex_unlock(&session->cuts.lock);
    return code;
}

// ---- state --------------------------------------------------------------------------------------

struct info_reply {
    banyan_session_info *out;
    uint64_t cut;
};

static banyan_code take_info(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct info_reply *reply = arg;
    reply->cut = ((const Banyan__Pb__SessionInfoReply *)body)->cut;
    return client_info_from_pb((const Banyan__Pb__SessionInfoReply *)body, reply->out, error);
}

// What this hold has seen of truncates until now.
static banyan_code truncates_ended(struct banyan_session *session, uint64_t *out, banyan_error *error)
{
    if (pthread_mutex_trylock(&session->cuts.lock) != 0) { // one is under way, and says what it comes to
        *out = UINT64_MAX;
        return BANYAN_OK;
    }
    banyan_code code = settle(session, 0, error);
    *out = session->cuts.ended;
    pthread_mutex_unlock(&session->cuts.lock);
    return code;
}

banyan_code banyan_session_get_info(banyan_session *session, banyan_session_info *out, banyan_error *error)
{
    if (!session || !out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "session or out is NULL");
    uint64_t ended;
    banyan_code code = truncates_ended(session, &ended, error);
    if (code != BANYAN_OK)
        return code;
    Banyan__Pb__SessionInfoRequest request = BANYAN__PB__SESSION_INFO_REQUEST__INIT;
    request.session = session->id;
    struct info_reply reply = {.out = out};
    code = client_unary(session->client, BANYAN__PB__METHOD__METHOD_SESSION_INFO, &request.base, true, 0,
                        take_info, &reply, error);
    // What a truncate of this hold has said meanwhile is newer.
    if (code == BANYAN_OK && pthread_mutex_trylock(&session->cuts.lock) == 0) {
        if (session->cuts.ended == ended) {
            atomic_store(&session->incarnation, out->incarnation);
            session->cuts.last = reply.cut;
        }
        pthread_mutex_unlock(&session->cuts.lock);
    }
    return code;
}
