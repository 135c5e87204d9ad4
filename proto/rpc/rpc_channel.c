// SPDX-License-Identifier: Apache-2.0
// The common half of the calling end: calls, their deadlines, what waits for a link, and replies.
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/loop/machine.h"
#include "proto/rpc/transport.h"
#include "proto/stream/stream_hello.h"

enum { IDLE_MAX = 1024, CALLS_DEFAULT = 16384 };

// ---- deadlines: a binary heap ---------------------------------------------------------------------------

static void heap_put(struct proto_channel *channel, uint32_t at, struct proto_pending *call)
{
    channel->heap[at] = call;
    call->heap_at = at;
}

static void heap_up(struct proto_channel *channel, uint32_t at)
{
    struct proto_pending *call = channel->heap[at];
    while (at > 0 && channel->heap[(at - 1) / 2]->deadline_ns > call->deadline_ns) {
        heap_put(channel, at, channel->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_put(channel, at, call);
}

static void heap_down(struct proto_channel *channel, uint32_t at)
{
    struct proto_pending *call = channel->heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= channel->n_heap)
            break;
        if (child + 1 < channel->n_heap &&
            channel->heap[child + 1]->deadline_ns < channel->heap[child]->deadline_ns)
            child++;
        if (channel->heap[child]->deadline_ns >= call->deadline_ns)
            break;
        heap_put(channel, at, channel->heap[child]);
        at = child;
    }
    heap_put(channel, at, call);
}

static bool heap_add(struct proto_channel *channel, struct proto_pending *call)
{
    if (channel->n_heap == channel->heap_cap) {
        uint32_t cap = channel->heap_cap ? channel->heap_cap * 2 : 64;
        struct proto_pending **heap = realloc(channel->heap, cap * sizeof(*heap));
        if (!heap)
            return false;
        channel->heap = heap;
        channel->heap_cap = cap;
    }
    channel->heap[channel->n_heap] = call;
    heap_up(channel, channel->n_heap++);
    return true;
}

static void heap_remove(struct proto_channel *channel, struct proto_pending *call)
{
    uint32_t at = call->heap_at;
    assert(at < channel->n_heap && channel->heap[at] == call);
    struct proto_pending *last = channel->heap[--channel->n_heap];
    if (last == call)
        return;
    heap_put(channel, at, last);
    heap_up(channel, at);
    heap_down(channel, last->heap_at);
}

// One timer for all calls. It is not stopped when a call ends: it fires, looks and sleeps again, which costs
// less than a change a call.
static void arm_deadlines(struct proto_channel *channel)
{
    if (channel->n_heap == 0 || channel->heap[0]->deadline_ns >= channel->armed_ns)
        return;
    channel->armed_ns = channel->heap[0]->deadline_ns;
    common_timer_start(channel->timer, common_clock_left(channel->armed_ns), false);
}

// ---- life of a channel ----------------------------------------------------------------------------------

void proto_channel_ref(struct proto_channel *channel)
{
    channel->refs++;
}

void proto_channel_unref(struct proto_channel *channel)
{
    assert(channel->refs > 0);
    if (--channel->refs > 0)
        return;
    common_tls_unref(channel->tls);
    common_handle_table_free(channel->handles);
    while (!common_list_empty(&channel->idle)) {
        struct proto_pending *call = common_list_entry(channel->idle.next, struct proto_pending, link);
        common_list_remove(&call->link);
        free(call);
    }
    free(channel->heap);
    proto_scratch_fini(&channel->scratch);
    proto_pool_fini(&channel->pool);
    explicit_bzero(&channel->secret, sizeof channel->secret);
    explicit_bzero(channel->token, sizeof channel->token);
    free(channel);
}

static void on_deadlines(void *arg);

static bool wants_sums(enum proto_sums sums, const struct proto_endpoint *where)
{
    const char *said = sums == PROTO_SUMS_AUTO ? getenv("BANYAN_CHECKSUMS") : NULL;
    if (said && strcmp(said, "always") == 0)
        sums = PROTO_SUMS_ALWAYS;
    else if (said && strcmp(said, "never") == 0)
        sums = PROTO_SUMS_NEVER;
    return sums == PROTO_SUMS_ALWAYS ||
           (sums == PROTO_SUMS_AUTO && where->kind != PROTO_ENDPOINT_UNIX && !where->tls);
}

