// SPDX-License-Identifier: Apache-2.0
// The serving end over stream sockets: listeners, the accepting half of the hello, requests by link.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/hash/hash.h"
#include "common/log/log.h"
#include "common/loop/machine.h"
#include "proto/rpc/transport.h"
#include "proto/stream/acceptor.h"
#include "proto/stream/stream_hello.h"
#include "proto/stream/stream_link.h"

#define STALL_NS (30 * COMMON_NS_PER_S)

enum {
    OUT_BYTES_MAX =
        4 << 20, // answers that a link's reader has not taken: above it, the link's requests are not read
    BUCKETS_MIN = 64,
};

// Strangers, before the hello is done, have few places and little time. Of those that have said nothing and
// of those that have said hello the more numerous kind makes room when all places are taken, its oldest
// first: neither kind drives the other one out, however many come.
enum { SILENT, GREETED };

// One accepted link:
//
//     HELLO ──right hello──▶ PROOF ──right proof──▶ READY
//       │                      │                      │
//       ├──────────────────────┘ anything else        │
//       ▼                                             │
//     REFUSED: closed once the answer is out          │
//       │                                             │
//       ▼          lost, garbage, from each of them   ▼
//     CLOSED ◀────────────────────────────────────────┘
enum link_state { LINK_HELLO, LINK_PROOF, LINK_READY, LINK_REFUSED, LINK_CLOSED, LINK_STATES };

struct server_link {
    struct common_list link;     // in server->links
    struct common_list stranger; // in server->strangers, until it is READY
    struct proto_server *server;
    struct proto_link *io; // NULL: CLOSED
    struct proto_caller caller;
    unsigned refs; // the list, and each request
    enum link_state state;
    uint64_t id, since_ns;
    uint32_t role;
    bool sums; // its frames carry checksums
    struct proto_hello hello;
    struct common_list requests;
    struct proto_request **buckets; // requests by id
    uint32_t n_buckets, n_requests;
    char address[80];
    char peer[256];
};

static void link_assert(const struct server_link *link)
{
    assert((link->io == NULL) == (link->state == LINK_CLOSED));
}

static bool is_stranger(enum link_state state)
{
    return state == LINK_HELLO || state == LINK_PROOF || state == LINK_REFUSED;
}

static void count_stranger(struct server_link *link, enum link_state state, int by)
{
    if (!is_stranger(state))
        return;
    struct proto_server *server = link->server;
    int kind = state == LINK_HELLO ? SILENT : GREETED;
    server->n_strangers += (uint32_t)by;
    server->n_stream_strangers[kind] += (uint32_t)by;
    common_list_remove(&link->stranger);
    if (by > 0)
        common_list_push(&server->strangers[kind], &link->stranger);
}

static struct proto_lane *lane_of(const struct server_link *link)
{
    return &link->server->lanes[proto_role_is_daemon(link->role) ? PROTO_LANE_DAEMONS : PROTO_LANE_CLIENTS];
}

#define TO(state) (1u << LINK_##state)
static const struct common_machine link_machine = {
    .name = "link",
    .n = LINK_STATES,
    .states = {"hello", "proof", "ready", "refused", "closed"},
    .next = {[LINK_HELLO] = TO(PROOF) | TO(REFUSED) | TO(CLOSED),
             [LINK_PROOF] = TO(READY) | TO(REFUSED) | TO(CLOSED),
             [LINK_READY] = TO(CLOSED),
             [LINK_REFUSED] = TO(CLOSED),
             [LINK_CLOSED] = 0},
};
#undef TO

static void link_move(struct server_link *link, enum link_state to)
{
    common_machine_move(&link_machine, link->state, to);
    count_stranger(link, link->state, -1);
    count_stranger(link, to, 1);
    if (to == LINK_READY)
        lane_of(link)->links++;
    else if (link->state == LINK_READY)
        lane_of(link)->links--;
    link->state = to;
    link_assert(link);
}

static void server_link_unref(struct server_link *link)
{
    if (--link->refs > 0)
        return;
    free(link->buckets);
    proto_server_unref(link->server);
    free(link);
}

