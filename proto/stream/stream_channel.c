// SPDX-License-Identifier: Apache-2.0
// The calling end over stream sockets: connects, says hello, sends calls, connects again after a loss.
//
//     ┌────────────────────timer─────────────────────┐
//     │                                              ▼
//   BACKOFF ──timer, a name──▶ LOOKUP ──────▶ CONNECTING ──TLS──▶ SECURING
//     ▲ │ ▲                      │                │  └──plain─┐      │
//     │ └─┘ cannot try           │                │           ▼      ▼
//     ├──────────────────────────┴────────────────┤         HELLO ◀──┘ ──▶ PROOF ──▶ READY
//     │    loss, refusal, no answer in time       │           │              │         │
//     └───────────────────────────────────────────┴───────────┴──────────────┴─────────┘
#include <assert.h>
#include <errno.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <event2/util.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/log/log.h"
#include "common/loop/machine.h"
#include "common/loop/resolver.h"
#include "proto/rpc/transport.h"
#include "proto/stream/stream_hello.h"
#include "proto/stream/stream_link.h"

#define BACKOFF_MIN_NS (10 * COMMON_NS_PER_MS)
#define BACKOFF_MAX_NS COMMON_NS_PER_S

#define STRANGER "another program, or an endpoint of another kind (nng+tcp://, tls://), may listen there"

enum channel_state {
    STATE_BACKOFF,
    STATE_LOOKUP,
    STATE_CONNECTING,
    STATE_SECURING, // the handshake of TLS
    STATE_HELLO,
    STATE_PROOF,
    STATE_READY,
    STATES
};

struct stream_channel {
    struct proto_channel *channel;
    struct proto_endpoint endpoint;
    enum channel_state state;
    int fd; // CONNECTING
    struct event connect_event;
    struct proto_link *io;      // SECURING and later
    struct common_timer *timer; // backoff, and the time for connecting and hello
    uint64_t backoff_ns;
    struct evdns_base *dns; // of the last look-up
    struct evdns_getaddrinfo_request *lookup;
    bool alive_in_lookup; // a look-up that ends on the stack of its start
    struct proto_hello hello;
    uint64_t request; // id of the hello's request being answered
    bool logged;      // the reason of this outage
    bool heard;       // a frame, over this connection
    bool notes;       // the peer says that it is there while it reads
    bool failed;      // a try, since there was a link
    bool stranger;    // who answers there speaks something else
    struct proto_scratch scratch;
};

static void channel_assert(const struct stream_channel *s)
{
    assert((s->io != NULL) == (s->state >= STATE_SECURING));
    assert(!s->lookup || s->state == STATE_LOOKUP);
}

#define TO(state) (1u << STATE_##state)
static const struct common_machine channel_machine = {
    .name = "channel",
    .n = STATES,
    .states = {"backoff", "lookup", "connecting", "securing", "hello", "proof", "ready"},
    .next = {[STATE_BACKOFF] = TO(BACKOFF) | TO(LOOKUP) | TO(CONNECTING),
             [STATE_LOOKUP] = TO(BACKOFF) | TO(CONNECTING),
             [STATE_CONNECTING] = TO(BACKOFF) | TO(SECURING) | TO(HELLO),
             [STATE_SECURING] = TO(BACKOFF) | TO(HELLO),
             [STATE_HELLO] = TO(BACKOFF) | TO(PROOF),
             [STATE_PROOF] = TO(BACKOFF) | TO(READY),
             [STATE_READY] = TO(BACKOFF)},
};
#undef TO

static void channel_move(struct stream_channel *s, enum channel_state to)
{
    common_machine_move(&channel_machine, s->state, to);
    s->state = to;
    channel_assert(s);
}

static void try_connect(struct stream_channel *s);

// What a call that waits says meanwhile, where there has been no failure yet that says more.
static void begins(struct stream_channel *s, const char *what)
{
    if (!s->failed)
        snprintf(s->channel->trouble, sizeof s->channel->trouble, "%s", what);
}