enum common_code proto_channel_open(struct common_loop *loop, const char *endpoint,
                                    const struct proto_channel_options *options, struct proto_channel **out,
                                    struct common_error *err)
{
    assert(common_loop_is_owner(loop));
    struct proto_endpoint where;
    enum common_code code = proto_endpoint_parse(endpoint, &where, err);
    if (code != COMMON_OK)
        return code;
    if (where.kind != PROTO_ENDPOINT_UNIX && where.port == 0)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "endpoint '%s': a port to connect to cannot be 0", endpoint);
    if (options->token && strlen(options->token) > COMMON_TOKEN_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "the token is longer than %d characters",
                                COMMON_TOKEN_MAX);
    if (where.tls && !options->tls)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "endpoint '%s' uses TLS: give --tls-ca FILE (tls_ca), the authority that "
                                "issued the server's certificate",
                                endpoint);
    if (where.tls && proto_role_is_daemon(options->role) &&
        !common_tls_says(options->tls, proto_role_uri(options->role)))
        return common_error_set(
            err, COMMON_PERMISSION_DENIED,
            "the certificate of --tls-cert does not contain %s: issue one for this role (banyanctl pki "
            "issue --role)",
            proto_role_uri(options->role));
    struct proto_channel *channel = calloc(1, sizeof *channel);
    if (!channel)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a channel");
    channel->tls = where.tls ? common_tls_ref(options->tls) : NULL;
    channel->peer_role = options->peer_role;
    channel->loop = loop;
    channel->ops = where.kind == PROTO_ENDPOINT_NNG_TCP ? &proto_nng_channel_ops : &proto_stream_channel_ops;
    channel->refs = 1;
    snprintf(channel->name, sizeof channel->name, "%s", options->name ? options->name : "");
    snprintf(channel->endpoint_text, sizeof channel->endpoint_text, "%s", endpoint);
    channel->role = options->role ? options->role : BANYAN__PB__ROLE__ROLE_CLIENT;
    if (options->token) {
        snprintf(channel->token, sizeof channel->token, "%s", options->token);
        channel->has_token = true;
    }
    if (options->secret) {
        channel->secret = *options->secret;
        channel->has_secret = true;
    }
    channel->payload_max = options->payload_max ? options->payload_max : PROTO_PAYLOAD_MAX;
    channel->send_max = options->send_max ? options->send_max : PROTO_PAYLOAD_MAX;
    channel->calls_max = options->calls_max ? options->calls_max : CALLS_DEFAULT;
    channel->quiet_ns = options->quiet_ns;
    channel->mute_ns = options->mute_ns;
    channel->sums = wants_sums(options->sums, &where);
    channel->state_fn = options->state;
    channel->refused_fn = options->refused;
    channel->failed_fn = options->failed;
    channel->state_arg = options->state_arg;
    channel->armed_ns = UINT64_MAX;
    common_list_init(&channel->waiting);
    common_list_init(&channel->sent);
    common_list_init(&channel->idle);
    channel->handles = common_handle_table_new(channel->calls_max, 1);
    code = COMMON_RESOURCE_EXHAUSTED;
    if (!channel->handles || common_timer_new(loop, on_deadlines, channel, &channel->timer) != COMMON_OK) {
        common_error_set(err, code, "out of memory for a channel");
        goto unref;
    }
    if (proto_keepalive_init(channel) != COMMON_OK) {
        common_error_set(err, code, "out of memory for a channel");
        goto free_timer;
    }
    code = channel->ops->open(channel, &where, err);
    if (code != COMMON_OK)
        goto free_keepalive;
    *out = channel;
    return COMMON_OK;

free_keepalive:
    proto_keepalive_fini(channel);
free_timer:
    common_timer_free(channel->timer);
unref:
    proto_channel_unref(channel);
    return code;
}

void proto_channel_set_token(struct proto_channel *channel, const char *token)
{
    if (!token || strlen(token) > COMMON_TOKEN_MAX)
        return;
    snprintf(channel->token, sizeof channel->token, "%s", token);
    channel->has_token = true;
}

bool proto_channel_connected(const struct proto_channel *channel)
{
    return !channel->closing && channel->ops->connected(channel);
}