// Ends the link: its requests' callers are gone.
static void server_link_close(struct server_link *link)
{
    if (link->state == LINK_CLOSED)
        return;
    struct proto_server *server = link->server;
    struct proto_link *io = link->io;
    bool was_ready = link->state == LINK_READY;
    link->io = NULL;
    proto_caller_gone(server, &link->caller);
    link_move(link, LINK_CLOSED);
    common_list_remove(&link->link);
    server->n_links--;
    proto_link_close(io);
    struct common_list gone;
    common_list_move(&link->requests, &gone);
    while (!common_list_empty(&gone)) {
        struct proto_request *request = common_list_entry(gone.next, struct proto_request, link);
        common_list_remove(&request->link);
        proto_request_cancel(request);
    }
    if (was_ready && server->link_closed && !server->closed)
        server->link_closed(server->arg, link->id);
    server_link_unref(link);
}

// ---- requests by id -------------------------------------------------------------------------------------

static struct proto_request **bucket(struct server_link *link, uint64_t id)
{
    return &link->buckets[common_mix64(id) & (link->n_buckets - 1)];
}

static struct proto_request *request_find(struct server_link *link, uint64_t id)
{
    struct proto_request *request = link->n_buckets ? *bucket(link, id) : NULL;
    while (request && request->id != id)
        request = request->hash_next;
    return request;
}

static bool request_insert(struct server_link *link, struct proto_request *request)
{
    if (link->n_requests >= link->n_buckets) {
        uint32_t n = link->n_buckets ? link->n_buckets * 2 : BUCKETS_MIN;
        struct proto_request **old = link->buckets, **fresh = calloc(n, sizeof(*fresh));
        if (!fresh)
            return false;
        uint32_t n_old = link->n_buckets;
        link->buckets = fresh;
        link->n_buckets = n;
        for (uint32_t i = 0; i < n_old; i++)
            for (struct proto_request *r = old[i], *next; r; r = next) {
                next = r->hash_next;
                struct proto_request **at = bucket(link, r->id);
                r->hash_next = *at;
                *at = r;
            }
        free(old);
    }
    struct proto_request **at = bucket(link, request->id);
    request->hash_next = *at;
    *at = request;
    link->n_requests++;
    common_list_push(&link->requests, &request->link);
    return true;
}

static void request_take_out(struct server_link *link, struct proto_request *request)
{
    struct proto_request **at = bucket(link, request->id);
    while (*at && *at != request)
        at = &(*at)->hash_next;
    if (!*at)
        return; // it was never entered
    *at = request->hash_next;
    link->n_requests--;
    common_list_remove(&request->link);
}

static bool may_read(void *owner);

static void send_reply(struct proto_request *request, struct proto_gather *gather, proto_done_fn sent,
                       void *sent_arg)
{
    struct server_link *link = request->transport;
    if (link->n_buckets)
        request_take_out(link, request);
    if (!link->io || !gather) {
        if (sent)
            sent(sent_arg);
        if (link->io)
            proto_link_fail(link->io, COMMON_RESOURCE_EXHAUSTED, "out of memory for an answer");
    } else if (!proto_link_send(link->io, gather, sent, sent_arg, NULL)) {
        proto_link_fail(link->io, COMMON_RESOURCE_EXHAUSTED, "out of memory for an answer");
        if (sent)
            sent(sent_arg);
    }
    // `sent` may have closed it
    if (link->io && link->io->state == PROTO_LINK_PAUSED && may_read(link))
        proto_link_resume(link->io);
    server_link_unref(link);
}

static struct proto_request *request_new(struct server_link *link, struct proto_message *message)
{
    struct proto_request *request = proto_request_new(link->server, &link->caller, link->role, message);
    if (!request)
        return NULL;
    request->send = send_reply;
    request->transport = link;
    request->peer = link->peer;
    link->refs++;
    return request;
}

// ---- hello ----------------------------------------------------------------------------------------------

static bool bytes_are(const ProtobufCBinaryData *data, const uint8_t *want, size_t len)
{
    return data->len == len && common_bytes_equal(data->data, want, len);
}

// Says why, and closes once the answer is out: the next byte from this peer, or the hello's time, does it.
static void refuse_link(struct server_link *link, struct proto_request *request, enum common_code code,
                        enum proto_reason reason, const char *why)
{
    link_move(link, LINK_REFUSED);
    proto_request_refuse(request,
                         reason == PROTO_REASON_CREDENTIALS ? PROTO_REFUSED_TOKEN : PROTO_REFUSED_CONNECTION,
                         code, reason, why);
}

// Over TLS, whether the dialler's certificate says the role that its hello says. Clients need none, unless
// the server demands it.
static bool shows_role(const struct server_link *link, uint32_t role, struct common_error *err)
{
    const struct common_tls_link *tls = link->io->io.tls;
    return proto_role_is_daemon(role) ? proto_hello_role_shown(tls, role, err)
                                      : proto_hello_client_shown(link->server, tls, err);
}

