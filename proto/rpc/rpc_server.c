// SPDX-License-Identifier: Apache-2.0
// The common half of the serving end: admission, roles, dispatch, answers. Transports call it; it calls them
// by their ops alone.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "proto/rpc/transport.h"
#include "proto/stream/stream_hello.h"

#define WARN_AGAIN_NS (60 * COMMON_NS_PER_S) // about the same peer for the same reason

enum { IDLE_MAX = 1024, TEXT_MAX = 1024 };

// ---- life of a server -----------------------------------------------------------------------------------

void proto_server_ref(struct proto_server *server)
{
    server->refs++;
}

void proto_server_unref(struct proto_server *server)
{
    assert(server->refs > 0);
    if (--server->refs > 0)
        return;
    for (struct proto_request *request = server->idle, *next; request; request = next) {
        next = request->hash_next;
        free(request);
    }
    for (struct proto_listener *listener = server->listeners, *next; listener; listener = next) {
        next = listener->next;
        free(listener);
    }
    proto_scratch_fini(&server->scratch);
    proto_pool_fini(&server->pool);
    common_tls_unref(server->tls);
    explicit_bzero(&server->secret, sizeof server->secret);
    explicit_bzero(server->token, sizeof server->token);
    free(server);
}

const char *proto_server_endpoint(const struct proto_server *server, size_t nth)
{
    const struct proto_listener *listener = server->listeners;
    while (listener && nth > 0) {
        listener = listener->next;
        nth--;
    }
    return listener ? listener->endpoint : NULL;
}

void proto_server_stats(const struct proto_server *server, struct proto_server_stats *out)
{
    *out = server->stats;
    out->links = server->n_links;
}

void proto_server_counts(const struct proto_server *server, struct proto_server_counts *out)
{
    out->took = server->took;
    memcpy(out->failed, server->failed, sizeof out->failed);
    memcpy(out->refused, server->refusals, sizeof out->refused);
}

// Counts it and calls the observer, if any.
static void note_refused(struct proto_server *server, enum proto_refusal refusal, const char *peer,
                         const char *why)
{
    server->refusals[refusal]++;
    if (server->refusing)
        server->refusing(server->arg, refusal, peer, why);
}

// A peer that is refused dials again and again, from another port each time.
static uint64_t warned_key(const char *peer, const char *why)
{
    const char *port = strrchr(peer, ':');
    size_t host = port ? (size_t)(port - peer) : strlen(peer);
    return XXH3_64bits(peer, host) ^ XXH3_64bits_withSeed(why, strlen(why), 1);
}

static void warn_refused(struct proto_server *server, const char *peer, const char *why)
{
    server->stats.refused++;
    uint64_t now = common_clock_ns(), key = warned_key(peer, why);
    if (server->warned_ns && now - server->warned_ns < COMMON_NS_PER_S)
        return;
    struct proto_warned *oldest = &server->warned[0];
    for (int i = 0; i < PROTO_WARNED_MAX; i++) {
        struct proto_warned *known = &server->warned[i];
        if (known->at_ns && known->key == key && now - known->at_ns < WARN_AGAIN_NS)
            return;
        oldest = known->at_ns < oldest->at_ns ? known : oldest;
    }
    *oldest = (struct proto_warned){.key = key, .at_ns = now};
    common_log_warn("%s refused %s: %s (%llu refused since the last such message)", server->name, peer, why,
                    (unsigned long long)(server->stats.refused - server->warned_refused));
    server->warned_ns = now;
    server->warned_refused = server->stats.refused;
}

bool proto_server_admit(const struct proto_server *server, const ProtobufCBinaryData *credentials,
                        const char *peer, struct proto_identity *out)
{
    if (server->admit)
        return server->admit(server->arg, credentials->data, credentials->len, peer, out);
    if (server->has_token && (credentials->len != strlen(server->token) ||
                              !common_bytes_equal(credentials->data, server->token, credentials->len)))
        return false;
    *out = proto_identity_admin;
    return true;
}

const char *proto_server_unadmitted(const struct proto_server *server, const ProtobufCBinaryData *credentials)
{
    const char *why =
        server->unadmitted ? server->unadmitted(server->arg, credentials->data, credentials->len) : NULL;
    return why                ? why
           : credentials->len ? "the client token is wrong or was revoked"
                              : "a client token is required";
}

void proto_server_refuses(struct proto_server *server, enum proto_refusal refusal, const char *peer,
                          const char *why)
{
    note_refused(server, refusal, peer, why);
    warn_refused(server, peer, why);
}

void proto_server_refused(struct proto_server *server, const char *peer, const char *why)
{
    proto_server_refuses(server, PROTO_REFUSED_CONNECTION, peer, why);
}

