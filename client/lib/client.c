// SPDX-License-Identifier: Apache-2.0
// Connecting and disconnecting. The I/O thread lives from connect to disconnect.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/endpoints.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/core/spans.h"
#include "client/lib/rows/peer.h"
#include "client/lib/steps/queue.h"
#include "common/base/clock.h"
#include "common/secure/secret.h"
#include "common/secure/tls.h"
#include "common/tracing/tracer.h"
#include "proto/nng_probe.h"
#include "proto/rpc/endpoint.h"

#define PROBE_NS (1 * COMMON_NS_PER_S) // to find out why there was no answer

// Calls on the coordinator's channel: an attend in several RPCs has a few in flight, and each thread of the
// caller's may block in one more.
static uint32_t channel_calls(uint32_t calls_max)
{
    return calls_max < (UINT32_MAX - 4096) / 4 ? calls_max * 4 + 4096 : UINT32_MAX;
}

void client_unref(struct banyan_client *client)
{
    if (atomic_fetch_sub(&client->refs, 1) != 1)
        return;
    common_tls_unref(client->tls);
    free(client);
}

struct opening {
    struct banyan_client *client;
    const char *token;
    bool any_daemon;
    banyan_code code;
    banyan_error *error;
};

static void open_channels(void *arg)
{
    struct opening *opening = arg;
    struct banyan_client *client = opening->client;
    struct proto_channel_options options = {
        .name = "libbanyan",
        .role = BANYAN__PB__ROLE__ROLE_CLIENT,
        .token = opening->token,
        .calls_max = channel_calls(client->calls_max),
        .tls = client->tls,
        // A worker's certificate does not make a coordinator; who only examines asks any daemon.
        .peer_role = opening->any_daemon ? 0 : BANYAN__PB__ROLE__ROLE_COORDINATOR,
    };
    opening->code = client_spans_open(client, opening->error);
    if (opening->code != BANYAN_OK)
        return;
    opening->code = client_endpoints_open(client, &options, client_calls_move, opening->error);
    if (opening->code != BANYAN_OK)
        return;
    opening->code = client_peers_new(client, opening->token, &client->peers);
    if (opening->code != BANYAN_OK)
        client_error_set(opening->error, opening->code, "out of memory");
}

static void close_channels(void *arg)
{
    struct banyan_client *client = arg;
    client_calls_cancel_all(client);
    client_peers_free(client->peers);
    client_endpoints_close(client);
    client->peers = NULL;
}

static void nothing(void *arg)
{
    (void)arg;
}

void banyan_shutdown(banyan_client *client)
{
    if (!client || atomic_exchange(&client->closing, true))
        return;
    common_loop_call_own(client->loop, close_channels, client);
    // Calls that began meanwhile have been refused, and are notified in the next turn.
    common_loop_call_own(client->loop, nothing, NULL);
}

static void client_stop(struct banyan_client *client)
{
    banyan_shutdown(client);
    client_spans_finish(client);
    common_loop_stop(client->loop); // what was refused meanwhile is still notified
    common_loop_join(client->loop);
    common_tracer_free(client->tracer);
    client->tracer = NULL;
    common_loop_free(client->loop);
    client_queue_free(client->queue);
    client->loop = NULL;
    client->queue = NULL;
}

static banyan_code take_health(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    *(bool *)arg = true;
    const Banyan__Pb__HealthCheckReply *reply = (const Banyan__Pb__HealthCheckReply *)body;
    if (reply->serving)
        return BANYAN_OK;
    return client_error_set(error, BANYAN_UNAVAILABLE, "the coordinator is not ready yet: try again");
}

// *answered: there was an answer, even if only that it does not serve.
static banyan_code ping(struct banyan_client *client, uint64_t timeout_ns, uint64_t *rtt_ns, bool *answered,
                        banyan_error *error)
{
    Banyan__Pb__HealthCheckRequest request = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    uint64_t start = common_clock_ns();
    banyan_code code = client_unary(client, BANYAN__PB__METHOD__METHOD_HEALTH_CHECK, &request.base, true,
                                    timeout_ns, take_health, answered, error);
    if (code == BANYAN_OK && rtt_ns)
        *rtt_ns = common_clock_ns() - start;
    return code;
}

struct examining {
    banyan_examined seen;
    bool *answered;
};