static bool names_worker(const struct proto_link *io, const char *name)
{
    return proto_hello_names_worker(io->io.tls, name);
}

static void on_hello(struct server_link *link, struct proto_request *request)
{
    struct proto_server *server = link->server;
    const Banyan__Pb__LinkHelloRequest *hello = (const Banyan__Pb__LinkHelloRequest *)request->message->body;
    if (hello->version != PROTO_VERSION) {
        char why[96];
        snprintf(why, sizeof why, "the dialler uses version %u, this server uses %u", hello->version,
                 (unsigned)PROTO_VERSION);
        refuse_link(link, request, COMMON_FAILED_PRECONDITION, PROTO_REASON_NONE, why);
        return;
    }
    bool daemon = proto_role_is_daemon((uint32_t)hello->role);
    if (hello->nonce.len != PROTO_NONCE_BYTES || (!daemon && hello->role != BANYAN__PB__ROLE__ROLE_CLIENT)) {
        refuse_link(link, request, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                    "a hello without a nonce or with an unknown role");
        return;
    }
    if (!daemon && !server->for_clients) {
        refuse_link(link, request, COMMON_PERMISSION_DENIED, PROTO_REASON_NONE,
                    "this endpoint is for the cluster's daemons: clients use the other endpoints");
        return;
    }
    if (daemon && !server->has_secret) {
        refuse_link(link, request, COMMON_UNAUTHENTICATED, PROTO_REASON_NONE,
                    "this server has no cluster secret and accepts no daemons");
        return;
    }
    struct common_error err;
    if (!shows_role(link, (uint32_t)hello->role, &err)) {
        refuse_link(link, request, err.code, PROTO_REASON_TLS, err.message);
        return;
    }
    link->role = (uint32_t)hello->role;
    link->hello.dial_role = link->role;
    link->hello.accept_role = server->role;
    memcpy(link->hello.dial_nonce, hello->nonce.data, PROTO_NONCE_BYTES);
    if (!proto_hello_bind(&link->hello, link->io->io.tls) ||
        !common_random(link->hello.accept_nonce, PROTO_NONCE_BYTES)) {
        refuse_link(link, request, COMMON_UNAVAILABLE, PROTO_REASON_NONE,
                    "cannot get random bytes for a hello");
        return;
    }
    // The peer's name is for logs: only what prints.
    char name[129];
    snprintf(name, sizeof name, "%s", hello->name);
    for (char *c = name; *c; c++)
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f)
            *c = '?';
    snprintf(link->peer, sizeof link->peer, "%s%s%s", name, name[0] ? "@" : "", link->address);
    uint8_t proof[COMMON_MAC_BYTES];
    Banyan__Pb__LinkHelloReply reply = BANYAN__PB__LINK_HELLO_REPLY__INIT;
    reply.version = PROTO_VERSION;
    reply.role = (Banyan__Pb__Role)server->role;
    reply.nonce = (ProtobufCBinaryData){PROTO_NONCE_BYTES, link->hello.accept_nonce};
    reply.name = server->name;
    reply.notes = true;
    if (daemon) {
        if (!proto_hello_proof(&server->secret, &link->hello, false, proof)) {
            refuse_link(link, request, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                        "out of memory for a proof");
            return;
        }
        reply.proof = (ProtobufCBinaryData){sizeof proof, proof};
    }
    link_move(link, LINK_PROOF);
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void on_proof(struct server_link *link, struct proto_request *request)
{
    struct proto_server *server = link->server;
    const Banyan__Pb__LinkProofRequest *proof = (const Banyan__Pb__LinkProofRequest *)request->message->body;
    if (proto_role_is_daemon(link->role)) {
        uint8_t want[COMMON_MAC_BYTES];
        if (!proto_hello_proof(&server->secret, &link->hello, true, want)) {
            refuse_link(link, request, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                        "out of memory for a proof");
            return;
        }
        if (!bytes_are(&proof->proof, want, sizeof want)) {
            refuse_link(link, request, COMMON_UNAUTHENTICATED, PROTO_REASON_NONE,
                        "the dialler does not have the cluster secret");
            return;
        }
    } else if (!proto_server_admit(server, &request->message->header->credentials, link->peer,
                                   &link->caller.identity)) {
        refuse_link(link, request, COMMON_UNAUTHENTICATED, PROTO_REASON_CREDENTIALS,
                    proto_server_unadmitted(server, &request->message->header->credentials));
        return;
    }
    bool daemon = proto_role_is_daemon(link->role);
    if (daemon)
        snprintf(link->caller.identity.name, sizeof link->caller.identity.name, "%.64s", link->peer);
    char why[PROTO_LIMIT_TEXT];
    if (lane_of(link)->links >= (daemon ? server->daemons_max : server->links_max)) {
        proto_limit_reached(server, daemon ? PROTO_LIMIT_DAEMONS : PROTO_LIMIT_CLIENTS, why);
        refuse_link(link, request, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE, why);
        return;
    }
    if (!daemon && !proto_caller_enters(server, &link->caller, why)) {
        refuse_link(link, request, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_QUOTA, why);
        return;
    }
    if (daemon)
        proto_link_trust(link->io);
    if (!proto_link_set_limits(link->io, PROTO_HEADER_MAX, server->payload_max)) {
        refuse_link(link, request, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE, "out of memory for a link");
        return;
    }
    link->io->begun = proto_server_begun(server, link->role);
    link_move(link, LINK_READY);
    if (!daemon)
        proto_caller_known(server, &link->caller);
    Banyan__Pb__LinkProofReply reply = BANYAN__PB__LINK_PROOF_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

// ---- frames ---------------------------------------------------------------------------------------------

static bool fail_frame(struct common_error *err, const char *why)
{
    common_error_set(err, COMMON_INVALID_ARGUMENT, "%s", why);
    return false;
}

static bool take_frame(struct server_link *link, const struct proto_prefix *prefix, struct common_blob *blob,
                       size_t offset, bool oversize, struct common_error *err)
{
    struct proto_server *server = link->server;
    if (link->state == LINK_REFUSED || prefix->kind == PROTO_FRAME_REPLY)
        return fail_frame(err, "a frame after a refusal, or an answer to nothing");
    struct proto_prefix as_is = *prefix;
    as_is.skipped = oversize;
    if (oversize)
        as_is.payload_len = 0;
    struct proto_message *message;
    if (proto_message_open(&server->pool, &as_is, blob, offset, &link->sums, &message, err) != COMMON_OK)
        return false;
    uint32_t method = message->header->method;
    if (prefix->kind == PROTO_FRAME_ONE_WAY) {
        uint64_t id = message->header->request;
        proto_message_release(&server->pool, message);
        if (link->state != LINK_READY || method != BANYAN__PB__METHOD__METHOD_CANCEL)
            return fail_frame(err, "an unknown one-way frame");
        struct proto_request *request = request_find(link, id);
        if (request)
            proto_request_cancel(request);
        return true;
    }
    struct proto_request *request = request_new(link, message);
    if (!request)
        return fail_frame(err, "out of memory for a request");
    if (link->state != LINK_READY) {
        const struct proto_method_info *info = proto_codec_method(method);
        uint32_t want = link->state == LINK_HELLO ? BANYAN__PB__METHOD__METHOD_LINK_HELLO
                                                  : BANYAN__PB__METHOD__METHOD_LINK_PROOF;
        struct common_error bad;
        if (method != want)
            refuse_link(link, request, COMMON_UNAUTHENTICATED, PROTO_REASON_NONE,
                        "a link must begin with its hello");
        else if (proto_message_fill(message, info->request, &bad) != COMMON_OK)
            refuse_link(link, request, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE, bad.message);
        else if (link->state == LINK_HELLO)
            on_hello(link, request);
        else
            on_proof(link, request);
        return true;
    }
    if (request_find(link, request->id)) {
        proto_request_fail(request, COMMON_INVALID_ARGUMENT, "another request with this id is being served",
                           NULL, 0);
        return fail_frame(err, "two requests with one id");
    }
    if (oversize && prefix->payload_len <= server->payload_max) {
        char text[PROTO_LIMIT_TEXT];
        proto_limit_reached(server,
                            proto_role_is_daemon(link->role) ? PROTO_LIMIT_DAEMON_BYTES : PROTO_LIMIT_BYTES,
                            text);
        proto_request_refuse(request, PROTO_REFUSED_LIMIT, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                             text);
        return true;
    }
    if (oversize) {
        char text[160];
        snprintf(text, sizeof text, "a payload of %llu bytes is above this server's limit of %llu",
                 (unsigned long long)prefix->payload_len, (unsigned long long)server->payload_max);
        proto_request_refuse(request, PROTO_REFUSED_LIMIT, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                             text);
        return true;
    }
    if (!request_insert(link, request)) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "out of memory for a request", NULL, 0);
        return true;
    }
    proto_request_dispatch(request, true);
    return true;
}

