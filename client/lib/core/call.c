// SPDX-License-Identifier: Apache-2.0
// A call and its retries:
//
//                    answer, failure, cancel
//     OVER ─start─▶ SENT ──────────────────────────▶ OVER
//      │            │  ▲                             ▲ ▲
//      │       lost;│  │timer                        │ │
//      │       again▼  │          cancel             │ │
//      │          RESTING ───────────────────────────┘ │
//      │             │ refused by the channel          │
//      └─refused──▶ REFUSED ───next turn of the loop───┘
//
// A refusal waits for a turn of its own because done never runs on the stack of client_call_start. It needs
// no memory: its mail and its text lie in the call.
#include "client/lib/core/call.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/endpoints.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/core/wait.h"
#include "common/base/failpoint.h"
#include "common/loop/machine.h"

#define BACKOFF_FIRST_NS (10 * COMMON_NS_PER_MS)
#define BACKOFF_MAX_NS   (500 * COMMON_NS_PER_MS)

// ---- calls ------------------------------------------------------------------------------------------------

static void call_assert(const struct client_call *call)
{
    assert((call->state == CLIENT_CALL_RESTING) == (call->timer != NULL));
    assert(call->state == CLIENT_CALL_OVER || *call->at == call);
    assert(call->state != CLIENT_CALL_REFUSED || call->refusal.code != COMMON_OK);
}

#define TO(state) (1u << CLIENT_CALL_##state)
static const struct common_machine call_machine = {
    .name = "call",
    .n = CLIENT_CALL_STATES,
    .states = {"over", "sent", "resting", "refused"},
    .next = {[CLIENT_CALL_OVER] = TO(SENT) | TO(REFUSED),
             [CLIENT_CALL_SENT] = TO(OVER) | TO(RESTING),
             [CLIENT_CALL_RESTING] = TO(OVER) | TO(SENT) | TO(REFUSED),
             [CLIENT_CALL_REFUSED] = TO(OVER)},
};
#undef TO

static void call_move(struct client_call *call, enum client_call_state to)
{
    common_machine_move(&call_machine, call->state, to);
    if (call->state == CLIENT_CALL_OVER) {
        struct client_call **head = &call->client->calls;
        call->next = *head;
        call->at = head;
        if (*head)
            (*head)->at = &call->next;
        *head = call;
    }
    if (call->state == CLIENT_CALL_RESTING) {
        common_timer_free(call->timer);
        call->timer = NULL;
    }
    if (to == CLIENT_CALL_OVER) {
        call->client->ended++;
        *call->at = call->next;
        if (call->next)
            call->next->at = call->at;
    }
    call->state = to;
    call_assert(call);
}

static void call_end(struct client_call *call, banyan_code code, const struct proto_message *message,
                     const banyan_error *error)
{
    call_move(call, CLIENT_CALL_OVER);
    call->done(call, code, message, error); // may free the call
}

// That it is out over, or was.
static struct proto_channel *channel_of(const struct client_call *call)
{
    return call->via;
}

static void explain(const struct client_call *call, const struct proto_reply *reply, banyan_error *error)
{
    const char *endpoint = call->client->endpoint;
    bool coordinator = !call->channel;
    if (reply->status) {
        client_error_from_pb(reply->status, error);
        error->code = (banyan_code)reply->code;
    } else if (reply->code == COMMON_CANCELLED) {
        client_error_set(error, BANYAN_CANCELLED, "the call was cancelled: its client disconnects");
    } else if (!call->lost) {
        client_error_set(error, (banyan_code)reply->code, "%s%s: %s",
                         coordinator ? "coordinator at " : "worker", coordinator ? endpoint : "",
                         reply->text);
    } else if (coordinator) {
        client_error_set(error, (banyan_code)reply->code,
                         "cannot reach the coordinator at %s: is banyan-coordinator running there? (%s)",
                         endpoint, reply->text);
    } else {
        client_error_set(error, (banyan_code)reply->code, "cannot reach the worker: %s", reply->text);
    }
}

static void send_call(struct client_call *call);

static void on_rested(void *arg)
{
    send_call(arg);
}

// OK: the call rests, and is sent again. Else *why is the reason why it is not.
static enum common_code call_retry(struct client_call *call, struct common_error *why)
{
    uint64_t left = common_clock_left(call->deadline_ns);
    if (!call->idempotent || call->cancelled || atomic_load(&call->client->closing) || left == 0)
        return why->code;
    struct common_timer *timer;
    if (common_timer_new(call->client->loop, on_rested, call, &timer) != COMMON_OK)
        return common_error_set(why, COMMON_RESOURCE_EXHAUSTED, "out of memory to repeat a call");
    call->retried = true;
    common_timer_start(timer, call->backoff_ns < left ? call->backoff_ns : left, false);
    call->backoff_ns = call->backoff_ns * 2 < BACKOFF_MAX_NS ? call->backoff_ns * 2 : BACKOFF_MAX_NS;
    call->timer = timer;
    call_move(call, CLIENT_CALL_RESTING);
    return COMMON_OK;
}