// Everything that a failed try or a lost link leaves, and the next try. nobody: nothing listens there.
static void retreat_from(struct stream_channel *s, enum common_code code, const char *text, bool nobody)
{
    struct proto_channel *channel = s->channel;
    bool was_ready = s->state == STATE_READY;
    enum channel_state before = s->state;
    if (s->state == STATE_CONNECTING) {
        event_del(&s->connect_event);
        close(s->fd);
    }
    struct proto_link *io = s->io;
    s->io = NULL;
    channel->peer_sums = false; // the next peer may be another
    channel_move(s, STATE_BACKOFF);
    common_timer_start(s->timer, s->backoff_ns, false);
    s->backoff_ns = s->backoff_ns * 2 < BACKOFF_MAX_NS ? s->backoff_ns * 2 : BACKOFF_MAX_NS;
    snprintf(channel->trouble, sizeof channel->trouble, "%s", text);
    s->failed = true;
    if (!s->logged && !channel->failed_fn && before != STATE_READY &&
        (code != COMMON_UNAVAILABLE || s->stranger)) {
        common_log_warn("%s cannot link to %s: %s", channel->name, channel->endpoint_text, text);
        s->logged = true;
    }
    // From here on callbacks may close the channel; the channel's memory, not `s`, is kept by the reference.
    char why[COMMON_ERROR_BYTES];
    snprintf(why, sizeof why, "%.300s (%.60s)", text, channel->endpoint_text);
    proto_channel_ref(channel);
    if (io)
        proto_link_close(io);
    if (was_ready && channel->state_fn)
        channel->state_fn(channel->state_arg, false);
    if (before != STATE_READY && !channel->closing && channel->failed_fn)
        channel->failed_fn(channel->state_arg, channel->trouble);
    if (nobody && !channel->closing && channel->refused_fn)
        channel->refused_fn(channel->state_arg);
    if (!channel->closing)
        proto_channel_fail_sent(channel, COMMON_UNAVAILABLE, why);
    // A peer that is not there may come; one that refuses us will refuse those who wait, too. One that has
    // taken us sent something that was damaged on its way.
    if (!channel->closing && code != COMMON_UNAVAILABLE && !was_ready)
        proto_channel_fail_waiting(channel, code, why);
    proto_channel_unref(channel);
}

static void retreat(struct stream_channel *s, enum common_code code, const char *text)
{
    retreat_from(s, code, text, false);
}

// The system's word on a try. A unix socket's file may be there, or not.
static void not_connected(struct stream_channel *s, int error)
{
    char text[96];
    snprintf(text, sizeof text, "cannot connect: %s", strerrordesc_np(error));
    retreat_from(s, COMMON_UNAVAILABLE, text, error == ECONNREFUSED || error == ENOENT);
}

// ---- hello ----------------------------------------------------------------------------------------------

static bool send_hello(struct stream_channel *s, uint32_t method, const ProtobufCMessage *body,
                       const char *credentials)
{
    struct proto_outgoing outgoing = {
        .kind = PROTO_FRAME_REQUEST,
        .method = method,
        .request = ++s->request,
        .remaining_ns = PROTO_HELLO_NS,
        .credentials = credentials,
        .body = body,
        .summed = s->channel->sums,
    };
    struct proto_gather gather;
    return proto_frame_encode(&s->scratch, &outgoing, 0, &gather, NULL) == COMMON_OK &&
           proto_link_send(s->io, &gather, NULL, NULL, NULL);
}

