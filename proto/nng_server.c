// SPDX-License-Identifier: Apache-2.0
// The serving end over nng: a REP socket with many contexts, one request a context. Callbacks run on nng's
// threads and only push their context through the door to the loop. A context receives again only from the
// callback of its send (nng crashes otherwise).
//
//     ┌───────────────────────────callback (nng)───────────────────────────┐
//     ▼                                                                    │
//   RECEIVING ──callback (nng), door──▶ SERVED ──reply (loop)──▶ SENDING───┘
//
// A caller that dies while a large answer is written to it can leave nng's reaper stuck for good
// (proto/nng_door.h): no departure is told any more, and descriptors stay open until the process ends. So the
// kernel is asked now and then which connections stand; a caller found gone twice has departed.
#include <assert.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "proto/nng_door.h"
#include "proto/transport.h"

enum { CONTEXTS = 128, BUCKETS = 1024 };
#define LOOK_NS (5 * COMMON_NS_PER_S)

struct nng_server;

enum context_state { CONTEXT_RECEIVING, CONTEXT_SERVED, CONTEXT_SENDING };

struct context {
    struct proto_nng_item item; // first: the loop finds its context by it
    struct nng_server *owner;
    nng_ctx ctx;
    nng_aio *aio;
    enum context_state state; // written by who has the context: the loop while SERVED, else nng's threads
    uint32_t pipe;            // of the request
    struct common_blob *blob; // the request; NULL: out of memory
};

// A connected client.
struct peer {
    struct peer *next;
    struct nng_server *owner;
    uint32_t pipe;
    bool announced; // its arrival has been told, so its departure will be
    bool missing;   // gone at the last look
    unsigned refs;  // the table, and each request
    struct proto_list requests;
    char address[80];
};

struct nng_server {
    struct proto_server *server; // loop; not used once closed
    atomic_uint refs; // the listener and then the closer, each request at the loop, each item on its way
    bool closed;      // loop
    struct proto_nng_door door;
    nng_socket socket;
    nng_listener listener;
    struct peer *peers[BUCKETS];
    struct common_timer *look;
    bool stuck; // nng's reaper; it has been logged
    struct context contexts[CONTEXTS];
    unsigned n_contexts;
};

// Any thread but not a context's own callback, unless another reference is known to be left.
static void nng_server_unref(struct nng_server *s)
{
    if (atomic_fetch_sub(&s->refs, 1) > 1)
        return;
    for (unsigned i = 0; i < s->n_contexts; i++) {
        common_blob_unref(s->contexts[i].blob);
        nng_aio_free(s->contexts[i].aio);
    }
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct peer *peer = s->peers[i], *next; peer; peer = next) {
            next = peer->next;
            free(peer);
        }
    proto_nng_door_fini(&s->door);
    free(s);
}

static void context_move(struct context *context, enum context_state to)
{
    static const bool allowed[3][3] = {
        [CONTEXT_RECEIVING] = {[CONTEXT_SERVED] = true},
        [CONTEXT_SERVED] = {[CONTEXT_SENDING] = true},
        [CONTEXT_SENDING] = {[CONTEXT_RECEIVING] = true},
    };
    assert(allowed[context->state][to]);
    context->state = to;
}

// ---- peers ----------------------------------------------------------------------------------------------

static struct peer **peer_slot(struct nng_server *s, uint32_t pipe)
{
    struct peer **at = &s->peers[common_mix64(pipe) % BUCKETS];
    while (*at && (*at)->pipe != pipe)
        at = &(*at)->next;
    return at;
}

static void peer_unref(struct peer *peer)
{
    if (--peer->refs == 0)
        free(peer);
}

// Finds or makes it: a request may come before the news of its pipe.
static struct peer *peer_get(struct nng_server *s, uint32_t pipe)
{
    struct peer **at = peer_slot(s, pipe), *known = *at;
    if (known)
        return known;
    struct peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return NULL;
    peer->owner = s;
    peer->pipe = pipe;
    peer->refs = 1;
    proto_list_init(&peer->requests);
    snprintf(peer->address, sizeof peer->address, "nng client");
    *at = peer;
    return peer;
}

struct news {                   // of a pipe, from nng's thread to the loop
    struct proto_nng_item item; // first
    struct nng_server *owner;
    uint32_t pipe;
    bool added;
    char address[80];
};

// Takes it out of the table and cancels its requests.
static void peer_departs(struct peer **at)
{
    struct peer *peer = *at;
    struct proto_list gone;
    *at = peer->next;
    proto_list_move(&peer->requests, &gone);
    while (!proto_list_empty(&gone)) {
        struct proto_request *request = proto_list_entry(gone.next, struct proto_request, link);
        proto_list_remove(&request->link);
        proto_request_cancel(request);
    }
    peer_unref(peer);
}