// Of several coordinators this one has said that it does not serve.
static bool is_refused(const struct client_call *call, const struct proto_reply *reply)
{
    return !call->channel && client_endpoints_several(call->client) && reply->code == COMMON_OK &&
           call->method == BANYAN__PB__METHOD__METHOD_HEALTH_CHECK &&
           !((const Banyan__Pb__HealthCheckReply *)reply->message->body)->serving;
}

static void on_reply(void *arg, const struct proto_reply *reply)
{
    COMMON_FAILPOINT("reply_read");
    struct client_call *call = arg;
    struct common_error moved = {.code = COMMON_UNAVAILABLE};
    bool moving = call->moving, refused = is_refused(call, reply);
    call->moving = false;
    if (refused && call->via == call->client->channel)
        client_endpoints_refused(call->client);
    if ((moving || refused) && call_retry(call, &moved) == COMMON_OK)
        return;
    if (reply->code == COMMON_OK) {
        call_end(call, BANYAN_OK, reply->message, NULL);
        return;
    }
    struct proto_reply told = *reply;
    if (!reply->status && reply->code == COMMON_UNAVAILABLE) {
        struct common_error why = {.code = COMMON_UNAVAILABLE};
        told.code = call_retry(call, &why);
        if (told.code == COMMON_OK)
            return;
        call->lost = told.code == COMMON_UNAVAILABLE;
        if (!call->lost) {
            banyan_error error;
            client_error_set(&error, (banyan_code)why.code, "%s", why.message);
            call_end(call, error.code, NULL, &error);
            return;
        }
    } else if (!reply->status && reply->code == COMMON_DEADLINE_EXCEEDED &&
               !proto_channel_connected(channel_of(call))) {
        told.code = COMMON_UNAVAILABLE; // there was no peer to be late
        call->lost = true;
    }
    // The first sending did the work and its answer was lost.
    if (call->retried && call->method == BANYAN__PB__METHOD__METHOD_SESSION_DELETE &&
        reply->code == COMMON_NOT_FOUND) {
        call_end(call, BANYAN_OK, NULL, NULL);
        return;
    }
    banyan_error error = {0};
    if (moving && told.code == COMMON_CANCELLED && !call->cancelled && !atomic_load(&call->client->closing))
        client_error_set(&error, BANYAN_UNAVAILABLE,
                         "another coordinator is serving now: the call may or may not have been carried out");
    else
        explain(call, &told, &error);
    call_end(call, error.code, NULL, &error);
}

static void tell_refusal(void *arg)
{
    struct client_call *call = arg;
    banyan_error error;
    client_error_set(&error, (banyan_code)call->refusal.code, "%s", call->refusal.message);
    call_end(call, error.code, NULL, &error);
}

static void call_refuse(struct client_call *call)
{
    call_move(call, CLIENT_CALL_REFUSED);
    common_loop_mail(call->client->loop, &call->mail, tell_refusal, call);
}

static void send_call(struct client_call *call)
{
    COMMON_FAILPOINT("call_sent");
    struct proto_call out = {
        .method = call->method,
        .body = call->body,
        .tensors = call->tensors,
        .n_tensors = call->n_tensors,
        .deadline_ns = call->deadline_ns,
        .done = on_reply,
        .arg = call,
    };
    call->via = call->channel ? call->channel : call->client->channel;
    if (proto_channel_call(call->via, &out, &call->id, &call->refusal) == COMMON_OK)
        call_move(call, CLIENT_CALL_SENT);
    else
        call_refuse(call);
}

void client_call_start(struct client_call *call)
{
    call->state = CLIENT_CALL_OVER;
    call->timer = NULL;
    call->backoff_ns = BACKOFF_FIRST_NS;
    call->via = NULL;
    call->retried = call->lost = call->cancelled = call->moving = false;
    if (!atomic_load(&call->client->closing)) {
        send_call(call);
        return;
    }
    common_error_set(&call->refusal, COMMON_CANCELLED, "the call was cancelled: its client disconnects");
    call_refuse(call);
}