static bool on_frame(void *owner, const struct proto_prefix *prefix, struct common_blob *blob, size_t offset,
                     struct common_error *err)
{
    struct server_link *link = owner;
    link->refs++;
    bool ok = take_frame(link, prefix, blob, offset, false, err);
    server_link_unref(link);
    return ok;
}

static bool on_oversize(void *owner, const struct proto_prefix *prefix, struct common_blob *blob,
                        size_t offset, struct common_error *err)
{
    struct server_link *link = owner;
    if (link->state != LINK_READY)
        return fail_frame(err, "a payload before the hello is done");
    link->refs++;
    bool ok = take_frame(link, prefix, blob, offset, true, err);
    server_link_unref(link);
    return ok;
}

static void on_failed(void *owner, enum common_code code, const char *text)
{
    struct server_link *link = owner;
    // A peer that leaves is no fault; one that sends nonsense is. A daemon that has seen our proof and goes
    // without its own did not accept it: its log says so, which may be another host's.
    if (code == COMMON_UNAVAILABLE && link->state == LINK_PROOF && proto_role_is_daemon(link->role))
        proto_server_refused(link->server, link->peer,
                             "it hung up after the hello, as a peer with another cluster secret does: give "
                             "both the same --secret-file");
    else if (code != COMMON_UNAVAILABLE && link->state != LINK_REFUSED)
        proto_server_refused(link->server, link->peer, text);
    server_link_close(link);
}