static void on_news(struct proto_nng_item *item)
{
    struct news *news = (struct news *)item;
    struct nng_server *s = news->owner;
    struct peer **at = peer_slot(s, news->pipe);
    if (s->closed) {
        // nothing to remember
    } else if (news->added) {
        struct peer *peer = peer_get(s, news->pipe);
        if (peer)
            memcpy(peer->address, news->address, sizeof peer->address);
        if (peer)
            peer->announced = true;
    } else if (*at) {
        peer_departs(at);
    }
    free(news);
    nng_server_unref(s);
}

static void on_look(void *arg)
{
    struct nng_server *s = arg;
    atomic_fetch_add(&s->refs, 1); // what a cancelled request calls may close the server
    for (unsigned i = 0; i < BUCKETS && !s->closed; i++)
        for (struct peer **at = &s->peers[i]; *at;) {
            struct peer *peer = *at;
            nng_sockaddr address;
            bool here = !peer->announced ||
                        nng_pipe_get_addr((nng_pipe){.id = peer->pipe}, NNG_OPT_REMADDR, &address) == 0;
            if (!here && peer->missing) {
                if (!s->stuck)
                    common_log_error("%s: nng no longer reports closed connections; their descriptors stay "
                                     "open until this process ends. Restart it when convenient",
                                     s->server->name);
                s->stuck = true;
                peer_departs(at);
                at = &s->peers[i]; // or change the table
                continue;
            }
            peer->missing = !here;
            at = &peer->next;
        }
    nng_server_unref(s);
}

// nng's thread. No socket calls here; the address can only be read while the pipe is there.
static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    struct nng_server *s = arg;
    struct news *news = calloc(1, sizeof *news);
    if (!news)
        return;
    news->owner = s;
    news->pipe = (uint32_t)nng_pipe_id(pipe);
    news->added = event == NNG_PIPE_EV_ADD_POST;
    nng_sockaddr address;
    if (news->added && nng_pipe_get_addr(pipe, NNG_OPT_REMADDR, &address) == 0 &&
        address.s_family == NNG_AF_INET) {
        const uint8_t *ip = (const uint8_t *)&address.s_in.sa_addr,
                      *port = (const uint8_t *)&address.s_in.sa_port;
        snprintf(news->address, sizeof news->address, "%u.%u.%u.%u:%u", ip[0], ip[1], ip[2], ip[3],
                 (unsigned)(port[0] << 8 | port[1]));
    } else {
        snprintf(news->address, sizeof news->address, "nng client");
    }
    news->item.run = on_news;
    atomic_fetch_add(&s->refs, 1);
    if (!proto_nng_door_push(&s->door, &news->item)) {
        free(news);
        nng_server_unref(s); // the closer has the last reference
    }
}

// ---- requests -------------------------------------------------------------------------------------------

// Hands the context back to nng. An empty answer is sent where there is none: the caller cannot take it for a
// frame.
static void respond(struct context *context, struct proto_gather *gather)
{
    struct nng_server *s = context->owner;
    common_blob_unref(context->blob);
    context->blob = NULL;
    if (s->closed)
        return;
    nng_msg *msg = NULL;
    int rv = nng_msg_alloc(&msg, 0);
    if (rv == 0 && gather)
        rv = nng_msg_reserve(msg, gather->bytes);
    for (size_t i = 0; rv == 0 && gather && i < gather->n; i++)
        rv = nng_msg_append(msg, gather->iov[i].iov_base, gather->iov[i].iov_len);
    if (rv != 0) {
        common_log_error("%s is out of memory for an answer", s->server->name);
        if (!msg)
            return; // not even an empty one: this context is lost until the restart
        nng_msg_clear(msg);
    }
    context_move(context, CONTEXT_SENDING);
    nng_aio_set_msg(context->aio, msg);
    nng_ctx_send(context->ctx, context->aio);
}

struct served { // joins a request with its context and its peer
    struct context *context;
    struct peer *peer;
};

static void send_reply(struct proto_request *request, struct proto_gather *gather, proto_done_fn sent,
                       void *sent_arg)
{
    struct served *served = request->transport;
    struct context *context = served->context;
    struct nng_server *s = context->owner;
    struct peer *peer = served->peer, **at = peer_slot(s, peer->pipe);
    proto_list_remove(&request->link);
    respond(context, gather);
    if (*at == peer && !peer->announced &&
        proto_list_empty(&peer->requests)) { // it may have left before its request came
        *at = peer->next;
        peer->refs--; // the table's
    }
    peer_unref(peer);
    free(served);
    if (sent)
        sent(sent_arg); // nng has its own copy
    nng_server_unref(s);
}