// "FROM TO"; what is neither is left out.
static bool take_edges(const Banyan__Pb__HealthCheckReply *reply, banyan_examined *seen)
{
    if (!reply->n_edges_down)
        return true;
    seen->edges_down = calloc(reply->n_edges_down, sizeof *seen->edges_down);
    for (size_t i = 0; i < reply->n_edges_down && seen->edges_down; i++) {
        banyan_edge_down *edge = &seen->edges_down[seen->n_edges_down];
        const char *space = strchr(reply->edges_down[i], ' ');
        if (!space || (size_t)(space - reply->edges_down[i]) >= sizeof edge->from)
            continue;
        memcpy(edge->from, reply->edges_down[i], (size_t)(space - reply->edges_down[i]));
        client_copy_text(edge->to, sizeof edge->to, space + 1);
        seen->n_edges_down++;
    }
    return seen->edges_down != NULL;
}

static banyan_code take_examined(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct examining *examining = arg;
    const Banyan__Pb__HealthCheckReply *reply = (const Banyan__Pb__HealthCheckReply *)body;
    *examining->answered = true;
    banyan_examined seen = {
        .serving = reply->serving,
        .term = reply->term,
        .uptime_ns = reply->uptime_ns,
        .wall_ns = reply->wall_ns,
        .files = reply->files,
        .files_max = reply->files_max,
        .memory_bytes = reply->memory_bytes,
        .memory_available_bytes = reply->memory_available_bytes,
        .disk_bytes = reply->disk_bytes,
        .disk_free_bytes = reply->disk_free_bytes,
        .tls_expires_s = reply->tls_expires_s,
        .tls_ca_expires_s = reply->tls_ca_expires_s,
    };
    client_copy_text(seen.version, sizeof seen.version, reply->version);
    if (!take_edges(reply, &seen))
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    examining->seen = seen;
    return BANYAN_OK;
}

// Twice: the first one also waits for the connection, and measures no round trip.
static banyan_code examine(struct banyan_client *client, uint64_t timeout_ns, banyan_examined *out,
                           bool *answered, banyan_error *error)
{
    struct examining examining = {.answered = answered};
    Banyan__Pb__HealthCheckRequest request = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    banyan_code code = client_unary(client, BANYAN__PB__METHOD__METHOD_HEALTH_CHECK, &request.base, true,
                                    timeout_ns, take_examined, &examining, error);
    if (code != BANYAN_OK)
        return code;
    request.examine = true;
    banyan_examined_free(&examining.seen);
    uint64_t start = common_clock_ns(), wall = common_clock_wall_ns();
    code = client_unary(client, BANYAN__PB__METHOD__METHOD_HEALTH_CHECK, &request.base, true, timeout_ns,
                        take_examined, &examining, error);
    if (code != BANYAN_OK)
        return code;
    *out = examining.seen;
    out->rtt_ns = common_clock_ns() - start;
    if (out->wall_ns)
        out->skew_ns = (int64_t)(out->wall_ns - (wall + out->rtt_ns / 2));
    return BANYAN_OK;
}

// Nothing has come of it over nng, which does not say why.
static void explain_nng(const char *endpoint, banyan_error *error)
{
    struct proto_endpoint where;
    char why[COMMON_ERROR_BYTES];
    if (proto_endpoint_parse(endpoint, &where, NULL) != COMMON_OK || where.kind != PROTO_ENDPOINT_NNG_TCP)
        return;
    proto_nng_probe(&where, PROBE_NS, why);
    client_error_set(error, BANYAN_UNAVAILABLE,
                     "cannot reach the coordinator at %s: is banyan-coordinator running there? (%s)",
                     endpoint, why);
}

static const char *choose_endpoint(const char *endpoint)
{
    const char *named = endpoint ? endpoint : getenv("BANYAN_ENDPOINT");
    return named && *named ? named : CLIENT_ENDPOINT_DEFAULT;
}

static banyan_code load_tls(const banyan_options *options, struct banyan_client *client, banyan_error *error)
{
    const struct common_tls_files files = {.cert = options->tls_cert,
                                           .key = options->tls_key,
                                           .ca = options->tls_ca};
    struct common_error err = {0};
    if (!files.cert && !files.key && !files.ca)
        return BANYAN_OK;
    enum common_code code = common_tls_new(&files, &client->tls, &err);
    return code == COMMON_OK ? BANYAN_OK : client_error_set(error, (banyan_code)code, "%s", err.message);
}