static enum common_code take_hello(struct stream_channel *s, const Banyan__Pb__LinkHelloReply *reply,
                                   struct common_error *err)
{
    struct proto_channel *channel = s->channel;
    if (reply->version != PROTO_VERSION)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "the server uses version %u, this program uses %u", reply->version,
                                PROTO_VERSION);
    if (reply->nonce.len != PROTO_NONCE_BYTES)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "the server's hello has no nonce");
    if (channel->tls && (!proto_role_is_daemon((uint32_t)reply->role) ||
                         (channel->peer_role && (uint32_t)reply->role != channel->peer_role)))
        return common_error_set(err, COMMON_PERMISSION_DENIED,
                                "the server has another role than the one dialled");
    if (channel->tls && !proto_hello_role_shown(s->io->io.tls, (uint32_t)reply->role, err))
        return err->code;
    memcpy(s->hello.accept_nonce, reply->nonce.data, PROTO_NONCE_BYTES);
    s->hello.accept_role = (uint32_t)reply->role;
    s->notes = reply->notes;
    Banyan__Pb__LinkProofRequest proof = BANYAN__PB__LINK_PROOF_REQUEST__INIT;
    uint8_t mac[COMMON_MAC_BYTES];
    const char *token = NULL;
    if (proto_role_is_daemon(channel->role)) {
        if (!proto_hello_proof(&channel->secret, &s->hello, false, mac))
            return common_error_set(err, COMMON_UNAVAILABLE, "out of memory for a proof");
        if (reply->proof.len != sizeof mac || !common_bytes_equal(reply->proof.data, mac, sizeof mac))
            return common_error_set(
                err, COMMON_UNAUTHENTICATED,
                "the server has another cluster secret: give both the same --secret-file");
        if (!proto_hello_proof(&channel->secret, &s->hello, true, mac))
            return common_error_set(err, COMMON_UNAVAILABLE, "out of memory for a proof");
        proof.proof = (ProtobufCBinaryData){sizeof mac, mac};
    } else if (channel->has_token) {
        token = channel->token;
    }
    channel_move(s, STATE_PROOF);
    if (!send_hello(s, BANYAN__PB__METHOD__METHOD_LINK_PROOF, &proof.base, token))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a hello");
    return COMMON_OK;
}

static void become_ready(struct stream_channel *s)
{
    struct proto_channel *channel = s->channel;
    channel_move(s, STATE_READY);
    s->backoff_ns = BACKOFF_MIN_NS;
    s->logged = s->failed = s->stranger = false;
    *channel->trouble = '\0';
    common_timer_stop(s->timer);
    proto_channel_ref(channel);
    proto_channel_drain(channel); // waiting calls come before the observers
    if (!channel->closing && channel->state_fn && s->state == STATE_READY)
        channel->state_fn(channel->state_arg, true);
    proto_channel_unref(channel);
}

static void on_hello_frame(struct stream_channel *s, struct proto_message *message)
{
    struct proto_channel *channel = s->channel;
    const Banyan__Pb__Header *header = message->header;
    bool hello = s->state == STATE_HELLO;
    uint32_t method = hello ? BANYAN__PB__METHOD__METHOD_LINK_HELLO : BANYAN__PB__METHOD__METHOD_LINK_PROOF;
    struct common_error err = {.code = COMMON_OK};
    enum common_code code = COMMON_OK;
    if (header->status && header->status->code != COMMON_OK)
        code = common_error_set(&err,
                                common_code_valid((int)header->status->code)
                                    ? (enum common_code)header->status->code
                                    : COMMON_UNKNOWN,
                                "refused: %.300s", header->status->message);
    else if (header->method != method || header->request != s->request)
        code = common_error_set(&err, COMMON_INVALID_ARGUMENT, "the server does not answer the hello");
    else
        code = proto_message_fill(message, proto_codec_method(method)->reply, &err);
    if (code == COMMON_OK && hello) {
        code = take_hello(s, (const Banyan__Pb__LinkHelloReply *)message->body, &err);
    } else if (code == COMMON_OK) {
        proto_link_trust(s->io); // whom a process dials is a daemon; a client has all that it reads
        if (proto_link_set_limits(s->io, PROTO_HEADER_MAX, channel->payload_max)) {
            become_ready(s);
            return;
        }
        code = common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a link");
    }
    if (code != COMMON_OK)
        proto_link_fail(s->io, code, err.message);
}

// ---- frames ---------------------------------------------------------------------------------------------

static bool on_frame(void *owner, const struct proto_prefix *prefix, struct common_blob *blob, size_t offset,
                     struct common_error *err)
{
    struct stream_channel *s = owner;
    struct proto_channel *channel = s->channel;
    s->heard = true;
    if (prefix->kind != PROTO_FRAME_REPLY) {
        common_error_set(err, COMMON_INVALID_ARGUMENT, "a server that calls back");
        return false;
    }
    if (s->state == STATE_READY)
        return proto_channel_deliver(channel, prefix, blob, offset, err);
    struct proto_message *message;
    if (proto_message_open(&channel->pool, prefix, blob, offset, &channel->peer_sums, &message, err) !=
        COMMON_OK) {
        proto_channel_damaged(channel, err);
        return false;
    }
    proto_channel_ref(channel);
    on_hello_frame(s, message); // may end with the channel closed
    proto_message_release(&channel->pool, message);
    proto_channel_unref(channel);
    return true;
}

