// SPDX-License-Identifier: Apache-2.0
// The calling end over nng: one REQ socket with a pool of contexts, one call a context. nng connects again by
// itself and sends a pending request again. Its callbacks run on nng's threads; they only move their own
// context on and push it through the door to the loop.
//
//     ┌───────────────────────the loop has delivered the reply───────────────────────┐
//     ▼                                                                               │
//   IDLE ──send (loop)──▶ SENDING ──callback (nng)──▶ RECEIVING ──callback (nng)──▶ FINISHED: in the door
//                           └──────────────────failure (nng)──────────────────────────▲
//
// A state is written by the owner of the context: nng's threads from the send on, the loop once it is through
// the door.
//
// A call that ended early leaves its context to finish by itself (the answer comes and is dropped): an answer
// that arrives while its socket is closed is what nng trips over. Only when such contexts are many are they
// cancelled.
//
// nng connects again only once its reaper has destroyed the lost connection, and the reaper can be stuck for
// good (proto/nng_door.h), without a word: the news that the connection is gone comes from the reaper, too.
// So while calls are out, the channel asks the kernel whether the connection stands. One that has been gone
// for LOST_NS without another in its place ends the calls with UNAVAILABLE and gives the channel a socket of
// its own again: connecting for the first time needs no reaper. A socket that has never connected is left
// alone, so a server that is away costs one socket and no more.
#include <assert.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/tls/tls.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "proto/nng_door.h"
#include "proto/rpc/transport.h"

// More outstanding requests on one socket cost quadratic time in nng (20,000: 2.8 s); the others wait in the
// channel.
enum { CONTEXTS = 64, ABANDONED_MAX = 32, RECONNECT_MIN_MS = 10, RECONNECT_MAX_MS = 1000, RESEND_MS = 60000 };
#define WATCH_NS (500 * COMMON_NS_PER_MS)
#define LOST_NS  (2 * COMMON_NS_PER_S) // longer than RECONNECT_MAX_MS: nng goes first

struct nng_channel;

enum context_state { CONTEXT_IDLE, CONTEXT_SENDING, CONTEXT_RECEIVING, CONTEXT_FINISHED };

struct context {
    struct proto_nng_item item; // first: the loop finds its context by it
    struct nng_channel *owner;
    struct context *next_idle;
    nng_ctx ctx;
    nng_aio *aio;
    enum context_state state;
    atomic_bool cancelled; // the loop wants the context back without an answer
    uint64_t call;         // loop: id of the call; 0: abandoned
    bool abandoned;        // loop: its call has ended before it
    // result, handed over by the push
    int rv;
    struct common_blob *blob; // the reply as it came
};

struct nng_channel {
    struct proto_channel *channel; // loop; NULL once closed
    atomic_uint refs;              // the channel and then the closer, and each busy context
    atomic_uint busy;              // contexts between send and their last callback
    atomic_bool owed;              // a context has given up an answer that may still come
    pthread_mutex_t lock;          // around `shut`, and around a receive that begins: see on_aio
    bool shut;                     // the closer closes the socket now
    struct proto_nng_door door;
    nng_socket socket;
    _Atomic uint32_t pipe; // the connection's id from nng; 0: none
    atomic_bool met;       // there has been a pipe
    struct common_timer *watch;
    bool watching;
    uint64_t lost_ns;  // loop: since when the connection has been gone; 0: it stands, or was not looked at
    uint64_t heard_ns; // loop: when the last answer came, or it was made
    struct context contexts[CONTEXTS];
    unsigned n_contexts; // opened so far
    unsigned n_abandoned;
    struct context *idle;
};

