// SPDX-License-Identifier: Apache-2.0
// A call and its retries:
//
//     start ─▶ IN_CHANNEL ──answer──▶ done
//       │        ▲     └─lost, idempotent, time left─▶ WAITING (timer) ──▶ IN_CHANNEL
//       └─refused by the channel─▶ REFUSED (posted) ─▶ done
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/internal.h"
#include "proto/status.h"

#define BACKOFF_FIRST_NS (10 * COMMON_NS_PER_MS)
#define BACKOFF_MAX_NS   (500 * COMMON_NS_PER_MS)

// ---- waiting ----------------------------------------------------------------------------------------------

void client_wait_signal(struct client_wait *wait)
{
    // The waiter's frame may be gone after the store. The wake then hits an address where nobody waits.
    _Atomic uint32_t *word = &wait->done;
    atomic_store_explicit(word, 1, memory_order_release);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void client_wait_for(struct client_wait *wait)
{
    while (!atomic_load_explicit(&wait->done, memory_order_acquire))
        syscall(SYS_futex, &wait->done, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

// ---- calls ------------------------------------------------------------------------------------------------

static void link_call(struct client_call *call)
{
    struct client_call **head = &call->client->calls;
    call->next = *head;
    call->at = head;
    if (*head)
        (*head)->at = &call->next;
    *head = call;
    call->live = true;
}

static void unlink_call(struct client_call *call)
{
    *call->at = call->next;
    if (call->next)
        call->next->at = call->at;
    call->live = false;
}

static void finish(struct client_call *call, banyan_code code, const struct proto_message *message,
                   const banyan_error *error)
{
    unlink_call(call);
    common_timer_free(call->timer);
    call->timer = NULL;
    call->done(call, code, message, error); // may free the call
}

static struct proto_channel *channel_of(const struct client_call *call)
{
    return call->channel ? call->channel : call->client->channel;
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

static void on_timer(void *arg)
{
    struct client_call *call = arg;
    common_timer_free(call->timer);
    call->timer = NULL;
    send_call(call);
}

// True when the call waits to be sent again.
static bool retry(struct client_call *call)
{
    uint64_t left = common_clock_left(call->deadline_ns);
    if (!call->idempotent || call->cancelled || atomic_load(&call->client->closing) || left == 0)
        return false;
    if (common_timer_new(call->client->loop, on_timer, call, &call->timer) != COMMON_OK)
        return false;
    call->retried = true;
    common_timer_start(call->timer, call->backoff_ns < left ? call->backoff_ns : left, false);
    call->backoff_ns = call->backoff_ns * 2 < BACKOFF_MAX_NS ? call->backoff_ns * 2 : BACKOFF_MAX_NS;
    return true;
}

static void on_reply(void *arg, const struct proto_reply *reply)
{
    struct client_call *call = arg;
    call->in_channel = false;
    if (reply->code == COMMON_OK) {
        finish(call, BANYAN_OK, reply->message, NULL);
        return;
    }
    struct proto_reply told = *reply;
    if (!reply->status && reply->code == COMMON_UNAVAILABLE) {
        if (retry(call))
            return;
        call->lost = true;
    } else if (!reply->status && reply->code == COMMON_DEADLINE_EXCEEDED &&
               !proto_channel_connected(channel_of(call))) {
        told.code = COMMON_UNAVAILABLE; // nobody was there to be late
        call->lost = true;
    }
    // The first sending did the work and its answer was lost.
    if (call->retried && call->method == BANYAN__PB__METHOD__METHOD_SESSION_DELETE &&
        reply->code == COMMON_NOT_FOUND) {
        finish(call, BANYAN_OK, NULL, NULL);
        return;
    }
    banyan_error error = {0};
    explain(call, &told, &error);
    finish(call, error.code, NULL, &error);
}

static void tell_refusal(void *arg)
{
    struct client_call *call = arg;
    banyan_error *failure = call->failure;
    call->failure = NULL;
    finish(call, failure->code, NULL, failure);
    free(failure);
}

static void refuse(struct client_call *call, banyan_code code, const char *text)
{
    call->failure = calloc(1, sizeof *call->failure);
    if (!call->failure)
        abort();
    client_error_set(call->failure, code, "%s", text);
    common_loop_post(call->client->loop, tell_refusal, call);
}

static void send_call(struct client_call *call)
{
    struct common_error err = {0};
    struct proto_call out = {
        .method = call->method,
        .body = call->body,
        .tensors = call->tensors,
        .n_tensors = call->n_tensors,
        .deadline_ns = call->deadline_ns,
        .done = on_reply,
        .arg = call,
    };
    call->in_channel = true;
    enum common_code code = proto_channel_call(channel_of(call), &out, &call->id, &err);
    if (code == COMMON_OK)
        return;
    call->in_channel = false;
    refuse(call, (banyan_code)code, err.message);
}

void client_call_start(struct client_call *call)
{
    call->timer = NULL;
    call->failure = NULL;
    call->backoff_ns = BACKOFF_FIRST_NS;
    call->in_channel = call->retried = call->lost = call->cancelled = false;
    link_call(call);
    if (atomic_load(&call->client->closing))
        refuse(call, BANYAN_CANCELLED, "the call was cancelled: its client disconnects");
    else
        send_call(call);
}

void client_call_cancel(struct client_call *call)
{
    if (!call->live || call->failure)
        return; // ended, or about to be told
    call->cancelled = true;
    if (call->in_channel) {
        proto_channel_cancel(channel_of(call), call->id);
        return;
    }
    banyan_error error = {0};
    client_error_set(&error, BANYAN_CANCELLED, "the call was cancelled: its client disconnects");
    finish(call, BANYAN_CANCELLED, NULL, &error);
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
        if (call->timer) {
            client_call_cancel(call);
            call = client->calls;
        } else {
            call = call->next;
        }
    }
}

bool client_call_lost(const struct client_call *call)
{
    return call->lost;
}

// ---- blocking calls ---------------------------------------------------------------------------------------

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
    common_loop_post(client->loop, start_unary, &unary.call);
    client_wait_for(&unary.wait);
    if (unary.code != BANYAN_OK && error)
        *error = unary.error;
    return unary.code;
}