static struct proto_lane *lane_of(struct proto_server *server, uint32_t role)
{
    return &server->lanes[proto_role_is_daemon(role) ? PROTO_LANE_DAEMONS : PROTO_LANE_CLIENTS];
}

bool proto_server_full(const struct proto_server *server, uint32_t role)
{
    return lane_of((struct proto_server *)server, role)->bytes >= server->bytes_max;
}

bool proto_server_may_begin(const struct proto_server *server, uint32_t role, uint64_t bytes)
{
    uint64_t begun = lane_of((struct proto_server *)server, role)->begun;
    return begun == 0 || (begun < server->bytes_max && bytes <= server->bytes_max - begun);
}

uint64_t *proto_server_begun(struct proto_server *server, uint32_t role)
{
    return &lane_of(server, role)->begun;
}

// ---- requests -------------------------------------------------------------------------------------------

static void count(struct proto_request *request, int64_t requests, int64_t bytes)
{
    struct proto_server *server = request->server;
    struct proto_lane *lane = lane_of(server, request->role);
    server->stats.requests += (uint64_t)requests, server->stats.bytes += (uint64_t)bytes;
    lane->requests += (uint64_t)requests, lane->bytes += (uint64_t)bytes;
}

static void count_caller(struct proto_request *request, int32_t requests, int64_t bytes)
{
    request->caller->requests += (uint32_t)requests, request->caller->bytes += (uint64_t)bytes;
}

struct proto_request *proto_request_new(struct proto_server *server, struct proto_caller *caller,
                                        uint32_t role, struct proto_message *message)
{
    struct proto_request *request = server->idle;
    if (request) {
        server->idle = request->hash_next;
        server->n_idle--;
    } else {
        request = malloc(sizeof *request);
        if (!request) {
            proto_message_release(&server->pool, message);
            return NULL;
        }
    }
    *request = (struct proto_request){
        .server = server,
        .message = message,
        .id = message->header->request,
        .method = message->header->method,
        .role = role,
        .caller = caller,
        .identity = &caller->identity,
        .arrived_ns = common_clock_ns(),
        .bytes = proto_message_bytes(message),
    };
    common_list_init(&request->link);
    uint64_t left = message->header->remaining_ns;
    request->deadline_ns =
        left < UINT64_MAX - request->arrived_ns ? request->arrived_ns + left : UINT64_MAX - 1;
    proto_server_ref(server);
    count(request, 1, (int64_t)request->bytes);
    count_caller(request, 1, (int64_t)request->bytes);
    return request;
}

static void resume_links(struct proto_server *server)
{
    const struct proto_listener *at = server->listeners;
    while (at && !at->ops->resume)
        at = at->next;
    if (at)
        at->ops->resume(server);
}

// The transport has taken the answer, or never will.
static void request_end(struct proto_request *request)
{
    struct proto_server *server = request->server;
    uint32_t role = request->role;
    bool was_full = proto_server_full(server, role);
    count(request, -1, -(int64_t)request->bytes);
    proto_message_release(&server->pool, request->message);
    if (server->n_idle < IDLE_MAX) {
        request->hash_next = server->idle;
        server->idle = request;
        server->n_idle++;
    } else {
        free(request);
    }
    if (was_full && !proto_server_full(server, role) && !server->closed)
        resume_links(server);
    proto_server_unref(server);
}

static void count_answer(const struct proto_request *request, const Banyan__Pb__Status *status)
{
    struct proto_server *server = request->server;
    uint64_t now = request->ends_ns ? request->ends_ns : common_clock_ns();
    if (status && status->code < COMMON_CODE_COUNT)
        server->failed[status->code]++;
    if (request->method < PROTO_METHOD_LIMIT && server->methods[request->method])
        common_buckets_add(&server->took[request->method], now - request->arrived_ns);
}

// NULL: no answer.
static void request_leave(struct proto_request *request, struct proto_gather *gather, proto_done_fn sent,
                          void *sent_arg)
{
    struct proto_server *server = request->server;
    // Before the transport looks whether the caller may be read again; the link may be gone afterwards.
    count_caller(request, -1, -(int64_t)(request->bytes + request->charged));
    request->caller = NULL;
    request->identity = NULL;
    request->send(request, gather, sent, sent_arg);
    if (server->unread > server->bytes_max / 2)
        proto_callers_relieve(server);
    request_end(request);
}

static void take_kept_away(struct proto_request *request, const Banyan__Pb__Status *status)
{
    if (status && status->code < COMMON_CODE_COUNT)
        request->server->failed[status->code]++;
    proto_done_fn sent = request->kept_sent;
    proto_gather_free(request->kept);
    request->kept = NULL;
    request->kept_sent = NULL;
    if (sent)
        sent(request->kept_sent_arg);
}