// Any thread but not a context's own callback, unless another reference is known to be left.
static void nng_channel_unref(struct nng_channel *s)
{
    if (atomic_fetch_sub(&s->refs, 1) > 1)
        return;
    for (unsigned i = 0; i < s->n_contexts; i++)
        nng_aio_free(s->contexts[i].aio);
    proto_nng_door_fini(&s->door);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static const char *explain_nng(int rv, char *buf, size_t len)
{
    snprintf(buf, len, "nng: %s", nng_strerror(rv));
    return buf;
}

static void context_move(struct context *context, enum context_state to)
{
    static const bool allowed[4][4] = {
        [CONTEXT_IDLE] = {[CONTEXT_SENDING] = true},
        [CONTEXT_SENDING] = {[CONTEXT_RECEIVING] = true, [CONTEXT_FINISHED] = true},
        [CONTEXT_RECEIVING] = {[CONTEXT_FINISHED] = true},
        [CONTEXT_FINISHED] = {[CONTEXT_IDLE] = true},
    };
    assert(allowed[context->state][to]);
    context->state = to;
}

// Loop: a context has come to its end.
static void on_finished(struct proto_nng_item *item)
{
    struct context *context = (struct context *)item;
    struct nng_channel *s = context->owner;
    struct proto_channel *channel = s->channel;
    struct common_blob *blob = context->blob;
    uint64_t call = context->call;
    int rv = context->rv;
    if (rv == 0)
        s->heard_ns = common_clock_ns();
    s->n_abandoned -= context->abandoned;
    context->abandoned = false;
    context->blob = NULL;
    context->call = 0;
    context_move(context, CONTEXT_IDLE);
    context->next_idle = s->idle;
    s->idle = context;
    if (channel)
        proto_channel_ref(channel);
    if (channel && call && blob) {
        struct proto_prefix prefix = {0};
        struct common_error err;
        size_t total;
        enum common_code code = COMMON_INVALID_ARGUMENT;
        if (blob->len < PROTO_PREFIX_BYTES)
            common_error_set(&err, code, "an answer shorter than a frame");
        else
            code = proto_prefix_decode(blob->data, &prefix, &err);
        if (code == COMMON_OK && prefix.payload_len > channel->payload_max)
            code = common_error_set(&err, COMMON_RESOURCE_EXHAUSTED,
                                    "an answer of %llu bytes is above the limit of %llu",
                                    (unsigned long long)prefix.payload_len,
                                    (unsigned long long)channel->payload_max);
        if (code == COMMON_OK &&
            (prefix.kind != PROTO_FRAME_REPLY ||
             !proto_frame_total(&prefix, PROTO_HEADER_MAX, channel->payload_max, &total) ||
             total != blob->len))
            code = common_error_set(&err, COMMON_INVALID_ARGUMENT, "the answer is not a frame");
        if (code == COMMON_OK && !proto_channel_deliver(channel, &prefix, blob, 0, &err))
            code = err.code;
        if (code != COMMON_OK)
            proto_channel_fail_call(channel, call, code == COMMON_INVALID_ARGUMENT ? COMMON_INTERNAL : code,
                                    err.message);
        else // a frame that answers another call is none for this one; unknown ids are ignored
            proto_channel_fail_call(channel, call, COMMON_INTERNAL, "the server answered another call");
    } else if (channel && call) {
        char why[128];
        enum common_code code = rv == NNG_ETIMEDOUT ? COMMON_DEADLINE_EXCEEDED
                                : rv == NNG_ENOMEM  ? COMMON_RESOURCE_EXHAUSTED
                                                    : COMMON_UNAVAILABLE;
        proto_channel_fail_call(channel, call, code, explain_nng(rv, why, sizeof why));
    }
    if (channel) {
        if (!channel->closing)
            proto_channel_drain(channel);
        proto_channel_unref(channel);
    }
    common_blob_unref(blob);
    nng_channel_unref(s);
}

// nng's thread: the last thing that a context does.
static void context_finish(struct context *context, int rv)
{
    struct nng_channel *s = context->owner;
    context->rv = rv;
    context_move(context, CONTEXT_FINISHED);
    if (rv != 0)
        atomic_store(&s->owed, true);
    context->item.run = on_finished;
    bool pushed = proto_nng_door_push(&s->door, &context->item);
    atomic_fetch_sub(&s->busy, 1);
    if (!pushed) {
        common_blob_unref(context->blob);
        context->blob = NULL;
        nng_channel_unref(s); // the closer has the last reference
    }
}

// nng's thread: the send or the receive of this context is over.
static void on_aio(void *arg)
{
    struct context *context = arg;
    int rv = nng_aio_result(context->aio);
    if (context->state == CONTEXT_SENDING) {
        if (rv != 0 && rv != NNG_EAGAIN) { // EAGAIN: the peer may have answered already
            nng_msg *unsent = nng_aio_get_msg(context->aio);
            nng_aio_set_msg(context->aio, NULL);
            nng_msg_free(unsent);
            context_finish(context, rv);
            return;
        }
        if (atomic_load(&context->cancelled)) {
            context_finish(context, NNG_ECANCELED);
            return;
        }
        // nng_close of nng 1.5.2 may free what an nng_ctx_recv of another thread still locks, and nng then
        // ends the process: the two exclude each other. nng makes no callback on this stack.
        struct nng_channel *s = context->owner;
        pthread_mutex_lock(&s->lock);
        bool shut = s->shut;
        if (!shut) {
            context_move(context, CONTEXT_RECEIVING);
            nng_ctx_recv(context->ctx, context->aio);
        }
        pthread_mutex_unlock(&s->lock);
        if (shut) {
            context_finish(context, NNG_ECLOSED);
            return;
        }
        // From here on the next callback may be running: only what is safe beside it. A cancellation that
        // came between the look above and the receive has cancelled nothing.
        if (atomic_load(&context->cancelled))
            nng_aio_cancel(context->aio);
        return;
    }
    if (rv == 0) {
        nng_msg *msg = nng_aio_get_msg(context->aio);
        nng_aio_set_msg(context->aio, NULL);
        // nng's bodies are not aligned: one copy, here and not on the loop.
        context->blob = common_blob_new(nng_msg_len(msg));
        if (context->blob)
            memcpy(context->blob->data, nng_msg_body(msg), nng_msg_len(msg));
        else
            rv = NNG_ENOMEM;
        nng_msg_free(msg);
    }
    context_finish(context, rv);
}

// nng's thread. A dialer has one pipe at a time; should the news of one overtake each other, then asking the
// kernel about it shows that it is none.
static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    struct nng_channel *s = arg;
    uint32_t id = (uint32_t)nng_pipe_id(pipe);
    if (event == NNG_PIPE_EV_ADD_POST)
        atomic_store(&s->pipe, id);
    else
        atomic_compare_exchange_strong(&s->pipe, &id, 0);
    atomic_store(&s->met, true);
}

