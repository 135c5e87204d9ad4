// SPDX-License-Identifier: Apache-2.0
// The serving end of the simulated transport: as proto/stream/stream_server.c, over simulated links. Nng
// endpoints are served the same way, but that each request carries its token, and that callers are clients
// without a link.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "proto/rpc/transport.h"
#include "proto/stream/stream_hello.h"
#include "tests/sim/sim_dial.h"
#include "tests/sim/sim_link.h"

enum {
    OUT_BYTES_MAX = 4 << 20
}; // as proto/stream/stream_server.c: above it, the link's requests are not read

struct server_link {
    struct common_list link; // in server->links
    struct proto_server *server;
    struct sim_link *io; // NULL once closed
    unsigned refs;       // the list, and each request
    bool nng, sums;
    uint64_t id;
    uint32_t role;
    struct proto_caller caller;
    struct common_list requests;
    char peer[256];
};

struct listener_state {
    struct sim_listener listener;
    struct proto_server *server;
    bool nng;
};

static void server_link_unref(struct server_link *link)
{
    if (--link->refs > 0)
        return;
    proto_server_unref(link->server);
    free(link);
}

// Ends the link: its requests' callers are gone.
static void server_link_close(struct server_link *link)
{
    if (!link->io)
        return;
    struct proto_server *server = link->server;
    struct sim_link *io = link->io;
    link->io = NULL;
    common_list_remove(&link->link);
    server->n_links--;
    server->lanes[proto_role_is_daemon(link->role) ? PROTO_LANE_DAEMONS : PROTO_LANE_CLIENTS].links--;
    proto_caller_gone(server, &link->caller);
    sim_link_close(io, SIM_ACCEPTOR);
    struct common_list gone;
    common_list_move(&link->requests, &gone);
    while (!common_list_empty(&gone)) {
        struct proto_request *request = common_list_entry(gone.next, struct proto_request, link);
        common_list_remove(&request->link);
        proto_request_cancel(request);
    }
    if (!link->nng && server->link_closed && !server->closed)
        server->link_closed(server->arg, link->id);
    server_link_unref(link);
}

// ---- requests -------------------------------------------------------------------------------------------

static struct proto_request *find(struct server_link *link, uint64_t id)
{
    for (struct common_list *at = link->requests.next; at != &link->requests; at = at->next) {
        struct proto_request *request = common_list_entry(at, struct proto_request, link);
        if (request->id == id)
            return request;
    }
    return NULL;
}

static void send_reply(struct proto_request *request, struct proto_gather *gather, proto_done_fn sent,
                       void *sent_arg)
{
    struct server_link *link = request->transport;
    common_list_remove(&request->link);
    if (link->io && gather) {
        struct sim_message *message = sim_message_new(SIM_FRAME);
        message->blob = sim_gather_blob(gather);
        sim_link_send(link->io, SIM_ACCEPTOR, message);
    }
    if (sent)
        sent(sent_arg);
    if (link->io && link->caller.waits)
        sim_link_resume(link->io, SIM_ACCEPTOR);
    server_link_unref(link);
}

static bool fail_frame(struct common_error *err, const char *why)
{
    common_error_set(err, COMMON_INVALID_ARGUMENT, "%s", why);
    return false;
}

static bool take_frame(struct server_link *link, struct common_blob *blob, struct common_error *err)
{
    struct proto_server *server = link->server;
    struct proto_prefix prefix;
    struct proto_message *message;
    if (proto_prefix_decode(blob->data, &prefix, err) != COMMON_OK)
        return false;
    if (prefix.kind == PROTO_FRAME_REPLY)
        return fail_frame(err, "an answer to nothing");
    bool oversize = prefix.payload_len > server->payload_max;
    struct proto_prefix as_is = prefix;
    as_is.payload_len = oversize ? 0 : prefix.payload_len;
    as_is.skipped = oversize;
    if (proto_message_open(&server->pool, &as_is, blob, 0, &link->sums, &message, err) != COMMON_OK)
        return false;
    if (prefix.kind == PROTO_FRAME_ONE_WAY) {
        uint32_t method = message->header->method;
        uint64_t id = message->header->request;
        proto_message_release(&server->pool, message);
        if (method != BANYAN__PB__METHOD__METHOD_CANCEL)
            return fail_frame(err, "an unknown one-way frame");
        struct proto_request *request = find(link, id);
        if (request)
            proto_request_cancel(request);
        return true;
    }
    struct proto_request *request = proto_request_new(server, &link->caller, link->role, message);
    if (!request)
        return fail_frame(err, "out of memory for a request");
    request->send = send_reply;
    request->transport = link;
    request->peer = link->peer;
    link->refs++;
    if (find(link, request->id)) {
        proto_request_fail(request, COMMON_INVALID_ARGUMENT, "another request with this id is being served",
                           NULL, 0);
        return fail_frame(err, "two requests with one id");
    }
    if (oversize) {
        char text[160];
        snprintf(text, sizeof text, "a payload of %llu bytes is above this server's limit of %llu",
                 (unsigned long long)prefix.payload_len, (unsigned long long)server->payload_max);
        proto_request_refuse(request, PROTO_REFUSED_LIMIT, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                             text);
        return true;
    }
    common_list_push(&link->requests, &request->link);
    sim_serve(request, !link->nng || proto_server_admit(server, &message->header->credentials, link->peer,
                                                        &link->caller.identity));
    return true;
}