static bool on_oversize(void *owner, const struct proto_prefix *prefix, struct common_blob *blob,
                        size_t offset, struct common_error *err)
{
    struct stream_channel *s = owner;
    struct proto_channel *channel = s->channel;
    struct proto_prefix as_is = *prefix;
    struct proto_message *message;
    as_is.payload_len = 0;
    as_is.skipped = true;
    if (s->state != STATE_READY || proto_message_open(&channel->pool, &as_is, blob, offset,
                                                      &channel->peer_sums, &message, err) != COMMON_OK)
        return false;
    uint64_t id = message->header->request;
    proto_message_release(&channel->pool, message);
    char text[128];
    snprintf(text, sizeof text, "an answer of %llu bytes is above the limit of %llu",
             (unsigned long long)prefix->payload_len, (unsigned long long)channel->payload_max);
    proto_channel_fail_call(channel, id, COMMON_RESOURCE_EXHAUSTED, text);
    return true;
}

// A peer that has not understood our hello may be gone by the next try, and a coordinator in its place.
static void on_failed(void *owner, enum common_code code, const char *text)
{
    struct stream_channel *s = owner;
    char why[COMMON_ERROR_BYTES];
    s->stranger = s->state == STATE_SECURING && code == COMMON_INVALID_ARGUMENT;
    if (s->stranger) {
        retreat(s, COMMON_UNAVAILABLE, text); // it says which kind
    } else if (s->state == STATE_HELLO && !s->heard &&
               (code == COMMON_INVALID_ARGUMENT || code == COMMON_UNAVAILABLE)) {
        s->stranger = code == COMMON_INVALID_ARGUMENT;
        snprintf(why, sizeof why, "%.200s before a hello: " STRANGER, text);
        retreat(s, COMMON_UNAVAILABLE, why);
    } else {
        if (code == COMMON_DATA_LOSS) // of TLS: sent again it may come whole
            common_log_warn("%s: the link to %s: %s", s->channel->name, s->channel->endpoint_text, text);
        retreat(s, code == COMMON_DATA_LOSS ? COMMON_UNAVAILABLE : code, text);
    }
}

// ---- the link -------------------------------------------------------------------------------------------

static void say_hello(struct stream_channel *s)
{
    struct proto_channel *channel = s->channel;
    channel_move(s, STATE_HELLO);
    begins(s, "no answer to the hello yet: " STRANGER);
    s->hello.dial_role = channel->role;
    if (!common_random(s->hello.dial_nonce, PROTO_NONCE_BYTES)) {
        proto_link_fail(s->io, COMMON_UNAVAILABLE, "cannot get random bytes for a hello");
        return;
    }
    Banyan__Pb__LinkHelloRequest hello = BANYAN__PB__LINK_HELLO_REQUEST__INIT;
    hello.version = PROTO_VERSION;
    hello.role = (Banyan__Pb__Role)channel->role;
    hello.nonce = (ProtobufCBinaryData){PROTO_NONCE_BYTES, s->hello.dial_nonce};
    hello.name = channel->name;
    if (!proto_hello_bind(&s->hello, s->io->io.tls) ||
        !send_hello(s, BANYAN__PB__METHOD__METHOD_LINK_HELLO, &hello.base, NULL))
        proto_link_fail(s->io, COMMON_UNAVAILABLE, "out of memory for a hello");
}

// The handshake has ended: is it who was to be dialled? Before anything is said to it.
static void on_secured(void *owner)
{
    struct stream_channel *s = owner;
    struct common_error err;
    if (proto_hello_role_shown(s->io->io.tls, s->channel->peer_role, &err))
        say_hello(s);
    else
        proto_link_fail(s->io, err.code, err.message);
}

static const struct proto_link_ops link_ops = {
    .frame = on_frame,
    .oversize = on_oversize,
    .secured = on_secured,
    .failed = on_failed,
};

// ---- connecting -----------------------------------------------------------------------------------------

