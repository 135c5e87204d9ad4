// SPDX-License-Identifier: Apache-2.0
// The life of a server: what it listens on, over which transport, and its end.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "proto/rpc/transport.h"

enum { LINKS_DEFAULT = 1024, DAEMONS_DEFAULT = 8192, REQUESTS_DEFAULT = 16384 };
#define BYTES_DEFAULT (UINT64_C(1) << 30)

static void on_tick(void *arg)
{
    struct proto_server *server = arg;
    if (server->unread)
        proto_callers_relieve(server);
    proto_stream_tick(server);
}

enum common_code proto_server_new(struct common_loop *loop, const struct proto_server_options *options,
                                  struct proto_server **out, struct common_error *err)
{
    assert(common_loop_is_owner(loop));
    if (options->token && strlen(options->token) > COMMON_TOKEN_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "the token is longer than %d characters",
                                COMMON_TOKEN_MAX);
    struct proto_server *server = calloc(1, sizeof *server);
    if (!server)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a server");
    server->loop = loop;
    server->refs = 1;
    snprintf(server->name, sizeof server->name, "%s", options->name ? options->name : "");
    server->role = options->role;
    if (options->token) {
        snprintf(server->token, sizeof server->token, "%s", options->token);
        server->has_token = true;
    }
    if (options->secret) {
        server->secret = *options->secret;
        server->has_secret = true;
    }
    server->tls = common_tls_ref(options->tls);
    server->tls_client_cert = options->tls_client_cert;
    server->payload_max = options->payload_max ? options->payload_max : PROTO_PAYLOAD_MAX;
    server->links_max = options->links_max ? options->links_max : LINKS_DEFAULT;
    server->requests_max = options->requests_max ? options->requests_max : REQUESTS_DEFAULT;
    server->bytes_max = options->bytes_max ? options->bytes_max : BYTES_DEFAULT;
    server->daemons_max = options->daemons_max ? options->daemons_max : DAEMONS_DEFAULT;
    server->caller_requests_max =
        options->caller_requests_max ? options->caller_requests_max : (server->requests_max + 1) / 2;
    server->caller_bytes_max =
        options->caller_bytes_max ? options->caller_bytes_max : server->bytes_max / 8 + 1;
    server->flags = options->flags;
    server->arg = options->arg;
    server->admit = options->admit;
    server->unadmitted = options->unadmitted;
    server->enters = options->enters;
    server->leaves = options->leaves;
    server->wording = options->wording;
    server->refusing = options->refusing;
    server->answered = options->answered;
    server->link_closed = options->link_closed;
    common_list_init(&server->links);
    common_list_init(&server->callers);
    for (int i = 0; i < 2; i++)
        common_list_init(&server->strangers[i]);
    enum common_code code;
    for (const struct proto_method *method = options->methods; method && method->method; method++) {
        if (!proto_codec_method(method->method)) {
            code = common_error_set(err, COMMON_INVALID_ARGUMENT, "method %u does not exist", method->method);
            goto unref;
        }
        server->methods[method->method] = method;
        server->for_clients = server->for_clients || method->roles & 1u << BANYAN__PB__ROLE__ROLE_CLIENT;
    }
    code = common_timer_new(loop, on_tick, server, &server->tick);
    if (code != COMMON_OK) {
        common_error_set(err, code, "out of memory for a server");
        goto unref;
    }
    common_timer_start(server->tick, COMMON_NS_PER_S, true);
    *out = server;
    return COMMON_OK;

unref:
    proto_server_unref(server);
    return code;
}

enum common_code proto_server_listen(struct proto_server *server, const char *endpoint,
                                     struct common_error *err)
{
    assert(common_loop_is_owner(server->loop) && !server->closed);
    struct proto_endpoint where;
    enum common_code code = proto_endpoint_parse(endpoint, &where, err);
    if (code != COMMON_OK)
        return code;
    if (where.tls && (!server->tls || !common_tls_has_cert(server->tls)))
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "endpoint '%s' uses TLS: give --tls-cert FILE, --tls-key FILE and --tls-ca FILE", endpoint);
    if (where.tls && !common_tls_says(server->tls, proto_role_uri(server->role)))
        return common_error_set(
            err, COMMON_PERMISSION_DENIED,
            "endpoint '%s': the certificate of --tls-cert does not contain %s: issue one for this role "
            "(banyanctl pki issue --role)",
            endpoint, proto_role_uri(server->role));
    struct proto_listener *listener = calloc(1, sizeof *listener);
    if (!listener)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a listener");
    listener->server = server;
    listener->ops = where.kind == PROTO_ENDPOINT_NNG_TCP ? &proto_sp_server_ops : &proto_stream_server_ops;
    code = listener->ops->listen(server, &where, listener, err);
    if (code != COMMON_OK) {
        free(listener);
        return code;
    }
    proto_endpoint_format(&where, listener->endpoint);
    struct proto_listener **last = &server->listeners;
    while (*last)
        last = &(*last)->next;
    *last = listener;
    return COMMON_OK;
}

void proto_server_close(struct proto_server *server)
{
    if (!server)
        return;
    assert(common_loop_is_owner(server->loop) && !server->closed);
    server->closed = true;
    common_timer_free(server->tick);
    server->tick = NULL;
    for (struct proto_listener *listener = server->listeners; listener; listener = listener->next)
        listener->ops->close(listener);
    proto_server_unref(server);
}

void proto_server_evict(struct proto_server *server, uint64_t token)
{
    assert(common_loop_is_owner(server->loop) && token != 0);
    proto_stream_evict(server, token);
    for (struct proto_listener *at = server->listeners; at; at = at->next)
        if (at->ops->evict)
            at->ops->evict(at, token);
}