static void request_answer(struct proto_request *request, struct proto_outgoing *outgoing, proto_done_fn sent,
                           void *sent_arg)
{
    struct proto_server *server = request->server;
    assert(common_loop_is_owner(server->loop));
    struct proto_gather gather;
    struct common_error err;
    bool again = request->answered; // in the place of an answer that was kept
    if (again)
        take_kept_away(request, outgoing->status);
    else
        count_answer(request, outgoing->status);
    outgoing->kind = PROTO_FRAME_REPLY;
    outgoing->method = request->method;
    outgoing->request = request->id;
    outgoing->summed = request->message->summed;
    enum common_code code = proto_frame_encode(&server->scratch, outgoing, UINT64_MAX / 4, &gather, &err);
    if (code != COMMON_OK) {
        common_log_error("%s cannot send the answer to %s to %s: %s", server->name,
                         proto_codec_method(request->method) ? proto_codec_method(request->method)->name
                                                             : "?",
                         request->peer, err.message);
        Banyan__Pb__Status status = BANYAN__PB__STATUS__INIT;
        status.code = (uint32_t)(code == COMMON_INVALID_ARGUMENT ? COMMON_INTERNAL : code);
        status.message = err.message;
        struct proto_outgoing failed = {
            .kind = PROTO_FRAME_REPLY,
            .method = request->method,
            .request = request->id,
            .status = &status,
            .summed = outgoing->summed,
        };
        code = proto_frame_encode(&server->scratch, &failed, 0, &gather, NULL);
        if (sent)
            sent(sent_arg);
        sent = NULL;
    }
    request->answered = true;
    if (again || !server->answered ||
        server->answered(server->arg, request,
                         outgoing->status ? (enum common_code)outgoing->status->code : COMMON_OK,
                         outgoing->status ? NULL : outgoing->body)) {
        request_leave(request, code == COMMON_OK ? &gather : NULL, sent, sent_arg);
        return;
    }
    request->on_cancel = NULL; // what it is about may be gone
    request->kept = code == COMMON_OK ? proto_gather_keep(&gather) : NULL;
    request->kept_sent = sent;
    request->kept_sent_arg = sent_arg;
}

void proto_request_release(struct proto_request *request)
{
    struct proto_gather *kept = request->kept;
    proto_done_fn sent = request->kept_sent;
    if (!kept) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "out of memory for the answer", NULL, 0);
        return;
    }
    request->kept = NULL;
    request->kept_sent = NULL;
    request_leave(request, kept, sent, request->kept_sent_arg);
    proto_gather_free(kept);
}

void proto_request_reply(struct proto_request *request, const ProtobufCMessage *body,
                         const struct proto_tensor_out *tensors, size_t n_tensors, proto_done_fn sent,
                         void *sent_arg)
{
    const struct proto_method_info *info = proto_codec_method(request->method);
    assert(info && body && body->descriptor == info->reply);
    (void)info;
    request_answer(request,
                   &(struct proto_outgoing){.body = body, .tensors = tensors, .n_tensors = n_tensors}, sent,
                   sent_arg);
}

// Cuts at a limit without cutting a character of UTF-8 in two.
static size_t cut_text(const char *text, size_t max)
{
    size_t n = strnlen(text, max + 1);
    if (n <= max)
        return n;
    n = max;
    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    return n;
}

void proto_request_fail(struct proto_request *request, enum common_code code, const char *text,
                        Banyan__Pb__Detail **details, size_t n_details)
{
    assert(code != COMMON_OK && common_code_valid((int)code));
    char copy[TEXT_MAX + 1];
    size_t n = cut_text(text ? text : "", TEXT_MAX);
    memcpy(copy, text ? text : "", n);
    copy[n] = 0;
    Banyan__Pb__Status status = BANYAN__PB__STATUS__INIT;
    status.code = (uint32_t)code;
    status.message = copy;
    status.details = details;
    status.n_details = n_details > 16 ? 16 : n_details;
    if (request->server->wording)
        request->server->wording(request->server->arg, request, copy, sizeof copy, &status);
    request_answer(request, &(struct proto_outgoing){.status = &status}, NULL, NULL);
}

void proto_request_fail_why(struct proto_request *request, enum common_code code, enum proto_reason reason,
                            const char *text)
{
    Banyan__Pb__Detail detail = BANYAN__PB__DETAIL__INIT, *details[] = {&detail};
    detail.number = reason;
    detail.reason = (char *)proto_reason_name(reason);
    proto_request_fail(request, code, text, details, reason != PROTO_REASON_NONE);
}

void proto_request_refuse(struct proto_request *request, enum proto_refusal refusal, enum common_code code,
                          enum proto_reason reason, const char *text)
{
    proto_server_refuses(request->server, refusal, request->peer, text);
    proto_request_fail_why(request, code, reason, text);
}