// Makes the request of a frame; NULL with the reason when it is none.
static struct proto_request *request_of(struct context *context, struct proto_prefix *prefix,
                                        struct common_error *err)
{
    struct nng_server *s = context->owner;
    struct common_blob *blob = context->blob;
    size_t total;
    if (!blob || blob->len < PROTO_PREFIX_BYTES) {
        common_error_set(err, COMMON_INVALID_ARGUMENT, "a message shorter than a frame");
        return NULL;
    }
    if (proto_prefix_decode(blob->data, prefix, err) != COMMON_OK)
        return NULL;
    // The payload's own limit gets a polite answer below; what could not have come whole does not.
    if (prefix->kind != PROTO_FRAME_REQUEST ||
        !proto_frame_total(prefix, PROTO_HEADER_MAX, SIZE_MAX / 4, &total) || total != blob->len) {
        common_error_set(err, COMMON_INVALID_ARGUMENT, "the message is not a request frame");
        return NULL;
    }
    struct proto_message *message;
    if (proto_message_open(&s->server->pool, prefix, blob, 0, &message, err) != COMMON_OK)
        return NULL;
    struct served *served = malloc(sizeof *served);
    struct peer *peer = peer_get(s, context->pipe);
    if (!served || !peer) {
        common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a request");
        free(served);
        proto_message_release(&s->server->pool, message);
        return NULL;
    }
    struct proto_request *request = proto_request_new(s->server, message);
    if (!request) {
        common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a request");
        free(served);
        return NULL;
    }
    *served = (struct served){context, peer};
    peer->refs++;
    request->send = send_reply;
    request->transport = served;
    request->peer = peer->address;
    request->role = BANYAN__PB__ROLE__ROLE_CLIENT;
    proto_list_push(&peer->requests, &request->link);
    return request;
}

// Loop: a context has received. It holds a reference until its answer.
static void on_request(struct proto_nng_item *item)
{
    struct context *context = (struct context *)item;
    struct nng_server *s = context->owner;
    struct proto_prefix prefix;
    struct common_error err;
    if (s->closed) {
        nng_server_unref(s);
        return;
    }
    struct proto_request *request = request_of(context, &prefix, &err);
    if (!request) {
        proto_server_refused(s->server, "nng client", err.message);
        respond(context, NULL);
        nng_server_unref(s);
        return;
    }
    if (prefix.payload_len > s->server->payload_max) {
        char text[160];
        snprintf(text, sizeof text, "a payload of %llu bytes is above this server's limit of %llu",
                 (unsigned long long)prefix.payload_len, (unsigned long long)s->server->payload_max);
        proto_request_refuse(request, COMMON_RESOURCE_EXHAUSTED, text);
        return;
    }
    bool authentic = proto_server_token_ok(s->server, &request->message->header->credentials);
    if (authentic && s->server->stats.bytes > s->server->bytes_max) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED,
                           "the server holds as many bytes of requests as it may", NULL, 0);
        return;
    }
    proto_request_dispatch(request, authentic);
}

// nng's thread.
static void on_aio(void *arg)
{
    struct context *context = arg;
    struct nng_server *s = context->owner;
    int rv = nng_aio_result(context->aio);
    if (context->state == CONTEXT_SENDING) {
        context_move(context, CONTEXT_RECEIVING);
        if (rv != 0) {
            nng_msg_free(nng_aio_get_msg(context->aio));
            nng_aio_set_msg(context->aio, NULL);
        }
        if (rv != NNG_ECLOSED && rv != NNG_ECANCELED)
            nng_ctx_recv(context->ctx, context->aio);
        return;
    }
    if (rv == NNG_ECLOSED || rv == NNG_ECANCELED)
        return; // the server is being closed
    if (rv != 0) {
        nng_ctx_recv(context->ctx, context->aio);
        return;
    }
    nng_msg *msg = nng_aio_get_msg(context->aio);
    nng_aio_set_msg(context->aio, NULL);
    context->pipe = (uint32_t)nng_pipe_id(nng_msg_get_pipe(msg));
    // nng's bodies are not aligned: one copy, here and not on the loop.
    context->blob = common_blob_new(nng_msg_len(msg));
    if (context->blob)
        memcpy(context->blob->data, nng_msg_body(msg), nng_msg_len(msg));
    nng_msg_free(msg);
    context_move(context, CONTEXT_SERVED);
    context->item.run = on_request;
    atomic_fetch_add(&s->refs, 1);
    if (!proto_nng_door_push(&s->door, &context->item)) {
        common_blob_unref(context->blob);
        context->blob = NULL;
        nng_server_unref(s); // the closer has the last reference
    }
}