static bool may_read(struct server_link *link)
{
    return !proto_server_full(link->server, link->role) &&
           link->io->ways[SIM_DIALLER].bytes < OUT_BYTES_MAX &&
           (proto_role_is_daemon(link->role) || !proto_caller_full(link->server, &link->caller));
}

static bool take(void *owner, struct sim_message *message)
{
    struct server_link *link = owner;
    if (message->kind != SIM_FRAME) { // closed or broken
        server_link_close(link);
        return true;
    }
    if (!may_read(link))
        return false;
    struct common_error err;
    link->refs++;
    if (!take_frame(link, message->blob, &err) && link->io) {
        proto_server_refused(link->server, link->peer, err.message);
        server_link_close(link);
    }
    server_link_unref(link);
    return true;
}

static void send_note(struct server_link *link)
{
    Banyan__Pb__HealthCheckReply body = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    const struct proto_outgoing note = {.kind = PROTO_FRAME_REPLY,
                                        .method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                        .body = &body.base,
                                        .summed = link->sums};
    struct proto_gather gather;
    if (proto_frame_encode(&link->server->scratch, &note, 0, &gather, NULL) != COMMON_OK)
        return;
    struct sim_message *message = sim_message_new(SIM_FRAME);
    message->blob = sim_gather_blob(&gather);
    sim_link_send(link->io, SIM_ACCEPTOR, message);
}

static void resume_links(struct proto_server *server)
{
    for (struct common_list *at = server->links.next; at != &server->links; at = at->next)
        sim_link_resume(common_list_entry(at, struct server_link, link)->io, SIM_ACCEPTOR);
}

void proto_stream_tick(struct proto_server *server)
{
    // As proto/stream/stream_server.c's notes: of a frame that comes slowly nothing is known here.
    for (struct common_list *at = server->links.next; at != &server->links; at = at->next) {
        struct server_link *link = common_list_entry(at, struct server_link, link);
        if (!link->nng && link->io->ways[SIM_ACCEPTOR].stuck && !may_read(link))
            send_note(link);
    }
    resume_links(server); // links whose readers have taken their answers meanwhile
}

void proto_stream_evict(struct proto_server *server, uint64_t token)
{
    for (struct common_list *at = server->links.next, *next; at != &server->links; at = next) {
        struct server_link *link = common_list_entry(at, struct server_link, link);
        next = at->next;
        if (link->caller.identity.token == token)
            server_link_close(link);
    }
}

// ---- accepting ------------------------------------------------------------------------------------------

static void refuse(struct proto_server *server, struct sim_link *io, const char *peer, enum common_code code,
                   const char *why)
{
    struct sim_message *message = sim_message_new(SIM_REFUSED);
    message->code = code;
    if (code == COMMON_UNAVAILABLE)
        snprintf(message->text, sizeof message->text, "%s", why);
    else
        snprintf(message->text, sizeof message->text, "refused: %s", why);
    proto_server_refused(server, peer, why);
    io->owners[SIM_ACCEPTOR] = server; // an owner, until it is closed
    sim_link_send(io, SIM_ACCEPTOR, message);
    sim_link_close(io, SIM_ACCEPTOR);
}