void client_call_cancel(struct client_call *call)
{
    if (call->state == CLIENT_CALL_OVER || call->state == CLIENT_CALL_REFUSED)
        return; // ended, or about to be notified
    call->cancelled = true;
    if (call->state == CLIENT_CALL_SENT) {
        proto_channel_cancel(channel_of(call), call->id);
        return;
    }
    banyan_error error = {0};
    client_error_set(&error, BANYAN_CANCELLED, "the call was cancelled: its client disconnects");
    call_end(call, BANYAN_CANCELLED, NULL, &error);
}

void client_op_add(struct banyan_client *client, struct client_op *op, void (*cancel)(struct client_op *op))
{
    op->cancel = cancel;
    op->next = client->ops;
    op->at = &client->ops;
    if (client->ops)
        client->ops->at = &op->next;
    client->ops = op;
}

void client_op_remove(struct client_op *op)
{
    *op->at = op->next;
    if (op->next)
        op->next->at = op->at;
}

void client_calls_cancel_all(struct banyan_client *client)
{
    for (struct client_op *op = client->ops, *next; op; op = next) {
        next = op->next; // cancelling one ends at most that one
        op->cancel(op);
    }
    // Calls that wait for their timer; those in channels end with them. done may end others, so start over
    // after each.
    struct client_call *call = client->calls;
    while (call) {
        if (call->state == CLIENT_CALL_RESTING) {
            client_call_cancel(call);
            call = client->calls;
        } else {
            call = call->next;
        }
    }
}

// One after the other as they were begun; the list has the last one first. A caller that is notified of its
// call's end may end others: then the rest is looked at again.
void client_calls_move(struct banyan_client *client, struct proto_channel *from)
{
    for (bool all = false; !all;) {
        size_t n = 0;
        for (struct client_call *call = client->calls; call; call = call->next)
            n++;
        struct client_call **calls = malloc((n + 1) * sizeof *calls);
        if (!calls)
            return; // they end with the link, or at their deadlines
        n = 0;
        for (struct client_call *call = client->calls; call; call = call->next)
            if (!call->channel && (call->state == CLIENT_CALL_RESTING || call->via == from))
                calls[n++] = call;
        all = true;
        for (uint64_t ended = client->ended; n > 0 && (all = client->ended == ended);) {
            struct client_call *call = calls[--n];
            call->backoff_ns = BACKOFF_FIRST_NS;
            if (call->state == CLIENT_CALL_RESTING) {
                common_timer_start(call->timer, 0, false);
            } else if (call->state == CLIENT_CALL_SENT) {
                call->moving = true;
                proto_channel_cancel(call->via, call->id);
            }
        }
        free(calls);
    }
}

bool client_call_lost(const struct client_call *call)
{
    return call->lost;
}

// ---- blocking calls ---------------------------------------------------------------------------------------

void client_run(struct banyan_client *client, struct common_mail *mail, common_loop_fn fn, void *arg,
                struct client_wait *wait)
{
    if (!common_loop_borrow(client->loop, fn, arg, &wait->done))
        common_loop_mail(client->loop, mail, fn, arg);
    client_wait_for(wait);
}

struct unary {
    struct client_call call;
    struct client_wait wait;
    client_take_fn take;
    void *arg;
    banyan_code code;
    banyan_error error;
};

static void on_unary_done(struct client_call *call, banyan_code code, const struct proto_message *message,
                          const banyan_error *error)
{
    struct unary *unary = (struct unary *)call;
    unary->code = code;
    if (code != BANYAN_OK)
        unary->error = *error;
    else if (unary->take && message && message->body)
        unary->code = unary->take(unary->arg, message->body, &unary->error);
    else if (unary->take)
        unary->code = client_error_set(&unary->error, BANYAN_INTERNAL, "the coordinator's answer is empty");
    common_loop_answered(call->client->loop);
    client_wait_signal(&unary->wait);
}

static void start_unary(void *arg)
{
    client_call_start(arg);
}

banyan_code client_unary(struct banyan_client *client, uint32_t method, const ProtobufCMessage *body,
                         bool idempotent, uint64_t timeout_ns, client_take_fn take, void *arg,
                         banyan_error *error)
{
    banyan_code code = client_check_blocking(client, error);
    if (code != BANYAN_OK)
        return code;
    struct unary unary = {
        .call = {.client = client,
                 .method = method,
                 .body = body,
                 .deadline_ns = common_clock_after(timeout_ns ? timeout_ns : client->timeout_ns),
                 .idempotent = idempotent,
                 .done = on_unary_done},
        .take = take,
        .arg = arg,
    };
    client_run(client, &unary.call.mail, start_unary, &unary.call, &unary.wait);
    if (unary.code != BANYAN_OK && error)
        *error = unary.error;
    return unary.code;
}