// Whether the connection stands: nng may have shut it down and not said so. Any thread but nng's own.
static bool standing(struct nng_channel *s)
{
    nng_pipe pipe = {.id = atomic_load(&s->pipe)};
    nng_sockaddr address;
    return pipe.id != 0 && nng_pipe_get_addr(pipe, NNG_OPT_REMADDR, &address) == 0;
}

static struct context *take_context(struct nng_channel *s)
{
    struct context *context = s->idle;
    if (context) {
        s->idle = context->next_idle;
        return context;
    }
    if (s->n_contexts == CONTEXTS)
        return NULL;
    context = &s->contexts[s->n_contexts];
    context->owner = s;
    if (nng_ctx_open(&context->ctx, s->socket) != 0)
        return NULL;
    if (nng_aio_alloc(&context->aio, on_aio, context) != 0) {
        nng_ctx_close(context->ctx);
        return NULL;
    }
    s->n_contexts++;
    return context;
}

static bool nng_ready(const struct proto_channel *channel)
{
    const struct nng_channel *s = channel->state;
    return s && (s->idle || s->n_contexts < CONTEXTS);
}

static bool nng_connected(const struct proto_channel *channel)
{
    struct nng_channel *s = channel->state;
    return s && standing(s);
}

static enum common_code nng_channel_send(struct proto_channel *channel, struct proto_pending *call,
                                         struct proto_gather *gather, struct common_error *err)
{
    struct nng_channel *s = channel->state;
    struct context *context = take_context(s);
    nng_msg *msg = NULL;
    int rv = context ? nng_msg_alloc(&msg, 0) : NNG_ENOMEM;
    if (rv == 0)
        rv = nng_msg_reserve(msg, gather->bytes);
    for (size_t i = 0; rv == 0 && i < gather->n; i++)
        rv = nng_msg_append(msg, gather->iov[i].iov_base, gather->iov[i].iov_len);
    if (rv != 0) {
        if (msg)
            nng_msg_free(msg);
        if (context) {
            context->next_idle = s->idle;
            s->idle = context;
        }
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a call");
    }
    context_move(context, CONTEXT_SENDING);
    atomic_store(&context->cancelled, false);
    context->call = call->id;
    call->context = context;
    atomic_fetch_add(&s->refs, 1);
    atomic_fetch_add(&s->busy, 1);
    // The channel's own timer ends the call; this one is behind it and frees the context.
    uint64_t left_ms = common_clock_left(call->deadline_ns) / COMMON_NS_PER_MS + 50;
    nng_aio_set_timeout(context->aio, left_ms > INT32_MAX / 2 ? INT32_MAX / 2 : (nng_duration)left_ms);
    nng_aio_set_msg(context->aio, msg);
    nng_ctx_send(context->ctx, context->aio);
    if (!s->watching) {
        s->watching = true;
        s->lost_ns = 0;
        common_timer_start(s->watch, WATCH_NS, false);
    }
    return COMMON_OK;
}

static void context_cancel(struct context *context)
{
    atomic_store(&context->cancelled, true);
    nng_aio_cancel(context->aio);
}

static void nng_forget(struct proto_channel *channel, struct proto_pending *call, bool tell)
{
    (void)tell; // REQ has no way to tell
    struct context *context = call->context;
    struct nng_channel *s = context->owner; // not the channel's any more when it has been replaced
    if (context->call != call->id)
        return; // it has come to its end
    context->call = 0;
    context->abandoned = true;
    if (++s->n_abandoned > ABANDONED_MAX && !channel->closing)
        context_cancel(context);
}