void proto_request_cancel(struct proto_request *request)
{
    if (request->cancelled)
        return;
    request->cancelled = true;
    proto_done_fn fn = request->on_cancel;
    request->on_cancel = NULL;
    if (fn)
        fn(request->on_cancel_arg);
}

void proto_request_on_cancel(struct proto_request *request, proto_done_fn fn, void *arg)
{
    if (request->cancelled) {
        fn(arg);
        return;
    }
    request->on_cancel = fn;
    request->on_cancel_arg = arg;
}

bool proto_request_over(const struct proto_request *request)
{
    return request->cancelled || common_clock_ns() >= proto_request_deadline(request);
}

void proto_request_dispatch(struct proto_request *request, bool authentic)
{
    struct proto_server *server = request->server;
    const struct proto_method_info *info = proto_codec_method(request->method);
    const struct proto_method *method = info ? server->methods[request->method] : NULL;
    struct common_error err;
    if (!authentic) {
        proto_request_refuse(request, PROTO_REFUSED_TOKEN, COMMON_UNAUTHENTICATED, PROTO_REASON_CREDENTIALS,
                             proto_server_unadmitted(server, &request->message->header->credentials));
        return;
    }
    if (!method) {
        snprintf(err.message, sizeof err.message, "method %u (%s) is not served here", request->method,
                 info ? info->name : "unknown");
        note_refused(server, PROTO_REFUSED_METHOD, request->peer, err.message);
        proto_request_fail(request, COMMON_UNIMPLEMENTED, err.message, NULL, 0);
        return;
    }
    if (!(method->roles & 1u << request->role)) {
        snprintf(err.message, sizeof err.message, "%s is not for callers of this role", info->name);
        proto_request_refuse(request, PROTO_REFUSED_ROLE, COMMON_PERMISSION_DENIED, PROTO_REASON_NONE,
                             err.message);
        return;
    }
    if (lane_of(server, request->role)->requests > server->requests_max) {
        char text[PROTO_LIMIT_TEXT];
        proto_limit_reached(server,
                            proto_role_is_daemon(request->role) ? PROTO_LIMIT_DAEMON_REQUESTS
                                                                : PROTO_LIMIT_REQUESTS,
                            text);
        note_refused(server, PROTO_REFUSED_LIMIT, request->peer, text);
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, text, NULL, 0);
        return;
    }
    if (request->message->header->remaining_ns == 0) {
        static const char late[] = "the deadline had passed when the request arrived";
        note_refused(server, PROTO_REFUSED_LATE, request->peer, late);
        proto_request_fail(request, COMMON_DEADLINE_EXCEEDED, late, NULL, 0);
        return;
    }
    enum common_code code = proto_message_fill(request->message, info->request, &err);
    if (code != COMMON_OK) {
        proto_request_refuse(request, PROTO_REFUSED_MESSAGE, code, PROTO_REASON_NONE, err.message);
        return;
    }
    size_t bytes = proto_message_bytes(request->message); // it has grown by the body
    count(request, 0, (int64_t)bytes - (int64_t)request->bytes);
    count_caller(request, 0, (int64_t)bytes - (int64_t)request->bytes);
    request->bytes = bytes;
    server->stats.served++;
    method->handle(server->arg, request);
}

const struct proto_message *proto_request_message(const struct proto_request *request)
{
    return request->message;
}

uint64_t proto_request_deadline(const struct proto_request *request)
{
    return request->deadline_ns;
}

const char *proto_request_peer(const struct proto_request *request)
{
    return request->peer;
}

bool proto_request_is_daemon(const struct proto_request *request)
{
    return proto_role_is_daemon(request->role);
}

const struct proto_identity *proto_request_identity(const struct proto_request *request)
{
    return request->identity;
}

void proto_request_charge(struct proto_request *request, uint64_t bytes)
{
    request->charged += bytes;
    count_caller(request, 0, (int64_t)bytes);
}

void proto_request_ends(struct proto_request *request, uint64_t now_ns)
{
    request->ends_ns = now_ns;
}

uint32_t proto_request_method(const struct proto_request *request)
{
    return request->method;
}

uint32_t proto_request_role(const struct proto_request *request)
{
    return request->role;
}

bool proto_request_may_be_worker(const struct proto_request *request, const char *name)
{
    const struct proto_caller *caller = request->caller;
    return !caller || !caller->io || !caller->names_worker || caller->names_worker(caller->io, name);
}

uint64_t proto_request_link(const struct proto_request *request)
{
    return request->caller->id;
}

uint64_t proto_request_arrived(const struct proto_request *request)
{
    return request->arrived_ns;
}