static void accept_link(struct sim_listener *listener, struct sim_link *io)
{
    struct listener_state *state = listener->owner;
    struct proto_server *server = state->server;
    const struct sim_dial *dial = io->owners[SIM_DIALLER];
    if (!dial) { // it has gone again
        io->owners[SIM_ACCEPTOR] = server;
        sim_link_close(io, SIM_ACCEPTOR);
        return;
    }
    const struct proto_channel *channel = dial->channel;
    bool daemon = proto_role_is_daemon(channel->role);
    char peer[256];
    snprintf(peer, sizeof peer, "%.128s@sim", channel->name);
    if (sim_link_versions_differ(io)) { // as stream_server.c and stream_channel.c say it
        refuse(server, io, peer, COMMON_FAILED_PRECONDITION, "one end speaks version 1, the other 0");
        return;
    }
    struct proto_lane *lane = &server->lanes[daemon ? PROTO_LANE_DAEMONS : PROTO_LANE_CLIENTS];
    if (lane->links >= (daemon ? server->daemons_max : server->links_max)) {
        char why[PROTO_LIMIT_TEXT];
        proto_limit_reached(server, daemon ? PROTO_LIMIT_DAEMONS : PROTO_LIMIT_CLIENTS, why);
        refuse(server, io, peer, COMMON_RESOURCE_EXHAUSTED, why);
        return;
    }
    if (daemon && !server->has_secret) {
        refuse(server, io, peer, COMMON_UNAUTHENTICATED,
               "this server has no cluster secret and accepts no daemons");
        return;
    }
    if (daemon && memcmp(&channel->secret, &server->secret, sizeof server->secret) != 0) {
        refuse(server, io, peer, COMMON_UNAUTHENTICATED, "the dialler does not have the cluster secret");
        return;
    }
    ProtobufCBinaryData token = {strlen(channel->token), (uint8_t *)channel->token};
    struct proto_caller caller;
    char why[PROTO_LIMIT_TEXT];
    proto_caller_init(&caller);
    if (!daemon && !state->nng && !proto_server_admit(server, &token, peer, &caller.identity)) {
        refuse(server, io, peer, COMMON_UNAUTHENTICATED, proto_server_unadmitted(server, &token));
        return;
    }
    if (!daemon && !state->nng && !proto_caller_enters(server, &caller, why)) {
        refuse(server, io, peer, COMMON_RESOURCE_EXHAUSTED, why);
        return;
    }
    struct server_link *link = calloc(1, sizeof *link);
    if (!link)
        abort();
    link->server = server;
    link->io = io;
    link->refs = 1;
    link->nng = state->nng;
    link->id = ++server->next_link;
    link->role = channel->role;
    link->sums = channel->sums; // the hello had them
    memcpy(link->peer, peer, sizeof link->peer);
    common_list_init(&link->requests);
    common_list_push(&server->links, &link->link);
    server->n_links++;
    lane->links++;
    link->caller = caller;
    link->caller.id = link->nng ? 0 : link->id;
    common_list_init(&link->caller.link);
    if (!daemon)
        proto_caller_known(server, &link->caller);
    proto_server_ref(server);
    io->owners[SIM_ACCEPTOR] = link;
    io->take[SIM_ACCEPTOR] = take;
    sim_link_send(io, SIM_ACCEPTOR, sim_message_new(SIM_ACCEPTED));
}

// ---- listeners ------------------------------------------------------------------------------------------

static enum common_code server_listen(struct proto_server *server, struct proto_endpoint *endpoint,
                                      struct proto_listener *listener, struct common_error *err)
{
    struct listener_state *state = calloc(1, sizeof *state);
    if (!state)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a listener");
    if (endpoint->kind != PROTO_ENDPOINT_UNIX && endpoint->port == 0)
        endpoint->port = sim_port();
    state->server = server;
    state->nng = endpoint->kind == PROTO_ENDPOINT_NNG_TCP;
    state->listener.loop = server->loop;
    state->listener.accept = accept_link;
    state->listener.owner = state;
    proto_endpoint_format(endpoint, state->listener.endpoint);
    if (!sim_listener_add(&state->listener)) {
        common_error_set(err, COMMON_ALREADY_EXISTS, "cannot listen on '%s': Address already in use",
                         state->listener.endpoint);
        free(state);
        return COMMON_ALREADY_EXISTS;
    }
    listener->state = state;
    return COMMON_OK;
}

// The links of all listeners go with the first.
static void server_unlisten(struct proto_listener *listener)
{
    struct listener_state *state = listener->state;
    struct proto_server *server = state->server;
    sim_serve_closed(server);
    sim_listener_remove(&state->listener);
    free(state);
    listener->state = NULL;
    while (!common_list_empty(&server->links))
        server_link_close(common_list_entry(server->links.next, struct server_link, link));
}

const struct proto_server_ops proto_stream_server_ops = {
    .listen = server_listen, .close = server_unlisten, .resume = resume_links, .streams = true};
const struct proto_server_ops proto_sp_server_ops = {.listen = server_listen,
                                                     .close = server_unlisten,
                                                     .resume = resume_links};