// So that a blocking caller may do the I/O thread's work (common/loop/loop.h): the call is alone. Spans go
// out over sockets that may raise SIGPIPE, which is the I/O thread's to block.
static bool may_be_lent(void *arg)
{
    const struct banyan_client *client = arg;
    return !client->calls && !client->ops && !client->tracer && atomic_load(&client->outstanding) == 0 &&
           !atomic_load(&client->closing);
}

// Connects and, with `examined`, asks for that and disconnects: out is not written then.
static banyan_code client_open(const char *endpoint, const banyan_options *options, banyan_client **out,
                               banyan_examined *examined, banyan_error *error)
{
    static const banyan_options defaults;
    if (!options)
        options = &defaults;
    endpoint = choose_endpoint(endpoint);
    char token[COMMON_TOKEN_MAX + 1] = "";
    struct common_error err = {0};
    enum common_code loaded =
        options->token_file ? common_token_load(options->token_file, token, &err) : COMMON_OK;
    if (loaded != COMMON_OK)
        return client_error_set(error, (banyan_code)loaded, "%s", err.message);
    if (!options->token_file && options->token) {
        if (strlen(options->token) > COMMON_TOKEN_MAX)
            return client_error_set(error, BANYAN_INVALID_ARGUMENT, "the token is longer than %d characters",
                                    COMMON_TOKEN_MAX);
        strcpy(token, options->token);
    }
    struct banyan_client *client = calloc(1, sizeof *client);
    if (!client)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    banyan_code code;
    atomic_store(&client->refs, 1);
    client->timeout_ns = options->timeout_ns ? options->timeout_ns : CLIENT_TIMEOUT_NS;
    client->calls_max = options->calls_max ? options->calls_max : CLIENT_CALLS_MAX;
    if ((size_t)snprintf(client->endpoint, sizeof client->endpoint, "%s", endpoint) >=
        sizeof client->endpoint) {
        code = client_error_set(error, BANYAN_INVALID_ARGUMENT, "the endpoint is longer than %zu bytes",
                                sizeof client->endpoint - 1);
        goto free_client;
    }
    code = load_tls(options, client, error);
    if (code != BANYAN_OK)
        goto free_client;
    code = client_queue_new(&client->queue);
    if (code == BANYAN_OK)
        code = (banyan_code)common_loop_new(&client->loop);
    if (code != BANYAN_OK) {
        client_error_set(error, code, "cannot create the event loop: too many open files, or out of memory");
        goto free_queue;
    }
    common_loop_lend(client->loop, may_be_lent, client);
    code = (banyan_code)common_loop_start_thread(client->loop, "banyan-io");
    if (code != BANYAN_OK) {
        client_error_set(error, code, "cannot start the I/O thread: too many threads");
        common_loop_free(client->loop);
        goto free_queue;
    }
    struct opening opening = {
        .client = client, .token = *token ? token : NULL, .any_daemon = examined != NULL, .error = error};
    common_loop_call(client->loop, open_channels, &opening);
    code = opening.code;
    bool answered = false;
    if (code == BANYAN_OK)
        code = examined ? examine(client, options->connect_timeout_ns, examined, &answered, error)
                        : ping(client, options->connect_timeout_ns, NULL, &answered, error);
    memset(token, 0, sizeof token);
    if (code != BANYAN_OK || examined) {
        if (code == BANYAN_UNAVAILABLE && !answered && error)
            explain_nng(endpoint, error);
        client_stop(client);
        goto free_client;
    }
    *out = client;
    return BANYAN_OK;

free_queue:
    client_queue_free(client->queue);
free_client:
    client_unref(client);
    return code;
}

banyan_code banyan_connect(const char *endpoint, const banyan_options *options, banyan_client **out,
                           banyan_error *error)
{
    if (!out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "out is NULL");
    return client_open(endpoint, options, out, NULL, error);
}

banyan_code banyan_examine(const char *endpoint, const banyan_options *options, banyan_examined *out,
                           banyan_error *error)
{
    if (!out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "out is NULL");
    return client_open(endpoint, options, NULL, out, error);
}

void banyan_examined_free(banyan_examined *examined)
{
    if (!examined)
        return;
    free(examined->edges_down);
    examined->edges_down = NULL;
    examined->n_edges_down = 0;
}

void banyan_disconnect(banyan_client *client)
{
    if (!client)
        return;
    client_stop(client);
    client_unref(client);
}

banyan_code banyan_ping(banyan_client *client, uint64_t *rtt_ns, banyan_error *error)
{
    bool answered;
    return ping(client, 0, rtt_ns, &answered, error);
}