// ---- listener -------------------------------------------------------------------------------------------

// A thread of its own: the close may never return (see the door).
static void closer(void *arg)
{
    struct nng_server *s = arg;
    nng_close(s->socket);
    for (unsigned i = 0; i < s->n_contexts; i++)
        nng_aio_wait(s->contexts[i].aio);
    nng_server_unref(s);
}

static enum common_code nng_server_listen(struct proto_server *server, struct proto_endpoint *endpoint,
                                          struct proto_listener *listener, struct common_error *err)
{
    struct nng_server *s = calloc(1, sizeof *s);
    if (!s)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a listener");
    char url[PROTO_ENDPOINT_MAX];
    proto_endpoint_format(endpoint, url);
    s->server = server;
    atomic_init(&s->refs, 1);
    if (!proto_nng_door_open(&s->door, server->loop)) {
        free(s);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory or descriptor for a listener");
    }
    int port = 0, rv = common_timer_new(server->loop, on_look, s, &s->look) == COMMON_OK ? 0 : NNG_ENOMEM;
    if (rv != 0 || (rv = nng_rep0_open(&s->socket)) != 0)
        goto free_state;
    // A little above the limit of payloads, so that one just above it is told so.
    uint64_t max = PROTO_PREFIX_BYTES + 64 + PROTO_HEADER_MAX + server->payload_max + (1 << 20);
    if ((rv = nng_socket_set_size(s->socket, NNG_OPT_RECVMAXSZ, (size_t)max)) != 0 ||
        (rv = nng_pipe_notify(s->socket, NNG_PIPE_EV_ADD_POST, on_pipe, s)) != 0 ||
        (rv = nng_pipe_notify(s->socket, NNG_PIPE_EV_REM_POST, on_pipe, s)) != 0)
        goto close_socket;
    for (; s->n_contexts < CONTEXTS; s->n_contexts++) {
        struct context *context = &s->contexts[s->n_contexts];
        context->owner = s;
        if ((rv = nng_ctx_open(&context->ctx, s->socket)) != 0 ||
            (rv = nng_aio_alloc(&context->aio, on_aio, context)) != 0)
            goto close_socket;
    }
    if ((rv = nng_listener_create(&s->listener, s->socket, url + strlen("nng+"))) != 0 ||
        (rv = nng_listener_start(s->listener, 0)) != 0 ||
        (rv = nng_listener_get_int(s->listener, NNG_OPT_TCP_BOUND_PORT, &port)) != 0)
        goto close_socket;
    endpoint->port = (uint16_t)port;
    for (unsigned i = 0; i < CONTEXTS; i++)
        nng_ctx_recv(s->contexts[i].ctx, s->contexts[i].aio);
    common_timer_start(s->look, LOOK_NS, true);
    proto_server_ref(server);
    listener->state = s;
    return COMMON_OK;

close_socket:
    s->closed = true;
    common_timer_free(s->look);
    proto_nng_door_close(&s->door);
    proto_nng_aside(closer, s);
    goto fail;
free_state:
    common_timer_free(s->look);
    proto_nng_door_close(&s->door);
    nng_server_unref(s);
fail:
    return common_error_set(err,
                            rv == NNG_EADDRINUSE   ? COMMON_ALREADY_EXISTS
                            : rv == NNG_EADDRINVAL ? COMMON_INVALID_ARGUMENT
                                                   : COMMON_UNAVAILABLE,
                            "cannot listen on '%s': %s", url, nng_strerror(rv));
}

static void nng_server_close(struct proto_listener *listener)
{
    struct nng_server *s = listener->state;
    struct proto_server *server = s->server;
    listener->state = NULL;
    s->closed = true;
    common_timer_free(s->look);
    nng_listener_close(s->listener); // the port is free again, whatever becomes of the rest
    proto_nng_door_close(&s->door);
    for (unsigned i = 0; i < BUCKETS; i++)
        while (s->peers[i]) // what a cancelled request calls may change the table
            peer_departs(&s->peers[i]);
    proto_nng_aside(closer, s);
    proto_server_unref(server);
}

const struct proto_server_ops proto_nng_server_ops = {
    .listen = nng_server_listen,
    .close = nng_server_close,
};