uint32_t proto_channel_mutes(const struct proto_channel *channel)
{
    return channel->mutes;
}

bool proto_channel_own_host(const struct proto_channel *channel, char out[80])
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    if (!channel->ops->socket || !proto_channel_connected(channel) ||
        getsockname(channel->ops->socket(channel), (struct sockaddr *)&address, &len) != 0 ||
        (address.ss_family != AF_INET && address.ss_family != AF_INET6))
        return false;
    char text[80];
    proto_address_format((struct sockaddr *)&address, text);
    *strrchr(text, ':') = '\0';
    size_t at = *text == '[', end = strlen(text) - at;
    snprintf(out, 80, "%.*s", (int)(end - at), text + at);
    return true;
}

// ---- ends of calls --------------------------------------------------------------------------------------

static void call_assert(const struct proto_pending *call)
{
    assert(call->state != PROTO_CALL_WAITING || call->kept);
    assert(call->done);
}

#define TO(state) (1u << PROTO_CALL_##state)
static const struct common_machine call_machine = {
    .name = "call",
    .n = PROTO_CALL_STATES,
    .states = {"new", "waiting", "sent", "ended"},
    .next = {[PROTO_CALL_NEW] = TO(WAITING) | TO(SENT),
             [PROTO_CALL_WAITING] = TO(SENT) | TO(ENDED),
             [PROTO_CALL_SENT] = TO(ENDED),
             [PROTO_CALL_ENDED] = 0},
};
#undef TO

static void call_move(struct proto_pending *call, enum proto_pending_state to)
{
    common_machine_move(&call_machine, call->state, to);
    call->state = to;
    call_assert(call);
}

// Takes the call out of everything, then runs its callback, which may do anything, closing the channel
// included.
static void call_finish(struct proto_channel *channel, struct proto_pending *call,
                        const struct proto_reply *reply, bool tell)
{
    common_handle_remove(channel->handles, call->id);
    heap_remove(channel, call);
    common_list_remove(&call->link);
    if (call->state == PROTO_CALL_SENT)
        channel->ops->forget(channel, call, tell);
    proto_gather_free(call->kept);
    call_move(call, PROTO_CALL_ENDED);
    proto_reply_fn done = call->done;
    void *arg = call->arg;
    if (channel->n_idle < IDLE_MAX) {
        channel->n_idle++;
        common_list_push(&channel->idle, &call->link);
    } else {
        free(call);
    }
    done(arg, reply);
}

static void call_fail(struct proto_channel *channel, struct proto_pending *call, enum common_code code,
                      const char *text, bool tell)
{
    call_finish(channel, call, &(struct proto_reply){.code = code, .text = text}, tell);
}

void proto_channel_fail_call(struct proto_channel *channel, uint64_t id, enum common_code code,
                             const char *text)
{
    struct proto_pending *call = common_handle_get(channel->handles, id);
    if (call)
        call_fail(channel, call, code, text, false);
}

static void fail_list(struct proto_channel *channel, struct common_list *from, enum common_code code,
                      const char *text)
{
    struct common_list doomed; // what callbacks add meanwhile is spared
    char copy[COMMON_ERROR_BYTES];
    snprintf(copy, sizeof copy, "%s", text);
    proto_channel_ref(channel);
    common_list_move(from, &doomed);
    while (!common_list_empty(&doomed))
        call_fail(channel, common_list_entry(doomed.next, struct proto_pending, link), code, copy, false);
    proto_channel_unref(channel);
}

void proto_channel_fail_sent(struct proto_channel *channel, enum common_code code, const char *text)
{
    fail_list(channel, &channel->sent, code, text);
}

void proto_channel_fail_waiting(struct proto_channel *channel, enum common_code code, const char *text)
{
    fail_list(channel, &channel->waiting, code, text);
}

// A call that never left says why: there was no link.
static void call_fail_late(struct proto_channel *channel, struct proto_pending *call)
{
    const char *why = "no answer within the deadline";
    char copy[COMMON_ERROR_BYTES];
    if (call->state == PROTO_CALL_WAITING && *channel->trouble) {
        snprintf(copy, sizeof copy, "%s", channel->trouble);
        why = copy;
    }
    call_fail(channel, call, COMMON_DEADLINE_EXCEEDED, why, true);
}