static void begin_link(struct stream_channel *s)
{
    struct proto_channel *channel = s->channel;
    int fd = s->fd, one = 1;
    if (s->endpoint.kind == PROTO_ENDPOINT_TCP) {
        int idle = 15, interval = 5, count = 3;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    }
    s->io = proto_link_new(channel->loop, fd, &link_ops, s);
    if (!s->io) {
        retreat(s, COMMON_UNAVAILABLE, "out of memory for a link");
        return;
    }
    s->heard = false;
    if (!channel->tls) {
        say_hello(s);
        return;
    }
    channel_move(s, STATE_SECURING);
    begins(s, "the TLS handshake has not finished yet: " STRANGER);
    const struct common_tls_link_options options = {
        .end = COMMON_TLS_DIAL,
        .server = proto_role_is_daemon(channel->role) ? NULL : s->endpoint.host,
    };
    struct common_error err;
    if (proto_link_secure(s->io, channel->tls, &options, &err) != COMMON_OK)
        proto_link_fail(s->io, COMMON_UNAVAILABLE, err.message);
}

static void on_connect(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct stream_channel *s = arg;
    int error = 0;
    socklen_t len = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    if (error) {
        not_connected(s, error);
        return;
    }
    event_del(&s->connect_event);
    begin_link(s);
}

static void connect_to(struct stream_channel *s, const struct sockaddr *address, socklen_t len)
{
    s->fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->fd < 0) {
        retreat(s, COMMON_UNAVAILABLE, "no descriptor for a socket");
        return;
    }
    channel_move(s, STATE_CONNECTING);
    begins(s, "no connection yet: it does not reply");
    event_assign(&s->connect_event, common_loop_base(s->channel->loop), s->fd, EV_WRITE, on_connect, s);
    common_timer_start(s->timer, PROTO_HELLO_NS, false);
    if (connect(s->fd, address, len) == 0) {
        begin_link(s);
    } else if (errno == EINPROGRESS) {
        if (event_add(&s->connect_event, NULL) != 0)
            retreat(s, COMMON_UNAVAILABLE, "out of memory for a connection");
    } else { // a full backlog of a unix socket (EAGAIN) is tried again as well
        not_connected(s, errno);
    }
}

static void on_lookup(int result, struct evutil_addrinfo *found, void *arg)
{
    struct stream_channel *s = arg;
    if (result == EVUTIL_EAI_CANCEL) // the channel is being closed, or the time was up: `s` may be gone
        return;
    s->lookup = NULL;
    s->alive_in_lookup = false;
    if (result != 0 || !found) {
        char text[300];
        snprintf(text, sizeof text, "cannot find the address of '%.150s': %s", s->endpoint.host,
                 evutil_gai_strerror(result));
        retreat(s, COMMON_UNAVAILABLE, text);
    } else {
        connect_to(s, found->ai_addr, (socklen_t)found->ai_addrlen);
    }
    if (found)
        evutil_freeaddrinfo(found);
}

static void look_up(struct stream_channel *s)
{
    if (!common_resolver_renew(s->channel->loop, &s->dns)) {
        retreat(s, COMMON_UNAVAILABLE, "out of memory to look up names");
        return;
    }
    struct evutil_addrinfo hints = {.ai_family = AF_UNSPEC,
                                    .ai_socktype = SOCK_STREAM,
                                    .ai_flags = EVUTIL_AI_ADDRCONFIG};
    char port[8];
    snprintf(port, sizeof port, "%u", s->endpoint.port);
    channel_move(s, STATE_LOOKUP);
    begins(s, "no answer from the name server yet");
    common_timer_start(s->timer, PROTO_HELLO_NS, false);
    s->alive_in_lookup = true;
    struct evdns_getaddrinfo_request *lookup =
        evdns_getaddrinfo(s->dns, s->endpoint.host, port, &hints, on_lookup, s);
    if (lookup && s->alive_in_lookup)
        s->lookup = lookup;
}

static void try_connect(struct stream_channel *s)
{
    struct sockaddr_storage address;
    socklen_t len;
    if (proto_endpoint_address(&s->endpoint, &address, &len))
        connect_to(s, (struct sockaddr *)&address, len);
    else
        look_up(s);
}