static bool may_read(void *owner)
{
    struct server_link *link = owner;
    if (link->state != LINK_READY)
        return true;
    if (proto_server_full(link->server, link->role) || link->io->out_bytes >= OUT_BYTES_MAX)
        return false;
    return proto_role_is_daemon(link->role) || !proto_caller_full(link->server, &link->caller);
}

static bool may_begin(void *owner, uint64_t bytes)
{
    const struct server_link *link = owner;
    return link->state != LINK_READY || proto_server_may_begin(link->server, link->role, bytes);
}

static const struct proto_link_ops link_ops = {
    .frame = on_frame,
    .oversize = on_oversize,
    .failed = on_failed,
    .may_read = may_read,
    .may_begin = may_begin,
};

static void stream_resume(struct proto_server *server)
{
    for (struct common_list *at = server->links.next; at != &server->links; at = at->next)
        proto_link_resume(
            common_list_entry(at, struct server_link, link)->io); // only marks: nothing runs here
}

// "I am here": an answer that answers nothing. A peer that does not expect it drops it as a late one. Without
// memory the next tick says it.
static void send_note(struct server_link *link)
{
    Banyan__Pb__HealthCheckReply body = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    const struct proto_outgoing note = {.kind = PROTO_FRAME_REPLY,
                                        .method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                        .body = &body.base,
                                        .summed = link->sums};
    struct proto_gather gather;
    if (proto_frame_encode(&link->server->scratch, &note, 0, &gather, NULL) == COMMON_OK)
        (void)proto_link_send(link->io, &gather, NULL, NULL, NULL);
}

void proto_stream_tick(struct proto_server *server)
{
    uint64_t now = common_clock_ns(), stall = now > STALL_NS ? now - STALL_NS : 0, before = server->ticked_ns;
    server->ticked_ns = now;
    for (struct common_list *at = server->links.next; at != &server->links; at = at->next) {
        struct server_link *link = common_list_entry(at, struct server_link, link);
        if (link->state == LINK_REFUSED)
            proto_link_fail(link->io, COMMON_UNAVAILABLE, "refused");
        else if (link->state != LINK_READY && now - link->since_ns > PROTO_HELLO_NS)
            proto_link_fail(link->io, COMMON_DEADLINE_EXCEEDED, "no hello in time");
        else if (proto_link_hung_up(link->io))
            proto_link_fail(link->io, COMMON_UNAVAILABLE, "the peer closed the link");
        else if (proto_link_stalls(link->io, stall))
            proto_link_fail(link->io, COMMON_DEADLINE_EXCEEDED,
                            "no byte of a begun frame has moved for 30 s");
        else if (link->state == LINK_READY && proto_link_owes_a_note(link->io, link->n_requests > 0, before))
            send_note(link);
    }
}