static void on_deadlines(void *arg)
{
    struct proto_channel *channel = arg;
    proto_channel_ref(channel);
    channel->armed_ns = UINT64_MAX;
    uint64_t now = common_clock_ns();
    // As many as there are now: callbacks may add calls whose deadline has passed, too.
    for (uint32_t n = channel->n_heap; n > 0 && channel->n_heap > 0 && channel->heap[0]->deadline_ns <= now;
         n--)
        call_fail_late(channel, channel->heap[0]);
    if (!channel->closing)
        arm_deadlines(channel);
    proto_channel_unref(channel);
}

void proto_channel_cancel(struct proto_channel *channel, uint64_t id)
{
    assert(common_loop_is_owner(channel->loop));
    struct proto_pending *call = common_handle_get(channel->handles, id);
    if (call)
        call_fail(channel, call, COMMON_CANCELLED, "cancelled by the caller", true);
}

void proto_channel_close(struct proto_channel *channel)
{
    if (!channel)
        return;
    assert(common_loop_is_owner(channel->loop) && !channel->closing);
    channel->closing = true;
    // Calls that wait inside a fail_list further up the stack are on neither list, but in the heap.
    while (channel->n_heap > 0)
        call_fail(channel, channel->heap[0], COMMON_CANCELLED, "the channel was closed", false);
    channel->ops->close(channel);
    proto_keepalive_fini(channel);
    common_timer_free(channel->timer);
    proto_channel_unref(channel);
}

// ---- calls ----------------------------------------------------------------------------------------------

static struct proto_pending *call_take(struct proto_channel *channel)
{
    struct proto_pending *call;
    if (!common_list_empty(&channel->idle)) {
        call = common_list_entry(channel->idle.next, struct proto_pending, link);
        common_list_remove(&call->link);
        channel->n_idle--;
    } else {
        call = malloc(sizeof *call);
        if (!call)
            return NULL;
    }
    *call = (struct proto_pending){0};
    common_list_init(&call->link);
    return call;
}

static void call_give_back(struct proto_channel *channel, struct proto_pending *call)
{
    channel->n_idle++;
    common_list_push(&channel->idle, &call->link);
}

enum common_code proto_channel_call(struct proto_channel *channel, const struct proto_call *call,
                                    uint64_t *id, struct common_error *err)
{
    assert(common_loop_is_owner(channel->loop));
    const struct proto_method_info *info = proto_codec_method(call->method);
    if (channel->closing)
        return common_error_set(err, COMMON_CANCELLED, "the channel is being closed");
    if (!info || !call->body || call->body->descriptor != info->request)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "method %u does not exist or takes another message", call->method);
    if (call->deadline_ns == COMMON_NO_DEADLINE)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "%s: a call needs a deadline", info->name);
    struct proto_pending *pending = call_take(channel);
    if (!pending)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a call");
    pending->method = call->method;
    pending->deadline_ns = call->deadline_ns;
    pending->done = call->done;
    pending->arg = call->arg;
    enum common_code code = common_handle_add(channel->handles, pending, &pending->id);
    if (code != COMMON_OK) {
        common_error_set(err, code, "%u calls are waiting for answers from %s: the limit is reached",
                         channel->calls_max, channel->endpoint_text);
        goto give;
    }
    uint64_t left = common_clock_left(call->deadline_ns);
    struct proto_outgoing outgoing = {
        .kind = PROTO_FRAME_REQUEST,
        .method = call->method,
        .request = pending->id,
        .remaining_ns = left ? left : 1, // already passed: the timer will say so
        .credentials = channel->ops == &proto_nng_channel_ops && channel->has_token ? channel->token : NULL,
        .body = call->body,
        .tensors = call->tensors,
        .n_tensors = call->n_tensors,
        .summed = channel->sums,
    };
    struct proto_gather gather;
    code = proto_frame_encode(&channel->scratch, &outgoing, channel->send_max, &gather, err);
    if (code != COMMON_OK)
        goto remove_handle;
    bool ready = left > 0 && common_list_empty(&channel->waiting) && channel->ops->ready(channel);
    if (!heap_add(channel, pending) || (!ready && !(pending->kept = proto_gather_keep(&gather)))) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a call");
        goto remove_heap;
    }
    if (ready) {
        code = channel->ops->send(channel, pending, &gather, err);
        if (code != COMMON_OK)
            goto remove_heap;
    }
    call_move(pending, ready ? PROTO_CALL_SENT : PROTO_CALL_WAITING);
    common_list_push(ready ? &channel->sent : &channel->waiting, &pending->link);
    arm_deadlines(channel);
    if (ready)
        proto_keepalive_watch(channel);
    if (id)
        *id = pending->id;
    return COMMON_OK;