static void on_timer(void *arg)
{
    struct stream_channel *s = arg;
    switch (s->state) {
    case STATE_BACKOFF:
        try_connect(s);
        break;
    case STATE_LOOKUP:
        if (s->lookup)
            evdns_getaddrinfo_cancel(s->lookup);
        s->lookup = NULL;
        retreat(s, COMMON_UNAVAILABLE, "no answer from the name server in 5 s");
        break;
    case STATE_CONNECTING:
        retreat(s, COMMON_UNAVAILABLE, "no connection in 5 s");
        break;
    case STATE_SECURING:
        retreat(s, COMMON_UNAVAILABLE, "the TLS handshake did not finish in 5 s: " STRANGER);
        break;
    case STATE_HELLO:
    case STATE_PROOF:
        retreat(s, COMMON_UNAVAILABLE, "no answer to the hello in 5 s: " STRANGER);
        break;
    case STATE_READY:
    case STATES:
        break;
    }
}

// ---- operations -----------------------------------------------------------------------------------------

static enum common_code stream_open(struct proto_channel *channel, const struct proto_endpoint *endpoint,
                                    struct common_error *err)
{
    if (proto_role_is_daemon(channel->role) && !channel->has_secret)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "a daemon needs the cluster secret to link to '%s'", channel->endpoint_text);
    struct stream_channel *s = calloc(1, sizeof *s);
    if (!s || common_timer_new(channel->loop, on_timer, s, &s->timer) != COMMON_OK) {
        free(s);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a channel");
    }
    s->channel = channel;
    s->endpoint = *endpoint;
    s->backoff_ns = BACKOFF_MIN_NS;
    channel->state = s;
    common_timer_start(s->timer, 0,
                       false); // connecting begins in the loop's next turn: nothing is called back from here
    return COMMON_OK;
}

static void stream_close(struct proto_channel *channel)
{
    struct stream_channel *s = channel->state;
    channel->state = NULL;
    if (s->state == STATE_CONNECTING) {
        event_del(&s->connect_event);
        close(s->fd);
    }
    if (s->lookup)
        evdns_getaddrinfo_cancel(s->lookup);
    common_resolver_free(channel->loop, s->dns);
    if (s->io)
        proto_link_close(s->io);
    common_timer_free(s->timer);
    proto_scratch_fini(&s->scratch);
    free(s);
}

static bool stream_ready(const struct proto_channel *channel)
{
    const struct stream_channel *s = channel->state;
    return s && s->state == STATE_READY && proto_link_works(s->io);
}

static enum common_code stream_send(struct proto_channel *channel, struct proto_pending *call,
                                    struct proto_gather *gather, struct common_error *err)
{
    struct stream_channel *s = channel->state;
    if (!proto_link_send(s->io, gather, NULL, NULL, &call->out))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a call");
    return COMMON_OK;
}

static void stream_forget(struct proto_channel *channel, struct proto_pending *call, bool tell)
{
    struct stream_channel *s = channel->state;
    struct proto_link_out *out = call->out;
    if (!s || !s->io)
        return; // the link took the frame with it
    bool went = true;
    if (out)
        went = proto_link_out_detach(s->io, out);
    if (!tell || !went || s->state != STATE_READY)
        return;
    struct proto_outgoing cancel = {.kind = PROTO_FRAME_ONE_WAY,
                                    .method = BANYAN__PB__METHOD__METHOD_CANCEL,
                                    .request = call->id,
                                    .summed = channel->sums};
    struct proto_gather gather;
    if (proto_frame_encode(&s->scratch, &cancel, 0, &gather, NULL) == COMMON_OK)
        proto_link_send(s->io, &gather, NULL, NULL,
                        NULL); // out of memory: the peer finds out by the deadline
}

static void stream_signs(const struct proto_channel *channel, struct proto_signs *out)
{
    const struct stream_channel *s = channel->state;
    proto_link_signs(s->io, out);
    out->notes = s->notes;
}

static int stream_socket(const struct proto_channel *channel)
{
    return ((const struct stream_channel *)channel->state)->io->io.fd;
}

static void stream_lose(struct proto_channel *channel, const char *text)
{
    const struct stream_channel *s = channel->state;
    proto_link_fail(s->io, COMMON_UNAVAILABLE, text);
}

const struct proto_channel_ops proto_stream_channel_ops = {
    .open = stream_open,
    .close = stream_close,
    .connected = stream_ready,
    .ready = stream_ready,
    .send = stream_send,
    .forget = stream_forget,
    .signs = stream_signs,
    .socket = stream_socket,
    .lose = stream_lose,
};