enum { HELLO_ROUNDS = 20, REST_ROUNDS = 400, REST_ROUND_US = 5000, OWED_US = 200000 };

// A thread of its own: waits until nothing is in flight, then closes.
static void closer(void *arg)
{
    struct nng_channel *s = arg;
    for (int i = 0; i < HELLO_ROUNDS && !atomic_load(&s->met); i++)
        usleep(REST_ROUND_US); // a handshake that is cut short leaks inside nng
    for (int i = 0; i < REST_ROUNDS && atomic_load(&s->busy) > 0 && standing(s); i++)
        usleep(REST_ROUND_US);
    for (unsigned i = 0; i < s->n_contexts && atomic_load(&s->busy) > 0; i++)
        context_cancel(&s->contexts[i]);
    if (atomic_load(&s->owed))
        usleep(OWED_US); // answers that were given up may be on their way
    pthread_mutex_lock(&s->lock);
    s->shut = true;
    pthread_mutex_unlock(&s->lock);
    nng_close(s->socket);
    for (unsigned i = 0; i < s->n_contexts; i++)
        nng_aio_wait(s->contexts[i].aio);
    nng_channel_unref(s);
}

// Loop. What is left in it no longer concerns the channel.
static void retire(struct nng_channel *s)
{
    s->channel = NULL;
    common_timer_free(s->watch);
    proto_nng_door_close(&s->door);
    proto_nng_aside(closer, s);
}

static void on_watch(void *arg);

// What the dialer needs for TLS, from the files as they were last read. nng copies the texts.
static int secure_dialer(const struct proto_channel *channel, const struct proto_endpoint *endpoint,
                         nng_dialer dialer)
{
    struct common_tls_text text;
    nng_tls_config *config;
    common_tls_text(channel->tls, &text);
    const char *revoked =
        strstr(text.ca, "-----BEGIN X509 CRL-----"); // behind the authority's certificate, or before it
    int rv = nng_tls_config_alloc(&config, NNG_TLS_MODE_CLIENT);
    if (rv != 0)
        return rv;
    if ((rv = nng_tls_config_auth_mode(config, NNG_TLS_AUTH_MODE_REQUIRED)) == 0 &&
        (rv = nng_tls_config_server_name(config, endpoint->host)) == 0 &&
        (rv = nng_tls_config_ca_chain(config, text.ca, revoked)) == 0 && text.cert)
        rv = nng_tls_config_own_cert(config, text.cert, text.key, NULL);
    if (rv == 0)
        rv = nng_dialer_set_ptr(dialer, NNG_OPT_TLS_CONFIG, config);
    nng_tls_config_free(config); // the dialer holds it
    return rv;
}

// Starts to connect a socket of nng's for the channel.
static enum common_code dial(struct proto_channel *channel, const struct proto_endpoint *endpoint,
                             struct nng_channel **out, struct common_error *err)
{
    struct nng_channel *s = calloc(1, sizeof *s);
    if (!s)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a channel");
    s->channel = channel;
    s->heard_ns = common_clock_ns();
    pthread_mutex_init(&s->lock, NULL);
    atomic_init(&s->refs, 1);
    if (!proto_nng_door_open(&s->door, channel->loop)) {
        pthread_mutex_destroy(&s->lock);
        free(s);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory or descriptor for a channel");
    }
    char url[PROTO_ENDPOINT_MAX], why[128];
    bool v6 = strchr(endpoint->host, ':') != NULL;
    snprintf(url, sizeof url, "%s://%s%s%s:%u", endpoint->tls ? "tls+tcp" : "tcp", v6 ? "[" : "",
             endpoint->host, v6 ? "]" : "", endpoint->port);
    nng_dialer dialer;
    int rv = common_timer_new(channel->loop, on_watch, s, &s->watch) == COMMON_OK ? 0 : NNG_ENOMEM;
    if (rv != 0 || (rv = nng_req0_open(&s->socket)) != 0)
        goto free_state;
    uint64_t max = PROTO_PREFIX_BYTES + 64 + PROTO_HEADER_MAX + channel->payload_max + 64;
    if ((rv = nng_socket_set_size(s->socket, NNG_OPT_RECVMAXSZ, (size_t)max)) != 0 ||
        (rv = nng_socket_set_ms(s->socket, NNG_OPT_RECONNMINT, RECONNECT_MIN_MS)) != 0 ||
        (rv = nng_socket_set_ms(s->socket, NNG_OPT_RECONNMAXT, RECONNECT_MAX_MS)) != 0 ||
        (rv = nng_socket_set_ms(s->socket, NNG_OPT_REQ_RESENDTIME, RESEND_MS)) != 0 ||
        (rv = nng_pipe_notify(s->socket, NNG_PIPE_EV_ADD_POST, on_pipe, s)) != 0 ||
        (rv = nng_pipe_notify(s->socket, NNG_PIPE_EV_REM_POST, on_pipe, s)) != 0 ||
        (rv = nng_dialer_create(&dialer, s->socket, url)) != 0 ||
        (endpoint->tls && (rv = secure_dialer(channel, endpoint, dialer)) != 0) ||
        (rv = nng_dialer_start(dialer, NNG_FLAG_NONBLOCK)) != 0)
        goto close_socket;
    *out = s;
    return COMMON_OK;

close_socket:
    retire(s);
    goto fail;
free_state:
    common_timer_free(s->watch);
    proto_nng_door_close(&s->door);
    nng_channel_unref(s);
fail:
    return common_error_set(err,
                            rv == NNG_EADDRINVAL ? COMMON_INVALID_ARGUMENT
                            : rv == NNG_ENOMEM   ? COMMON_RESOURCE_EXHAUSTED
                                                 : COMMON_UNAVAILABLE,
                            "cannot dial '%s': %s", url, explain_nng(rv, why, sizeof why));
}