remove_heap:
    if (pending->heap_at < channel->n_heap && channel->heap[pending->heap_at] == pending)
        heap_remove(channel, pending);
remove_handle:
    common_handle_remove(channel->handles, pending->id);
give:
    call_give_back(channel, pending);
    return code;
}

void proto_channel_drain(struct proto_channel *channel)
{
    proto_channel_ref(channel);
    while (!channel->closing && !common_list_empty(&channel->waiting) && channel->ops->ready(channel)) {
        struct proto_pending *call = common_list_entry(channel->waiting.next, struct proto_pending, link);
        uint64_t left = common_clock_left(call->deadline_ns);
        struct common_error err;
        common_list_remove(&call->link);
        proto_gather_set_remaining(call->kept, left ? left : 1);
        enum common_code code = channel->ops->send(channel, call, call->kept, &err);
        if (code == COMMON_OK) {
            call_move(call, PROTO_CALL_SENT);
            common_list_push(&channel->sent, &call->link);
            proto_gather_free(call->kept); // the transport has copied what it still needs of it
            call->kept = NULL;
            proto_keepalive_watch(channel);
        } else {
            call_fail(channel, call, code, err.message, false);
        }
    }
    proto_channel_unref(channel);
}

// ---- replies --------------------------------------------------------------------------------------------

void proto_channel_damaged(struct proto_channel *channel, struct common_error *err)
{
    uint64_t now = common_clock_ns();
    if (err->code != COMMON_DATA_LOSS)
        return;
    err->code = COMMON_UNAVAILABLE; // sent again it may come whole
    channel->peer_sums = false;     // over nng the next answer may be another server's
    if (channel->warned_ns && now - channel->warned_ns < COMMON_NS_PER_S)
        return;
    channel->warned_ns = now;
    common_log_warn("%s: an answer of %s was %s (%" PRIu64 " such frames so far)", channel->name,
                    channel->endpoint_text, err->message, proto_frames_damaged());
}

bool proto_channel_deliver(struct proto_channel *channel, const struct proto_prefix *prefix,
                           struct common_blob *blob, size_t offset, struct common_error *err)
{
    struct proto_message *message;
    if (proto_message_open(&channel->pool, prefix, blob, offset, &channel->peer_sums, &message, err) !=
        COMMON_OK) {
        proto_channel_damaged(channel, err);
        return false;
    }
    proto_channel_ref(channel);
    struct proto_pending *call = common_handle_get(channel->handles, message->header->request);
    if (call && call->state == PROTO_CALL_SENT) { // else late, or forged: not awaited
        const Banyan__Pb__Status *status = message->header->status;
        struct proto_reply reply = {.code = COMMON_OK, .text = "", .status = status, .message = message};
        struct common_error bad;
        if (status && !common_code_valid((int)status->code))
            reply.code = COMMON_UNKNOWN;
        else if (status)
            reply.code = (enum common_code)status->code;
        if (status)
            reply.text = status->message;
        if (reply.code == COMMON_OK) {
            enum common_code code;
            if (message->header->method != call->method)
                code =
                    common_error_set(&bad, COMMON_INTERNAL, "%s answered another method than the one called",
                                     channel->endpoint_text);
            else
                code = proto_message_fill(message, proto_codec_method(call->method)->reply, &bad);
            if (code != COMMON_OK)
                reply =
                    (struct proto_reply){.code = code == COMMON_RESOURCE_EXHAUSTED ? code : COMMON_INTERNAL,
                                         .text = bad.message};
        }
        call_finish(channel, call, &reply, false);
    }
    proto_message_release(&channel->pool, message);
    proto_channel_unref(channel);
    return true;
}