void proto_stream_evict(struct proto_server *server, uint64_t token)
{
    for (struct common_list *at = server->links.next; at != &server->links; at = at->next) {
        struct server_link *link = common_list_entry(at, struct server_link, link);
        if (link->caller.identity.token == token)
            proto_link_fail(link->io, COMMON_UNAVAILABLE,
                            "its token is no longer valid"); // in another turn
    }
}

// ---- listeners ------------------------------------------------------------------------------------------

static bool crowd_out_stranger(struct proto_server *server)
{
    int kind = server->n_stream_strangers[SILENT] >= server->n_stream_strangers[GREETED] ? SILENT : GREETED;
    if (common_list_empty(&server->strangers[kind]))
        return false;
    struct server_link *link = common_list_entry(server->strangers[kind].next, struct server_link, stranger);
    char why[PROTO_LIMIT_TEXT];
    proto_limit_reached(server, PROTO_LIMIT_STRANGERS, why);
    proto_server_refused(server, link->peer, why);
    server_link_close(link);
    return true;
}

// A listener of links: the acceptor's owner.
struct stream_listener {
    struct proto_server *server;
    struct proto_acceptor *acceptor;
    bool tls;
};

static struct proto_link *open_io(const struct stream_listener *listener, int fd, struct server_link *link)
{
    struct proto_server *server = listener->server;
    struct proto_link *io = proto_link_new(server->loop, fd, &link_ops, link);
    const struct common_tls_link_options options = {
        .end = COMMON_TLS_ACCEPT,
        .demands = server->tls_client_cert || !server->for_clients,
    };
    struct common_error err;
    if (io && listener->tls && proto_link_secure(io, server->tls, &options, &err) != COMMON_OK)
        proto_link_fail(io, err.code, err.message);
    return io;
}

static void on_accepted(void *owner, int fd, const struct sockaddr *address)
{
    const struct stream_listener *listener = owner;
    struct proto_server *server = listener->server;
    char text[80];
    proto_address_format(address, text);
    if (server->n_stream_strangers[SILENT] + server->n_stream_strangers[GREETED] >= PROTO_STRANGERS_MAX)
        crowd_out_stranger(server);
    struct server_link *link = calloc(1, sizeof *link);
    struct proto_link *io = link ? open_io(listener, fd, link) : NULL;
    if (!io) {
        proto_server_refused(server, text, "out of memory for a link");
        free(link);
        close(fd);
        return;
    }
    link->server = server;
    link->io = io;
    link->refs = 1;
    link->id = ++server->next_link;
    link->since_ns = common_clock_ns();
    snprintf(link->address, sizeof link->address, "%s", text);
    snprintf(link->peer, sizeof link->peer, "%s", text);
    common_list_init(&link->requests);
    common_list_init(&link->stranger);
    proto_caller_init(&link->caller);
    link->caller.io = io;
    link->caller.id = link->id;
    link->caller.fail = proto_link_fail;
    link->caller.names_worker = names_worker;
    count_stranger(link, LINK_HELLO, 1);
    common_list_push(&server->links, &link->link);
    server->n_links++;
    proto_server_ref(server);
}

static bool make_room(void *owner)
{
    return crowd_out_stranger(((const struct stream_listener *)owner)->server);
}

static const struct proto_acceptor_ops acceptor_ops = {.accepted = on_accepted, .make_room = make_room};

static enum common_code stream_listen(struct proto_server *server, struct proto_endpoint *endpoint,
                                      struct proto_listener *listener, struct common_error *err)
{
    struct stream_listener *stream = calloc(1, sizeof *stream);
    if (!stream)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a listener");
    *stream = (struct stream_listener){.server = server, .tls = endpoint->tls};
    enum common_code code = proto_acceptor_open(server->loop, server->name, endpoint, &acceptor_ops, stream,
                                                &stream->acceptor, err);
    if (code == COMMON_OK)
        listener->state = stream;
    else
        free(stream);
    return code;
}

// The links of all stream listeners go with the first.
static void stream_close(struct proto_listener *listener)
{
    struct proto_server *server = listener->server;
    struct stream_listener *stream = listener->state;
    proto_acceptor_close(stream->acceptor);
    free(stream);
    listener->state = NULL;
    while (!common_list_empty(&server->links))
        server_link_close(common_list_entry(server->links.next, struct server_link, link));
}

const struct proto_server_ops proto_stream_server_ops = {
    .listen = stream_listen,
    .close = stream_close,
    .resume = stream_resume,
    .streams = true,
};