// The connection is gone and nng does not bring another: see the top. Without the means for a new socket, the
// old one stays and the next look tries again.
static bool replace(struct nng_channel *old)
{
    struct proto_channel *channel = old->channel;
    struct proto_endpoint endpoint;
    struct nng_channel *fresh;
    struct common_error err;
    if (proto_endpoint_parse(channel->endpoint_text, &endpoint, &err) != COMMON_OK ||
        dial(channel, &endpoint, &fresh, &err) != COMMON_OK) {
        common_log_error("%s: no new connection to %s: %s", channel->name, channel->endpoint_text,
                         err.message);
        return false;
    }
    channel->state = fresh;
    proto_channel_ref(channel);
    proto_channel_fail_sent(channel, COMMON_UNAVAILABLE, "the connection was lost");
    retire(old);
    if (!channel->closing)
        proto_channel_drain(channel);
    proto_channel_unref(channel);
    return true;
}

static void on_watch(void *arg)
{
    struct nng_channel *s = arg;
    s->watching = false;
    if (common_list_empty(&s->channel->sent))
        return;
    if (!atomic_load(&s->met) || standing(s))
        s->lost_ns = 0;
    else if (s->lost_ns == 0)
        s->lost_ns = common_clock_ns();
    else if (common_clock_ns() - s->lost_ns >= LOST_NS && replace(s))
        return;
    s->watching = true;
    common_timer_start(s->watch, WATCH_NS, false);
}

static enum common_code nng_channel_open(struct proto_channel *channel, const struct proto_endpoint *endpoint,
                                         struct common_error *err)
{
    if (channel->role != BANYAN__PB__ROLE__ROLE_CLIENT)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "'%s' is only for clients: give the coordinator's tcp:// or unix:// endpoint",
                                channel->endpoint_text);
    struct sockaddr_storage address;
    socklen_t len;
    if (endpoint->tls && proto_endpoint_address(endpoint, &address, &len))
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "'%s': nng's TLS checks names only: give the server's host name, or dial tls://, which "
            "checks addresses as well",
            channel->endpoint_text);
    struct nng_channel *s;
    enum common_code code = dial(channel, endpoint, &s, err);
    if (code == COMMON_OK)
        channel->state = s;
    return code;
}

static void nng_channel_close(struct proto_channel *channel)
{
    struct nng_channel *s = channel->state;
    channel->state = NULL;
    retire(s);
}

// Of the host nothing is known. The server gives no notes: mute_ns is to be long enough for the largest
// answer.
static void nng_signs(const struct proto_channel *channel, struct proto_signs *out)
{
    const struct nng_channel *s = channel->state;
    *out = (struct proto_signs){.heard_ns = s->heard_ns, .spoke_ns = s->heard_ns, .notes = true};
}

static void nng_lose(struct proto_channel *channel, const char *text)
{
    (void)text;
    (void)replace(channel->state); // else the next silence tries again
}

const struct proto_channel_ops proto_nng_channel_ops = {
    .open = nng_channel_open,
    .close = nng_channel_close,
    .connected = nng_connected,
    .ready = nng_ready,
    .send = nng_channel_send,
    .forget = nng_forget,
    .signs = nng_signs,
    .lose = nng_lose,
};
